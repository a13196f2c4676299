//! Products: a worker's part of one, unit by unit.

use std::marker::PhantomData;
use std::sync::atomic::AtomicUsize;

use cyb_simd::{AnyIsa, Isa, PairOp, Pairs, SimdOp, transpose_words};
use cyb_tensor::{DType, quant};

use super::activations::{ActivationRows, BLOCK, Tables};
use super::codec::{self, ROWS};
use super::float::{self, FloatRows};
use super::kernel::{self, FEW, STRETCH, Scratch, Shape, TOKENS, Target, WIDE_ROWS, Weights};
use super::output::{Epilogue, Output, Sink};
use super::pack::{Form, PackedMatrix, Unpacker};
use super::pairs::{self, PairRows};
use crate::activation::Activation;
use crate::team::{Chunks, Worker};

/// Weight bytes of one unit of work for few rows: a microsecond or two of streaming.
const UNIT_BYTES: usize = 16 << 10;

/// Rows up to which codes of two planes are unpacked once for eight rows.
const STREAMED: usize = 32;

/// Bytes of activations that tile after tile is multiplied with: about half of the second-level
/// cache of a core.
const CACHED_BYTES: usize = 512 << 10;

/// Evaluates the first expression with the packed format of a dtype, the other where it has none.
macro_rules! by_format {
    ($dtype:expr, $format:ident => $packed:expr, _ => $native:expr) => {
        by_format!(@ $dtype, $format => $packed, _ => $native;
            Q4_0 Q4_0, Q4_1 Q4_1, Q5_0 Q5_0, Q5_1 Q5_1, Q8_0 Q8_0, IQ4_NL Iq4Nl, MXFP4 Mxfp4,
            Q2_K Q2K, Q3_K Q3K, Q4_K Q4K, Q5_K Q5K, Q6_K Q6K, IQ4_XS Iq4Xs, TQ2_0 Tq2_0)
    };
    (@ $dtype:expr, $format:ident => $packed:expr, _ => $native:expr;
        $($name:ident $codec:ident),+) => {
        match $dtype {
            $(DType::$name => {
                type $format = codec::$codec;
                $packed
            })+
            _ => $native,
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
        Tables::of(by_format!(
            self.0,
            F => const { Shape::of::<S, F>().table },
            _ => Shape::native::<S>(self.0).table
        ))
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
                F => isa.run(Tiled::<F> { part: part!(x), at: F::at }),
                _ => isa.run(Blocks(part!(x)))
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
                Form::Tiles(_) | Form::Blocks(_) | Form::Pairs => {
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
        // SAFETY: tiles follow one another in the region.
        let codec = |tile: usize| unsafe {
            (self.at)(w.region.as_slice().as_ptr().add(tile * w.tile_bytes))
        };
        let rows = x.rows();
        if rows <= FEW {
            let alone = self.part.worker.count == 1;
            let per_unit = (UNIT_BYTES / w.tile_bytes.max(1)).clamp(1, 64);
            for unit in self.part.units(per_unit, rows, FEW) {
                for tile in unit.first_tile..unit.first_tile + unit.tiles {
                    // SAFETY: a tile holds the blocks of a row of `x`; each unit is one worker's.
                    unsafe { kernel::few(s, codec(tile), &x, &sink, tile, alone) };
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
            // SAFETY: as above.
            unsafe { by_stretches(s, &self.part, |tile| Tile(codec(tile))) };
            return;
        }
        let row_bytes = (x.blocks() * const { Shape::of::<S, C>() }.block_bytes()).max(1);
        let cached = (CACHED_BYTES / row_bytes / WIDE_ROWS * WIDE_ROWS).clamp(WIDE_ROWS, TOKENS);
        for unit in self.part.units(1, rows, cached) {
            let tile = unit.first_tile;
            if const { S::WIDE } {
                let rows = (unit.first_row, unit.rows);
                // SAFETY: as above.
                unsafe { kernel::streamed(s, codec(tile), &x, rows, &sink, tile) };
            }
            // SAFETY: as above.
            unsafe { self.part.finish(&unit) };
        }
    }
}

/// Products with weights that are still in the file's blocks.
struct Blocks<'a>(Part<'a, ActivationRows<'a>>);

impl SimdOp for Blocks<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let w = self.0.w;
        let Form::Blocks(unpack) = w.form else { return };
        // SAFETY: a tile holds the blocks of a row of `x`; each unit is one worker's.
        unsafe { by_stretches(s, &self.0, |tile| NativeTile { w, unpack, tile }) };
    }
}

/// This worker's units of a product whose weights are unpacked a stretch at a time.
///
/// # Safety
/// The tile that `weights` gives by its number holds the blocks of a row of the input; units are one
/// worker's each.
#[inline(always)]
unsafe fn by_stretches<S: Isa, W: Weights<S>>(
    s: S,
    part: &Part<'_, ActivationRows<'_>>,
    weights: impl Fn(usize) -> W,
) {
    let mut scratch = Scratch::new();
    for unit in part.units(1, part.x.rows(), TOKENS) {
        let (tile, rows) = (unit.first_tile, (unit.first_row, unit.rows));
        let weights = weights(tile);
        // SAFETY: the caller's contract.
        unsafe {
            kernel::many(s, &weights, &part.x, rows, &mut scratch, &part.sink, tile);
            part.finish(&unit);
        }
    }
}

/// A tile in a packed format.
struct Tile<C>(C);

impl<S: Isa, C: codec::Codec> Weights<S> for Tile<C> {
    #[inline(always)]
    fn shape(&self) -> Shape {
        const { Shape::of::<S, C>() }
    }

    #[inline(always)]
    unsafe fn unpack(&self, s: S, first: usize, blocks: usize, to: Target) {
        // SAFETY: the caller's contract.
        unsafe { kernel::unpack(s, self.0, first, blocks, to) }
    }

    fn bytes_of(&self, first: usize, blocks: usize) -> (*const u8, usize) {
        (self.0.span(first / C::SPAN).start(), blocks.div_ceil(C::SPAN) * C::SPAN_BYTES)
    }
}

/// A tile that is still in the file's blocks.
struct NativeTile<'a> {
    w: &'a PackedMatrix,
    unpack: Unpacker,
    tile: usize,
}

impl<S: Isa> Weights<S> for NativeTile<'_> {
    fn shape(&self) -> Shape {
        Shape::native::<S>(self.w.dtype)
    }

    unsafe fn unpack(&self, _s: S, first: usize, blocks: usize, to: Target) {
        // SAFETY: the caller's contract.
        unsafe { self.unpack_by_fours(first, blocks, to) }
    }

    fn bytes_of(&self, first: usize, blocks: usize) -> (*const u8, usize) {
        let bytes = self.blocks(first, blocks);
        (bytes.as_ptr(), bytes.len())
    }
}

impl NativeTile<'_> {
    /// The bytes of `blocks` 32-blocks of all rows, from `first`.
    fn blocks(&self, first: usize, blocks: usize) -> &[u8] {
        let layout = self.w.dtype.layout();
        let bytes = |blocks: usize| blocks * BLOCK / layout.block * ROWS * layout.bytes;
        let start = self.tile * self.w.tile_bytes + bytes(first);
        &self.w.region.as_slice()[start..start + bytes(blocks)]
    }

    /// Four rows at a time, whose codes change places in registers.
    ///
    /// # Safety
    /// See [`Weights::unpack`].
    unsafe fn unpack_by_fours(&self, first: usize, blocks: usize, to: Target) {
        let dtype = self.w.dtype;
        let layout = dtype.layout();
        let (group, mins) = (quant::group_size(dtype), quant::has_offsets(dtype));
        let mut unpacked: [quant::Codes; 4] = std::array::from_fn(|_| quant::Codes::new());
        let bytes = self.blocks(first, blocks).chunks_exact(ROWS * layout.bytes);
        for (b, rows) in bytes.enumerate() {
            for (four, rows) in rows.chunks_exact(4 * layout.bytes).enumerate() {
                for (row, unpacked) in rows.chunks_exact(layout.bytes).zip(&mut unpacked) {
                    (self.unpack)(row, unpacked);
                }
                let k = b * layout.block;
                for i in 0..layout.block / 16 {
                    // SAFETY: blocks are multiples of 16 codes; any byte is one.
                    let codes = unpacked.each_ref().map(|unpacked| unsafe {
                        &*unpacked.codes.as_ptr().add(16 * i).cast::<[u8; 16]>()
                    });
                    for (piece, turned) in transpose_words(codes).iter().enumerate() {
                        // SAFETY: the target has room for `blocks` 32-blocks of 16 rows.
                        unsafe {
                            let step = to.codes.add((k / 4 + 4 * i + piece) * codec::STEP);
                            step.add(16 * four).cast::<[u8; 16]>().write_unaligned(*turned);
                        }
                    }
                }
                for g in 0..layout.block / group {
                    let at = (k / group + g) * ROWS + 4 * four;
                    // SAFETY: as above.
                    unsafe {
                        let scales = unpacked.each_ref().map(|unpacked| unpacked.scales[g]);
                        to.scales.add(at).cast::<[f32; 4]>().write_unaligned(scales);
                        if mins {
                            let mins = unpacked.each_ref().map(|unpacked| unpacked.offsets[g]);
                            to.mins.add(at).cast::<[f32; 4]>().write_unaligned(mins);
                        }
                    }
                }
            }
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
            let bytes = w.region.as_slice().as_ptr().add(first * w.tile_bytes);
            let tiles = float::Tiles { bytes, tile_bytes: w.tile_bytes, first, count: unit.tiles };
            let rows = unit.first_row..unit.first_row + unit.rows;
            float::tiles(t, &tiles, x, rows, steps, &part.sink);
            part.finish(&unit);
        }
    }
}

/// Native blocks of up to 256 values are whole parts of a stretch.
const _: () = assert!((STRETCH * BLOCK).is_multiple_of(256));
