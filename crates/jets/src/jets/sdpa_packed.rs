//! Attention within each of several sequences that lie one after the other.

use cyb_ir::{
    Attrs, Builder, Case, Cmp, Exp, Fact, Fill, IrError, Jet, Reduce, Signature, ValueId,
};
use cyb_tensor::{DType, Dim};

use crate::sugar::{Defined, SUMMED, arity, masked, reduce_kept, soft_cap};

/// `sdpa_packed{scale, window, causal, softcap}(q[T, H, D], k[T, G, D], v[T, G, E], bounds[R + 1],
/// shown[T], bias[H, W]?) -> [T, H, E]`.
///
/// Sequence r is tokens `bounds[r]` to `bounds[r + 1]`, the end not included; bounds rise from 0 to
/// T. A token sees the tokens of its own sequence that are not hidden (`shown` is not 0), before
/// and after it, with `causal` only those up to itself, and with `window` > 0 those at most `window`
/// away. One that sees none gets zeros. Query head h reads key head h / (H / G). `softcap` > 0 bounds
/// scores by `softcap * tanh(score / softcap)`. With `bias`, W odd, the score of query i and key j
/// then gains `bias[h, W / 2 + clamp(j - i, -(W / 2), W / 2)]`.
///
/// The result for a token depends on its own sequence only: not on which sequences share the call.
pub static SDPA_PACKED: Jet = Jet {
    name: "sdpa_packed",
    summary: "attention within packed sequences",
    define,
    signatures: || {
        let head =
            |heads: usize| Fact::new(DType::F32, [Dim::symbol("t"), heads.into(), 64.into()]);
        let ints = |n: &str| Fact::new(DType::I32, [Dim::symbol(n)]);
        let inputs = vec![head(4), head(2), head(2), ints("b"), ints("t")];
        vec![Signature { inputs, attrs: attrs(0.125, 0, false, 0.0) }]
    },
    cases,
    tolerance: SUMMED,
    in_place: &[],
};

fn attrs(scale: f64, window: usize, causal: bool, softcap: f64) -> Attrs {
    Attrs::new()
        .with("scale", scale)
        .with("window", window)
        .with("causal", causal)
        .with("softcap", softcap)
}

/// A call of `bounds` sequences up to the inputs that all kinds of it have.
pub(crate) fn packed_case(
    name: &str,
    attrs: Attrs,
    bounds: &[i64],
    heads: [usize; 2],
    widths: [usize; 2],
    shown: &[i64],
) -> Case {
    let t = bounds.last().map_or(0, |&n| n as usize);
    Case::new(name, attrs)
        .normal(&[t, heads[0], widths[0]])
        .normal(&[t, heads[1], widths[0]])
        .normal(&[t, heads[1], widths[1]])
        .input(DType::I32, &[bounds.len()], Fill::Ints(bounds.to_vec()))
        .input(DType::I32, &[t], Fill::Ints(shown.to_vec()))
}

fn cases() -> Vec<Case> {
    let case = |name: &str, bounds: &[i64], heads, widths: [usize; 2], window, causal, shown| {
        let scale = 1.0 / (widths[0] as f64).sqrt();
        packed_case(name, attrs(scale, window, causal, 0.0), bounds, heads, widths, shown)
    };
    let plain = |name: &str, bounds: &[i64], heads, widths, window| {
        case(name, bounds, heads, widths, window, false, &[1])
    };
    vec![
        plain("one", &[0, 13], [3, 3], [32, 32], 0),
        plain("several", &[0, 1, 17, 23, 56], [4, 4], [64, 64], 0),
        plain("with an empty one", &[0, 7, 7, 40], [2, 2], [32, 32], 0),
        plain("grouped", &[0, 33, 40], [6, 2], [16, 16], 0),
        plain("odd widths", &[0, 5, 26], [3, 1], [13, 21], 0),
        plain("window", &[0, 50, 71], [2, 2], [32, 32], 5),
        plain("no tokens", &[0], [2, 2], [32, 32], 0),
        plain("bias", &[0, 29, 40], [3, 3], [16, 16], 0).normal(&[3, 21]),
        plain("bias and window", &[0, 29, 40], [2, 2], [16, 32], 7).normal(&[2, 9]),
        case("causal", &[0, 1, 34, 61], [3, 3], [16, 16], 0, true, &[1]),
        case("causal window", &[0, 45, 61], [2, 1], [16, 24], 4, true, &[1]),
        case("hidden", &[0, 29, 61], [2, 2], [16, 16], 0, false, &[0, 1, 1, 0, 1, 1, 1]),
        case("hidden bias", &[0, 29, 61], [2, 2], [16, 16], 0, false, &[1, 0, 1]).normal(&[2, 9]),
        packed_case(
            "softcap",
            attrs(0.7, 5, true, 3.0),
            &[0, 29, 61],
            [4, 2],
            [16, 24],
            &[1, 1, 1, 0, 1],
        ),
        case("nothing in sight", &[0, 40, 61], [2, 2], [16, 16], 2, true, &[0, 0, 0, 0, 0, 1, 0]),
    ]
}

fn define(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Defined {
    arity("sdpa_packed", inputs, 5..=6)?;
    let [q, k, v, bounds, shown] = [0, 1, 2, 3, 4].map(|i: usize| inputs[i]);
    let window = attrs.size("window")?;
    let pairs = pairs(b, bounds, shown, window, attrs.flag("causal")?)?;
    let scores = products(b, q, k, attrs.float("scale")?)?;
    let mut scores = soft_cap(b, scores, attrs.float("softcap")?)?;
    if let Some(&bias) = inputs.get(5) {
        let index = by_distance(b, bias, 1, pairs.distance)?; // [T, T]
        let table = b.permute(bias, &[1, 0])?; // [W, H]
        let gained = b.gather(table, 0, index)?; // [T, T, H]
        scores = gain(b, scores, gained)?;
    }
    Ok(vec![weigh(b, scores, pairs.seen, v)?])
}

/// What is known of each query and key.
pub(crate) struct Pairs {
    /// Whether the query sees the key: `[T, T]`.
    pub(crate) seen: ValueId,
    /// The key's position less the query's: `[T, T]`.
    pub(crate) distance: ValueId,
}

pub(crate) fn pairs(
    b: &mut Builder,
    bounds: ValueId,
    shown: ValueId,
    window: usize,
    causal: bool,
) -> Result<Pairs, IrError> {
    let (n_bounds, t) = (b.dim(bounds, 0)?, b.dim(shown, 0)?);
    // The number of bounds at or before a token names its sequence.
    let token = b.iota(t.clone()); // [T]
    let bounds = b.cast(bounds, DType::I64)?;
    let column = b.reshape(bounds, [n_bounds, 1.into()])?;
    let after = b.cmp(Cmp::Lt, token, column)?; // [R + 1, T]
    let before = b.not(after)?;
    let before = b.cast(before, DType::I64)?;
    let sequence = b.sum(before, &[0])?; // [T]
    let query_sequence = b.reshape(sequence, [t.clone(), 1.into()])?;
    let mut seen = b.cmp(Cmp::Eq, query_sequence, sequence)?; // [T, T]
    let zero = b.scalar(DType::I32, 0.0)?;
    let hidden = b.cmp(Cmp::Eq, shown, zero)?; // [T]
    let shown = b.not(hidden)?;
    seen = b.mul(seen, shown)?;
    let query = b.reshape(token, [t, 1.into()])?;
    let distance = b.sub(token, query)?;
    if causal {
        let one = b.scalar(DType::I64, 1.0)?;
        let past = b.cmp(Cmp::Lt, distance, one)?;
        seen = b.mul(seen, past)?;
    }
    if window > 0 {
        let back = b.neg(distance)?;
        let apart = b.max(distance, back)?;
        let edge = b.scalar(DType::I64, window as f64 + 1.0)?;
        let near = b.cmp(Cmp::Lt, apart, edge)?;
        seen = b.mul(seen, near)?;
    }
    Ok(Pairs { seen, distance })
}

/// Scaled products of queries and keys: `[T, T, G, H/G]`.
pub(crate) fn products(
    b: &mut Builder,
    q: ValueId,
    k: ValueId,
    scale: f64,
) -> Result<ValueId, IrError> {
    let (t, heads, d, groups) = (b.dim(q, 0)?, b.dim(q, 1)?, b.dim(q, 2)?, b.dim(k, 1)?);
    let per_group = heads.floor_div(&groups);
    let q = b.scale(q, scale)?;
    let q = b.reshape(q, [t.clone(), 1.into(), groups.clone(), per_group, d.clone()])?;
    let k = b.reshape(k, [t, groups, 1.into(), d])?;
    let products = b.mul(q, k)?; // [T, T, G, H/G, D]
    b.sum(products, &[4])
}

/// Where axis `axis` of `table`, whose middle is for distance 0, has each distance.
pub(crate) fn by_distance(
    b: &mut Builder,
    table: ValueId,
    axis: usize,
    distance: ValueId,
) -> Result<ValueId, IrError> {
    let half = b.dim(table, axis)?.floor_div(&2.into());
    let counted = b.iota(half.clone() + 1.into());
    let reach = b.slice(counted, 0, half, 1)?; // [1], W / 2
    let least = b.neg(reach)?;
    let clamped = b.max(distance, least)?;
    let clamped = b.min(clamped, reach)?;
    b.add(clamped, reach)
}

/// Scores with `gained [T, T, H]` added.
pub(crate) fn gain(b: &mut Builder, scores: ValueId, gained: ValueId) -> Result<ValueId, IrError> {
    let shape = b.shape(scores).to_vec();
    let gained = b.reshape(gained, shape)?;
    b.add(scores, gained)
}

/// Values weighted by the softmax of scores, zeros where nothing is seen: `[T, H, E]`.
pub(crate) fn weigh(
    b: &mut Builder,
    scores: ValueId,
    seen: ValueId,
    v: ValueId,
) -> Result<ValueId, IrError> {
    let (t, groups, e) = (b.dim(v, 0)?, b.dim(v, 1)?, b.dim(v, 2)?);
    let heads = groups.clone() * b.dim(scores, 3)?;
    let seen = b.reshape(seen, [t.clone(), t.clone(), 1.into(), 1.into()])?;
    let scores = masked(b, seen, scores)?;
    let top = reduce_kept(b, Reduce::Max, scores, 1)?;
    // Of nothing seen the maximum is -inf, and the sum of weights 0; else it is at least 1.
    let lowest = b.scalar(DType::F32, f64::from(f32::MIN))?;
    let top = b.max(top, lowest)?;
    let scores = b.sub(scores, top)?;
    let weights = b.exp(Exp::Exp, scores)?;
    let sum = reduce_kept(b, Reduce::Sum, weights, 1)?;
    let one = b.scalar(DType::F32, 1.0)?;
    let sum = b.max(sum, one)?;
    let weights = b.div(weights, sum)?;
    let weights = b.unsqueeze(weights, 4)?; // [T, T, G, H/G, 1]
    let v = b.reshape(v, [t.clone(), groups, 1.into(), e.clone()])?;
    let weighted = b.mul(weights, v)?; // [T, T, G, H/G, E]
    let y = b.sum(weighted, &[1])?; // [T, G, H/G, E]
    b.reshape(y, [t, heads, e])
}
