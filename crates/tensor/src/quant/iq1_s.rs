//! `IQ1_S`: 256 elements, eight at a time from a grid of 2048 vectors of -1, 0 and 1, shifted by
//! an eighth. Groups of 32. `x = d * (2 * scale + 1) * (grid ± 1/8)`
//!
//! | field | bytes | holds |
//! |-------|-------|-------|
//! | `d`   | 2     | scale, f16 |
//! | `qs`  | 32    | low 8 bits of the grid number of eight elements |
//! | `qh`  | 16    | u16 per group: high 3 bits of four grid numbers, 3-bit scale, sign of the shift |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack};
use super::grids::{self, shifted};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: Half,
    qs: [u8; 32],
    qh: [[u8; 2]; 8],
}

impl Unpack for Block {
    const DTYPE: DType = DType::IQ1_S;
    const GROUP: usize = 32;

    fn unpack(&self, out: &mut Codes) {
        let d = self.d.get();
        let words = self.qh.map(u16::from_le_bytes);
        for (scale, word) in out.scales.iter_mut().zip(words) {
            // Codes count eighths.
            *scale = d * f32::from(2 * (word >> 12 & 7) + 1) * 0.125;
        }
        for (i, out) in out.codes.chunks_exact_mut(8).enumerate() {
            let word = words[i / 4];
            let high = usize::from(word >> (i % 4 * 3) & 7);
            let grid = &grids::IQ1[usize::from(self.qs[i]) | high << 8];
            shifted(grid, word & 0x8000 != 0, out);
        }
    }
}
