//! The passes between a model's graph and a backend, in one readable list.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use cyb_interp::evaluate_node;
use cyb_ir::{
    Applied, Atom, Fact, Graph, IrError, Node, NodeId, Op, Outcome, Patch, Read, Rule, Source, Tap,
    Value, ValueId, apply_rules, expand, match_jet, verify,
};
use cyb_jets::JETS;
use cyb_tensor::Bindings;

use crate::{Backend, fuse, fuse_codes};

/// Results larger than this are computed in each run instead of being kept.
const FOLD_LIMIT_BYTES: usize = 1 << 20;

/// What the passes did.
#[derive(Debug, Default)]
pub struct Passes {
    pub applied: Vec<Applied>,
}

/// Rewrites `graph` for backends. A `foreign` graph is spelled in small operations and is searched
/// for jets; a model family's graph already says its jets.
pub fn optimize(
    graph: Graph,
    backends: &[Arc<dyn Backend>],
    foreign: bool,
) -> Result<(Graph, Passes), IrError> {
    let mut log = Passes::default();
    // One spelling for views: a jet that is a single atom becomes that atom.
    let single = SingleAtoms::default();
    let mut graph = expand(&graph, &|node| !single.is_one(&graph, node))?;
    if foreign {
        graph = run(graph, &recognition(), &mut log)?;
    }
    // After recognition, so that a jet's constants are still where its definition has them.
    graph = run(graph, &[folding()], &mut log)?;
    let known = fuse_codes::Known::default();
    graph = run(graph, &fuse_codes::rules(backends, &known), &mut log)?;
    // Last, since it takes whole jets.
    for rules in fuse::stages(backends) {
        graph = run(graph, &rules, &mut log)?;
    }
    copy_outputs(&mut graph);
    Ok((graph, log))
}

/// Makes outputs that are inputs or constants, since passes left nothing between, copies of them.
fn copy_outputs(graph: &mut Graph) {
    for i in 0..graph.outputs.len() {
        let from = graph.outputs[i].1;
        let value = graph.value(from).clone();
        if matches!(value.source, Source::Node(..)) {
            continue;
        }
        let (node, copy) = (NodeId(graph.nodes.len() as u32), ValueId(graph.values.len() as u32));
        graph.nodes.push(Node {
            op: Op::Atom(Atom::Read(Read::Reshape(value.fact.shape.clone()))),
            inputs: vec![from],
            outputs: vec![copy],
            label: graph.outputs[i].0.clone(),
            backend_hint: None,
        });
        graph.values.push(Value { fact: value.fact, source: Source::Node(node, 0) });
        graph.outputs[i].1 = copy;
    }
}

fn run(graph: Graph, rules: &[Rule<'_>], log: &mut Passes) -> Result<Graph, IrError> {
    let (graph, applied) = apply_rules(graph, rules)?;
    log.applied.extend(applied);
    if cfg!(debug_assertions) {
        verify(&graph)?;
    }
    Ok(graph)
}

/// Which calls are single atoms; layers repeat each other's calls.
#[derive(Default)]
struct SingleAtoms(RefCell<HashMap<(Op, Vec<Fact>), bool>>);

impl SingleAtoms {
    fn is_one(&self, graph: &Graph, node: &Node) -> bool {
        let Op::Jet(jet, attrs) = &node.op else { return false };
        // A jet that overwrites a state stays what it is: the atom would write to a copy.
        if !jet.in_place.is_empty() {
            return false;
        }
        let facts: Vec<Fact> = node.inputs.iter().map(|&v| graph.fact(v).clone()).collect();
        let mut known = self.0.borrow_mut();
        *known.entry((node.op.clone(), facts)).or_insert_with_key(|(_, facts)| {
            jet.instantiate(facts, attrs).is_ok_and(|g| g.nodes.len() <= 1)
        })
    }
}

/// One rule per jet, the largest definition first, so that a jet is not hidden by one of its parts.
fn recognition() -> Vec<Rule<'static>> {
    let size = |jet: &cyb_ir::Jet| {
        let signature = (jet.signatures)().into_iter().next();
        let graph = signature.and_then(|s| jet.instantiate(&s.inputs, &s.attrs).ok());
        // A match is of one value, which does not make the other outputs of a jet.
        graph.filter(|g| g.outputs.len() == 1).map_or(0, |g| g.nodes.len())
    };
    let mut jets: Vec<_> = JETS.iter().copied().filter(|jet| size(jet) > 1).collect();
    jets.sort_by_key(|jet| std::cmp::Reverse(size(jet)));
    let rule = |jet: &'static cyb_ir::Jet| Rule {
        name: jet.name,
        apply: Box::new(move |graph, id| recognize(graph, id, jet)),
    };
    jets.into_iter().map(rule).collect()
}

fn recognize(graph: &Graph, id: NodeId, jet: &'static cyb_ir::Jet) -> Outcome {
    let node = graph.node(id);
    if matches!(node.op, Op::Jet(..)) {
        return Outcome::NoMatch;
    }
    let root = node.outputs[0];
    match match_jet(graph, root, jet) {
        Ok(None) => Outcome::NoMatch,
        Ok(Some(found)) => {
            let mut patch = Patch::new();
            let inputs = found.inputs.iter().map(|&v| Tap::Old(v)).collect();
            let call = patch.push(Op::Jet(jet, found.attrs), inputs);
            patch.shunt(root, Tap::New(call, 0));
            Outcome::Rewrite(patch)
        }
        Err(why) => Outcome::Rejected(why.to_string()),
    }
}

/// Computes what depends on constants only. Weights are left in their own format.
fn folding() -> Rule<'static> {
    Rule { name: "fold", apply: Box::new(fold) }
}

fn fold(graph: &Graph, id: NodeId) -> Outcome {
    let node = graph.node(id);
    let constant = |v: &cyb_ir::ValueId| match &graph.value(*v).source {
        Source::Const(tensor) => Some(tensor.clone()),
        _ => None,
    };
    let Some(inputs) = node.inputs.iter().map(constant).collect::<Option<Vec<_>>>() else {
        return Outcome::NoMatch;
    };
    let size = |fact: &Fact| {
        let shape: Option<Vec<usize>> = fact.shape.iter().map(|d| d.known()).collect();
        cyb_tensor::byte_len(fact.dtype, &shape?).ok()
    };
    let sizes: Option<usize> = node.outputs.iter().map(|&v| size(graph.fact(v))).sum();
    if sizes.is_none_or(|n| n > FOLD_LIMIT_BYTES) {
        return Outcome::NoEffect;
    }
    match evaluate_node(&node.op, &inputs, &Bindings::new()) {
        Ok(outputs) => {
            let mut patch = Patch::new();
            for (&old, new) in node.outputs.iter().zip(outputs) {
                patch.shunt(old, Tap::Const(new));
            }
            Outcome::Rewrite(patch)
        }
        Err(why) => Outcome::Rejected(why.to_string()),
    }
}
