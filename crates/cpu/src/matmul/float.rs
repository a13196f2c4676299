//! Products with weights in floating point: tiles of 16 rows, `k` by `k`, one fused multiply-add
//! for each in the order of `k`, whatever the register tile.

use std::ops::Range;

use cyb_simd::{Isa, LANES};

use super::codec::ROWS;
use super::output::Sink;

/// How weights are stored.
pub(super) trait Element: Copy {
    const BYTES: usize;
    /// # Safety
    /// 16 elements are readable at `p`.
    unsafe fn load<S: Isa>(s: S, p: *const u8) -> S::F;
}

#[derive(Clone, Copy)]
pub(super) struct F32;
#[derive(Clone, Copy)]
pub(super) struct F16;
#[derive(Clone, Copy)]
pub(super) struct Bf16;

impl Element for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Isa>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { s.load(p.cast()) }
    }
}

impl Element for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Isa>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { s.load_f16(p.cast()) }
    }
}

impl Element for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Isa>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { s.load_bf16(p.cast()) }
    }
}

/// Activation rows of a register tile.
const COLUMNS: usize = 6;
/// Weight tiles of a register tile: for one row several chains of additions hide each other's
/// latency, and AVX-512 has registers for four tiles of six.
const TILES: usize = 4;

/// Rows of floats, row `i` at `i * stride`.
#[derive(Clone, Copy, Debug)]
pub struct FloatRows<'a> {
    pub values: &'a [f32],
    pub stride: usize,
    pub rows: usize,
}

/// # Safety
/// `R` tiles of `k` at `w`, `tile_bytes` apart, and `T` rows of `k` from `x` are readable.
#[inline(always)]
unsafe fn product<S: Isa, E: Element, const R: usize, const T: usize>(
    s: S,
    w: *const u8,
    tile_bytes: usize,
    x: *const f32,
    stride: usize,
    k: usize,
) -> [[S::F; R]; T] {
    let mut acc = [[s.splat(0.0); R]; T];
    for i in 0..k {
        // SAFETY: the caller's contract.
        unsafe {
            let mut weights = [s.splat(0.0); R];
            for (r, v) in weights.iter_mut().enumerate() {
                *v = E::load(s, w.add(r * tile_bytes + i * ROWS * E::BYTES));
            }
            for (t, acc) in acc.iter_mut().enumerate() {
                let v = s.splat(*x.add(t * stride + i));
                for (acc, w) in acc.iter_mut().zip(&weights) {
                    *acc = s.fma(*w, v, *acc);
                }
            }
        }
    }
    acc
}

/// Neighboring tiles of weights.
pub(super) struct Tiles {
    pub(super) bytes: *const u8,
    pub(super) tile_bytes: usize,
    /// Their place in the matrix.
    pub(super) first: usize,
    pub(super) count: usize,
}

/// Puts the products of `w` with rows `rows` of `x` into `sink`.
///
/// # Safety
/// The tiles hold `k` values a row, and so do the rows of `x`; the output is the caller's.
#[inline(always)]
pub(super) unsafe fn tiles<S: Isa, E: Element>(
    s: S,
    w: &Tiles,
    x: &FloatRows<'_>,
    rows: Range<usize>,
    k: usize,
    sink: &Sink<'_>,
) {
    let mut tile = 0;
    while tile < w.count {
        // SAFETY: `tile` is one of the tiles.
        let bytes = unsafe { w.bytes.add(tile * w.tile_bytes) };
        let mut row = rows.start;
        macro_rules! step {
            ($r:literal, $t:literal) => {{
                // SAFETY: the caller's contract; `row` is one of the rows.
                unsafe {
                    let x_row = x.values.as_ptr().add(row * x.stride);
                    let acc = product::<S, E, $r, $t>(s, bytes, w.tile_bytes, x_row, x.stride, k);
                    for (t, acc) in acc.into_iter().enumerate() {
                        for (r, acc) in acc.into_iter().enumerate() {
                            sink.put(s, w.first + tile + r, row + t, acc);
                        }
                    }
                }
                row += $t;
            }};
        }
        // Wide tiles only where the registers hold them, or for single rows.
        if w.count - tile >= TILES && rows.len() < 3 {
            while row < rows.end {
                step!(4, 1);
            }
            tile += TILES;
        } else if const { S::WIDE } && w.count - tile >= TILES {
            while rows.end - row >= COLUMNS {
                step!(4, 6);
            }
            while row < rows.end {
                step!(4, 1);
            }
            tile += TILES;
        } else {
            while rows.end - row >= COLUMNS {
                step!(1, 6);
            }
            while row < rows.end {
                step!(1, 1);
            }
            tile += 1;
        }
    }
}

/// Lanes and rows of a tile are the same.
const _: () = assert!(LANES == ROWS);
