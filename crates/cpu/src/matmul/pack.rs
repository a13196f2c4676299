//! Weights as products want them: packing a matrix of a file into tiles.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, OnceLock, PoisonError};

use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};
use cyb_tensor::{AlignedBytes, Bytes, DType, quant};

use super::activations::BLOCK;
use super::codec::{self, ROWS};
use super::{pairs, retile};
use crate::memory::{OutOfMemory, Region, WeightMemory};
use crate::team::{Team, TeamError};

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
pub(super) enum Form {
    /// Tiles of a quantised format.
    Tiles(codec::Layout),
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
    pub(super) dtype: DType,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) form: Form,
    /// Whether activations are rounded to half precision.
    halves: bool,
    pub(super) tile_bytes: usize,
    /// Bytes of all tiles.
    len: usize,
    /// The tiles, once they are made.
    region: OnceLock<Region>,
    later: Option<Later>,
}

/// What the tiles of a matrix are made of later.
#[derive(Debug)]
struct Later {
    bytes: Bytes,
    /// Where they will lie.
    room: Mutex<Option<Region>>,
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
        let (matrix, mut region) = PackedMatrix::unmade(compute, memory, [n, k], source)?;
        if n > 0 && k > 0 {
            matrix.fill(team, source, packed, region.as_mut_slice())?;
        }
        Ok(PackedMatrix { region: OnceLock::from(region), ..matrix })
    }

    /// A matrix of a quantised dtype whose tiles are made by [`PackedMatrix::finish`]; until then every
    /// product makes those that it needs on the spot. What is multiplied once only, such as with a
    /// short prompt, is so without memory for a copy.
    ///
    /// # Errors
    /// As [`PackedMatrix::pack`], and for other dtypes.
    pub fn pack_later(
        memory: &mut WeightMemory,
        [n, k]: [usize; 2],
        dtype: DType,
        bytes: Bytes,
    ) -> Result<PackedMatrix, PackError> {
        if !dtype.is_quantized() {
            return Err(PackError::DType { dtype });
        }
        let source = Native { dtype, bytes: bytes.as_slice(), turned: false };
        let (matrix, region) = PackedMatrix::unmade(Compute::F32, memory, [n, k], source)?;
        let room = Mutex::new(Some(region));
        Ok(PackedMatrix { later: Some(Later { bytes, room }), ..matrix })
    }

    /// Makes the tiles of a matrix that has none yet, and lets go of the mapped pages they come from.
    ///
    /// # Errors
    /// A worker panicked.
    pub fn finish(&self, team: &Team) -> Result<(), TeamError> {
        let Some(later) = &self.later else { return Ok(()) };
        let mut room = later.room.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut region) = room.take() {
            let bytes = later.bytes.as_slice();
            let source = Native { dtype: self.dtype, bytes, turned: false };
            if self.n > 0 && self.k > 0 {
                let done = |part| later.bytes.release_range(part);
                if let Err(error) = self.fill(team, source, &done, region.as_mut_slice()) {
                    *room = Some(region);
                    return Err(error);
                }
            }
            later.bytes.release();
            // It was empty: only this sets it, and only once.
            let _ = self.region.set(region);
        }
        Ok(())
    }

    /// A matrix without tiles, and room for them.
    fn unmade(
        compute: Compute,
        memory: &mut WeightMemory,
        [n, k]: [usize; 2],
        source: Native<'_>,
    ) -> Result<(PackedMatrix, Region), PackError> {
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
            let layout = retile::layout(dtype).ok_or(PackError::DType { dtype })?;
            (Form::Tiles(layout), layout.tile_bytes(k / BLOCK))
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
        let len =
            n.div_ceil(ROWS).checked_mul(tile_bytes).ok_or(PackError::Shape { dtype, n, k })?;
        let region = memory.region(len)?;
        let halves = compute == Compute::F16 && !dtype.is_quantized();
        let tiles = OnceLock::new();
        let matrix =
            PackedMatrix { dtype, n, k, form, halves, tile_bytes, len, region: tiles, later: None };
        Ok((matrix, region))
    }

    /// Writes all tiles.
    fn fill(
        &self,
        team: &Team,
        source: Native<'_>,
        packed: &dyn Fn(Range<usize>),
        out: &mut [u8],
    ) -> Result<(), TeamError> {
        let Native { bytes, turned, .. } = source;
        let (n, tile_bytes) = (self.n, self.tile_bytes);
        let row_bytes = bytes.len() / n;
        let tiles = self.tiles();
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
                        self.make(source, tile, &mut values, out);
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

    /// Writes a tile; `values` is room for a row.
    fn make(&self, source: Native<'_>, tile: usize, values: &mut Vec<f32>, out: &mut [u8]) {
        let Native { dtype, bytes, turned } = source;
        let (n, k, first) = (self.n, self.k, tile * ROWS);
        let row_bytes = bytes.len() / n;
        // In place of the rows that the last tile lacks.
        let zeros = if first + ROWS > n { vec![0; row_bytes] } else { Vec::new() };
        let row = |r: usize| {
            let row = first + r;
            if row < n { &bytes[row * row_bytes..(row + 1) * row_bytes] } else { &zeros }
        };
        match &self.form {
            Form::Pairs if turned => {
                let mut row = Vec::new();
                for r in 0..ROWS.min(n - first) {
                    turned_row(bytes, (n, k), first + r, dtype, &mut row);
                    pairs::pack_row(dtype, &row, r, k, values, out);
                }
            }
            Form::F16 if turned && dtype != DType::F16 => {
                let mut row = Vec::new();
                for r in 0..ROWS.min(n - first) {
                    turned_row(bytes, (n, k), first + r, dtype, &mut row);
                    half_row(dtype, &row, r, k, values, out);
                }
            }
            _ if turned => turned_tile(bytes, (n, k), first, dtype, out),
            Form::Tiles(layout) => {
                retile::tile(dtype, layout, &std::array::from_fn(row), k / BLOCK, out);
            }
            Form::Pairs => {
                for r in 0..ROWS {
                    pairs::pack_row(dtype, row(r), r, k, values, out);
                }
            }
            Form::F16 if dtype != DType::F16 => {
                for r in 0..ROWS {
                    half_row(dtype, row(r), r, k, values, out);
                }
            }
            Form::F32 | Form::F16 | Form::Bf16 => {
                for r in 0..ROWS {
                    float_row(dtype, row(r), r, k, values, out);
                }
            }
        }
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
        self.len
    }

    /// The packed form; nothing until it is made.
    pub fn packed_bytes(&self) -> &[u8] {
        self.region.get().map_or(&[], Region::as_slice)
    }

    /// Whether the packed form is made.
    pub fn is_made(&self) -> bool {
        self.region.get().is_some()
    }

    /// Whether products take [`Input::Quantized`].
    pub fn takes_quantized(&self) -> bool {
        matches!(self.form, Form::Tiles(_))
    }

    /// Whether products take [`Input::Pairs`].
    pub fn takes_pairs(&self) -> bool {
        matches!(self.form, Form::Pairs)
    }

    /// Whether products take [`Input::Float`](super::Input::Float) of numbers that [`round_to_half`]
    /// gives.
    pub fn takes_halves(&self) -> bool {
        self.halves
    }

    pub(super) fn tiles(&self) -> usize {
        self.n.div_ceil(ROWS)
    }
}

thread_local! {
    /// Room for the tile at hand, kept from one product to the next.
    static ROOM: Cell<AlignedBytes> = Cell::new(AlignedBytes::zeroed(0));
}

/// The tiles of a matrix: those that are made, else each made when it is asked for.
pub(super) struct Tiles<'a> {
    matrix: &'a PackedMatrix,
    made: &'a [u8],
    room: AlignedBytes,
}

impl<'a> Tiles<'a> {
    pub(super) fn of(matrix: &'a PackedMatrix) -> Tiles<'a> {
        let made = matrix.packed_bytes();
        let mut room = AlignedBytes::zeroed(0);
        if made.is_empty() {
            room = ROOM.replace(room);
            if room.as_slice().len() < matrix.tile_bytes {
                room = AlignedBytes::zeroed(matrix.tile_bytes);
            }
        }
        Tiles { matrix, made, room }
    }

    /// Whether they are made.
    pub(super) fn are_made(&self) -> bool {
        !self.made.is_empty()
    }

    /// The tile `tile`, until another is asked for.
    pub(super) fn at(&mut self, tile: usize) -> *const u8 {
        let bytes = self.matrix.tile_bytes;
        if self.are_made() {
            return self.made[tile * bytes..].as_ptr();
        }
        if let Some(later) = &self.matrix.later {
            let (dtype, source) = (self.matrix.dtype, later.bytes.as_slice());
            let source = Native { dtype, bytes: source, turned: false };
            let out = &mut self.room.as_mut_slice()[..bytes];
            self.matrix.make(source, tile, &mut Vec::new(), out);
        }
        self.room.as_slice().as_ptr()
    }
}

impl Drop for Tiles<'_> {
    fn drop(&mut self) {
        if !self.are_made() {
            ROOM.set(std::mem::replace(&mut self.room, AlignedBytes::zeroed(0)));
        }
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
