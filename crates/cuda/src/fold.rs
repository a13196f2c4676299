//! Nodes that another step takes over: a norm or a gated activation becomes part of the product that
//! reads it; rotary embeddings and cache writes become part of the attention after them; the
//! activation of a gate and its `up` becomes part of the products that make both.

use std::collections::{HashMap, HashSet};

use cyb_ir::{Graph, Node, Op, ValueId};

use crate::op::{Activation, Before, attrs_of};

/// What an attention step does first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeStore {
    /// Node that turns the queries.
    pub(crate) rope: usize,
    pub(crate) q: ValueId,
    pub(crate) k: ValueId,
    pub(crate) v: ValueId,
    pub(crate) slots: ValueId,
    pub(crate) frequencies: ValueId,
    /// The turned queries and keys.
    pub(crate) turned: [ValueId; 2],
}

/// What a product does first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folded {
    pub(crate) before: Before,
    pub(crate) x: ValueId,
    /// The norm's weight, or `up`.
    pub(crate) other: Option<ValueId>,
}

/// A gate and its `up`, made by one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) activation: Activation,
    /// Which of the step's two products is the gate.
    pub(crate) gate: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Folds {
    /// Nodes that have no step of their own.
    pub(crate) gone: HashSet<usize>,
    /// By the output of the norm or activation.
    pub(crate) before: HashMap<ValueId, Folded>,
    /// By number of the attention's node.
    pub(crate) attention: HashMap<usize, RopeStore>,
    /// Products whose two outputs become one, the gated activation in place of the gate.
    pub(crate) paired: HashMap<usize, Pair>,
    /// Products that read one of those.
    pub(crate) gated: HashSet<usize>,
}

struct Readers<'g> {
    graph: &'g Graph,
    /// Nodes that read each value, once for each time.
    of: Vec<Vec<usize>>,
    kept: HashSet<ValueId>,
    made_by: HashMap<ValueId, usize>,
}

impl<'g> Readers<'g> {
    fn jet(&self, v: ValueId, name: &str) -> Option<(usize, &'g Node)> {
        let index = *self.made_by.get(&v)?;
        let node = &self.graph.nodes[index];
        (matches!(node.op, Op::Jet(..)) && node.op.name() == name).then_some((index, node))
    }

    /// Whether node `reader` alone reads the value.
    fn only(&self, v: ValueId, reader: usize) -> bool {
        self.of[v.index()] == [reader] && !self.kept.contains(&v)
    }
}

/// With `traced` every output of a product keeps its own meaning.
pub(crate) fn fold(graph: &Graph, live: &[bool], traced: bool) -> Folds {
    let mut of = vec![Vec::new(); graph.values.len()];
    let mut made_by = HashMap::new();
    for (i, node) in graph.nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
        node.inputs.iter().for_each(|v| of[v.index()].push(i));
        made_by.extend(node.outputs.iter().map(|&v| (v, i)));
    }
    let kept = graph.outputs.iter().map(|(_, v)| *v).collect();
    let readers = Readers { graph, of, kept, made_by };
    let mut folds = Folds::default();
    for (i, node) in graph.nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
        if !matches!(node.op, Op::Jet(..)) {
            continue;
        }
        match node.op.name() {
            "rmsnorm" | "swiglu" | "geglu" => {
                if let Some(before) = before(&readers, node) {
                    folds.gone.insert(i);
                    folds.before.insert(node.outputs[0], before);
                }
            }
            "sdpa_paged" => {
                if let Some((store, gone)) = rope_store(&readers, i, node) {
                    folds.gone.extend(gone);
                    folds.attention.insert(i, store);
                }
            }
            "gated_linear" if !traced => {
                if let Some((products, pair)) = paired(&readers, i, node) {
                    folds.paired.insert(products, pair);
                    folds.gated.insert(i);
                }
            }
            _ => {}
        }
    }
    folds
}

/// The `linear_many` that makes a gate and its `up` and nothing else.
fn paired(readers: &Readers<'_>, index: usize, node: &Node) -> Option<(usize, Pair)> {
    let (gate, up) = (node.inputs[0], node.inputs[1]);
    let (number, products) = readers.jet(gate, "linear_many")?;
    let weights = [1, 2].map(|i: usize| readers.graph.fact(products.inputs[i]));
    let first = products.outputs.iter().position(|&v| v == gate)?;
    let alike = products.outputs.len() == 2
        && products.outputs[1 - first] == up
        && weights[0] == weights[1]
        && readers.only(gate, index)
        && readers.only(up, index);
    let name = attrs_of(&node.op).text("activation").ok()?;
    alike.then(|| (number, Pair { activation: Activation::named(name), gate: first }))
}

fn before(readers: &Readers<'_>, node: &Node) -> Option<Folded> {
    let out = node.outputs[0];
    let [reader] = *readers.of[out.index()].as_slice() else { return None };
    let next = &readers.graph.nodes[reader];
    let product = matches!(next.op, Op::Jet(..))
        && ["linear", "linear_many", "linear_add"].contains(&next.op.name());
    if !product || next.inputs[0] != out || readers.kept.contains(&out) {
        return None;
    }
    // A product reads a norm's weight before the steps ahead of it have ended.
    let made = node.inputs.get(1).is_some_and(|w| readers.made_by.contains_key(w));
    if node.op.name() == "rmsnorm" && made {
        return None;
    }
    let attrs = attrs_of(&node.op);
    let before = match node.op.name() {
        "rmsnorm" => Before::Norm(attrs.float("eps").ok()? as f32),
        "swiglu" => Before::Gated(Activation::Silu),
        _ => Before::Gated(Activation::named(attrs.text("approximate").ok()?)),
    };
    Some(Folded { before, x: node.inputs[0], other: node.inputs.get(1).copied() })
}

fn rope_store(readers: &Readers<'_>, index: usize, node: &Node) -> Option<(RopeStore, [usize; 4])> {
    let [q, keys, values] = [0, 1, 2].map(|i: usize| node.inputs[i]);
    let (rope_q, turn_q) = readers.jet(q, "rope")?;
    let (store_k, cache_k) = readers.jet(keys, "kv_cache")?;
    let (store_v, cache_v) = readers.jet(values, "kv_cache")?;
    let turned_k = cache_k.inputs[2];
    let (rope_k, turn_k) = readers.jet(turned_k, "rope")?;
    // The pools may be a state's next value besides, which is the same memory.
    let alone = readers.only(q, index)
        && readers.only(turned_k, store_k)
        && readers.of[keys.index()] == [index]
        && readers.of[values.index()] == [index];
    let alike = turn_q.inputs[1..] == turn_k.inputs[1..]
        && turn_q.op == turn_k.op
        && cache_k.inputs[1] == cache_v.inputs[1]
        && node.inputs[5] == turn_q.inputs[1];
    let store = RopeStore {
        rope: rope_q,
        q: turn_q.inputs[0],
        k: turn_k.inputs[0],
        v: cache_v.inputs[2],
        slots: cache_k.inputs[1],
        frequencies: turn_q.inputs[2],
        turned: [q, turned_k],
    };
    (alone && alike).then_some((store, [rope_q, rope_k, store_k, store_v]))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cyb_exec::{Backend, Call, ExecError, Kernel, PlanMode, Program, optimize};
    use cyb_ir::{Attrs, Builder, Fact};
    use cyb_jets::{
        ADD, GATED_LINEAR, KV_CACHE, LINEAR, LINEAR_MANY, RMSNORM, ROPE, SDPA_PAGED, SWIGLU,
    };
    use cyb_tensor::{DType, Tensor};

    use super::*;

    fn f32s(shape: &[usize]) -> Fact {
        Fact::new(DType::F32, shape.iter().map(|&n| n.into()))
    }

    #[test]
    fn a_norm_folds_into_the_one_product_that_reads_it() {
        for others in [0, 1] {
            let mut b = Builder::new();
            let x = b.input("x", f32s(&[3, 64]));
            let weight = b.input("norm", f32s(&[64]));
            let w = b.input("w", f32s(&[64, 64]));
            let n = b.jet(&RMSNORM, Attrs::new().with("eps", 1e-5), &[x, weight]).unwrap();
            let mut y = b.jet(&LINEAR, Attrs::new(), &[n, w]).unwrap();
            for _ in 0..others {
                y = b.jet(&ADD, Attrs::new(), &[y, n]).unwrap();
            }
            b.output("y", y);
            let graph = b.finish();
            let folds = fold(&graph, &vec![true; graph.nodes.len()], false);
            assert_eq!(folds.before.len(), 1 - others);
            if let Some(norm) = folds.before.get(&n) {
                assert_eq!((norm.x, norm.other), (x, Some(weight)));
                assert_eq!(folds.gone, HashSet::from([0]));
            }
        }
    }

    #[test]
    fn products_take_over_the_activation_that_alone_reads_them() {
        for (traced, seen) in [(false, false), (true, false), (false, true)] {
            let mut b = Builder::new();
            let x = b.input("x", f32s(&[3, 64]));
            let w = [(); 3].map(|()| b.input("w", f32s(&[64, 64])));
            let many = Attrs::new().with("bias", false);
            let made = b.push(Op::Jet(&LINEAR_MANY, many), &[x, w[0], w[1]]).unwrap();
            let gated = Attrs::new().with("activation", "silu");
            let y = b.jet(&GATED_LINEAR, gated, &[made[0], made[1], w[2]]).unwrap();
            b.output("y", y);
            if seen {
                b.output("up", made[1]);
            }
            let graph = b.finish();
            let folds = fold(&graph, &[true; 2], traced);
            let folded = !traced && !seen;
            let pair = Pair { activation: Activation::Silu, gate: 0 };
            assert_eq!(folds.paired.get(&0), folded.then_some(&pair));
            assert_eq!(folds.gated.contains(&1), folded);
        }
    }

    /// The table of kernels, without a GPU.
    #[derive(Debug)]
    struct Table;

    impl Backend for Table {
        fn name(&self) -> &'static str {
            "table"
        }
        fn device(&self) -> String {
            String::new()
        }
        fn kernel(&self, call: &Call<'_>) -> Option<Kernel> {
            crate::program::find(call)
        }
        fn runs_atoms(&self) -> bool {
            false
        }
        fn prepare(&self, _: Graph, _: PlanMode) -> Result<Box<dyn Program>, ExecError> {
            unreachable!("nothing is run")
        }
    }

    #[test]
    fn a_feed_forward_block_is_two_products() {
        let mut b = Builder::new();
        let x = b.input("x", f32s(&[3, 256]));
        let mut weight = |name: &str, shape: &[usize]| {
            let tensor = Tensor::from_f32(shape.to_vec(), &vec![0.5; shape.iter().product()]);
            b.weight(name, tensor.unwrap())
        };
        let norm = weight("norm", &[256]);
        let (gate, up) = (weight("gate", &[512, 256]), weight("up", &[512, 256]));
        let down = weight("down", &[256, 512]);
        let h = b.jet(&RMSNORM, Attrs::new().with("eps", 1e-5), &[x, norm]).unwrap();
        let g = b.jet(&LINEAR, Attrs::new(), &[h, gate]).unwrap();
        let u = b.jet(&LINEAR, Attrs::new(), &[h, up]).unwrap();
        let s = b.jet(&SWIGLU, Attrs::new(), &[g, u]).unwrap();
        let d = b.jet(&LINEAR, Attrs::new(), &[s, down]).unwrap();
        let y = b.jet(&ADD, Attrs::new(), &[x, d]).unwrap();
        b.output("y", y);
        let (graph, _) = optimize(b.finish(), &[Arc::new(Table)], false).unwrap();
        let (_, live) = graph.live();
        let folds = fold(&graph, &live, false);
        let names: Vec<&str> = graph
            .nodes
            .iter()
            .enumerate()
            .filter(|(i, _)| live[*i] && !folds.gone.contains(i))
            .map(|(_, node)| node.op.name())
            .collect();
        assert_eq!(names, ["linear_many", "gated_linear"]);
        // The fusion of products may put `up` first.
        let products = graph.nodes.iter().position(|n| n.op.name() == "linear_many").unwrap();
        let pair = folds.paired[&products];
        assert_eq!(pair.activation, Activation::Silu);
        let gated = graph.nodes.iter().find(|n| n.op.name() == "gated_linear").unwrap();
        assert_eq!(graph.nodes[products].outputs[pair.gate], gated.inputs[0]);
        assert_eq!(folds.gated.len(), 1);
    }

    #[test]
    fn attention_takes_over_rope_and_stores() {
        for seen in [false, true] {
            let mut b = Builder::new();
            let i32s = |shape: &[usize]| Fact::new(DType::I32, shape.iter().map(|&n| n.into()));
            let q = b.input("q", f32s(&[3, 4, 64]));
            let k = b.input("k", f32s(&[3, 2, 64]));
            let v = b.input("v", f32s(&[3, 2, 64]));
            let (positions, rows) = (b.input("positions", i32s(&[3])), b.input("rows", i32s(&[3])));
            let (slots, tables) = (b.input("slots", i32s(&[3])), b.input("tables", i32s(&[1, 2])));
            let frequencies = b.input("f", f32s(&[32]));
            let pool = Fact::new(DType::F16, [64, 2, 64].map(Into::into));
            let (keys, values) = (b.state("keys", pool.clone()), b.state("values", pool));
            let rope = Attrs::new().with("style", "half").with("scale", 1.0);
            let tq = b.jet(&ROPE, rope.clone(), &[q, positions, frequencies]).unwrap();
            let tk = b.jet(&ROPE, rope, &[k, positions, frequencies]).unwrap();
            let new_keys = b.jet(&KV_CACHE, Attrs::new(), &[keys, slots, tk]).unwrap();
            let new_values = b.jet(&KV_CACHE, Attrs::new(), &[values, slots, v]).unwrap();
            b.update(keys, new_keys);
            b.update(values, new_values);
            let attrs = Attrs::new()
                .with("scale", 0.125)
                .with("window", 0usize)
                .with("softcap", 0.0)
                .with("block", 32usize);
            let given = [tq, new_keys, new_values, tables, rows, positions];
            let y = b.jet(&SDPA_PAGED, attrs, &given).unwrap();
            b.output("y", y);
            if seen {
                b.output("turned", tk);
            }
            let graph = b.finish();
            let folds = fold(&graph, &vec![true; graph.nodes.len()], false);
            match folds.attention.get(&4) {
                Some(store) if !seen => {
                    assert_eq!((store.q, store.k, store.v), (q, k, v));
                    assert_eq!(store.turned, [tq, tk]);
                    assert_eq!(folds.gone, HashSet::from([0, 1, 2, 3]));
                }
                found => assert!(seen && found.is_none()),
            }
        }
    }
}
