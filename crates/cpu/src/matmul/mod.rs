//! `y[M, N] = x[M, K] · w[N, K]ᵀ` for weights of every dtype.
//!
//! Weights are re-tiled once, when they are loaded or at their second use, into tiles of 16 rows whose lanes are output
//! columns ([`PackedMatrix`]). Quantised weights meet activations quantised to 8 bits
//! ([`Activations`]) in exact integer dot products per group; floating-point weights meet `f32`
//! activations, or ones of 16 bits where that is asked for ([`Compute`]). One row is a stream over
//! the weights; many rows unpack a stretch of weights once and use it for all. The result of a
//! row never depends on the other rows, the instruction set, the number of threads or who computes
//! what.

mod activations;
mod codec;
mod float;
mod kernel;
mod output;
mod pack;
mod pairs;
mod product;
mod recode;
mod retile;
mod stretch;

#[cfg(test)]
mod tests;

pub use activations::{ActivationRows, Activations, BLOCK, Gate, Source, Tables};
pub use float::FloatRows;
pub use output::{Epilogue, Output};
pub(crate) use pack::turns;
pub use pack::{Compute, Native, PackError, PackedMatrix, round_to_half};
pub use pairs::PairRows;
pub use product::{Input, matmul, tables};
