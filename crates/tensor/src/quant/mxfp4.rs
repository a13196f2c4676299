//! `MXFP4`: 32 floats of 4 bits (E2M1) and a power of two. `x = 2^(e - 127) * e2m1[q]`
//! Source: OCP Microscaling Formats (MX) 1.0.
//!
//! | field | bytes | holds |
//! |-------|-------|-------|
//! | `e`   | 1     | exponent of the scale, bias 127 |
//! | `qs`  | 16    | 4-bit `q`: elements 0..16 in the low halves, 16..32 in the high |

use bytemuck::{Pod, Zeroable};

use super::block::{Codes, Unpack, nibbles};
use super::grids::E2M1;
use crate::DType;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    e: u8,
    qs: [u8; 16],
}

impl Unpack for Block {
    const DTYPE: DType = DType::MXFP4;
    const GROUP: usize = 32;

    fn unpack(&self, out: &mut Codes) {
        out.scales[0] = half_power(self.e);
        nibbles(&self.qs, &mut out.codes[..32], |q| E2M1[usize::from(q)]);
    }
}

/// `2^(e - 128)`, as the codes are doubled. The specification's NaN (255) is a number here, as it
/// is for the `gguf` package.
fn half_power(e: u8) -> f32 {
    match e {
        // Subnormal in f32.
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits((u32::from(e) - 1) << 23),
    }
}
