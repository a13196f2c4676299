//! `IQ3_S`: 256 elements, four at a time from a grid of 512 magnitudes, with a sign bit each.
//! Groups of 32. `x = d * (2 * scale + 1) * sign * grid`
//!
//! | field    | bytes | holds |
//! |----------|-------|-------|
//! | `d`      | 2     | scale, f16 |
//! | `qs`     | 64    | low 8 bits of the grid number of four elements |
//! | `qh`     | 8     | bit 8 of eight grid numbers, the first lowest |
//! | `signs`  | 32    | sign bits of eight elements |
//! | `scales` | 4     | 4-bit scales of two groups, the first in the low half |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack};
use super::grids::{self, pair, signed};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: Half,
    qs: [u8; 64],
    qh: [u8; 8],
    signs: [u8; 32],
    scales: [u8; 4],
}

impl Unpack for Block {
    const DTYPE: DType = DType::IQ3_S;
    const GROUP: usize = 32;

    fn unpack(&self, out: &mut Codes) {
        let d = self.d.get();
        for (g, scale) in out.scales[..8].iter_mut().enumerate() {
            *scale = d * f32::from(1 + 2 * (self.scales[g / 2] >> (g % 2 * 4) & 15));
        }
        let qs = self.qs.as_chunks::<2>().0.iter().zip(&self.signs);
        for (i, ((&[a, b], &signs), out)) in qs.zip(out.codes.chunks_exact_mut(8)).enumerate() {
            let high = usize::from(self.qh[i / 4]) >> (i % 4 * 2);
            let first = grids::IQ3_S[usize::from(a) | (high & 1) << 8];
            let second = grids::IQ3_S[usize::from(b) | (high >> 1 & 1) << 8];
            signed(pair(first, second), signs, out);
        }
    }
}
