//! Fusion: fewer, larger steps, where a backend has a kernel for the fused jet.

use std::sync::Arc;

use cyb_ir::{Attrs, Graph, Jet, Node, NodeId, Op, Outcome, Patch, Rule, Source, Tap, ValueId};
use cyb_jets::{GATED_LINEAR, LINEAR_ADD, LINEAR_MANY};

use crate::fuse_conv::Activated;
use crate::{Backend, Call, fuse_conv};

/// Two sets of rules, for backends of which one must have the kernel. The second begins where the
/// first ends: a gated product comes before residuals, of which it may take one as well.
pub(crate) fn stages(backends: &[Arc<dyn Backend>]) -> [Vec<Rule<'_>>; 2] {
    let rule = |name, apply: fn(&Graph, NodeId) -> Option<Fused>| Rule {
        name,
        apply: Box::new(move |graph: &Graph, id| match apply(graph, id) {
            None => Outcome::NoMatch,
            Some(fused) => fused.patch(graph, backends),
        }),
    };
    let activated = Rule {
        name: "activation",
        apply: Box::new(|graph, id| match fuse_conv::activated(graph, id) {
            Activated::No => Outcome::NoMatch,
            Activated::Nearly(why) => Outcome::Rejected(why.to_owned()),
            Activated::Yes { fused, of } => {
                // The pair may not end on another backend than its parts would.
                let first =
                    |call: &Call<'_>| backends.iter().position(|b| b.kernel(call).is_some());
                let parts = [graph.node(id), of].map(|node| first(&Call::of(graph, node)));
                let whole = first(&fused.call(graph, &fused.op()));
                match whole {
                    Some(at) if parts.into_iter().flatten().any(|part| part < at) => {
                        let why = "the backend of the two has no kernel for both at once";
                        Outcome::Rejected(why.to_owned())
                    }
                    _ => fused.patch(graph, backends),
                }
            }
        }),
    };
    [
        vec![
            Rule { name: "scaled convolution", apply: Box::new(fuse_conv::scaled) },
            // Before other rules take an activation away.
            activated,
            rule("convolution and residual", fuse_conv::added),
            rule("convolution of an activation", fuse_conv::bent),
            rule("gated product", gated),
        ],
        vec![rule("product and residual", residual), rule("products of one input", shared_input)],
    ]
}

/// A call that replaces the outputs of others.
pub(crate) struct Fused {
    pub(crate) jet: &'static Jet,
    pub(crate) attrs: Attrs,
    pub(crate) inputs: Vec<ValueId>,
    /// The value each output replaces.
    pub(crate) outputs: Vec<ValueId>,
}

impl Fused {
    fn op(&self) -> Op {
        Op::Jet(self.jet, self.attrs.clone())
    }

    fn call<'g>(&self, graph: &'g Graph, op: &'g Op) -> Call<'g> {
        Call {
            op,
            inputs: self.inputs.iter().map(|&v| graph.fact(v)).collect(),
            outputs: self.outputs.iter().map(|&v| graph.fact(v)).collect(),
            fixed: self.inputs.iter().map(|&v| graph.tensor(v).is_some()).collect(),
        }
    }

    fn patch(self, graph: &Graph, backends: &[Arc<dyn Backend>]) -> Outcome {
        let op = self.op();
        let call = self.call(graph, &op);
        if !backends.iter().any(|b| b.kernel(&call).is_some()) {
            return Outcome::Rejected(format!("no backend has a kernel for {}", op.name()));
        }
        let mut patch = Patch::new();
        let number = patch.push(op, self.inputs.into_iter().map(Tap::Old).collect());
        for (i, old) in self.outputs.into_iter().enumerate() {
            patch.shunt(old, Tap::New(number, i));
        }
        Outcome::Rewrite(patch)
    }
}

pub(crate) fn jet_node<'g>(graph: &'g Graph, v: ValueId, name: &str) -> Option<&'g Node> {
    graph.producer(v).filter(|node| node.op.name() == name && matches!(node.op, Op::Jet(..)))
}

/// Whether the weights of a product lie the other way round.
fn is_turned(node: &Node) -> bool {
    matches!(&node.op, Op::Jet(_, attrs) if attrs.flag("turned").unwrap_or(false))
}

/// How often nodes, outputs and updates read the value.
pub(crate) fn reads(graph: &Graph, v: ValueId) -> usize {
    let by_nodes = graph.nodes.iter().flat_map(|n| &n.inputs).filter(|&&i| i == v).count();
    let kept = graph.outputs.iter().filter(|(_, o)| *o == v).count()
        + graph.updates.iter().filter(|(_, new)| *new == v).count();
    by_nodes + kept
}

/// Whether nothing but one node reads the value.
fn read_once(graph: &Graph, v: ValueId) -> bool {
    let kept = graph.outputs.iter().any(|(_, o)| *o == v)
        || graph.updates.iter().any(|(_, new)| *new == v);
    reads(graph, v) == 1 && !kept
}

/// `linear(swiglu(gate, up), w)`, or with `geglu`.
fn gated(graph: &Graph, id: NodeId) -> Option<Fused> {
    let node = graph.node(id);
    let [x, w] = *node.inputs.as_slice() else { return None };
    if node.op.name() != "linear" || is_turned(node) || !read_once(graph, x) {
        return None;
    }
    let (inputs, activation) = match jet_node(graph, x, "swiglu") {
        Some(gate) => (&gate.inputs, "silu".to_owned()),
        None => {
            let gate = jet_node(graph, x, "geglu")?;
            let Op::Jet(_, attrs) = &gate.op else { return None };
            (&gate.inputs, attrs.text("approximate").ok()?.to_owned())
        }
    };
    Some(Fused {
        jet: &GATED_LINEAR,
        attrs: Attrs::new().with("activation", activation.as_str()),
        inputs: vec![inputs[0], inputs[1], w],
        outputs: node.outputs.clone(),
    })
}

/// `residual + linear(x, w)`, or the sum with a gated product.
fn residual(graph: &Graph, id: NodeId) -> Option<Fused> {
    let node = graph.node(id);
    let [a, b] = *node.inputs.as_slice() else { return None };
    if node.op.name() != "add" {
        return None;
    }
    [(a, b), (b, a)].into_iter().find_map(|(kept, product)| {
        let same = graph.fact(kept) == graph.fact(product);
        if !same || !read_once(graph, product) {
            return None;
        }
        let (jet, source) = match jet_node(graph, product, "linear") {
            Some(source) if source.inputs.len() == 2 => (&LINEAR_ADD, source),
            Some(_) => return None,
            None => (&GATED_LINEAR, jet_node(graph, product, "gated_linear")?),
        };
        let Op::Jet(_, attrs) = &source.op else { return None };
        if jet == &GATED_LINEAR && source.inputs.len() != 3 {
            return None;
        }
        let inputs = source.inputs.iter().copied().chain([kept]).collect();
        Some(Fused { jet, attrs: attrs.clone(), inputs, outputs: node.outputs.clone() })
    })
}

/// Several `linear`s of one input, all with biases or all without. The first of them speaks for
/// all.
fn shared_input(graph: &Graph, id: NodeId) -> Option<Fused> {
    let node = graph.node(id);
    if node.op.name() != "linear" {
        return None;
    }
    let (x, arity) = (node.inputs[0], node.inputs.len());
    let fixed = |v: &ValueId| matches!(graph.value(*v).source, Source::Weight(..));
    let family: Vec<&Node> = graph
        .nodes
        .iter()
        .filter(|n| {
            n.op.name() == "linear"
                && n.inputs[0] == x
                && n.inputs.len() == arity
                && is_turned(n) == is_turned(node)
                && n.inputs[1..].iter().all(fixed)
        })
        .collect();
    if family.len() < 2 || family[0].outputs != node.outputs {
        return None;
    }
    let column = |i: usize| family.iter().map(move |n| n.inputs[i]);
    let mut inputs = vec![x];
    inputs.extend(column(1));
    if arity == 3 {
        inputs.extend(column(2));
    }
    Some(Fused {
        jet: &LINEAR_MANY,
        attrs: Attrs::new().with("bias", arity == 3).with("turned", is_turned(node)),
        inputs,
        outputs: family.iter().map(|n| n.outputs[0]).collect(),
    })
}
