//! Operators that compute each element alone.

use cyb_ir::{Attrs, Cmp, Exp, ValueId};
use cyb_jets::{GELU, LEAKY_RELU, SILU};
use cyb_tensor::DType;

use super::Rows;
use crate::context::{Context, Made, Outputs};
use crate::error::OpError;
use crate::value::X;

pub(super) static ROWS: Rows = &[
    ("Abs", |c| unary(c, |c, x| c.abs(x))),
    ("Neg", |c| unary(c, |c, x| c.neg(x))),
    ("Sign", |c| unary(c, sign)),
    ("Floor", |c| unary(c, |c, x| c.floor(x))),
    ("Ceil", |c| unary(c, |c, x| c.ceil(x))),
    ("Round", |c| unary(c, |c, x| c.round(x))),
    ("Exp", |c| unary(c, |c, x| Ok(c.b.exp(Exp::Exp, x)?))),
    ("Log", |c| unary(c, |c, x| Ok(c.b.exp(Exp::Ln, x)?))),
    ("Sqrt", |c| unary(c, |c, x| Ok(c.b.exp(Exp::Sqrt, x)?))),
    ("Reciprocal", |c| unary(c, |c, x| Ok(c.b.exp(Exp::Recip, x)?))),
    ("Sin", |c| unary(c, |c, x| Ok(c.b.exp(Exp::Sin, x)?))),
    ("Cos", |c| unary(c, |c, x| Ok(c.b.exp(Exp::Cos, x)?))),
    ("Erf", |c| unary(c, |c, x| Ok(c.b.exp(Exp::Erf, x)?))),
    ("Tan", |c| f64_unary(c, tan)),
    ("Sinh", |c| f64_unary(c, |c, x| hyperbolic(c, x, -0.5))),
    ("Cosh", |c| f64_unary(c, |c, x| hyperbolic(c, x, 0.5))),
    ("Asin", |c| f64_unary(c, asin)),
    ("Acos", |c| f64_unary(c, acos)),
    ("Atan", |c| f64_unary(c, |c, x| c.atan(x))),
    ("Asinh", |c| f64_unary(c, asinh)),
    ("Acosh", |c| f64_unary(c, acosh)),
    ("Atanh", |c| f64_unary(c, atanh)),
    ("Sigmoid", |c| unary(c, |c, x| c.sigmoid(x))),
    ("Tanh", |c| unary(c, |c, x| c.tanh(x))),
    ("Relu", |c| unary(c, |c, x| c.relu(x))),
    ("LeakyRelu", |c| {
        let alpha = c.float("alpha", 0.01)?;
        unary(c, |c, x| leaky(c, x, alpha))
    }),
    ("PRelu", prelu),
    ("ThresholdedRelu", |c| {
        let alpha = c.float("alpha", 1.0)?;
        unary(c, |c, x| {
            let (zero, edge) = (c.scalar(x, 0.0)?, c.scalar(x, alpha)?);
            let above = c.b.lt(edge, x)?;
            Ok(c.b.select(above, x, zero)?)
        })
    }),
    ("Elu", |c| {
        let alpha = c.float("alpha", 1.0)?;
        unary(c, |c, x| elu(c, x, alpha, 1.0, 1.0))
    }),
    ("Celu", |c| {
        let alpha = c.float("alpha", 1.0)?;
        unary(c, |c, x| elu(c, x, alpha, 1.0, alpha))
    }),
    ("Selu", |c| {
        let alpha = c.float("alpha", 1.673_263_192_176_818_8)?;
        let gamma = c.float("gamma", 1.050_700_902_938_842_8)?;
        unary(c, |c, x| elu(c, x, alpha, gamma, 1.0))
    }),
    ("HardSigmoid", |c| {
        let (alpha, beta) = (c.float("alpha", 0.2)?, c.float("beta", 0.5)?);
        unary(c, |c, x| hard_sigmoid(c, x, alpha, beta))
    }),
    ("HardSwish", |c| {
        unary(c, |c, x| {
            let s = hard_sigmoid(c, x, 1.0 / 6.0, 0.5)?;
            Ok(c.b.mul(x, s)?)
        })
    }),
    ("Softplus", |c| unary(c, softplus)),
    ("Softsign", |c| {
        unary(c, |c, x| {
            let size = c.abs(x)?;
            let below = c.b.offset(size, 1.0)?;
            Ok(c.b.div(x, below)?)
        })
    }),
    ("Mish", |c| {
        unary(c, |c, x| {
            let s = softplus(c, x)?;
            let t = c.tanh(s)?;
            Ok(c.b.mul(x, t)?)
        })
    }),
    ("Swish", |c| {
        let alpha = c.float("alpha", 1.0)?;
        unary(c, |c, x| {
            if alpha == 1.0 {
                return Ok(c.b.jet(&SILU, Attrs::new(), &[x])?);
            }
            let scaled = c.b.scale(x, alpha)?;
            let s = c.sigmoid(scaled)?;
            Ok(c.b.mul(x, s)?)
        })
    }),
    ("Gelu", |c| {
        let form = c.text("approximate", "none")?;
        let form = if form == "tanh" { "tanh" } else { "none" };
        unary(c, |c, x| Ok(c.b.jet(&GELU, Attrs::new().with("approximate", form), &[x])?))
    }),
    ("Shrink", shrink),
    ("Clip", clip),
    ("Not", |c| unary(c, |c, x| Ok(c.b.not(x)?))),
    ("IsNaN", |c| {
        let x = c.x(0)?;
        let same = c.b.cmp(Cmp::Eq, x.id, x.id)?;
        let y = c.b.not(same)?;
        c.plain(y)
    }),
    ("IsInf", is_inf),
    ("Add", |c| binary(c, sum)),
    ("Sub", |c| {
        binary(c, |c, a, b| {
            let minus = if c.is_float(b) { c.neg(b)? } else { return c.sub(a, b) };
            match super::rotary::turned_sum(c, a, minus)? {
                Some(y) => Ok(y),
                None => c.sub(a, b),
            }
        })
    }),
    ("Mul", |c| {
        binary(c, |c, a, b| {
            if let Some(y) = super::fused::activation(c, a, b)? {
                return Ok(y);
            }
            match super::fused::normalization(c, a, b)? {
                Some(y) => Ok(y),
                None => c.mul(a, b),
            }
        })
    }),
    ("Div", |c| {
        binary(c, |c, a, b| match super::fused::softmax(c, a, b)? {
            Some(y) => Ok(y),
            None if c.is_float(a) => c.divide(a, b),
            None => Ok(c.int_div(a, b)?.0),
        })
    }),
    ("Mod", modulo),
    ("Pow", pow),
    ("And", |c| binary(c, |c, a, b| c.mul(a, b))),
    ("Or", |c| binary(c, |c, a, b| c.add(a, b))),
    ("Xor", |c| {
        binary(c, |c, a, b| {
            let same = c.b.cmp(Cmp::Eq, a, b)?;
            Ok(c.b.not(same)?)
        })
    }),
    ("Equal", |c| compare(c, |c, a, b| Ok(c.b.cmp(Cmp::Eq, a, b)?))),
    ("Less", |c| compare(c, |c, a, b| Ok(c.b.lt(a, b)?))),
    ("Greater", |c| compare(c, |c, a, b| Ok(c.b.lt(b, a)?))),
    ("LessOrEqual", |c| compare(c, |c, a, b| c.le(a, b))),
    ("GreaterOrEqual", |c| compare(c, |c, a, b| c.le(b, a))),
    ("Where", |c| {
        let (condition, a, b) = (c.x(0)?, c.x(1)?, c.x(2)?);
        let y = c.b.select(condition.id, a.id, b.id)?;
        c.one(y, a.elem)
    }),
    ("Max", |c| variadic(c, |c, a, b| Ok(c.b.max(a, b)?))),
    ("Min", |c| variadic(c, |c, a, b| Ok(c.b.min(a, b)?))),
    ("Sum", |c| variadic(c, |c, a, b| c.add(a, b))),
    ("Mean", |c| {
        let n = c.inputs.len();
        let x = c.x(0)?;
        let wide = c.wide(x.id)?;
        let mut sum = wide;
        for i in 1..n {
            let next = c.x(i)?;
            let next = c.wide(next.id)?;
            sum = c.add(sum, next)?;
        }
        let y = c.b.scale(sum, 1.0 / n as f64)?;
        narrowed(c, y, wide, x)
    }),
];

/// One input, one output of its type. Narrow floats compute in `f32` and round once.
pub(super) fn unary(
    c: &mut Context<'_>,
    f: impl FnOnce(&mut Context<'_>, ValueId) -> Made,
) -> Outputs {
    let x = c.x(0)?;
    let wide = c.wide(x.id)?;
    let y = f(c, wide)?;
    narrowed(c, y, wide, x)
}

/// The result `y` of operands that were `like` and became `wide`, as their type.
fn narrowed(c: &mut Context<'_>, y: ValueId, wide: ValueId, like: X) -> Outputs {
    let dtype = c.dtype(like.id);
    let y = if c.dtype(wide) == dtype { y } else { c.cast(y, dtype)? };
    c.one(y, like.elem)
}

fn f64_unary(c: &mut Context<'_>, f: impl FnOnce(&mut Context<'_>, ValueId) -> Made) -> Outputs {
    let x = c.x(0)?;
    let y = c.in_f64(x.id, f)?;
    c.one(y, x.elem)
}

pub(super) fn binary(
    c: &mut Context<'_>,
    f: impl FnOnce(&mut Context<'_>, ValueId, ValueId) -> Made,
) -> Outputs {
    let (a, b) = operands(c)?;
    let (left, right) = (c.wide(a.id)?, c.wide(b)?);
    let y = f(c, left, right)?;
    narrowed(c, y, left, a)
}

fn compare(
    c: &mut Context<'_>,
    f: impl FnOnce(&mut Context<'_>, ValueId, ValueId) -> Made,
) -> Outputs {
    let (a, b) = operands(c)?;
    let (left, right) = (c.wide(a.id)?, c.wide(b)?);
    let y = f(c, left, right)?;
    c.plain(y)
}

/// The two operands, lined up as opset 6 and below may ask with `broadcast` and `axis`.
fn operands(c: &mut Context<'_>) -> Result<(X, ValueId), OpError> {
    let (a, b) = (c.x(0)?, c.x(1)?);
    let mut right = b.id;
    if c.opset < 7
        && let Some(axis) = c.opt_int("axis")?
    {
        let rank = c.rank(a.id);
        let axis = c.axis(axis, rank)?;
        let mut dims = c.dims(right)?;
        while axis + dims.len() < rank {
            dims.push(1);
        }
        right = c.reshape(right, &dims)?;
    }
    Ok((a, right))
}

fn variadic(
    c: &mut Context<'_>,
    f: impl Fn(&mut Context<'_>, ValueId, ValueId) -> Made,
) -> Outputs {
    let x = c.x(0)?;
    let wide = c.wide(x.id)?;
    let mut y = wide;
    for i in 1..c.inputs.len() {
        let next = c.x(i)?;
        let next = c.wide(next.id)?;
        y = f(c, y, next)?;
    }
    narrowed(c, y, wide, x)
}

/// `a + b`, or the layer that the sum ends.
fn sum(c: &mut Context<'_>, a: ValueId, b: ValueId) -> Made {
    if let Some(y) = super::fused::biased(c, a, b)? {
        return Ok(y);
    }
    match super::rotary::turned_sum(c, a, b)? {
        Some(y) => Ok(y),
        None => c.add(a, b),
    }
}

fn sign(c: &mut Context<'_>, x: ValueId) -> Made {
    let (zero, one) = (c.scalar(x, 0.0)?, c.scalar(x, 1.0)?);
    let above = c.b.lt(zero, x)?;
    let below = c.b.lt(x, zero)?;
    let minus = c.neg(one)?;
    let rest = c.b.select(below, minus, x)?;
    Ok(c.b.select(above, one, rest)?)
}

fn tan(c: &mut Context<'_>, x: ValueId) -> Made {
    let (s, t) = (c.b.exp(Exp::Sin, x)?, c.b.exp(Exp::Cos, x)?);
    Ok(c.b.div(s, t)?)
}

/// `(exp(x) ± exp(-x)) / 2`; `half` is the second term's factor.
fn hyperbolic(c: &mut Context<'_>, x: ValueId, half: f64) -> Made {
    let minus = c.neg(x)?;
    let (up, down) = (c.b.exp(Exp::Exp, x)?, c.b.exp(Exp::Exp, minus)?);
    let (up, down) = (c.b.scale(up, 0.5)?, c.b.scale(down, half)?);
    Ok(c.b.add(up, down)?)
}

/// `atan(x / sqrt(1 - x²))`.
fn asin(c: &mut Context<'_>, x: ValueId) -> Made {
    let square = c.b.mul(x, x)?;
    let minus = c.neg(square)?;
    let rest = c.b.offset(minus, 1.0)?;
    let r = c.b.exp(Exp::Rsqrt, rest)?;
    let t = c.b.mul(x, r)?;
    c.atan(t)
}

fn acos(c: &mut Context<'_>, x: ValueId) -> Made {
    let a = asin(c, x)?;
    let minus = c.neg(a)?;
    Ok(c.b.offset(minus, std::f64::consts::FRAC_PI_2)?)
}

fn asinh(c: &mut Context<'_>, x: ValueId) -> Made {
    let size = c.abs(x)?;
    let square = c.b.mul(x, x)?;
    let above = c.b.offset(square, 1.0)?;
    let root = c.b.exp(Exp::Sqrt, above)?;
    let sum = c.b.add(size, root)?;
    let ln = c.b.exp(Exp::Ln, sum)?;
    let s = sign(c, x)?;
    Ok(c.b.mul(ln, s)?)
}

fn acosh(c: &mut Context<'_>, x: ValueId) -> Made {
    let square = c.b.mul(x, x)?;
    let above = c.b.offset(square, -1.0)?;
    let root = c.b.exp(Exp::Sqrt, above)?;
    let sum = c.b.add(x, root)?;
    Ok(c.b.exp(Exp::Ln, sum)?)
}

fn atanh(c: &mut Context<'_>, x: ValueId) -> Made {
    let minus = c.neg(x)?;
    let (up, down) = (c.b.offset(x, 1.0)?, c.b.offset(minus, 1.0)?);
    let (up, down) = (c.b.exp(Exp::Ln, up)?, c.b.exp(Exp::Ln, down)?);
    let d = c.sub(up, down)?;
    Ok(c.b.scale(d, 0.5)?)
}

fn leaky(c: &mut Context<'_>, x: ValueId, alpha: f64) -> Made {
    if c.dtype(x) == DType::F32 && alpha != 0.0 {
        return Ok(c.b.jet(&LEAKY_RELU, Attrs::new().with("slope", alpha), &[x])?);
    }
    let zero = c.scalar(x, 0.0)?;
    let small = c.b.scale(x, alpha)?;
    let below = c.b.lt(x, zero)?;
    Ok(c.b.select(below, small, x)?)
}

fn prelu(c: &mut Context<'_>) -> Outputs {
    let (x, slope) = (c.x(0)?, c.x(1)?);
    let zero = c.scalar(x.id, 0.0)?;
    let small = c.b.mul(x.id, slope.id)?;
    let below = c.b.lt(x.id, zero)?;
    let y = c.b.select(below, small, x.id)?;
    c.one(y, x.elem)
}

/// `gamma * x` above 0, `gamma * alpha * (exp(x / width) - 1)` below.
fn elu(c: &mut Context<'_>, x: ValueId, alpha: f64, gamma: f64, width: f64) -> Made {
    let zero = c.scalar(x, 0.0)?;
    let low = c.b.min(x, zero)?;
    let inner = if width == 1.0 { low } else { c.b.scale(low, 1.0 / width)? };
    let e = c.b.exp(Exp::Exp, inner)?;
    let less = c.b.offset(e, -1.0)?;
    let bent = c.b.scale(less, gamma * alpha)?;
    let straight = if gamma == 1.0 { x } else { c.b.scale(x, gamma)? };
    let below = c.b.lt(x, zero)?;
    Ok(c.b.select(below, bent, straight)?)
}

fn hard_sigmoid(c: &mut Context<'_>, x: ValueId, alpha: f64, beta: f64) -> Made {
    let scaled = c.b.scale(x, alpha)?;
    let moved = c.b.offset(scaled, beta)?;
    let (zero, one) = (c.scalar(x, 0.0)?, c.scalar(x, 1.0)?);
    let low = c.b.max(moved, zero)?;
    Ok(c.b.min(low, one)?)
}

/// `ln(1 + exp(x))`, as `max(x, 0) + ln(1 + exp(-|x|))`.
fn softplus(c: &mut Context<'_>, x: ValueId) -> Made {
    let zero = c.scalar(x, 0.0)?;
    let top = c.b.max(x, zero)?;
    let size = c.abs(x)?;
    let minus = c.neg(size)?;
    let e = c.b.exp(Exp::Exp, minus)?;
    let above = c.b.offset(e, 1.0)?;
    let ln = c.b.exp(Exp::Ln, above)?;
    Ok(c.b.add(top, ln)?)
}

fn shrink(c: &mut Context<'_>) -> Outputs {
    let (lambd, bias) = (c.float("lambd", 0.5)?, c.float("bias", 0.0)?);
    unary(c, |c, x| {
        let (low, high) = (c.scalar(x, -lambd)?, c.scalar(x, lambd)?);
        let (up, down) = (c.b.offset(x, bias)?, c.b.offset(x, -bias)?);
        let zero = c.scalar(x, 0.0)?;
        let (below, above) = (c.b.lt(x, low)?, c.b.lt(high, x)?);
        let rest = c.b.select(above, down, zero)?;
        Ok(c.b.select(below, up, rest)?)
    })
}

fn clip(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let mut y = x.id;
    if c.opset < 11 {
        if let Some(low) = c.opt_float("min")? {
            let low = c.scalar(y, low)?;
            y = c.b.max(y, low)?;
        }
        if let Some(high) = c.opt_float("max")? {
            let high = c.scalar(y, high)?;
            y = c.b.min(y, high)?;
        }
        return c.one(y, x.elem);
    }
    if let Some(low) = c.opt(1)? {
        y = c.b.max(y, low.id)?;
    }
    if let Some(high) = c.opt(2)? {
        y = c.b.min(y, high.id)?;
    }
    c.one(y, x.elem)
}

fn is_inf(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let (up, down) = (c.flag("detect_positive", true)?, c.flag("detect_negative", true)?);
    let x = c.wide(x.id)?;
    let (top, bottom) = (c.scalar(x, f64::INFINITY)?, c.scalar(x, f64::NEG_INFINITY)?);
    let (is_top, is_bottom) = (c.b.cmp(Cmp::Eq, x, top)?, c.b.cmp(Cmp::Eq, x, bottom)?);
    let y = match (up, down) {
        (true, true) => c.b.add(is_top, is_bottom)?,
        (true, false) => is_top,
        (false, true) => is_bottom,
        (false, false) => {
            let same = c.b.cmp(Cmp::Eq, is_top, is_top)?;
            c.b.not(same)?
        }
    };
    c.plain(y)
}

fn modulo(c: &mut Context<'_>) -> Outputs {
    let like_c = c.flag("fmod", false)?;
    let (a, b) = operands(c)?;
    let dtype = c.dtype(a.id);
    let y = if c.is_float(a.id) {
        let (x, d) = (c.cast(a.id, DType::F64)?, c.cast(b, DType::F64)?);
        let q = c.divide(x, d)?;
        let q = if like_c { c.trunc(q)? } else { c.floor(q)? };
        let product = c.mul(q, d)?;
        let rest = c.sub(x, product)?;
        c.cast(rest, dtype)?
    } else {
        let rest = c.int_div(a.id, b)?.1;
        let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
        if like_c || !signed {
            rest
        } else {
            // The sign of the divisor.
            let zero = c.scalar(rest, 0.0)?;
            let (nr, nb) = (c.b.lt(rest, zero)?, c.b.lt(b, zero)?);
            let same = c.b.cmp(Cmp::Eq, nr, nb)?;
            let none = c.b.cmp(Cmp::Eq, rest, zero)?;
            let keep = c.b.add(same, none)?;
            let moved = c.b.add(rest, b)?;
            c.b.select(keep, rest, moved)?
        }
    };
    c.one(y, a.elem)
}

fn pow(c: &mut Context<'_>) -> Outputs {
    let (a, b) = (c.x(0)?, c.x(1)?);
    let exponent = match c.constant_input(1) {
        Some(t) if t.elems() == 1 && t.shape().len() <= c.rank(a.id) => {
            c.floats(1)?.first().copied()
        }
        _ => None,
    };
    let whole = c.is_float(a.id) && matches!(c.dtype(a.id), DType::F32 | DType::F64);
    let y = match exponent {
        Some(2.0) => c.b.mul(a.id, a.id)?,
        Some(3.0) => {
            let square = c.b.mul(a.id, a.id)?;
            c.b.mul(square, a.id)?
        }
        Some(1.0) => a.id,
        Some(0.5) if whole => c.b.exp(Exp::Sqrt, a.id)?,
        Some(-0.5) if whole => c.b.exp(Exp::Rsqrt, a.id)?,
        Some(-1.0) if whole => c.b.exp(Exp::Recip, a.id)?,
        _ => {
            let dtype = c.dtype(a.id);
            let (x, e) = (c.cast(a.id, DType::F64)?, c.cast(b.id, DType::F64)?);
            let mut y = c.power(x, e)?;
            if c.is_int(a.id) {
                y = c.round(y)?;
            }
            c.cast(y, dtype)?
        }
    };
    c.one(y, a.elem)
}
