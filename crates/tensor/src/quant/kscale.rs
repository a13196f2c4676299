//! What the K formats share: eight 6-bit scales and eight 6-bit minimums in twelve bytes.
//!
//! With `a..d` the first four and `e..h` the last four, scales in small letters and minimums in
//! capitals, the bits of the bytes from high to low are:
//!
//! | bytes | bits       |
//! |-------|------------|
//! | 0..4  | `eeaaaaaa` (top bits of `e`, all of `a`) |
//! | 4..8  | `EEAAAAAA` |
//! | 8..12 | `EEEEeeee` (low bits of `E` and `e`) |

use super::block::{Codes, Half};

/// Sets the eight scales `d * scale` and offsets `-dmin * min` of a block.
pub(super) fn write(d: Half, dmin: Half, packed: &[u8; 12], out: &mut Codes) {
    let (d, dmin) = (d.get(), dmin.get());
    let (scales, mins) = unpack(packed);
    for i in 0..8 {
        out.scales[i] = d * f32::from(scales[i]);
        out.offsets[i] = -(dmin * f32::from(mins[i]));
    }
}

/// The scales and minimums, each 0..64.
pub(super) fn unpack(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for i in 0..4 {
        let (s, m, low) = (packed[i], packed[4 + i], packed[8 + i]);
        scales[i] = s & 63;
        mins[i] = m & 63;
        scales[4 + i] = low & 15 | s >> 6 << 4;
        mins[4 + i] = low >> 4 | m >> 6 << 4;
    }
    (scales, mins)
}

/// The inverse of [`unpack`].
pub(super) fn pack(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for i in 0..4 {
        packed[i] = scales[i] | scales[4 + i] >> 4 << 6;
        packed[4 + i] = mins[i] | mins[4 + i] >> 4 << 6;
        packed[8 + i] = scales[4 + i] & 15 | mins[4 + i] << 4;
    }
    packed
}
