//! Scaled dot-product attention over dense keys and values.

use cyb_ir::{Attrs, Builder, Case, Fact, Fill, Jet, Signature, ValueId};
use cyb_tensor::{DType, Dim};

use crate::sugar::{Defined, SUMMED, arity, causal_window, masked, soft_cap, softmax};

/// `sdpa{scale, causal, window, softcap}(q[B, H, S, D], k[B, G, L, D], v[B, G, L, E], mask?)
/// -> [B, H, S, E]`.
///
/// Query head h reads key head h / (H / G). With `causal`, query s stands at position L - S + s and
/// sees no later key; `window` > 0 also hides keys `window` or more positions back. `softcap` > 0
/// bounds scores by `softcap * tanh(score / softcap)`. A `mask` broadcasts to [B, H, S, L]: `bool`
/// keeps where true, floats are added. A query that sees no key gives NaN.
pub static SDPA: Jet = Jet {
    name: "sdpa",
    summary: "attention over dense keys and values",
    define,
    signatures: || {
        let head = |n: &str| {
            Fact::new(DType::F32, [Dim::symbol("b"), 4.into(), Dim::symbol(n), 64.into()])
        };
        vec![Signature {
            inputs: vec![head("s"), head("l"), head("l")],
            attrs: attrs(0.125, false, 0, 0.0),
        }]
    },
    cases,
    tolerance: SUMMED,
    in_place: &[],
};

fn attrs(scale: f64, causal: bool, window: usize, softcap: f64) -> Attrs {
    Attrs::new()
        .with("scale", scale)
        .with("causal", causal)
        .with("window", window)
        .with("softcap", softcap)
}

fn cases() -> Vec<Case> {
    let case = |name: &str, attrs: Attrs, h: usize, g: usize, s: usize, l: usize, d: usize| {
        Case::new(name, attrs).normal(&[2, h, s, d]).normal(&[2, g, l, d]).normal(&[2, g, l, d])
    };
    vec![
        case("bidirectional", attrs(0.125, false, 0, 0.0), 3, 3, 13, 13, 64),
        case("causal", attrs(0.125, true, 0, 0.0), 4, 2, 9, 9, 64),
        case("causal with a past", attrs(0.1, true, 0, 0.0), 4, 1, 3, 21, 80),
        case("window", attrs(0.1, true, 4, 0.0), 2, 2, 17, 17, 96),
        case("softcap", attrs(0.5, true, 0, 5.0), 2, 2, 7, 7, 32),
        case("float mask", attrs(0.1, false, 0, 0.0), 2, 2, 5, 6, 32).normal(&[5, 6]),
        case("bool mask", attrs(0.1, false, 0, 0.0), 2, 2, 5, 6, 32).input(
            DType::Bool,
            &[2, 1, 1, 6],
            Fill::Ints(vec![1, 1, 0, 1, 0, 1]),
        ),
    ]
}

fn define(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Defined {
    arity("sdpa", inputs, 3..=4)?;
    let [q, k, v] = [inputs[0], inputs[1], inputs[2]];
    let [batch, heads, s, d] = [0, 1, 2, 3].map(|i| b.dim(q, i));
    let (batch, heads, s, d) = (batch?, heads?, s?, d?);
    let (groups, l, e) = (b.dim(k, 1)?, b.dim(k, 2)?, b.dim(v, 3)?);
    let per_group = heads.floor_div(&groups);

    let q = b.scale(q, attrs.float("scale")?)?;
    let q = b.reshape(
        q,
        [batch.clone(), groups.clone(), per_group.clone(), s.clone(), 1.into(), d.clone()],
    )?;
    let k = b.reshape(k, [batch.clone(), groups.clone(), 1.into(), 1.into(), l.clone(), d])?;
    let products = b.mul(q, k)?; // [B, G, H/G, S, L, D]
    let scores = b.sum(products, &[5])?;
    let mut scores = soft_cap(b, scores, attrs.float("softcap")?)?;

    if attrs.flag("causal")? {
        let key = b.iota(l.clone());
        // Query s stands at L - S + s: the queries' positions are the tail of the keys'.
        let tail = b.slice(key, 0, l.clone() - s.clone(), s.clone())?;
        let query = b.reshape(tail, [s.clone(), 1.into()])?;
        let keep = causal_window(b, query, key, attrs.size("window")?)?;
        scores = masked(b, keep, scores)?;
    }
    if let Some(&mask) = inputs.get(3) {
        let flat = b.reshape(scores, [batch.clone(), heads.clone(), s.clone(), l.clone()])?;
        let full = [batch.clone(), heads.clone(), s.clone(), l.clone()];
        let mask = b.broadcast(mask, full)?;
        let hidden = if b.fact(mask).dtype == DType::Bool {
            masked(b, mask, flat)?
        } else {
            b.add(flat, mask)?
        };
        scores = b.reshape(
            hidden,
            [batch.clone(), groups.clone(), per_group.clone(), s.clone(), l.clone()],
        )?;
    }
    let weights = softmax(b, scores, 4)?;
    let weights = b.unsqueeze(weights, 5)?; // [B, G, H/G, S, L, 1]
    let v = b.reshape(v, [batch.clone(), groups, 1.into(), 1.into(), l, e.clone()])?;
    let weighted = b.mul(weights, v)?;
    let y = b.sum(weighted, &[4])?; // [B, G, H/G, S, E]
    Ok(vec![b.reshape(y, [batch, heads, s, e])?])
}
