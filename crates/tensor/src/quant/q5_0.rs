//! `Q5_0`: 32 signed 5-bit codes and one scale. `x = d * (q - 16)`
//!
//! | field | bytes | holds |
//! |-------|-------|-------|
//! | `d`   | 2     | scale, f16 |
//! | `qh`  | 4     | bit `i`: bit 4 of element `i`'s `q` |
//! | `qs`  | 16    | low 4 bits: elements 0..16 in the low halves, 16..32 in the high |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack, nibbles, pack_nibbles};
use super::q4_0::signed_scale;
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: Half,
    qh: [u8; 4],
    qs: [u8; 16],
}

impl Unpack for Block {
    const DTYPE: DType = DType::Q5_0;
    const GROUP: usize = 32;

    fn unpack(&self, out: &mut Codes) {
        out.scales[0] = self.d.get();
        five_bits(&self.qs, self.qh, &mut out.codes[..32]);
        out.codes[..32].iter_mut().for_each(|q| *q -= 16);
    }
}

pub(super) fn pack(values: &[f32], block: &mut [u8]) {
    let (d, inverse) = signed_scale(values, 16.0);
    let mut codes = [0; 32];
    for (q, x) in codes.iter_mut().zip(values) {
        *q = ((x * inverse + 16.5) as u8).min(31);
    }
    let mut packed = Block { d: Half::new(d), qh: fifth_bits(&codes), qs: [0; 16] };
    pack_nibbles(&codes, &mut packed.qs);
    block.copy_from_slice(bytemuck::bytes_of(&packed));
}

/// Codes 0..32 from their low four bits and their fifth.
pub(super) fn five_bits(qs: &[u8; 16], qh: [u8; 4], out: &mut [i8]) {
    nibbles(qs, out, |q| q as i8);
    let high = u32::from_le_bytes(qh);
    for (i, q) in out.iter_mut().enumerate() {
        *q |= ((high >> i & 1) << 4) as i8;
    }
}

pub(super) fn fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    let bits = codes.iter().enumerate().map(|(i, &q)| u32::from(q >> 4 & 1) << i);
    bits.fold(0, |all, bit| all | bit).to_le_bytes()
}
