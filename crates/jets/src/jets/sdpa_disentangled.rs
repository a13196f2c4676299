//! Attention of DeBERTa: contents meet contents, and each meets the other's relative position.

use cyb_ir::{Attrs, Builder, Case, Fact, Fill, IrError, Jet, Signature, ValueId};
use cyb_tensor::{DType, Dim};

use super::sdpa_packed::{by_distance, gain, packed_case, pairs, products, weigh};
use crate::sugar::{Defined, SUMMED, arity};

/// `sdpa_disentangled{scale, c2p, p2c}(q[T, H, D], k[T, H, D], v[T, H, E], bounds[R + 1], shown[T],
/// index[W], pos_k[P, H, D]?, pos_q[P, H, D]?) -> [T, H, E]`.
///
/// As `sdpa_packed`, over sequences and tokens that are not hidden. Query i and key j lie
/// `index[W / 2 + clamp(j - i, -(W / 2), W / 2)]` = p apart, W odd, every p below P. Their score is
/// `scale * (q_i k_j + q_i pos_k_p + k_j pos_q_p)`: the second term, and with it `pos_k`, is there
/// with `c2p`, the third, and with it `pos_q`, with `p2c`. One of them is there.
pub static SDPA_DISENTANGLED: Jet = Jet {
    name: "sdpa_disentangled",
    summary: "attention within packed sequences by contents and relative positions",
    define,
    signatures: || {
        let head = |n: &str| Fact::new(DType::F32, [Dim::symbol(n), 4.into(), 64.into()]);
        let ints = |n: &str| Fact::new(DType::I32, [Dim::symbol(n)]);
        let content = [head("t"), head("t"), head("t"), ints("b"), ints("t"), ints("w")];
        let inputs = content.into_iter().chain([head("p"), head("p")]).collect();
        vec![Signature { inputs, attrs: attrs(0.0721, true, true) }]
    },
    cases,
    tolerance: SUMMED,
    in_place: &[],
};

fn attrs(scale: f64, c2p: bool, p2c: bool) -> Attrs {
    Attrs::new().with("scale", scale).with("c2p", c2p).with("p2c", p2c)
}

fn cases() -> Vec<Case> {
    let case = |name: &str, bounds: &[i64], [heads, width, value]: [usize; 3], index: &[i64]| {
        let scale = 1.0 / (3.0 * width as f64).sqrt();
        let both = attrs(scale, true, true);
        let p = index.iter().max().map_or(0, |&n| n as usize + 1);
        packed_case(name, both, bounds, [heads, heads], [width, value], &[1])
            .input(DType::I32, &[index.len()], Fill::Ints(index.to_vec()))
            .normal(&[p, heads, width])
            .normal(&[p, heads, width])
    };
    let falling = |n: i64| (0..n).rev().collect::<Vec<i64>>();
    let one = |mut case: Case, c2p: bool| {
        case.attrs = attrs(0.2, c2p, !c2p);
        case.inputs.pop();
        case
    };
    let mut hidden = case("hidden", &[0, 9, 31], [2, 16, 16], &falling(21));
    hidden.inputs[4].1 = Fill::Ints(vec![1, 0, 1, 1]);
    vec![
        case("one", &[0, 13], [3, 32, 32], &falling(25)),
        case("several", &[0, 1, 17, 23, 56], [2, 64, 64], &falling(65)),
        case("far apart", &[0, 29, 40], [2, 13, 21], &[6, 6, 5, 4, 3, 2, 1, 1, 0]),
        case("with an empty one", &[0, 7, 7, 40], [2, 16, 16], &falling(65)),
        one(case("contents to positions", &[0, 33, 40], [2, 16, 16], &falling(65)), true),
        one(case("positions to contents", &[0, 33, 40], [2, 16, 16], &falling(65)), false),
        hidden,
    ]
}

fn define(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Defined {
    let kinds = [attrs.flag("c2p")?, attrs.flag("p2c")?];
    let n = 6 + kinds.iter().filter(|&&there| there).count();
    arity("sdpa_disentangled", inputs, n..=n)?;
    let [q, k, v, bounds, shown, index] = [0, 1, 2, 3, 4, 5].map(|i: usize| inputs[i]);
    let scale = attrs.float("scale")?;
    let pairs = pairs(b, bounds, shown, 0, false)?;
    let slot = by_distance(b, index, 0, pairs.distance)?; // [T, T]
    let apart = b.gather(index, 0, slot)?;
    let apart = b.cast(apart, DType::I64)?; // [T, T]
    let token = b.dim(shown, 0)?;
    let token = b.iota(token); // [T]
    let query = b.reshape(token, [b.dim(token, 0)?, 1.into()])?;

    let mut scores = products(b, q, k, scale)?;
    let mut tables = inputs[6..].iter();
    for (content, at) in
        [(q, query), (k, token)].into_iter().zip(kinds).filter_map(|(c, is)| is.then_some(c))
    {
        let Some(&table) = tables.next() else { continue };
        let gained = to_positions(b, content, at, table, apart, scale)?;
        scores = gain(b, scores, gained)?;
    }
    Ok(vec![weigh(b, scores, pairs.seen, v)?])
}

/// Products of contents `[T, H, D]` with positions `[P, H, D]`, of token `at` (broadcast to [T, T])
/// and position `apart [T, T]`: `[T, T, H]`.
fn to_positions(
    b: &mut Builder,
    content: ValueId,
    at: ValueId,
    table: ValueId,
    apart: ValueId,
    scale: f64,
) -> Result<ValueId, IrError> {
    let (t, p) = (b.dim(content, 0)?, b.dim(table, 0)?);
    let (heads, d) = (b.dim(content, 1)?, b.dim(content, 2)?);
    let content = b.scale(content, scale)?;
    let content = b.reshape(content, [t.clone(), 1.into(), heads.clone(), d])?;
    let products = b.mul(content, table)?; // [T, P, H, D]
    let products = b.sum(products, &[3])?;
    let products = b.reshape(products, [t.clone() * p.clone(), heads])?;
    // at * P, the length as a value.
    let counted = b.iota(p.clone() + 1.into());
    let n = b.slice(counted, 0, p, 1)?; // [1]
    let row = b.mul(at, n)?;
    let row = b.add(row, apart)?; // [T, T]
    b.gather(products, 0, row)
}
