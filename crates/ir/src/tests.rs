use cyb_tensor::{DType, Dim, Tensor};

use crate::*;

fn define_silu(b: &mut Builder, inputs: &[ValueId], _: &Attrs) -> Result<Vec<ValueId>, IrError> {
    let minus = b.neg(inputs[0])?;
    let e = b.exp(Exp::Exp, minus)?;
    let below = b.offset(e, 1.0)?;
    let sigmoid = b.exp(Exp::Recip, below)?;
    Ok(vec![b.mul(inputs[0], sigmoid)?])
}

fn define_norm(
    b: &mut Builder,
    inputs: &[ValueId],
    attrs: &Attrs,
) -> Result<Vec<ValueId>, IrError> {
    let x = inputs[0];
    let square = b.mul(x, x)?;
    let sum = b.reduce_last(Reduce::Sum, square)?;
    let eps = b.attr_scalar(attrs, "eps", DType::F32)?;
    let below = b.add(sum, eps)?;
    let scale = b.exp(Exp::Rsqrt, below)?;
    Ok(vec![b.mul(x, scale)?])
}

fn rows() -> Fact {
    Fact::new(DType::F32, [Dim::symbol("a"), Dim::symbol("b")])
}

static SILU: Jet = Jet {
    name: "silu",
    summary: "x * sigmoid(x)",
    define: define_silu,
    signatures: || vec![Signature { inputs: vec![rows()], attrs: Attrs::new() }],
    cases: Vec::new,
    tolerance: Tolerance { absolute: 0.0, relative: 1e-6 },
    in_place: &[],
};

static NORM: Jet = Jet {
    name: "norm",
    summary: "x over its length",
    define: define_norm,
    signatures: || {
        vec![Signature { inputs: vec![rows()], attrs: Attrs::new().with("eps", Attr::Hole) }]
    },
    cases: Vec::new,
    tolerance: Tolerance { absolute: 0.0, relative: 1e-6 },
    in_place: &[],
};

fn lookup(name: &str) -> Option<&'static Jet> {
    [&SILU, &NORM].into_iter().find(|j| j.name == name)
}

/// A graph with a leaf of every kind, a jet, a state update and symbolic shapes.
fn sample() -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", Fact::new(DType::F32, [Dim::symbol("S"), 6.into()]));
    let w = b.weight("w \"quoted\"", Tensor::from_f32(vec![6], &[1., 2., 3., 4., 5., 6.]).unwrap());
    let pool = b.state("pool", Fact::new(DType::F32, [32.into(), 6.into()]));
    b.set_label("blk.0");
    let normed = b.jet(&NORM, Attrs::new().with("eps", 1e-5), &[x]).unwrap();
    let y = b.mul(normed, w).unwrap();
    let slots = b.iota(Dim::symbol("S"));
    let new = b.scatter(pool, 0, Scatter::Set, slots, y).unwrap();
    let half = b.slice(new, 0, Dim::symbol("S") * 2.into(), 3).unwrap();
    let z = b.jet(&SILU, Attrs::new(), &[half]).unwrap();
    let flat = b.reshape(y, [Dim::symbol("S") * 6.into()]).unwrap();
    b.output("z", z);
    b.output("flat", flat);
    b.update(pool, new);
    b.finish()
}

#[test]
fn printed_graphs_parse_back() {
    let graph = sample();
    verify(&graph).unwrap();
    let text = print(&graph);
    let w = graph.tensor(ValueId(1)).unwrap().clone();
    let back = parse(&text, &lookup, &|_| Some(w.clone())).unwrap();
    assert_eq!(print(&back), text);
    verify(&back).unwrap();
    let error = parse("%0 = input \"x\" : f32[S]\n%1 = mul(%0, %7) : f32[S]", &lookup, &|_| None);
    assert_eq!(error.unwrap_err().to_string(), "line 2: %7 is not defined");
}

#[test]
fn equal_expressions_are_one_value() {
    let mut b = Builder::new();
    let x = b.input("x", rows());
    let (p, q) = (b.scale(x, 2.0).unwrap(), b.scale(x, 2.0).unwrap());
    assert_eq!(p, q);
}

#[test]
fn shape_errors_name_the_facts() {
    let mut b = Builder::new();
    let x = b.input("x", Fact::new(DType::F32, [3.into(), 4.into()]));
    let y = b.input("y", Fact::new(DType::F32, [5.into()]));
    let error = b.add(x, y).unwrap_err().to_string();
    assert_eq!(error, "add cannot take f32[3, 4], f32[5]: 4 and 5 do not broadcast");
    assert!(b.reshape(x, [13.into()]).is_err());
    assert!(b.permute(x, &[0, 0]).is_err());
    assert!(b.window(x, 1, 0, 1, 1).is_err());
}

#[test]
fn formula_hash_ignores_names_and_order_but_not_bits() {
    let build = |swap: bool, eps: f64, name: &str| {
        let mut b = Builder::new();
        let x = b.input(name, rows());
        let y = b.input("other", rows());
        let eps = b.scalar(DType::F32, eps).unwrap();
        let p = if swap { b.mul(y, x) } else { b.mul(x, y) }.unwrap();
        let z = b.add(p, eps).unwrap();
        b.output("z", z);
        formula_hash(&b.finish())
    };
    assert_eq!(build(false, 1e-5, "x"), build(true, 1e-5, "renamed"));
    assert_ne!(build(false, 1e-5, "x"), build(false, 1e-6, "x"));
    assert_ne!(SILU.formula_hash().unwrap(), NORM.formula_hash().unwrap());
}

#[test]
fn expansion_leaves_atoms_with_the_same_facts() {
    let graph = sample();
    let atoms = expand(&graph, &|_| false).unwrap();
    verify(&atoms).unwrap();
    assert!(atoms.nodes.iter().all(|n| matches!(n.op, Op::Atom(_))));
    assert_eq!(atoms.fact(atoms.output("z").unwrap()), graph.fact(graph.output("z").unwrap()));
}

#[test]
fn jets_are_found_by_their_definition() {
    let mut b = Builder::new();
    let x = b.input("x", Fact::new(DType::F32, [Dim::symbol("S"), 8.into()]));
    let square = b.mul(x, x).unwrap();
    let sum = b.reduce_last(Reduce::Sum, square).unwrap();
    let eps = b.scalar(DType::F32, 0.25).unwrap();
    // The other way round than the definition says it.
    let below = b.add(eps, sum).unwrap();
    let scale = b.exp(Exp::Rsqrt, below).unwrap();
    let y = b.mul(scale, x).unwrap();
    let found = match_jet(b.graph(), y, &NORM).unwrap().unwrap();
    assert_eq!(found.inputs, [x]);
    assert_eq!(found.attrs.float("eps").unwrap(), 0.25);
    assert!(match_jet(b.graph(), y, &SILU).unwrap().is_none());
    assert!(match_jet(b.graph(), scale, &NORM).unwrap().is_none());
}

#[test]
fn rules_rewrite_through_patches() {
    let graph = expand(&sample(), &|_| false).unwrap();
    let rules = [Rule {
        name: "recognize silu",
        apply: Box::new(|graph, id| {
            let root = graph.node(id).outputs[0];
            match match_jet(graph, root, &SILU) {
                Ok(Some(found)) => {
                    let mut patch = Patch::new();
                    let inputs = found.inputs.iter().map(|&v| Tap::Old(v)).collect();
                    let new = patch.push(Op::Jet(&SILU, found.attrs), inputs);
                    patch.shunt(root, Tap::New(new, 0));
                    Outcome::Rewrite(patch)
                }
                _ => Outcome::NoMatch,
            }
        }),
    }];
    let before = graph.nodes.len();
    let (after, log) = apply_rules(graph, &rules).unwrap();
    verify(&after).unwrap();
    assert_eq!(log.len(), 1);
    assert_eq!(after.nodes.iter().filter(|n| n.op.name() == "silu").count(), 1);
    assert!(after.nodes.len() < before, "what the jet replaced is gone");
    assert_eq!(after.updates.len(), 1);
}

#[test]
fn rules_without_a_fixed_point_are_an_error() {
    let mut b = Builder::new();
    let x = b.input("x", rows());
    let y = b.exp(Exp::Exp, x).unwrap();
    b.output("y", y);
    let flip = Rule {
        name: "flip",
        apply: Box::new(|graph, id| {
            let node = graph.node(id);
            let kind = match node.op {
                Op::Atom(Atom::Exp(Exp::Exp)) => Exp::Ln,
                _ => Exp::Exp,
            };
            let mut patch = Patch::new();
            let new = patch.push(Op::Atom(Atom::Exp(kind)), vec![Tap::Old(node.inputs[0])]);
            patch.shunt(node.outputs[0], Tap::New(new, 0));
            Outcome::Rewrite(patch)
        }),
    };
    let error = apply_rules(b.finish(), &[flip]).unwrap_err().to_string();
    assert!(error.contains("flip"), "{error}");
}
