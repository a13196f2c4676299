//! Fusion of convolutions with what follows them.

use cyb_ir::{Attrs, Graph, Node, NodeId, Op, ValueId};
use cyb_jets::CONV_ACTIVATION;

use crate::fuse::{Fused, jet_node, reads};

/// An activation of a convolution that nothing else reads. `silu` may still be spelled as the
/// product of a value with its sigmoid.
pub(crate) fn activated(graph: &Graph, id: NodeId) -> Option<Fused> {
    let node = graph.node(id);
    let (x, activation) = match *node.inputs.as_slice() {
        [x] => (x, activation_of(node)?),
        [a, b] if node.op.name() == "mul" => (gated(graph, a, b)?, "silu"),
        _ => return None,
    };
    let conv = jet_node(graph, x, "conv")?;
    if reads(graph, x) != node.inputs.len() {
        return None;
    }
    let Op::Jet(_, attrs) = &conv.op else { return None };
    Some(Fused {
        jet: &CONV_ACTIVATION,
        attrs: attrs.clone().with("activation", activation),
        inputs: conv.inputs.clone(),
        outputs: node.outputs.clone(),
    })
}

/// The activation that a node is, by the name `conv_activation` has for it.
fn activation_of(node: &Node) -> Option<&'static str> {
    let Op::Jet(jet, attrs) = &node.op else { return None };
    let form = |attrs: &Attrs| attrs.text("approximate").ok().map(str::to_owned);
    match jet.name {
        "silu" => Some("silu"),
        "relu" => Some("relu"),
        "sigmoid" => Some("sigmoid"),
        "tanh" => Some("tanh"),
        "gelu" => match form(attrs)?.as_str() {
            "none" => Some("gelu"),
            "tanh" => Some("gelu_tanh"),
            _ => None,
        },
        _ => None,
    }
}

/// `x` of `x * sigmoid(x)`, where nothing else reads the sigmoid.
fn gated(graph: &Graph, a: ValueId, b: ValueId) -> Option<ValueId> {
    [(a, b), (b, a)].into_iter().find_map(|(x, s)| {
        let sigmoid = jet_node(graph, s, "sigmoid")?;
        (sigmoid.inputs == [x] && reads(graph, s) == 1).then_some(x)
    })
}
