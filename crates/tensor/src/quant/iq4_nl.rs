//! `IQ4_NL`: 32 elements from sixteen unevenly spaced levels. `x = d * level[q]`
//!
//! | field | bytes | holds |
//! |-------|-------|-------|
//! | `d`   | 2     | scale, f16 |
//! | `qs`  | 16    | 4-bit `q`: elements 0..16 in the low halves, 16..32 in the high |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack, nibbles};
use super::grids::IQ4;
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: Half,
    qs: [u8; 16],
}

impl Unpack for Block {
    const DTYPE: DType = DType::IQ4_NL;
    const GROUP: usize = 32;

    fn unpack(&self, out: &mut Codes) {
        out.scales[0] = self.d.get();
        nibbles(&self.qs, &mut out.codes[..32], |q| IQ4[usize::from(q)]);
    }
}
