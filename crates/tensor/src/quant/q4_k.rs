//! `Q4_K`: 256 4-bit codes in groups of 32. `x = d * scale * q - dmin * min`
//!
//! | field    | bytes | holds |
//! |----------|-------|-------|
//! | `d`      | 2     | scale of the scales, f16 |
//! | `dmin`   | 2     | scale of the mins, f16 |
//! | `scales` | 12    | 6-bit scales and mins, see `kscale.rs` |
//! | `qs`     | 128   | 4-bit `q`: 32 bytes hold 64 elements, the first 32 in the low halves |

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
    qs: [u8; 128],
}

impl Unpack for Block {
    const DTYPE: DType = DType::Q4_K;
    const GROUP: usize = 32;
    const OFFSETS: bool = true;

    fn unpack(&self, out: &mut Codes) {
        kscale::write(self.d, self.dmin, &self.scales, out);
        for (qs, out) in self.qs.chunks_exact(32).zip(out.codes.chunks_exact_mut(64)) {
            nibbles(qs, out, |q| q as i8);
        }
    }
}

pub(super) fn pack(values: &[f32], block: &mut [u8]) {
    let fit = search::affine_block(values, 15);
    let scales = kscale::pack(&fit.scales, &fit.mins);
    let mut packed = Block { d: fit.d, dmin: fit.dmin, scales, qs: [0; 128] };
    for (codes, qs) in fit.codes.chunks_exact(64).zip(packed.qs.chunks_exact_mut(32)) {
        pack_nibbles(codes, qs);
    }
    block.copy_from_slice(bytemuck::bytes_of(&packed));
}
