//! `IQ1_M`: 256 elements, eight at a time from a grid of 2048 vectors of -1, 0 and 1, shifted by
//! an eighth. Groups of 16. `x = d * (2 * scale + 1) * (grid ± 1/8)`
//!
//! | field    | bytes | holds |
//! |----------|-------|-------|
//! | `qs`     | 32    | low 8 bits of the grid number of eight elements |
//! | `qh`     | 16    | per half byte: high 3 bits of a grid number, sign of the shift |
//! | `scales` | 8     | u16 per four groups: 3-bit scales, and on top a quarter of `d`, an f16, low bits first |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack};
use super::grids::{self, shifted};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    qs: [u8; 32],
    qh: [u8; 16],
    scales: [[u8; 2]; 4],
}

impl Unpack for Block {
    const DTYPE: DType = DType::IQ1_M;
    const GROUP: usize = 16;

    fn unpack(&self, out: &mut Codes) {
        let words = self.scales.map(u16::from_le_bytes);
        let d = words.iter().rev().fold(0, |bits, word| bits << 4 | word >> 12);
        let d = Half::from_bits(d).get();
        for (g, scale) in out.scales.iter_mut().enumerate() {
            // Codes count eighths.
            *scale = d * f32::from(2 * (words[g / 4] >> (g % 4 * 3) & 7) + 1) * 0.125;
        }
        for (i, out) in out.codes.chunks_exact_mut(8).enumerate() {
            let half = self.qh[i / 2] >> (i % 2 * 4);
            let grid = &grids::IQ1[usize::from(self.qs[i]) | usize::from(half & 7) << 8];
            shifted(grid, half & 8 != 0, out);
        }
    }
}
