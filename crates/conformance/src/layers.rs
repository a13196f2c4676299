//! Decoder layers as models say them, where a backend fuses what follows each other: against another
//! backend, and the same bits in two runs.

use std::collections::BTreeMap;

use cyb_exec::{Executor, Placed, PrepareOptions};
use cyb_ir::{Attrs, Builder, Fact, Fill, Jet, ValueId};
use cyb_tensor::{DType, Dim, Tensor};

use crate::call::{Call, badness, decoded};
use crate::random::Random;
use crate::{CaseError, Line, Suite, case};

/// What a leaf of the layer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Input,
    Weight,
    State,
}

struct Layer {
    heads: usize,
    groups: usize,
    width: usize,
    pool: DType,
    window: usize,
    /// Position and sequence of each token.
    tokens: Vec<(i64, i64)>,
    /// Blocks of a sequence.
    blocks: usize,
}

/// A decoder layer as models say it.
fn layer(seed: u64, how: &Layer) -> Result<Call, CaseError> {
    let Layer { heads, groups, width, pool, window, ref tokens, blocks } = *how;
    let (hidden, inner, sequences) = (512, 768, 3);
    let mut random = Random(seed);
    let mut leaves = BTreeMap::new();
    let mut b = Builder::new();
    let ints = |list: Vec<i64>| Fill::Ints(list);
    let t = tokens.len();
    let slots = sequences * blocks * 32;
    let table = |s: usize, i: usize| ((i * sequences + s) % (sequences * blocks)) as i64;
    let slot = |&(p, s): &(i64, i64)| table(s as usize, p as usize / 32) * 32 + p % 32;
    let normal = |d: f32| Fill::Normal(d);
    let mut leaf = |b: &mut Builder, name: &str, dtype, shape: &[usize], fill: Fill, kind: Kind| {
        let tensor = random.tensor(dtype, shape, &fill)?;
        let fact = Fact::of(&tensor);
        if kind == Kind::Weight {
            return Ok::<_, CaseError>(b.weight(name, tensor));
        }
        leaves.insert(name.to_owned(), tensor);
        Ok(if kind == Kind::Input { b.input(name, fact) } else { b.state(name, fact) })
    };
    let x = leaf(&mut b, "x", DType::F32, &[t, hidden], normal(1.0), Kind::Input)?;
    let positions = ints(tokens.iter().map(|t| t.0).collect());
    let positions = leaf(&mut b, "positions", DType::I32, &[t], positions, Kind::Input)?;
    let rows = ints(tokens.iter().map(|t| t.1).collect());
    let rows = leaf(&mut b, "rows", DType::I32, &[t], rows, Kind::Input)?;
    let slot_list = ints(tokens.iter().map(slot).collect());
    let slot_list = leaf(&mut b, "slots", DType::I32, &[t], slot_list, Kind::Input)?;
    let all = (0..sequences).flat_map(|s| (0..blocks).map(move |i| table(s, i))).collect();
    let tables = leaf(&mut b, "tables", DType::I32, &[sequences, blocks], ints(all), Kind::Input)?;
    let keys = leaf(&mut b, "k", pool, &[slots, groups, width], normal(1.0), Kind::State)?;
    let values = leaf(&mut b, "v", pool, &[slots, groups, width], normal(1.0), Kind::State)?;
    let mut weight = |b: &mut Builder, name: &str, dtype, shape: &[usize]| {
        leaf(b, name, dtype, shape, normal(0.1), Kind::Weight)
    };
    let norm1 = weight(&mut b, "norm1", DType::F32, &[hidden])?;
    let norm2 = weight(&mut b, "norm2", DType::F32, &[hidden])?;
    let wq = weight(&mut b, "wq", DType::Q4_K, &[heads * width, hidden])?;
    let wk = weight(&mut b, "wk", DType::Q4_K, &[groups * width, hidden])?;
    let wv = weight(&mut b, "wv", DType::Q6_K, &[groups * width, hidden])?;
    let wo = weight(&mut b, "wo", DType::Q8_0, &[hidden, heads * width])?;
    // A float gate in layers with float pools.
    let gates = if pool == DType::BF16 || pool == DType::F32 { pool } else { DType::Q4_K };
    let gate = weight(&mut b, "gate", gates, &[inner, hidden])?;
    let up = weight(&mut b, "up", gates, &[inner, hidden])?;
    let down = weight(&mut b, "down", DType::Q6_K, &[hidden, inner])?;
    let turned = width / 2;
    let frequencies: Vec<f32> =
        (0..turned).map(|i| 10000f32.powf(-(i as f32) / turned as f32)).collect();
    let frequencies = b.constant(Tensor::from_f32(vec![turned], &frequencies)?);

    let eps = || Attrs::new().with("eps", 1e-5);
    let jet = |b: &mut Builder, j: &'static Jet, attrs: Attrs, inputs: &[ValueId]| {
        b.jet(j, attrs, inputs)
    };
    let none = Attrs::new;
    let h = jet(&mut b, &cyb_jets::RMSNORM, eps(), &[x, norm1])?;
    let project = |b: &mut Builder, w, n: usize| {
        let y = b.jet(&cyb_jets::LINEAR, none(), &[h, w])?;
        b.reshape(y, [t.into(), n.into(), width.into()])
    };
    let q = project(&mut b, wq, heads)?;
    let (k, v) = (project(&mut b, wk, groups)?, project(&mut b, wv, groups)?);
    let rope = Attrs::new().with("style", "half").with("scale", 1.0);
    let q = jet(&mut b, &cyb_jets::ROPE, rope.clone(), &[q, positions, frequencies])?;
    let k = jet(&mut b, &cyb_jets::ROPE, rope, &[k, positions, frequencies])?;
    let new_keys = jet(&mut b, &cyb_jets::KV_CACHE, none(), &[keys, slot_list, k])?;
    b.update(keys, new_keys);
    let new_values = jet(&mut b, &cyb_jets::KV_CACHE, none(), &[values, slot_list, v])?;
    b.update(values, new_values);
    let attrs = Attrs::new()
        .with("scale", 1.0 / (width as f64).sqrt())
        .with("window", window)
        .with("softcap", 0.0)
        .with("block", 32usize);
    let given = [q, new_keys, new_values, tables, rows, positions];
    let a = jet(&mut b, &cyb_jets::SDPA_PAGED, attrs, &given)?;
    let a = b.reshape(a, [t.into(), Dim::from(heads * width)])?;
    let o = jet(&mut b, &cyb_jets::LINEAR, none(), &[a, wo])?;
    let x = jet(&mut b, &cyb_jets::ADD, none(), &[x, o])?;
    let h = jet(&mut b, &cyb_jets::RMSNORM, eps(), &[x, norm2])?;
    let g = jet(&mut b, &cyb_jets::LINEAR, none(), &[h, gate])?;
    let u = jet(&mut b, &cyb_jets::LINEAR, none(), &[h, up])?;
    let s = jet(&mut b, &cyb_jets::SWIGLU, none(), &[g, u])?;
    let d = jet(&mut b, &cyb_jets::LINEAR, none(), &[s, down])?;
    let y = jet(&mut b, &cyb_jets::ADD, none(), &[x, d])?;
    let last = ints(vec![t as i64 - 1, 0]);
    let last = leaf(&mut b, "last", DType::I32, &[2], last, Kind::Input)?;
    let rows = b.gather(y, 0, last)?;
    b.output("y", y);
    b.output("a", a);
    b.output("rows", rows);
    Ok(Call { graph: b.finish(), leaves })
}

pub(crate) fn check(suite: &Suite<'_>, line: &mut Line) {
    let decode = || vec![(700, 0), (3, 1), (255, 2)];
    let lone = |p: i64| vec![(p, 1)];
    let prefill = || (200..270).map(|p| (p, 1)).chain([(511, 0)]).collect::<Vec<_>>();
    let long = || (0..300).map(|p| (p + 17, 2)).collect::<Vec<_>>();
    let prompt = || (0..600).map(|p| (p + 17, 2)).collect::<Vec<_>>();
    for (heads, groups, width, pool, window) in [
        (8, 2, 64, DType::F16, 0),
        (4, 4, 128, DType::F16, 100),
        (6, 1, 96, DType::BF16, 0),
        (14, 2, 64, DType::Q8_0, 0),
        (16, 2, 128, DType::F32, 0),
        (4, 2, 256, DType::F16, 0),
        (8, 4, 80, DType::F16, 300),
    ] {
        for (name, tokens) in [
            ("decode", decode()),
            ("first token", lone(0)),
            ("one token", lone(255)),
            ("one token, split", lone(700)),
            ("mixed", prefill()),
            ("prefill", long()),
            ("prompt", prompt()),
        ] {
            let how = Layer { heads, groups, width, pool, window, tokens, blocks: 24 };
            let name = format!("layer {heads}/{groups}x{width} {pool} window {window} {name}");
            case(line, &name, |line| compare(suite, &name, &how, line));
        }
    }
}

fn compare(suite: &Suite<'_>, name: &str, how: &Layer, line: &mut Line) -> Result<(), CaseError> {
    let call = layer(suite.seed, how)?;
    let got = call.run(suite.backends, 1)?;
    let again = call.run(suite.backends, 3)?;
    line.check(name, got.bytes == again.bytes, || "two runs have other bits".into());
    let first = got.backends.iter().all(|name| *name == suite.first());
    line.on_first += usize::from(first);
    line.check(name, first, || format!("it runs on {}", got.backends.join(" ")));
    let placed = Placed::new(call.graph.clone(), suite.backends, PrepareOptions::default())?;
    if let [share] = &placed.shares(&vec![1; placed.symbols().len()])?[..]
        && share.free.is_some()
    {
        let planned = share.weights;
        let held = Executor::load(placed)?.weight_bytes();
        line.check(name, planned == held, || format!("planned {planned} bytes, held {held}"));
    }
    let Some(reference) = suite.reference else { return Ok(()) };
    let want = call.run(reference, 1)?;
    let outputs = call.graph.outputs.len();
    for (i, (want, got)) in want.bytes.iter().zip(&got.bytes).enumerate() {
        let dtype = if i < outputs { DType::F32 } else { how.pool };
        let (want, got) = (decoded(dtype, want)?, decoded(dtype, got)?);
        line.check_near(name, badness(&want, &got, 1e-3, 2e-2));
    }
    Ok(())
}
