//! `Q8_K`: 256 signed bytes and one scale. `x = d * q`. Made for activations; the sums spare a dot
//! product with offsets from adding up the codes.
//!
//! | field   | bytes | holds |
//! |---------|-------|-------|
//! | `d`     | 4     | scale, f32 |
//! | `qs`    | 256   | `q`, signed |
//! | `bsums` | 32    | sums of `q` over 16 elements, i16 |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Unpack};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 4],
    qs: [i8; 256],
    bsums: [[u8; 2]; 16],
}

impl Unpack for Block {
    const DTYPE: DType = DType::Q8_K;
    const GROUP: usize = 32;

    fn unpack(&self, out: &mut Codes) {
        out.scales[..8].fill(f32::from_le_bytes(self.d));
        out.codes = self.qs;
    }
}
