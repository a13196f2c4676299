//! The CUDA backend: NVIDIA GPUs from Ampere on, with a driver and nothing else installed.
//!
//! A step is a short list of kernel launches that are fully known once a run's sizes are bound. So a
//! session makes the list when it is bound, and when the same sizes come again (as they do while
//! tokens are made one by one) records it as a graph that is launched as one. The memory of a
//! session is planned once; inputs go over in one copy.
//!
//! Kernels fix the order of every sum by a tensor's sizes, and none adds floats atomically: runs give
//! the same bits. See docs/cuda.md for where results depend on how many tokens share a step.

mod attention;
#[cfg(test)]
mod coverage;
mod driver;
mod elementwise;
mod encoder;
mod fold;
mod linear;
mod modules;
mod op;
mod pack;
mod program;
mod sampling;
mod session;
mod views;
mod wide;

pub use driver::CudaError;
pub use program::CudaBackend;
