//! `IQ2_S`: 256 elements, eight at a time from a grid of 1024 magnitudes, with a sign bit each.
//! Groups of 16. `x = d * (scale + 1/2) / 4 * sign * grid`
//!
//! | field    | bytes | holds |
//! |----------|-------|-------|
//! | `d`      | 2     | scale, f16 |
//! | `qs`     | 32    | low 8 bits of the grid number of eight elements |
//! | `signs`  | 32    | sign bits of eight elements |
//! | `qh`     | 8     | high 2 bits of four grid numbers, the first lowest |
//! | `scales` | 8     | 4-bit scales of two groups, the first in the low half |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack};
use super::grids::{self, signed};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: Half,
    qs: [u8; 32],
    signs: [u8; 32],
    qh: [u8; 8],
    scales: [u8; 8],
}

impl Unpack for Block {
    const DTYPE: DType = DType::IQ2_S;
    const GROUP: usize = 16;

    fn unpack(&self, out: &mut Codes) {
        grids::quarter_scales(self.d, &self.scales, out);
        for (i, out) in out.codes.chunks_exact_mut(8).enumerate() {
            let high = usize::from(self.qh[i / 4] >> (i % 4 * 2) & 3);
            signed(grids::IQ2_S[usize::from(self.qs[i]) | high << 8], self.signs[i], out);
        }
    }
}
