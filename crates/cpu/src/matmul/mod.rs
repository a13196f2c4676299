//! `y[M, N] = x[M, K] · w[N, K]ᵀ` for weights of every dtype.
//!
//! Weights are re-tiled once, when they are loaded, into tiles of 16 rows whose lanes are output
//! columns ([`PackedMatrix`]). Quantised weights meet activations quantised to 8 bits
//! ([`Activations`]) in exact integer dot products per group; floating-point weights meet `f32`
//! activations. One row is a stream over the weights; many rows unpack a stretch of weights once
//! and use it for all. The result of a row never depends on the other rows, the instruction set,
//! the number of threads or who computes what.

mod activations;
mod codec;
mod float;
mod kernel;
mod retile;

#[cfg(test)]
mod tests;

use std::marker::PhantomData;
use std::sync::atomic::AtomicUsize;

use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};
use cyb_tensor::{DType, quant};

use crate::memory::{OutOfMemory, Region, WeightMemory};
use crate::team::{Team, TeamError, Worker};
use codec::ROWS;
use kernel::{FEW, STRETCH, Scratch, Shape, TOKENS, Target};

pub use activations::{ActivationRows, Activations, BLOCK, Gate, Source};
pub use float::FloatRows;

/// Weight bytes of one unit of work for few rows: a microsecond or two of streaming.
const UNIT_BYTES: usize = 24 << 10;

/// Why weights cannot be packed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PackError {
    #[error("{n} rows of {k} {dtype} values are {want} bytes, but {got} are given")]
    Length { dtype: DType, n: usize, k: usize, want: usize, got: usize },
    #[error("rows of {k} values are not whole {dtype} blocks, or the matrix is too large")]
    Shape { dtype: DType, n: usize, k: usize },
    #[error("a matrix of {dtype} cannot be multiplied: convert it to a floating-point dtype")]
    DType { dtype: DType },
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    #[error(transparent)]
    Team(#[from] TeamError),
}

/// How the weights are kept.
#[derive(Clone, Debug)]
enum Form {
    /// Tiles of a quantised format.
    Tiles(retile::Plan),
    /// The file's blocks, unpacked when used; the bytes of a row.
    Native {
        row_bytes: usize,
    },
    /// Tiles of floating-point weights.
    F32,
    F16,
    Bf16,
}

/// Weights `[n, k]`, ready for products.
#[derive(Debug)]
pub struct PackedMatrix {
    dtype: DType,
    n: usize,
    k: usize,
    form: Form,
    tile_bytes: usize,
    region: Region,
}

impl PackedMatrix {
    /// Packs `n` rows of `k` values in their native layout, on all workers of `team`.
    ///
    /// # Errors
    /// A wrong number of bytes, an integer dtype, no memory.
    pub fn pack(
        memory: &mut WeightMemory,
        team: &Team,
        dtype: DType,
        n: usize,
        k: usize,
        bytes: &[u8],
    ) -> Result<PackedMatrix, PackError> {
        let row_bytes = dtype.bytes_for(k).ok_or(PackError::Shape { dtype, n, k })?;
        let want = row_bytes.checked_mul(n).ok_or(PackError::Shape { dtype, n, k })?;
        if bytes.len() != want {
            return Err(PackError::Length { dtype, n, k, want, got: bytes.len() });
        }
        let float = |bytes| k.checked_mul(ROWS * bytes).ok_or(PackError::Shape { dtype, n, k });
        let (form, tile_bytes) = if dtype.is_quantized() {
            match retile::plan(dtype, k / BLOCK) {
                Some(plan) => {
                    let tile_bytes = plan.tile_bytes;
                    (Form::Tiles(plan), tile_bytes)
                }
                None => (Form::Native { row_bytes }, row_bytes * ROWS),
            }
        } else {
            match dtype {
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
            fill(team, dtype, (n, k), &form, tile_bytes, bytes, region.as_mut_slice())?;
        }
        Ok(PackedMatrix { dtype, n, k, form, tile_bytes, region })
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

    fn tiles(&self) -> usize {
        self.n.div_ceil(ROWS)
    }

    fn blocks(&self) -> usize {
        self.k / BLOCK
    }
}

/// Writes all tiles.
fn fill(
    team: &Team,
    dtype: DType,
    (n, k): (usize, usize),
    form: &Form,
    tile_bytes: usize,
    bytes: &[u8],
    out: &mut [u8],
) -> Result<(), PackError> {
    let row_bytes = bytes.len() / n;
    let counter = AtomicUsize::new(0);
    let zeros = vec![0; row_bytes];
    let tiles = n.div_ceil(ROWS);
    let out_len = out.len();
    let out = SharedMut { start: out.as_mut_ptr() };
    // A few hundred KiB of tiles as one unit.
    let tiles_per_unit = ((256 << 10) / tile_bytes).max(1);
    team.run(|worker| {
        let mut values = Vec::new();
        for unit in worker.chunks(&counter, tiles.div_ceil(tiles_per_unit)) {
            for tile in unit * tiles_per_unit..((unit + 1) * tiles_per_unit).min(tiles) {
                let start = tile * tile_bytes;
                let len = tile_bytes.min(out_len - start);
                // SAFETY: tiles are disjoint parts of `out`, and each tile is one worker's.
                let out = unsafe { std::slice::from_raw_parts_mut(out.at(start), len) };
                let first = tile * ROWS;
                let row = |r: usize| {
                    let row = first + r;
                    if row < n { &bytes[row * row_bytes..(row + 1) * row_bytes] } else { &zeros }
                };
                match form {
                    Form::Tiles(plan) => {
                        retile::tile(dtype, plan, &std::array::from_fn(row), k / BLOCK, out);
                    }
                    Form::Native { .. } => {
                        out.copy_from_slice(&bytes[start..start + len]);
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
    Ok(())
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
            values.resize(k, 0.0);
            // The length is right, and the dtype is a floating-point one, so this cannot fail; the
            // zeros it would leave are those of `resize`.
            let _ = quant::decode(dtype, row, values);
            if dtype == DType::F64 {
                for (out, v) in out.chunks_exact_mut(4 * ROWS).zip(values.iter()) {
                    out[4 * r..4 * r + 4].copy_from_slice(&v.to_le_bytes());
                }
            } else {
                // 8-bit floats are exact in half precision.
                for (out, v) in out.chunks_exact_mut(2 * ROWS).zip(values.iter()) {
                    let half = half::f16::from_f32(*v).to_bits().to_le_bytes();
                    out[2 * r..2 * r + 2].copy_from_slice(&half);
                }
            }
        }
    }
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
    /// For the others.
    Float(FloatRows<'a>),
}

impl Input<'_> {
    fn rows(&self) -> usize {
        match self {
            Input::Quantized(x) => x.rows(),
            Input::Float(x) => x.rows,
        }
    }
}

/// Where results go: row `i` to `values[i * stride..][..n]`, written by several workers at once.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    start: *mut f32,
    len: usize,
    stride: usize,
    _owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: it borrows the values exclusively, and workers write disjoint parts (see `matmul`).
unsafe impl Send for Output<'_> {}
// SAFETY: as above.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    pub fn new(values: &'a mut [f32], stride: usize) -> Output<'a> {
        Output { start: values.as_mut_ptr(), len: values.len(), stride, _owner: PhantomData }
    }

    /// # Safety
    /// `start` is valid for `len` floats for `'a`, and nothing but this product accesses them.
    pub unsafe fn from_raw(start: *mut f32, len: usize, stride: usize) -> Output<'a> {
        Output { start, len, stride, _owner: PhantomData }
    }
}

/// What is done with a result before it is stored, in this order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Added, one value a column.
    pub bias: Option<&'a [f32]>,
    /// Adds to what the output holds instead of replacing it.
    pub accumulate: bool,
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
    assert!(out.stride >= w.n || rows == 1, "output rows overlap");
    assert!(out.len >= (rows - 1) * out.stride + w.n, "the output is too short");
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
        Input::Float(x) => {
            assert!(!w.takes_quantized(), "weights of {} take quantised activations", w.dtype);
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
                Form::Tiles(_) | Form::Native { .. } => {}
            }
        }
    }
}

/// Stores results.
#[derive(Clone, Copy)]
struct Sink<'a> {
    out: Output<'a>,
    n: usize,
    epilogue: Epilogue<'a>,
}

impl Sink<'_> {
    /// # Safety
    /// `tile` is a tile of the weights and `row` a row of the input; nobody else accesses the
    /// output there.
    #[inline(always)]
    unsafe fn put<S: Isa>(&self, s: S, tile: usize, row: usize, mut v: S::F) {
        let column = tile * ROWS;
        let count = LANES.min(self.n - column);
        if let Some(bias) = self.epilogue.bias {
            v = s.add(v, s.load_partial(&bias[column..column + count]));
        }
        // SAFETY: `matmul` checked that the output holds `n` columns of every row; the rest is the
        // caller's contract.
        let out = unsafe {
            std::slice::from_raw_parts_mut(
                self.out.start.add(row * self.out.stride + column),
                count,
            )
        };
        if self.epilogue.accumulate {
            v = s.add(v, s.load_partial(out));
        }
        s.store_partial(out, v);
    }
}

/// Calls `few(first tile, tiles)` or `many(tile, first row, rows)` for this worker's units.
#[inline(always)]
fn units(
    w: &PackedMatrix,
    rows: usize,
    is_few: bool,
    worker: &Worker<'_>,
    counter: &AtomicUsize,
    mut few: impl FnMut(usize, usize),
    mut many: impl FnMut(usize, usize, usize),
) {
    let tiles = w.tiles();
    if is_few {
        let tiles_per_unit = (UNIT_BYTES / w.tile_bytes.max(1)).clamp(1, 64);
        for unit in worker.chunks(counter, tiles.div_ceil(tiles_per_unit)) {
            let first = unit * tiles_per_unit;
            few(first, tiles_per_unit.min(tiles - first));
        }
    } else {
        // Tiles vary fastest, so that workers share a block of activations in the outer caches.
        for unit in worker.chunks(counter, tiles * rows.div_ceil(TOKENS)) {
            let (tile, first) = (unit % tiles, unit / tiles * TOKENS);
            many(tile, first, TOKENS.min(rows - first));
        }
    }
}

struct Tiled<'a, C> {
    w: &'a PackedMatrix,
    x: ActivationRows<'a>,
    sink: Sink<'a>,
    worker: &'a Worker<'a>,
    counter: &'a AtomicUsize,
    at: unsafe fn(*const u8, usize) -> C,
}

impl<C: codec::Codec> SimdOp for Tiled<'_, C> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Tiled { w, x, sink, worker, counter, at } = self;
        let blocks = w.blocks();
        let bytes = w.region.as_slice().as_ptr();
        // SAFETY: tiles follow one another in the region.
        let codec = |tile: usize| unsafe { at(bytes.add(tile * w.tile_bytes), blocks) };
        let mut scratch = Scratch::new();
        units(
            w,
            x.rows(),
            x.rows() <= FEW,
            worker,
            counter,
            |first, tiles| {
                for tile in first..first + tiles {
                    // SAFETY: the tile holds the blocks of a row of `x`; each tile is one worker's.
                    unsafe {
                        kernel::few(s, codec(tile), &x, |row, v| sink.put(s, tile, row, v));
                    }
                }
            },
            |tile, first, rows| {
                let w = codec(tile);
                let shape = const { Shape::of::<S, C>() };
                // SAFETY: as above; each pair of tile and rows is one worker's.
                unsafe {
                    kernel::many(
                        s,
                        shape,
                        &x,
                        (first, rows),
                        &mut scratch,
                        |first, blocks, to| kernel::unpack(s, w, first, blocks, to),
                        |row, v| sink.put(s, tile, row, v),
                    );
                }
            },
        );
    }
}

/// Unpacks a stretch of a tile that is still in the file's blocks.
///
/// # Safety
/// See [`kernel::unpack`].
unsafe fn unpack_native(
    w: &PackedMatrix,
    tile: usize,
    row_bytes: usize,
    (first, blocks): (usize, usize),
    to: Target,
) {
    let layout = w.dtype.layout();
    let (group, mins) = (quant::group_size(w.dtype), quant::has_offsets(w.dtype));
    let mut unpacked = quant::Codes::new();
    let rows = ROWS.min(w.n - tile * ROWS);
    for r in 0..ROWS {
        for b in 0..blocks * BLOCK / layout.block {
            if r < rows {
                let row = (tile * ROWS + r) * row_bytes;
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
                for (i, codes) in unpacked.codes[..layout.block].chunks_exact(4).enumerate() {
                    let step = to.codes.add((k / 4 + i) * codec::STEP + 4 * r);
                    step.cast::<[i8; 4]>()
                        .write_unaligned([codes[0], codes[1], codes[2], codes[3]]);
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
        let shape = Shape::native::<S>(w.dtype);
        let mut scratch = Scratch::new();
        let few = |_, _| {};
        units(w, x.rows(), false, worker, counter, few, |tile, first, rows| {
            // SAFETY: the tile holds the blocks of a row of `x`; each pair of tile and rows is one
            // worker's.
            unsafe {
                kernel::many(
                    s,
                    shape,
                    &x,
                    (first, rows),
                    &mut scratch,
                    |first, blocks, to| unpack_native(w, tile, row_bytes, (first, blocks), to),
                    |row, v| sink.put(s, tile, row, v),
                );
            }
        });
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
        /// Tiles and rows of one unit.
        const UNIT_TILES: usize = 4;
        const UNIT_ROWS: usize = 48;
        let Floats { w, x, sink, worker, counter, e: _ } = self;
        let tiles = w.tiles();
        let tile_units = tiles.div_ceil(UNIT_TILES);
        for unit in worker.chunks(counter, tile_units * x.rows.div_ceil(UNIT_ROWS)) {
            let first = unit % tile_units * UNIT_TILES;
            let row = unit / tile_units * UNIT_ROWS;
            let count = UNIT_TILES.min(tiles - first);
            let rows = row..(row + UNIT_ROWS).min(x.rows);
            // SAFETY: tiles and rows are inside the region and the input; each unit is one
            // worker's.
            unsafe {
                let bytes = w.region.as_slice().as_ptr().add(first * w.tile_bytes);
                float::tiles::<S, E>(
                    s,
                    bytes,
                    w.tile_bytes,
                    count,
                    &x,
                    rows,
                    w.k,
                    |tile, row, v| {
                        sink.put(s, first + tile, row, v);
                    },
                );
            }
        }
    }
}

/// Native blocks of up to 256 values are whole parts of a stretch.
const _: () = assert!(STRETCH * BLOCK % 256 == 0);
