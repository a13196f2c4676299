//! `TQ1_0`: 256 ternary elements, five in a byte. `x = d * (q - 1)`
//!
//! A byte holds a base-3 number as a fraction of 256, so that the next digit is the carry when the
//! byte is multiplied by three.
//!
//! | field | bytes | holds |
//! |-------|-------|-------|
//! | `qs`  | 48    | first digits of 32 bytes: elements 0..32, and so on to 160; of 16 bytes: elements 160..176, and so on to 240 |
//! | `qh`  | 4     | four digits likewise: elements 240..256 |
//! | `d`   | 2     | scale, f16 |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    qs: [u8; 48],
    qh: [u8; 4],
    d: Half,
}

impl Unpack for Block {
    const DTYPE: DType = DType::TQ1_0;
    const GROUP: usize = 32;

    fn unpack(&self, out: &mut Codes) {
        out.scales[..8].fill(self.d.get());
        let (wide, narrow) = self.qs.split_at(32);
        digits(wide, &mut out.codes[..160]);
        digits(narrow, &mut out.codes[160..240]);
        digits(&self.qh, &mut out.codes[240..]);
    }
}

fn digits(bytes: &[u8], out: &mut [i8]) {
    let mut power = 1u8;
    for out in out.chunks_exact_mut(bytes.len()) {
        for (&b, q) in bytes.iter().zip(out) {
            let rest = b.wrapping_mul(power);
            *q = ((u16::from(rest) * 3) >> 8) as i8 - 1;
        }
        power = power.wrapping_mul(3);
    }
}
