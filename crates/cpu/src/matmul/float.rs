//! Products with weights in floating point: tiles of 16 rows, `k` by `k`, one fused multiply-add
//! for each in the order of `k`, whatever the register tile.

use cyb_simd::{Isa, LANES};

use super::codec::ROWS;

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
) -> [[S::F; T]; R] {
    let mut acc = [[s.splat(0.0); T]; R];
    for i in 0..k {
        // SAFETY: the caller's contract.
        unsafe {
            let mut weights = [s.splat(0.0); R];
            for (r, v) in weights.iter_mut().enumerate() {
                *v = E::load(s, w.add(r * tile_bytes + i * ROWS * E::BYTES));
            }
            for t in 0..T {
                let v = s.splat(*x.add(t * stride + i));
                for r in 0..R {
                    acc[r][t] = s.fma(weights[r], v, acc[r][t]);
                }
            }
        }
    }
    acc
}

/// The products of `tiles` tiles of weights at `w` with rows `rows` of `x`.
///
/// # Safety
/// The tiles hold `k` values a row, and so do the rows of `x`.
#[inline(always)]
pub(super) unsafe fn tiles<S: Isa, E: Element>(
    s: S,
    w: *const u8,
    tile_bytes: usize,
    tiles: usize,
    x: &FloatRows<'_>,
    rows: std::ops::Range<usize>,
    k: usize,
    mut emit: impl FnMut(usize, usize, S::F),
) {
    let mut tile = 0;
    while tile < tiles {
        let left = tiles - tile;
        // SAFETY: `tile` is one of the tiles.
        let w = unsafe { w.add(tile * tile_bytes) };
        let mut row = rows.start;
        macro_rules! step {
            ($r:literal, $t:literal) => {{
                // SAFETY: the caller's contract; `row` is one of the rows.
                let acc = unsafe {
                    let x_row = x.values.as_ptr().add(row * x.stride);
                    product::<S, E, $r, $t>(s, w, tile_bytes, x_row, x.stride, k)
                };
                for (r, acc) in acc.into_iter().enumerate() {
                    for (t, acc) in acc.into_iter().enumerate() {
                        emit(tile + r, row + t, acc);
                    }
                }
                row += $t;
            }};
        }
        macro_rules! rows {
            ($r:literal) => {{
                while row < rows.end {
                    match rows.end - row {
                        COLUMNS.. => step!($r, 6),
                        3.. => step!($r, 3),
                        _ => step!($r, 1),
                    }
                }
            }};
        }
        // Wide tiles only where the registers hold them, or for single rows.
        let wide = S::TILE_COLUMNS >= 12 || rows.len() < 3;
        if wide && left >= TILES {
            rows!(4);
            tile += TILES;
        } else {
            rows!(1);
            tile += 1;
        }
    }
}

/// Lanes and rows of a tile are the same.
const _: () = assert!(LANES == ROWS);
