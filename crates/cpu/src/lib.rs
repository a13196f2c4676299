//! The CPU backend.
//!
//! A program is a list of steps that a [`team::Team`] of threads walks together: every worker enters
//! every step, takes units of its work until none is left, and waits for the others. Kernels are
//! written once over [`cyb_simd::Isa`]. Units do not depend on the number of threads, and each is
//! computed the same way by whoever takes it, so that results never depend on the machine's load.

mod activation;
mod alias;
mod atoms;
mod buffer;
mod io;
mod kernel;
mod kernels;
mod later;
pub mod matmul;
pub mod memory;
mod pace;
mod program;
mod session;
mod shared;
pub mod team;
mod walk;

pub use activation::Activation;
pub use matmul::Compute;
pub use program::CpuBackend;

#[cfg(test)]
mod tests;
