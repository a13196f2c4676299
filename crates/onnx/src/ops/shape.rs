//! Shapes, views, joins and constants.

use cyb_formats::onnx::{Attribute, Elem};
use cyb_ir::ValueId;
use cyb_tensor::{DType, Tensor};

use super::Rows;
use crate::context::{Context, Made, Outputs};
use crate::error::{OpError, bad};
use crate::value::{Val, X, floats_tensor, ints_val, to_floats};

pub(super) static ROWS: Rows = &[
    ("Identity", |c| Ok(vec![c.inputs.first().cloned().unwrap_or(Val::None)])),
    ("Dropout", dropout),
    ("Constant", constant),
    ("ConstantOfShape", constant_of_shape),
    ("Shape", shape),
    ("Size", size),
    ("Reshape", reshape),
    ("Flatten", flatten),
    ("Squeeze", squeeze),
    ("Unsqueeze", unsqueeze),
    ("Transpose", transpose),
    ("Expand", expand),
    ("Tile", tile),
    ("Concat", concat),
    ("Split", split),
    ("Slice", slice),
    ("Pad", pad),
    ("Range", range),
    ("EyeLike", eye_like),
    ("Trilu", trilu),
    ("DepthToSpace", depth_to_space),
    ("SpaceToDepth", space_to_depth),
    ("CenterCropPad", center_crop_pad),
    ("ReverseSequence", reverse_sequence),
    ("ConcatFromSequence", concat_from_sequence),
];

fn dropout(c: &mut Context<'_>) -> Outputs {
    let training = match c.inputs.get(2) {
        Some(v) if c.opset >= 12 && !v.is_none() => c.int_input(2)? != 0,
        _ => false,
    };
    if training && (!c.has(1) || c.floats(1)?.first() != Some(&0.0)) {
        return bad("drops at random, which is training; export the model for inference");
    }
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let elem = if c.opset >= 10 { Elem::Bool } else { x.elem };
    let dtype = elem.storage().unwrap_or(DType::Bool);
    let one = c.b.scalar(dtype, 1.0)?;
    let mask = c.broadcast(one, &dims)?;
    Ok(vec![c.inputs[0].clone(), Val::Value(X { id: mask, elem })])
}

fn constant(c: &mut Context<'_>) -> Outputs {
    let float = |shape: Vec<usize>, v: &[f32]| -> Outputs {
        Ok(vec![Val::Known { elem: Elem::F32, tensor: Tensor::from_f32(shape, v)? }])
    };
    let int = |shape: Vec<usize>, v: &[i64]| -> Outputs {
        let tensor = Tensor::from_elems(DType::I64, shape, v)?;
        Ok(vec![Val::Known { elem: Elem::I64, tensor }])
    };
    for name in c.node.attributes.keys() {
        match (name.as_str(), c.attr(name)?) {
            ("value" | "sparse_value", Some(Attribute::Tensor(t))) => return Ok(vec![Val::of(t)]),
            ("value_float", Some(Attribute::Float(x))) => return float(vec![], &[*x]),
            ("value_floats", Some(Attribute::Floats(v))) => return float(vec![v.len()], v),
            ("value_int", Some(Attribute::Int(n))) => return int(vec![], &[*n]),
            ("value_ints", Some(Attribute::Ints(v))) => return int(vec![v.len()], v),
            ("value_string", Some(Attribute::Str(_))) => {
                return Ok(vec![Val::Strings { shape: vec![] }]);
            }
            ("value_strings", Some(Attribute::Strs(v))) => {
                return Ok(vec![Val::Strings { shape: vec![v.len()] }]);
            }
            _ => {}
        }
    }
    bad("has no value; the file is damaged")
}

/// Sizes from a tensor or attribute.
pub(super) fn sizes(list: &[i64]) -> Result<Vec<usize>, OpError> {
    let each = list
        .iter()
        .map(|&n| usize::try_from(n).map_err(|_| OpError::Bad(format!("{n} is no size"))));
    each.collect()
}

fn constant_of_shape(c: &mut Context<'_>) -> Outputs {
    let dims = sizes(&c.ints(0)?)?;
    let (elem, value) = match c.attr("value")? {
        Some(Attribute::Tensor(t)) => match (t.tensor(), t.elem()) {
            (Some(t), elem) if t.elems() == 1 => (elem, t.clone()),
            _ => return bad("attribute value must be one number"),
        },
        _ => (Elem::F32, Tensor::from_f32(vec![], &[0.0])?),
    };
    let scalar = Tensor::new(value.dtype(), vec![], value.bytes().clone())?;
    let scalar = c.constant(&scalar);
    let y = c.broadcast(scalar, &dims)?;
    c.one(y, elem)
}

/// The shape of input 0, without placing it.
fn input_dims(c: &Context<'_>) -> Result<Vec<usize>, OpError> {
    match c.inputs.first() {
        Some(Val::Known { tensor, .. }) => Ok(tensor.shape().to_vec()),
        Some(Val::Codes(codes)) => Ok(codes.codes.shape().to_vec()),
        Some(Val::Value(x)) => c.dims(x.id),
        Some(Val::Strings { shape, .. }) => Ok(shape.clone()),
        _ => bad("input 0 must be a tensor"),
    }
}

fn shape(c: &mut Context<'_>) -> Outputs {
    let dims: Vec<i64> = input_dims(c)?.into_iter().map(|n| n as i64).collect();
    let rank = dims.len() as i64;
    let clamp = |n: i64| (if n < 0 { n + rank } else { n }).clamp(0, rank) as usize;
    let (start, end) = (clamp(c.int("start", 0)?), clamp(c.int("end", rank)?));
    Ok(vec![ints_val(dims.get(start..end).unwrap_or_default())?])
}

fn size(c: &mut Context<'_>) -> Outputs {
    let n: usize = input_dims(c)?.iter().product();
    let tensor = Tensor::from_elems(DType::I64, vec![], &[n as i64])?;
    Ok(vec![Val::Known { elem: Elem::I64, tensor }])
}

fn reshape(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let to = if c.opset >= 5 { c.ints(1)? } else { c.opt_int_list("shape")?.unwrap_or_default() };
    let from = c.dims(x.id)?;
    let keep_zero = c.flag("allowzero", false)?;
    let mut dims = Vec::with_capacity(to.len());
    let mut free = None;
    for (i, &n) in to.iter().enumerate() {
        dims.push(match n {
            -1 if free.is_none() => {
                free = Some(i);
                1
            }
            0 if !keep_zero => match from.get(i) {
                Some(&n) => n,
                None => return bad(format!("shape {to:?} copies axis {i} of {from:?}")),
            },
            n => sizes(&[n])?[0],
        });
    }
    let have: usize = from.iter().product();
    let Some(rest) = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d)) else {
        return bad(format!("shape {to:?} is too large"));
    };
    if let Some(i) = free {
        if rest == 0 || !have.is_multiple_of(rest) {
            return bad(format!("{from:?} does not fill shape {to:?}"));
        }
        dims[i] = have / rest;
    }
    if free.is_none() && rest != have {
        return bad(format!(
            "{from:?} does not fill shape {to:?}; if that shape holds a batch or length that was \
             fixed by the export, export the model with dynamic axes"
        ));
    }
    let y = c.reshape(x.id, &dims)?;
    c.one(y, x.elem)
}

fn flatten(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let axis = c.int("axis", 1)?;
    let axis = if axis < 0 { axis + dims.len() as i64 } else { axis };
    let Some((a, b)) = usize::try_from(axis).ok().and_then(|a| dims.split_at_checked(a)) else {
        return bad(format!("axis {axis} is outside {dims:?}"));
    };
    let y = c.reshape(x.id, &[a.iter().product(), b.iter().product()])?;
    c.one(y, x.elem)
}

/// Axes from input 1 (opset 13) or an attribute.
fn axes_of(c: &Context<'_>) -> Result<Option<Vec<i64>>, OpError> {
    if c.opset >= 13 { c.opt_ints(1) } else { c.opt_int_list("axes") }
}

fn squeeze(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let axes = match axes_of(c)? {
        Some(axes) => c.axes(&axes, dims.len())?,
        None => (0..dims.len()).filter(|&i| dims[i] == 1).collect(),
    };
    if let Some(&wrong) = axes.iter().find(|&&i| dims[i] != 1) {
        return bad(format!("axis {wrong} of {dims:?} is not 1"));
    }
    let kept: Vec<usize> = (0..dims.len()).filter(|i| !axes.contains(i)).map(|i| dims[i]).collect();
    let y = c.reshape(x.id, &kept)?;
    c.one(y, x.elem)
}

fn unsqueeze(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let axes = axes_of(c)?.unwrap_or_default();
    let rank = dims.len() + axes.len();
    let axes = c.axes(&axes, rank)?;
    let mut rest = dims.into_iter();
    let to: Vec<usize> =
        (0..rank).map(|i| if axes.contains(&i) { 1 } else { rest.next().unwrap_or(1) }).collect();
    let y = c.reshape(x.id, &to)?;
    c.one(y, x.elem)
}

fn transpose(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let rank = c.rank(x.id);
    let perm = match c.opt_int_list("perm")? {
        Some(perm) => sizes(&perm)?,
        None => (0..rank).rev().collect(),
    };
    let y = c.b.permute(x.id, &perm)?;
    c.one(y, x.elem)
}

fn expand(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let to = sizes(&c.ints(1)?)?;
    let dims = c.dims(x.id)?;
    let to = c.common_shape(&dims, &to)?;
    let y = c.broadcast(x.id, &to)?;
    c.one(y, x.elem)
}

fn tile(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let repeats = sizes(&c.ints(1)?)?;
    if repeats.len() != dims.len() {
        return bad(format!("{} repeats do not fit {} axes", repeats.len(), dims.len()));
    }
    let mut y = x.id;
    for axis in 0..dims.len() {
        if repeats[axis] == 1 {
            continue;
        }
        let mut now = c.dims(y)?;
        now.insert(axis, 1);
        y = c.reshape(y, &now)?;
        now[axis] = repeats[axis];
        y = c.broadcast(y, &now)?;
        let merged = now.remove(axis);
        now[axis] = now[axis]
            .checked_mul(merged)
            .ok_or_else(|| OpError::Bad(format!("{merged} repeats are too many")))?;
        y = c.reshape(y, &now)?;
    }
    c.one(y, x.elem)
}

fn concat(c: &mut Context<'_>) -> Outputs {
    let axis = match c.opt_int("axis")? {
        Some(axis) => axis,
        None if c.opset < 4 => 1,
        None => return bad("attribute axis is missing"),
    };
    let first = c.x(0)?;
    let axis = c.axis(axis, c.rank(first.id))?;
    let mut parts = vec![first.id];
    for i in 1..c.inputs.len() {
        parts.push(c.x(i)?.id);
    }
    let y = match super::rotary::turned_parts(c, &parts, axis)? {
        Some(y) => y,
        None if parts.len() == 1 => first.id,
        None => c.b.concat(&parts, axis)?,
    };
    c.one(y, first.elem)
}

/// Joins the elements of a sequence, along a new axis when `new_axis` is 1.
fn concat_from_sequence(c: &mut Context<'_>) -> Outputs {
    let Some(Val::Sequence(parts)) = c.inputs.first().cloned() else {
        return bad("input 0 must be a sequence");
    };
    let new_axis = c.flag("new_axis", false)?;
    let axis = c.int("axis", 0)?;
    let mut ids = Vec::new();
    let mut elem = Elem::F32;
    for part in &parts {
        let x = c.place(part)?;
        elem = x.elem;
        let rank = c.rank(x.id) + usize::from(new_axis);
        let axis = c.axis(axis, rank)?;
        ids.push(if new_axis { c.b.unsqueeze(x.id, axis)? } else { x.id });
    }
    let Some(&first) = ids.first() else { return bad("joins an empty sequence") };
    let axis = c.axis(axis, c.rank(first))?;
    let y = if ids.len() == 1 { first } else { c.b.concat(&ids, axis)? };
    c.one(y, elem)
}

/// Lengths of the parts of an axis of length `n`.
pub(super) fn split_sizes(c: &Context<'_>, n: usize) -> Result<Vec<usize>, OpError> {
    let given = if c.opset >= 13 { c.opt_ints(1)? } else { c.opt_int_list("split")? };
    if let Some(given) = given {
        let given = sizes(&given)?;
        if given.iter().sum::<usize>() != n {
            return bad(format!("parts {given:?} do not make an axis of {n}"));
        }
        return Ok(given);
    }
    let parts = match c.opt_int("num_outputs")? {
        Some(parts) => sizes(&[parts])?[0],
        None => c.node.outputs.len(),
    };
    if parts == 0 {
        return bad("has no outputs");
    }
    let each = n.div_ceil(parts);
    Ok((0..parts).map(|i| each.min(n.saturating_sub(i * each))).collect())
}

fn split(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let axis = c.axis(c.int("axis", 0)?, dims.len())?;
    let mut start = 0;
    let mut outputs = Vec::new();
    for n in split_sizes(c, dims[axis])? {
        let part = c.b.slice(x.id, axis, start, n)?;
        outputs.push(Val::Value(X { id: part, elem: x.elem }));
        start += n;
    }
    Ok(outputs)
}

fn slice(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let (starts, ends, axes, steps) = if c.opset >= 10 {
        (c.ints(1)?, c.ints(2)?, c.opt_ints(3)?, c.opt_ints(4)?)
    } else {
        let list = |name| Ok::<_, OpError>(c.opt_int_list(name)?.unwrap_or_default());
        (list("starts")?, list("ends")?, c.opt_int_list("axes")?, None)
    };
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()].iter().any(|&n| n != starts.len()) {
        return bad("starts, ends, axes and steps differ in length");
    }
    let mut y = x.id;
    for i in 0..starts.len() {
        let axis = c.axis(axes[i], dims.len())?;
        let (n, step) = (dims[axis] as i64, steps[i]);
        if step == 0 {
            return bad("a step of 0");
        }
        let from_end = |v: i64| if v < 0 { v.saturating_add(n) } else { v };
        let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
        let start = from_end(starts[i]).clamp(low.max(0), high.max(0));
        let end = from_end(ends[i]).clamp(low, high);
        let len = if step > 0 { (end - start).max(0) as u64 } else { (start - end).max(0) as u64 };
        let len = len.div_ceil(step.unsigned_abs()) as usize;
        if start == 0 && step == 1 && len == dims[axis] {
            continue;
        }
        y = c.b.strided(y, axis, start as usize, len, step)?;
    }
    c.one(y, x.elem)
}

/// `axis` read at these places.
fn take(c: &mut Context<'_>, x: ValueId, axis: usize, places: &[i64]) -> Made {
    let index = c.indices(vec![places.len()], places)?;
    Ok(c.b.gather(x, axis, index)?)
}

fn pad(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let (pads, value) = if c.opset >= 11 {
        let value = if c.has(2) { c.floats(2)?.first().copied().unwrap_or(0.0) } else { 0.0 };
        (c.ints(1)?, value)
    } else {
        let name = if c.opset >= 2 { "pads" } else { "paddings" };
        (c.opt_int_list(name)?.unwrap_or_default(), c.float("value", 0.0)?)
    };
    let axes = match c.opt_ints(3)? {
        Some(axes) => axes.iter().map(|&a| c.axis(a, dims.len())).collect::<Result<_, _>>()?,
        None => (0..dims.len()).collect::<Vec<usize>>(),
    };
    if pads.len() != 2 * axes.len() {
        return bad(format!("{} pads do not fit {} axes", pads.len(), axes.len()));
    }
    // Such numbers can be added and negated.
    if let Some(pad) = pads.iter().find(|pad| pad.unsigned_abs() > 1 << 48) {
        return bad(format!("a pad of {pad} is too large"));
    }
    let mode = c.text("mode", "constant")?;
    let mut y = x.id;
    for (i, &axis) in axes.iter().enumerate() {
        let (mut before, mut after) = (pads[i], pads[i + axes.len()]);
        // A negative pad crops.
        let n = c.dims(y)?[axis] as i64;
        let (crop_before, crop_after) = ((-before).max(0), (-after).max(0));
        if crop_before + crop_after > 0 {
            let len = sizes(&[n - crop_before - crop_after])?[0];
            y = c.b.slice(y, axis, crop_before as usize, len)?;
            (before, after) = (before.max(0), after.max(0));
        }
        if before == 0 && after == 0 {
            continue;
        }
        let n = c.dims(y)?[axis] as i64;
        let place = |at: i64| match mode.as_str() {
            "edge" => at.clamp(0, (n - 1).max(0)),
            "wrap" => at.rem_euclid(n.max(1)),
            _ => {
                let period = (2 * (n - 1)).max(1);
                let at = at.rem_euclid(period);
                at.min(period - at)
            }
        };
        y = match mode.as_str() {
            "constant" => c.b.pad(y, axis, before as usize, after as usize, value)?,
            "reflect" | "edge" | "wrap" if n == 0 => {
                return bad("an empty axis cannot be continued");
            }
            "reflect" | "edge" | "wrap" => {
                let places: Vec<i64> = (-before..n + after).map(place).collect();
                take(c, y, axis, &places)?
            }
            other => return bad(format!("mode {other:?} is unknown")),
        };
    }
    c.one(y, x.elem)
}

fn range(c: &mut Context<'_>) -> Outputs {
    let (elem, start) = c.known(0)?;
    let (start, limit, delta) = (to_floats(&start)?, c.floats(1)?, c.floats(2)?);
    let ([start], [limit], [delta]) = (&start[..], &limit[..], &delta[..]) else {
        return bad("start, limit and delta must be one number each");
    };
    let n = ((limit - start) / delta).ceil().max(0.0);
    if n.is_nan() || n > 1e9 {
        return bad(format!("from {start} to {limit} by {delta} is no range"));
    }
    let dtype = elem.storage().unwrap_or(DType::F32);
    let numbers: Vec<f64> = (0..n as usize).map(|i| start + i as f64 * delta).collect();
    let tensor = floats_tensor(dtype, vec![numbers.len()], &numbers)?;
    Ok(vec![Val::Known { elem, tensor }])
}

fn eye_like(c: &mut Context<'_>) -> Outputs {
    let dims = input_dims(c)?;
    let [rows, columns] = dims[..] else { return bad("the input must be a matrix") };
    let elem = match c.opt_int("dtype")? {
        Some(id) => Elem::from_id(id).ok_or_else(|| OpError::Bad("dtype is unknown".into()))?,
        None => c.x(0)?.elem,
    };
    let Some(dtype) = elem.storage() else { return bad(format!("{elem} has no dtype here")) };
    let k = c.int("k", 0)?;
    let row = c.b.iota(rows.into());
    let row = c.b.unsqueeze(row, 1)?;
    let row = c.b.offset(row, k as f64)?;
    let column = c.b.iota(columns.into());
    let same = c.b.cmp(cyb_ir::Cmp::Eq, row, column)?;
    let y = c.cast(same, dtype)?;
    c.one(y, elem)
}

fn trilu(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let [.., rows, columns] = dims[..] else { return bad("the input must have two axes") };
    let k = if c.has(1) { c.int_input(1)? } else { 0 };
    let upper = c.flag("upper", true)?;
    let row = c.b.iota(rows.into());
    let row = c.b.unsqueeze(row, 1)?;
    let k = c.indices(vec![], &[k])?;
    let edge = c.b.add(row, k)?;
    let column = c.b.iota(columns.into());
    let keep = if upper { c.le(edge, column)? } else { c.le(column, edge)? };
    let zero = c.scalar(x.id, 0.0)?;
    let y = c.b.select(keep, x.id, zero)?;
    c.one(y, x.elem)
}

fn depth_to_space(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let [n, channels, h, w] = dims[..] else { return bad("the input must have four axes") };
    let s = sizes(&[c.int("blocksize", 0)?])?[0];
    if s == 0 || channels % s.saturating_mul(s).max(1) != 0 {
        return bad(format!("{channels} channels are no blocks of {s} by {s}"));
    }
    let depth = channels / (s * s);
    let y = if c.text("mode", "DCR")? == "CRD" {
        let y = c.reshape(x.id, &[n, depth, s, s, h, w])?;
        c.b.permute(y, &[0, 1, 4, 2, 5, 3])?
    } else {
        let y = c.reshape(x.id, &[n, s, s, depth, h, w])?;
        c.b.permute(y, &[0, 3, 4, 1, 5, 2])?
    };
    let y = c.reshape(y, &[n, depth, h * s, w * s])?;
    c.one(y, x.elem)
}

fn space_to_depth(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let [n, depth, h, w] = dims[..] else { return bad("the input must have four axes") };
    let s = sizes(&[c.int("blocksize", 0)?])?[0];
    if s == 0 || h % s != 0 || w % s != 0 {
        return bad(format!("{h} by {w} are no blocks of {s} by {s}"));
    }
    let y = c.reshape(x.id, &[n, depth, h / s, s, w / s, s])?;
    let y = c.b.permute(y, &[0, 3, 5, 1, 2, 4])?;
    let y = c.reshape(y, &[n, depth * s * s, h / s, w / s])?;
    c.one(y, x.elem)
}

fn center_crop_pad(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let to = sizes(&c.ints(1)?)?;
    let axes = match c.opt_int_list("axes")? {
        Some(axes) => axes.iter().map(|&a| c.axis(a, dims.len())).collect::<Result<_, _>>()?,
        None => (0..dims.len()).collect::<Vec<usize>>(),
    };
    if axes.len() != to.len() {
        return bad("the shape does not fit the axes");
    }
    let mut y = x.id;
    for (&axis, &want) in axes.iter().zip(&to) {
        let have = dims[axis];
        y = if have >= want {
            c.b.slice(y, axis, (have - want) / 2, want)?
        } else {
            let before = (want - have) / 2;
            c.b.pad(y, axis, before, want - have - before, 0.0)?
        };
    }
    c.one(y, x.elem)
}

/// Each sequence of a batch reversed up to its length.
fn reverse_sequence(c: &mut Context<'_>) -> Outputs {
    let (x, lengths) = (c.x(0)?, c.x(1)?);
    let dims = c.dims(x.id)?;
    let time = c.axis(c.int("time_axis", 0)?, dims.len())?;
    let batch = c.axis(c.int("batch_axis", 1)?, dims.len())?;
    if time == batch || time > 1 || batch > 1 {
        return bad("time_axis and batch_axis must be 0 and 1");
    }
    // Positions [B, T]: length - 1 - t before the length, t after it.
    let (b, t) = (dims[batch], dims[time]);
    let step = c.b.iota(t.into());
    let lengths = c.reshape(lengths.id, &[b, 1])?;
    let last = c.b.offset(lengths, -1.0)?;
    let back = c.sub(last, step)?;
    let inside = c.b.lt(step, lengths)?;
    let place = c.b.select(inside, back, step)?;
    let row = c.b.iota(b.into());
    let row = c.reshape(row, &[b, 1])?;
    let row = c.b.scale(row, t as f64)?;
    let flat = c.add(place, row)?;
    let mut y = x.id;
    let mut perm: Vec<usize> = (0..dims.len()).collect();
    perm.swap(0, 1);
    if time == 0 {
        y = c.b.permute(y, &perm)?;
    }
    let mut rows = vec![b * t];
    rows.extend_from_slice(&dims[2..]);
    y = c.reshape(y, &rows)?;
    y = c.b.gather(y, 0, flat)?;
    if time == 0 {
        y = c.b.permute(y, &perm)?;
    }
    c.one(y, x.elem)
}
