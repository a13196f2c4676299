//! `Q6_K`: 256 signed 6-bit codes in groups of 16. `x = d * scale * (q - 32)`
//!
//! | field    | bytes | holds |
//! |----------|-------|-------|
//! | `ql`     | 128   | low 4 bits of `q`: 64 bytes hold 128 elements, the first 64 in the low halves |
//! | `qh`     | 64    | high 2 bits: 32 bytes hold 128 elements, elements 0..32 in bits 0 and 1 |
//! | `scales` | 16    | scale of a group, signed |
//! | `d`      | 2     | scale of the scales, f16 |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack, crumbs, nibbles, pack_nibbles};
use super::search;
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    ql: [u8; 128],
    qh: [u8; 64],
    scales: [i8; 16],
    d: Half,
}

impl Unpack for Block {
    const DTYPE: DType = DType::Q6_K;
    const GROUP: usize = 16;

    fn unpack(&self, out: &mut Codes) {
        let d = self.d.get();
        for (out, &scale) in out.scales.iter_mut().zip(&self.scales) {
            *out = d * f32::from(scale);
        }
        let mut low = [0; 256];
        for (ql, low) in self.ql.chunks_exact(64).zip(low.chunks_exact_mut(128)) {
            nibbles(ql, low, |q| q as i8);
        }
        crumbs(&self.qh, &mut out.codes, |q| (q << 4) as i8 - 32);
        for (q, low) in out.codes.iter_mut().zip(low) {
            *q += low;
        }
    }
}

pub(super) fn pack(values: &[f32], block: &mut [u8]) {
    let fit = search::signed_block(values);
    let codes = fit.codes.map(|q| (q + 32) as u8);
    let mut packed = Block { ql: [0; 128], qh: [0; 64], scales: fit.scales, d: fit.d };
    for (codes, ql) in codes.chunks_exact(128).zip(packed.ql.chunks_exact_mut(64)) {
        pack_nibbles(codes, ql);
    }
    for (codes, qh) in codes.chunks_exact(128).zip(packed.qh.chunks_exact_mut(32)) {
        for (i, q) in codes.iter().enumerate() {
            qh[i % 32] |= q >> 4 << (i / 32 * 2);
        }
    }
    block.copy_from_slice(bytemuck::bytes_of(&packed));
}
