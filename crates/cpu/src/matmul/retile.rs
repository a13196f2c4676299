//! From the file's rows of blocks to tiles (see [`super::codec`]). Codes are moved in pieces of 4
//! bytes; only bits apart from their codes and packed scales are rearranged.

use cyb_tensor::DType;

use super::codec::{self, Layout, ROWS, STEP};

/// How tiles of a format are laid out; `None` for formats that are not re-tiled.
pub(super) fn layout(dtype: DType) -> Option<Layout> {
    Some(match dtype {
        DType::Q4_0 => codec::Q4_0::LAYOUT,
        DType::Q4_1 => codec::Q4_1::LAYOUT,
        DType::Q5_0 => codec::Q5_0::LAYOUT,
        DType::Q5_1 => codec::Q5_1::LAYOUT,
        DType::Q8_0 => codec::Q8_0::LAYOUT,
        DType::IQ4_NL => codec::Iq4Nl::LAYOUT,
        DType::MXFP4 => codec::Mxfp4::LAYOUT,
        DType::Q2_K => codec::Q2K::LAYOUT,
        DType::Q3_K => codec::Q3K::LAYOUT,
        DType::Q4_K => codec::Q4K::LAYOUT,
        DType::Q5_K => codec::Q5K::LAYOUT,
        DType::Q6_K => codec::Q6K::LAYOUT,
        DType::IQ4_XS => codec::Iq4Xs::LAYOUT,
        DType::TQ2_0 => codec::Tq2_0::LAYOUT,
        _ => return None,
    })
}

/// A span being written.
struct Span<'a> {
    bytes: &'a mut [u8],
    planes: &'a [usize],
}

impl Span<'_> {
    /// The native blocks `from..` of 4-byte pieces of every row become steps `step..` of a plane.
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
        let rows = rows.map(|row| &row[from..from + 4 * count]);
        for (i, out) in out.as_chunks_mut::<STEP>().0.iter_mut().enumerate() {
            for (r, row) in rows.iter().enumerate() {
                out[4 * r..4 * r + 4].copy_from_slice(&row[4 * i..4 * i + 4]);
            }
        }
    }

    /// Two bytes of every row: element `index` of a plane of half-precision floats.
    fn halves(&mut self, plane: usize, index: usize, rows: &[&[u8]; ROWS], from: usize) {
        let start = self.planes[plane] + index * 2 * ROWS;
        for (r, row) in rows.iter().enumerate() {
            self.bytes[start + 2 * r..start + 2 * r + 2].copy_from_slice(&row[from..from + 2]);
        }
    }

    /// One byte of a row: element `index` of a plane of bytes.
    fn byte(&mut self, plane: usize, index: usize, row: usize, value: u8) {
        self.bytes[self.planes[plane] + index * ROWS + row] = value;
    }

    /// Four bytes of every row: step `step` of a plane.
    fn step(&mut self, plane: usize, step: usize, of_row: impl Fn(usize) -> [u8; 4]) {
        let start = self.planes[plane] + step * STEP;
        for (r, out) in self.bytes[start..start + STEP].as_chunks_mut().0.iter_mut().enumerate() {
            *out = of_row(r);
        }
    }

    /// The 32 high bits of a block become a step: bit `4g + j` of a row to bit `g` of byte `j`.
    fn high_bits(&mut self, plane: usize, block: usize, rows: &[&[u8]; ROWS], from: usize) {
        let start = self.planes[plane] + block * STEP;
        for (r, row) in rows.iter().enumerate() {
            let bits = u32::from_le_bytes([row[from], row[from + 1], row[from + 2], row[from + 3]]);
            for j in 0..4 {
                self.bytes[start + 4 * r + j] = every_fourth_bit(bits >> j);
            }
        }
    }
}

/// Fields of `WIDTH` bits from bit `from` of every byte of `pieces`, side by side, the first lowest.
fn gathered<const WIDTH: usize>(pieces: &[u8], from: usize) -> [u8; 4] {
    let mask = u32::from_le_bytes([((1u16 << WIDTH) - 1) as u8; 4]);
    let mut out = 0;
    for (g, piece) in pieces.as_chunks::<4>().0.iter().enumerate() {
        out |= (u32::from_le_bytes(*piece) >> from & mask) << (g * WIDTH);
    }
    out.to_le_bytes()
}

/// Bits 0, 4, 8, … 28 side by side.
fn every_fourth_bit(bits: u32) -> u8 {
    let v = bits & 0x1111_1111;
    let v = (v | v >> 3) & 0x0303_0303;
    let v = (v | v >> 6) & 0x000f_000f;
    (v | v >> 12) as u8
}

/// The 6-bit scale and minimum of block `j` of `Q4_K` and `Q5_K`.
fn scale_and_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | (packed[j - 4] >> 6) << 4, packed[j + 4] >> 4 | (packed[j] >> 6) << 4)
    }
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
                t.high_bits(1, b, rows, at + 2);
                t.pieces(2, 4 * b, rows, at + 6, 4);
            }
            DType::Q5_1 => {
                t.halves(0, b, rows, at);
                t.halves(1, b, rows, at + 2);
                t.high_bits(2, b, rows, at + 4);
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
                for (r, row) in rows.iter().enumerate() {
                    for g in 0..16 {
                        t.byte(2, g, r, row[at + g]);
                    }
                }
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
                for four in 0..2 {
                    let plane = 12 * four;
                    for (j, step) in codec::BITS_OF_Q3.into_iter().enumerate() {
                        let bits = |r: usize| &rows[r][at..at + 32];
                        t.step(2, plane + step, |r| gathered::<1>(bits(r), 4 * four + j));
                    }
                    t.pieces(2, plane + 1, rows, at + 32 + 32 * four, 8);
                }
            }
            DType::Q4_K | DType::Q5_K => {
                t.halves(0, 0, rows, at);
                t.halves(1, 0, rows, at + 2);
                for (r, row) in rows.iter().enumerate() {
                    for j in 0..8 {
                        let (scale, min) = scale_and_min(&row[at + 4..at + 16], j);
                        t.byte(2, j, r, scale);
                        t.byte(3, j, r, min);
                    }
                }
                if dtype == DType::Q5_K {
                    for two in 0..4 {
                        let plane = 10 * two;
                        for j in 0..2 {
                            let bits = |r: usize| &rows[r][at + 16..at + 48];
                            t.step(4, plane + j, |r| gathered::<1>(bits(r), 2 * two + j));
                        }
                        t.pieces(4, plane + 2, rows, at + 48 + 32 * two, 8);
                    }
                } else {
                    t.pieces(4, 0, rows, at + 16, 32);
                }
            }
            DType::Q6_K => {
                t.halves(0, 0, rows, at + 208);
                for (r, row) in rows.iter().enumerate() {
                    for g in 0..16 {
                        t.byte(1, g, r, row[at + 192 + g]);
                    }
                }
                for four in 0..2 {
                    let plane = 24 * four;
                    for (j, first) in codec::BITS_OF_Q6.into_iter().enumerate() {
                        for half in 0..2 {
                            let from = at + 128 + 32 * four + 16 * half;
                            let bits = |r: usize| &rows[r][from..from + 16];
                            t.step(2, plane + first + half, |r| gathered::<2>(bits(r), 2 * j));
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
            // There is no layout for the others.
            _ => {}
        }
    }
}

/// `2^(e - 128)` as bfloat16, exact: the scale of doubled `MXFP4` codes.
fn half_power(e: u8) -> u16 {
    match e {
        0 | 1 => 0x0020 << e,
        _ => (u16::from(e) - 1) << 7,
    }
}
