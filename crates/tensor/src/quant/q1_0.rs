//! `Q1_0`: 128 signs and one scale. `x = d * (2 * q - 1)`
//!
//! | field | bytes | holds |
//! |-------|-------|-------|
//! | `d`   | 2     | scale, f16 |
//! | `qs`  | 16    | 1-bit `q` of eight elements, the first lowest |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: Half,
    qs: [u8; 16],
}

impl Unpack for Block {
    const DTYPE: DType = DType::Q1_0;
    const GROUP: usize = 32;

    fn unpack(&self, out: &mut Codes) {
        out.scales[..4].fill(self.d.get());
        for (&qs, out) in self.qs.iter().zip(out.codes.chunks_exact_mut(8)) {
            for (j, q) in out.iter_mut().enumerate() {
                *q = 2 * (qs >> j & 1) as i8 - 1;
            }
        }
    }
}
