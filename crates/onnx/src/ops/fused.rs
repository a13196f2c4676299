//! Layers spelled out in small operators: exporters write them in several ways, which one pattern of
//! atoms cannot be. They are found when their last operator is added; what they were made of is then
//! read by nothing and goes.

use cyb_ir::{Atom, Attrs, Cmp, Exp, Node, Op, Read, Reduce, ValueId};
use cyb_jets::{GELU, LAYERNORM, LINEAR, MATMUL, RMSNORM, SIGMOID, SILU, SOFTMAX, TANH};
use cyb_tensor::DType;

use super::attention::{Attend, attend};
use crate::context::Context;
use crate::error::OpError;
use crate::value::to_floats;

/// The one number of a constant.
pub(super) fn number(c: &Context<'_>, v: ValueId) -> Option<f64> {
    let tensor = c.b.graph().tensor(v).filter(|t| t.elems() == 1)?;
    to_floats(tensor).ok()?.first().copied()
}

/// A product of products: its factors, and the numbers among them multiplied.
struct Product {
    factors: Vec<ValueId>,
    scale: f64,
}

/// The factors of a value. One that is `whole` is not taken apart.
fn product(c: &Context<'_>, v: ValueId, depth: usize, whole: Option<ValueId>) -> Product {
    fn walk(c: &Context<'_>, v: ValueId, depth: usize, whole: Option<ValueId>, to: &mut Product) {
        if let Some(x) = number(c, v) {
            to.scale *= x;
            return;
        }
        match c.b.graph().producer(v) {
            Some(node) if depth > 0 && whole != Some(v) && node.op == Op::Atom(Atom::Mul) => {
                node.inputs.iter().for_each(|&input| walk(c, input, depth - 1, whole, to));
            }
            _ => to.factors.push(v),
        }
    }
    let mut all = Product { factors: Vec::new(), scale: 1.0 };
    walk(c, v, depth, whole, &mut all);
    all
}

impl Product {
    /// Whether it is `scale` times exactly these factors.
    fn is(&self, scale: f64, factors: &[ValueId]) -> bool {
        let mut left = self.factors.clone();
        let all = factors.iter().all(|f| match left.iter().position(|x| x == f) {
            Some(i) => {
                left.swap_remove(i);
                true
            }
            None => false,
        });
        all && left.is_empty() && (self.scale - scale).abs() <= 2e-6 * scale.abs()
    }
}

/// The other operand where `v` is a sum with a number.
fn with_number(c: &Context<'_>, v: ValueId, wanted: f64) -> Option<ValueId> {
    let (a, b) = operands(c, v, &Atom::Add)?;
    match (number(c, a), number(c, b)) {
        (Some(n), None) if n == wanted => Some(b),
        (None, Some(n)) if n == wanted => Some(a),
        _ => None,
    }
}

/// `x` and the form of GELU where `v` is `1 + erf(x / sqrt(2))`, or `1 + tanh(...)`.
fn bend_of(c: &Context<'_>, v: ValueId) -> Option<(ValueId, &'static str)> {
    let node = c.b.graph().producer(with_number(c, v, 1.0)?)?;
    let inner = *node.inputs.first()?;
    if node.op == Op::Atom(Atom::Exp(Exp::Erf)) {
        let whole = product(c, inner, 1, None);
        let x = *whole.factors.first()?;
        return whole.is(std::f64::consts::FRAC_1_SQRT_2, &[x]).then_some((x, "none"));
    }
    if !is_jet(node, TANH.name) {
        return None;
    }
    let slope = (2.0 / std::f64::consts::PI).sqrt();
    const CUBIC: f64 = 0.044_715;
    let whole = product(c, inner, 3, None);
    match whole.factors[..] {
        // x + 0.044715 x³
        [sum] if whole.is(slope, &[sum]) => {
            let (a, b) = operands(c, sum, &Atom::Add)?;
            let cube = |x: ValueId, y: ValueId| product(c, y, 4, Some(x)).is(CUBIC, &[x, x, x]);
            match () {
                () if cube(a, b) => Some((a, "tanh")),
                () if cube(b, a) => Some((b, "tanh")),
                () => None,
            }
        }
        // x (1 + 0.044715 x²)
        [p, q] if whole.is(slope, &[p, q]) => [(p, q), (q, p)].into_iter().find_map(|(x, sum)| {
            let square = product(c, with_number(c, sum, 1.0)?, 3, Some(x));
            square.is(CUBIC, &[x, x]).then_some((x, "tanh"))
        }),
        _ => None,
    }
}

fn is_jet(node: &Node, name: &str) -> bool {
    matches!(&node.op, Op::Jet(jet, _) if jet.name == name)
}

/// The two operands of a product or sum.
pub(super) fn operands(c: &Context<'_>, v: ValueId, atom: &Atom) -> Option<(ValueId, ValueId)> {
    match c.b.graph().producer(v) {
        Some(node) if node.op == Op::Atom(atom.clone()) => Some((node.inputs[0], node.inputs[1])),
        _ => None,
    }
}

/// What a chain of reshapes begins from.
pub(super) fn unshaped(c: &Context<'_>, mut v: ValueId) -> ValueId {
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
            let Some(weight) = row(c, weight, x)? else {
                c.missed(RMSNORM.name, "its weight is no vector along the last axis");
                continue;
            };
            let attrs = Attrs::new().with("eps", eps);
            let (jet, x) = match centered(c, x) {
                Some(x) => (&LAYERNORM, x),
                None => (&RMSNORM, x),
            };
            c.found(jet.name);
            return Ok(Some(c.b.jet(jet, attrs, &[x, weight])?));
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
            c.found(jet.name);
            return Ok(Some(c.b.jet(jet, attrs, &inputs)?));
        }
        if c.b.graph().tensor(bias).is_some() {
            c.missed(jet.name, "what is added is no vector along the last axis");
        }
    }
    multiplied_out(c, a, b)
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
        let Some(gate) = c.b.graph().producer(s).filter(|n| is_jet(n, SIGMOID.name)) else {
            continue;
        };
        if gate.inputs == [x] {
            c.found(SILU.name);
            return Ok(Some(c.b.jet(&SILU, Attrs::new(), &[x])?));
        }
        if product(c, gate.inputs[0], 2, Some(x)).is(1.702, &[x]) {
            c.found(GELU.name);
            let attrs = Attrs::new().with("approximate", "quick");
            return Ok(Some(c.b.jet(&GELU, attrs, &[x])?));
        }
    }
    let both = |whole| {
        let (mut p, q) = (product(c, a, 3, whole), product(c, b, 3, whole));
        p.factors.extend(q.factors);
        Product { scale: p.scale * q.scale, ..p }
    };
    let bends = both(None).factors;
    for bent in bends {
        let Some((x, form)) = bend_of(c, bent) else { continue };
        if both(Some(x)).is(0.5, &[x, bent]) {
            c.found(GELU.name);
            let attrs = Attrs::new().with("approximate", form);
            return Ok(Some(c.b.jet(&GELU, attrs, &[x])?));
        }
    }
    Ok(None)
}

/// The softmax that `a / b` is: `exp(x - max(x))` over its sum.
pub(super) fn softmax(
    c: &mut Context<'_>,
    a: ValueId,
    b: ValueId,
) -> Result<Option<ValueId>, OpError> {
    let Some((x, axis)) = softmax_of(c, a, b) else { return Ok(None) };
    c.found(SOFTMAX.name);
    Ok(Some(c.softmax(x, axis)?))
}

fn softmax_of(c: &Context<'_>, a: ValueId, b: ValueId) -> Option<(ValueId, usize)> {
    let graph = c.b.graph();
    let over = |v: ValueId, kind: Reduce| {
        let node = graph.producer(unshaped(c, v))?;
        match &node.op {
            Op::Atom(Atom::Reduce { kind: k, axes }) if *k == kind => match axes[..] {
                [axis] => Some((node.inputs[0], axis)),
                _ => None,
            },
            Op::Atom(_) | Op::Jet(..) => None,
        }
    };
    let (summed, axis) = over(b, Reduce::Sum)?;
    let exp = graph.producer(a).filter(|n| n.op == Op::Atom(Atom::Exp(Exp::Exp)))?;
    let (x, minus) = operands(c, *exp.inputs.first()?, &Atom::Add)?;
    let (top, sign) = operands(c, minus, &Atom::Mul)?;
    let largest = over(top, Reduce::Max)?;
    // The sum and the maximum keep their axis, so that they line up.
    let mut kept = c.dims(x).ok()?;
    *kept.get_mut(axis)? = 1;
    let lined_up = c.dims(b).ok()? == kept && c.dims(top).ok()? == kept;
    let same = summed == a && largest == (x, axis) && number(c, sign) == Some(-1.0);
    (same && lined_up && c.dtype(x) == DType::F32).then_some((x, axis))
}

/// `x` where `v` is whether it is NaN.
fn nan_of(c: &Context<'_>, v: ValueId) -> Option<ValueId> {
    let eq = Op::Atom(Atom::Cmp(Cmp::Eq));
    let not = c.b.graph().producer(v).filter(|n| n.op == eq)?;
    let same = not.inputs.iter().find_map(|&i| c.b.graph().producer(i).filter(|n| n.op == eq))?;
    let falsehood = not.inputs.iter().any(|&i| {
        c.b.graph().tensor(i).is_some_and(|t| t.bytes().as_slice().iter().all(|b| *b == 0))
    });
    (falsehood && same.inputs[0] == same.inputs[1]).then(|| same.inputs[0])
}

/// Weights of an attention: their scores, and whether rows without any key are made zero.
fn weights_of(c: &Context<'_>, v: ValueId) -> Option<(ValueId, bool)> {
    let node = c.b.graph().producer(v)?;
    if let (Op::Atom(Atom::Cmp(Cmp::Select)), [cond, zero, inner]) = (&node.op, &node.inputs[..]) {
        let guards = nan_of(c, *cond) == Some(*inner) && number(c, *zero) == Some(0.0);
        return guards.then(|| weights_of(c, *inner)).flatten().map(|(scores, _)| (scores, true));
    }
    let Op::Jet(jet, attrs) = &node.op else { return None };
    let last = attrs.size("axis").ok()? + 1 == c.rank(v);
    (jet.name == SOFTMAX.name && last).then(|| (node.inputs[0], false))
}

/// What scores are made of.
struct Scores {
    q: ValueId,
    /// [..., D, L]
    turned: ValueId,
    scale: f64,
    mask: Option<ValueId>,
}

fn scores_of(c: &Context<'_>, v: ValueId) -> Option<Scores> {
    let node = c.b.graph().producer(v)?;
    if is_jet(node, MATMUL.name) {
        return Some(Scores { q: node.inputs[0], turned: node.inputs[1], scale: 1.0, mask: None });
    }
    let (a, b) = match node.op {
        Op::Atom(Atom::Mul | Atom::Add) => (node.inputs[0], node.inputs[1]),
        _ => return None,
    };
    let inner = scores_of(c, a).map(|s| (s, b)).or_else(|| scores_of(c, b).map(|s| (s, a)));
    let (scores, other) = inner?;
    // A scale after a mask would scale the mask too, and a second mask would have to be added.
    if scores.mask.is_some() {
        return None;
    }
    match node.op {
        Op::Atom(Atom::Mul) => Some(Scores { scale: scores.scale * number(c, other)?, ..scores }),
        _ => Some(Scores { mask: Some(other), ..scores }),
    }
}

/// A value without the numbers it is multiplied with.
fn unscaled(c: &Context<'_>, v: ValueId) -> (ValueId, f64) {
    match operands(c, v, &Atom::Mul) {
        Some((x, n)) if number(c, n).is_some() => (x, number(c, n).unwrap_or(1.0)),
        Some((n, x)) if number(c, n).is_some() => (x, number(c, n).unwrap_or(1.0)),
        _ => (v, 1.0),
    }
}

/// Keys [..., L, D] and their scale from keys turned.
fn keys(c: &mut Context<'_>, turned: ValueId) -> Result<(ValueId, f64), OpError> {
    let (turned, before) = unscaled(c, turned);
    let rank = c.rank(turned);
    let mut swapped: Vec<usize> = (0..rank).collect();
    swapped.swap(rank - 2, rank - 1);
    // Exporters turn three axes of a reshape of four.
    let mut inner = turned;
    let graph = c.b.graph();
    if let Some(node) = graph.producer(inner)
        && node.op.name() == "read"
        && let Some(turn) = graph.producer(unshaped(c, inner))
        && matches!(&turn.op, Op::Atom(Atom::Read(Read::Permute(perm))) if perm[..] == [0, 2, 1])
        && rank == 4
    {
        let three = unshaped(c, inner);
        let dims = c.dims(inner)?;
        let [b, h, d, l] = dims[..] else { return Ok((turned, before)) };
        if c.dims(three)? == [b * h, d, l] {
            let whole = unshaped(c, turn.inputs[0]);
            let (k, after) = unscaled(c, whole);
            let k = c.reshape(k, &[b, h, l, d])?;
            return Ok((k, before * after));
        }
    }
    let mut perm = swapped;
    if let Some(node) = c.b.graph().producer(inner)
        && let Op::Atom(Atom::Read(Read::Permute(first))) = &node.op
    {
        perm = perm.iter().map(|&i| first[i]).collect();
        inner = node.inputs[0];
    }
    let same = perm.iter().enumerate().all(|(i, &p)| i == p);
    let k = if same { inner } else { c.b.permute(inner, &perm)? };
    let (k, after) = unscaled(c, k);
    Ok((k, before * after))
}

/// The attention that the product of weights `a` and values `b` is.
pub(super) fn attention(
    c: &mut Context<'_>,
    a: ValueId,
    v: ValueId,
) -> Result<Option<ValueId>, OpError> {
    let Some((scores, guarded)) = weights_of(c, a) else { return Ok(None) };
    let dims = c.dims(a)?;
    if c.dtype(a) != DType::F32 {
        c.missed("sdpa", "weights are not f32");
        return Ok(None);
    }
    let Some(scores) = scores_of(c, scores) else {
        c.missed("sdpa", "scores are no scaled product of queries and keys with at most one mask");
        return Ok(None);
    };
    let (q, of_q) = unscaled(c, scores.q);
    let (qd, kd, vd) = (c.dims(q)?, c.dims(scores.turned)?, c.dims(v)?);
    let leading = |d: &[usize]| d[..d.len().saturating_sub(2)].to_vec();
    let rank = dims.len();
    let alike = leading(&qd) == leading(&dims)
        && leading(&kd) == leading(&dims)
        && leading(&vd) == leading(&dims);
    if !(rank == 3 || rank == 4) || !alike {
        c.missed("sdpa", "queries, keys and values have no heads in common");
        return Ok(None);
    }
    if let Some(mask) = scores.mask
        && (c.rank(mask) > rank || c.dtype(mask) != DType::F32)
    {
        c.missed("sdpa", "the mask does not broadcast to the scores");
        return Ok(None);
    }
    let (k, of_k) = keys(c, scores.turned)?;
    let scale = scores.scale * of_q * of_k;
    let four = |c: &mut Context<'_>, x: ValueId| -> Result<ValueId, OpError> {
        let mut dims = c.dims(x)?;
        while dims.len() < 4 {
            dims.insert(0, 1);
        }
        c.reshape(x, &dims)
    };
    let (q, k, values) = match rank {
        4 => (q, k, v),
        _ => (four(c, q)?, four(c, k)?, four(c, v)?),
    };
    let how = Attend { scale: Some(scale), softcap: 0.0, bias: scores.mask };
    let mut y = attend(c, q, k, values, &how)?;
    if guarded && !scores.mask.is_none_or(|mask| always_finite(c, mask)) {
        let zero = c.scalar(y, 0.0)?;
        let sound = c.b.cmp(Cmp::Eq, y, y)?;
        y = c.b.select(sound, y, zero)?;
    }
    c.found("sdpa");
    if rank == 3 {
        let mut dims = c.dims(y)?;
        dims.remove(0);
        y = c.reshape(y, &dims)?;
    }
    Ok(Some(y))
}

/// Whether a mask is a choice between finite numbers, so that no row of weights can be NaN.
fn always_finite(c: &Context<'_>, mask: ValueId) -> bool {
    let graph = c.b.graph();
    if let Some(tensor) = graph.tensor(mask) {
        return to_floats(tensor).is_ok_and(|all| all.iter().all(|x| x.is_finite()));
    }
    let Some(node) = graph.producer(mask) else { return false };
    match &node.op {
        Op::Atom(Atom::Cmp(Cmp::Select)) => node.inputs[1..].iter().all(|&v| always_finite(c, v)),
        Op::Atom(Atom::Read(Read::Reshape(_) | Read::Broadcast(_) | Read::Permute(_))) => {
            always_finite(c, node.inputs[0])
        }
        Op::Atom(_) | Op::Jet(..) => false,
    }
}

/// The layer normalization that `a + b` is where the mean was multiplied out:
/// `x g + (bias - mean g)` with `g = weight / deviation`.
fn multiplied_out(c: &mut Context<'_>, a: ValueId, b: ValueId) -> Result<Option<ValueId>, OpError> {
    for (scaled, shift) in [(a, b), (b, a)] {
        let Some((bias, minus)) = operands(c, shift, &Atom::Add) else { continue };
        let Some((moved, sign)) = operands(c, minus, &Atom::Mul) else { continue };
        let Some((r, t)) = operands(c, moved, &Atom::Mul) else { continue };
        if number(c, sign) != Some(-1.0) {
            continue;
        }
        let Some((p, q)) = operands(c, scaled, &Atom::Mul) else { continue };
        for (x, factor) in [(p, q), (q, p)] {
            let Some((m, n)) = operands(c, factor, &Atom::Mul) else { continue };
            for (inverse, weight) in [(m, n), (n, m)] {
                let Some((y, eps)) = inverse_deviation(c, inverse) else { continue };
                if centered(c, y) != Some(x) {
                    continue;
                }
                let by_mean = |m, f| f == factor && mean_of(c, m) == Some(x);
                if !by_mean(r, t) && !by_mean(t, r) {
                    continue;
                }
                let (Some(weight), Some(bias)) = (row(c, weight, x)?, row(c, bias, x)?) else {
                    continue;
                };
                c.found(LAYERNORM.name);
                let attrs = Attrs::new().with("eps", eps);
                return Ok(Some(c.b.jet(&LAYERNORM, attrs, &[x, weight, bias])?));
            }
        }
    }
    Ok(None)
}
