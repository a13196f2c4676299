//! `IQ2_XS`: 256 elements, eight at a time from a grid of 512 magnitudes, with signs that the
//! parity of seven bits completes. Groups of 16. `x = d * (scale + 1/2) / 4 * sign * grid`
//!
//! | field    | bytes | holds |
//! |----------|-------|-------|
//! | `d`      | 2     | scale, f16 |
//! | `qs`     | 64    | u16 per eight elements: 9-bit grid number, seven sign bits on top |
//! | `scales` | 8     | 4-bit scales of two groups, the first in the low half |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack};
use super::grids::{self, even_signs, signed};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: Half,
    qs: [[u8; 2]; 32],
    scales: [u8; 8],
}

impl Unpack for Block {
    const DTYPE: DType = DType::IQ2_XS;
    const GROUP: usize = 16;

    fn unpack(&self, out: &mut Codes) {
        grids::quarter_scales(self.d, &self.scales, out);
        for (&q, out) in self.qs.iter().zip(out.codes.chunks_exact_mut(8)) {
            let q = u16::from_le_bytes(q);
            signed(grids::IQ2_XS[usize::from(q & 511)], even_signs(u32::from(q >> 9)), out);
        }
    }
}
