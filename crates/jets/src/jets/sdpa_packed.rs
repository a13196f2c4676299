//! Attention within each of several sequences that lie one after the other.

use cyb_ir::{Attrs, Builder, Case, Cmp, Fact, Fill, Jet, Signature, ValueId};
use cyb_tensor::{DType, Dim};

use crate::sugar::{Defined, SUMMED, arity, masked, softmax};

/// `sdpa_packed{scale, window}(q[T, H, D], k[T, G, D], v[T, G, E], bounds[R + 1], bias[H, W]?)
/// -> [T, H, E]`.
///
/// Sequence r is tokens `bounds[r]` to `bounds[r + 1]`, the end not included; bounds rise from 0 to
/// T. A token sees all tokens of its own sequence, before and after it, and with `window` > 0 those
/// at most `window` away. Query head h reads key head h / (H / G). With `bias`, W odd, the score of
/// query i and key j gains `bias[h, W / 2 + clamp(j - i, -(W / 2), W / 2)]`.
///
/// The result for a token depends on its own sequence only: not on which sequences share the call.
pub static SDPA_PACKED: Jet = Jet {
    name: "sdpa_packed",
    summary: "attention within packed sequences, in both directions",
    define,
    signatures: || {
        let head =
            |heads: usize| Fact::new(DType::F32, [Dim::symbol("t"), heads.into(), 64.into()]);
        let bounds = Fact::new(DType::I32, [Dim::symbol("b")]);
        vec![Signature { inputs: vec![head(4), head(2), head(2), bounds], attrs: attrs(0.125, 0) }]
    },
    cases,
    tolerance: SUMMED,
    in_place: &[],
};

fn attrs(scale: f64, window: usize) -> Attrs {
    Attrs::new().with("scale", scale).with("window", window)
}

fn cases() -> Vec<Case> {
    let case =
        |name: &str, bounds: &[i64], heads: [usize; 2], widths: [usize; 2], window: usize| {
            let t = bounds.last().map_or(0, |&n| n as usize);
            let scale = 1.0 / (widths[0] as f64).sqrt();
            Case::new(name, attrs(scale, window))
                .normal(&[t, heads[0], widths[0]])
                .normal(&[t, heads[1], widths[0]])
                .normal(&[t, heads[1], widths[1]])
                .input(DType::I32, &[bounds.len()], Fill::Ints(bounds.to_vec()))
        };
    vec![
        case("one", &[0, 13], [3, 3], [32, 32], 0),
        case("several", &[0, 1, 17, 23, 56], [4, 4], [64, 64], 0),
        case("with an empty one", &[0, 7, 7, 40], [2, 2], [32, 32], 0),
        case("grouped", &[0, 33, 40], [6, 2], [16, 16], 0),
        case("odd widths", &[0, 5, 26], [3, 1], [13, 21], 0),
        case("window", &[0, 50, 71], [2, 2], [32, 32], 5),
        case("no tokens", &[0], [2, 2], [32, 32], 0),
        case("bias", &[0, 29, 40], [3, 3], [16, 16], 0).normal(&[3, 21]),
        case("bias and window", &[0, 29, 40], [2, 2], [16, 32], 7).normal(&[2, 9]),
    ]
}

fn define(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Defined {
    arity("sdpa_packed", inputs, 4..=5)?;
    let [q, k, v, bounds] = [0, 1, 2, 3].map(|i: usize| inputs[i]);
    let (t, heads, d) = (b.dim(q, 0)?, b.dim(q, 1)?, b.dim(q, 2)?);
    let (groups, e) = (b.dim(k, 1)?, b.dim(v, 2)?);
    let per_group = heads.floor_div(&groups);
    let n_bounds = b.dim(bounds, 0)?;

    // The number of bounds at or before a token names its sequence.
    let token = b.iota(t.clone()); // [T]
    let bounds = b.cast(bounds, DType::I64)?;
    let column = b.reshape(bounds, [n_bounds, 1.into()])?;
    let after = b.cmp(Cmp::Lt, token, column)?; // [R + 1, T]
    let before = b.not(after)?;
    let before = b.cast(before, DType::I64)?;
    let sequence = b.sum(before, &[0])?; // [T]
    let query_sequence = b.reshape(sequence, [t.clone(), 1.into()])?;
    let mut keep = b.cmp(Cmp::Eq, query_sequence, sequence)?; // [T, T]
    let query = b.reshape(token, [t.clone(), 1.into()])?;
    let distance = b.sub(token, query)?; // [T, T], key less query
    let window = attrs.size("window")?;
    if window > 0 {
        let back = b.neg(distance)?;
        let apart = b.max(distance, back)?;
        let edge = b.scalar(DType::I64, window as f64 + 1.0)?;
        let near = b.cmp(Cmp::Lt, apart, edge)?;
        keep = b.mul(keep, near)?;
    }

    let q = b.scale(q, attrs.float("scale")?)?;
    let q = b.reshape(q, [t.clone(), 1.into(), groups.clone(), per_group.clone(), d.clone()])?;
    let k = b.reshape(k, [t.clone(), groups.clone(), 1.into(), d])?;
    let products = b.mul(q, k)?; // [T, T, G, H/G, D]
    let mut scores = b.sum(products, &[4])?;
    if let Some(&bias) = inputs.get(4) {
        let reach = b.dim(bias, 1)?.known().unwrap_or(1) / 2;
        let least = b.scalar(DType::I64, -(reach as f64))?;
        let most = b.scalar(DType::I64, reach as f64)?;
        let clamped = b.max(distance, least)?;
        let clamped = b.min(clamped, most)?;
        let index = b.offset(clamped, reach as f64)?;
        let by_distance = b.permute(bias, &[1, 0])?; // [W, H]
        let gained = b.gather(by_distance, 0, index)?; // [T, T, H]
        let shape = [t.clone(), t.clone(), groups.clone(), per_group.clone()];
        let gained = b.reshape(gained, shape)?;
        scores = b.add(scores, gained)?;
    }
    let keep = b.reshape(keep, [t.clone(), t.clone(), 1.into(), 1.into()])?;
    let scores = masked(b, keep, scores)?;
    let weights = softmax(b, scores, 1)?;
    let weights = b.unsqueeze(weights, 4)?; // [T, T, G, H/G, 1]
    let v = b.reshape(v, [t.clone(), groups, 1.into(), e.clone()])?;
    let weighted = b.mul(weights, v)?; // [T, T, G, H/G, E]
    let y = b.sum(weighted, &[1])?; // [T, G, H/G, E]
    Ok(vec![b.reshape(y, [t, heads, e])?])
}
