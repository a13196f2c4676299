//! Keys and values in pool blocks, decoded a block at a time.

use std::marker::PhantomData;

use cyb_simd::{Isa, LANES};
use cyb_tensor::DType;

use super::POSITIONS;

const CACHE_LINE: usize = 64;
/// Codes that share a scale in `q8_0`, and the bytes of that.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 2 + BLOCK;

/// Whether a pool may have this dtype: those that `kv_cache` stores.
pub(super) fn stored(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0)
}

/// Rows of `width` elements by slot and group.
pub(super) struct Pool<'a> {
    bytes: &'a [u8],
    dtype: DType,
    groups: usize,
    width: usize,
    /// Bytes of a row.
    stride: usize,
}

impl<'a> Pool<'a> {
    /// `width` is a multiple of 16, and of 32 where the dtype is `q8_0`.
    pub(super) fn new(bytes: &'a [u8], dtype: DType, groups: usize, width: usize) -> Pool<'a> {
        let layout = dtype.layout();
        Pool { bytes, dtype, groups, width, stride: width / layout.block * layout.bytes }
    }

    /// A group's rows in the [`POSITIONS`] slots from `slot` on, which are one block's.
    ///
    /// # Panics
    /// They are not in the pool.
    pub(super) fn block(&self, group: usize, slot: usize) -> Block<'a> {
        let apart = self.groups * self.stride;
        let rows = &self.bytes[slot * apart..(slot + POSITIONS) * apart][group * self.stride..];
        Block { rows, apart, dtype: self.dtype, width: self.width, stride: self.stride }
    }
}

/// Rows of one group in [`POSITIONS`] slots. Those that no token has filled may hold anything.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    /// From the first row to the end of the slots.
    rows: &'a [u8],
    /// Bytes from a row to the next.
    apart: usize,
    dtype: DType,
    width: usize,
    /// Bytes of a row.
    stride: usize,
}

impl<'a> Block<'a> {
    /// The cache lines of the rows, to be asked for.
    pub(super) fn lines(&self) -> Lines {
        let (row, lines) = (self.rows.as_ptr(), self.stride.div_ceil(CACHE_LINE));
        let at_once = (POSITIONS * lines).div_ceil(self.width);
        Lines { row, line: 0, lines, apart: self.apart, at_once }
    }

    /// All rows as `[POSITIONS, width]`.
    #[inline(always)]
    pub(super) fn load<S: Isa>(&self, s: S, out: &mut [f32]) {
        match self.dtype {
            DType::F16 => self.load_as::<S, F16>(s, out),
            DType::BF16 => self.load_as::<S, Bf16>(s, out),
            DType::Q8_0 => self.load_as::<S, Q8>(s, out),
            _ => self.load_as::<S, F32>(s, out),
        }
    }

    #[inline(always)]
    fn load_as<S: Isa, T: Stored>(&self, s: S, out: &mut [f32]) {
        let rows = self.as_rows::<T>();
        for (j, out) in out.chunks_exact_mut(self.width).enumerate().take(POSITIONS) {
            for (i, out) in out.chunks_exact_mut(LANES).enumerate() {
                // SAFETY: there are so many rows of so many elements.
                s.store_partial(out, unsafe { rows.lanes(s, j, i * LANES) });
            }
        }
    }

    /// The rows as they are stored, for elements of type `T`.
    pub(super) fn as_rows<T: Stored>(&self) -> Stride<'a, T> {
        let Block { rows, apart, stride, .. } = *self;
        assert!(rows.len() >= (POSITIONS - 1) * apart + stride && stride >= T::bytes(self.width));
        Stride { rows: rows.as_ptr(), apart, life: PhantomData }
    }

    /// Type of the elements, where products may take them as they are.
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// All rows, as `[width, POSITIONS]`.
    #[inline(always)]
    pub(super) fn load_turned<S: Isa>(&self, s: S, out: &mut [f32]) {
        match self.dtype {
            DType::F16 => self.turned_as::<S, F16>(s, out),
            DType::BF16 => self.turned_as::<S, Bf16>(s, out),
            DType::Q8_0 => self.turned_as::<S, Q8>(s, out),
            _ => self.turned_as::<S, F32>(s, out),
        }
    }

    #[inline(always)]
    fn turned_as<S: Isa, T: Stored>(&self, s: S, out: &mut [f32]) {
        assert_eq!(out.len(), self.width * POSITIONS);
        let rows = self.as_rows::<T>();
        for d in (0..self.width).step_by(LANES) {
            for first in (0..POSITIONS).step_by(LANES) {
                // SAFETY: the rows and elements exist; 16 floats are writable at 16 strides, from
                // a position of the first of 16 rows of `out`.
                unsafe {
                    let to = out.as_mut_ptr().add(d * POSITIONS + first);
                    let from = rows.rows.add(first * rows.apart);
                    T::turn(s, from, rows.apart, d, to);
                }
            }
        }
    }
}

/// Where values of a block are read: row by row, 16 elements at a time.
pub(super) trait Rows: Copy {
    /// # Safety
    /// There is a row `j` with elements `d..d + 16`.
    unsafe fn lanes<S: Isa>(&self, s: S, j: usize, d: usize) -> S::F;
}

/// Rows as they are stored.
pub(super) struct Stride<'a, T> {
    rows: *const u8,
    apart: usize,
    life: PhantomData<(&'a [u8], T)>,
}

impl<T> Clone for Stride<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Stride<'_, T> {}

impl<T: Stored> Rows for Stride<'_, T> {
    #[inline(always)]
    unsafe fn lanes<S: Isa>(&self, s: S, j: usize, d: usize) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { T::lanes(s, self.rows.add(j * self.apart), d) }
    }
}

/// Rows that lie decoded one after the other.
#[derive(Clone, Copy)]
pub(super) struct Decoded<'a> {
    rows: &'a [f32],
    width: usize,
}

impl<'a> Decoded<'a> {
    /// `[POSITIONS, width]`.
    pub(super) fn new(rows: &'a [f32], width: usize) -> Decoded<'a> {
        assert!(rows.len() >= POSITIONS * width, "a block of rows of {width}");
        Decoded { rows, width }
    }
}

impl Rows for Decoded<'_> {
    #[inline(always)]
    unsafe fn lanes<S: Isa>(&self, s: S, j: usize, d: usize) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { s.load(self.rows.as_ptr().add(j * self.width + d)) }
    }
}

/// Cache lines that are asked for little by little: a burst of them would wait for itself.
pub(super) struct Lines {
    row: *const u8,
    line: usize,
    /// Lines of a row, and bytes from a row to the next.
    lines: usize,
    apart: usize,
    /// So many with each of as many calls as a row has elements.
    at_once: usize,
}

impl Lines {
    /// None at all.
    pub(super) const fn none() -> Lines {
        Lines { row: std::ptr::null(), line: 0, lines: 1, apart: 0, at_once: 0 }
    }

    #[inline(always)]
    pub(super) fn ask<S: Isa>(&mut self, s: S) {
        for _ in 0..self.at_once {
            s.prefetch(self.row.wrapping_add(self.line * CACHE_LINE));
            self.line += 1;
            if self.line == self.lines {
                self.line = 0;
                self.row = self.row.wrapping_add(self.apart);
            }
        }
    }
}

/// How elements are stored.
pub(super) trait Stored {
    /// Bytes of a row.
    fn bytes(width: usize) -> usize;

    /// Elements `d..d + 16` of a row.
    ///
    /// # Safety
    /// The row has them.
    unsafe fn lanes<S: Isa>(s: S, row: *const u8, d: usize) -> S::F;

    /// Elements `d..d + 16` of 16 rows, transposed: 16 floats at multiples of [`POSITIONS`].
    ///
    /// # Safety
    /// The rows have them, and the floats are writable.
    #[inline(always)]
    unsafe fn turn<S: Isa>(s: S, rows: *const u8, apart: usize, d: usize, to: *mut f32) {
        let mut lanes = [s.splat(0.0); LANES];
        for (j, lanes) in lanes.iter_mut().enumerate() {
            // SAFETY: the caller's contract.
            *lanes = unsafe { Self::lanes(s, rows.add(j * apart), d) };
        }
        // SAFETY: the caller's contract.
        unsafe { s.store_transposed(&lanes, to, POSITIONS) };
    }
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;
pub(super) struct Q8;

impl Stored for F32 {
    fn bytes(width: usize) -> usize {
        4 * width
    }

    #[inline(always)]
    unsafe fn lanes<S: Isa>(s: S, row: *const u8, d: usize) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { s.load(row.cast::<f32>().add(d)) }
    }
}

impl Stored for F16 {
    fn bytes(width: usize) -> usize {
        2 * width
    }

    #[inline(always)]
    unsafe fn lanes<S: Isa>(s: S, row: *const u8, d: usize) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { s.load_f16(row.cast::<u16>().add(d)) }
    }

    #[inline(always)]
    unsafe fn turn<S: Isa>(s: S, rows: *const u8, apart: usize, d: usize, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { s.turn_halves::<false>(rows.cast::<u16>().add(d), apart, to, POSITIONS) };
    }
}

impl Stored for Bf16 {
    fn bytes(width: usize) -> usize {
        2 * width
    }

    #[inline(always)]
    unsafe fn lanes<S: Isa>(s: S, row: *const u8, d: usize) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { s.load_bf16(row.cast::<u16>().add(d)) }
    }

    #[inline(always)]
    unsafe fn turn<S: Isa>(s: S, rows: *const u8, apart: usize, d: usize, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { s.turn_halves::<true>(rows.cast::<u16>().add(d), apart, to, POSITIONS) };
    }
}

impl Stored for Q8 {
    fn bytes(width: usize) -> usize {
        width / BLOCK * BLOCK_BYTES
    }

    #[inline(always)]
    unsafe fn lanes<S: Isa>(s: S, row: *const u8, d: usize) -> S::F {
        // SAFETY: the caller's contract: the block of 32 that holds the elements is in the row.
        unsafe {
            let block = row.add(d / BLOCK * BLOCK_BYTES);
            let scale = half::f16::from_le_bytes(block.cast::<[u8; 2]>().read()).to_f32();
            let codes = s.load_i8(block.add(2 + d % BLOCK).cast());
            s.mul(s.to_float(codes), s.splat(scale))
        }
    }
}
