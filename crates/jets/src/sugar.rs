//! What many definitions have in common.

use cyb_ir::{Attrs, Builder, Cmp, Exp, Fact, IrError, Reduce, Signature, Tolerance, ValueId};
use cyb_tensor::{DType, Dim};

pub(crate) type Defined = Result<Vec<ValueId>, IrError>;

/// Elementwise results, off by a few units in the last place.
pub(crate) const ELEMENTWISE: Tolerance = Tolerance { absolute: 1e-6, relative: 1e-5 };

/// Results that only move data.
pub(crate) const EXACT: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

/// Sums in `f32` in another order than the definition's.
pub(crate) const SUMMED: Tolerance = Tolerance { absolute: 1e-5, relative: 1e-4 };

/// Fails unless the jet is given a number of inputs in `range`.
pub(crate) fn arity(
    jet: &str,
    inputs: &[ValueId],
    range: std::ops::RangeInclusive<usize>,
) -> Result<(), IrError> {
    if range.contains(&inputs.len()) {
        return Ok(());
    }
    let want = if range.start() == range.end() {
        range.start().to_string()
    } else {
        format!("{} to {}", range.start(), range.end())
    };
    Err(IrError::Arity { op: jet.to_owned(), want, got: inputs.len() })
}

/// `F32` of the given rank with every dimension a symbol.
pub(crate) fn f32_of_rank(rank: usize) -> Fact {
    Fact::new(DType::F32, (0..rank).map(|i| Dim::symbol(&format!("d{i}"))))
}

/// One signature per rank from 2 down to 1 and up to 5; the first names the hash.
pub(crate) fn unary_signatures(attrs: Attrs) -> Vec<Signature> {
    [2, 1, 3, 4, 5]
        .map(|rank| Signature { inputs: vec![f32_of_rank(rank)], attrs: attrs.clone() })
        .into()
}

/// `1 / (1 + exp(-x))`.
pub(crate) fn sigmoid(b: &mut Builder, x: ValueId) -> Result<ValueId, IrError> {
    let minus = b.neg(x)?;
    let e = b.exp(Exp::Exp, minus)?;
    let below = b.offset(e, 1.0)?;
    b.exp(Exp::Recip, below)
}

/// `1 - 2 / (1 + exp(2x))`, which saturates without overflowing.
pub(crate) fn tanh(b: &mut Builder, x: ValueId) -> Result<ValueId, IrError> {
    let double = b.scale(x, 2.0)?;
    let e = b.exp(Exp::Exp, double)?;
    let below = b.offset(e, 1.0)?;
    let r = b.exp(Exp::Recip, below)?;
    let down = b.scale(r, -2.0)?;
    b.offset(down, 1.0)
}

/// `exp(x - max) / sum` along `axis`; a row of nothing but -inf gives NaN, as in PyTorch.
pub(crate) fn softmax(b: &mut Builder, x: ValueId, axis: usize) -> Result<ValueId, IrError> {
    let top = reduce_kept(b, Reduce::Max, x, axis)?;
    let shifted = b.sub(x, top)?;
    let e = b.exp(Exp::Exp, shifted)?;
    let sum = reduce_kept(b, Reduce::Sum, e, axis)?;
    b.div(e, sum)
}

/// Collapses `axis` to length 1.
pub(crate) fn reduce_kept(
    b: &mut Builder,
    kind: Reduce,
    x: ValueId,
    axis: usize,
) -> Result<ValueId, IrError> {
    let reduced = b.reduce(kind, x, &[axis])?;
    b.unsqueeze(reduced, axis)
}

/// `cap * tanh(x / cap)`; a cap of 0 is none.
pub(crate) fn soft_cap(b: &mut Builder, x: ValueId, cap: f64) -> Result<ValueId, IrError> {
    if cap == 0.0 {
        return Ok(x);
    }
    let small = b.scale(x, 1.0 / cap)?;
    let t = tanh(b, small)?;
    b.scale(t, cap)
}

/// `value` where `keep`, else -inf.
pub(crate) fn masked(b: &mut Builder, keep: ValueId, x: ValueId) -> Result<ValueId, IrError> {
    let never = b.scalar(DType::F32, f64::NEG_INFINITY)?;
    b.select(keep, x, never)
}

/// `key <= query`, and `query - key < window` where there is one, on integer positions that
/// broadcast.
pub(crate) fn causal_window(
    b: &mut Builder,
    query: ValueId,
    key: ValueId,
    window: usize,
) -> Result<ValueId, IrError> {
    let future = b.cmp(Cmp::Lt, query, key)?;
    let past = b.not(future)?;
    if window == 0 {
        return Ok(past);
    }
    let edge = b.offset(key, window as f64)?;
    let near = b.cmp(Cmp::Lt, query, edge)?;
    b.mul(past, near)
}
