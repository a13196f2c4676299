//! The codebooks of the IQ formats: grids of vectors that a code picks from.
//!
//! `grids.bin` holds the published tables packed, one after the other, written by
//! `golden/quant.py`: an entry's field of two bits (IQ1, IQ2) or four (IQ3) is the place of the
//! value in the grid's alphabet, lowest bits first.

use super::block::{Codes, Half};

const PACKED: &[u8; 9216] = include_bytes!("grids.bin");

pub(super) static IQ1: [[i8; 8]; 2048] = unpack(0, &[-1, 0, 1]);
pub(super) static IQ2_XXS: [[i8; 8]; 256] = unpack(4096, &[8, 25, 43]);
pub(super) static IQ2_XS: [[i8; 8]; 512] = unpack(4608, &[8, 25, 43]);
pub(super) static IQ2_S: [[i8; 8]; 1024] = unpack(5632, &[8, 25, 43]);
pub(super) static IQ3_XXS: [[i8; 4]; 256] = unpack(7680, &[4, 12, 20, 28, 36, 44, 52, 62]);
pub(super) static IQ3_S: [[i8; 4]; 512] = unpack(8192, &[1, 3, 5, 7, 9, 11, 13, 15]);

/// The sixteen levels of the IQ4 formats.
pub(super) const IQ4: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of the 4-bit float E2M1, so that they are integers.
pub(super) const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

const fn unpack<const W: usize, const N: usize>(start: usize, alphabet: &[i8]) -> [[i8; W]; N] {
    let bits = if alphabet.len() <= 4 { 2 } else { 4 };
    let per_byte = 8 / bits;
    let mut grid = [[0; W]; N];
    let mut i = 0;
    while i < N * W {
        let field = PACKED[start + i / per_byte] as usize >> (i % per_byte * bits);
        grid[i / W][i % W] = alphabet[field & ((1 << bits) - 1)];
        i += 1;
    }
    grid
}

/// Seven sign bits to eight: the eighth makes the number of minus signs even.
#[inline(always)]
pub(super) fn even_signs(bits: u32) -> u8 {
    EVEN[(bits & 127) as usize]
}

static EVEN: [u8; 128] = {
    let mut even = [0; 128];
    let mut bits = 0u8;
    while bits < 128 {
        even[bits as usize] = bits | ((bits.count_ones() & 1) as u8) << 7;
        bits += 1;
    }
    even
};

/// Byte `j` is all ones where bit `j` of the index is set.
static MASKS: [u64; 256] = {
    let mut masks = [0; 256];
    let mut i = 0;
    while i < 256 * 8 {
        if (i / 8) >> (i % 8) & 1 == 1 {
            masks[i / 8] |= 0xff << (i % 8 * 8);
        }
        i += 1;
    }
    masks
};

/// Two grid points side by side.
#[inline(always)]
pub(super) fn pair(first: [i8; 4], second: [i8; 4]) -> [i8; 8] {
    let word = |four: [i8; 4]| u64::from(u32::from_le_bytes(bytemuck::cast(four)));
    bytemuck::cast((word(first) | word(second) << 32).to_le_bytes())
}

/// Writes `grid`, of whose elements none is 0, with the sign of element `j` flipped where bit `j` of
/// `signs` is set.
#[inline(always)]
pub(super) fn signed(grid: [i8; 8], signs: u8, out: &mut [i8]) {
    let mask = MASKS[usize::from(signs)];
    // `!x + 1`, of all at once: it carries into no other byte, since no element is 0.
    let turned = u64::from_le_bytes(bytemuck::cast(grid)) ^ mask;
    let turned = turned.wrapping_add(mask & 0x0101_0101_0101_0101);
    out.copy_from_slice(&bytemuck::cast::<_, [i8; 8]>(turned.to_le_bytes()));
}

/// Writes eight times `grid`, plus one, or minus one if `down`.
#[inline(always)]
pub(super) fn shifted(grid: &[i8; 8], down: bool, out: &mut [i8]) {
    let shift = if down { -1 } else { 1 };
    for (x, &g) in out.iter_mut().zip(grid) {
        *x = 8 * g + shift;
    }
}

/// The sixteen scales of `IQ2_XS` and `IQ2_S` from 4-bit fields, low half first.
pub(super) fn quarter_scales(d: Half, packed: &[u8; 8], out: &mut Codes) {
    let d = d.get();
    for (g, scale) in out.scales.iter_mut().enumerate() {
        *scale = d * (0.5 + f32::from(packed[g / 2] >> (g % 2 * 4) & 15)) * 0.25;
    }
}
