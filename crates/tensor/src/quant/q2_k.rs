//! `Q2_K`: 256 2-bit codes in groups of 16. `x = d * scale * q - dmin * min`
//!
//! | field    | bytes | holds |
//! |----------|-------|-------|
//! | `scales` | 16    | a group's scale in the low half, its min in the high |
//! | `qs`     | 64    | 2-bit `q`: 32 bytes hold 128 elements, elements 0..32 in bits 0 and 1 |
//! | `d`      | 2     | scale of the scales, f16 |
//! | `dmin`   | 2     | scale of the mins, f16 |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack, crumbs};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    scales: [u8; 16],
    qs: [u8; 64],
    d: Half,
    dmin: Half,
}

impl Unpack for Block {
    const DTYPE: DType = DType::Q2_K;
    const GROUP: usize = 16;
    const OFFSETS: bool = true;

    fn unpack(&self, out: &mut Codes) {
        let (d, dmin) = (self.d.get(), self.dmin.get());
        for (i, &packed) in self.scales.iter().enumerate() {
            out.scales[i] = d * f32::from(packed & 15);
            out.offsets[i] = -(dmin * f32::from(packed >> 4));
        }
        crumbs(&self.qs, &mut out.codes, |q| q as i8);
    }
}
