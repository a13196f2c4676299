//! Whole graphs: scans, symbols, states, sizes, and random chains of atoms.

use std::collections::BTreeMap;

use cyb_ir::{Builder, Fact, Graph, IrError, ValueId};
use cyb_tensor::Dim;
use proptest::prelude::*;

use super::*;
use crate::{Prepared, evaluate};

/// (sum, x) -> (sum + x, sum * 2)
fn running_sum(width: Dim) -> Graph {
    let mut b = Builder::new();
    let fact = Fact::new(DType::F32, [width]);
    let (sum, x) = (b.input("sum", fact.clone()), b.input("x", fact));
    let next = b.add(sum, x).unwrap();
    let twice = b.scale(sum, 2.0).unwrap();
    b.output("sum", next);
    b.output("twice", twice);
    b.finish()
}

#[test]
fn scans_carry_their_state() {
    let scan = Slide::Scan { states: 1, body: running_sum(2.into()).into() };
    let op = Op::Atom(Atom::Slide(scan));
    let start = f32s(&[2], &[0.0, 100.0]);
    let x = f32s(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let out = evaluate_node(&op, &[start.clone(), x], &Bindings::new()).unwrap();
    assert_f32(&out[0], &[9.0, 112.0]);
    assert_eq!(out[1].shape(), [3, 2]);
    assert_f32(&out[1], &[0.0, 200.0, 2.0, 204.0, 8.0, 212.0]);
    let out = evaluate_node(&op, &[start, f32s(&[0, 2], &[])], &Bindings::new()).unwrap();
    assert_f32(&out[0], &[0.0, 100.0]);
    assert_eq!(out[1].shape(), [0, 2]);
}

#[test]
fn attributes_take_their_symbols_from_the_bindings() {
    let bindings = Bindings::from([("P".into(), 1), ("N".into(), 2)]);
    let (p, n) = (Dim::symbol("P"), Dim::symbol("N"));
    let x = f32s(&[3, 2], &[0., 1., 2., 3., 4., 5.]);
    let op = |read| Op::Atom(Atom::Read(read));
    let slice = op(Read::Slice { axis: 0, start: p.clone(), len: n.clone(), step: 1 });
    assert_f32(
        &evaluate_node(&slice, std::slice::from_ref(&x), &bindings).unwrap()[0],
        &[2., 3., 4., 5.],
    );
    let wide = op(Read::Broadcast(vec![n.clone(), 3.into(), n.clone()]));
    assert_eq!(
        evaluate_node(&wide, std::slice::from_ref(&x), &bindings).unwrap()[0].shape(),
        [2, 3, 2]
    );
    let scan = Slide::Scan { states: 1, body: running_sum(n).into() };
    let out = evaluate_node(&Op::Atom(Atom::Slide(scan)), &[f32s(&[2], &[0., 1.]), x], &bindings);
    assert_f32(&out.unwrap()[0], &[6.0, 10.0]);
    let bad = op(Read::Reshape(vec![p, Dim::symbol("N")]));
    let error = evaluate_node(&bad, &[f32s(&[3], &[0.; 3])], &bindings).unwrap_err();
    assert!(matches!(error, InterpError::Ir(IrError::Operand { .. })), "{error}");
}

/// y = scale * x; pool[slots] = y; both symbolic.
fn pooled() -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", Fact::new(DType::F32, [Dim::symbol("S"), 2.into()]));
    let slots = b.input("slots", Fact::new(DType::I64, [Dim::symbol("S")]));
    let pool = b.state("pool", Fact::new(DType::F32, [Dim::symbol("P"), 2.into()]));
    b.set_label("blk.0");
    let y = b.scale(x, 10.0).unwrap();
    let new = b.scatter(pool, 0, Scatter::Set, slots, y).unwrap();
    let total = b.sum(new, &[0, 1]).unwrap();
    b.output("y", y);
    b.output("total", total);
    b.update(pool, new);
    b.finish()
}

#[test]
fn graphs_bind_symbols_and_update_states() {
    let graph = pooled();
    let x = f32s(&[1, 2], &[1.0, 2.0]);
    let inputs = |x: Tensor, slots: Tensor| {
        BTreeMap::from([("x".to_owned(), x), ("slots".to_owned(), slots)])
    };
    let fresh = || BTreeMap::from([("pool".to_owned(), f32s(&[3, 2], &[0.0; 6]))]);
    let mut states = fresh();
    let out = evaluate(&graph, &inputs(x.clone(), i64s(&[1])), &mut states).unwrap();
    assert_f32(&out["y"], &[10.0, 20.0]);
    assert_f32(&out["total"], &[30.0]);
    assert_f32(&states["pool"], &[0.0, 0.0, 10.0, 20.0, 0.0, 0.0]);
    let prepared = Prepared::new(&graph).unwrap();
    let two = inputs(f32s(&[2, 2], &[1.0; 4]), i64s(&[0, 2]));
    let out = prepared.run(&Bindings::new(), &two, &mut states).unwrap();
    assert_f32(&out["total"], &[70.0]);

    let error = |inputs: BTreeMap<String, Tensor>| {
        let mut states = fresh();
        let error = evaluate(&graph, &inputs, &mut states).unwrap_err();
        assert_f32(&states["pool"], &[0.0; 6]);
        error.to_string()
    };
    assert_eq!(error(BTreeMap::new()), "input 'x' is missing: give f32[S, 2]");
    assert_eq!(
        error(inputs(x.clone(), i64s(&[0, 1]))),
        "input 'slots' must be i64[S] (S is 1 from input 'x'), not i64[2]"
    );
    assert_eq!(error(inputs(i64s(&[1]), i64s(&[1]))), "input 'x' must be f32[S, 2], not i64[1]");
    assert_eq!(
        error(inputs(x.clone(), i64s(&[7]))),
        "blk.0 write: index 7 is outside 0..3, axis 0"
    );
    let mut more = inputs(x.clone(), i64s(&[1]));
    more.insert("z".to_owned(), x.clone());
    assert_eq!(error(more), "input 'z' is unknown: the graph takes x, slots");
    let mut none = BTreeMap::new();
    let missing = evaluate(&graph, &inputs(x, i64s(&[1])), &mut none).unwrap_err();
    assert_eq!(missing.to_string(), "state 'pool' is missing: give f32[P, 2]");
}

#[test]
fn sizes_are_checked_when_they_are_known() {
    let mut b = Builder::new();
    let x = b.input("x", Fact::new(DType::F32, [Dim::symbol("S")]));
    let y = b.reshape(x, [Dim::symbol("T"), 2.into()]).unwrap();
    b.output("y", y);
    let prepared = Prepared::new(&b.finish()).unwrap();
    let run = |t: usize| {
        let inputs = BTreeMap::from([("x".to_owned(), f32s(&[6], &[0.0; 6]))]);
        prepared.run(&Bindings::from([("T".into(), t)]), &inputs, &mut BTreeMap::new())
    };
    assert_eq!(run(3).unwrap()["y"].shape(), [3, 2]);
    assert!(
        run(4).unwrap_err().to_string().contains("[6] does not hold as many elements as [4, 2]")
    );
    assert!(run(usize::MAX / 2).is_err());
    let mut b = Builder::new();
    let n = b.iota(Dim::symbol("N"));
    let huge = b.broadcast(n, [Dim::symbol("N"), Dim::symbol("N")]).unwrap();
    let huge = b.sum(huge, &[0, 1]).unwrap();
    b.output("y", huge);
    let prepared = Prepared::new(&b.finish()).unwrap();
    let bindings = Bindings::from([("N".into(), 1 << 40)]);
    let error = prepared.run(&bindings, &BTreeMap::new(), &mut BTreeMap::new()).unwrap_err();
    assert!(error.to_string().contains("more elements than can be counted"), "{error}");
    assert!(matches!(
        prepared.run(&Bindings::new(), &BTreeMap::new(), &mut BTreeMap::new()),
        Err(InterpError::Dim(_))
    ));
}

#[test]
fn a_matrix_product_takes_no_memory_of_its_size() {
    // Only one row of the 2^44 products is read; all of them would take 2^46 bytes.
    let (t, n, k) = (1usize << 12, 1usize << 12, 1usize << 20);
    let mut b = Builder::new();
    let x = b.input("x", Fact::new(DType::F32, [1.into(), 1.into(), 1.into()]));
    let wide = b.broadcast(x, [t.into(), n.into(), k.into()]).unwrap();
    let product = b.mul(wide, x).unwrap();
    let few = b.slice(product, 0, 0, 1).unwrap();
    let few = b.slice(few, 1, 0, 1).unwrap();
    let sum = b.sum(few, &[2]).unwrap();
    b.output("y", sum);
    let inputs = BTreeMap::from([("x".to_owned(), f32s(&[1, 1, 1], &[3.0]))]);
    let out = evaluate(&b.finish(), &inputs, &mut BTreeMap::new()).unwrap();
    assert_f32(&out["y"], &[9.0 * k as f32]);
}

#[test]
fn long_chains_of_expressions_are_bounded() {
    let mut b = Builder::new();
    let x = b.input("x", Fact::new(DType::F32, [700.into()]));
    let mut y = x;
    for i in 0..1000 {
        y = b.offset(y, i as f64).unwrap();
    }
    b.output("y", y);
    let inputs = BTreeMap::from([("x".to_owned(), f32s(&[700], &[1.0; 700]))]);
    let out = evaluate(&b.finish(), &inputs, &mut BTreeMap::new()).unwrap();
    assert_f32(&out["y"], &[499_501.0; 700]);
}

/// Equal bits; of floats, equal values or both NaN.
fn assert_same(got: &Tensor, want: &Tensor, what: &str) {
    assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()), "{what}");
    let bytes = |t: &Tensor| match t.dtype() {
        // Exact, and it makes every NaN the same.
        DType::F16 | DType::F32 | DType::F64 => one(cast(DType::F64), &[t])
            .to_vec::<f64>(DType::F64)
            .unwrap()
            .into_iter()
            .map(|x| if x.is_nan() { i64::MAX } else { (x + 0.0).to_bits() as i64 })
            .collect(),
        _ => one(cast(DType::I64), &[t]).to_vec::<i64>(DType::I64).unwrap(),
    };
    assert_eq!(bytes(got), bytes(want), "{what}");
}

#[test]
fn random_chains_equal_numpy() {
    let arrays = cyb_formats::npz::read(&cyb_testkit::golden("atoms.npz")).unwrap();
    let mut cases = 0;
    for i in 0.. {
        let Some(text) = arrays.get(&format!("{i}.graph")) else { break };
        let text = String::from_utf8(text.bytes().as_slice().to_vec()).unwrap();
        let mut graph = cyb_ir::parse(&text, &|_| None, &|_| None).unwrap();
        let named = |kind: &str| -> BTreeMap<String, Tensor> {
            let prefix = format!("{i}.{kind}.");
            let of = |(name, t): (&String, &Tensor)| {
                Some((name.strip_prefix(&prefix)?.to_owned(), t.clone()))
            };
            arrays.iter().filter_map(of).collect()
        };
        let (inputs, wanted) = (named("in"), named("out"));
        let out = evaluate(&graph, &inputs, &mut BTreeMap::new()).unwrap();
        for (name, want) in &wanted {
            assert_same(&out[name], want, &format!("case {i}, %{name} of\n{text}"));
        }
        // With one output the steps before it are read once, so they stay expressions.
        let last = graph.outputs.split_off(graph.outputs.len() - 1);
        graph.outputs = last;
        let name = graph.outputs[0].0.to_string();
        let out = evaluate(&graph, &inputs, &mut BTreeMap::new()).unwrap();
        assert_same(&out[&name], &wanted[&name], &format!("case {i}, only %{name} of\n{text}"));
        cases += 1;
    }
    assert_eq!(cases, 120);
}

/// A view of a graph value, from numbers that are made to fit its shape.
fn push_view(b: &mut Builder, v: ValueId, choice: (u8, usize, usize, bool)) -> ValueId {
    let (kind, p, q, flip) = choice;
    let shape: Vec<usize> = b.shape(v).iter().map(|d| d.known().unwrap()).collect();
    let rank = shape.len();
    match kind {
        _ if rank == 0 => b.broadcast(v, [(1 + p % 3).into()]).unwrap(),
        0 => {
            let mut perm: Vec<usize> = (0..rank).collect();
            perm.rotate_left(p % rank);
            perm.swap(0, q % rank);
            b.permute(v, &perm).unwrap()
        }
        1 => {
            let axis = p % rank;
            let have = shape[axis];
            let step = 1 + q % 2;
            let len = have.div_ceil(step);
            let start = if flip && have > 0 { (len - 1) * step } else { 0 };
            b.strided(v, axis, start, len, if flip { -(step as i64) } else { step as i64 }).unwrap()
        }
        2 => {
            let elems: usize = shape.iter().product();
            let first = (1..=4).rev().find(|n| elems.is_multiple_of(*n)).unwrap_or(1);
            b.reshape(v, [first.into(), (elems / first).into()]).unwrap()
        }
        3 if rank < 5 => {
            let mut wide = shape.clone();
            wide.insert(0, 1 + p % 2);
            b.broadcast(v, wide.into_iter().map(Dim::from)).unwrap()
        }
        4 if rank < 5 && shape[p % rank] >= 2 => b.window(v, p % rank, 2, 1 + q % 2, 1).unwrap(),
        5 if rank < 5 => b.unsqueeze(v, p % (rank + 1)).unwrap(),
        _ => v,
    }
}

proptest! {
    /// A chain of views of an expression gives what its steps give one by one, each on a
    /// contiguous tensor.
    #[test]
    fn chains_of_views_equal_their_steps(
        choices in prop::collection::vec((0u8..6, 0usize..6, 0usize..6, any::<bool>()), 1..8),
        shape in prop::collection::vec(0usize..5, 1..4),
    ) {
        let elems: usize = shape.iter().product();
        let x = f32s(&shape, &(0..elems).map(|i| i as f32).collect::<Vec<_>>());
        let mut b = Builder::new();
        let input = b.input("x", Fact::of(&x));
        let mut v = b.offset(input, 0.5).unwrap();
        let mut step = one(Atom::Add, &[&x, &f32s(&[], &[0.5])]);
        for choice in choices {
            let (nodes, before) = (b.graph().nodes.len(), v);
            v = push_view(&mut b, v, choice);
            if b.graph().nodes.len() > nodes {
                let op = b.graph().nodes[nodes].op.clone();
                step = evaluate_node(&op, &[step], &Bindings::new()).unwrap().remove(0);
            } else {
                prop_assert_eq!(v, before);
            }
        }
        let sum = b.sum(v, &[0]).unwrap();
        b.output("view", v);
        b.output("sum", sum);
        let inputs = BTreeMap::from([("x".to_owned(), x)]);
        let out = evaluate(&b.finish(), &inputs, &mut BTreeMap::new()).unwrap();
        prop_assert_eq!(out["view"].shape(), step.shape());
        prop_assert_eq!(out["view"].to_f32_vec().unwrap(), step.to_f32_vec().unwrap());
        let sum = one(reduced(Reduce::Sum, &[0]), &[&step]);
        prop_assert_eq!(out["sum"].to_f32_vec().unwrap(), sum.to_f32_vec().unwrap());
    }

    /// A matrix product of random sizes against three loops.
    #[test]
    fn matrix_products_equal_three_loops(t in 0usize..5, n in 0usize..5, k in 0usize..70) {
        let x: Vec<f32> = (0..t * k).map(|i| ((i * 37 + 11) % 101) as f32 - 50.0).collect();
        let w: Vec<f32> = (0..n * k).map(|i| ((i * 53 + 7) % 103) as f32 * 0.37).collect();
        let mut b = Builder::new();
        let xv = b.input("x", Fact::new(DType::F32, [t.into(), 1.into(), k.into()]));
        let wv = b.input("w", Fact::new(DType::F32, [n.into(), k.into()]));
        let product = b.mul(xv, wv).unwrap();
        let y = b.sum(product, &[2]).unwrap();
        b.output("y", y);
        let inputs = BTreeMap::from([
            ("x".to_owned(), f32s(&[t, 1, k], &x)),
            ("w".to_owned(), f32s(&[n, k], &w)),
        ]);
        let out = evaluate(&b.finish(), &inputs, &mut BTreeMap::new()).unwrap();
        for i in 0..t {
            for j in 0..n {
                let want: f64 = (0..k).map(|l| f64::from(x[i * k + l] * w[j * k + l])).sum();
                prop_assert_eq!(out["y"].to_f32_vec().unwrap()[i * n + j], want as f32);
            }
        }
    }
}
