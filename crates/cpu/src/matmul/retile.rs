//! From the file's rows of blocks to tiles (see [`super::codec`]). Codes are moved in pieces of 4
//! bytes; only bits apart from their codes and packed scales are rearranged.

use std::ops::Range;

use cyb_simd::transpose_words;
use cyb_tensor::{DType, quant};

use super::codec::{self, Layout, ROWS, STEP};
use super::recode::{self, Places};

/// How tiles of a format are laid out; `None` for dtypes that are not quantised.
pub(super) fn layout(dtype: DType) -> Option<Layout> {
    Some(match dtype {
        DType::Q4_0 => codec::Q4_0::LAYOUT,
        DType::Q4_1 => codec::Q4_1::LAYOUT,
        DType::Q5_0 => codec::Q5_0::LAYOUT,
        DType::Q5_1 => codec::Q5_1::LAYOUT,
        DType::Q8_0 | DType::Q8_1 => codec::Q8_0::LAYOUT,
        DType::IQ4_NL => codec::Iq4Nl::LAYOUT,
        DType::MXFP4 => codec::Mxfp4::LAYOUT,
        DType::Q2_K => codec::Q2K::LAYOUT,
        DType::Q3_K => codec::Q3K::LAYOUT,
        DType::Q4_K => codec::Q4K::LAYOUT,
        DType::Q5_K => codec::Q5K::LAYOUT,
        DType::Q6_K => codec::Q6K::LAYOUT,
        DType::IQ4_XS => codec::Iq4Xs::LAYOUT,
        DType::TQ1_0 | DType::TQ2_0 => codec::Tq2_0::LAYOUT,
        DType::Q1_0 => codec::Q1_0::LAYOUT,
        DType::Q2_0 => codec::Q2_0::LAYOUT,
        DType::Q8_K => codec::Q8K::LAYOUT,
        DType::NVFP4 => codec::Nvfp4::LAYOUT,
        DType::IQ1_S => codec::Iq1S::LAYOUT,
        DType::IQ1_M => codec::Iq1M::LAYOUT,
        DType::IQ2_XXS => codec::Iq2Xxs::LAYOUT,
        DType::IQ2_XS | DType::IQ2_S => codec::Iq2S::LAYOUT,
        DType::IQ3_XXS => codec::Iq3Xxs::LAYOUT,
        DType::IQ3_S => codec::Iq3S::LAYOUT,
        _ => return None,
    })
}

/// A span being written.
struct Span<'a> {
    bytes: &'a mut [u8],
    planes: &'a [usize],
}

impl Span<'_> {
    /// The native blocks `from..` of 4-byte pieces of every row become steps `step..` of a plane;
    /// `count` is a multiple of 4. Squares of 4 pieces of 4 rows are turned in registers.
    fn pieces(
        &mut self,
        plane: usize,
        step: usize,
        rows: &[&[u8]; ROWS],
        from: usize,
        count: usize,
    ) {
        let start = self.planes[plane] + step * STEP;
        let out = &mut self.bytes[start..start + count * STEP];
        let rows = rows.map(|row| row[from..from + 4 * count].as_chunks::<16>().0);
        for (i, out) in out.as_chunks_mut::<{ 4 * STEP }>().0.iter_mut().enumerate() {
            for (four, rows) in rows.as_chunks::<4>().0.iter().enumerate() {
                let turned = transpose_words(rows.each_ref().map(|row| &row[i]));
                for (piece, turned) in turned.iter().enumerate() {
                    let at = piece * STEP + four * 16;
                    out[at..at + 16].copy_from_slice(turned);
                }
            }
        }
    }

    /// Two bytes of every row: element `index` of a plane of half-precision floats.
    fn halves(&mut self, plane: usize, index: usize, rows: &[&[u8]; ROWS], from: usize) {
        let start = self.planes[plane] + index * 2 * ROWS;
        let out = &mut self.bytes[start..start + 2 * ROWS];
        out.copy_from_slice(rows.map(|row| [row[from], row[from + 1]]).as_flattened());
    }

    /// One byte of a row: element `index` of a plane of bytes.
    fn byte(&mut self, plane: usize, index: usize, row: usize, value: u8) {
        self.bytes[self.planes[plane] + index * ROWS + row] = value;
    }

    /// Some bytes of every row: elements from the first of a plane of bytes.
    fn bytes<R: AsRef<[u8]>>(&mut self, plane: usize, rows: &[R; ROWS], range: Range<usize>) {
        let start = self.planes[plane];
        let out = &mut self.bytes[start..start + range.len() * ROWS];
        for (r, row) in rows.iter().enumerate() {
            let row = &row.as_ref()[range.clone()];
            for (out, &byte) in out[r..].iter_mut().step_by(ROWS).zip(row) {
                *out = byte;
            }
        }
    }

    /// Four bytes of every row: step `step` of a plane.
    fn step(&mut self, plane: usize, step: usize, of_rows: [u32; ROWS]) {
        let start = self.planes[plane] + step * STEP;
        let out = &mut self.bytes[start..start + STEP];
        out.copy_from_slice(of_rows.map(u32::to_le_bytes).as_flattened());
    }
}

/// The 4 bytes from `from` on of every row.
fn column(rows: &[&[u8]; ROWS], from: usize) -> [u32; ROWS] {
    rows.map(|row| u32::from_le_bytes([0, 1, 2, 3].map(|i| row[from + i])))
}

/// Fields of `WIDTH` bits from bit `from` of every byte of the pieces, side by side, the first lowest.
fn gathered<const WIDTH: usize>(pieces: &[[u32; ROWS]], from: usize) -> [u32; ROWS] {
    let mask = u32::from_le_bytes([((1u16 << WIDTH) - 1) as u8; 4]);
    let mut out = [0; ROWS];
    for (g, piece) in pieces.iter().enumerate() {
        for (out, piece) in out.iter_mut().zip(piece) {
            *out |= (piece >> from & mask) << (g * WIDTH);
        }
    }
    out
}

/// High bits of the 32 values of a block: bit `4g + j` goes to bit `g` of byte `j`.
fn high_bits(bits: [u32; ROWS]) -> [u32; ROWS] {
    let mut out = [0; ROWS];
    for j in 0..4 {
        for (out, bits) in out.iter_mut().zip(bits) {
            *out |= every_fourth_bit(bits >> j) << (8 * j);
        }
    }
    out
}

/// Bits 0, 4, 8, … 28 side by side.
fn every_fourth_bit(bits: u32) -> u32 {
    let v = bits & 0x1111_1111;
    let v = (v | v >> 3) & 0x0303_0303;
    let v = (v | v >> 6) & 0x000f_000f;
    (v | v >> 12) & 0xff
}

/// The 6-bit scales, then the minima, of the 8 blocks of a superblock of `Q4_K` or `Q5_K`.
fn scales_and_mins(packed: &[u8; 12]) -> [u8; 16] {
    let word = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|j| packed[4 * i + j]));
    let (scales, mins, fours) = (word(0), word(1), word(2));
    let six = 0x3f3f_3f3f;
    let high = |w: u32| (w >> 6 & 0x0303_0303) << 4;
    let last = [fours & 0x0f0f_0f0f | high(scales), fours >> 4 & 0x0f0f_0f0f | high(mins)];
    let words = [scales & six, last[0], mins & six, last[1]].map(u32::to_le_bytes);
    std::array::from_fn(|i| words[i / 4][i % 4])
}

/// Writes a tile of `blocks` 32-blocks. `rows` are 16 native rows of so many.
pub(super) fn tile(
    dtype: DType,
    layout: &Layout,
    rows: &[&[u8]; ROWS],
    blocks: usize,
    out: &mut [u8],
) {
    let native = dtype.layout();
    // The file's blocks in a span.
    let per_span = layout.span * 32 / native.block;
    for block in 0..blocks * 32 / native.block {
        let at = block * native.bytes;
        let bytes = &mut out[block / per_span * layout.bytes..][..layout.bytes];
        let mut t = Span { bytes, planes: layout.planes };
        let b = block % per_span;
        match dtype {
            DType::Q4_0 | DType::IQ4_NL => {
                t.halves(0, b, rows, at);
                t.pieces(1, 4 * b, rows, at + 2, 4);
            }
            DType::Q4_1 => {
                t.halves(0, b, rows, at);
                t.halves(1, b, rows, at + 2);
                t.pieces(2, 4 * b, rows, at + 4, 4);
            }
            DType::Q5_0 => {
                t.halves(0, b, rows, at);
                t.step(1, b, high_bits(column(rows, at + 2)));
                t.pieces(2, 4 * b, rows, at + 6, 4);
            }
            DType::Q5_1 => {
                t.halves(0, b, rows, at);
                t.halves(1, b, rows, at + 2);
                t.step(2, b, high_bits(column(rows, at + 4)));
                t.pieces(3, 4 * b, rows, at + 8, 4);
            }
            DType::Q8_0 => {
                t.halves(0, b, rows, at);
                t.pieces(1, 8 * b, rows, at + 2, 8);
            }
            DType::MXFP4 => {
                let scales = rows.map(|row| half_power(row[at]).to_le_bytes());
                t.halves(0, b, &scales.each_ref().map(|s| s.as_slice()), 0);
                t.pieces(1, 4 * b, rows, at + 1, 4);
            }
            // Superblocks: a span each.
            DType::Q2_K => {
                t.halves(0, 0, rows, at + 80);
                t.halves(1, 0, rows, at + 82);
                t.bytes(2, &rows.map(|row| &row[at..at + 16]), 0..16);
                t.pieces(3, 0, rows, at + 16, 16);
            }
            DType::Q3_K => {
                t.halves(0, 0, rows, at + 108);
                for (r, row) in rows.iter().enumerate() {
                    let (low, high) = row[at + 96..at + 108].split_at(8);
                    for g in 0..16 {
                        let packed =
                            low[g % 8] >> (g / 8 * 4) & 15 | (high[g % 4] >> (g / 4 * 2) & 3) << 4;
                        t.byte(1, g, r, packed.wrapping_sub(32));
                    }
                }
                let bits: [_; 8] = std::array::from_fn(|i| column(rows, at + 4 * i));
                for four in 0..2 {
                    let plane = 12 * four;
                    for (j, step) in codec::BITS_OF_Q3.into_iter().enumerate() {
                        t.step(2, plane + step, gathered::<1>(&bits, 4 * four + j));
                    }
                    t.pieces(2, plane + 1, rows, at + 32 + 32 * four, 8);
                }
            }
            DType::Q4_K | DType::Q5_K => {
                t.halves(0, 0, rows, at);
                t.halves(1, 0, rows, at + 2);
                let packed = rows.map(|row| {
                    scales_and_mins(row[at + 4..].first_chunk().expect("a superblock has more"))
                });
                t.bytes(2, &packed, 0..8);
                t.bytes(3, &packed, 8..16);
                if dtype == DType::Q5_K {
                    let bits: [_; 8] = std::array::from_fn(|i| column(rows, at + 16 + 4 * i));
                    for two in 0..4 {
                        let plane = 10 * two;
                        for j in 0..2 {
                            t.step(4, plane + j, gathered::<1>(&bits, 2 * two + j));
                        }
                        t.pieces(4, plane + 2, rows, at + 48 + 32 * two, 8);
                    }
                } else {
                    t.pieces(4, 0, rows, at + 16, 32);
                }
            }
            DType::Q6_K => {
                t.halves(0, 0, rows, at + 208);
                t.bytes(1, &rows.map(|row| &row[at + 192..at + 208]), 0..16);
                for four in 0..2 {
                    let plane = 24 * four;
                    for half in 0..2 {
                        let from = at + 128 + 32 * four + 16 * half;
                        let bits: [_; 4] = std::array::from_fn(|i| column(rows, from + 4 * i));
                        for (j, first) in codec::BITS_OF_Q6.into_iter().enumerate() {
                            t.step(2, plane + first + half, gathered::<2>(&bits, 2 * j));
                        }
                    }
                    for odd in 0..2 {
                        let from = at + 64 * four + 32 * odd;
                        t.pieces(2, plane + 2 + 10 * odd, rows, from, 8);
                    }
                }
            }
            DType::IQ4_XS => {
                t.halves(0, 0, rows, at);
                for (r, row) in rows.iter().enumerate() {
                    let high = u16::from_le_bytes([row[at + 2], row[at + 3]]);
                    for g in 0..8 {
                        let low = row[at + 4 + g / 2] >> (g % 2 * 4) & 15;
                        let packed = low | ((high >> (2 * g) & 3) as u8) << 4;
                        t.byte(1, g, r, packed.wrapping_sub(32));
                    }
                }
                t.pieces(2, 0, rows, at + 8, 32);
            }
            DType::TQ2_0 => {
                t.halves(0, 0, rows, at + 64);
                t.pieces(1, 0, rows, at, 16);
            }
            DType::Q8_1 => {
                t.halves(0, b, rows, at);
                t.pieces(1, 8 * b, rows, at + 4, 8);
            }
            DType::Q8_K => {
                t.step(0, 0, column(rows, at));
                t.pieces(1, 0, rows, at + 4, 64);
            }
            DType::Q1_0 => {
                t.halves(0, b, rows, at);
                for i in 0..4 {
                    t.step(1, 4 * b + i, high_bits(column(rows, at + 2 + 4 * i)));
                }
            }
            DType::Q2_0 => {
                t.halves(0, b, rows, at);
                for i in 0..4 {
                    let four = column(rows, at + 2 + 4 * i).map(u32::to_le_bytes);
                    let steps = [0, 1, 2, 3].map(|g| four.map(|bytes| recode::spread(bytes[g])));
                    t.step(1, 4 * b + i, gathered::<2>(&steps, 0));
                }
            }
            DType::NVFP4 => {
                for (r, row) in rows.iter().enumerate() {
                    for g in 0..4 {
                        // The sign is ignored, and NaN counts as zero.
                        let scale = row[at + g] & 0x7f;
                        t.byte(0, g, r, if scale == 0x7f { 0 } else { scale });
                    }
                }
                t.pieces(1, 0, rows, at + 4, 8);
            }
            DType::TQ1_0
            | DType::IQ1_S
            | DType::IQ1_M
            | DType::IQ2_XXS
            | DType::IQ2_XS
            | DType::IQ2_S
            | DType::IQ3_XXS
            | DType::IQ3_S => {
                recoded(dtype, &mut t, &rows.map(|row| &row[at..at + native.bytes]));
            }
            // There is no layout for the others.
            _ => {}
        }
    }
}

/// Writes the span of a superblock whose codes are unpacked and put into fields of bits.
fn recoded(dtype: DType, t: &mut Span<'_>, rows: &[&[u8]; ROWS]) {
    match dtype {
        DType::TQ1_0 => t.halves(0, 0, rows, 52),
        DType::IQ1_M => {
            let d = rows.map(recode::d_of_iq1_m);
            t.halves(0, 0, &d.each_ref().map(|d| d.as_slice()), 0);
        }
        _ => t.halves(0, 0, rows, 0),
    }
    // A byte for each of 8 blocks.
    let scales = rows.map(|row| {
        std::array::from_fn::<u8, 8, _>(|b| match dtype {
            DType::IQ1_S => recode::scale_of_iq1_s(row, b),
            DType::IQ1_M => recode::scales_of_iq1_m(row, b),
            DType::IQ2_XXS => recode::odd(row[9 + 8 * b] >> 4),
            DType::IQ2_XS => row[66 + b],
            DType::IQ2_S => row[74 + b],
            DType::IQ3_XXS => recode::odd(row[69 + 4 * b] >> 4),
            DType::IQ3_S => recode::odd(row[106 + b / 2] >> (b % 2 * 4) & 15),
            _ => 0,
        })
    });
    if dtype != DType::TQ1_0 {
        t.bytes(1, &scales, 0..8);
    }
    let codes = t.planes.len() - 1;
    let mut unpacked = quant::Codes::new();
    let mut crumbs = [[0; 64]; ROWS];
    let mut nibbles = [[0; 128]; ROWS];
    let mut bits = [[0; ROWS]; 8];
    let of_three = matches!(dtype, DType::IQ3_XXS | DType::IQ3_S);
    for (r, row) in rows.iter().enumerate() {
        let places = Places::of(dtype, row, &mut unpacked);
        if of_three {
            nibbles[r] = places.nibbles();
        } else {
            crumbs[r] = places.crumbs();
        }
        for (step, bits_of_row) in bits.iter_mut().zip(places.bits()) {
            step[r] = bits_of_row;
        }
    }
    if of_three {
        t.pieces(codes, 0, &nibbles.each_ref().map(|row| row.as_slice()), 0, 32);
        return;
    }
    let crumbs = crumbs.each_ref().map(|row| row.as_slice());
    match dtype {
        DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => {
            for four in 0..2 {
                for (j, step) in codec::BITS_OF_Q3.into_iter().enumerate() {
                    t.step(codes, 12 * four + step, bits[4 * four + j]);
                }
                t.pieces(codes, 12 * four + 1, &crumbs, 32 * four, 8);
            }
        }
        DType::IQ1_M => {
            for four in 0..2 {
                for two in 0..2 {
                    let step = 10 * four + codec::BITS_OF_IQ1[2 * two];
                    let shifts = |row: &[u8]| recode::shifts_of_iq1_m(row, 2 * four + two);
                    t.step(codes, step, rows.map(|row| u32::from_le_bytes([shifts(row); 4])));
                }
                t.pieces(codes, 10 * four + 1, &crumbs, 32 * four, 8);
            }
        }
        _ => t.pieces(codes, 0, &crumbs, 0, 16),
    }
}

/// `2^(e - 128)` as bfloat16, exact: the scale of doubled `MXFP4` codes.
fn half_power(e: u8) -> u16 {
    match e {
        0 | 1 => 0x0020 << e,
        _ => (u16::from(e) - 1) << 7,
    }
}
