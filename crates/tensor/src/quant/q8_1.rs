//! `Q8_1`: 32 signed bytes, a scale and the sum. `x = d * q`. Made for activations; the sum spares
//! a dot product with offsets from adding up the codes.
//!
//! | field | bytes | holds |
//! |-------|-------|-------|
//! | `d`   | 2     | scale, f16 |
//! | `s`   | 2     | `d` times the sum of `q`, f16 |
//! | `qs`  | 32    | `q`, signed |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: Half,
    s: Half,
    qs: [i8; 32],
}

impl Unpack for Block {
    const DTYPE: DType = DType::Q8_1;
    const GROUP: usize = 32;

    fn unpack(&self, out: &mut Codes) {
        out.scales[0] = self.d.get();
        out.codes[..32].copy_from_slice(&self.qs);
    }
}
