//! What a format's file implements, the row it makes in the table, and small helpers to take
//! packed bits apart.

use bytemuck::{Pod, Zeroable};

use crate::DType;

/// Elements of the largest block.
const MAX_BLOCK: usize = 256;
/// Elements of the smallest group.
const MIN_GROUP: usize = 16;

/// One block as integers: element `i` is `scales[i / group] * codes[i] + offsets[i / group]`,
/// where `group` is [`group_size`](super::group_size). Entries past the block's length are
/// leftovers.
#[derive(Clone, Debug)]
pub struct Codes {
    pub codes: [i8; MAX_BLOCK],
    pub scales: [f32; MAX_BLOCK / MIN_GROUP],
    pub offsets: [f32; MAX_BLOCK / MIN_GROUP],
}

impl Codes {
    pub fn new() -> Codes {
        Codes {
            codes: [0; MAX_BLOCK],
            scales: [0.0; MAX_BLOCK / MIN_GROUP],
            offsets: [0.0; MAX_BLOCK / MIN_GROUP],
        }
    }
}

impl Default for Codes {
    fn default() -> Codes {
        Codes::new()
    }
}

/// The bytes of one block of a format, of alignment 1.
pub(super) trait Unpack: Pod {
    const DTYPE: DType;
    /// Elements that share a scale.
    const GROUP: usize;
    /// Whether `unpack` sets offsets. Formats without them must not add `0.0`, which would turn
    /// `-0.0` into `0.0`.
    const OFFSETS: bool = false;

    /// Sets the codes and scales of the block, and the offsets if there are any.
    fn unpack(&self, out: &mut Codes);
}

/// Encodes exactly one block of finite values.
pub(super) type Pack = fn(&[f32], &mut [u8]);

/// A row of the table of formats.
#[derive(Debug)]
pub(super) struct Format {
    pub(super) dtype: DType,
    pub(super) group: usize,
    pub(super) offsets: bool,
    /// Decodes whole blocks; the lengths agree.
    pub(super) decode: fn(&[u8], &mut [f32]),
    /// Unpacks exactly one block.
    pub(super) codes: fn(&[u8], &mut Codes),
    pub(super) pack: Option<Pack>,
}

impl Format {
    pub(super) const fn of<B: Unpack>() -> Format {
        let layout = B::DTYPE.layout();
        assert!(size_of::<B>() == layout.bytes && align_of::<B>() == 1);
        assert!(layout.block <= MAX_BLOCK && layout.block.is_multiple_of(B::GROUP));
        assert!(B::GROUP >= MIN_GROUP);
        Format {
            dtype: B::DTYPE,
            group: B::GROUP,
            offsets: B::OFFSETS,
            decode: decode::<B>,
            codes: codes::<B>,
            pack: None,
        }
    }

    pub(super) const fn encoded_by(mut self, pack: Pack) -> Format {
        self.pack = Some(pack);
        self
    }
}

fn decode<B: Unpack>(bytes: &[u8], out: &mut [f32]) {
    let mut c = Codes::new();
    let blocks = bytemuck::cast_slice::<u8, B>(bytes);
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(B::DTYPE.layout().block)) {
        block.unpack(&mut c);
        let groups = out.chunks_exact_mut(B::GROUP).zip(c.codes.chunks_exact(B::GROUP));
        for ((out, codes), (&scale, &offset)) in groups.zip(c.scales.iter().zip(&c.offsets)) {
            for (x, &code) in out.iter_mut().zip(codes) {
                let product = scale * f32::from(code);
                *x = if B::OFFSETS { product + offset } else { product };
            }
        }
    }
}

fn codes<B: Unpack>(block: &[u8], out: &mut Codes) {
    bytemuck::from_bytes::<B>(block).unpack(out);
    if !B::OFFSETS {
        out.offsets = [0.0; MAX_BLOCK / MIN_GROUP];
    }
}

/// Whether the scales that `pack` gave `values` are finite.
pub(super) fn scales_fit(format: &Format, values: &[f32], block: &[u8]) -> bool {
    // Scales and offsets are at most the largest value, so only values past f16 can overflow.
    if values.iter().all(|v| v.abs() < 65504.0) {
        return true;
    }
    let mut c = Codes::new();
    (format.codes)(block, &mut c);
    let groups = values.len() / format.group;
    c.scales[..groups].iter().chain(&c.offsets[..groups]).all(|s| s.is_finite())
}

/// An `f16` in little-endian bytes.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct Half([u8; 2]);

impl Half {
    /// Rounds to nearest even.
    pub(super) fn new(x: f32) -> Half {
        Half(half::f16::from_f32(x).to_le_bytes())
    }

    pub(super) fn from_bits(bits: u16) -> Half {
        Half(bits.to_le_bytes())
    }

    pub(super) fn get(self) -> f32 {
        half::f16::from_le_bytes(self.0).to_f32()
    }
}

/// Four-bit fields: the low halves of `bytes` are the first elements, the high halves the next.
#[inline(always)]
pub(super) fn nibbles(bytes: &[u8], out: &mut [i8], code: impl Fn(u8) -> i8) {
    let (lo, hi) = out.split_at_mut(bytes.len());
    for ((&b, lo), hi) in bytes.iter().zip(lo).zip(hi) {
        *lo = code(b & 15);
        *hi = code(b >> 4);
    }
}

/// The inverse of [`nibbles`]: element `i` and element `n + i` share byte `i` of `n`.
pub(super) fn pack_nibbles(codes: &[u8], out: &mut [u8]) {
    let (lo, hi) = codes.split_at(out.len());
    for ((b, lo), hi) in out.iter_mut().zip(lo).zip(hi) {
        *b = lo & 15 | hi << 4;
    }
}

/// Two-bit fields, 32 bytes to 128 elements: bits 0 and 1 of the bytes are the first 32 elements.
#[inline(always)]
pub(super) fn crumbs(bytes: &[u8], out: &mut [i8], code: impl Fn(u8) -> i8) {
    for (bytes, out) in bytes.chunks_exact(32).zip(out.chunks_exact_mut(128)) {
        for (shift, out) in (0..8).step_by(2).zip(out.chunks_exact_mut(32)) {
            for (&b, x) in bytes.iter().zip(out) {
                *x = code(b >> shift & 3);
            }
        }
    }
}
