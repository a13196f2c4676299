//! One file for each jet, or for a few that share their definition.

mod activation;
mod arithmetic;
mod conv;
mod embedding;
mod fused;
mod gated;
mod kv_cache;
mod layout;
mod linear;
mod normalization;
mod pool;
mod quantize;
mod resize;
mod rope;
mod sdpa;
mod sdpa_disentangled;
mod sdpa_packed;
mod sdpa_paged;

pub use activation::{GELU, RELU, SIGMOID, SILU, SOFTMAX, TANH};
pub use arithmetic::{ADD, CLAMP, MUL, SUB};
pub use conv::{CONV, CONV_ACTIVATION, CONV_TRANSPOSE};
pub use embedding::EMBEDDING;
pub use fused::{GATED_LINEAR, LINEAR_ADD, LINEAR_MANY};
pub use gated::{GEGLU, SWIGLU};
pub use kv_cache::KV_CACHE;
pub use layout::{CONCAT, PERMUTE, RESHAPE, SPLIT, TRANSPOSE};
pub use linear::{LINEAR, MATMUL};
pub use normalization::{LAYERNORM, RMSNORM};
pub use pool::{AVERAGE_POOL, MAX_POOL};
pub use quantize::{DEQUANTIZE, QUANTIZE};
pub use resize::RESIZE;
pub use rope::ROPE;
pub use sdpa::SDPA;
pub use sdpa_disentangled::SDPA_DISENTANGLED;
pub use sdpa_packed::SDPA_PACKED;
pub use sdpa_paged::SDPA_PAGED;
