//! x86-64.

mod avx2;
mod avx512;
mod bf16;

use std::arch::x86_64::*;

pub use avx2::Avx2;
pub use avx512::Avx512Vnni;
pub(crate) use bf16::Avx512Bf16;

/// Who made this CPU, as it says itself.
pub(crate) fn vendor() -> [u8; 12] {
    let leaf = __cpuid(0);
    let mut name = [0; 12];
    for (part, word) in name.chunks_exact_mut(4).zip([leaf.ebx, leaf.edx, leaf.ecx]) {
        part.copy_from_slice(&word.to_le_bytes());
    }
    name
}

/// Eight columns of 16 rows of 2 bytes a value that lie `apart` bytes apart.
///
/// # Safety
/// Eight values are readable from every row; the CPU has AVX2.
#[inline(always)]
unsafe fn columns_of_halves(rows: *const u16, apart: usize) -> [__m256i; 8] {
    // SAFETY: the caller's contract.
    unsafe {
        // Rows 0 to 7 in the lower halves, 8 to 15 in the upper ones.
        let mut r = [_mm256_setzero_si256(); 8];
        for (i, r) in r.iter_mut().enumerate() {
            let low = _mm_loadu_si128(rows.byte_add(i * apart).cast());
            let high = _mm_loadu_si128(rows.byte_add((i + 8) * apart).cast());
            *r = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
        }
        // Pairs of rows, then of pairs, then of those.
        let mut a = r;
        for i in 0..4 {
            a[2 * i] = _mm256_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
            a[2 * i + 1] = _mm256_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
        }
        let mut b = a;
        for i in 0..2 {
            // Columns 0 and 1, 2 and 3, 4 and 5, 6 and 7 of four rows.
            b[4 * i] = _mm256_unpacklo_epi32(a[4 * i], a[4 * i + 2]);
            b[4 * i + 1] = _mm256_unpackhi_epi32(a[4 * i], a[4 * i + 2]);
            b[4 * i + 2] = _mm256_unpacklo_epi32(a[4 * i + 1], a[4 * i + 3]);
            b[4 * i + 3] = _mm256_unpackhi_epi32(a[4 * i + 1], a[4 * i + 3]);
        }
        let mut c = b;
        for i in 0..4 {
            c[2 * i] = _mm256_unpacklo_epi64(b[i], b[4 + i]);
            c[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[4 + i]);
        }
        c
    }
}
