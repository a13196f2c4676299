//! Dot products of pairs of bfloat16 values, which some CPUs have an instruction for.
//!
//! A step adds two products to each of 16 sums: `c + w1 * x1`, rounded, then `+ w0 * x0`, rounded,
//! as AVX-512 BF16 does. That instruction takes magnitudes below 2^-126 for 0, in its operands and in
//! its sums. Values stored by [`Pairs::round`] are never so small, so the other ways of computing it
//! give the same bits unless a sum comes to be that small, and then differ by less than 2^-126.

use crate::{AnyIsa, Isa, LANES, SimdOp};

/// An instruction set with products of pairs.
pub trait Pairs: Copy + Send + Sync + std::fmt::Debug + 'static {
    /// The instruction set it belongs to.
    type Isa: Isa;
    /// A pair for each of 16 lanes.
    type W: Copy;

    fn isa(self) -> Self::Isa;
    /// # Safety
    /// `p` is valid for reading 32 values, of any alignment.
    unsafe fn load_pairs(self, p: *const u16) -> Self::W;
    /// One pair for all lanes.
    /// # Safety
    /// `p` is valid for reading 2 values, of any alignment.
    unsafe fn splat_pair(self, p: *const u16) -> Self::W;
    /// `c + w1 * x1 + w0 * x0` in every lane.
    fn dot_pairs(self, c: <Self::Isa as Isa>::F, w: Self::W, x: Self::W) -> <Self::Isa as Isa>::F;

    /// Stores 16 values rounded to nearest even, those below 2^-126 as 0.
    /// # Safety
    /// `p` is valid for writing 16 values, of any alignment.
    #[inline(always)]
    unsafe fn round(self, p: *mut u16, v: <Self::Isa as Isa>::F) {
        let s = self.isa();
        let smallest = s.splat(f32::MIN_POSITIVE);
        let kept = s.select_gt(smallest, s.abs(v), s.splat(0.0), v);
        // SAFETY: the caller's contract.
        unsafe { s.store_bf16(p, kept) }
    }
}

/// A kernel over pairs, inlined as a [`SimdOp`] is.
pub trait PairOp {
    type Output;

    /// Must be `#[inline(always)]`.
    fn eval<P: Pairs>(self, p: P) -> Self::Output;
}

/// Two fused multiply-adds a step, on any instruction set.
#[derive(Clone, Copy, Debug)]
struct Widened<S>(S);

impl<S: Isa> Pairs for Widened<S> {
    type Isa = S;
    type W = S::I;

    #[inline(always)]
    fn isa(self) -> S {
        self.0
    }
    #[inline(always)]
    unsafe fn load_pairs(self, p: *const u16) -> S::I {
        // SAFETY: the caller's contract.
        unsafe { self.0.load_i(p.cast()) }
    }
    #[inline(always)]
    unsafe fn splat_pair(self, p: *const u16) -> S::I {
        // SAFETY: the caller's contract.
        self.0.splat_i(unsafe { p.cast::<i32>().read_unaligned() })
    }
    #[inline(always)]
    fn dot_pairs(self, c: S::F, w: S::I, x: S::I) -> S::F {
        let s = self.0;
        let high = s.splat_i(0xffff_0000_u32.cast_signed());
        let (w1, x1) = (s.float_bits(s.and_i(w, high)), s.float_bits(s.and_i(x, high)));
        let (w0, x0) = (s.float_bits(s.shl_i(w, 16)), s.float_bits(s.shl_i(x, 16)));
        s.fma(w0, x0, s.fma(w1, x1, c))
    }
}

struct OnWidened<Op>(Op);

impl<Op: PairOp> SimdOp for OnWidened<Op> {
    type Output = Op::Output;

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) -> Op::Output {
        self.0.eval(Widened(s))
    }
}

impl AnyIsa {
    /// Runs `op` with this CPU's instruction for pairs where this instruction set has one.
    #[inline]
    pub fn run_pairs<Op: PairOp>(self, op: Op) -> Op::Output {
        #[cfg(target_arch = "x86_64")]
        if let Some(p) = self.pairs() {
            return p.run(op);
        }
        self.run(OnWidened(op))
    }

    /// As [`AnyIsa::run_pairs`] without such an instruction.
    pub fn run_pairs_widened<Op: PairOp>(self, op: Op) -> Op::Output {
        self.run(OnWidened(op))
    }

    /// Whether there is an instruction for pairs.
    pub fn has_pairs(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.pairs().is_some();
        #[cfg(not(target_arch = "x86_64"))]
        false
    }
}

const _: () = assert!(LANES == 16);

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of products of `k` pairs for 16 rows, in bits.
    struct Dots<'a> {
        w: &'a [f32],
        x: &'a [f32],
        start: f32,
    }

    impl PairOp for Dots<'_> {
        type Output = Vec<u32>;

        #[inline(always)]
        fn eval<P: Pairs>(self, p: P) -> Vec<u32> {
            let s = p.isa();
            let rounded = |values: &[f32]| {
                let mut out = vec![0u16; values.len()];
                for (out, v) in out.chunks_exact_mut(16).zip(values.chunks_exact(16)) {
                    // SAFETY: 16 values are there.
                    unsafe { p.round(out.as_mut_ptr(), s.load(v.as_ptr())) };
                }
                out
            };
            let (w, x) = (rounded(self.w), rounded(self.x));
            let mut sum = s.splat(self.start);
            for (w, x) in w.chunks_exact(32).zip(x.chunks_exact(2)) {
                // SAFETY: 32 values and 2 are there.
                unsafe {
                    sum = p.dot_pairs(sum, p.load_pairs(w.as_ptr()), p.splat_pair(x.as_ptr()))
                };
            }
            s.to_array(sum).map(f32::to_bits).to_vec()
        }
    }

    /// The definition, in scalar code.
    fn scalar(w: &[f32], x: &[f32], start: f32) -> Vec<u32> {
        let round = |v: f32| match v.abs() < f32::MIN_POSITIVE {
            true => 0.0,
            false => half::bf16::from_f32(v).to_f32(),
        };
        let mut sums = [start; 16];
        for (w, x) in w.chunks_exact(32).zip(x.chunks_exact(2)) {
            for (sum, w) in sums.iter_mut().zip(w.chunks_exact(2)) {
                *sum = round(w[1]).mul_add(round(x[1]), *sum);
                *sum = round(w[0]).mul_add(round(x[0]), *sum);
            }
        }
        sums.map(f32::to_bits).to_vec()
    }

    #[test]
    fn every_instruction_set_gives_the_bits_of_the_definition() {
        let mut state = 7u64;
        let mut random = |exponents: i32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mantissa = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            mantissa * 2f32.powi(((state >> 20) as i32).rem_euclid(2 * exponents + 1) - exponents)
        };
        for exponents in [0, 3, 20, 40] {
            for _ in 0..200 {
                let w: Vec<f32> = (0..32 * 16).map(|_| random(exponents)).collect();
                let x: Vec<f32> = (0..2 * 16).map(|_| random(exponents)).collect();
                let start = random(exponents);
                let want = scalar(&w, &x, start);
                for isa in AnyIsa::detect() {
                    let dots = || Dots { w: &w, x: &x, start };
                    assert_eq!(isa.run_pairs(dots()), want, "{} {exponents}", isa.kind());
                    assert_eq!(isa.run_pairs_widened(dots()), want, "{} widened", isa.kind());
                }
            }
        }
    }

    #[test]
    fn infinities_and_no_numbers_pass_through_and_tiny_values_are_zero() {
        let w: Vec<f32> = (0..32).map(|i| if i < 2 { f32::INFINITY } else { 1e-39 }).collect();
        for isa in AnyIsa::detect() {
            let x =
                [1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
            let sums = isa.run_pairs(Dots { w: &w, x: &x, start: 0.5 });
            assert_eq!(f32::from_bits(sums[0]), f32::INFINITY, "{}", isa.kind());
            assert_eq!(f32::from_bits(sums[1]), 0.5, "{}", isa.kind());
            let sums = isa.run_pairs(Dots { w: &w, x: &[f32::NAN; 16], start: 0.5 });
            assert!(f32::from_bits(sums[1]).is_nan(), "{}", isa.kind());
        }
    }
}
