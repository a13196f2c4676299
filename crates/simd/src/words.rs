//! Squares of words in registers that every CPU of an architecture has.

/// Word `i` of 4 bytes of row `j` becomes word `j` of row `i`.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
pub fn transpose_words(rows: [&[u8; 16]; 4]) -> [[u8; 16]; 4] {
    use std::arch::x86_64::*;
    let mut out = [[0; 16]; 4];
    // SAFETY: SSE2 is part of x86-64; rows and results have 16 bytes.
    unsafe {
        let [a, b, c, d] = rows.map(|row| _mm_loadu_si128(row.as_ptr().cast()));
        let (ab, cd) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
        let columns = [
            _mm_unpacklo_epi64(ab, cd),
            _mm_unpackhi_epi64(ab, cd),
            _mm_unpacklo_epi64(ab_high, cd_high),
            _mm_unpackhi_epi64(ab_high, cd_high),
        ];
        for (out, column) in out.iter_mut().zip(columns) {
            _mm_storeu_si128(out.as_mut_ptr().cast(), column);
        }
    }
    out
}

/// Word `i` of 4 bytes of row `j` becomes word `j` of row `i`.
#[inline(always)]
#[cfg(not(target_arch = "x86_64"))]
pub fn transpose_words(rows: [&[u8; 16]; 4]) -> [[u8; 16]; 4] {
    let mut out = [[0; 16]; 4];
    for (j, row) in rows.into_iter().enumerate() {
        for (out, word) in out.iter_mut().zip(row.as_chunks::<4>().0) {
            out[4 * j..4 * j + 4].copy_from_slice(word);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_change_places() {
        let rows: [[u8; 16]; 4] =
            std::array::from_fn(|j| std::array::from_fn(|i| (16 * j + i) as u8));
        let turned = transpose_words(rows.each_ref());
        for (i, out) in turned.iter().enumerate() {
            for (j, row) in rows.iter().enumerate() {
                assert_eq!(out[4 * j..4 * j + 4], row[4 * i..4 * i + 4]);
            }
        }
    }
}
