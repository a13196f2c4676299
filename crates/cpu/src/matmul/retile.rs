//! From the file's rows of blocks to tiles (see [`super::codec`]). Codes are moved in pieces of 4
//! bytes; only single-bit planes and packed scales are rearranged.

use cyb_tensor::DType;

use super::codec::{self, ROWS, STEP};

/// How a format is kept: bytes of a tile of so many 32-blocks and its planes.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) tile_bytes: usize,
    planes: Vec<usize>,
}

/// Formats that are re-tiled; `None` for the others.
pub(super) fn plan(dtype: DType, blocks: usize) -> Option<Plan> {
    macro_rules! of {
        ($format:ident) => {
            Plan {
                tile_bytes: codec::$format::tile_bytes(blocks).next_multiple_of(STEP),
                planes: codec::$format::offsets(blocks),
            }
        };
    }
    Some(match dtype {
        DType::Q4_0 => of!(Q4_0),
        DType::Q4_1 => of!(Q4_1),
        DType::Q5_0 => of!(Q5_0),
        DType::Q5_1 => of!(Q5_1),
        DType::Q8_0 => of!(Q8_0),
        DType::IQ4_NL => of!(Iq4Nl),
        DType::MXFP4 => of!(Mxfp4),
        DType::Q2_K => of!(Q2K),
        DType::Q3_K => of!(Q3K),
        DType::Q4_K => of!(Q4K),
        DType::Q5_K => of!(Q5K),
        DType::Q6_K => of!(Q6K),
        DType::IQ4_XS => of!(Iq4Xs),
        DType::TQ2_0 => of!(Tq2_0),
        _ => return None,
    })
}

/// A tile being written.
struct Tile<'a> {
    bytes: &'a mut [u8],
    planes: &'a [usize],
}

impl Tile<'_> {
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
pub(super) fn tile(dtype: DType, plan: &Plan, rows: &[&[u8]; ROWS], blocks: usize, out: &mut [u8]) {
    let mut t = Tile { bytes: out, planes: &plan.planes };
    let layout = dtype.layout();
    for b in 0..blocks * 32 / layout.block {
        let at = b * layout.bytes;
        match dtype {
            DType::Q4_0 | DType::IQ4_NL => {
                t.halves(1, b, rows, at);
                t.pieces(0, 4 * b, rows, at + 2, 4);
            }
            DType::Q4_1 => {
                t.halves(1, b, rows, at);
                t.halves(2, b, rows, at + 2);
                t.pieces(0, 4 * b, rows, at + 4, 4);
            }
            DType::Q5_0 => {
                t.halves(2, b, rows, at);
                t.high_bits(1, b, rows, at + 2);
                t.pieces(0, 4 * b, rows, at + 6, 4);
            }
            DType::Q5_1 => {
                t.halves(2, b, rows, at);
                t.halves(3, b, rows, at + 2);
                t.high_bits(1, b, rows, at + 4);
                t.pieces(0, 4 * b, rows, at + 8, 4);
            }
            DType::Q8_0 => {
                t.halves(1, b, rows, at);
                t.pieces(0, 8 * b, rows, at + 2, 8);
            }
            DType::MXFP4 => {
                let scales = rows.map(|row| half_power(row[at]).to_le_bytes());
                t.halves(1, b, &scales.each_ref().map(|s| s.as_slice()), 0);
                t.pieces(0, 4 * b, rows, at + 1, 4);
            }
            DType::Q2_K => {
                for (r, row) in rows.iter().enumerate() {
                    for g in 0..16 {
                        t.byte(1, 16 * b + g, r, row[at + g]);
                    }
                }
                t.pieces(0, 16 * b, rows, at + 16, 16);
                t.halves(2, b, rows, at + 80);
                t.halves(3, b, rows, at + 82);
            }
            DType::Q3_K => {
                t.pieces(1, 8 * b, rows, at, 8);
                t.pieces(0, 16 * b, rows, at + 32, 16);
                for (r, row) in rows.iter().enumerate() {
                    let (low, high) = row[at + 96..at + 108].split_at(8);
                    for g in 0..16 {
                        let packed =
                            low[g % 8] >> (g / 8 * 4) & 15 | (high[g % 4] >> (g / 4 * 2) & 3) << 4;
                        t.byte(2, 16 * b + g, r, packed.wrapping_sub(32));
                    }
                }
                t.halves(3, b, rows, at + 108);
            }
            DType::Q4_K | DType::Q5_K => {
                let five = usize::from(dtype == DType::Q5_K);
                for (r, row) in rows.iter().enumerate() {
                    for j in 0..8 {
                        let (scale, min) = scale_and_min(&row[at + 4..at + 16], j);
                        t.byte(1 + five, 8 * b + j, r, scale);
                        t.byte(2 + five, 8 * b + j, r, min);
                    }
                }
                t.halves(3 + five, b, rows, at);
                t.halves(4 + five, b, rows, at + 2);
                if five == 1 {
                    t.pieces(1, 8 * b, rows, at + 16, 8);
                }
                t.pieces(0, 32 * b, rows, at + 16 + 32 * five, 32);
            }
            DType::Q6_K => {
                t.pieces(0, 32 * b, rows, at, 32);
                t.pieces(1, 16 * b, rows, at + 128, 16);
                for (r, row) in rows.iter().enumerate() {
                    for g in 0..16 {
                        t.byte(2, 16 * b + g, r, row[at + 192 + g]);
                    }
                }
                t.halves(3, b, rows, at + 208);
            }
            DType::IQ4_XS => {
                t.halves(2, b, rows, at);
                for (r, row) in rows.iter().enumerate() {
                    let high = u16::from_le_bytes([row[at + 2], row[at + 3]]);
                    for g in 0..8 {
                        let low = row[at + 4 + g / 2] >> (g % 2 * 4) & 15;
                        let packed = low | ((high >> (2 * g) & 3) as u8) << 4;
                        t.byte(1, 8 * b + g, r, packed.wrapping_sub(32));
                    }
                }
                t.pieces(0, 32 * b, rows, at + 8, 32);
            }
            DType::TQ2_0 => {
                t.pieces(0, 16 * b, rows, at, 16);
                t.halves(1, b, rows, at + 64);
            }
            // `plan` gave no plan.
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
