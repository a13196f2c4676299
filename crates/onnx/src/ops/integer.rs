//! Exact products and convolutions of 8-bit codes, and floats between codes that are such products:
//! what stands between `DequantizeLinear` and `QuantizeLinear`.

use cyb_formats::onnx::Elem;
use cyb_ir::{Attrs, ValueId};
use cyb_jets::{CONV_INTEGER, MATMUL_INTEGER};
use cyb_tensor::{DType, Tensor};

use super::conv::{conv, jet_attrs};
use super::matmul::product;
use super::normalization::by_channel;
use crate::context::{Context, Decoded, Made, Scaled};
use crate::error::{OpError, bad};
use crate::value::{Codes, Val, X};

/// Products of two codes less their zero points whose sum is a whole number that `f32` has.
const EXACT_IN_F32: usize = (1 << 24) / (255 * 255);
/// How far from a whole number a bias over its scale may be and still count as one: what rounding the
/// quotient takes, and much less than what makes another code.
const WHOLE: f32 = 1e-3;

fn is_code(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8)
}

/// A zero point as the jets take it: one number of `dtype`, which is 0 where there is none.
fn one_zero(
    c: &mut Context<'_>,
    zero: Option<X>,
    dtype: DType,
) -> Result<Option<ValueId>, OpError> {
    let Some(zero) = zero else { return Ok(Some(c.b.scalar(dtype, 0.0)?)) };
    let dims = c.dims(zero.id)?;
    if c.dtype(zero.id) != dtype || dims.iter().product::<usize>() != 1 {
        return Ok(None);
    }
    Ok(Some(c.reshape(zero.id, &[])?))
}

/// Known zero points of weights with `n` outputs: one, or one for each.
fn known_zeros(
    c: &mut Context<'_>,
    zero: Option<X>,
    dtype: DType,
    n: usize,
) -> Result<Option<ValueId>, OpError> {
    let Some(zero) = zero else { return Ok(Some(c.b.scalar(dtype, 0.0)?)) };
    let Some(tensor) = c.b.graph().tensor(zero.id).cloned() else { return Ok(None) };
    let shape = match tensor.elems() {
        1 => vec![],
        count if count == n => vec![n],
        _ => return Ok(None),
    };
    if tensor.dtype() != dtype {
        return Ok(None);
    }
    let flat = Tensor::new(dtype, shape, tensor.bytes().clone())?;
    Ok(Some(c.constant(&flat)))
}

/// Codes less their zero point, as `to`. The zero point of `rows` is one number, or one for each.
fn centered(c: &mut Context<'_>, x: ValueId, zero: Option<X>, rows: bool, to: DType) -> Made {
    let x = c.cast(x, to)?;
    let Some(zero) = zero else { return Ok(x) };
    let mut zero = c.cast(zero.id, to)?;
    let dims = c.dims(zero)?;
    if dims == [1] {
        zero = c.reshape(zero, &[])?;
    } else if rows && dims.len() == 1 {
        zero = c.b.unsqueeze(zero, 1)?;
    }
    c.sub(x, zero)
}

/// The exact product of codes less their zero points, as `I32`: `b` is [..., K, N].
pub(super) fn product_of_codes(
    c: &mut Context<'_>,
    a: ValueId,
    za: Option<X>,
    b: ValueId,
    zb: Option<X>,
) -> Made {
    if let Some(y) = with_weights(c, a, za, b, zb, true)? {
        return Ok(y);
    }
    let (da, db) = (c.dims(a)?, c.dims(b)?);
    let narrow = is_code(c.dtype(a)) && is_code(c.dtype(b)) && da.len() > 1 && db.len() > 1;
    if !narrow || da[da.len() - 1] != db[db.len() - 2] {
        let a = centered(c, a, za, true, DType::I32)?;
        let b = centered(c, b, zb, false, DType::I32)?;
        return product(c, a, b);
    }
    // Floats multiply faster, and are exact in parts that are short enough.
    let a = centered(c, a, za, true, DType::F32)?;
    let b = centered(c, b, zb, false, DType::F32)?;
    let k = da[da.len() - 1];
    let mut sum = None;
    for from in (0..k.max(1)).step_by(EXACT_IN_F32) {
        let len = EXACT_IN_F32.min(k - from);
        let (mut left, mut right) = (a, b);
        if len < k {
            left = c.b.slice(a, da.len() - 1, from, len)?;
            right = c.b.slice(b, db.len() - 2, from, len)?;
        }
        let part = c.matmul(left, right)?;
        let part = c.cast(part, DType::I32)?;
        sum = Some(match sum {
            Some(sum) => c.b.add(sum, part)?,
            None => part,
        });
    }
    sum.map_or_else(|| bad("has no product"), Ok)
}

/// The product as a jet, where `b` is a known matrix: [K, N], or [N, K] if not `turned`.
fn with_weights(
    c: &mut Context<'_>,
    a: ValueId,
    za: Option<X>,
    b: ValueId,
    zb: Option<X>,
    turned: bool,
) -> Result<Option<ValueId>, OpError> {
    let (da, db) = (c.dims(a)?, c.dims(b)?);
    let (ta, tb) = (c.dtype(a), c.dtype(b));
    let ([.., k], &[rows, columns]) = (&da[..], &db[..]) else { return Ok(None) };
    let (inner, n) = if turned { (rows, columns) } else { (columns, rows) };
    let fits = is_code(ta) && is_code(tb) && *k == inner && c.b.graph().tensor(b).is_some();
    if !fits {
        return Ok(None);
    }
    let (Some(za), Some(zb)) = (one_zero(c, za, ta)?, known_zeros(c, zb, tb, n)?) else {
        return Ok(None);
    };
    let attrs = Attrs::new().with("turned", turned);
    Ok(Some(c.b.jet(&MATMUL_INTEGER, attrs, &[a, b, za, zb])?))
}

/// The exact convolution of codes less their zero points, with the node's attributes, as `I32`.
pub(super) fn conv_of_codes(
    c: &mut Context<'_>,
    x: ValueId,
    zx: Option<X>,
    w: ValueId,
    zw: Option<X>,
) -> Made {
    if let Some(y) = conv_with_weights(c, x, zx, w, zw)? {
        return Ok(y);
    }
    let rank = c.rank(w);
    let x = centered(c, x, zx, false, DType::I32)?;
    let w = c.cast(w, DType::I32)?;
    let w = match zw {
        None => w,
        // One number, or one for each output channel.
        Some(zero) => {
            let zero = c.cast(zero.id, DType::I32)?;
            let n: usize = c.dims(zero)?.iter().product();
            let mut shape = vec![1; rank];
            shape[0] = n;
            let zero = c.reshape(zero, &shape)?;
            c.sub(w, zero)?
        }
    };
    conv(c, x, w)
}

fn conv_with_weights(
    c: &mut Context<'_>,
    x: ValueId,
    zx: Option<X>,
    w: ValueId,
    zw: Option<X>,
) -> Result<Option<ValueId>, OpError> {
    let (tx, tw) = (c.dtype(x), c.dtype(w));
    if !is_code(tx) || !is_code(tw) {
        return Ok(None);
    }
    let Some(weight) = c.b.graph().tensor(w).cloned() else { return Ok(None) };
    let Some(attrs) = jet_attrs(c, x, w)? else { return Ok(None) };
    let &[rows, ..] = weight.shape() else { return Ok(None) };
    let (zx_one, zw_known) = (one_zero(c, zx, tx)?, known_zeros(c, zw, tw, rows)?);
    let (Some(zx_one), Some(zw_known)) = (zx_one, zw_known) else { return Ok(None) };
    Ok(Some(c.b.jet(&CONV_INTEGER, attrs, &[x, w, zx_one, zw_known])?))
}

/// The codes that input 0 was decoded from, and known codes as input 1.
fn between(c: &Context<'_>) -> Option<(Decoded, std::sync::Arc<Codes>)> {
    let (Some(Val::Value(x)), Some(Val::Codes(w))) = (c.inputs.first(), c.inputs.get(1)) else {
        return None;
    };
    let from = c.placed.decoded.get(&x.id)?;
    Some((*from, w.clone()))
}

/// Known codes as values of the graph, and their zero points.
fn placed(c: &mut Context<'_>, w: &Codes) -> Result<(ValueId, Option<X>), OpError> {
    let id = c.constant(&w.codes);
    let zero = match &w.zero {
        Some(zero) => {
            let elem = Elem::of(zero.dtype()).unwrap_or(Elem::U8);
            Some(X { id: c.constant(zero), elem })
        }
        None => None,
    };
    Ok((id, zero))
}

/// Exact sums times both scales, of which the weights' line up with the sums by `shape`; with a bias
/// for each channel, if the sums have channels.
fn scaled(
    c: &mut Context<'_>,
    sums: ValueId,
    scale: ValueId,
    w: &Codes,
    shape: &[usize],
    bias: Option<X>,
) -> Made {
    let own = if w.scale.len() == 1 { &[][..] } else { shape };
    let Some(one) = c.b.graph().tensor(scale).cloned() else {
        let own = c.constant(&Tensor::from_f32(own.to_vec(), &w.scale)?);
        let factor = c.mul(own, scale)?;
        let y = c.cast(sums, DType::F32)?;
        let y = c.mul(y, factor)?;
        return with_channels(c, y, bias);
    };
    let one = one.to_f32_vec()?.first().copied().unwrap_or(1.0);
    let factors: Vec<f32> = w.scale.iter().map(|s| s * one).collect();
    let whole = match bias.and_then(|bias| c.b.graph().tensor(bias.id)) {
        Some(bias) => whole_bias(bias, &factors),
        None => None,
    };
    let (mut sums, mut bias) = (sums, bias);
    if let Some(whole) = whole {
        // As quantizers make it: added before anything is rounded.
        let id = c.constant(&Tensor::from_elems(DType::I32, vec![whole.len()], &whole)?);
        sums = with_channels(c, sums, Some(X { id, elem: Elem::I32 }))?;
        bias = None;
    }
    let factors = Tensor::from_f32(own.to_vec(), &factors)?;
    let factor = c.constant(&factors);
    let y = c.cast(sums, DType::F32)?;
    let y = c.mul(y, factor)?;
    if bias.is_none() {
        c.placed.scaled.insert(y, Scaled { sums, factors });
    }
    with_channels(c, y, bias)
}

/// A bias in units of `factors`, if it is whole numbers of them.
fn whole_bias(bias: &Tensor, factors: &[f32]) -> Option<Vec<i32>> {
    let bias = bias.to_f32_vec().ok()?;
    let factor = |i: usize| factors[if factors.len() == 1 { 0 } else { i }];
    if factors.len() != 1 && factors.len() != bias.len() {
        return None;
    }
    let each = bias.iter().enumerate().map(|(i, b)| {
        let units = b / factor(i);
        let whole = units.round();
        let near = (units - whole).abs() <= WHOLE && whole.abs() < (1 << 30) as f32;
        near.then_some(whole as i32)
    });
    each.collect()
}

/// `MatMul` of decoded codes with known codes, or `Gemm` without `alpha` and `beta`: [K, N], or
/// [N, K] if not `turned`.
pub(super) fn matmul_between(
    c: &mut Context<'_>,
    turned: bool,
) -> Result<Option<ValueId>, OpError> {
    let Some((x, w)) = between(c) else { return Ok(None) };
    let &[rows, columns] = w.codes.shape() else { return Ok(None) };
    let (n, axis) = if turned { (columns, 1) } else { (rows, 0) };
    if w.scale.len() > 1 && w.axis != axis {
        return Ok(None);
    }
    let (id, zero) = placed(c, &w)?;
    let Some(sums) = with_weights(c, x.codes.id, x.zero, id, zero, turned)? else {
        return Ok(None);
    };
    c.found(MATMUL_INTEGER.name);
    Ok(Some(scaled(c, sums, x.scale, &w, &[n], None)?))
}

/// `Conv` of decoded codes with known codes.
pub(super) fn conv_between(c: &mut Context<'_>) -> Result<Option<ValueId>, OpError> {
    let Some((x, w)) = between(c) else { return Ok(None) };
    if w.scale.len() > 1 && w.axis != 0 {
        return Ok(None);
    }
    let (id, zero) = placed(c, &w)?;
    let Some(sums) = conv_with_weights(c, x.codes.id, x.zero, id, zero)? else {
        return Ok(None);
    };
    c.found(CONV_INTEGER.name);
    let mut shape = vec![1; c.rank(sums) - 1];
    shape[0] = w.scale.len();
    let bias = c.opt(2)?;
    Ok(Some(scaled(c, sums, x.scale, &w, &shape, bias)?))
}

/// A convolution's sums and what is added to each channel of them.
pub(super) fn with_channels(c: &mut Context<'_>, y: ValueId, bias: Option<X>) -> Made {
    let Some(bias) = bias else { return Ok(y) };
    let rank = c.rank(y);
    let bias = by_channel(c, bias.id, rank)?;
    let bias = c.cast(bias, c.dtype(y))?;
    Ok(c.b.add(y, bias)?)
}
