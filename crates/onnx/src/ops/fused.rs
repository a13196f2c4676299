//! Products that are activations spelled out: exporters write them in several associations, which
//! one pattern of atoms cannot be.

use cyb_ir::{Atom, Attrs, Exp, Op, ValueId};
use cyb_jets::{GELU, SIGMOID, SILU};
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
