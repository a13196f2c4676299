//! Where results of a product go, and what is done with them on the way.

use std::marker::PhantomData;
use std::ops::Range;

use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};

use super::codec::ROWS;
use crate::activation::Activation;

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

    /// # Panics
    /// It does not hold `rows` rows of `n`.
    pub(super) fn check(&self, rows: usize, n: usize) {
        assert!(self.stride >= n || rows == 1, "output rows overlap");
        assert!(self.len >= (rows - 1) * self.stride + n, "the output is too short");
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
    /// Added, row by row as the output lies.
    pub residual: Option<&'a [f32]>,
    /// Of the sum. It is applied to a unit of work at a time, when all its results are stored.
    pub activation: Activation,
}

/// Stores results.
#[derive(Clone, Copy)]
pub(super) struct Sink<'a> {
    pub(super) out: Output<'a>,
    pub(super) n: usize,
    pub(super) epilogue: Epilogue<'a>,
}

impl Sink<'_> {
    /// Applies the activation to `columns` of `rows`.
    ///
    /// # Safety
    /// They are inside the output, and nobody else accesses them.
    pub(super) unsafe fn activate(&self, isa: AnyIsa, rows: Range<usize>, columns: Range<usize>) {
        let activation = self.epilogue.activation;
        let columns = columns.start..columns.end.min(self.n);
        for row in rows {
            let at = row * self.out.stride + columns.start;
            // SAFETY: `matmul` checked that the output holds `n` columns of every row; the rest is
            // the caller's contract.
            let values =
                unsafe { std::slice::from_raw_parts_mut(self.out.start.add(at), columns.len()) };
            isa.run(Activate { values, activation });
        }
    }

    /// Asks for what [`Sink::put`] will write and read.
    #[inline(always)]
    pub(super) fn ask<S: Isa>(&self, s: S, tile: usize, row: usize) {
        let at = row * self.out.stride + tile * ROWS;
        s.prefetch(self.out.start.wrapping_add(at).cast());
        if let Some(residual) = self.epilogue.residual {
            s.prefetch(residual.as_ptr().wrapping_add(at).cast());
        }
    }

    /// # Safety
    /// `tile` is a tile of the weights and `row` a row of the input; nobody else accesses the
    /// output there.
    #[inline(always)]
    pub(super) unsafe fn put<S: Isa>(&self, s: S, tile: usize, row: usize, mut v: S::F) {
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
        if let Some(residual) = self.epilogue.residual {
            let at = row * self.out.stride + column;
            v = s.add(v, s.load_partial(&residual[at..at + count]));
        }
        s.store_partial(out, v);
    }
}

/// An activation in place.
struct Activate<'a> {
    values: &'a mut [f32],
    activation: Activation,
}

impl SimdOp for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        for part in self.values.chunks_mut(LANES) {
            let v = self.activation.apply(s, s.load_partial(part));
            s.store_partial(part, v);
        }
    }
}
