//! AVX-512 BF16: products of pairs of bfloat16 values.

use std::arch::x86_64::*;

use super::Avx512Vnni;
use crate::pairs::{PairOp, Pairs};

/// Proof of AVX-512 BF16 beside the rest of AVX-512.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Bf16(Avx512Vnni);

impl Avx512Bf16 {
    /// A token when this CPU has the instructions beside those of `s`.
    pub(crate) fn beside(s: Avx512Vnni) -> Option<Avx512Bf16> {
        is_x86_feature_detected!("avx512bf16").then_some(Avx512Bf16(s))
    }

    #[inline(always)]
    pub(crate) fn run<Op: PairOp>(self, op: Op) -> Op::Output {
        // SAFETY: the token proves every enabled feature (the bit-manipulation extensions come with
        // every CPU that has AVX-512).
        unsafe { enter(self, op) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[target_feature(enable = "avx512bf16,bmi1,bmi2,lzcnt,popcnt")]
#[inline(never)]
fn enter<Op: PairOp>(p: Avx512Bf16, op: Op) -> Op::Output {
    op.eval(p)
}

impl Pairs for Avx512Bf16 {
    type Isa = Avx512Vnni;
    type W = __m512bh;

    #[inline(always)]
    fn isa(self) -> Avx512Vnni {
        self.0
    }
    #[inline(always)]
    unsafe fn load_pairs(self, p: *const u16) -> __m512bh {
        // SAFETY: the caller's contract; any bits are values.
        unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(p.cast())) }
    }
    #[inline(always)]
    unsafe fn splat_pair(self, p: *const u16) -> __m512bh {
        // SAFETY: as above.
        unsafe {
            let pair = p.cast::<i32>().read_unaligned();
            std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(pair))
        }
    }
    #[inline(always)]
    fn dot_pairs(self, c: __m512, w: __m512bh, x: __m512bh) -> __m512 {
        // SAFETY: the token proves AVX-512 BF16.
        unsafe { _mm512_dpbf16_ps(c, w, x) }
    }
}
