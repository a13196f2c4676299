//! Vector operations for kernels that are written once and run on every CPU.
//!
//! The one idea: a kernel is generic over [`Isa`], a set of operations on 16 lanes, and receives a
//! zero-sized token of that instruction set. A token can only be made by run-time detection, so
//! holding one proves that the instructions exist. [`AnyIsa::run`] enters a function compiled with
//! the instruction set enabled and inlines the kernel into it:
//!
//! ```
//! use cyb_simd::{AnyIsa, Isa, SimdOp};
//!
//! struct Sum<'a>(&'a [f32]);
//! impl SimdOp for Sum<'_> {
//!     type Output = f32;
//!     #[inline(always)]
//!     fn eval<S: Isa>(self, s: S) -> f32 {
//!         let mut acc = s.splat(0.0);
//!         for chunk in self.0.chunks(16) {
//!             acc = s.add(acc, s.load_partial(chunk));
//!         }
//!         s.reduce_sum(acc)
//!     }
//! }
//! assert_eq!(AnyIsa::best().run(Sum(&[1.0; 40])), 40.0);
//! ```
//!
//! Every operation gives the same bits on every instruction set (the payload of a NaN excepted):
//! integer arithmetic is exact, float operations are the IEEE ones, reductions have one fixed
//! order. `eval` and whatever it calls with a token must be `#[inline(always)]`; otherwise the
//! operations are correct but slow calls.

mod detect;
mod isa;
pub mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pairs;
mod portable;
mod words;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use detect::{AnyIsa, IsaKind, UnknownIsa};
pub use isa::{Isa, LANES, SimdOp, fold_every};
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use pairs::{PairOp, Pairs};
pub use portable::Portable;
pub use words::transpose_words;
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512Vnni};

#[cfg(test)]
mod tests;
