//! Reads and writes at places that are data.

use cyb_ir::{Cmp, Scatter, ValueId};
use cyb_tensor::DType;

use super::Rows;
use crate::context::{Context, Made, Outputs};
use crate::error::{OpError, bad};

pub(super) static ROWS: Rows = &[
    ("Gather", gather),
    ("GatherElements", gather_elements),
    ("GatherND", gather_nd),
    ("Scatter", scatter_elements),
    ("ScatterElements", scatter_elements),
    ("ScatterND", scatter_nd),
    ("OneHot", one_hot),
    ("TensorScatter", tensor_scatter),
];

/// Indices of an axis of length `n`, those below 0 counted from the end.
pub(super) fn from_start(c: &mut Context<'_>, index: ValueId, n: usize) -> Made {
    let index = c.cast(index, DType::I64)?;
    if let Some(tensor) = c.b.graph().tensor(index)
        && crate::value::to_ints(tensor)?.iter().all(|&i| i >= 0)
    {
        return Ok(index);
    }
    let zero = c.scalar(index, 0.0)?;
    let below = c.b.lt(index, zero)?;
    let moved = c.b.offset(index, n as f64)?;
    Ok(c.b.select(below, moved, index)?)
}

fn gather(c: &mut Context<'_>) -> Outputs {
    let (x, index) = (c.x(0)?, c.x(1)?);
    let dims = c.dims(x.id)?;
    let axis = c.axis(c.int("axis", 0)?, dims.len())?;
    let index = from_start(c, index.id, dims[axis])?;
    // Whole rows at 32-bit indices are what kernels take.
    let index = if axis == 0 && i32::try_from(dims[0]).is_ok() {
        c.cast(index, DType::I32)?
    } else {
        index
    };
    let y = c.b.gather(x.id, axis, index)?;
    c.one(y, x.elem)
}

/// Distances between neighbours along each axis in row-major order.
fn strides(dims: &[usize]) -> Vec<usize> {
    let mut out = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        out[i - 1] = out[i] * dims[i];
    }
    out
}

/// Row-major places in a tensor of shape `dims` of elements whose index along `axis` is data and
/// is their own along the other axes.
fn places(c: &mut Context<'_>, index: ValueId, dims: &[usize], axis: usize) -> Made {
    let at = c.dims(index)?;
    let strides = strides(dims);
    let mut place = c.b.scale(index, strides[axis] as f64)?;
    for other in (0..dims.len()).filter(|&i| i != axis && at[i] > 1) {
        let own = c.b.iota(at[other].into());
        let own = c.b.scale(own, strides[other] as f64)?;
        let mut shape = vec![1; dims.len()];
        shape[other] = at[other];
        let own = c.reshape(own, &shape)?;
        place = c.b.add(place, own)?;
    }
    Ok(place)
}

fn check_ranks(c: &Context<'_>, dims: &[usize], index: &[usize]) -> Result<(), OpError> {
    let fits = dims.len() == index.len() && !dims.is_empty();
    if fits { Ok(()) } else { bad(format!("{}: {dims:?} and {index:?} differ in rank", c.node.op)) }
}

fn gather_elements(c: &mut Context<'_>) -> Outputs {
    let (x, index) = (c.x(0)?, c.x(1)?);
    let (dims, at) = (c.dims(x.id)?, c.dims(index.id)?);
    check_ranks(c, &dims, &at)?;
    let axis = c.axis(c.int("axis", 0)?, dims.len())?;
    let index = from_start(c, index.id, dims[axis])?;
    let place = places(c, index, &dims, axis)?;
    let flat = c.reshape(x.id, &[dims.iter().product()])?;
    let y = c.b.gather(flat, 0, place)?;
    c.one(y, x.elem)
}

fn mode(c: &Context<'_>) -> Result<Scatter, OpError> {
    Ok(match c.text("reduction", "none")?.as_str() {
        "none" => Scatter::Set,
        "add" => Scatter::Add,
        "mul" => Scatter::Mul,
        "max" => Scatter::Max,
        "min" => Scatter::Min,
        other => return bad(format!("reduction {other:?} is unknown")),
    })
}

fn scatter_elements(c: &mut Context<'_>) -> Outputs {
    let (x, index, updates) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let (dims, at) = (c.dims(x.id)?, c.dims(index.id)?);
    check_ranks(c, &dims, &at)?;
    let axis = c.axis(c.int("axis", 0)?, dims.len())?;
    let mode = mode(c)?;
    let index = from_start(c, index.id, dims[axis])?;
    let place = places(c, index, &dims, axis)?;
    let n: usize = at.iter().product();
    let flat = c.reshape(x.id, &[dims.iter().product()])?;
    let place = c.reshape(place, &[n])?;
    let updates = c.reshape(updates.id, &[n])?;
    let y = c.b.scatter(flat, 0, mode, place, updates)?;
    let y = c.reshape(y, &dims)?;
    c.one(y, x.elem)
}

/// Row-major numbers of the rows that index tuples [..., K] name in the first axes `dims`.
fn tuple_rows(c: &mut Context<'_>, index: ValueId, dims: &[usize]) -> Made {
    let last = c.rank(index) - 1;
    let lengths: Vec<i64> = dims.iter().map(|&n| n as i64).collect();
    let steps: Vec<i64> = strides(dims).iter().map(|&n| n as i64).collect();
    let (lengths, steps) =
        (c.indices(vec![dims.len()], &lengths)?, c.indices(vec![dims.len()], &steps)?);
    let index = c.cast(index, DType::I64)?;
    let zero = c.scalar(index, 0.0)?;
    let below = c.b.lt(index, zero)?;
    let moved = c.b.add(index, lengths)?;
    let index = c.b.select(below, moved, index)?;
    let weighted = c.b.mul(index, steps)?;
    Ok(c.b.sum(weighted, &[last])?)
}

fn gather_nd(c: &mut Context<'_>) -> Outputs {
    let (x, index) = (c.x(0)?, c.x(1)?);
    let (dims, at) = (c.dims(x.id)?, c.dims(index.id)?);
    let batch = crate::ops::shape::sizes(&[c.int("batch_dims", 0)?])?[0];
    let Some(&k) = at.last() else { return bad("the indices need an axis") };
    if batch + k > dims.len() || batch >= at.len() || dims[..batch] != at[..batch] {
        return bad(format!("{dims:?} cannot be read at {at:?}"));
    }
    let n_batch: usize = dims[..batch].iter().product();
    let rows: usize = dims[batch..batch + k].iter().product();
    let mut row = tuple_rows(c, index.id, &dims[batch..batch + k])?;
    if batch > 0 {
        // The batches one after another.
        let own = c.b.iota(n_batch.into());
        let own = c.b.scale(own, rows as f64)?;
        let mut shape = dims[..batch].to_vec();
        shape.resize(at.len() - 1, 1);
        let own = c.reshape(own, &shape)?;
        row = c.b.add(row, own)?;
    }
    let mut flat = vec![n_batch * rows];
    flat.extend_from_slice(&dims[batch + k..]);
    let flat = c.reshape(x.id, &flat)?;
    let y = c.b.gather(flat, 0, row)?;
    c.one(y, x.elem)
}

fn scatter_nd(c: &mut Context<'_>) -> Outputs {
    let (x, index, updates) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let (dims, at) = (c.dims(x.id)?, c.dims(index.id)?);
    let Some((&k, tuples)) = at.split_last() else { return bad("the indices need an axis") };
    if k > dims.len() {
        return bad(format!("{dims:?} cannot be written at {at:?}"));
    }
    let mode = mode(c)?;
    let row = tuple_rows(c, index.id, &dims[..k])?;
    let n: usize = tuples.iter().product();
    let row = c.reshape(row, &[n])?;
    let mut flat = vec![dims[..k].iter().product()];
    flat.extend_from_slice(&dims[k..]);
    let base = c.reshape(x.id, &flat)?;
    flat[0] = n;
    let updates = c.reshape(updates.id, &flat)?;
    let y = c.b.scatter(base, 0, mode, row, updates)?;
    let y = c.reshape(y, &dims)?;
    c.one(y, x.elem)
}

fn one_hot(c: &mut Context<'_>) -> Outputs {
    let depth = c.floats(1)?;
    let [depth] = depth[..] else { return bad("the depth must be one number") };
    let depth = crate::ops::shape::sizes(&[depth as i64])?[0];
    let (index, values) = (c.x(0)?, c.x(2)?);
    let rank = c.rank(index.id);
    let axis = c.axis(c.int("axis", -1)?, rank + 1)?;
    let index = if c.is_float(index.id) { c.cast(index.id, DType::I64)? } else { index.id };
    let index = from_start(c, index, depth)?;
    let index = c.b.unsqueeze(index, axis)?;
    let class = c.b.iota(depth.into());
    let mut shape = vec![1; rank + 1];
    shape[axis] = depth;
    let class = c.reshape(class, &shape)?;
    let hit = c.b.cmp(Cmp::Eq, index, class)?;
    let (off, on) = (c.b.slice(values.id, 0, 0, 1)?, c.b.slice(values.id, 0, 1, 1)?);
    let (off, on) = (c.reshape(off, &[])?, c.reshape(on, &[])?);
    let y = c.b.select(hit, on, off)?;
    c.one(y, values.elem)
}

/// A cache [B, ..., S, ...] with an update written from a place of its own for each batch entry.
fn tensor_scatter(c: &mut Context<'_>) -> Outputs {
    let (past, update) = (c.x(0)?, c.x(1)?);
    let (dims, new) = (c.dims(past.id)?, c.dims(update.id)?);
    let axis = c.axis(c.int("axis", -2)?, dims.len())?;
    if axis == 0 || new.len() != dims.len() {
        return bad("the axis must lie behind the batch, and both tensors have the same rank");
    }
    let (batch, len, n) = (dims[0], dims[axis], new[axis]);
    let circular = c.text("mode", "linear")? == "circular";
    // Rows of [B, S] with everything else behind.
    let mut perm: Vec<usize> = vec![0, axis];
    perm.extend((1..dims.len()).filter(|&i| i != axis));
    let mut back = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(i, &p)| back[p] = i);
    let (base, update) = (c.b.permute(past.id, &perm)?, c.b.permute(update.id, &perm)?);
    let turned = c.dims(base)?;
    let mut flat = vec![batch * len];
    flat.extend_from_slice(&turned[2..]);
    let base = c.reshape(base, &flat)?;
    flat[0] = batch * n;
    let update = c.reshape(update, &flat)?;
    let step = c.b.iota(n.into());
    let step = c.reshape(step, &[1, n])?;
    let mut place = match c.opt(2)? {
        Some(start) => {
            let start = c.cast(start.id, DType::I64)?;
            let start = c.reshape(start, &[batch, 1])?;
            c.b.add(start, step)?
        }
        None => c.broadcast(step, &[batch, n])?,
    };
    if circular {
        let size = c.scalar(place, len as f64)?;
        place = c.int_div(place, size)?.1;
    }
    let row = c.b.iota(batch.into());
    let row = c.b.scale(row, len as f64)?;
    let row = c.reshape(row, &[batch, 1])?;
    let place = c.b.add(place, row)?;
    let place = c.reshape(place, &[batch * n])?;
    let y = c.b.scatter(base, 0, Scatter::Set, place, update)?;
    let y = c.reshape(y, &turned)?;
    let y = c.b.permute(y, &back)?;
    c.one(y, past.elem)
}
