//! Normalisations, softmax and losses.

use cyb_ir::{Attrs, Cmp, Exp, Reduce, ValueId};
use cyb_jets::{LAYERNORM, RMSNORM};
use cyb_tensor::DType;

use super::Rows;
use super::elementwise::unary;
use super::reduce::drop_axes;
use crate::context::{Context, Made, Outputs};
use crate::error::{OpError, bad};
use crate::value::{Val, X};

pub(super) static ROWS: Rows = &[
    ("Softmax", |c| along_axis(c, |c, x, axis| c.softmax(x, axis))),
    ("LogSoftmax", |c| along_axis(c, log_softmax)),
    ("Hardmax", |c| along_axis(c, hardmax)),
    ("BatchNormalization", batch_norm),
    ("InstanceNormalization", instance_norm),
    ("GroupNormalization", group_norm),
    ("LayerNormalization", layer_norm),
    ("RMSNormalization", rms_norm),
    ("MeanVarianceNormalization", mean_variance),
    ("LRN", local_response),
    ("NegativeLogLikelihoodLoss", |c| {
        let x = c.x(0)?;
        let loss = nll(c, x.id)?;
        c.one(loss, x.elem)
    }),
    ("SoftmaxCrossEntropyLoss", |c| {
        let x = c.x(0)?;
        let log = log_softmax(c, x.id, 1)?;
        let loss = nll(c, log)?;
        Ok(vec![Val::Value(X { id: loss, elem: x.elem }), Val::Value(X { id: log, elem: x.elem })])
    }),
];

/// A function along an axis; below opset 13 along all axes from it on, taken as one.
fn along_axis(
    c: &mut Context<'_>,
    f: impl FnOnce(&mut Context<'_>, ValueId, usize) -> Made,
) -> Outputs {
    let x = c.x(0)?;
    let rank = c.rank(x.id);
    let flat = c.opset < 13;
    let axis = c.int("axis", if flat { 1 } else { -1 })?;
    if !flat {
        let axis = c.axis(axis, rank)?;
        return unary(c, |c, x| f(c, x, axis));
    }
    let axis = if axis < 0 { axis + rank as i64 } else { axis };
    unary(c, |c, x| {
        let dims = c.dims(x)?;
        let Some((a, b)) = usize::try_from(axis).ok().and_then(|a| dims.split_at_checked(a)) else {
            return bad(format!("axis {axis} is outside {dims:?}"));
        };
        let x = c.reshape(x, &[a.iter().product(), b.iter().product()])?;
        let y = f(c, x, 1)?;
        c.reshape(y, &dims)
    })
}

fn log_softmax(c: &mut Context<'_>, x: ValueId, axis: usize) -> Made {
    let top = c.reduce_kept(Reduce::Max, x, &[axis])?;
    let shifted = c.sub(x, top)?;
    let e = c.b.exp(Exp::Exp, shifted)?;
    let sum = c.reduce_kept(Reduce::Sum, e, &[axis])?;
    let ln = c.b.exp(Exp::Ln, sum)?;
    c.sub(shifted, ln)
}

fn hardmax(c: &mut Context<'_>, x: ValueId, axis: usize) -> Made {
    let dims = c.dims(x)?;
    let best = c.b.reduce(Reduce::Argmax, x, &[axis])?;
    let best = c.b.unsqueeze(best, axis)?;
    let place = c.b.iota(dims[axis].into());
    let mut shape = vec![1; dims.len()];
    shape[axis] = dims[axis];
    let place = c.reshape(place, &shape)?;
    let hit = c.b.cmp(Cmp::Eq, best, place)?;
    c.cast(hit, c.dtype(x))
}

/// A vector of channels beside a tensor [N, C, ...].
pub(super) fn by_channel(c: &mut Context<'_>, v: ValueId, rank: usize) -> Made {
    let n: usize = c.dims(v)?.iter().product();
    let mut shape = vec![1; rank.saturating_sub(1).max(1)];
    shape[0] = n;
    if rank == 1 {
        return c.reshape(v, &[n]);
    }
    c.reshape(v, &shape)
}

fn batch_norm(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let rank = c.rank(x.id);
    let eps = c.float("epsilon", 1e-5)?;
    let wide = c.wide(x.id)?;
    let dtype = c.dtype(wide);
    let mut vectors = Vec::new();
    for i in 1..5 {
        let v = c.x(i)?;
        vectors.push(c.cast(v.id, dtype)?);
    }
    let training = c.flag("training_mode", false)?;
    let (mut mean, mut variance) = (vectors[2], vectors[3]);
    let mut running = Vec::new();
    if training {
        let axes: Vec<usize> = (0..rank).filter(|&i| i != 1).collect();
        let m = c.mean_kept(wide, &axes)?;
        let centered = c.sub(wide, m)?;
        let square = c.b.mul(centered, centered)?;
        let v = c.mean_kept(square, &axes)?;
        let momentum = c.float("momentum", 0.9)?;
        for (old, new, i) in [(mean, m, 3), (variance, v, 4)] {
            let new = drop_axes(c, new, &axes)?;
            let (a, b) = (c.b.scale(old, momentum)?, c.b.scale(new, 1.0 - momentum)?);
            let sum = c.b.add(a, b)?;
            let like = c.x(i)?;
            let sum = c.cast(sum, c.dtype(like.id))?;
            running.push(Val::Value(X { id: sum, elem: like.elem }));
        }
        (mean, variance) = (drop_axes(c, m, &axes)?, drop_axes(c, v, &axes)?);
    }
    let above = c.b.offset(variance, eps)?;
    let inverse = c.b.exp(Exp::Rsqrt, above)?;
    let factor = c.b.mul(vectors[0], inverse)?;
    let moved = c.b.mul(mean, factor)?;
    let shift = c.sub(vectors[1], moved)?;
    let (factor, shift) = (by_channel(c, factor, rank)?, by_channel(c, shift, rank)?);
    let y = c.b.mul(wide, factor)?;
    let y = c.b.add(y, shift)?;
    let y = c.cast(y, c.dtype(x.id))?;
    let mut outputs = vec![Val::Value(X { id: y, elem: x.elem })];
    outputs.extend(running);
    Ok(outputs)
}

/// `(x - mean) / sqrt(variance + eps)` over `axes`; also the mean and the inverse deviation.
fn standardize(
    c: &mut Context<'_>,
    x: ValueId,
    axes: &[usize],
    eps: f64,
) -> Result<(ValueId, ValueId, ValueId), OpError> {
    let mean = c.mean_kept(x, axes)?;
    let centered = c.sub(x, mean)?;
    let square = c.b.mul(centered, centered)?;
    let variance = c.mean_kept(square, axes)?;
    let above = c.b.offset(variance, eps)?;
    let inverse = c.b.exp(Exp::Rsqrt, above)?;
    Ok((c.b.mul(centered, inverse)?, mean, inverse))
}

/// `(x - mean) / sqrt(variance + eps)` over all axes from `axis` on, as a jet where it can be.
fn standardize_rows(c: &mut Context<'_>, x: ValueId, axis: usize, eps: f64) -> Made {
    let dims = c.dims(x)?;
    let width: usize = dims[axis..].iter().product();
    if c.dtype(x) != DType::F32 || width == 0 {
        let axes: Vec<usize> = (axis..dims.len()).collect();
        return Ok(standardize(c, x, &axes, eps)?.0);
    }
    let rows = c.reshape(x, &[dims[..axis].iter().product(), width])?;
    let ones = c.numbers(DType::F32, vec![width], &vec![1.0; width])?;
    let y = c.b.jet(&LAYERNORM, Attrs::new().with("eps", eps), &[rows, ones])?;
    c.reshape(y, &dims)
}

fn instance_norm(c: &mut Context<'_>) -> Outputs {
    let (x, scale, bias) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let eps = c.float("epsilon", 1e-5)?;
    let rank = c.rank(x.id);
    let wide = c.wide(x.id)?;
    let (scale, bias) = (c.cast(scale.id, c.dtype(wide))?, c.cast(bias.id, c.dtype(wide))?);
    let y = standardize_rows(c, wide, 2.min(rank), eps)?;
    let (scale, bias) = (by_channel(c, scale, rank)?, by_channel(c, bias, rank)?);
    let y = c.b.mul(y, scale)?;
    let y = c.b.add(y, bias)?;
    let y = c.cast(y, c.dtype(x.id))?;
    c.one(y, x.elem)
}

fn group_norm(c: &mut Context<'_>) -> Outputs {
    let (x, scale, bias) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let eps = c.float("epsilon", 1e-5)?;
    let dims = c.dims(x.id)?;
    let groups = crate::ops::shape::sizes(&[c.int("num_groups", 0)?])?[0];
    let [n, channels, ..] = dims[..] else { return bad("the input needs a channel axis") };
    if groups == 0 || channels % groups != 0 {
        return bad(format!("{channels} channels do not make {groups} groups"));
    }
    let rest: usize = dims[2..].iter().product();
    let wide = c.wide(x.id)?;
    let dtype = c.dtype(wide);
    let grouped = c.reshape(wide, &[n, groups, channels / groups * rest])?;
    let y = standardize_rows(c, grouped, 2, eps)?;
    let mut vectors = Vec::new();
    for v in [scale.id, bias.id] {
        let v = c.cast(v, dtype)?;
        // Before opset 21 there is one number a group.
        let v = if c.dims(v)? == [groups] && groups != channels {
            let v = c.reshape(v, &[groups, 1])?;
            let v = c.broadcast(v, &[groups, channels / groups])?;
            c.reshape(v, &[channels])?
        } else {
            v
        };
        vectors.push(by_channel(c, v, dims.len())?);
    }
    let y = c.reshape(y, &dims)?;
    let y = c.b.mul(y, vectors[0])?;
    let y = c.b.add(y, vectors[1])?;
    let y = c.cast(y, c.dtype(x.id))?;
    c.one(y, x.elem)
}

/// Layer normalisation over the last axis, as a jet where it can be.
pub(super) fn layer_norm_last(
    c: &mut Context<'_>,
    x: ValueId,
    scale: ValueId,
    bias: Option<ValueId>,
    eps: f64,
) -> Made {
    let dims = c.dims(x)?;
    let axis = dims.len() - 1;
    let (scale, bias) = {
        let dtype = c.dtype(x);
        let bias = match bias {
            Some(b) => Some(c.cast(b, dtype)?),
            None => None,
        };
        (c.cast(scale, dtype)?, bias)
    };
    if c.dtype(x) == DType::F32 && c.dims(scale)? == [dims[axis]] {
        let mut inputs = vec![x, scale];
        inputs.extend(bias);
        return Ok(c.b.jet(&LAYERNORM, Attrs::new().with("eps", eps), &inputs)?);
    }
    let (y, _, _) = standardize(c, x, &[axis], eps)?;
    let y = c.b.mul(y, scale)?;
    match bias {
        Some(bias) => Ok(c.b.add(y, bias)?),
        None => Ok(y),
    }
}

/// The shape as rows: everything from `axis` on is one axis. Vectors of that shape follow.
fn as_rows(
    c: &mut Context<'_>,
    x: ValueId,
    axis: usize,
    vector: Option<ValueId>,
) -> Result<(ValueId, Option<ValueId>), OpError> {
    let dims = c.dims(x)?;
    let (a, b) = dims.split_at(axis);
    let (rows, width): (usize, usize) = (a.iter().product(), b.iter().product());
    let y = c.reshape(x, &[rows, width])?;
    let vector = match vector {
        Some(v) => {
            let v = c.broadcast(v, b)?;
            Some(c.reshape(v, &[width])?)
        }
        None => None,
    };
    Ok((y, vector))
}

fn layer_norm(c: &mut Context<'_>) -> Outputs {
    let (x, scale) = (c.x(0)?, c.x(1)?);
    let bias = c.opt(2)?;
    let eps = c.float("epsilon", 1e-5)?;
    let dims = c.dims(x.id)?;
    let axis = c.axis(c.int("axis", -1)?, dims.len())?;
    let wide = c.wide(x.id)?;
    // Vectors that vary along the rows too cannot be one row.
    let inner = |c: &Context<'_>, v: ValueId| -> Result<bool, OpError> {
        Ok(c.dims(v)?.len() <= dims.len() - axis)
    };
    let y = if inner(c, scale.id)? && bias.is_none_or(|b| inner(c, b.id).unwrap_or(false)) {
        let (rows, flat_scale) = as_rows(c, wide, axis, Some(scale.id))?;
        let flat_bias = match bias {
            Some(b) => as_rows(c, wide, axis, Some(b.id))?.1,
            None => None,
        };
        let y = layer_norm_last(c, rows, flat_scale.unwrap_or(scale.id), flat_bias, eps)?;
        c.reshape(y, &dims)?
    } else {
        let axes: Vec<usize> = (axis..dims.len()).collect();
        let (y, _, _) = standardize(c, wide, &axes, eps)?;
        let scale = c.cast(scale.id, c.dtype(wide))?;
        let y = c.b.mul(y, scale)?;
        match bias {
            Some(b) => {
                let b = c.cast(b.id, c.dtype(wide))?;
                c.b.add(y, b)?
            }
            None => y,
        }
    };
    let y = c.cast(y, c.dtype(x.id))?;
    let mut outputs = vec![Val::Value(X { id: y, elem: x.elem })];
    if c.wanted(1) || c.wanted(2) {
        let axes: Vec<usize> = (axis..dims.len()).collect();
        let (_, mean, inverse) = standardize(c, wide, &axes, eps)?;
        outputs.extend(c.several(&[mean, inverse])?);
    }
    Ok(outputs)
}

/// RMS normalisation over the last axis, as a jet where it can be.
pub(super) fn rms_norm_last(c: &mut Context<'_>, x: ValueId, scale: ValueId, eps: f64) -> Made {
    let dims = c.dims(x)?;
    let axis = dims.len() - 1;
    let scale = c.cast(scale, c.dtype(x))?;
    if c.dtype(x) == DType::F32 && c.dims(scale)? == [dims[axis]] {
        return Ok(c.b.jet(&RMSNORM, Attrs::new().with("eps", eps), &[x, scale])?);
    }
    let square = c.b.mul(x, x)?;
    let mean = c.mean_kept(square, &[axis])?;
    let above = c.b.offset(mean, eps)?;
    let inverse = c.b.exp(Exp::Rsqrt, above)?;
    let y = c.b.mul(x, inverse)?;
    Ok(c.b.mul(y, scale)?)
}

fn rms_norm(c: &mut Context<'_>) -> Outputs {
    let (x, scale) = (c.x(0)?, c.x(1)?);
    let eps = c.float("epsilon", 1e-5)?;
    let dims = c.dims(x.id)?;
    let axis = c.axis(c.int("axis", -1)?, dims.len())?;
    let wide = c.wide(x.id)?;
    let (rows, flat) = as_rows(c, wide, axis, Some(scale.id))?;
    let y = rms_norm_last(c, rows, flat.unwrap_or(scale.id), eps)?;
    let y = c.reshape(y, &dims)?;
    let y = c.cast(y, c.dtype(x.id))?;
    c.one(y, x.elem)
}

fn mean_variance(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let rank = c.rank(x.id);
    let axes = c.opt_int_list("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let axes = c.axes(&axes, rank)?;
    unary(c, |c, x| {
        let mean = c.mean_kept(x, &axes)?;
        let centered = c.sub(x, mean)?;
        let square = c.b.mul(centered, centered)?;
        let variance = c.mean_kept(square, &axes)?;
        let deviation = c.b.exp(Exp::Sqrt, variance)?;
        let below = c.b.offset(deviation, 1e-9)?;
        c.divide(centered, below)
    })
}

fn local_response(c: &mut Context<'_>) -> Outputs {
    let (alpha, beta) = (c.float("alpha", 1e-4)?, c.float("beta", 0.75)?);
    let bias = c.float("bias", 1.0)?;
    let size = crate::ops::shape::sizes(&[c.int("size", 0)?])?[0];
    if size == 0 {
        return bad("attribute size is missing");
    }
    unary(c, |c, x| {
        let square = c.b.mul(x, x)?;
        let before = (size - 1) / 2;
        let padded = c.b.pad(square, 1, before, size - 1 - before, 0.0)?;
        let windows = c.b.window(padded, 1, size, 1, 1)?;
        let last = c.rank(windows) - 1;
        let sum = c.b.sum(windows, &[last])?;
        let scaled = c.b.scale(sum, alpha / size as f64)?;
        let below = c.b.offset(scaled, bias)?;
        let exponent = c.scalar(below, -beta)?;
        let factor = c.power(below, exponent)?;
        Ok(c.b.mul(x, factor)?)
    })
}

/// The loss of log-probabilities [N, C, d...] for classes [N, d...].
fn nll(c: &mut Context<'_>, log: ValueId) -> Made {
    let target = c.x(1)?;
    let weight = c.opt(2)?;
    let reduction = c.text("reduction", "mean")?;
    let ignored = c.opt_int("ignore_index")?;
    let classes = c.dims(log)?[1];
    let target = c.cast(target.id, DType::I64)?;
    let target = c.b.unsqueeze(target, 1)?; // [N, 1, d...]
    let rank = c.rank(log);
    let class = c.b.iota(classes.into());
    let mut shape = vec![1; rank];
    shape[1] = classes;
    let class = c.reshape(class, &shape)?;
    let hit = c.b.cmp(Cmp::Eq, target, class)?;
    let zero = c.scalar(log, 0.0)?;
    let picked = c.b.select(hit, log, zero)?;
    let picked = c.b.sum(picked, &[1])?;
    let loss = c.neg(picked)?;
    let mut weights = match weight {
        Some(weight) => {
            let weight = by_channel(c, weight.id, rank)?;
            let weight = c.b.select(hit, weight, zero)?;
            Some(c.b.sum(weight, &[1])?)
        }
        None => None,
    };
    if let Some(ignored) = ignored {
        let ignored = c.indices(vec![], &[ignored])?;
        let skip = c.b.cmp(Cmp::Eq, target, ignored)?;
        let skip = drop_axes(c, skip, &[1])?;
        let one = c.scalar(log, 1.0)?;
        let base = weights.unwrap_or(one);
        weights = Some(c.b.select(skip, zero, base)?);
    }
    let weighted = match weights {
        Some(w) => c.b.mul(loss, w)?,
        None => loss,
    };
    let all: Vec<usize> = (0..rank - 1).collect();
    match reduction.as_str() {
        "none" => Ok(weighted),
        "sum" => Ok(c.b.sum(weighted, &all)?),
        "mean" => {
            let sum = c.b.sum(weighted, &all)?;
            match weights {
                Some(w) => {
                    let total = c.b.sum(w, &all)?;
                    c.divide(sum, total)
                }
                None => {
                    let n: usize = c.dims(loss)?.iter().product();
                    Ok(c.b.scale(sum, 1.0 / n as f64)?)
                }
            }
        }
        other => bad(format!("reduction {other:?} is unknown")),
    }
}
