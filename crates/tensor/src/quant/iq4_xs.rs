//! `IQ4_XS`: 256 elements from sixteen unevenly spaced levels, in groups of 32.
//! `x = d * (scale - 32) * level[q]`
//!
//! | field      | bytes | holds |
//! |------------|-------|-------|
//! | `d`        | 2     | scale of the scales, f16 |
//! | `scales_h` | 2     | high 2 bits of the scales, group 0 lowest |
//! | `scales_l` | 4     | low 4 bits of two scales, the first in the low half |
//! | `qs`       | 128   | 4-bit `q`, 16 bytes a group: the first 16 in the low halves |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack, nibbles};
use super::grids::IQ4;
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: Half,
    scales_h: [u8; 2],
    scales_l: [u8; 4],
    qs: [[u8; 16]; 8],
}

impl Unpack for Block {
    const DTYPE: DType = DType::IQ4_XS;
    const GROUP: usize = 32;

    fn unpack(&self, out: &mut Codes) {
        let d = self.d.get();
        let high = u16::from_le_bytes(self.scales_h);
        for (g, scale) in out.scales[..8].iter_mut().enumerate() {
            let low = self.scales_l[g / 2] >> (g % 2 * 4) & 15;
            let high = (high >> (2 * g) & 3) as u8;
            *scale = d * f32::from((low | high << 4) as i8 - 32);
        }
        for (qs, out) in self.qs.iter().zip(out.codes.chunks_exact_mut(32)) {
            nibbles(qs, out, |q| IQ4[usize::from(q)]);
        }
    }
}
