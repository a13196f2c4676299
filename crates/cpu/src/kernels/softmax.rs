//! Softmax along an axis that is not the last: lanes are neighbors along the axes after it. And the
//! parts of a softmax over a row that kernels of attention share.

use std::ops::Range;

use cyb_exec::{Call, ExecError};
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp, math};

use super::{all_f32, attrs_of};
use crate::io::Io;
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] =
    &[Row { op: "softmax", name: "softmax_axis_f32", supports: fits, build }];

/// Vectors a worker takes at a time.
const VECTORS: usize = 4;

fn fits(call: &Call<'_>) -> bool {
    let rank = call.inputs[0].rank();
    all_f32(call) && attrs_of(call.op).size("axis").is_ok_and(|axis| axis + 1 < rank)
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    Ok(Box::new(Softmax { axis: attrs_of(&b.node.op).size("axis")?, isa: b.isa }))
}

#[derive(Debug)]
struct Softmax {
    axis: usize,
    isa: AnyIsa,
}

impl Kernel for Softmax {
    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let x = io.slice::<f32>(0);
        let dims = io.dims(0);
        let (outer, len): (usize, usize) = (dims[..self.axis].iter().product(), dims[self.axis]);
        let inner: usize = dims[self.axis + 1..].iter().product();
        if x.is_empty() {
            return Ok(());
        }
        let out = io.output::<f32>(0);
        let width = VECTORS * LANES;
        let blocks = inner.div_ceil(width);
        io.each(outer * blocks, |unit| {
            let (row, first) = (unit / blocks, unit % blocks * width);
            let width = width.min(inner - first);
            for i in 0..width.div_ceil(LANES) {
                let at = row * len * inner + first + i * LANES;
                let lanes = LANES.min(width - i * LANES);
                self.isa.run(Columns { x, out: out.start(), at, len, inner, lanes });
            }
        });
        Ok(())
    }
}

/// Some columns: `len` elements each, `inner` apart.
struct Columns<'a> {
    x: &'a [f32],
    out: *mut f32,
    at: usize,
    len: usize,
    inner: usize,
    lanes: usize,
}

impl SimdOp for Columns<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Self { x, out, at, len, inner, lanes } = self;
        let line = |i: usize| &x[at + i * inner..][..lanes];
        let mut top = s.splat(f32::NEG_INFINITY);
        for i in 0..len {
            top = s.max(top, s.load_padded(line(i), f32::NEG_INFINITY));
        }
        // SAFETY: the columns are this worker's, and the output has the input's shape.
        let slot =
            |i: usize| unsafe { std::slice::from_raw_parts_mut(out.add(at + i * inner), lanes) };
        let mut sum = s.splat(0.0);
        for i in 0..len {
            let e = math::exp(s, s.sub(s.load_partial(line(i)), top));
            sum = s.add(sum, e);
            s.store_partial(slot(i), e);
        }
        for i in 0..len {
            let slot = slot(i);
            let v = s.div(s.load_partial(slot), sum);
            s.store_partial(slot, v);
        }
    }
}

/// `softcap * tanh(x / softcap)` in place, where there is a cap.
#[inline(always)]
pub(super) fn cap<S: Isa>(s: S, row: &mut [f32], softcap: f32) {
    if softcap > 0.0 {
        let inverse = s.splat(1.0 / softcap);
        for part in row.chunks_mut(LANES) {
            let bent = math::tanh(s, s.mul(s.load_partial(part), inverse));
            s.store_partial(part, s.mul(bent, s.splat(softcap)));
        }
    }
}

/// Hides the scores of a row that are not in `seen`.
#[inline(always)]
pub(super) fn keep(row: &mut [f32], seen: Range<usize>) {
    row[..seen.start].fill(f32::NEG_INFINITY);
    row[seen.end..].fill(f32::NEG_INFINITY);
}

/// `exp(x - max)` in place; gives the maximum and the sum. What is hidden (-inf) has no weight, so
/// where all is, the sum is 0.
#[inline(always)]
pub(super) fn exponentials<S: Isa>(s: S, row: &mut [f32]) -> (f32, f32) {
    let never = f32::NEG_INFINITY;
    // Whole vectors apart from the rest, which needs a copy.
    let (whole, rest) = row.as_chunks_mut::<LANES>();
    let mut top = s.load_padded(rest, never);
    for lanes in whole.iter() {
        top = s.max(top, s.load_partial(lanes));
    }
    let top = s.reduce_max(top);
    let mut sum = s.splat(0.0);
    for lanes in whole {
        let weight = exponential(s, s.load_partial(lanes), top);
        sum = s.add(sum, weight);
        s.store_partial(lanes, weight);
    }
    if !rest.is_empty() {
        let weight = exponential(s, s.load_padded(rest, never), top);
        sum = s.add(sum, weight);
        s.store_partial(rest, weight);
    }
    (top, s.reduce_sum(sum))
}

/// `exp(x - top)`, 0 for what is hidden, NaN for NaN.
#[inline(always)]
fn exponential<S: Isa>(s: S, x: S::F, top: f32) -> S::F {
    s.select_gt(s.splat(f32::MIN), x, s.splat(0.0), math::exp(s, s.sub(x, s.splat(top))))
}
