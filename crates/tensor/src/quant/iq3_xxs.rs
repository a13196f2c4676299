//! `IQ3_XXS`: 256 elements, four at a time from a grid of 256 magnitudes, with signs for eight
//! that the parity of seven bits completes. Groups of 32. `x = d * (scale + 1/2) / 2 * sign * grid`
//!
//! | field   | bytes | holds |
//! |---------|-------|-------|
//! | `d`     | 2     | scale, f16 |
//! | `qs`    | 64    | grid number of four elements |
//! | `words` | 32    | u32 per group: four times seven sign bits, 4-bit scale on top |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack};
use super::grids::{self, even_signs, pair, signed};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: Half,
    qs: [[u8; 2]; 32],
    words: [[u8; 4]; 8],
}

impl Unpack for Block {
    const DTYPE: DType = DType::IQ3_XXS;
    const GROUP: usize = 32;

    fn unpack(&self, out: &mut Codes) {
        let d = self.d.get();
        let words = self.words.map(u32::from_le_bytes);
        for (scale, word) in out.scales.iter_mut().zip(words) {
            *scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        }
        for (i, (&[a, b], out)) in self.qs.iter().zip(out.codes.chunks_exact_mut(8)).enumerate() {
            let signs = even_signs(words[i / 4] >> (i % 4 * 7));
            let points = [a, b].map(|q| grids::IQ3_XXS[usize::from(q)]);
            signed(pair(points[0], points[1]), signs, out);
        }
    }
}
