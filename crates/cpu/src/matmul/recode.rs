//! Codes that a file packs more tightly than instructions can take apart (numbers of grid points,
//! digits in base 3) as fields of bits, in the order in which tiles keep them.
//!
//! A code becomes the place of its value among the values that the format has, so that a product
//! finds it again with a mask or a table of 16. That is up to 1.6 times the bytes of the file
//! (docs/matrix-products.md has the table), and an instruction or two in place of a load from a
//! grid, the signs and a change of order.

use cyb_tensor::{DType, quant};

/// Values of a block.
const BLOCK: usize = 256;

/// The places of the values of one block, for formats that have at most 16.
pub(super) struct Places([u8; BLOCK]);

impl Places {
    /// Of a block of `dtype`.
    pub(super) fn of(dtype: DType, block: &[u8], unpacked: &mut quant::Codes) -> Places {
        quant::codes(dtype, block, unpacked).expect("a block of a quantised dtype");
        let codes = &unpacked.codes;
        Places(match dtype {
            // -1, 0, 1 from eighths that are shifted by one.
            DType::IQ1_S | DType::IQ1_M => codes.map(|c| ((c + 9) >> 3).cast_unsigned()),
            // 8, 25, 43, and on top the sign.
            DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => {
                codes.map(|c| c.unsigned_abs() >> 4 | sign(c) << 2)
            }
            // 4, 12, 20, ... 52, 62, and on top the sign.
            DType::IQ3_XXS => codes.map(|c| c.unsigned_abs() >> 3 | sign(c) << 3),
            // Odd numbers from -15 on.
            DType::IQ3_S => codes.map(|c| ((c + 15) >> 1).cast_unsigned()),
            // -1, 0, 1.
            _ => codes.map(|c| (c + 1).cast_unsigned()),
        })
    }

    /// The low two bits: element `k` with `k + 32`, `k + 64` and `k + 96`.
    pub(super) fn crumbs(&self) -> [u8; BLOCK / 4] {
        let mut out = [0; BLOCK / 4];
        for (out, places) in out.as_chunks_mut::<32>().0.iter_mut().zip(self.0.as_chunks::<128>().0)
        {
            let [a, b, c, d] = [0, 32, 64, 96].map(|from| &places[from..from + 32]);
            for (i, out) in out.iter_mut().enumerate() {
                *out = a[i] & 3 | (b[i] & 3) << 2 | (c[i] & 3) << 4 | (d[i] & 3) << 6;
            }
        }
        out
    }

    /// The low four bits: element `k` with `k + 16`.
    pub(super) fn nibbles(&self) -> [u8; BLOCK / 2] {
        let mut out = [0; BLOCK / 2];
        for (out, places) in out.as_chunks_mut::<16>().0.iter_mut().zip(self.0.as_chunks::<32>().0)
        {
            let (low, high) = places.split_at(16);
            for (i, out) in out.iter_mut().enumerate() {
                *out = low[i] & 15 | high[i] << 4;
            }
        }
        out
    }

    /// Bit 2 of the 32 elements of each 32-block: that of element `4g + j` is bit `g` of byte `j`.
    pub(super) fn bits(&self) -> [u32; BLOCK / 32] {
        let mut out = [0; BLOCK / 32];
        for (out, places) in out.iter_mut().zip(self.0.as_chunks::<32>().0) {
            for (g, &four) in places.as_chunks::<4>().0.iter().enumerate() {
                *out |= (u32::from_le_bytes(four) >> 2 & 0x0101_0101) << g;
            }
        }
        out
    }
}

/// 1 for negative codes.
fn sign(code: i8) -> u8 {
    code.cast_unsigned() >> 7
}

/// Four codes of two bits in a byte, the first lowest, as bytes.
pub(super) fn spread(byte: u8) -> u32 {
    u32::from_le_bytes([0, 2, 4, 6].map(|from| byte >> from & 3))
}

/// The odd number `2s + 1` that four bits `s` of a scale stand for.
pub(super) fn odd(scale: u8) -> u8 {
    2 * scale + 1
}

/// What a block of `IQ1_S` scales 32-block `g` with, in eighths of the scale of the block; negative
/// where its values are shifted down.
pub(super) fn scale_of_iq1_s(block: &[u8], g: usize) -> u8 {
    let word = u16::from_le_bytes([block[34 + 2 * g], block[35 + 2 * g]]);
    let scale = odd((word >> 12 & 7) as u8);
    if word & 0x8000 != 0 { scale.wrapping_neg() } else { scale }
}

/// The scale of a block of `IQ1_M`, an `f16`, which lies in the top bits of its four words.
pub(super) fn d_of_iq1_m(block: &[u8]) -> [u8; 2] {
    [block[49] >> 4 | block[51] & 0xf0, block[53] >> 4 | block[55] & 0xf0]
}

/// What a block of `IQ1_M` scales both halves of 32-block `b` with, in eighths of its scale: the
/// first in the low half.
pub(super) fn scales_of_iq1_m(block: &[u8], b: usize) -> u8 {
    let at = 48 + b / 2 * 2;
    let word = u16::from_le_bytes([block[at], block[at + 1]]) >> (b % 2 * 6);
    odd((word & 7) as u8) | odd((word >> 3 & 7) as u8) << 4
}

/// Whether eight elements of a block of `IQ1_M` are shifted down, for the eight eights of two
/// 32-blocks, the first lowest.
pub(super) fn shifts_of_iq1_m(block: &[u8], two: usize) -> u8 {
    let halves = &block[32 + 4 * two..36 + 4 * two];
    halves
        .iter()
        .enumerate()
        .fold(0, |bits, (i, &b)| bits | (b >> 3 & 1) << (2 * i) | b >> 7 << (2 * i + 1))
}
