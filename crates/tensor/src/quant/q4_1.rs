//! `Q4_1`: 32 unsigned 4-bit codes, a scale and a minimum. `x = d * q + m`
//!
//! | field | bytes | holds |
//! |-------|-------|-------|
//! | `d`   | 2     | scale, f16 |
//! | `m`   | 2     | minimum, f16 |
//! | `qs`  | 16    | 4-bit `q`: elements 0..16 in the low halves, 16..32 in the high |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack, nibbles, pack_nibbles};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: Half,
    m: Half,
    qs: [u8; 16],
}

impl Unpack for Block {
    const DTYPE: DType = DType::Q4_1;
    const GROUP: usize = 32;
    const OFFSETS: bool = true;

    fn unpack(&self, out: &mut Codes) {
        out.scales[0] = self.d.get();
        out.offsets[0] = self.m.get();
        nibbles(&self.qs, &mut out.codes[..32], |q| q as i8);
    }
}

pub(super) fn pack(values: &[f32], block: &mut [u8]) {
    let (d, m, codes) = affine(values, 15);
    let mut packed = Block { d: Half::new(d), m: Half::new(m), qs: [0; 16] };
    pack_nibbles(&codes, &mut packed.qs);
    block.copy_from_slice(bytemuck::bytes_of(&packed));
}

/// Scale, minimum and codes that spread `0..=top` over the range of the values.
pub(super) fn affine(values: &[f32], top: u8) -> (f32, f32, [u8; 32]) {
    let min = values.iter().copied().fold(f32::INFINITY, f32::min);
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (max - min) / f32::from(top);
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut codes = [0; 32];
    for (q, x) in codes.iter_mut().zip(values) {
        *q = (((x - min) * inverse + 0.5) as u8).min(top);
    }
    (d, min, codes)
}
