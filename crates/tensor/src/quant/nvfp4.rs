//! `NVFP4`: 64 floats of 4 bits (E2M1) in groups of 16 with 8-bit float scales.
//! `x = d * e2m1[q]`
//!
//! | field | bytes | holds |
//! |-------|-------|-------|
//! | `d`   | 4     | scale of a group, E4M3 whose sign bit is ignored |
//! | `qs`  | 32    | 4-bit `q`, 8 bytes a group: the first 8 in the low halves |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Unpack, nibbles};
use super::grids::E2M1;
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 4],
    qs: [[u8; 8]; 4],
}

impl Unpack for Block {
    const DTYPE: DType = DType::NVFP4;
    const GROUP: usize = 16;

    fn unpack(&self, out: &mut Codes) {
        for (scale, &d) in out.scales.iter_mut().zip(&self.d) {
            *scale = half_scale(d);
        }
        for (qs, out) in self.qs.iter().zip(out.codes.chunks_exact_mut(16)) {
            nibbles(qs, out, |q| E2M1[usize::from(q)]);
        }
    }
}

/// Half the scale, as the codes are doubled. The NaN `0x7f` counts as zero.
fn half_scale(d: u8) -> f32 {
    if d == 0x7f {
        return 0.0;
    }
    let (exponent, mantissa) = (u32::from(d >> 3 & 15), u32::from(d & 7));
    match exponent {
        0 => mantissa as f32 * f32::from_bits((127 - 10) << 23),
        _ => f32::from_bits((exponent + 127 - 8) << 23 | mantissa << 20),
    }
}
