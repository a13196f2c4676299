//! Products with weights in floating point: tiles of 16 rows, `k` by `k`, one fused multiply-add
//! for each in the order of `k`, whatever the register tile.

use std::marker::PhantomData;
use std::ops::Range;

use cyb_simd::{Isa, LANES};

use super::codec::ROWS;
use super::output::Sink;

/// What a step over the columns is: weights of 16 rows, a value of an activation row, and how their
/// product is added.
pub(super) trait Terms: Copy {
    type Isa: Isa;
    type W: Copy;
    type X: Copy;
    /// As activations are stored.
    type Value;
    /// Weight bytes of a step.
    const BYTES: usize;
    /// Activation values of a step.
    const VALUES: usize;

    fn isa(self) -> Self::Isa;
    /// # Safety
    /// [`Terms::BYTES`] bytes are readable at `p`.
    unsafe fn weights(self, p: *const u8) -> Self::W;
    /// # Safety
    /// [`Terms::VALUES`] values are readable at `p`.
    unsafe fn value(self, p: *const Self::Value) -> Self::X;
    fn add(self, sum: <Self::Isa as Isa>::F, w: Self::W, x: Self::X) -> <Self::Isa as Isa>::F;
}

/// How weights are stored that meet `f32` activations.
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

/// One column a step: a fused multiply-add.
#[derive(Clone, Copy)]
pub(super) struct Single<S, E> {
    s: S,
    element: PhantomData<E>,
}

impl<S: Isa, E: Element> Single<S, E> {
    #[inline(always)]
    pub(super) fn new(s: S) -> Single<S, E> {
        Single { s, element: PhantomData }
    }
}

impl<S: Isa, E: Element> Terms for Single<S, E> {
    type Isa = S;
    type W = S::F;
    type X = S::F;
    type Value = f32;
    const BYTES: usize = ROWS * E::BYTES;
    const VALUES: usize = 1;

    #[inline(always)]
    fn isa(self) -> S {
        self.s
    }
    #[inline(always)]
    unsafe fn weights(self, p: *const u8) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { E::load(self.s, p) }
    }
    #[inline(always)]
    unsafe fn value(self, p: *const f32) -> S::F {
        // SAFETY: the caller's contract.
        self.s.splat(unsafe { *p })
    }
    #[inline(always)]
    fn add(self, sum: S::F, w: S::F, x: S::F) -> S::F {
        self.s.fma(w, x, sum)
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
/// `R` tiles of `steps` at `w`, `tile_bytes` apart, and `N` rows of as many from `x`, `stride` values
/// apart, are readable.
#[inline(always)]
unsafe fn product<T: Terms, const R: usize, const N: usize>(
    t: T,
    w: *const u8,
    tile_bytes: usize,
    x: *const T::Value,
    stride: usize,
    steps: usize,
) -> [[<T::Isa as Isa>::F; R]; N] {
    let mut sums = [[t.isa().splat(0.0); R]; N];
    for i in 0..steps {
        // SAFETY: the caller's contract.
        unsafe {
            let mut weights = [t.weights(w.add(i * T::BYTES)); R];
            for (r, v) in weights.iter_mut().enumerate().skip(1) {
                *v = t.weights(w.add(r * tile_bytes + i * T::BYTES));
            }
            for (n, sums) in sums.iter_mut().enumerate() {
                let v = t.value(x.add(n * stride + i * T::VALUES));
                for (sum, w) in sums.iter_mut().zip(&weights) {
                    *sum = t.add(*sum, *w, v);
                }
            }
        }
    }
    sums
}

/// Neighboring tiles of weights.
pub(super) struct Tiles {
    pub(super) bytes: *const u8,
    pub(super) tile_bytes: usize,
    /// Their place in the matrix.
    pub(super) first: usize,
    pub(super) count: usize,
}

/// Activation rows as they are stored, row `i` at `i * stride`.
pub(super) struct Rows<V> {
    pub(super) start: *const V,
    pub(super) stride: usize,
}

/// Puts the products of `w` with rows `rows` of `x` into `sink`.
///
/// # Safety
/// The tiles hold `steps` steps a row, and so do the rows of `x`; the output is the caller's.
#[inline(always)]
pub(super) unsafe fn tiles<T: Terms>(
    t: T,
    w: &Tiles,
    x: &Rows<T::Value>,
    rows: Range<usize>,
    steps: usize,
    sink: &Sink<'_>,
) {
    let mut tile = 0;
    while tile < w.count {
        // SAFETY: `tile` is one of the tiles.
        let bytes = unsafe { w.bytes.add(tile * w.tile_bytes) };
        let mut row = rows.start;
        macro_rules! step {
            ($r:literal, $n:literal) => {{
                // SAFETY: the caller's contract; `row` is one of the rows.
                unsafe {
                    let at = x.start.add(row * x.stride);
                    let sums = product::<T, $r, $n>(t, bytes, w.tile_bytes, at, x.stride, steps);
                    for (n, sums) in sums.into_iter().enumerate() {
                        for (r, sum) in sums.into_iter().enumerate() {
                            sink.put(t.isa(), w.first + tile + r, row + n, sum);
                        }
                    }
                }
                row += $n;
            }};
        }
        // Wide tiles only where the registers hold them, or for single rows.
        if w.count - tile >= TILES && rows.len() < 3 {
            while row < rows.end {
                step!(4, 1);
            }
            tile += TILES;
        } else if const { <T::Isa as Isa>::WIDE } && w.count - tile >= TILES {
            while rows.end - row >= COLUMNS {
                step!(4, 6);
            }
            // Weights are read again for every step, so few steps for the rest.
            while row < rows.end {
                match rows.end - row {
                    1 => step!(4, 1),
                    2 => step!(4, 2),
                    3 => step!(4, 3),
                    4 => step!(4, 4),
                    _ => step!(4, 5),
                }
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
