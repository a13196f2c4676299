//! `y[M, N] = x[M, K] · w[N, K]ᵀ` for weights of every dtype.
//!
//! Weights are re-tiled once, when they are loaded, into tiles of 16 rows whose lanes are output
//! columns ([`PackedMatrix`]). Quantised weights meet activations quantised to 8 bits
//! ([`Activations`]) in exact integer dot products per group; floating-point weights meet `f32`
//! activations, or ones of 16 bits where that is asked for ([`Compute`]). One row is a stream over the weights; many rows unpack a stretch of weights once
//! and use it for all. The result of a row never depends on the other rows, the instruction set,
//! the number of threads or who computes what.

mod activations;
mod codec;
mod float;
mod kernel;
mod output;
mod pairs;
mod retile;

#[cfg(test)]
mod tests;

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;

use cyb_simd::{AnyIsa, Isa, LANES, PairOp, Pairs, SimdOp};
use cyb_tensor::{DType, quant};

use crate::memory::{OutOfMemory, Region, WeightMemory};
use crate::team::{Chunks, Team, TeamError, Worker};
use activations::INTERLEAVE;
use codec::ROWS;
use kernel::{FEW, STRETCH, Scratch, Shape, TOKENS, Target, WIDE_ROWS, Weights};
use output::Sink;

pub use activations::{ActivationRows, Activations, BLOCK, Gate, Source};
pub use float::FloatRows;
pub use output::{Epilogue, Output};
pub use pairs::PairRows;

/// Weight bytes of one unit of work for few rows: a microsecond or two of streaming.
const UNIT_BYTES: usize = 16 << 10;

/// Rows up to which codes of two planes are unpacked once for eight rows.
const STREAMED: usize = 32;

/// Bytes of activations that tile after tile is multiplied with: about half of the second-level
/// cache of a core.
const CACHED_BYTES: usize = 512 << 10;

/// Weight bytes that are packed before their source is let go.
const SLAB_BYTES: usize = 16 << 20;

/// A matrix as a file has it.
#[derive(Clone, Copy, Debug)]
pub struct Native<'a> {
    pub dtype: DType,
    pub bytes: &'a [u8],
    /// Whether it lies as [k, n], which floating-point weights of 16 and 32 bits may.
    pub turned: bool,
}

/// Why weights cannot be packed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PackError {
    #[error("{n} rows of {k} {dtype} values are {want} bytes, but {got} are given")]
    Length { dtype: DType, n: usize, k: usize, want: usize, got: usize },
    #[error("rows of {k} values are not whole {dtype} blocks, or the matrix is too large")]
    Shape { dtype: DType, n: usize, k: usize },
    #[error("a matrix of {dtype} cannot be multiplied: convert it to a floating-point dtype")]
    DType { dtype: DType },
    #[error("a matrix of {dtype} cannot be multiplied the other way round")]
    Turned { dtype: DType },
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    #[error(transparent)]
    Team(#[from] TeamError),
}

/// What floating-point weights are multiplied in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compute {
    /// Weights as they are, activations in `f32`.
    #[default]
    F32,
    /// Weights and activations rounded to bfloat16, sums in `f32`.
    Bf16,
    /// Weights and activations rounded to half precision, sums in `f32`. What is too large for it
    /// becomes its largest number.
    F16,
}

/// How the weights are kept.
#[derive(Clone, Debug)]
enum Form {
    /// Tiles of a quantised format.
    Tiles(codec::Layout),
    /// The file's blocks, unpacked when used; the bytes of a row.
    Native {
        row_bytes: usize,
    },
    /// Tiles of floating-point weights.
    F32,
    F16,
    Bf16,
    /// Tiles of pairs of columns in bfloat16, for activations that are too.
    Pairs,
}

/// Weights `[n, k]`, ready for products.
#[derive(Debug)]
pub struct PackedMatrix {
    dtype: DType,
    n: usize,
    k: usize,
    form: Form,
    /// Whether activations are rounded to half precision.
    halves: bool,
    tile_bytes: usize,
    region: Region,
}

impl PackedMatrix {
    /// Packs `n` rows of `k` values, on all workers of `team`. `packed` is told which bytes will not
    /// be read again, from time to time.
    ///
    /// # Errors
    /// A wrong number of bytes, an integer dtype, no memory.
    pub fn pack(
        memory: &mut WeightMemory,
        team: &Team,
        n: usize,
        k: usize,
        source: Native<'_>,
        packed: &dyn Fn(Range<usize>),
    ) -> Result<PackedMatrix, PackError> {
        PackedMatrix::pack_for(Compute::F32, memory, team, [n, k], source, packed)
    }

    /// As [`PackedMatrix::pack`], for products in `compute` where the weights are floats.
    ///
    /// # Errors
    /// As there.
    pub fn pack_for(
        compute: Compute,
        memory: &mut WeightMemory,
        team: &Team,
        [n, k]: [usize; 2],
        source: Native<'_>,
        packed: &dyn Fn(Range<usize>),
    ) -> Result<PackedMatrix, PackError> {
        let Native { dtype, bytes, turned } = source;
        if turned && !turns(dtype) {
            return Err(PackError::Turned { dtype });
        }
        let row_bytes = dtype.bytes_for(k).ok_or(PackError::Shape { dtype, n, k })?;
        let want = row_bytes.checked_mul(n).ok_or(PackError::Shape { dtype, n, k })?;
        if bytes.len() != want {
            return Err(PackError::Length { dtype, n, k, want, got: bytes.len() });
        }
        let float = |bytes| k.checked_mul(ROWS * bytes).ok_or(PackError::Shape { dtype, n, k });
        let (form, tile_bytes) = if dtype.is_quantized() {
            match retile::layout(dtype) {
                Some(layout) => (Form::Tiles(layout), layout.tile_bytes(k / BLOCK)),
                None => (Form::Native { row_bytes }, row_bytes * ROWS),
            }
        } else {
            let pairs = pairs::tile_bytes(k).ok_or(PackError::Shape { dtype, n, k })?;
            match dtype {
                DType::F32
                | DType::F64
                | DType::F16
                | DType::F8E4M3
                | DType::F8E5M2
                | DType::BF16
                    if compute == Compute::Bf16 =>
                {
                    (Form::Pairs, pairs)
                }
                DType::F32 | DType::F64 | DType::BF16 if compute == Compute::F16 => {
                    (Form::F16, float(2)?)
                }
                DType::F32 | DType::F64 => (Form::F32, float(4)?),
                DType::F16 | DType::F8E4M3 | DType::F8E5M2 => (Form::F16, float(2)?),
                DType::BF16 => (Form::Bf16, float(2)?),
                _ => return Err(PackError::DType { dtype }),
            }
        };
        let len = match form {
            Form::Native { .. } => want,
            _ => {
                n.div_ceil(ROWS).checked_mul(tile_bytes).ok_or(PackError::Shape { dtype, n, k })?
            }
        };
        let mut region = memory.region(len)?;
        if n > 0 && k > 0 {
            let out = region.as_mut_slice();
            fill(team, source, (n, k), &form, tile_bytes, packed, out)?;
        }
        let halves = compute == Compute::F16 && !dtype.is_quantized();
        Ok(PackedMatrix { dtype, n, k, form, halves, tile_bytes, region })
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Output columns.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input columns.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes of the packed form: what a product with one row reads.
    pub fn bytes(&self) -> usize {
        self.region.len()
    }

    /// The packed form.
    pub fn packed_bytes(&self) -> &[u8] {
        self.region.as_slice()
    }

    /// Whether products take [`Input::Quantized`].
    pub fn takes_quantized(&self) -> bool {
        matches!(self.form, Form::Tiles(_) | Form::Native { .. })
    }

    /// Whether products take [`Input::Pairs`].
    pub fn takes_pairs(&self) -> bool {
        matches!(self.form, Form::Pairs)
    }

    /// Whether products take [`Input::Float`] of numbers that [`round_to_half`] gives.
    pub fn takes_halves(&self) -> bool {
        self.halves
    }

    fn tiles(&self) -> usize {
        self.n.div_ceil(ROWS)
    }
}

/// Rounds numbers to half precision, in place; what is too large for it becomes its largest number.
pub fn round_to_half(isa: AnyIsa, values: &mut [f32]) {
    isa.run(RoundToHalf { values });
}

struct RoundToHalf<'a> {
    values: &'a mut [f32],
}

impl SimdOp for RoundToHalf<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let largest = s.splat(HALF_MAX);
        let smallest = s.splat(-HALF_MAX);
        for part in self.values.chunks_mut(LANES) {
            // A NaN stays one: it is not beyond either end.
            let v = s.load_partial(part);
            let v = s.select_gt(v, largest, largest, v);
            let v = s.select_gt(smallest, v, smallest, v);
            let mut halves = [0; LANES];
            // SAFETY: there is room for 16 values.
            let v = unsafe {
                s.store_f16(halves.as_mut_ptr(), v);
                s.load_f16(halves.as_ptr())
            };
            s.store_partial(part, v);
        }
    }
}

/// The largest number of half precision.
const HALF_MAX: f32 = 65504.0;

/// Whether a matrix of this dtype may be packed from [k, n]: a tile's values for one k then lie
/// side by side already.
pub(crate) fn turns(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Writes all tiles.
fn fill(
    team: &Team,
    source: Native<'_>,
    (n, k): (usize, usize),
    form: &Form,
    tile_bytes: usize,
    packed: &dyn Fn(Range<usize>),
    out: &mut [u8],
) -> Result<(), PackError> {
    let Native { dtype, bytes, turned } = source;
    let row_bytes = bytes.len() / n;
    let zeros = vec![0; row_bytes];
    let tiles = n.div_ceil(ROWS);
    let out_len = out.len();
    let out = SharedMut { start: out.as_mut_ptr() };
    // A few hundred KiB of tiles as one unit.
    let tiles_per_unit = ((256 << 10) / tile_bytes).max(1);
    let tiles_per_slab = (SLAB_BYTES / tile_bytes).max(1);
    for first in (0..tiles).step_by(tiles_per_slab) {
        let slab = first..(first + tiles_per_slab).min(tiles);
        let counter = AtomicUsize::new(0);
        team.run(|worker| {
            let mut values = Vec::new();
            for unit in worker.chunks(&counter, slab.len().div_ceil(tiles_per_unit)) {
                let unit = slab.start + unit * tiles_per_unit;
                for tile in unit..(unit + tiles_per_unit).min(slab.end) {
                    let start = tile * tile_bytes;
                    let len = tile_bytes.min(out_len - start);
                    // SAFETY: tiles are disjoint parts of `out`, and each tile is one worker's.
                    let out = unsafe { std::slice::from_raw_parts_mut(out.at(start), len) };
                    let first = tile * ROWS;
                    let row = |r: usize| {
                        let row = first + r;
                        if row < n {
                            &bytes[row * row_bytes..(row + 1) * row_bytes]
                        } else {
                            &zeros
                        }
                    };
                    match form {
                        Form::Pairs if turned => {
                            let mut row = Vec::new();
                            for r in 0..ROWS.min(n - first) {
                                turned_row(bytes, (n, k), first + r, dtype, &mut row);
                                pairs::pack_row(dtype, &row, r, k, &mut values, out);
                            }
                        }
                        Form::F16 if turned && dtype != DType::F16 => {
                            let mut row = Vec::new();
                            for r in 0..ROWS.min(n - first) {
                                turned_row(bytes, (n, k), first + r, dtype, &mut row);
                                half_row(dtype, &row, r, k, &mut values, out);
                            }
                        }
                        _ if turned => turned_tile(bytes, (n, k), first, dtype, out),
                        Form::Tiles(layout) => {
                            retile::tile(dtype, layout, &std::array::from_fn(row), k / BLOCK, out);
                        }
                        Form::Native { .. } => {
                            out.copy_from_slice(&bytes[start..start + len]);
                        }
                        Form::Pairs => {
                            for r in 0..ROWS {
                                pairs::pack_row(dtype, row(r), r, k, &mut values, out);
                            }
                        }
                        Form::F16 if dtype != DType::F16 => {
                            for r in 0..ROWS {
                                half_row(dtype, row(r), r, k, &mut values, out);
                            }
                        }
                        Form::F32 | Form::F16 | Form::Bf16 => {
                            for r in 0..ROWS {
                                float_row(dtype, row(r), r, k, &mut values, out);
                            }
                        }
                    }
                }
            }
        })?;
        if !turned {
            packed(first * ROWS * row_bytes..(slab.end * ROWS).min(n) * row_bytes);
        }
    }
    if turned {
        packed(0..bytes.len());
    }
    Ok(())
}

/// Writes the tile of columns `first..` of a matrix [k, n].
fn turned_tile(bytes: &[u8], (n, k): (usize, usize), first: usize, dtype: DType, out: &mut [u8]) {
    let size = dtype.layout().bytes;
    let used = ROWS.min(n - first) * size;
    for (i, out) in out.chunks_exact_mut(ROWS * size).take(k).enumerate() {
        let at = (i * n + first) * size;
        out[..used].copy_from_slice(&bytes[at..at + used]);
        out[used..].fill(0);
    }
}

/// Reads column `column` of a matrix [k, n].
fn turned_row(
    bytes: &[u8],
    (n, k): (usize, usize),
    column: usize,
    dtype: DType,
    row: &mut Vec<u8>,
) {
    let size = dtype.layout().bytes;
    row.clear();
    for i in 0..k {
        row.extend_from_slice(&bytes[(i * n + column) * size..][..size]);
    }
}

/// Writes row `r` of a tile of floating-point weights.
fn float_row(dtype: DType, row: &[u8], r: usize, k: usize, values: &mut Vec<f32>, out: &mut [u8]) {
    match dtype {
        DType::F16 | DType::BF16 => {
            for (out, v) in out.chunks_exact_mut(2 * ROWS).zip(row.chunks_exact(2)) {
                out[2 * r..2 * r + 2].copy_from_slice(v);
            }
        }
        DType::F32 => {
            for (out, v) in out.chunks_exact_mut(4 * ROWS).zip(row.chunks_exact(4)) {
                out[4 * r..4 * r + 4].copy_from_slice(v);
            }
        }
        _ => {
            decode_row(dtype, row, k, values);
            for (out, v) in out.chunks_exact_mut(4 * ROWS).zip(values.iter()) {
                out[4 * r..4 * r + 4].copy_from_slice(&v.to_le_bytes());
            }
        }
    }
}

/// Writes row `r` of a tile in half precision; 8-bit floats are exact in it.
fn half_row(dtype: DType, row: &[u8], r: usize, k: usize, values: &mut Vec<f32>, out: &mut [u8]) {
    decode_row(dtype, row, k, values);
    for (out, v) in out.chunks_exact_mut(2 * ROWS).zip(values.iter()) {
        let half = half::f16::from_f32(v.clamp(-HALF_MAX, HALF_MAX));
        out[2 * r..2 * r + 2].copy_from_slice(&half.to_bits().to_le_bytes());
    }
}

fn decode_row(dtype: DType, row: &[u8], k: usize, values: &mut Vec<f32>) {
    values.resize(k, 0.0);
    // The length is right, and the dtype is a floating-point one, so this cannot fail; the zeros it
    // would leave are those of `resize`.
    let _ = quant::decode(dtype, row, values);
}

/// A pointer that workers write disjoint parts through.
#[derive(Clone, Copy)]
struct SharedMut {
    start: *mut u8,
}

// SAFETY: users write disjoint parts.
unsafe impl Send for SharedMut {}
// SAFETY: as above.
unsafe impl Sync for SharedMut {}

impl SharedMut {
    /// # Safety
    /// `offset` is inside the memory.
    unsafe fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { self.start.add(offset) }
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
    macro_rules! quantized {
        ($x:expr, $($dtype:ident $format:ident),+) => {
            match w.dtype {
                $(DType::$dtype => isa.run(Tiled::<codec::$format> {
                    w, x: $x, sink, worker, counter, at: codec::$format::at,
                }),)+
                _ => isa.run(Blocks { w, x: $x, sink, worker, counter }),
            }
        };
    }
    match x {
        Input::Quantized(x) => {
            assert!(w.takes_quantized(), "weights of {} take floats", w.dtype);
            assert!(x.k() == w.k, "the input has {} columns, not {}", x.k(), w.k);
            quantized!(
                x, Q4_0 Q4_0, Q4_1 Q4_1, Q5_0 Q5_0, Q5_1 Q5_1, Q8_0 Q8_0, IQ4_NL Iq4Nl,
                MXFP4 Mxfp4, Q2_K Q2K, Q3_K Q3K, Q4_K Q4K, Q5_K Q5K, Q6_K Q6K, IQ4_XS Iq4Xs,
                TQ2_0 Tq2_0
            );
        }
        Input::Pairs(x) => {
            assert!(w.takes_pairs(), "weights of {} do not take pairs", w.dtype);
            assert!(x.k() == w.k, "the input has {} columns, not {}", x.k(), w.k);
            isa.run_pairs(OnPairs { w, x, sink, worker, counter });
        }
        Input::Float(x) => {
            let others = w.takes_quantized() || w.takes_pairs();
            assert!(!others, "weights of {} take no float activations", w.dtype);
            assert!(x.values.len() >= (rows - 1) * x.stride + w.k, "the input is too short");
            match w.form {
                Form::F32 => {
                    isa.run(Floats::<float::F32> { w, x, sink, worker, counter, e: PhantomData })
                }
                Form::F16 => {
                    isa.run(Floats::<float::F16> { w, x, sink, worker, counter, e: PhantomData })
                }
                Form::Bf16 => {
                    isa.run(Floats::<float::Bf16> { w, x, sink, worker, counter, e: PhantomData })
                }
                Form::Tiles(_) | Form::Native { .. } | Form::Pairs => {
                    unreachable!("weights that take another input")
                }
            }
        }
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

impl<'a> Units<'a> {
    fn new(
        worker: &Worker<'_>,
        counter: &'a AtomicUsize,
        (tiles, tiles_per_unit): (usize, usize),
        (rows, rows_per_unit): (usize, usize),
    ) -> Units<'a> {
        let units = tiles.div_ceil(tiles_per_unit) * rows.div_ceil(rows_per_unit);
        let chunks = worker.chunks(counter, units);
        Units { chunks, tiles, tiles_per_unit, rows, rows_per_unit }
    }
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

struct Tiled<'a, C> {
    w: &'a PackedMatrix,
    x: ActivationRows<'a>,
    sink: Sink<'a>,
    worker: &'a Worker<'a>,
    counter: &'a AtomicUsize,
    at: unsafe fn(*const u8) -> C,
}

impl<C: codec::Codec> SimdOp for Tiled<'_, C> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Tiled { w, x, sink, worker, counter, at } = self;
        // SAFETY: tiles follow one another in the region.
        let codec =
            |tile: usize| unsafe { at(w.region.as_slice().as_ptr().add(tile * w.tile_bytes)) };
        let rows = x.rows();
        if rows <= FEW {
            let per_unit = (UNIT_BYTES / w.tile_bytes.max(1)).clamp(1, 64);
            for unit in Units::new(worker, counter, (w.tiles(), per_unit), (rows, FEW)) {
                for tile in unit.first_tile..unit.first_tile + unit.tiles {
                    // SAFETY: a tile holds the blocks of a row of `x`; each unit is one worker's.
                    unsafe { kernel::few(s, codec(tile), &x, &sink, tile) };
                }
            }
            return;
        }
        // Cheap codes are unpacked again for every eight rows, from tiles in the first cache; others
        // once for as many rows as there are, through memory.
        let streams = const { S::WIDE } && (const { !C::SPLIT } || rows <= STREAMED);
        let row_bytes = (Activations::bytes(INTERLEAVE, w.k) / INTERLEAVE).max(1);
        let cached = (CACHED_BYTES / row_bytes / WIDE_ROWS * WIDE_ROWS).clamp(WIDE_ROWS, TOKENS);
        let per_unit = if streams { cached } else { TOKENS };
        let mut scratch = Scratch::new();
        for unit in Units::new(worker, counter, (w.tiles(), 1), (rows, per_unit)) {
            let (tile, rows) = (unit.first_tile, (unit.first_row, unit.rows));
            let codec = codec(tile);
            // SAFETY: as above.
            unsafe {
                if streams {
                    if const { S::WIDE } {
                        kernel::streamed(s, codec, &x, rows, &sink, tile);
                    }
                } else {
                    kernel::many(s, &Tile(codec), &x, rows, &mut scratch, &sink, tile);
                }
            }
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
    row_bytes: usize,
    tile: usize,
}

impl<S: Isa> Weights<S> for NativeTile<'_> {
    fn shape(&self) -> Shape {
        Shape::native::<S>(self.w.dtype)
    }

    unsafe fn unpack(&self, _s: S, first: usize, blocks: usize, to: Target) {
        // SAFETY: the caller's contract.
        unsafe { self.unpack_scalar(first, blocks, to) }
    }

    fn bytes_of(&self, _first: usize, _blocks: usize) -> (*const u8, usize) {
        (std::ptr::null(), 0)
    }
}

impl NativeTile<'_> {
    /// # Safety
    /// See [`Weights::unpack`].
    unsafe fn unpack_scalar(&self, first: usize, blocks: usize, to: Target) {
        let w = self.w;
        let layout = w.dtype.layout();
        let (group, mins) = (quant::group_size(w.dtype), quant::has_offsets(w.dtype));
        let mut unpacked = quant::Codes::new();
        let rows = ROWS.min(w.n - self.tile * ROWS);
        for r in 0..ROWS {
            for b in 0..blocks * BLOCK / layout.block {
                if r < rows {
                    let row = (self.tile * ROWS + r) * self.row_bytes;
                    let at = row + (first * BLOCK / layout.block + b) * layout.bytes;
                    let block = &w.region.as_slice()[at..at + layout.bytes];
                    // It is a block of a quantised dtype, so this cannot fail.
                    let _ = quant::codes(w.dtype, block, &mut unpacked);
                } else {
                    unpacked = quant::Codes::new();
                }
                // SAFETY: the target has room for `blocks` 32-blocks.
                unsafe {
                    let k = b * layout.block;
                    let steps = unpacked.codes[..layout.block].as_chunks::<4>().0;
                    for (i, codes) in steps.iter().enumerate() {
                        let step = to.codes.add((k / 4 + i) * codec::STEP + 4 * r);
                        step.cast::<[i8; 4]>().write_unaligned(*codes);
                    }
                    for g in 0..layout.block / group {
                        *to.scales.add((k / group + g) * ROWS + r) = unpacked.scales[g];
                        if mins {
                            *to.mins.add((k / group + g) * ROWS + r) = unpacked.offsets[g];
                        }
                    }
                }
            }
        }
    }
}

struct Blocks<'a> {
    w: &'a PackedMatrix,
    x: ActivationRows<'a>,
    sink: Sink<'a>,
    worker: &'a Worker<'a>,
    counter: &'a AtomicUsize,
}

impl SimdOp for Blocks<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Blocks { w, x, sink, worker, counter } = self;
        let Form::Native { row_bytes } = w.form else { return };
        let mut scratch = Scratch::new();
        for unit in Units::new(worker, counter, (w.tiles(), 1), (x.rows(), TOKENS)) {
            let tile = unit.first_tile;
            let native = NativeTile { w, row_bytes, tile };
            let rows = (unit.first_row, unit.rows);
            // SAFETY: the tile holds the blocks of a row of `x`; each unit is one worker's.
            unsafe { kernel::many(s, &native, &x, rows, &mut scratch, &sink, tile) };
        }
    }
}

struct Floats<'a, E> {
    w: &'a PackedMatrix,
    x: FloatRows<'a>,
    sink: Sink<'a>,
    worker: &'a Worker<'a>,
    counter: &'a AtomicUsize,
    e: PhantomData<E>,
}

impl<E: float::Element> SimdOp for Floats<'_, E> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Floats { w, x, sink, worker, counter, e: _ } = self;
        let rows = float::Rows { start: x.values.as_ptr(), stride: x.stride };
        // SAFETY: `matmul` checked that the rows of `x` hold `k` values, and so do the tiles.
        unsafe {
            in_units(
                float::Single::<S, E>::new(s),
                w,
                &rows,
                (x.rows, w.k),
                &sink,
                worker,
                counter,
            );
        }
    }
}

struct OnPairs<'a> {
    w: &'a PackedMatrix,
    x: PairRows<'a>,
    sink: Sink<'a>,
    worker: &'a Worker<'a>,
    counter: &'a AtomicUsize,
}

impl PairOp for OnPairs<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<P: Pairs>(self, p: P) {
        let OnPairs { w, x, sink, worker, counter } = self;
        let steps = w.k.div_ceil(2);
        // SAFETY: `matmul` checked that the rows of `x` hold `k` values, and so do the tiles.
        unsafe {
            let rows = x.stored();
            in_units(pairs::Double(p), w, &rows, (x.rows(), steps), &sink, worker, counter);
        }
    }
}

/// This worker's units of a product that is computed step by step.
///
/// # Safety
/// `x` holds `rows` rows of `steps` steps, and so do the tiles of `w`; units are one worker's each.
#[inline(always)]
unsafe fn in_units<T: float::Terms>(
    t: T,
    w: &PackedMatrix,
    x: &float::Rows<T::Value>,
    (rows, steps): (usize, usize),
    sink: &Sink<'_>,
    worker: &Worker<'_>,
    counter: &AtomicUsize,
) {
    /// Tiles and rows of one unit.
    const UNIT_TILES: usize = 4;
    const UNIT_ROWS: usize = 48;
    for unit in Units::new(worker, counter, (w.tiles(), UNIT_TILES), (rows, UNIT_ROWS)) {
        // SAFETY: tiles and rows are inside the region and the input; the rest is the caller's
        // contract.
        unsafe {
            let first = unit.first_tile;
            let bytes = w.region.as_slice().as_ptr().add(first * w.tile_bytes);
            let tiles = float::Tiles { bytes, tile_bytes: w.tile_bytes, first, count: unit.tiles };
            let rows = unit.first_row..unit.first_row + unit.rows;
            float::tiles(t, &tiles, x, rows, steps, sink);
        }
    }
}

/// Native blocks of up to 256 values are whole parts of a stretch.
const _: () = assert!((STRETCH * BLOCK).is_multiple_of(256));
