//! NEON with the dot product instructions: a logical vector is four registers. With `I8MM` also the
//! 8-bit matrix instructions, which multiply two rows of weights with two of activations.
//!
//! The dot product, matrix and half-precision conversion instructions are written as assembly,
//! since their intrinsics are not in stable Rust.

use std::arch::aarch64::*;
use std::arch::asm;

use crate::isa::dot_rows_by_steps;
use crate::{Isa, IsaKind, SimdOp};

/// Proof of NEON and its dot product instructions, and of the 8-bit matrix ones when `I8MM`.
#[derive(Clone, Copy, Debug)]
pub struct Neon<const I8MM: bool>(());

impl<const I8MM: bool> Neon<I8MM> {
    /// A token when this CPU has the instructions.
    pub fn new() -> Option<Neon<I8MM>> {
        let base = std::arch::is_aarch64_feature_detected!("neon")
            && std::arch::is_aarch64_feature_detected!("dotprod");
        (base && (!I8MM || std::arch::is_aarch64_feature_detected!("i8mm"))).then_some(Neon(()))
    }
}

#[target_feature(enable = "neon,dotprod")]
#[inline(never)]
fn enter<Op: SimdOp>(s: Neon<false>, op: Op) -> Op::Output {
    op.eval(s)
}

#[target_feature(enable = "neon,dotprod,i8mm")]
#[inline(never)]
fn enter_i8mm<Op: SimdOp>(s: Neon<true>, op: Op) -> Op::Output {
    op.eval(s)
}

/// An intrinsic without preconditions beyond the instruction set.
macro_rules! one {
    ($e:expr) => {{
        // SAFETY: the token proves NEON and the dot product instructions.
        unsafe { $e }
    }};
}

/// Applies an intrinsic to the four registers.
macro_rules! four {
    ($f:path; $($a:expr),+) => {
        one!([$f($($a[0]),+), $f($($a[1]),+), $f($($a[2]),+), $f($($a[3]),+)])
    };
}

macro_rules! each {
    (|$i:ident| $e:expr) => {
        one!([
            { const $i: usize = 0; $e },
            { const $i: usize = 1; $e },
            { const $i: usize = 2; $e },
            { const $i: usize = 3; $e },
        ])
    };
}

/// # Safety
/// The CPU has the dot product instructions.
#[inline(always)]
unsafe fn sdot(mut acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: register arithmetic.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {acc:v}.4s, {w:v}.16b, {x:v}.16b",
            acc = inout(vreg) acc, w = in(vreg) w, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// As [`sdot`] with unsigned bytes `x`.
///
/// # Safety
/// The CPU has the 8-bit matrix instructions, which it belongs to.
#[inline(always)]
unsafe fn usdot(mut acc: int32x4_t, x: uint8x16_t, w: int8x16_t) -> int32x4_t {
    // SAFETY: register arithmetic.
    unsafe {
        asm!(
            ".arch_extension i8mm",
            "usdot {acc:v}.4s, {x:v}.16b, {w:v}.16b",
            acc = inout(vreg) acc, x = in(vreg) x, w = in(vreg) w,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// Adds the products of two rows of 8 weights with two rows of 8 activations to a square of sums,
/// row by row of the weights.
///
/// # Safety
/// The CPU has the 8-bit matrix instructions.
#[inline(always)]
unsafe fn smmla(mut acc: int32x4_t, w: uint8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: register arithmetic.
    unsafe {
        asm!(
            ".arch_extension i8mm",
            "smmla {acc:v}.4s, {w:v}.16b, {x:v}.16b",
            acc = inout(vreg) acc, w = in(vreg) w, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// Words of 4 bytes of both, in turn: pairs of rows of two steps become rows of 8 codes.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn zip_words(a: uint8x16_t, b: uint8x16_t) -> [uint8x16_t; 2] {
    // SAFETY: register arithmetic.
    unsafe {
        let (a, b) = (vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b));
        [vreinterpretq_u8_u32(vzip1q_u32(a, b)), vreinterpretq_u8_u32(vzip2q_u32(a, b))]
    }
}

/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn widen_f16(v: uint16x4_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: register arithmetic.
    unsafe {
        asm!(
            "fcvtl {out:v}.4s, {v:v}.4h",
            out = out(vreg) out, v = in(vreg) v,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}

/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn narrow_f16(v: float32x4_t) -> uint16x4_t {
    let out: uint16x4_t;
    // SAFETY: register arithmetic.
    unsafe {
        asm!(
            "fcvtn {out:v}.4h, {v:v}.4s",
            out = out(vreg) out, v = in(vreg) v,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}

impl<const I8MM: bool> Isa for Neon<I8MM> {
    const KIND: IsaKind = if I8MM { IsaKind::NeonI8mm } else { IsaKind::Neon };
    const SIGNED_BIAS: i32 = 0;
    const BYTE_BIAS: i32 = if I8MM { 0 } else { 128 };
    const WIDE: bool = false;
    const PAIRED: bool = I8MM;
    type F = [float32x4_t; 4];
    type I = [int32x4_t; 4];
    type B = [uint8x16_t; 4];
    type X = int8x16_t;
    type D = [int32x4_t; 4];

    #[inline(always)]
    fn run<Op: SimdOp>(self, op: Op) -> Op::Output {
        if I8MM {
            // SAFETY: `I8MM`, so the token proves every enabled feature.
            unsafe { enter_i8mm(Neon(()), op) }
        } else {
            // SAFETY: the token proves every enabled feature.
            unsafe { enter(Neon(()), op) }
        }
    }

    #[inline(always)]
    fn splat(self, v: f32) -> Self::F {
        [one!(vdupq_n_f32(v)); 4]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY (inside): the caller's contract.
        each!(|I| vld1q_f32(p.add(4 * I)))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::F) {
        // SAFETY (inside): the caller's contract.
        each!(|I| vst1q_f32(p.add(4 * I), v[I]));
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        four!(vaddq_f32; a, b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        four!(vsubq_f32; a, b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        four!(vmulq_f32; a, b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        four!(vdivq_f32; a, b)
    }
    #[inline(always)]
    fn sqrt(self, a: Self::F) -> Self::F {
        four!(vsqrtq_f32; a)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        four!(vfmaq_f32; c, a, b)
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        let lt = four!(vcltq_f32; a, b);
        four!(vbslq_f32; lt, a, b)
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        self.select_gt(a, b, a, b)
    }
    #[inline(always)]
    fn select_gt(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        let gt = four!(vcgtq_f32; a, b);
        four!(vbslq_f32; gt, x, y)
    }
    #[inline(always)]
    fn reduce_sum(self, v: Self::F) -> f32 {
        one!({
            let v = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
            let v = vadd_f32(vget_low_f32(v), vget_high_f32(v));
            vget_lane_f32::<0>(v) + vget_lane_f32::<1>(v)
        })
    }

    #[inline(always)]
    fn bits(self, v: Self::F) -> Self::I {
        four!(vreinterpretq_s32_f32; v)
    }
    #[inline(always)]
    fn float_bits(self, v: Self::I) -> Self::F {
        four!(vreinterpretq_f32_s32; v)
    }
    #[inline(always)]
    fn to_float(self, v: Self::I) -> Self::F {
        four!(vcvtq_f32_s32; v)
    }
    #[inline(always)]
    fn to_int(self, v: Self::F) -> Self::I {
        four!(vcvtnq_s32_f32; v)
    }

    #[inline(always)]
    fn splat_i(self, v: i32) -> Self::I {
        [one!(vdupq_n_s32(v)); 4]
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const i32) -> Self::I {
        // SAFETY (inside): the caller's contract.
        each!(|I| vld1q_s32(p.add(4 * I)))
    }
    #[inline(always)]
    unsafe fn store_i(self, p: *mut i32, v: Self::I) {
        // SAFETY (inside): the caller's contract.
        each!(|I| vst1q_s32(p.add(4 * I), v[I]));
    }
    #[inline(always)]
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I {
        four!(vaddq_s32; a, b)
    }
    #[inline(always)]
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I {
        four!(vsubq_s32; a, b)
    }
    #[inline(always)]
    fn mul_i(self, a: Self::I, b: Self::I) -> Self::I {
        four!(vmulq_s32; a, b)
    }
    #[inline(always)]
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I {
        four!(vmaxq_s32; a, b)
    }
    #[inline(always)]
    fn and_i(self, a: Self::I, b: Self::I) -> Self::I {
        four!(vandq_s32; a, b)
    }
    #[inline(always)]
    fn or_i(self, a: Self::I, b: Self::I) -> Self::I {
        four!(vorrq_s32; a, b)
    }
    #[inline(always)]
    fn shl_i(self, a: Self::I, n: u32) -> Self::I {
        let n = one!(vdupq_n_s32(n.cast_signed()));
        each!(|I| vshlq_s32(a[I], n))
    }
    #[inline(always)]
    fn sar_i(self, a: Self::I, n: u32) -> Self::I {
        let n = one!(vdupq_n_s32(-n.cast_signed()));
        each!(|I| vshlq_s32(a[I], n))
    }
    #[inline(always)]
    fn reduce_sum_i(self, v: Self::I) -> i32 {
        one!(vaddvq_s32(vaddq_s32(vaddq_s32(v[0], v[2]), vaddq_s32(v[1], v[3]))))
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::F {
        // SAFETY (inside): the caller's contract.
        each!(|I| widen_f16(vld1_u16(p.add(4 * I))))
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: Self::F) {
        // SAFETY (inside): the caller's contract.
        each!(|I| vst1_u16(p.add(4 * I), narrow_f16(v[I])));
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::F {
        // SAFETY (inside): the caller's contract.
        each!(|I| vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.add(4 * I)))))
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::I {
        // SAFETY (inside): the caller's contract.
        one!({
            let v = vld1q_u8(p);
            let (low, high) = (vmovl_u8(vget_low_u8(v)), vmovl_u8(vget_high_u8(v)));
            [
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
                vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
                vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high))),
            ]
        })
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::I {
        // SAFETY (inside): the caller's contract.
        one!({
            let v = vld1q_s8(p);
            let (low, high) = (vmovl_s8(vget_low_s8(v)), vmovl_s8(vget_high_s8(v)));
            [
                vmovl_s16(vget_low_s16(low)),
                vmovl_s16(vget_high_s16(low)),
                vmovl_s16(vget_low_s16(high)),
                vmovl_s16(vget_high_s16(high)),
            ]
        })
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: Self::I) {
        // SAFETY (inside): the caller's contract.
        one!({
            let low = vcombine_s16(vmovn_s32(v[0]), vmovn_s32(v[1]));
            let high = vcombine_s16(vmovn_s32(v[2]), vmovn_s32(v[3]));
            vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
        });
    }
    #[inline(always)]
    unsafe fn store_u16(self, p: *mut u16, v: Self::I) {
        // SAFETY (inside): the caller's contract.
        each!(|I| vst1_u16(p.add(4 * I), vreinterpret_u16_s16(vmovn_s32(v[I]))));
    }

    #[inline(always)]
    unsafe fn load_b(self, p: *const u8) -> Self::B {
        // SAFETY (inside): the caller's contract.
        each!(|I| vld1q_u8(p.add(16 * I)))
    }
    #[inline(always)]
    unsafe fn store_b(self, p: *mut u8, v: Self::B) {
        // SAFETY (inside): the caller's contract.
        each!(|I| vst1q_u8(p.add(16 * I), v[I]));
    }
    #[inline(always)]
    fn splat_b(self, v: u8) -> Self::B {
        [one!(vdupq_n_u8(v)); 4]
    }
    #[inline(always)]
    fn and_b(self, a: Self::B, b: Self::B) -> Self::B {
        four!(vandq_u8; a, b)
    }
    #[inline(always)]
    fn or_b(self, a: Self::B, b: Self::B) -> Self::B {
        four!(vorrq_u8; a, b)
    }
    #[inline(always)]
    fn shr_b(self, a: Self::B, n: u32) -> Self::B {
        let n = one!(vdupq_n_s16(-(n as i16)));
        each!(|I| vreinterpretq_u8_u16(vshlq_u16(vreinterpretq_u16_u8(a[I]), n)))
    }
    #[inline(always)]
    fn shl_b(self, a: Self::B, n: u32) -> Self::B {
        let n = one!(vdupq_n_s16(n as i16));
        each!(|I| vreinterpretq_u8_u16(vshlq_u16(vreinterpretq_u16_u8(a[I]), n)))
    }
    #[inline(always)]
    fn lookup_b(self, table: &[i8; 16], index: Self::B) -> Self::B {
        let table = one!(vreinterpretq_u8_s8(vld1q_s8(table.as_ptr())));
        each!(|I| vqtbl1q_u8(table, index[I]))
    }

    #[inline(always)]
    unsafe fn load_x(self, p: *const i8) -> Self::X {
        // SAFETY: the caller's contract.
        unsafe { vreinterpretq_s8_s32(vdupq_n_s32(p.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    fn dot_start(self, init: i32) -> Self::D {
        self.splat_i(init)
    }
    #[inline(always)]
    fn dot_unsigned(self, d: Self::D, w: Self::B, x: Self::X) -> Self::D {
        // Codes up to 127 are the same signed.
        self.dot_signed(d, w, x)
    }
    #[inline(always)]
    fn dot_signed(self, d: Self::D, w: Self::B, x: Self::X) -> Self::D {
        each!(|I| sdot(d[I], vreinterpretq_s8_u8(w[I]), x))
    }
    #[inline(always)]
    fn dot_bytes(self, sums: Self::I, w: Self::B, x: Self::X) -> Self::I {
        if I8MM {
            let x = one!(vreinterpretq_u8_s8(x));
            // SAFETY (inside): `I8MM`, so the token proves the instruction.
            return each!(|I| usdot(sums[I], x, vreinterpretq_s8_u8(w[I])));
        }
        let x = one!(veorq_s8(x, vdupq_n_s8(i8::MIN)));
        each!(|I| sdot(sums[I], vreinterpretq_s8_u8(w[I]), x))
    }
    #[inline(always)]
    fn dot_codes(self, sums: Self::I, x: Self::B, w: Self::X) -> Self::I {
        if I8MM {
            // SAFETY (inside): `I8MM`, so the token proves the instruction.
            return each!(|I| usdot(sums[I], x[I], w));
        }
        let bias = one!(vdupq_n_s8(i8::MIN));
        each!(|I| sdot(sums[I], veorq_s8(vreinterpretq_s8_u8(x[I]), bias), w))
    }
    #[inline(always)]
    fn dot_fold(self, d: Self::D) -> Self::D {
        d
    }
    #[inline(always)]
    fn dot_finish(self, d: Self::D, _init: i32) -> Self::I {
        d
    }

    // With the matrix instructions the sums of two rows of activations lie in eight registers as
    // squares of two rows of weights by the two of activations.
    #[inline(always)]
    fn pair_steps(self, steps: [Self::B; 2]) -> [Self::B; 2] {
        if !I8MM {
            return steps;
        }
        let [a, b] = steps;
        one!({
            let [r0, r1] = zip_words(a[0], b[0]);
            let [r2, r3] = zip_words(a[1], b[1]);
            let [r4, r5] = zip_words(a[2], b[2]);
            let [r6, r7] = zip_words(a[3], b[3]);
            [[r0, r1, r2, r3], [r4, r5, r6, r7]]
        })
    }
    #[inline(always)]
    fn dot_rows_start(self, init: [i32; 2]) -> [Self::D; 2] {
        if !I8MM {
            return [self.dot_start(init[0]), self.dot_start(init[1])];
        }
        let both = one!(vzip1q_s32(vdupq_n_s32(init[0]), vdupq_n_s32(init[1])));
        [[both; 4]; 2]
    }
    #[inline(always)]
    unsafe fn dot_rows(self, d: [Self::D; 2], w: [Self::B; 2], x: [*const i8; 2]) -> [Self::D; 2] {
        if !I8MM {
            // SAFETY: the caller's contract.
            return unsafe { dot_rows_by_steps(self, d, w, x) };
        }
        // SAFETY: the caller's contract.
        let x = unsafe { vcombine_s8(vld1_s8(x[0]), vld1_s8(x[1])) };
        // SAFETY (inside): `I8MM`, so the token proves the matrix instructions.
        [each!(|I| smmla(d[0][I], w[0][I], x)), each!(|I| smmla(d[1][I], w[1][I], x))]
    }
    #[inline(always)]
    fn dot_rows_finish(self, d: [Self::D; 2], init: [i32; 2]) -> [Self::I; 2] {
        if !I8MM {
            return [self.dot_finish(d[0], init[0]), self.dot_finish(d[1], init[1])];
        }
        let [a, b] = d;
        one!([
            [
                vuzp1q_s32(a[0], a[1]),
                vuzp1q_s32(a[2], a[3]),
                vuzp1q_s32(b[0], b[1]),
                vuzp1q_s32(b[2], b[3]),
            ],
            [
                vuzp2q_s32(a[0], a[1]),
                vuzp2q_s32(a[2], a[3]),
                vuzp2q_s32(b[0], b[1]),
                vuzp2q_s32(b[2], b[3]),
            ],
        ])
    }

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a prefetch touches no memory that the program can observe.
        unsafe {
            asm!("prfm pldl2keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn prefetch_near(self, p: *const u8) {
        // SAFETY: as above.
        unsafe {
            asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags));
        }
    }
}
