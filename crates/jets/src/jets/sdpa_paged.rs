//! Causal attention over keys and values in pool blocks.

use cyb_ir::{Attrs, Builder, Case, Exp, Fact, Fill, Jet, Reduce, Signature, ValueId};
use cyb_tensor::{DType, Dim};

use crate::sugar::{Defined, arity, causal_window, masked, reduce_kept, soft_cap};

/// `sdpa_paged{scale, window, softcap, block}(q[T, H, D], keys[N, G, D], values[N, G, E],
/// tables[R, M], rows[T], positions[T], sinks[H]?) -> [T, H, E]`.
///
/// Token t belongs to sequence row `rows[t]` and stands at `positions[t]`. Position p of a sequence
/// is stored in pool slot `tables[row][p / block] * block + p % block`. A token sees its sequence
/// up to its own position, and `window` positions at most where `window` > 0. Query head h reads
/// key head h / (H / G). `softcap` as in `sdpa`. `sinks[h]` is a score that takes weight and gives
/// no value.
///
/// The result for a token depends on its own sequence only: not on which tokens share the call.
pub static SDPA_PAGED: Jet = Jet {
    name: "sdpa_paged",
    summary: "causal attention over keys and values in pool blocks",
    define,
    signatures: || {
        let i32s = |dims: &[&str]| Fact::new(DType::I32, dims.iter().map(|d| Dim::symbol(d)));
        let pool = Fact::new(DType::F16, [Dim::symbol("n"), 2.into(), 64.into()]);
        vec![Signature {
            inputs: vec![
                Fact::new(DType::F32, [Dim::symbol("t"), 4.into(), 64.into()]),
                pool.clone(),
                pool,
                i32s(&["r", "m"]),
                i32s(&["t"]),
                i32s(&["t"]),
            ],
            attrs: attrs(0.125, 0, 0.0, 32),
        }]
    },
    cases,
    // Keys and values are read from 16-bit or 8-bit storage as they are; only sums differ in order.
    tolerance: cyb_ir::Tolerance { absolute: 1e-5, relative: 1e-3 },
    in_place: &[],
};

fn attrs(scale: f64, window: usize, softcap: f64, block: usize) -> Attrs {
    Attrs::new()
        .with("scale", scale)
        .with("window", window)
        .with("softcap", softcap)
        .with("block", block)
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes =
        [(4, 2, 64), (14, 2, 64), (9, 3, 64), (2, 1, 80), (3, 3, 96), (4, 1, 256), (8, 2, 128)];
    for (heads, groups, width) in shapes {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
            if dtype == DType::Q8_0 && width % 32 != 0 {
                continue;
            }
            cases.push(case(dtype, heads, groups, width, 0, 0.0));
        }
    }
    cases.push(case(DType::F16, 4, 2, 64, 5, 0.0));
    cases.push(case(DType::F16, 4, 2, 64, 32, 0.0));
    cases.push(case(DType::F16, 4, 2, 64, 0, 20.0));
    let sinks = case(DType::F16, 4, 2, 64, 0, 0.0).normal(&[4]);
    cases.push(Case { name: "sinks".into(), ..sinks });
    for (heads, groups, window) in [(7, 1, 0), (9, 1, 300), (2, 2, 0)] {
        cases.push(long(DType::F16, heads, groups, window));
    }
    cases.push(long(DType::Q8_0, 3, 1, 0));
    cases
}

/// One sequence of 600 tokens: neighbors at its end, which begin inside a block, and one before.
fn long(dtype: DType, heads: usize, groups: usize, window: usize) -> Case {
    let (width, blocks) = (32, 19i64);
    let name = format!("{dtype} {heads}/{groups} of 600, window {window}");
    Case::new(name, attrs(1.0 / (width as f64).sqrt(), window, 0.0, 32))
        .normal(&[4, heads, width])
        .input(dtype, &[20 * 32, groups, width], Fill::Normal(1.0))
        .input(dtype, &[20 * 32, groups, width], Fill::Normal(1.0))
        .input(DType::I32, &[1, 19], Fill::Ints((0..blocks).map(|i| (i * 7 + 3) % 20).collect()))
        .input(DType::I32, &[4], Fill::Ints(vec![0]))
        .input(DType::I32, &[4], Fill::Ints(vec![254, 597, 598, 599]))
}

/// Two sequences: one of 70 tokens whose blocks lie out of order, one of 33; queries on both sides
/// of every block border.
fn case(
    dtype: DType,
    heads: usize,
    groups: usize,
    width: usize,
    window: usize,
    softcap: f64,
) -> Case {
    let name = format!("{dtype} {heads}/{groups}x{width} window {window} softcap {softcap}");
    let scale = 1.0 / (width as f64).sqrt();
    Case::new(name, attrs(scale, window, softcap, 32))
        .normal(&[7, heads, width])
        .input(dtype, &[160, groups, width], Fill::Normal(1.0))
        .input(dtype, &[160, groups, width], Fill::Normal(1.0))
        .input(DType::I32, &[2, 3], Fill::Ints(vec![3, 0, 4, 2, 1, 0]))
        .input(DType::I32, &[7], Fill::Ints(vec![0, 1, 0, 0, 1, 0, 1]))
        .input(DType::I32, &[7], Fill::Ints(vec![69, 0, 31, 32, 32, 63, 31]))
}

fn define(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Defined {
    arity("sdpa_paged", inputs, 6..=7)?;
    let [q, keys, values, tables, rows, positions] = [0, 1, 2, 3, 4, 5].map(|i: usize| inputs[i]);
    let block = attrs.size("block")?;
    let (t, heads, d) = (b.dim(q, 0)?, b.dim(q, 1)?, b.dim(q, 2)?);
    let (groups, e) = (b.dim(keys, 1)?, b.dim(values, 2)?);
    let per_group = heads.floor_div(&groups);
    let length = b.dim(tables, 1)? * block.into();

    // Slot of every position of every token's sequence: [T, M * block].
    let blocks = b.gather(tables, 0, rows)?;
    let blocks = b.cast(blocks, DType::I64)?;
    let blocks = b.unsqueeze(blocks, 2)?;
    let starts = b.scale(blocks, block as f64)?;
    let within = b.iota(block.into());
    let slots = b.add(starts, within)?;
    let slots = b.reshape(slots, [t.clone(), length.clone()])?;
    let read = |b: &mut Builder, pool, width| {
        let gathered = b.gather(pool, 0, slots)?;
        let floats = b.cast(gathered, DType::F32)?;
        b.reshape(floats, [t.clone(), length.clone(), groups.clone(), 1.into(), width])
    };
    let keys = read(b, keys, d.clone())?;
    let values = read(b, values, e.clone())?;

    let q = b.scale(q, attrs.float("scale")?)?;
    let q = b.reshape(q, [t.clone(), 1.into(), groups.clone(), per_group.clone(), d])?;
    let products = b.mul(q, keys)?; // [T, L, G, H/G, D]
    let scores = b.sum(products, &[4])?;
    let scores = soft_cap(b, scores, attrs.float("softcap")?)?;
    let query = b.cast(positions, DType::I64)?;
    let query = b.reshape(query, [t.clone(), 1.into(), 1.into(), 1.into()])?;
    let key = b.iota(length.clone());
    let key = b.reshape(key, [length.clone(), 1.into(), 1.into()])?;
    let keep = causal_window(b, query, key, attrs.size("window")?)?;
    let scores = masked(b, keep, scores)?;

    let mut top = reduce_kept(b, Reduce::Max, scores, 1)?; // [T, 1, G, H/G]
    let sinks = match inputs.get(6) {
        Some(&sinks) => Some(b.reshape(sinks, [1.into(), 1.into(), groups, per_group])?),
        None => None,
    };
    if let Some(sinks) = sinks {
        top = b.max(top, sinks)?;
    }
    let shifted = b.sub(scores, top)?;
    let weights = b.exp(Exp::Exp, shifted)?;
    let mut sum = reduce_kept(b, Reduce::Sum, weights, 1)?;
    if let Some(sinks) = sinks {
        let shifted = b.sub(sinks, top)?;
        let weight = b.exp(Exp::Exp, shifted)?;
        sum = b.add(sum, weight)?;
    }
    let weights = b.unsqueeze(weights, 4)?;
    let weighted = b.mul(weights, values)?; // [T, L, G, H/G, E]
    let y = b.sum(weighted, &[1])?; // [T, G, H/G, E]
    let mut kept = b.shape(y).to_vec();
    kept[3] = 1.into();
    let sum = b.reshape(sum, kept)?;
    let y = b.div(y, sum)?;
    Ok(vec![b.reshape(y, [t, heads, e])?])
}
