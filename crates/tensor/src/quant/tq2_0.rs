//! `TQ2_0`: 256 ternary elements, four in a byte. `x = d * (q - 1)`
//!
//! | field | bytes | holds |
//! |-------|-------|-------|
//! | `qs`  | 64    | 2-bit `q`: 32 bytes hold 128 elements, elements 0..32 in bits 0 and 1 |
//! | `d`   | 2     | scale, f16 |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack, crumbs};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    qs: [u8; 64],
    d: Half,
}

impl Unpack for Block {
    const DTYPE: DType = DType::TQ2_0;
    const GROUP: usize = 32;

    fn unpack(&self, out: &mut Codes) {
        out.scales[..8].fill(self.d.get());
        crumbs(&self.qs, &mut out.codes, |q| q as i8 - 1);
    }
}

pub(super) fn pack(values: &[f32], block: &mut [u8]) {
    let d = values.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut packed = Block { qs: [0; 64], d: Half::new(d) };
    for (values, qs) in values.chunks_exact(128).zip(packed.qs.chunks_exact_mut(32)) {
        for (i, x) in values.iter().enumerate() {
            let q = ((x * inverse).round() as i8).clamp(-1, 1) + 1;
            qs[i % 32] |= (q as u8) << (i / 32 * 2);
        }
    }
    block.copy_from_slice(bytemuck::bytes_of(&packed));
}
