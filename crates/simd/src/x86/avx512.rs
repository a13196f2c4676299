//! AVX-512 with VNNI: a logical vector is one register.

use std::arch::x86_64::*;

use crate::{Isa, IsaKind, LANES, SimdOp};

/// Proof of AVX-512 F, BW, VL, DQ and VNNI.
#[derive(Clone, Copy, Debug)]
pub struct Avx512Vnni(());

impl Avx512Vnni {
    /// A token when this CPU has the instructions.
    pub fn new() -> Option<Avx512Vnni> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Avx512Vnni(()))
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[target_feature(enable = "bmi1,bmi2,lzcnt,popcnt")]
#[inline(never)]
fn enter<Op: SimdOp>(s: Avx512Vnni, op: Op) -> Op::Output {
    op.eval(s)
}

/// An intrinsic without preconditions beyond the instruction set.
macro_rules! one {
    ($e:expr) => {{
        // SAFETY: the token proves AVX-512 F, BW, VL, DQ and VNNI.
        unsafe { $e }
    }};
}

impl Isa for Avx512Vnni {
    const KIND: IsaKind = IsaKind::Avx512Vnni;
    const SIGNED_BIAS: i32 = 128;
    const BYTE_BIAS: i32 = 0;
    const WIDE: bool = true;
    type F = __m512;
    type I = __m512i;
    type B = __m512i;
    type X = __m512i;
    type D = __m512i;

    #[inline(always)]
    fn run<Op: SimdOp>(self, op: Op) -> Op::Output {
        // SAFETY: the token proves every enabled feature (the bit-manipulation extensions come with
        // every CPU that has AVX-512).
        unsafe { enter(self, op) }
    }

    #[inline(always)]
    fn splat(self, v: f32) -> Self::F {
        one!(_mm512_set1_ps(v))
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY: the caller's contract.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::F) {
        // SAFETY: the caller's contract.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        one!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        one!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        one!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        one!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn sqrt(self, a: Self::F) -> Self::F {
        one!(_mm512_sqrt_ps(a))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        one!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        one!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        one!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn select_gt(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        one!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), y, x))
    }
    #[inline(always)]
    fn reduce_sum(self, v: Self::F) -> f32 {
        one!({
            let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        })
    }

    #[inline(always)]
    fn bits(self, v: Self::F) -> Self::I {
        one!(_mm512_castps_si512(v))
    }
    #[inline(always)]
    fn float_bits(self, v: Self::I) -> Self::F {
        one!(_mm512_castsi512_ps(v))
    }
    #[inline(always)]
    fn to_float(self, v: Self::I) -> Self::F {
        one!(_mm512_cvtepi32_ps(v))
    }
    #[inline(always)]
    fn to_int(self, v: Self::F) -> Self::I {
        one!(_mm512_cvtps_epi32(v))
    }

    #[inline(always)]
    fn splat_i(self, v: i32) -> Self::I {
        one!(_mm512_set1_epi32(v))
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const i32) -> Self::I {
        // SAFETY: the caller's contract.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_i(self, p: *mut i32, v: Self::I) {
        // SAFETY: the caller's contract.
        unsafe { _mm512_storeu_si512(p.cast(), v) }
    }
    #[inline(always)]
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I {
        one!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I {
        one!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn mul_i(self, a: Self::I, b: Self::I) -> Self::I {
        one!(_mm512_mullo_epi32(a, b))
    }
    #[inline(always)]
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I {
        one!(_mm512_max_epi32(a, b))
    }
    #[inline(always)]
    fn and_i(self, a: Self::I, b: Self::I) -> Self::I {
        one!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or_i(self, a: Self::I, b: Self::I) -> Self::I {
        one!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn shl_i(self, a: Self::I, n: u32) -> Self::I {
        one!(_mm512_sll_epi32(a, _mm_cvtsi32_si128(n.cast_signed())))
    }
    #[inline(always)]
    fn sar_i(self, a: Self::I, n: u32) -> Self::I {
        one!(_mm512_sra_epi32(a, _mm_cvtsi32_si128(n.cast_signed())))
    }
    #[inline(always)]
    fn reduce_sum_i(self, v: Self::I) -> i32 {
        one!(_mm512_reduce_add_epi32(v))
    }

    #[inline(always)]
    fn reduce_max_i(self, v: Self::I) -> i32 {
        one!(_mm512_reduce_max_epi32(v))
    }
    #[inline(always)]
    fn reduce_max(self, v: Self::F) -> f32 {
        one!(_mm512_reduce_max_ps(v))
    }

    #[inline(always)]
    unsafe fn store_transposed(self, rows: &[Self::F; LANES], to: *mut f32, stride: usize) {
        one!({
            // Pairs of rows, then of pairs, inside each quarter; then quarters change places.
            let mut a = [_mm512_setzero_ps(); LANES];
            for i in 0..8 {
                a[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
                a[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
            }
            // Quarter `q` of `b[4i + c]` is column `4q + c` of rows `4i..4i + 4`.
            let mut b = [_mm512_setzero_ps(); LANES];
            for i in 0..4 {
                let (w, x) = (_mm512_castps_pd(a[4 * i]), _mm512_castps_pd(a[4 * i + 1]));
                let (y, z) = (_mm512_castps_pd(a[4 * i + 2]), _mm512_castps_pd(a[4 * i + 3]));
                b[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(w, y));
                b[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(w, y));
                b[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, z));
                b[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, z));
            }
            for c in 0..4 {
                let (p, q, r, t) = (b[c], b[4 + c], b[8 + c], b[12 + c]);
                let even = _mm512_shuffle_f32x4::<0x88>(p, q);
                let odd = _mm512_shuffle_f32x4::<0xdd>(p, q);
                let even_high = _mm512_shuffle_f32x4::<0x88>(r, t);
                let odd_high = _mm512_shuffle_f32x4::<0xdd>(r, t);
                let columns = [
                    _mm512_shuffle_f32x4::<0x88>(even, even_high),
                    _mm512_shuffle_f32x4::<0x88>(odd, odd_high),
                    _mm512_shuffle_f32x4::<0xdd>(even, even_high),
                    _mm512_shuffle_f32x4::<0xdd>(odd, odd_high),
                ];
                for (quarter, column) in columns.into_iter().enumerate() {
                    _mm512_storeu_ps(to.add((4 * quarter + c) * stride), column);
                }
            }
        });
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
                    let v = if BF16 {
                        let wide = _mm512_cvtepu16_epi32(column);
                        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
                    } else {
                        _mm512_cvtph_ps(column)
                    };
                    _mm512_storeu_ps(to, v);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::F {
        // SAFETY: the caller's contract.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: Self::F) {
        // SAFETY: the caller's contract.
        unsafe {
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::F {
        // SAFETY: the caller's contract.
        unsafe {
            let v = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::I {
        // SAFETY: the caller's contract.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::I {
        // SAFETY: the caller's contract.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: Self::I) {
        // SAFETY: the caller's contract.
        unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(v)) }
    }
    #[inline(always)]
    unsafe fn store_u16(self, p: *mut u16, v: Self::I) {
        // SAFETY: the caller's contract.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(v)) }
    }

    #[inline(always)]
    unsafe fn load_b(self, p: *const u8) -> Self::B {
        // SAFETY: the caller's contract.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_b(self, p: *mut u8, v: Self::B) {
        // SAFETY: the caller's contract.
        unsafe { _mm512_storeu_si512(p.cast(), v) }
    }
    #[inline(always)]
    fn splat_b(self, v: u8) -> Self::B {
        one!(_mm512_set1_epi8(v.cast_signed()))
    }
    #[inline(always)]
    fn and_b(self, a: Self::B, b: Self::B) -> Self::B {
        one!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or_b(self, a: Self::B, b: Self::B) -> Self::B {
        one!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn shr_b(self, a: Self::B, n: u32) -> Self::B {
        one!(_mm512_srl_epi16(a, _mm_cvtsi32_si128(n.cast_signed())))
    }
    #[inline(always)]
    fn shl_b(self, a: Self::B, n: u32) -> Self::B {
        one!(_mm512_sll_epi16(a, _mm_cvtsi32_si128(n.cast_signed())))
    }
    #[inline(always)]
    fn lookup_b(self, table: &[i8; 16], index: Self::B) -> Self::B {
        one!({
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, index)
        })
    }

    #[inline(always)]
    unsafe fn load_x(self, p: *const i8) -> Self::X {
        // SAFETY: the caller's contract.
        unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    fn dot_start(self, init: i32) -> Self::D {
        self.splat_i(init)
    }
    #[inline(always)]
    fn dot_unsigned(self, d: Self::D, w: Self::B, x: Self::X) -> Self::D {
        one!(_mm512_dpbusd_epi32(d, w, x))
    }
    #[inline(always)]
    fn dot_signed(self, d: Self::D, w: Self::B, x: Self::X) -> Self::D {
        one!(_mm512_dpbusd_epi32(d, _mm512_xor_si512(w, _mm512_set1_epi8(i8::MIN)), x))
    }
    #[inline(always)]
    fn dot_bytes(self, sums: Self::I, w: Self::B, x: Self::X) -> Self::I {
        one!(_mm512_dpbusd_epi32(sums, x, w))
    }
    #[inline(always)]
    fn dot_codes(self, sums: Self::I, x: Self::B, w: Self::X) -> Self::I {
        one!(_mm512_dpbusd_epi32(sums, x, w))
    }
    #[inline(always)]
    fn lookup_i(self, table: &[u8; 256], index: Self::I) -> Self::I {
        // Four registers of 16 words; two bits of an index pick the byte.
        let start = table.as_ptr().cast::<i32>();
        // SAFETY: the table has 256 bytes; the token proves the rest.
        unsafe {
            let part = |i: usize| _mm512_loadu_si512(start.add(16 * i).cast());
            let word = _mm512_srli_epi32::<2>(index);
            let low = _mm512_permutex2var_epi32(part(0), word, part(1));
            let high = _mm512_permutex2var_epi32(part(2), word, part(3));
            let upper = _mm512_test_epi32_mask(word, _mm512_set1_epi32(32));
            let words = _mm512_mask_blend_epi32(upper, low, high);
            let shift = _mm512_slli_epi32::<3>(_mm512_and_si512(index, _mm512_set1_epi32(3)));
            _mm512_and_si512(_mm512_srlv_epi32(words, shift), _mm512_set1_epi32(0xff))
        }
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
    fn prefetch(self, p: *const u8) {
        one!(_mm_prefetch::<_MM_HINT_T1>(p.cast()))
    }

    #[inline(always)]
    fn prefetch_near(self, p: *const u8) {
        one!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }
}
