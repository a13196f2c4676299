//! Products: a worker's part of one, unit by unit.

use std::marker::PhantomData;
use std::sync::atomic::AtomicUsize;

use cyb_simd::{AnyIsa, Isa, PairOp, Pairs, SimdOp};
use cyb_tensor::DType;

use super::activations::{ActivationRows, Tables};
use super::codec::{self, ROWS};
use super::float::{self, FloatRows};
use super::kernel::{self, Ask, FEW, Shape, WIDE_ROWS};
use super::output::{Epilogue, Output, Sink};
use super::pack::{Form, PackedMatrix, Tiles};
use super::pairs::{self, PairRows};
use super::stretch::{self, Scratch, TOKENS};
use crate::activation::Activation;
use crate::team::{Chunks, Worker};

/// Weight bytes of one unit of work for few rows: a microsecond or two of streaming.
const UNIT_BYTES: usize = 16 << 10;

/// Rows up to which codes of two planes are unpacked once for eight rows.
const STREAMED: usize = 32;

/// Bytes of activations that tile after tile is multiplied with: about half of the second-level
/// cache of a core.
const CACHED_BYTES: usize = 512 << 10;

/// Evaluates the expression with the packed format of a quantised dtype.
macro_rules! by_format {
    ($dtype:expr, $format:ident => $packed:expr) => {
        by_format!(@ $dtype, $format => $packed;
            Q4_0 Q4_0, Q4_1 Q4_1, Q5_0 Q5_0, Q5_1 Q5_1, Q8_0 Q8_0, Q8_1 Q8_0, IQ4_NL Iq4Nl,
            MXFP4 Mxfp4, NVFP4 Nvfp4, Q1_0 Q1_0, Q2_0 Q2_0, Q2_K Q2K, Q3_K Q3K, Q4_K Q4K, Q5_K Q5K,
            Q6_K Q6K, Q8_K Q8K, IQ4_XS Iq4Xs, TQ1_0 Tq2_0, TQ2_0 Tq2_0, IQ1_S Iq1S, IQ1_M Iq1M,
            IQ2_XXS Iq2Xxs, IQ2_XS Iq2S, IQ2_S Iq2S, IQ3_XXS Iq3Xxs, IQ3_S Iq3S)
    };
    (@ $dtype:expr, $format:ident => $packed:expr; $($name:ident $codec:ident),+) => {
        match $dtype {
            $(DType::$name => {
                type $format = codec::$codec;
                $packed
            })+
            other => unreachable!("{other} is not quantised"),
        }
    };
}

/// The tables that products with `w` read of quantised activations.
pub fn tables(isa: AnyIsa, w: &PackedMatrix) -> Tables {
    if w.takes_quantized() { isa.run(TablesOf(w.dtype)) } else { Tables::NONE }
}

struct TablesOf(DType);

impl SimdOp for TablesOf {
    type Output = Tables;

    #[inline(always)]
    fn eval<S: Isa>(self, _s: S) -> Tables {
        Tables::of(by_format!(self.0, F => const { Shape::of::<S, F>().table }))
    }
}

/// The left side of a product.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// For weights of which [`PackedMatrix::takes_quantized`] holds.
    Quantized(ActivationRows<'a>),
    /// For weights of which [`PackedMatrix::takes_pairs`] holds.
    Pairs(PairRows<'a>),
    /// For the others.
    Float(FloatRows<'a>),
}

impl Input<'_> {
    fn rows(&self) -> usize {
        match self {
            Input::Quantized(x) => x.rows(),
            Input::Pairs(x) => x.rows(),
            Input::Float(x) => x.rows,
        }
    }
}

/// This worker's part of a product.
///
/// # Safety
/// Every worker of the run calls this with the same arguments and the same `counter`, which was 0
/// before the step and is no other step's. Nobody else accesses the output before all have passed
/// a barrier after it.
///
/// # Panics
/// The shapes do not fit, or the input is not of the kind the weights take.
pub unsafe fn matmul(
    isa: AnyIsa,
    w: &PackedMatrix,
    x: Input<'_>,
    out: Output<'_>,
    epilogue: Epilogue<'_>,
    worker: &Worker<'_>,
    counter: &AtomicUsize,
) {
    let rows = x.rows();
    if rows == 0 || w.n == 0 {
        return;
    }
    out.check(rows, w.n);
    assert!(epilogue.bias.is_none_or(|b| b.len() >= w.n), "the bias is too short");
    let sink = Sink { out, n: w.n, epilogue };
    macro_rules! part {
        ($x:expr) => {
            Part { isa, w, x: $x, sink, worker, counter }
        };
    }
    match x {
        Input::Quantized(x) => {
            assert!(w.takes_quantized(), "weights of {} take floats", w.dtype);
            assert!(x.k() == w.k, "the input has {} columns, not {}", x.k(), w.k);
            assert!(x.has(tables(isa, w)), "the input lacks a table for {}", w.dtype);
            by_format!(
                w.dtype,
                F => isa.run(Tiled::<F> { part: part!(x), at: F::at })
            );
        }
        Input::Pairs(x) => {
            assert!(w.takes_pairs(), "weights of {} do not take pairs", w.dtype);
            assert!(x.k() == w.k, "the input has {} columns, not {}", x.k(), w.k);
            isa.run_pairs(OnPairs(part!(x)));
        }
        Input::Float(x) => {
            let others = w.takes_quantized() || w.takes_pairs();
            assert!(!others, "weights of {} take no float activations", w.dtype);
            assert!(x.values.len() >= (rows - 1) * x.stride + w.k, "the input is too short");
            match w.form {
                Form::F32 => isa.run(Floats::<float::F32>(part!(x), PhantomData)),
                Form::F16 => isa.run(Floats::<float::F16>(part!(x), PhantomData)),
                Form::Bf16 => isa.run(Floats::<float::Bf16>(part!(x), PhantomData)),
                Form::Tiles(_) | Form::Pairs => {
                    unreachable!("weights that take another input")
                }
            }
        }
    }
}

/// A worker's part of a product with rows of a kind `X`.
#[derive(Clone, Copy)]
struct Part<'a, X> {
    isa: AnyIsa,
    w: &'a PackedMatrix,
    x: X,
    sink: Sink<'a>,
    worker: &'a Worker<'a>,
    counter: &'a AtomicUsize,
}

impl<'a, X> Part<'a, X> {
    /// This worker's units, of so many tiles and so many of `rows` rows.
    fn units(&self, tiles_per_unit: usize, rows: usize, rows_per_unit: usize) -> Units<'a> {
        let tiles = self.w.tiles();
        let units = tiles.div_ceil(tiles_per_unit) * rows.div_ceil(rows_per_unit);
        let chunks = self.worker.chunks(self.counter, units);
        Units { chunks, tiles, tiles_per_unit, rows, rows_per_unit }
    }

    /// What remains to be done when a unit's results are stored.
    ///
    /// # Safety
    /// The unit is this worker's.
    #[inline(always)]
    unsafe fn finish(&self, unit: &Unit) {
        if self.sink.epilogue.activation == Activation::None {
            return;
        }
        let rows = unit.first_row..unit.first_row + unit.rows;
        let columns = unit.first_tile * ROWS..(unit.first_tile + unit.tiles) * ROWS;
        // SAFETY: the caller's contract.
        unsafe { self.sink.activate(self.isa, rows, columns) };
    }
}

/// The tiles and rows that this worker computes, unit by unit.
struct Units<'a> {
    chunks: Chunks<'a>,
    tiles: usize,
    tiles_per_unit: usize,
    rows: usize,
    rows_per_unit: usize,
}

/// Tiles `first_tile..first_tile + tiles` times rows `first_row..first_row + rows`.
struct Unit {
    first_tile: usize,
    tiles: usize,
    first_row: usize,
    rows: usize,
}

impl Iterator for Units<'_> {
    type Item = Unit;

    /// Tiles vary fastest, so that workers share a block of activations in the outer caches.
    fn next(&mut self) -> Option<Unit> {
        let unit = self.chunks.next()?;
        let across = self.tiles.div_ceil(self.tiles_per_unit);
        let first_tile = unit % across * self.tiles_per_unit;
        let first_row = unit / across * self.rows_per_unit;
        Some(Unit {
            first_tile,
            tiles: self.tiles_per_unit.min(self.tiles - first_tile),
            first_row,
            rows: self.rows_per_unit.min(self.rows - first_row),
        })
    }
}

/// Products with weights in a packed format.
struct Tiled<'a, C> {
    part: Part<'a, ActivationRows<'a>>,
    at: unsafe fn(*const u8) -> C,
}

impl<C: codec::Codec> SimdOp for Tiled<'_, C> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Part { w, x, sink, .. } = self.part;
        let mut tiles = Tiles::of(w);
        let rows = x.rows();
        if rows <= FEW {
            let ask = match self.part.worker.count {
                _ if AnyIsa::wants_asking() => Ask::All,
                // One worker leaves memory time to spare.
                1 => Ask::Some,
                _ => Ask::Nothing,
            };
            let per_unit = (UNIT_BYTES / w.tile_bytes.max(1)).clamp(1, 64);
            for unit in self.part.units(per_unit, rows, FEW) {
                for tile in unit.first_tile..unit.first_tile + unit.tiles {
                    // SAFETY: a tile holds the blocks of a row of `x`; each unit is one worker's.
                    unsafe { kernel::few(s, (self.at)(tiles.at(tile)), &x, &sink, tile, ask) };
                }
                // SAFETY: as above.
                unsafe { self.part.finish(&unit) };
            }
            return;
        }
        // Cheap codes are unpacked again for every eight rows, from tiles in the first cache; others
        // once for as many rows as there are, through memory.
        let streams = const { S::WIDE } && (const { !C::SPLIT } || rows <= STREAMED);
        if !streams {
            let mut scratch = Scratch::new();
            for unit in self.part.units(1, rows, TOKENS) {
                let (tile, rows) = (unit.first_tile, (unit.first_row, unit.rows));
                // SAFETY: as above.
                unsafe {
                    let w = (self.at)(tiles.at(tile));
                    stretch::many(s, w, &x, rows, &mut scratch, &sink, tile);
                    self.part.finish(&unit);
                }
            }
            return;
        }
        let row_bytes = (x.blocks() * const { Shape::of::<S, C>() }.block_bytes()).max(1);
        let cached = (CACHED_BYTES / row_bytes / WIDE_ROWS * WIDE_ROWS).clamp(WIDE_ROWS, TOKENS);
        // A tile that is made on the spot is made once.
        let cached = if tiles.are_made() { cached } else { rows };
        for unit in self.part.units(1, rows, cached) {
            let tile = unit.first_tile;
            if const { S::WIDE } {
                let rows = (unit.first_row, unit.rows);
                // SAFETY: as above.
                unsafe { kernel::streamed(s, (self.at)(tiles.at(tile)), &x, rows, &sink, tile) };
            }
            // SAFETY: as above.
            unsafe { self.part.finish(&unit) };
        }
    }
}

/// Products with tiles of floating-point weights.
struct Floats<'a, E>(Part<'a, FloatRows<'a>>, PhantomData<E>);

impl<E: float::Element> SimdOp for Floats<'_, E> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let x = &self.0.x;
        let rows = float::Rows { start: x.values.as_ptr(), stride: x.stride };
        // SAFETY: `matmul` checked that the rows of `x` hold `k` values, and so do the tiles.
        unsafe { by_steps(float::Single::<S, E>::new(s), &self.0, &rows, x.rows, self.0.w.k) };
    }
}

/// Products with tiles of pairs of columns.
struct OnPairs<'a>(Part<'a, PairRows<'a>>);

impl PairOp for OnPairs<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<P: Pairs>(self, p: P) {
        let x = &self.0.x;
        let steps = self.0.w.k.div_ceil(2);
        // SAFETY: `matmul` checked that the rows of `x` hold `k` values, and so do the tiles.
        unsafe { by_steps(pairs::Double(p), &self.0, &x.stored(), x.rows(), steps) };
    }
}

/// This worker's units of a product that is computed step by step.
///
/// # Safety
/// `x` holds `rows` rows of `steps` steps, and so do the tiles of the weights; units are one
/// worker's each.
#[inline(always)]
unsafe fn by_steps<T: float::Terms, X>(
    t: T,
    part: &Part<'_, X>,
    x: &float::Rows<T::Value>,
    rows: usize,
    steps: usize,
) {
    /// Tiles and rows of one unit.
    const UNIT_TILES: usize = 4;
    const UNIT_ROWS: usize = 48;
    let w = part.w;
    for unit in part.units(UNIT_TILES, rows, UNIT_ROWS) {
        // SAFETY: tiles and rows are inside the region and the input; the rest is the caller's
        // contract.
        unsafe {
            let first = unit.first_tile;
            let bytes = w.packed_bytes()[first * w.tile_bytes..].as_ptr();
            let tiles = float::Tiles { bytes, tile_bytes: w.tile_bytes, first, count: unit.tiles };
            let rows = unit.first_row..unit.first_row + unit.rows;
            float::tiles(t, &tiles, x, rows, steps, &part.sink);
            part.finish(&unit);
        }
    }
}
