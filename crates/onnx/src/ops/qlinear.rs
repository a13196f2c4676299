//! Operators on integers with scales that ONNX Runtime's quantizer writes: the float operator
//! between decoding and encoding.

use cyb_ir::ValueId;
use cyb_tensor::DType;

use super::integer::product_of_codes;
use super::quantized::{dequantized, encoded, requantize};
use super::{Rows, find};
use crate::context::{Context, Outputs};
use crate::error::{OpError, bad};
use crate::value::{Val, X};

pub(super) static ROWS: Rows = &[
    ("QGemm", gemm),
    ("QLinearAdd", |c| through(c, "Add", 2)),
    ("QLinearMul", |c| through(c, "Mul", 2)),
    ("QLinearSigmoid", |c| through(c, "Sigmoid", 1)),
    ("QLinearLeakyRelu", |c| through(c, "LeakyRelu", 1)),
    ("QLinearSoftmax", |c| through(c, "Softmax", 1)),
    ("QLinearAveragePool", |c| channels_first(c, "AveragePool")),
    ("QLinearGlobalAveragePool", |c| channels_first(c, "GlobalAveragePool")),
    ("QLinearConcat", concat),
];

/// The version of an operator's rules where the quantized one does not say.
const OPSET: i64 = 19;

/// Input `i` of codes, decoded with the scale and zero point that follow it.
fn floats(c: &mut Context<'_>, i: usize) -> Result<ValueId, OpError> {
    let (x, scale) = (c.x(i)?, c.x(i + 1)?);
    let zero = c.opt(i + 2)?;
    dequantized(c, x.id, scale.id, zero)
}

/// An operator of the default domain with this node's attributes.
fn apply(c: &mut Context<'_>, name: &str, inputs: &[ValueId]) -> Result<ValueId, OpError> {
    let Some(op) = find("", name) else { return bad(format!("{name} is no operator")) };
    let opset = c.int("opset", OPSET)?;
    let elem = cyb_formats::onnx::Elem::F32;
    let inputs = inputs.iter().map(|&id| Val::Value(X { id, elem })).collect();
    let mut inner = Context {
        b: &mut *c.b,
        node: c.node,
        inputs,
        opset,
        refs: c.refs,
        placed: &mut *c.placed,
        notes: &mut *c.notes,
    };
    match op(&mut inner)?.first() {
        Some(Val::Value(y)) => Ok(y.id),
        _ => bad(format!("{name} gives no tensor")),
    }
}

/// An operator of `n` inputs of codes; the scale and zero point of its output come last.
fn through(c: &mut Context<'_>, name: &str, n: usize) -> Outputs {
    let mut inputs = Vec::new();
    for i in 0..n {
        inputs.push(floats(c, 3 * i)?);
    }
    let y = apply(c, name, &inputs)?;
    encoded(c, y, 3 * n)
}

/// A pool, whose channels may come last.
fn channels_first(c: &mut Context<'_>, name: &str) -> Outputs {
    let mut x = floats(c, 0)?;
    let last = c.flag("channels_last", false)?;
    let rank = c.rank(x);
    if rank < 2 {
        return bad("the input needs a channel axis");
    }
    if last {
        let mut perm: Vec<usize> = (0..rank - 1).collect();
        perm.insert(1, rank - 1);
        x = c.b.permute(x, &perm)?;
    }
    let mut y = apply(c, name, &[x])?;
    if last {
        let mut perm: Vec<usize> = (0..rank).filter(|&i| i != 1).collect();
        perm.push(1);
        y = c.b.permute(y, &perm)?;
    }
    encoded(c, y, 3)
}

fn concat(c: &mut Context<'_>) -> Outputs {
    let n = c.inputs.len();
    if n < 5 || n % 3 != 2 {
        return bad(format!("{n} inputs are no scale, zero point and triples of tensors"));
    }
    let mut parts = Vec::new();
    for i in (2..n).step_by(3) {
        parts.push(floats(c, i)?);
    }
    let axis = c.axis(c.int("axis", 0)?, c.rank(parts[0]))?;
    let y = c.b.concat(&parts, axis)?;
    encoded(c, y, 0)
}

/// `alpha (A - a)(B - b) + C`, exact until its scale; floats where no output scale is given.
fn gemm(c: &mut Context<'_>) -> Outputs {
    let (a, sa, b, sb) = (c.x(0)?, c.x(1)?, c.x(3)?, c.x(4)?);
    let (za, zb, bias) = (c.opt(2)?, c.opt(5)?, c.opt(6)?);
    let turned = |c: &mut Context<'_>, x: ValueId, name: &str| -> Result<ValueId, OpError> {
        if c.flag(name, false)? { Ok(c.b.permute(x, &[1, 0])?) } else { Ok(x) }
    };
    let left = turned(c, a.id, "transA")?;
    let right = turned(c, b.id, "transB")?;
    let mut sums = product_of_codes(c, left, za, right, zb)?;
    if let Some(bias) = bias {
        sums = c.add(sums, bias.id)?;
    }
    let alpha = c.float("alpha", 1.0)?;
    let mut factor = c.mul(sa.id, sb.id)?;
    if alpha != 1.0 {
        factor = c.b.scale(factor, alpha)?;
    }
    if c.dims(factor)? == [1] {
        factor = c.reshape(factor, &[])?;
    }
    if !c.has(7) {
        let wide = c.cast(sums, DType::F32)?;
        let y = c.mul(wide, factor)?;
        return c.plain(y);
    }
    let (scale, zero) = (c.x(7)?, c.x(8)?);
    let mut scale = scale.id;
    if c.dims(scale)? == [1] {
        scale = c.reshape(scale, &[])?;
    }
    let factor = c.divide_once(factor, scale)?;
    requantize(c, sums, factor, zero)
}
