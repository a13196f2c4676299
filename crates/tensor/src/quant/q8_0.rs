//! `Q8_0`: 32 signed bytes and one scale. `x = d * q`
//!
//! | field | bytes | holds |
//! |-------|-------|-------|
//! | `d`   | 2     | scale, f16 |
//! | `qs`  | 32    | `q`, signed |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: Half,
    qs: [i8; 32],
}

impl Unpack for Block {
    const DTYPE: DType = DType::Q8_0;
    const GROUP: usize = 32;

    fn unpack(&self, out: &mut Codes) {
        out.scales[0] = self.d.get();
        out.codes[..32].copy_from_slice(&self.qs);
    }
}

pub(super) fn pack(values: &[f32], block: &mut [u8]) {
    let largest = values.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let d = largest / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut packed = Block { d: Half::new(d), qs: [0; 32] };
    for (q, x) in packed.qs.iter_mut().zip(values) {
        *q = (x * inverse).round() as i8;
    }
    block.copy_from_slice(bytemuck::bytes_of(&packed));
}
