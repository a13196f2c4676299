//! `Q2_0`: 64 2-bit codes and one scale. `x = d * (q - 1)`
//!
//! | field | bytes | holds |
//! |-------|-------|-------|
//! | `d`   | 2     | scale, f16 |
//! | `qs`  | 16    | 2-bit `q` of four elements, the first lowest |

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
    const DTYPE: DType = DType::Q2_0;
    const GROUP: usize = 32;

    fn unpack(&self, out: &mut Codes) {
        out.scales[..2].fill(self.d.get());
        for (&qs, out) in self.qs.iter().zip(out.codes.chunks_exact_mut(4)) {
            for (j, q) in out.iter_mut().enumerate() {
                *q = (qs >> (2 * j) & 3) as i8 - 1;
            }
        }
    }
}
