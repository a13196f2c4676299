//! x86-64.

mod avx2;
mod avx512;
mod bf16;

pub use avx2::Avx2;
pub use avx512::Avx512Vnni;
pub(crate) use bf16::Avx512Bf16;
