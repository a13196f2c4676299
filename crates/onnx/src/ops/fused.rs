//! Activations, normalisations and biases spelled out: exporters write them in several ways, which
//! one pattern of atoms cannot be. They are found when their last product or sum is added.

use cyb_ir::{Atom, Attrs, Exp, Op, Read, Reduce, ValueId};
use cyb_jets::{GELU, LAYERNORM, LINEAR, RMSNORM, SIGMOID, SILU};
use cyb_tensor::DType;

use crate::context::Context;
use crate::error::OpError;
use crate::value::to_floats;

/// The one number of a constant.
fn number(c: &Context<'_>, v: ValueId) -> Option<f64> {
    let tensor = c.b.graph().tensor(v).filter(|t| t.elems() == 1)?;
    to_floats(tensor).ok()?.first().copied()
}

/// Factors of a product of products; numbers are multiplied.
fn factors(c: &Context<'_>, v: ValueId, depth: usize, into: &mut Vec<ValueId>, scale: &mut f64) {
    if let Some(x) = number(c, v) {
        *scale *= x;
        return;
    }
    match c.b.graph().producer(v) {
        Some(node) if depth > 0 && node.op == Op::Atom(Atom::Mul) => {
            for &input in &node.inputs {
                factors(c, input, depth - 1, into, scale);
            }
        }
        _ => into.push(v),
    }
}

/// `x` where `v` is `1 + erf(x / sqrt(2))`.
fn erf_of(c: &Context<'_>, v: ValueId) -> Option<ValueId> {
    let sum = c.b.graph().producer(v).filter(|n| n.op == Op::Atom(Atom::Add))?;
    let one = sum.inputs.iter().position(|&i| number(c, i) == Some(1.0))?;
    let erf = c.b.graph().producer(sum.inputs[1 - one])?;
    if erf.op != Op::Atom(Atom::Exp(Exp::Erf)) {
        return None;
    }
    let (mut inner, mut scale) = (Vec::new(), 1.0);
    factors(c, erf.inputs[0], 1, &mut inner, &mut scale);
    let near = (scale - std::f64::consts::FRAC_1_SQRT_2).abs() < 1e-6;
    match inner[..] {
        [x] if near => Some(x),
        _ => None,
    }
}

/// The two operands of a product or sum.
fn operands(c: &Context<'_>, v: ValueId, atom: &Atom) -> Option<(ValueId, ValueId)> {
    match c.b.graph().producer(v) {
        Some(node) if node.op == Op::Atom(atom.clone()) => Some((node.inputs[0], node.inputs[1])),
        _ => None,
    }
}

/// What a chain of reshapes begins from.
fn unshaped(c: &Context<'_>, mut v: ValueId) -> ValueId {
    while let Some(node) = c.b.graph().producer(v)
        && matches!(node.op, Op::Atom(Atom::Read(Read::Reshape(_))))
    {
        v = node.inputs[0];
    }
    v
}

/// `x` where `v` is its mean over the last axis.
fn mean_of(c: &Context<'_>, v: ValueId) -> Option<ValueId> {
    let (sum, share) = operands(c, v, &Atom::Mul)?;
    let share = number(c, share)?;
    let node = c.b.graph().producer(unshaped(c, sum))?;
    let x = *node.inputs.first()?;
    let dims = c.dims(x).ok()?;
    let last = dims.len().checked_sub(1)?;
    let over_last = Op::Atom(Atom::Reduce { kind: Reduce::Sum, axes: vec![last] });
    let is_mean = (share * dims[last] as f64 - 1.0).abs() < 1e-6;
    (node.op == over_last && is_mean).then_some(x)
}

/// `x` and `eps` where `v` is `1 / sqrt(mean(x²) + eps)`.
fn inverse_deviation(c: &Context<'_>, v: ValueId) -> Option<(ValueId, f64)> {
    let node = c.b.graph().producer(unshaped(c, v))?;
    let below = match node.op {
        Op::Atom(Atom::Exp(Exp::Rsqrt)) => node.inputs[0],
        Op::Atom(Atom::Exp(Exp::Recip)) => {
            let root = c.b.graph().producer(node.inputs[0])?;
            (root.op == Op::Atom(Atom::Exp(Exp::Sqrt))).then(|| root.inputs[0])?
        }
        _ => return None,
    };
    let (a, b) = operands(c, below, &Atom::Add)?;
    let (mean, eps) = match (number(c, a), number(c, b)) {
        (None, Some(eps)) => (a, eps),
        (Some(eps), None) => (b, eps),
        _ => return None,
    };
    let (x, again) = operands(c, mean_of(c, mean)?, &Atom::Mul)?;
    (x == again).then_some((x, eps))
}

/// `x` where `v` is `x` less its mean over the last axis.
fn centered(c: &Context<'_>, v: ValueId) -> Option<ValueId> {
    let (x, minus) = operands(c, v, &Atom::Add)?;
    let (mean, sign) = operands(c, minus, &Atom::Mul)?;
    (number(c, sign) == Some(-1.0) && mean_of(c, mean) == Some(x)).then_some(x)
}

/// A vector of the length of the last axis of `x`, without axes of length 1.
fn row(c: &mut Context<'_>, v: ValueId, x: ValueId) -> Result<Option<ValueId>, OpError> {
    let (dims, n) = (c.dims(v)?, c.dims(x)?.last().copied());
    let is_row = dims.last().copied() == n && dims.iter().rev().skip(1).all(|&d| d == 1);
    match (is_row && dims.len() <= c.rank(x), n) {
        (true, Some(n)) => Ok(Some(c.reshape(v, &[n])?)),
        _ => Ok(None),
    }
}

/// The normalisation that `a * b` is, one of them being the weights.
pub(super) fn normalization(
    c: &mut Context<'_>,
    a: ValueId,
    b: ValueId,
) -> Result<Option<ValueId>, OpError> {
    if c.dtype(a) != DType::F32 {
        return Ok(None);
    }
    for (normed, weight) in [(a, b), (b, a)] {
        let Some((p, q)) = operands(c, normed, &Atom::Mul) else { continue };
        for (x, scale) in [(p, q), (q, p)] {
            let Some((y, eps)) = inverse_deviation(c, scale) else { continue };
            if y != x {
                continue;
            }
            let Some(weight) = row(c, weight, x)? else { continue };
            let attrs = Attrs::new().with("eps", eps);
            let y = match centered(c, x) {
                Some(x) => c.b.jet(&LAYERNORM, attrs, &[x, weight])?,
                None => c.b.jet(&RMSNORM, attrs, &[x, weight])?,
            };
            return Ok(Some(y));
        }
    }
    Ok(None)
}

/// The normalisation or product with a bias that `a + b` is.
pub(super) fn biased(
    c: &mut Context<'_>,
    a: ValueId,
    b: ValueId,
) -> Result<Option<ValueId>, OpError> {
    for (y, bias) in [(a, b), (b, a)] {
        let Some(node) = c.b.graph().producer(y) else { continue };
        let Op::Jet(jet, attrs) = node.op.clone() else { continue };
        let takes_bias = jet.name == LAYERNORM.name || jet.name == LINEAR.name;
        if !takes_bias || node.inputs.len() != 2 {
            continue;
        }
        let mut inputs = node.inputs.clone();
        if let Some(bias) = row(c, bias, y)? {
            inputs.push(bias);
            return Ok(Some(c.b.jet(jet, attrs, &inputs)?));
        }
    }
    Ok(None)
}

/// The activation that `a * b` is.
pub(super) fn activation(
    c: &mut Context<'_>,
    a: ValueId,
    b: ValueId,
) -> Result<Option<ValueId>, OpError> {
    if c.dtype(a) != DType::F32 {
        return Ok(None);
    }
    for (x, s) in [(a, b), (b, a)] {
        let gate = c.b.graph().producer(s);
        if gate.is_some_and(|n| n.op == Op::Jet(&SIGMOID, Attrs::new()) && n.inputs == [x]) {
            return Ok(Some(c.b.jet(&SILU, Attrs::new(), &[x])?));
        }
    }
    let (mut all, mut scale) = (Vec::new(), 1.0);
    factors(c, a, 2, &mut all, &mut scale);
    factors(c, b, 2, &mut all, &mut scale);
    if scale == 0.5 && all.len() == 2 {
        for (x, bent) in [(all[0], all[1]), (all[1], all[0])] {
            if erf_of(c, bent) == Some(x) {
                let attrs = Attrs::new().with("approximate", "none");
                return Ok(Some(c.b.jet(&GELU, attrs, &[x])?));
            }
        }
    }
    Ok(None)
}
