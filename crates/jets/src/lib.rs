//! The jet table. A jet is one file: its definition out of atoms, its contract, its test cases.
//! Kernels live in the backends and are found by the jet's name.

#![forbid(unsafe_code)]

mod jets;
mod sugar;

pub use jets::*;

use cyb_ir::Jet;

/// Every jet. Adding one is a file in `jets/` and a line here.
pub static JETS: &[&Jet] = &[
    &LINEAR,
    &MATMUL,
    &EMBEDDING,
    &ADD,
    &MUL,
    &SUB,
    &CLAMP,
    &RESHAPE,
    &TRANSPOSE,
    &PERMUTE,
    &CONCAT,
    &SPLIT,
    &QUANTIZE,
    &DEQUANTIZE,
    &AFFINE_QUANTIZE,
    &LOOKUP,
    &MATMUL_INTEGER,
    &CONV_INTEGER,
    &RMSNORM,
    &LAYERNORM,
    &SOFTMAX,
    &SIGMOID,
    &TANH,
    &RELU,
    &LEAKY_RELU,
    &SILU,
    &GELU,
    &SWIGLU,
    &GEGLU,
    &ROPE,
    &ROTARY,
    &KV_CACHE,
    &SDPA,
    &SDPA_PACKED,
    &SDPA_DISENTANGLED,
    &SDPA_PAGED,
    &CONV,
    &CONV_TRANSPOSE,
    &MAX_POOL,
    &AVERAGE_POOL,
    &RESIZE,
    &LSTM,
    &GRU,
    &RNN,
    &LINEAR_ACTIVATION,
    &LINEAR_ADD,
    &LINEAR_MANY,
    &GATED_LINEAR,
    &CONV_ACTIVATION,
    &CONV_ADD,
    &CONV_QUANTIZED,
];

/// The jet with this name.
pub fn find(name: &str) -> Option<&'static Jet> {
    JETS.iter().copied().find(|jet| jet.name == name)
}

#[cfg(test)]
mod tests;
