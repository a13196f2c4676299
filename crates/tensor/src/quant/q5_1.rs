//! `Q5_1`: 32 unsigned 5-bit codes, a scale and a minimum. `x = d * q + m`
//!
//! | field | bytes | holds |
//! |-------|-------|-------|
//! | `d`   | 2     | scale, f16 |
//! | `m`   | 2     | minimum, f16 |
//! | `qh`  | 4     | bit `i`: bit 4 of element `i`'s `q` |
//! | `qs`  | 16    | low 4 bits: elements 0..16 in the low halves, 16..32 in the high |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack, pack_nibbles};
use super::q4_1::affine;
use super::q5_0::{fifth_bits, five_bits};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: Half,
    m: Half,
    qh: [u8; 4],
    qs: [u8; 16],
}

impl Unpack for Block {
    const DTYPE: DType = DType::Q5_1;
    const GROUP: usize = 32;
    const OFFSETS: bool = true;

    fn unpack(&self, out: &mut Codes) {
        out.scales[0] = self.d.get();
        out.offsets[0] = self.m.get();
        five_bits(&self.qs, self.qh, &mut out.codes[..32]);
    }
}

pub(super) fn pack(values: &[f32], block: &mut [u8]) {
    let (d, m, codes) = affine(values, 31);
    let mut packed =
        Block { d: Half::new(d), m: Half::new(m), qh: fifth_bits(&codes), qs: [0; 16] };
    pack_nibbles(&codes, &mut packed.qs);
    block.copy_from_slice(bytemuck::bytes_of(&packed));
}
