//! Reductions, positions of extremes, and running sums.

use cyb_ir::{Exp, Reduce, ValueId};
use cyb_tensor::DType;

use super::Rows;
use crate::context::{Context, Made, Outputs};
use crate::error::{OpError, bad};

pub(super) static ROWS: Rows = &[
    ("ReduceSum", |c| reduce(c, 13, |c, x, axes| c.reduce_kept(Reduce::Sum, x, axes))),
    ("ReduceProd", |c| reduce(c, 18, |c, x, axes| c.reduce_kept(Reduce::Prod, x, axes))),
    ("ReduceMax", |c| reduce(c, 18, |c, x, axes| c.reduce_kept(Reduce::Max, x, axes))),
    ("ReduceMin", |c| reduce(c, 18, |c, x, axes| c.reduce_kept(Reduce::Min, x, axes))),
    ("ReduceMean", |c| reduce(c, 18, mean)),
    ("ReduceL1", |c| {
        reduce(c, 18, |c, x, axes| {
            let size = c.abs(x)?;
            c.reduce_kept(Reduce::Sum, size, axes)
        })
    }),
    ("ReduceL2", |c| {
        reduce(c, 18, |c, x, axes| {
            let dtype = c.dtype(x);
            let sum = square_sum(c, x, axes)?;
            let sum = if c.is_float(sum) { sum } else { c.cast(sum, DType::F64)? };
            let root = c.b.exp(Exp::Sqrt, sum)?;
            c.cast(root, dtype)
        })
    }),
    ("ReduceSumSquare", |c| reduce(c, 18, square_sum)),
    ("ReduceLogSum", |c| {
        reduce(c, 18, |c, x, axes| {
            let sum = c.reduce_kept(Reduce::Sum, x, axes)?;
            ln(c, sum)
        })
    }),
    ("ReduceLogSumExp", |c| reduce(c, 18, log_sum_exp)),
    ("ArgMax", |c| arg(c, Reduce::Argmax)),
    ("ArgMin", |c| arg(c, Reduce::Argmin)),
    ("CumSum", |c| running(c, Reduce::Sum)),
    ("CumProd", |c| running(c, Reduce::Prod)),
    ("GlobalAveragePool", |c| global(c, |c, x, axes| c.mean_kept(x, axes))),
    ("GlobalMaxPool", |c| global(c, |c, x, axes| c.reduce_kept(Reduce::Max, x, axes))),
    ("GlobalLpPool", |c| {
        let p = c.float("p", 2.0)?;
        global(c, |c, x, axes| norm(c, x, axes, p))
    }),
    ("LpNormalization", |c| {
        let p = c.float("p", 2.0)?;
        let x = c.x(0)?;
        let axis = c.axis(c.int("axis", -1)?, c.rank(x.id))?;
        let n = norm(c, x.id, &[axis], p)?;
        let zero = c.scalar(x.id, 0.0)?;
        let none = c.b.cmp(cyb_ir::Cmp::Eq, n, zero)?;
        let one = c.scalar(x.id, 1.0)?;
        let n = c.b.select(none, one, n)?;
        let y = c.divide(x.id, n)?;
        c.one(y, x.elem)
    }),
];

/// A reduction whose axes are an input from opset `since` on.
fn reduce(
    c: &mut Context<'_>,
    since: i64,
    f: impl FnOnce(&mut Context<'_>, ValueId, &[usize]) -> Made,
) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let axes = if c.opset >= since { c.opt_ints(1)? } else { c.opt_int_list("axes")? };
    let axes = axes.unwrap_or_default();
    if axes.is_empty() && c.flag("noop_with_empty_axes", false)? {
        // Without axes each element is reduced alone.
        let y = f(c, x.id, &[])?;
        return c.one(y, x.elem);
    }
    let axes = if axes.is_empty() { (0..dims.len()).collect() } else { c.axes(&axes, dims.len())? };
    let wide = c.wide(x.id)?;
    let y = f(c, wide, &axes)?;
    let y = c.cast(y, c.dtype(x.id))?;
    let y = if c.flag("keepdims", true)? { y } else { drop_axes(c, y, &axes)? };
    c.one(y, x.elem)
}

/// Without axes of length 1.
pub(super) fn drop_axes(c: &mut Context<'_>, x: ValueId, axes: &[usize]) -> Made {
    let dims = c.dims(x)?;
    let kept: Vec<usize> = (0..dims.len()).filter(|i| !axes.contains(i)).map(|i| dims[i]).collect();
    c.reshape(x, &kept)
}

fn mean(c: &mut Context<'_>, x: ValueId, axes: &[usize]) -> Made {
    if c.is_float(x) {
        return c.mean_kept(x, axes);
    }
    let dims = c.dims(x)?;
    let count: usize = axes.iter().map(|&a| dims[a]).product();
    let sum = c.reduce_kept(Reduce::Sum, x, axes)?;
    let count = c.scalar(x, count as f64)?;
    Ok(c.int_div(sum, count)?.0)
}

fn square_sum(c: &mut Context<'_>, x: ValueId, axes: &[usize]) -> Made {
    let square = c.b.mul(x, x)?;
    c.reduce_kept(Reduce::Sum, square, axes)
}

fn ln(c: &mut Context<'_>, x: ValueId) -> Made {
    let dtype = c.dtype(x);
    let float = if c.is_float(x) { x } else { c.cast(x, DType::F64)? };
    let y = c.b.exp(Exp::Ln, float)?;
    c.cast(y, dtype)
}

fn log_sum_exp(c: &mut Context<'_>, x: ValueId, axes: &[usize]) -> Made {
    let dtype = c.dtype(x);
    let x = if c.is_float(x) { x } else { c.cast(x, DType::F64)? };
    let top = c.reduce_kept(Reduce::Max, x, axes)?;
    // Infinities would make NaN when they are taken from themselves.
    let (low, high) = (c.scalar(x, f64::from(f32::MIN))?, c.scalar(x, f64::from(f32::MAX))?);
    let top = c.b.max(top, low)?;
    let top = c.b.min(top, high)?;
    let shifted = c.sub(x, top)?;
    let e = c.b.exp(Exp::Exp, shifted)?;
    let sum = c.reduce_kept(Reduce::Sum, e, axes)?;
    let ln = c.b.exp(Exp::Ln, sum)?;
    let y = c.b.add(ln, top)?;
    c.cast(y, dtype)
}

/// The p-norm over `axes`, which keep length 1.
pub(super) fn norm(c: &mut Context<'_>, x: ValueId, axes: &[usize], p: f64) -> Made {
    let size = c.abs(x)?;
    if p == 1.0 {
        return c.reduce_kept(Reduce::Sum, size, axes);
    }
    if p == 2.0 {
        let sum = square_sum(c, x, axes)?;
        return Ok(c.b.exp(Exp::Sqrt, sum)?);
    }
    let exponent = c.scalar(x, p)?;
    let powers = c.power(size, exponent)?;
    let sum = c.reduce_kept(Reduce::Sum, powers, axes)?;
    let exponent = c.scalar(x, 1.0 / p)?;
    c.power(sum, exponent)
}

fn global(
    c: &mut Context<'_>,
    f: impl FnOnce(&mut Context<'_>, ValueId, &[usize]) -> Made,
) -> Outputs {
    let x = c.x(0)?;
    let axes: Vec<usize> = (2..c.rank(x.id)).collect();
    let y = f(c, x.id, &axes)?;
    c.one(y, x.elem)
}

fn arg(c: &mut Context<'_>, kind: Reduce) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let axis = c.axis(c.int("axis", 0)?, dims.len())?;
    let last = c.flag("select_last_index", false)?;
    let n = dims[axis];
    if n == 0 {
        return bad(format!("axis {axis} is empty"));
    }
    let source = if last { c.b.strided(x.id, axis, n - 1, n, -1)? } else { x.id };
    let mut y = c.b.reduce(kind, source, &[axis])?;
    if last {
        let minus = c.neg(y)?;
        y = c.b.offset(minus, (n - 1) as f64)?;
    }
    if c.flag("keepdims", true)? {
        y = c.b.unsqueeze(y, axis)?;
    }
    c.plain(y)
}

/// Sums or products of everything up to each place: by doubling steps, so that an axis of n
/// elements takes log2(n) additions.
fn running(c: &mut Context<'_>, kind: Reduce) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let axis = c.axis(c.int_input(1)?, dims.len())?;
    let (exclusive, reverse) = (c.flag("exclusive", false)?, c.flag("reverse", false)?);
    let n = dims[axis];
    let neutral = if kind == Reduce::Sum { 0.0 } else { 1.0 };
    let dtype = c.dtype(x.id);
    let mut y = if c.is_float(x.id) { c.cast(x.id, DType::F64)? } else { x.id };
    if n == 0 {
        return c.one(x.id, x.elem);
    }
    if reverse {
        y = c.b.strided(y, axis, n - 1, n, -1)?;
    }
    let shift = |c: &mut Context<'_>, y: ValueId, by: usize| -> Result<ValueId, OpError> {
        let kept = c.b.slice(y, axis, 0, n - by)?;
        Ok(c.b.pad(kept, axis, by, 0, neutral)?)
    };
    if exclusive {
        y = shift(c, y, 1)?;
    }
    let mut step = 1;
    while step < n {
        let earlier = shift(c, y, step)?;
        y = if kind == Reduce::Sum { c.b.add(y, earlier)? } else { c.b.mul(y, earlier)? };
        step *= 2;
    }
    if reverse {
        y = c.b.strided(y, axis, n - 1, n, -1)?;
    }
    let y = c.cast(y, dtype)?;
    c.one(y, x.elem)
}
