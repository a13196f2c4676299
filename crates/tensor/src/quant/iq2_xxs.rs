//! `IQ2_XXS`: 256 elements, eight at a time from a grid of 256 magnitudes, with signs that the
//! parity of seven bits completes. Groups of 32. `x = d * (scale + 1/2) / 4 * sign * grid`
//!
//! | field | bytes | holds |
//! |-------|-------|-------|
//! | `d`   | 2     | scale, f16 |
//! | `qs`  | 64    | per group four grid numbers, then a u32: four times seven sign bits, 4-bit scale on top |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Half, Unpack};
use super::grids::{self, even_signs, signed};
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: Half,
    qs: [[[u8; 4]; 2]; 8],
}

impl Unpack for Block {
    const DTYPE: DType = DType::IQ2_XXS;
    const GROUP: usize = 32;

    fn unpack(&self, out: &mut Codes) {
        let d = self.d.get();
        for (g, ([grid, word], out_codes)) in
            self.qs.iter().zip(out.codes.chunks_exact_mut(32)).enumerate()
        {
            let word = u32::from_le_bytes(*word);
            out.scales[g] = d * (0.5 + (word >> 28) as f32) * 0.25;
            for (k, (&q, out)) in grid.iter().zip(out_codes.chunks_exact_mut(8)).enumerate() {
                signed(grids::IQ2_XXS[usize::from(q)], even_signs(word >> (7 * k)), out);
            }
        }
    }
}
