//! `Q4_0`: 32 signed 4-bit codes and one scale. `x = d * (q - 8)`
//!
//! | field | bytes | holds |
//! |-------|-------|-------|
//! | `d`   | 2     | scale, f16 |
//! | `qs`  | 16    | 4-bit `q`: elements 0..16 in the low halves, 16..32 in the high |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack, nibbles, pack_nibbles};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: Half,
    qs: [u8; 16],
}

impl Unpack for Block {
    const DTYPE: DType = DType::Q4_0;
    const GROUP: usize = 32;

    fn unpack(&self, out: &mut Codes) {
        out.scales[0] = self.d.get();
        nibbles(&self.qs, &mut out.codes[..32], |q| q as i8 - 8);
    }
}

/// The value of largest magnitude becomes code -8.
pub(super) fn pack(values: &[f32], block: &mut [u8]) {
    let (d, inverse) = signed_scale(values, 8.0);
    let mut codes = [0; 32];
    for (q, x) in codes.iter_mut().zip(values) {
        *q = ((x * inverse + 8.5) as u8).min(15);
    }
    let mut packed = Block { d: Half::new(d), qs: [0; 16] };
    pack_nibbles(&codes, &mut packed.qs);
    block.copy_from_slice(bytemuck::bytes_of(&packed));
}

/// The scale that maps the value of largest magnitude to `-steps`, and its reciprocal, or zeros.
pub(super) fn signed_scale(values: &[f32], steps: f32) -> (f32, f32) {
    let extreme = values.iter().fold(0.0f32, |m, &x| if x.abs() > m.abs() { x } else { m });
    let d = extreme / -steps;
    (d, if d == 0.0 { 0.0 } else { 1.0 / d })
}
