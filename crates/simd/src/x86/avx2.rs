//! AVX2, FMA and F16C: a logical vector is two registers. With `VNNI` also the 256-bit dot product
//! instructions.
//!
//! Without VNNI `vpmaddubsw` adds pairs of products in 16 bits. Steps stay in 16 bits as long as
//! the codes allow (see [`crate::fold_every`]), which halves the work for 4-bit codes.

use std::arch::x86_64::*;

use crate::{Isa, IsaKind, LANES, SimdOp};

/// Proof of AVX2, FMA and F16C, and of AVX-VNNI when `VNNI`.
#[derive(Clone, Copy, Debug)]
pub struct Avx2<const VNNI: bool>(());

impl<const VNNI: bool> Avx2<VNNI> {
    /// A token when this CPU has the instructions.
    pub fn new() -> Option<Avx2<VNNI>> {
        let base = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        (base && (!VNNI || is_x86_feature_detected!("avxvnni"))).then_some(Avx2(()))
    }
}

/// Two registers: lanes 0 to 7, or bytes 0 to 31, come first.
#[derive(Clone, Copy, Debug)]
pub struct Two<T>(T, T);

/// Sums in 32 bits, and in 16 bits what was added since the last fold.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    wide: Two<__m256i>,
    narrow: Two<__m256i>,
}

#[target_feature(enable = "avx,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
#[inline(never)]
fn enter<Op: SimdOp>(s: Avx2<false>, op: Op) -> Op::Output {
    op.eval(s)
}

#[target_feature(enable = "avx,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt,avxvnni")]
#[inline(never)]
fn enter_vnni<Op: SimdOp>(s: Avx2<true>, op: Op) -> Op::Output {
    op.eval(s)
}

/// Applies an intrinsic to both halves.
macro_rules! two {
    ($f:path; $($a:expr),+) => {{
        // SAFETY: the token proves AVX2, FMA and F16C.
        unsafe { Two($f($($a.0),+), $f($($a.1),+)) }
    }};
}

/// An intrinsic without preconditions beyond the instruction set.
macro_rules! one {
    ($e:expr) => {{
        // SAFETY: the token proves AVX2, FMA and F16C.
        unsafe { $e }
    }};
}

impl<const VNNI: bool> Isa for Avx2<VNNI> {
    const KIND: IsaKind = if VNNI { IsaKind::Avx2Vnni } else { IsaKind::Avx2 };
    const SIGNED_BIAS: i32 = if VNNI { 128 } else { 0 };
    const BYTE_BIAS: i32 = 0;
    const WIDE: bool = false;
    type F = Two<__m256>;
    type I = Two<__m256i>;
    type B = Two<__m256i>;
    type X = __m256i;
    type D = Sums;

    #[inline(always)]
    fn run<Op: SimdOp>(self, op: Op) -> Op::Output {
        if VNNI {
            // SAFETY: `VNNI`, so the token proves every enabled feature.
            unsafe { enter_vnni(Avx2(()), op) }
        } else {
            // SAFETY: the token proves every enabled feature (the bit-manipulation extensions come
            // with every CPU that has AVX2).
            unsafe { enter(Avx2(()), op) }
        }
    }

    #[inline(always)]
    fn splat(self, v: f32) -> Self::F {
        let v = one!(_mm256_set1_ps(v));
        Two(v, v)
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY: the caller's contract.
        unsafe { Two(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::F) {
        // SAFETY: the caller's contract.
        unsafe {
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(8), v.1);
        }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        two!(_mm256_add_ps; a, b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        two!(_mm256_sub_ps; a, b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        two!(_mm256_mul_ps; a, b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        two!(_mm256_div_ps; a, b)
    }
    #[inline(always)]
    fn sqrt(self, a: Self::F) -> Self::F {
        two!(_mm256_sqrt_ps; a)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        two!(_mm256_fmadd_ps; a, b, c)
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        two!(_mm256_min_ps; a, b)
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        two!(_mm256_max_ps; a, b)
    }
    #[inline(always)]
    fn select_gt(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        let gt = two!(_mm256_cmp_ps::<_CMP_GT_OQ>; a, b);
        two!(_mm256_blendv_ps; y, x, gt)
    }
    #[inline(always)]
    fn reduce_sum(self, v: Self::F) -> f32 {
        one!({
            let v = _mm256_add_ps(v.0, v.1);
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        })
    }

    #[inline(always)]
    fn bits(self, v: Self::F) -> Self::I {
        two!(_mm256_castps_si256; v)
    }
    #[inline(always)]
    fn float_bits(self, v: Self::I) -> Self::F {
        two!(_mm256_castsi256_ps; v)
    }
    #[inline(always)]
    fn to_float(self, v: Self::I) -> Self::F {
        two!(_mm256_cvtepi32_ps; v)
    }
    #[inline(always)]
    fn to_int(self, v: Self::F) -> Self::I {
        two!(_mm256_cvtps_epi32; v)
    }

    #[inline(always)]
    fn splat_i(self, v: i32) -> Self::I {
        let v = one!(_mm256_set1_epi32(v));
        Two(v, v)
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const i32) -> Self::I {
        // SAFETY: the caller's contract.
        unsafe { Two(_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(8).cast())) }
    }
    #[inline(always)]
    unsafe fn store_i(self, p: *mut i32, v: Self::I) {
        // SAFETY: the caller's contract.
        unsafe {
            _mm256_storeu_si256(p.cast(), v.0);
            _mm256_storeu_si256(p.add(8).cast(), v.1);
        }
    }
    #[inline(always)]
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I {
        two!(_mm256_add_epi32; a, b)
    }
    #[inline(always)]
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I {
        two!(_mm256_sub_epi32; a, b)
    }
    #[inline(always)]
    fn mul_i(self, a: Self::I, b: Self::I) -> Self::I {
        two!(_mm256_mullo_epi32; a, b)
    }
    #[inline(always)]
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I {
        two!(_mm256_max_epi32; a, b)
    }
    #[inline(always)]
    fn and_i(self, a: Self::I, b: Self::I) -> Self::I {
        two!(_mm256_and_si256; a, b)
    }
    #[inline(always)]
    fn or_i(self, a: Self::I, b: Self::I) -> Self::I {
        two!(_mm256_or_si256; a, b)
    }
    #[inline(always)]
    fn shl_i(self, a: Self::I, n: u32) -> Self::I {
        let n = one!(_mm_cvtsi32_si128(n.cast_signed()));
        one!(Two(_mm256_sll_epi32(a.0, n), _mm256_sll_epi32(a.1, n)))
    }
    #[inline(always)]
    fn sar_i(self, a: Self::I, n: u32) -> Self::I {
        let n = one!(_mm_cvtsi32_si128(n.cast_signed()));
        one!(Two(_mm256_sra_epi32(a.0, n), _mm256_sra_epi32(a.1, n)))
    }
    #[inline(always)]
    fn reduce_max_i(self, v: Self::I) -> i32 {
        one!({
            let v = _mm256_max_epi32(v.0, v.1);
            let v = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            let v = _mm_max_epi32(v, _mm_shuffle_epi32::<0b1110>(v));
            _mm_cvtsi128_si32(_mm_max_epi32(v, _mm_shuffle_epi32::<0b01>(v)))
        })
    }
    #[inline(always)]
    fn reduce_max(self, v: Self::F) -> f32 {
        one!({
            let v = _mm256_max_ps(v.0, v.1);
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        })
    }

    #[inline(always)]
    fn reduce_sum_i(self, v: Self::I) -> i32 {
        one!({
            let v = _mm256_add_epi32(v.0, v.1);
            let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b1110>(v));
            _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<0b01>(v)))
        })
    }

    #[inline(always)]
    unsafe fn turn_halves<const BF16: bool>(
        self,
        rows: *const u16,
        apart: usize,
        to: *mut f32,
        stride: usize,
    ) {
        // SAFETY: the token proves the instructions; the rest is the caller's contract.
        unsafe {
            for first in [0, LANES / 2] {
                let columns = super::columns_of_halves(rows.add(first), apart);
                for (i, column) in columns.into_iter().enumerate() {
                    let to = to.add((first + i) * stride);
                    for (i, half) in
                        [_mm256_castsi256_si128(column), _mm256_extracti128_si256::<1>(column)]
                            .into_iter()
                            .enumerate()
                    {
                        let v = if BF16 {
                            let wide = _mm256_cvtepu16_epi32(half);
                            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
                        } else {
                            _mm256_cvtph_ps(half)
                        };
                        _mm256_storeu_ps(to.add(8 * i), v);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::F {
        // SAFETY: the caller's contract.
        unsafe {
            Two(
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: Self::F) {
        // SAFETY: the caller's contract.
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.0));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.1));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::F {
        // SAFETY: the caller's contract.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(8).cast()));
            self.float_bits(self.shl_i(Two(low, high), 16))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::I {
        // SAFETY: the caller's contract.
        unsafe {
            Two(
                _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())),
                _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::I {
        // SAFETY: the caller's contract.
        unsafe {
            Two(
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: Self::I) {
        // SAFETY: the caller's contract; the rest is register arithmetic. Masked to 8 bits, the
        // saturating packs keep every value.
        unsafe {
            let byte = _mm256_set1_epi32(0xff);
            let v = _mm256_packus_epi32(_mm256_and_si256(v.0, byte), _mm256_and_si256(v.1, byte));
            let v = _mm256_permute4x64_epi64::<0b11_01_10_00>(v);
            let v = _mm_packus_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            _mm_storeu_si128(p.cast(), v);
        }
    }
    #[inline(always)]
    unsafe fn store_u16(self, p: *mut u16, v: Self::I) {
        // SAFETY: the caller's contract.
        unsafe {
            let v = _mm256_packus_epi32(v.0, v.1);
            _mm256_storeu_si256(p.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(v));
        }
    }

    #[inline(always)]
    unsafe fn load_b(self, p: *const u8) -> Self::B {
        // SAFETY: the caller's contract.
        unsafe { Two(_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())) }
    }
    #[inline(always)]
    unsafe fn store_b(self, p: *mut u8, v: Self::B) {
        // SAFETY: the caller's contract.
        unsafe {
            _mm256_storeu_si256(p.cast(), v.0);
            _mm256_storeu_si256(p.add(32).cast(), v.1);
        }
    }
    #[inline(always)]
    fn splat_b(self, v: u8) -> Self::B {
        let v = one!(_mm256_set1_epi8(v.cast_signed()));
        Two(v, v)
    }
    #[inline(always)]
    fn and_b(self, a: Self::B, b: Self::B) -> Self::B {
        two!(_mm256_and_si256; a, b)
    }
    #[inline(always)]
    fn or_b(self, a: Self::B, b: Self::B) -> Self::B {
        two!(_mm256_or_si256; a, b)
    }
    #[inline(always)]
    fn shr_b(self, a: Self::B, n: u32) -> Self::B {
        let n = one!(_mm_cvtsi32_si128(n.cast_signed()));
        one!(Two(_mm256_srl_epi16(a.0, n), _mm256_srl_epi16(a.1, n)))
    }
    #[inline(always)]
    fn shl_b(self, a: Self::B, n: u32) -> Self::B {
        let n = one!(_mm_cvtsi32_si128(n.cast_signed()));
        one!(Two(_mm256_sll_epi16(a.0, n), _mm256_sll_epi16(a.1, n)))
    }
    #[inline(always)]
    fn lookup_b(self, table: &[i8; 16], index: Self::B) -> Self::B {
        one!({
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            Two(_mm256_shuffle_epi8(table, index.0), _mm256_shuffle_epi8(table, index.1))
        })
    }

    #[inline(always)]
    unsafe fn load_x(self, p: *const i8) -> Self::X {
        // SAFETY: the caller's contract.
        unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    fn dot_start(self, init: i32) -> Self::D {
        let zero = self.splat_i(0);
        Sums { wide: if VNNI { self.splat_i(init) } else { zero }, narrow: zero }
    }
    #[inline(always)]
    fn dot_unsigned(self, d: Self::D, w: Self::B, x: Self::X) -> Self::D {
        if VNNI {
            // SAFETY: `VNNI`, so the token proves AVX-VNNI.
            let wide = unsafe {
                Two(
                    _mm256_dpbusd_avx_epi32(d.wide.0, w.0, x),
                    _mm256_dpbusd_avx_epi32(d.wide.1, w.1, x),
                )
            };
            return Sums { wide, ..d };
        }
        let products = one!(Two(_mm256_maddubs_epi16(w.0, x), _mm256_maddubs_epi16(w.1, x)));
        Sums { narrow: two!(_mm256_add_epi16; d.narrow, products), ..d }
    }
    #[inline(always)]
    fn dot_signed(self, d: Self::D, w: Self::B, x: Self::X) -> Self::D {
        if VNNI {
            let bias = self.splat_b(0x80);
            return self.dot_unsigned(d, two!(_mm256_xor_si256; w, bias), x);
        }
        // |w| * (x with the sign of w): 2 * 128 * 127 fits 16 bits.
        let magnitude = two!(_mm256_abs_epi8; w);
        let signed = one!(Two(_mm256_sign_epi8(x, w.0), _mm256_sign_epi8(x, w.1)));
        let products = two!(_mm256_maddubs_epi16; magnitude, signed);
        let ones = one!(_mm256_set1_epi16(1));
        let products = two!(_mm256_madd_epi16; products, Two(ones, ones));
        Sums { wide: self.add_i(d.wide, products), ..d }
    }
    #[inline(always)]
    fn dot_bytes(self, sums: Self::I, w: Self::B, x: Self::X) -> Self::I {
        if VNNI {
            // SAFETY: `VNNI`, so the token proves AVX-VNNI.
            return unsafe {
                Two(
                    _mm256_dpbusd_avx_epi32(sums.0, x, w.0),
                    _mm256_dpbusd_avx_epi32(sums.1, x, w.1),
                )
            };
        }
        // Two products of a byte and a code overflow 16 bits, so bytes of even and odd places are
        // widened apart.
        let even = one!(_mm256_and_si256(x, _mm256_set1_epi16(0xff)));
        let odd = one!(_mm256_srli_epi16::<8>(x));
        let (even, odd) = (Two(even, even), Two(odd, odd));
        let w_odd = one!(Two(_mm256_srai_epi16::<8>(w.0), _mm256_srai_epi16::<8>(w.1)));
        let w_even = one!(Two(
            _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(w.0)),
            _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(w.1))
        ));
        let products = two!(_mm256_madd_epi16; w_even, even);
        let more = two!(_mm256_madd_epi16; w_odd, odd);
        self.add_i(sums, self.add_i(products, more))
    }
    #[inline(always)]
    fn dot_codes(self, sums: Self::I, x: Self::B, w: Self::X) -> Self::I {
        if VNNI {
            // SAFETY: `VNNI`, so the token proves AVX-VNNI.
            return unsafe {
                Two(
                    _mm256_dpbusd_avx_epi32(sums.0, x.0, w),
                    _mm256_dpbusd_avx_epi32(sums.1, x.1, w),
                )
            };
        }
        // As in `dot_bytes`.
        let low = one!(_mm256_set1_epi16(0xff));
        let even = two!(_mm256_and_si256; x, Two(low, low));
        let odd = one!(Two(_mm256_srli_epi16::<8>(x.0), _mm256_srli_epi16::<8>(x.1)));
        let w_odd = one!(_mm256_srai_epi16::<8>(w));
        let w_even = one!(_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(w)));
        let products = two!(_mm256_madd_epi16; even, Two(w_even, w_even));
        let more = two!(_mm256_madd_epi16; odd, Two(w_odd, w_odd));
        self.add_i(sums, self.add_i(products, more))
    }
    #[inline(always)]
    fn dot_fold(self, d: Self::D) -> Self::D {
        if VNNI {
            return d;
        }
        let ones = one!(_mm256_set1_epi16(1));
        let sums = two!(_mm256_madd_epi16; d.narrow, Two(ones, ones));
        Sums { wide: self.add_i(d.wide, sums), narrow: self.splat_i(0) }
    }
    #[inline(always)]
    fn dot_finish(self, d: Self::D, init: i32) -> Self::I {
        if VNNI {
            return d.wide;
        }
        let sums = self.dot_fold(d).wide;
        self.add_i(sums, self.splat_i(init))
    }

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        one!(_mm_prefetch::<_MM_HINT_T1>(p.cast()))
    }

    #[inline(always)]
    fn prefetch_near(self, p: *const u8) {
        one!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }
}
