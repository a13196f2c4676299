//! `Q5_K`: 256 5-bit codes in groups of 32. `x = d * scale * q - dmin * min`
//!
//! | field    | bytes | holds |
//! |----------|-------|-------|
//! | `d`      | 2     | scale of the scales, f16 |
//! | `dmin`   | 2     | scale of the mins, f16 |
//! | `scales` | 12    | 6-bit scales and mins, see `kscale.rs` |
//! | `qh`     | 32    | bit `j` of byte `l`: bit 4 of element `32 * j + l`'s `q` |
//! | `qs`     | 128   | low 4 bits: 32 bytes hold 64 elements, the first 32 in the low halves |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack, nibbles, pack_nibbles};
use super::{kscale, search};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: Half,
    dmin: Half,
    scales: [u8; 12],
    qh: [u8; 32],
    qs: [u8; 128],
}

impl Unpack for Block {
    const DTYPE: DType = DType::Q5_K;
    const GROUP: usize = 32;
    const OFFSETS: bool = true;

    fn unpack(&self, out: &mut Codes) {
        kscale::write(self.d, self.dmin, &self.scales, out);
        for (qs, out) in self.qs.chunks_exact(32).zip(out.codes.chunks_exact_mut(64)) {
            nibbles(qs, out, |q| q as i8);
        }
        for (j, codes) in out.codes.chunks_exact_mut(32).enumerate() {
            for (q, &high) in codes.iter_mut().zip(&self.qh) {
                *q |= (high >> j & 1) as i8 * 16;
            }
        }
    }
}

pub(super) fn pack(values: &[f32], block: &mut [u8]) {
    let fit = search::affine_block(values, 31);
    let scales = kscale::pack(&fit.scales, &fit.mins);
    let mut packed = Block { d: fit.d, dmin: fit.dmin, scales, qh: [0; 32], qs: [0; 128] };
    for (codes, qs) in fit.codes.chunks_exact(64).zip(packed.qs.chunks_exact_mut(32)) {
        pack_nibbles(codes, qs);
    }
    for (j, codes) in fit.codes.chunks_exact(32).enumerate() {
        for (high, q) in packed.qh.iter_mut().zip(codes) {
            *high |= (q >> 4 & 1) << j;
        }
    }
    block.copy_from_slice(bytemuck::bytes_of(&packed));
}
