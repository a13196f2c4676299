//! Fusion of convolutions, and of products with their activations, with what follows them.

use cyb_ir::{Atom, Attrs, Cmp, Graph, Jet, Node, NodeId, Op, Outcome, Patch, Tap, ValueId};
use cyb_jets::{CONV, CONV_ACTIVATION, CONV_ADD, LINEAR_ACTIVATION};
use cyb_tensor::{DType, Tensor};

use crate::fuse::{Fused, jet_node, reads};

/// A convolution without an activation after it, and its attributes.
fn bare(graph: &Graph, v: ValueId) -> Option<(&Node, &Attrs)> {
    let node = graph.producer(v)?;
    let Op::Jet(jet, attrs) = &node.op else { return None };
    let bare = match jet.name {
        "conv" => true,
        "conv_activation" | "conv_add" => attrs.text("activation").map_or(true, |a| a == "none"),
        _ => false,
    };
    bare.then_some((node, attrs))
}

/// What [`activated`] finds.
pub(crate) enum Activated<'g> {
    No,
    /// Why it is not one call.
    Nearly(&'static str),
    Yes {
        fused: Fused,
        /// The convolution or product.
        of: &'g Node,
    },
}

/// An activation of a convolution or product that nothing else reads. `silu` may still be spelled as
/// the product of a value with its sigmoid.
pub(crate) fn activated(graph: &Graph, id: NodeId) -> Activated<'_> {
    let node = graph.node(id);
    let Some((x, reads_of_x, activation)) = activation_at(graph, node) else {
        return Activated::No;
    };
    let Some((of, attrs, jet)) = activable(graph, x) else {
        return match graph.producer(x).map(|of| of.op.name()) {
            Some("matmul") => Activated::Nearly("the product is of two activations"),
            Some("linear_add") => Activated::Nearly("a residual is added to the product before"),
            _ => Activated::No,
        };
    };
    if graph.fact(node.outputs[0]) != graph.fact(x) {
        return Activated::Nearly("it has another shape or type than what is before it");
    }
    if reads(graph, x) != reads_of_x {
        return Activated::Nearly("other nodes read what is before it, too");
    }
    let mut attrs = attrs.clone().with("activation", activation);
    if let Op::Jet(_, own) = &node.op
        && let Ok(slope) = own.float("slope")
    {
        attrs = attrs.with("slope", slope);
    }
    let (inputs, outputs) = (of.inputs.clone(), node.outputs.clone());
    Activated::Yes { fused: Fused { jet, attrs, inputs, outputs }, of }
}

/// The value that a node is an activation of, how often the node and its parts read it, and which
/// activation it is.
fn activation_at(graph: &Graph, node: &Node) -> Option<(ValueId, usize, &'static str)> {
    let maximum = Op::Atom(Atom::Cmp(Cmp::Max));
    match *node.inputs.as_slice() {
        [x] => Some((x, 1, activation_of(node)?)),
        [a, b] if node.op.name() == "mul" => Some((gated(graph, a, b)?, 2, "silu")),
        [a, b] if node.op == maximum => Some((rectified(graph, a, b)?, 1, "relu")),
        _ => None,
    }
}

/// A convolution or product without an activation after it, its attributes, and the jet that has one.
fn activable(graph: &Graph, v: ValueId) -> Option<(&Node, &Attrs, &'static Jet)> {
    if let Some(product) = jet_node(graph, v, "linear") {
        let Op::Jet(_, attrs) = &product.op else { return None };
        return Some((product, attrs, &LINEAR_ACTIVATION));
    }
    let (conv, attrs) = bare(graph, v)?;
    let added = conv.op.name() == CONV_ADD.name;
    Some((conv, attrs, if added { &CONV_ADD } else { &CONV_ACTIVATION }))
}

/// The sum of a convolution that nothing else reads and a value of its shape; the convolution may
/// have been added to one such value already.
pub(crate) fn added(graph: &Graph, id: NodeId) -> Option<Fused> {
    let node = graph.node(id);
    let &[a, b] = node.inputs.as_slice() else { return None };
    if node.op != Op::Atom(Atom::Add) {
        return None;
    }
    [(a, b), (b, a)].into_iter().find_map(|(kept, sum)| {
        let (conv, attrs) = bare(graph, sum)?;
        let apart = graph.fact(kept) == graph.fact(sum) && graph.tensor(kept).is_none();
        if !apart || !(3..=4).contains(&conv.inputs.len()) || reads(graph, sum) != 1 {
            return None;
        }
        let kept_attrs = attrs.iter().filter(|(name, _)| *name != "activation");
        let attrs = kept_attrs.fold(Attrs::new(), |all, (name, v)| all.with(name, v.clone()));
        let inputs = conv.inputs.iter().copied().chain([kept]).collect();
        Some(Fused { jet: &CONV_ADD, attrs, inputs, outputs: node.outputs.clone() })
    })
}

/// A convolution of a `leaky_relu` that only convolutions read, unless one before takes that. Each
/// bends what it reads, which costs less than a tensor between them.
pub(crate) fn bent(graph: &Graph, id: NodeId) -> Option<Fused> {
    let node = graph.node(id);
    let Op::Jet(jet, attrs) = &node.op else { return None };
    let (jet, attrs) = match jet.name {
        "conv" => (&CONV_ACTIVATION, attrs.clone().with("activation", "none")),
        "conv_activation" => (&CONV_ACTIVATION, attrs.clone()),
        "conv_add" => (&CONV_ADD, attrs.clone()),
        _ => return None,
    };
    let leaky = jet_node(graph, node.inputs[0], "leaky_relu")?;
    let Op::Jet(_, own) = &leaky.op else { return None };
    let x = leaky.inputs[0];
    let taken = bare(graph, x).is_some() && reads(graph, x) == 1;
    if taken || attrs.get("input_slope").is_some() || !feeds_convolutions(graph, leaky) {
        return None;
    }
    let mut inputs = node.inputs.clone();
    inputs[0] = x;
    let attrs = attrs.with("input_slope", own.float("slope").ok()?);
    Some(Fused { jet, attrs, inputs, outputs: node.outputs.clone() })
}

/// Whether convolutions alone read a node's output, as what they are convolutions of.
fn feeds_convolutions(graph: &Graph, node: &Node) -> bool {
    let v = node.outputs[0];
    let is_conv = |n: &Node| matches!(n.op.name(), "conv" | "conv_activation" | "conv_add");
    let bends = |n: &Node| match &n.op {
        Op::Jet(_, attrs) => is_conv(n) && attrs.get("input_slope").is_none(),
        Op::Atom(_) => false,
    };
    let all = graph.nodes.iter().filter(|n| bends(n) && n.inputs[0] == v).count();
    all > 0 && reads(graph, v) == all
}

/// The activation that a node is, by the name `conv_activation` has for it.
fn activation_of(node: &Node) -> Option<&'static str> {
    let Op::Jet(jet, attrs) = &node.op else { return None };
    let form = |attrs: &Attrs| attrs.text("approximate").ok().map(str::to_owned);
    match jet.name {
        "silu" => Some("silu"),
        "sigmoid" => Some("sigmoid"),
        "tanh" => Some("tanh"),
        "leaky_relu" => Some("leaky_relu"),
        "gelu" => match form(attrs)?.as_str() {
            "none" => Some("gelu"),
            "tanh" => Some("gelu_tanh"),
            "quick" => Some("gelu_quick"),
            _ => None,
        },
        _ => None,
    }
}

/// `x` of `max(x, 0)`, which is how `relu` is spelled once jets of one atom have become that atom.
fn rectified(graph: &Graph, a: ValueId, b: ValueId) -> Option<ValueId> {
    [(a, b), (b, a)].into_iter().find_map(|(x, zero)| {
        let zero = graph.tensor(zero)?;
        (zero.dtype() == DType::F32 && zero.bytes().as_slice().iter().all(|b| *b == 0)).then_some(x)
    })
}

/// `x` of `x * sigmoid(x)`, where nothing else reads the sigmoid.
fn gated(graph: &Graph, a: ValueId, b: ValueId) -> Option<ValueId> {
    [(a, b), (b, a)].into_iter().find_map(|(x, s)| {
        let sigmoid = jet_node(graph, s, "sigmoid")?;
        (sigmoid.inputs == [x] && reads(graph, s) == 1).then_some(x)
    })
}

/// A convolution scaled or shifted by constants for each channel, such as by a batch normalization,
/// as a convolution with another weight and bias.
pub(crate) fn scaled(graph: &Graph, id: NodeId) -> Outcome {
    absorbed(graph, id).map_or(Outcome::NoMatch, Outcome::Rewrite)
}

fn absorbed(graph: &Graph, id: NodeId) -> Option<Patch> {
    let node = graph.node(id);
    let &[a, b] = node.inputs.as_slice() else { return None };
    let is = |name: &str| node.op.name() == name;
    let (y, constant) = match () {
        () if (is("mul") || is("add")) && graph.tensor(b).is_none() => (b, a),
        () if is("mul") || is("add") || is("sub") => (a, b),
        () => return None,
    };
    let conv = jet_node(graph, y, "conv")?;
    let Op::Jet(_, attrs) = &conv.op else { return None };
    if reads(graph, y) != 1 || graph.fact(node.outputs[0]) != graph.fact(y) {
        return None;
    }
    let weight = graph.tensor(conv.inputs[1]).filter(|w| w.dtype() == DType::F32)?;
    let rows = *weight.shape().first()?;
    let factors = per_channel(graph.tensor(constant)?, rows, graph.fact(y).rank())?;
    let bias = match conv.inputs.get(2) {
        Some(&bias) => graph.tensor(bias)?.to_f32_vec().ok()?,
        None => vec![0.0; rows],
    };
    let (mut scaled_weight, mut new_bias) = (Tap::Old(conv.inputs[1]), bias);
    if is("mul") {
        let mut values = weight.to_f32_vec().ok()?;
        let row_len = values.len().checked_div(rows)?;
        for (row, factor) in values.chunks_mut(row_len.max(1)).zip(&factors) {
            row.iter_mut().for_each(|v| *v *= factor);
        }
        let tensor = Tensor::from_f32(weight.shape().to_vec(), &values).ok()?;
        scaled_weight = Tap::Const(tensor);
        new_bias.iter_mut().zip(&factors).for_each(|(b, f)| *b *= f);
    } else {
        let sign = if is("sub") { -1.0 } else { 1.0 };
        new_bias.iter_mut().zip(&factors).for_each(|(b, f)| *b += sign * f);
    }
    let new_bias = Tap::Const(Tensor::from_f32(vec![rows], &new_bias).ok()?);
    let mut patch = Patch::new();
    let inputs = vec![Tap::Old(conv.inputs[0]), scaled_weight, new_bias];
    let number = patch.push(Op::Jet(&CONV, attrs.clone()), inputs);
    patch.shunt(node.outputs[0], Tap::New(number, 0));
    Some(patch)
}

/// A constant that is the same all over each channel of `[N, rows, ...]`, as one value a channel.
fn per_channel(constant: &Tensor, rows: usize, rank: usize) -> Option<Vec<f32>> {
    if constant.dtype() != DType::F32 {
        return None;
    }
    let values = constant.to_f32_vec().ok()?;
    if let [one] = *values.as_slice() {
        return Some(vec![one; rows]);
    }
    let shape = constant.shape();
    let channel = (shape.len() + 1).checked_sub(rank)?;
    let fits = shape.iter().enumerate().all(|(i, &n)| n == if i == channel { rows } else { 1 });
    (fits && values.len() == rows).then_some(values)
}
