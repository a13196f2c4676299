//! Plain Rust: the reference for the other instruction sets, and what runs where there is none.

use half::{bf16, f16};

use crate::{Isa, IsaKind, LANES, SimdOp};

/// Always available.
#[derive(Clone, Copy, Debug, Default)]
pub struct Portable;

#[inline(always)]
fn map<A: Copy, R>(a: [A; LANES], f: impl Fn(A) -> R) -> [R; LANES] {
    a.map(f)
}

#[inline(always)]
fn zip<A: Copy, B: Copy, R>(a: [A; LANES], b: [B; LANES], f: impl Fn(A, B) -> R) -> [R; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// 64 bytes as 16-bit lanes.
#[inline(always)]
fn map_u16(a: [u8; 64], f: impl Fn(u16) -> u16) -> [u8; 64] {
    let mut out = [0; 64];
    for (o, i) in out.chunks_exact_mut(2).zip(a.chunks_exact(2)) {
        o.copy_from_slice(&f(u16::from_le_bytes([i[0], i[1]])).to_le_bytes());
    }
    out
}

#[inline(always)]
fn tree<T: Copy>(mut v: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            v[i] = f(v[i], v[i + half]);
        }
        half /= 2;
    }
    v[0]
}

impl Isa for Portable {
    const KIND: IsaKind = IsaKind::Portable;
    const SIGNED_BIAS: i32 = 0;
    const BYTE_BIAS: i32 = 0;
    const WIDE: bool = false;
    type F = [f32; LANES];
    type I = [i32; LANES];
    type B = [u8; 64];
    type X = [i8; 4];
    type D = [i32; LANES];

    #[inline(never)]
    fn run<Op: SimdOp>(self, op: Op) -> Op::Output {
        op.eval(self)
    }

    #[inline(always)]
    fn splat(self, v: f32) -> Self::F {
        [v; LANES]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<Self::F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::F) {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<Self::F>().write_unaligned(v) }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn sqrt(self, a: Self::F) -> Self::F {
        map(a, f32::sqrt)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn select_gt(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        std::array::from_fn(|i| if a[i] > b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    fn reduce_sum(self, v: Self::F) -> f32 {
        tree(v, |a, b| a + b)
    }

    #[inline(always)]
    fn bits(self, v: Self::F) -> Self::I {
        map(v, |v| v.to_bits().cast_signed())
    }
    #[inline(always)]
    fn float_bits(self, v: Self::I) -> Self::F {
        map(v, |v| f32::from_bits(v.cast_unsigned()))
    }
    #[inline(always)]
    fn to_float(self, v: Self::I) -> Self::F {
        map(v, |v| v as f32)
    }
    #[inline(always)]
    fn to_int(self, v: Self::F) -> Self::I {
        map(v, |v| v.round_ties_even() as i32)
    }

    #[inline(always)]
    fn splat_i(self, v: i32) -> Self::I {
        [v; LANES]
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const i32) -> Self::I {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<Self::I>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_i(self, p: *mut i32, v: Self::I) {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<Self::I>().write_unaligned(v) }
    }
    #[inline(always)]
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    fn mul_i(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_mul)
    }
    #[inline(always)]
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::max)
    }
    #[inline(always)]
    fn and_i(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn or_i(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn shl_i(self, a: Self::I, n: u32) -> Self::I {
        map(a, |a| a << n)
    }
    #[inline(always)]
    fn sar_i(self, a: Self::I, n: u32) -> Self::I {
        map(a, |a| a >> n)
    }
    #[inline(always)]
    fn reduce_sum_i(self, v: Self::I) -> i32 {
        tree(v, i32::wrapping_add)
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::F {
        // SAFETY: the caller's contract.
        let v = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        map(v, |v| f16::from_bits(v).to_f32_const())
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: Self::F) {
        let v = map(v, |v| f16::from_f32_const(v).to_bits());
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::F {
        // SAFETY: the caller's contract.
        let v = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        map(v, |v| bf16::from_bits(v).to_f32_const())
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::I {
        // SAFETY: the caller's contract.
        let v = unsafe { p.cast::<[u8; LANES]>().read_unaligned() };
        map(v, i32::from)
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::I {
        // SAFETY: the caller's contract.
        let v = unsafe { p.cast::<[i8; LANES]>().read_unaligned() };
        map(v, i32::from)
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: Self::I) {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[i8; LANES]>().write_unaligned(map(v, |v| v as i8)) }
    }
    #[inline(always)]
    unsafe fn store_u16(self, p: *mut u16, v: Self::I) {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(map(v, |v| v as u16)) }
    }

    #[inline(always)]
    unsafe fn load_b(self, p: *const u8) -> Self::B {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<Self::B>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_b(self, p: *mut u8, v: Self::B) {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<Self::B>().write_unaligned(v) }
    }
    #[inline(always)]
    fn splat_b(self, v: u8) -> Self::B {
        [v; 64]
    }
    #[inline(always)]
    fn and_b(self, a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] & b[i])
    }
    #[inline(always)]
    fn or_b(self, a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn shr_b(self, a: Self::B, n: u32) -> Self::B {
        map_u16(a, |v| v >> n)
    }
    #[inline(always)]
    fn shl_b(self, a: Self::B, n: u32) -> Self::B {
        map_u16(a, |v| v << n)
    }
    #[inline(always)]
    fn lookup_b(self, table: &[i8; 16], index: Self::B) -> Self::B {
        index.map(|i| table[usize::from(i & 15)].cast_unsigned())
    }

    #[inline(always)]
    unsafe fn load_x(self, p: *const i8) -> Self::X {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[i8; 4]>().read_unaligned() }
    }
    #[inline(always)]
    fn dot_start(self, init: i32) -> Self::D {
        [init; LANES]
    }
    #[inline(always)]
    fn dot_unsigned(self, d: Self::D, w: Self::B, x: Self::X) -> Self::D {
        std::array::from_fn(|r| {
            (0..4).fold(d[r], |s, j| s + i32::from(w[4 * r + j]) * i32::from(x[j]))
        })
    }
    #[inline(always)]
    fn dot_signed(self, d: Self::D, w: Self::B, x: Self::X) -> Self::D {
        std::array::from_fn(|r| {
            (0..4).fold(d[r], |s, j| s + i32::from(w[4 * r + j].cast_signed()) * i32::from(x[j]))
        })
    }
    #[inline(always)]
    fn dot_bytes(self, sums: Self::I, w: Self::B, x: Self::X) -> Self::I {
        std::array::from_fn(|r| {
            (0..4).fold(sums[r], |s, j| {
                s + i32::from(w[4 * r + j].cast_signed()) * i32::from(x[j].cast_unsigned())
            })
        })
    }
    #[inline(always)]
    fn dot_codes(self, sums: Self::I, x: Self::B, w: Self::X) -> Self::I {
        std::array::from_fn(|r| {
            (0..4).fold(sums[r], |s, j| s + i32::from(x[4 * r + j]) * i32::from(w[j]))
        })
    }
    #[inline(always)]
    fn dot_fold(self, d: Self::D) -> Self::D {
        d
    }
    #[inline(always)]
    fn dot_finish(self, d: Self::D, _init: i32) -> Self::I {
        d
    }

    #[inline(always)]
    fn prefetch(self, _p: *const u8) {}

    #[inline(always)]
    fn prefetch_near(self, _p: *const u8) {}
}
