//! Integers with scales.

use std::sync::Arc;

use cyb_formats::onnx::Elem;
use cyb_ir::{Atom, Attrs, Cmp, Op, Reduce, ValueId};
use cyb_jets::{AFFINE_QUANTIZE, RELU};
use cyb_tensor::{Class, DType, Tensor};

use super::Rows;
use super::cast::convert;
use super::integer::{conv_of_codes, product_of_codes, with_channels};
use super::normalization::by_channel;
use crate::context::{Context, Decoded, Made, Outputs, Scaled};
use crate::error::{OpError, bad};
use crate::value::{Codes, Val, X};

pub(super) static ROWS: Rows = &[
    ("QuantizeLinear", quantize),
    ("DequantizeLinear", dequantize),
    ("DynamicQuantizeLinear", dynamic_quantize),
    ("MatMulInteger", matmul_integer),
    ("ConvInteger", conv_integer),
    ("QLinearMatMul", qlinear_matmul),
    ("QLinearConv", qlinear_conv),
];

/// The domain of ONNX Runtime has types that the default one took up later.
pub(super) static MICROSOFT: Rows =
    &[("QuantizeLinear", quantize), ("DequantizeLinear", dequantize)];

/// A scale or zero point lined up with `x`: one number, one for each index of `axis`, or one for
/// each block along it.
fn lined_up(c: &mut Context<'_>, v: ValueId, dims: &[usize], axis: i64, block: usize) -> Made {
    let own = c.dims(v)?;
    if own.iter().product::<usize>() == 1 && own.len() <= 1 {
        return c.reshape(v, &[]);
    }
    let axis = c.axis(axis, dims.len())?;
    if own.len() == 1 && block == 0 {
        let mut shape = vec![1; dims.len()];
        shape[axis] = own[0];
        return c.reshape(v, &shape);
    }
    if own.len() != dims.len() {
        return bad(format!("scales of {own:?} do not fit {dims:?}"));
    }
    // Each repeated over its block; the last block may be cut short.
    let block = if block == 0 { dims[axis].div_ceil(own[axis].max(1)) } else { block };
    let mut shape = own.clone();
    shape.insert(axis + 1, 1);
    let y = c.reshape(v, &shape)?;
    shape[axis + 1] = block;
    let y = c.broadcast(y, &shape)?;
    shape.remove(axis + 1);
    shape[axis] = own[axis]
        .checked_mul(block)
        .ok_or_else(|| OpError::Bad(format!("a block of {block} is too large")))?;
    let y = c.reshape(y, &shape)?;
    if shape[axis] < dims[axis] {
        return bad(format!("scales of {own:?} in blocks of {block} do not fill {dims:?}"));
    }
    Ok(if shape[axis] > dims[axis] { c.b.slice(y, axis, 0, dims[axis])? } else { y })
}

fn block_size(c: &Context<'_>) -> Result<usize, OpError> {
    Ok(super::shape::sizes(&[c.int("block_size", 0)?])?[0])
}

/// Whole `f32` numbers as an integer type, those outside its range at its ends and NaN at the lower one.
pub(super) fn saturate(c: &mut Context<'_>, x: ValueId, to: Elem) -> Made {
    let (Some((low, high)), Some(dtype)) = (to.int_range(), to.storage()) else {
        return bad(format!("{to} is no integer type"));
    };
    let (low, high) = (c.scalar(x, low as f64)?, c.scalar(x, high as f64)?);
    let above = c.b.lt(low, x)?;
    let x = c.b.select(above, x, low)?;
    let x = c.b.min(x, high)?;
    c.cast(x, dtype)
}

/// The dtype of codes of 8 bits.
fn byte(elem: Elem) -> Option<DType> {
    match elem {
        Elem::U8 => Some(DType::U8),
        Elem::I8 => Some(DType::I8),
        _ => None,
    }
}

/// Floats as codes of 8 bits; the scale and the zero point line up with them.
fn affine(c: &mut Context<'_>, x: ValueId, scale: ValueId, zero: ValueId, to: DType) -> Made {
    let x = c.cast(x, DType::F32)?;
    Ok(c.b.jet(&AFFINE_QUANTIZE, Attrs::new().with("dtype", to), &[x, scale, zero])?)
}

fn quantize(c: &mut Context<'_>) -> Outputs {
    let (x, scale) = (c.x(0)?, c.x(1)?);
    let zero = c.opt(2)?;
    let to = match (&zero, c.opt_int("output_dtype")?.filter(|&n| n != 0)) {
        (Some(zero), _) => zero.elem,
        (None, Some(id)) => match Elem::from_id(id) {
            Some(elem) => elem,
            None => return bad(format!("type {id} is unknown")),
        },
        (None, None) => Elem::U8,
    };
    let (axis, block) = (c.int("axis", 1)?, block_size(c)?);
    let dims = c.dims(x.id)?;
    let wide = c.cast(x.id, DType::F32)?;
    let scale = c.cast(scale.id, DType::F32)?;
    let scale = lined_up(c, scale, &dims, axis, block)?;
    if let Some(dtype) = byte(to) {
        let zero = match zero {
            Some(zero) => lined_up(c, zero.id, &dims, axis, block)?,
            None => c.b.scalar(dtype, 0.0)?,
        };
        let (wide, scale) = match rescaled(c, wide, scale)? {
            Some(y) => (y, c.scalar(y, 1.0)?),
            None => (wide, scale),
        };
        let y = affine(c, wide, scale, zero, dtype)?;
        return c.one(y, to);
    }
    let scaled = c.divide_once(wide, scale)?;
    if to.int_range().is_none() {
        let saturates = c.flag("saturate", true)?;
        let y = convert(c, scaled, to, saturates, "up")?;
        return c.one(y, to);
    }
    let mut y = c.round(scaled)?;
    if let Some(zero) = zero {
        let zero = c.cast(zero.id, DType::F32)?;
        let zero = lined_up(c, zero, &dims, axis, block)?;
        y = c.b.add(y, zero)?;
    }
    let y = saturate(c, y, to)?;
    c.one(y, to)
}

/// `x` over a known scale where `x` is scaled sums, perhaps between limits: sums times one number, as
/// the quantized operators have it.
fn rescaled(c: &mut Context<'_>, x: ValueId, scale: ValueId) -> Result<Option<ValueId>, OpError> {
    let number = |c: &Context<'_>, v: ValueId| -> Result<Option<f32>, OpError> {
        match c.b.graph().tensor(v).filter(|t| t.elems() == 1 && t.dtype() == DType::F32) {
            Some(t) => Ok(t.to_f32_vec()?.first().copied()),
            None => Ok(None),
        }
    };
    let Some(unit) = number(c, scale)?.filter(|s| *s > 0.0 && s.is_finite()) else {
        return Ok(None);
    };
    let (mut inner, mut limits) = (x, Vec::new());
    while let Some(node) = c.b.graph().producer(inner) {
        let (kind, value, limit) = match (&node.op, node.inputs.as_slice()) {
            (Op::Jet(jet, _), &[value]) if *jet == &RELU => (Cmp::Max, value, 0.0),
            (&Op::Atom(Atom::Cmp(kind @ (Cmp::Max | Cmp::Min))), &[value, limit]) => {
                match number(c, limit)? {
                    Some(limit) => (kind, value, limit),
                    None => break,
                }
            }
            _ => break,
        };
        limits.push((kind, limit));
        inner = value;
    }
    let Some(Scaled { sums, factors }) = c.placed.scaled.get(&inner).cloned() else {
        return Ok(None);
    };
    let smaller: Vec<f32> = factors.to_f32_vec()?.iter().map(|f| f / unit).collect();
    let factors = c.constant(&Tensor::from_f32(factors.shape().to_vec(), &smaller)?);
    let y = c.cast(sums, DType::F32)?;
    let mut y = c.b.mul(y, factors)?;
    for (kind, limit) in limits.into_iter().rev() {
        let limit = c.scalar(y, f64::from(limit / unit))?;
        y = c.b.cmp(kind, y, limit)?;
    }
    Ok(Some(y))
}

/// Floats of matrices and larger that are known as codes stay codes.
fn known_codes(c: &Context<'_>) -> Result<Option<Val>, OpError> {
    let (Some(Val::Known { elem, tensor }), Some(scale)) = (c.inputs.first(), c.constant_input(1))
    else {
        return Ok(None);
    };
    let zero = match c.inputs.get(2) {
        None | Some(Val::None) => None,
        Some(Val::Known { tensor, .. }) => Some(tensor),
        Some(_) => return Ok(None),
    };
    let rank = tensor.shape().len();
    let plain = byte(*elem).is_some() && scale.dtype() == DType::F32 && rank >= 2;
    let vectors = scale.shape().len() <= 1 && zero.is_none_or(|z| z.shape().len() <= 1);
    let as_f32 = c.opt_int("output_dtype")?.is_none_or(|n| n == 0);
    if !plain || !vectors || !as_f32 || block_size(c)? != 0 {
        return Ok(None);
    }
    let scales = scale.to_f32_vec()?;
    let axis = match scales.len() {
        1 => 0,
        _ => c.axis(c.int("axis", 1)?, rank)?,
    };
    Ok(Codes::of(tensor, &scales, zero, axis).ok().map(|codes| Val::Codes(Arc::new(codes))))
}

fn dequantize(c: &mut Context<'_>) -> Outputs {
    if let Some(codes) = known_codes(c)? {
        return Ok(vec![codes]);
    }
    let (x, scale) = (c.x(0)?, c.x(1)?);
    let zero = c.opt(2)?;
    let (axis, block) = (c.int("axis", 1)?, block_size(c)?);
    let dims = c.dims(x.id)?;
    let mut decoded = None;
    let single = |c: &Context<'_>, v: ValueId| -> Result<bool, OpError> {
        Ok(c.dims(v)?.iter().product::<usize>() == 1)
    };
    let one_zero = match zero {
        Some(zero) => single(c, zero.id)?,
        None => true,
    };
    if byte(x.elem).is_some() && scale.elem == Elem::F32 && single(c, scale.id)? && one_zero {
        let scale = c.reshape(scale.id, &[])?;
        decoded = Some(Decoded { codes: x, scale, zero });
    }
    let mut y = c.cast(x.id, DType::F32)?;
    if let Some(zero) = zero {
        // Differences of 32-bit integers need not fit a float.
        let zero_id = lined_up(c, zero.id, &dims, axis, block)?;
        if matches!(c.dtype(x.id), DType::I32 | DType::U32) {
            let (a, b) = (c.cast(x.id, DType::I64)?, c.cast(zero_id, DType::I64)?);
            let difference = c.sub(a, b)?;
            y = c.cast(difference, DType::F32)?;
        } else {
            let zero = c.cast(zero_id, DType::F32)?;
            y = c.sub(y, zero)?;
        }
    }
    let wide = c.cast(scale.id, DType::F32)?;
    let wide = lined_up(c, wide, &dims, axis, block)?;
    let y = c.b.mul(y, wide)?;
    let elem = match c.opt_int("output_dtype")?.filter(|&n| n != 0) {
        Some(id) => Elem::from_id(id).ok_or_else(|| OpError::Bad("type is unknown".into()))?,
        None => scale.elem,
    };
    let y = match elem.storage() {
        Some(dtype) if dtype.class() == Class::Float => c.cast(y, dtype)?,
        _ => return bad(format!("{elem} is no float type")),
    };
    if let Some(decoded) = decoded.filter(|_| elem == Elem::F32) {
        c.placed.decoded.insert(y, decoded);
    }
    c.one(y, elem)
}

fn dynamic_quantize(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let (codes, scale, point) = dynamic(c, x.id)?;
    Ok(vec![
        Val::Value(X { id: codes, elem: Elem::U8 }),
        Val::Value(X { id: scale, elem: Elem::F32 }),
        Val::Value(X { id: point, elem: Elem::U8 }),
    ])
}

/// Codes of 8 bits over the range of `x` and 0, their scale and zero point.
pub(super) fn dynamic(
    c: &mut Context<'_>,
    x: ValueId,
) -> Result<(ValueId, ValueId, ValueId), OpError> {
    let zero = c.scalar(x, 0.0)?;
    let mut ends = [x; 2];
    for (end, kind) in ends.iter_mut().zip([Reduce::Max, Reduce::Min]) {
        // Row by row first, which workers share.
        if let Some(last) = c.rank(x).checked_sub(1).filter(|&last| last > 0) {
            *end = c.b.reduce(kind, *end, &[last])?;
        }
        let axes: Vec<usize> = (0..c.rank(*end)).collect();
        *end = c.b.reduce(kind, *end, &axes)?;
    }
    let [top, bottom] = ends;
    let (top, bottom) = (c.b.max(top, zero)?, c.b.min(bottom, zero)?);
    let range = c.sub(top, bottom)?;
    let levels = c.scalar(range, 255.0)?;
    let scale = c.divide_once(range, levels)?;
    let flat = c.b.cmp(Cmp::Eq, scale, zero)?;
    let one = c.scalar(x, 1.0)?;
    let divisor = c.b.select(flat, one, scale)?;
    let minus = c.neg(bottom)?;
    let point = c.divide_once(minus, divisor)?;
    let point = c.round(point)?;
    let point_code = saturate(c, point, Elem::U8)?;
    let y = affine(c, x, divisor, point_code, DType::U8)?;
    Ok((y, scale, point_code))
}

/// Codes decoded with a scale and a zero point, one of each.
pub(super) fn dequantized(
    c: &mut Context<'_>,
    x: ValueId,
    scale: ValueId,
    zero: Option<X>,
) -> Made {
    let dims = c.dims(x)?;
    let mut y = c.cast(x, DType::F32)?;
    if let Some(zero) = zero {
        let zero = c.cast(zero.id, DType::F32)?;
        let zero = lined_up(c, zero, &dims, 0, 0)?;
        y = c.sub(y, zero)?;
    }
    let scale = lined_up(c, scale, &dims, 0, 0)?;
    c.mul(y, scale)
}

/// `y` as codes by the scale at input `i` and the zero point behind it.
pub(super) fn encoded(c: &mut Context<'_>, y: ValueId, i: usize) -> Outputs {
    let scale = c.x(i)?;
    let zero = c.opt(i + 1)?;
    let dims = c.dims(y)?;
    let scale = lined_up(c, scale.id, &dims, 0, 0)?;
    let to = zero.as_ref().map_or(Elem::U8, |zero| zero.elem);
    if let Some(dtype) = byte(to) {
        let zero = match zero {
            Some(zero) => lined_up(c, zero.id, &dims, 0, 0)?,
            None => c.b.scalar(dtype, 0.0)?,
        };
        let y = affine(c, y, scale, zero, dtype)?;
        return c.one(y, to);
    }
    let scaled = c.divide_once(y, scale)?;
    let mut y = c.round(scaled)?;
    if let Some(zero) = zero {
        let zero = c.cast(zero.id, DType::F32)?;
        let zero = lined_up(c, zero, &dims, 0, 0)?;
        y = c.b.add(y, zero)?;
    }
    let y = saturate(c, y, to)?;
    c.one(y, to)
}

fn matmul_integer(c: &mut Context<'_>) -> Outputs {
    let (a, b) = (c.x(0)?, c.x(1)?);
    let (za, zb) = (c.opt(2)?, c.opt(3)?);
    let y = product_of_codes(c, a.id, za, b.id, zb)?;
    c.plain(y)
}

fn conv_integer(c: &mut Context<'_>) -> Outputs {
    let (x, w) = (c.x(0)?, c.x(1)?);
    let (zx, zw) = (c.opt(2)?, c.opt(3)?);
    let y = conv_of_codes(c, x.id, zx, w.id, zw)?;
    c.plain(y)
}

/// Exact sums times `factor`, rounded, moved to the zero point and saturated.
pub(super) fn requantize(c: &mut Context<'_>, sums: ValueId, factor: ValueId, zero: X) -> Outputs {
    let sums = c.cast(sums, DType::F32)?;
    let y = c.b.mul(sums, factor)?;
    let point = match c.dims(zero.id)?.as_slice() {
        [1] => c.reshape(zero.id, &[])?,
        _ => zero.id,
    };
    if let Some(dtype) = byte(zero.elem) {
        let one = c.scalar(y, 1.0)?;
        let y = affine(c, y, one, point, dtype)?;
        return c.one(y, zero.elem);
    }
    let y = c.round(y)?;
    let point = c.cast(point, DType::F32)?;
    let y = c.b.add(y, point)?;
    let y = saturate(c, y, zero.elem)?;
    c.one(y, zero.elem)
}

fn qlinear_matmul(c: &mut Context<'_>) -> Outputs {
    let mut inputs = Vec::new();
    for i in 0..8 {
        inputs.push(c.x(i)?);
    }
    let (a, b) = (inputs[0].id, inputs[3].id);
    let sums = product_of_codes(c, a, Some(inputs[2]), b, Some(inputs[5]))?;
    let mut scales = Vec::new();
    for (i, rows) in [(1, true), (4, false), (6, false)] {
        let s = c.cast(inputs[i].id, DType::F32)?;
        scales.push(match c.dims(s)?.as_slice() {
            [1] => c.reshape(s, &[])?,
            [_] if rows => c.b.unsqueeze(s, 1)?,
            _ => s,
        });
    }
    let factor = c.mul(scales[0], scales[1])?;
    let factor = c.divide_once(factor, scales[2])?;
    requantize(c, sums, factor, inputs[7])
}

fn qlinear_conv(c: &mut Context<'_>) -> Outputs {
    let mut inputs = Vec::new();
    for i in 0..8 {
        inputs.push(c.x(i)?);
    }
    let bias = c.opt(8)?;
    let (x, w) = (inputs[0].id, inputs[3].id);
    let sums = conv_of_codes(c, x, Some(inputs[2]), w, Some(inputs[5]))?;
    let sums = with_channels(c, sums, bias)?;
    let rank = c.rank(sums);
    let (sx, sw, sy) = (inputs[1].id, inputs[4].id, inputs[6].id);
    let sw = by_channel(c, sw, rank)?;
    let (sx, sy) = (c.reshape(sx, &[])?, c.reshape(sy, &[])?);
    let factor = c.mul(sw, sx)?;
    let factor = c.divide_once(factor, sy)?;
    requantize(c, sums, factor, inputs[7])
}
