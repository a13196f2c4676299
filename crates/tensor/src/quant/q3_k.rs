//! `Q3_K`: 256 signed 3-bit codes in groups of 16. `x = d * (scale - 32) * (q - 4)`
//!
//! | field    | bytes | holds |
//! |----------|-------|-------|
//! | `hmask`  | 32    | bit `j` of byte `l`: bit 2 of element `32 * j + l`'s `q` |
//! | `qs`     | 64    | low 2 bits of `q`: 32 bytes hold 128 elements, elements 0..32 in bits 0 and 1 |
//! | `scales` | 12    | 6-bit scales: bytes 0..8 hold the low 4 bits of groups 0..8 (low halves) and 8..16 (high halves), bytes 8..12 the high 2 bits, groups 0..4 in bits 0 and 1 |
//! | `d`      | 2     | scale of the scales, f16 |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack, crumbs};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    hmask: [u8; 32],
    qs: [u8; 64],
    scales: [u8; 12],
    d: Half,
}

impl Unpack for Block {
    const DTYPE: DType = DType::Q3_K;
    const GROUP: usize = 16;

    fn unpack(&self, out: &mut Codes) {
        let d = self.d.get();
        let (low, high) = self.scales.split_at(8);
        for (i, scale) in out.scales.iter_mut().enumerate() {
            let packed = low[i % 8] >> (i / 8 * 4) & 15 | (high[i % 4] >> (i / 4 * 2) & 3) << 4;
            *scale = d * f32::from(packed as i8 - 32);
        }
        crumbs(&self.qs, &mut out.codes, |q| q as i8 - 4);
        for (j, codes) in out.codes.chunks_exact_mut(32).enumerate() {
            for (q, &mask) in codes.iter_mut().zip(&self.hmask) {
                *q += (mask >> j & 1) as i8 * 4;
            }
        }
    }
}
