//! Products in bfloat16: weights and activations rounded to it, two columns a step, sums in `f32`.
//!
//! A row of activations is rounded once and met by all weights. Columns are added in pairs, the
//! second of a pair first (see [`Pairs`]), in the order of the pairs.

use std::marker::PhantomData;

use cyb_simd::{AnyIsa, Isa, LANES, PairOp, Pairs};
use cyb_tensor::{DType, quant};

use super::codec::ROWS;
use super::float::{Rows, Terms};

/// Activation rows rounded to bfloat16, each filled up to whole pairs with a 0.
#[derive(Clone, Copy, Debug)]
pub struct PairRows<'a> {
    start: *mut u16,
    stride: usize,
    k: usize,
    rows: usize,
    _owner: PhantomData<&'a mut [u16]>,
}

// SAFETY: it borrows the values exclusively; writes through it happen in an `unsafe` function whose
// contract keeps workers apart.
unsafe impl Send for PairRows<'_> {}
// SAFETY: as above.
unsafe impl Sync for PairRows<'_> {}

impl PairRows<'_> {
    /// Bytes for `rows` rows of `k` values.
    pub fn bytes(rows: usize, k: usize) -> usize {
        rows * stride(k) * size_of::<u16>()
    }

    /// # Safety
    /// `start` is aligned for `u16` and valid for [`PairRows::bytes`] for as long as the result
    /// lives.
    pub unsafe fn over(start: *mut u8, rows: usize, k: usize) -> Self {
        PairRows { start: start.cast(), stride: stride(k), k, rows, _owner: PhantomData }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn k(&self) -> usize {
        self.k
    }

    pub(super) fn stored(&self) -> Rows<u16> {
        Rows { start: self.start, stride: self.stride }
    }

    /// Rounds `values` into row `row`.
    ///
    /// # Safety
    /// Nobody else accesses the row.
    ///
    /// # Panics
    /// There is no such row, or it has another length.
    pub unsafe fn round(&self, isa: AnyIsa, row: usize, values: &[f32]) {
        assert!(row < self.rows && values.len() == self.k, "a row of {} values", self.k);
        // SAFETY: the row is inside the memory, and the caller's alone.
        let out = unsafe {
            std::slice::from_raw_parts_mut(self.start.add(row * self.stride), self.stride)
        };
        isa.run_pairs(Round { values, out });
    }
}

/// Values of a stored row.
fn stride(k: usize) -> usize {
    k.next_multiple_of(2)
}

struct Round<'a> {
    values: &'a [f32],
    out: &'a mut [u16],
}

impl PairOp for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<P: Pairs>(self, p: P) {
        let s = p.isa();
        let mut out = self.out.chunks_mut(LANES);
        for (values, out) in self.values.chunks(LANES).zip(&mut out) {
            let v = s.load_partial(values);
            if out.len() == LANES {
                // SAFETY: there is room for 16 values.
                unsafe { p.round(out.as_mut_ptr(), v) };
            } else {
                let mut last = [0; LANES];
                // SAFETY: as above.
                unsafe { p.round(last.as_mut_ptr(), v) };
                out.copy_from_slice(&last[..out.len()]);
            }
        }
    }
}

/// Two columns a step.
#[derive(Clone, Copy)]
pub(super) struct Double<P>(pub(super) P);

impl<P: Pairs> Terms for Double<P> {
    type Isa = P::Isa;
    type W = P::W;
    type X = P::W;
    type Value = u16;
    const BYTES: usize = 2 * ROWS * size_of::<u16>();
    const VALUES: usize = 2;

    #[inline(always)]
    fn isa(self) -> P::Isa {
        self.0.isa()
    }
    #[inline(always)]
    unsafe fn weights(self, p: *const u8) -> P::W {
        // SAFETY: the caller's contract.
        unsafe { self.0.load_pairs(p.cast()) }
    }
    #[inline(always)]
    unsafe fn value(self, p: *const u16) -> P::W {
        // SAFETY: the caller's contract.
        unsafe { self.0.splat_pair(p) }
    }
    #[inline(always)]
    fn add(self, sum: <P::Isa as Isa>::F, w: P::W, x: P::W) -> <P::Isa as Isa>::F {
        self.0.dot_pairs(sum, w, x)
    }
}

/// Bytes of a tile of rows of `k`.
pub(super) fn tile_bytes(k: usize) -> Option<usize> {
    k.checked_next_multiple_of(2)?.checked_mul(ROWS * size_of::<u16>())
}

/// Writes row `r` of a tile, whose bytes are 0 before.
pub(super) fn pack_row(
    dtype: DType,
    row: &[u8],
    r: usize,
    k: usize,
    values: &mut Vec<f32>,
    out: &mut [u8],
) {
    values.resize(k, 0.0);
    // The length is right, and the dtype is a floating-point one, so this cannot fail; the zeros it
    // would leave are those of `resize`.
    let _ = quant::decode(dtype, row, values);
    let pair = 2 * size_of::<u16>();
    for (step, values) in out.chunks_exact_mut(ROWS * pair).zip(values.chunks(2)) {
        for (out, v) in step[r * pair..][..pair].chunks_exact_mut(2).zip(values) {
            // As activations are rounded.
            let v = if v.abs() < f32::MIN_POSITIVE { 0.0 } else { *v };
            out.copy_from_slice(&half::bf16::from_f32(v).to_bits().to_le_bytes());
        }
    }
}
