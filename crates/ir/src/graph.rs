//! The graph itself: values (edges) with facts, nodes with operations, in topological order.

use std::fmt;
use std::sync::Arc;

use cyb_tensor::{DType, Dim, DimError, Tensor};

use crate::{Atom, Attrs, Jet};

/// Index of a value in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// Index of a node in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl ValueId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// What is known about a value before anything runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fact {
    pub dtype: DType,
    /// Outermost axis first.
    pub shape: Vec<Dim>,
}

impl Fact {
    pub fn new(dtype: DType, shape: impl IntoIterator<Item = Dim>) -> Fact {
        Fact { dtype, shape: shape.into_iter().collect() }
    }

    pub fn of(tensor: &Tensor) -> Fact {
        Fact::new(tensor.dtype(), tensor.shape().iter().map(|&n| n.into()))
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, dim) in self.shape.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{dim}")?;
        }
        f.write_str("]")
    }
}

/// How long a tensor stays where it is: weights of models that are always on, weights that may be
/// evicted, and data of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Residency {
    Resident,
    #[default]
    Cached,
    Streamed,
}

/// Where a value comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Given for each run.
    Input(Arc<str>),
    /// A tensor from the model file, known by its name there.
    Weight(Arc<str>, Tensor, Residency),
    /// A literal.
    Const(Tensor),
    /// 0, 1, 2, ... as `I64`, one axis.
    Iota,
    /// Memory that lives across runs; a run may replace it (see [`Graph::updates`]).
    State(Arc<str>),
    /// In a pattern: a scalar attribute that a match binds.
    Hole(Arc<str>),
    /// Output number `1` of node `0`.
    Node(NodeId, usize),
}

/// An edge of the graph.
#[derive(Clone, Debug)]
pub struct Value {
    pub fact: Fact,
    pub source: Source,
}

/// What a node does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    Atom(Atom),
    Jet(&'static Jet, Attrs),
}

impl Op {
    pub fn name(&self) -> &'static str {
        match self {
            Op::Atom(atom) => atom.name(),
            Op::Jet(jet, _) => jet.name,
        }
    }
}

/// An operation applied to values.
#[derive(Clone, Debug)]
pub struct Node {
    pub op: Op,
    pub inputs: Vec<ValueId>,
    pub outputs: Vec<ValueId>,
    /// Where in the model the node stands, for people: `blk.3.attn`.
    pub label: Arc<str>,
    /// A backend the author prefers; policy may ignore it.
    pub backend_hint: Option<Arc<str>>,
}

/// A DAG. Nodes stand in topological order; values never change once made.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub values: Vec<Value>,
    pub nodes: Vec<Node>,
    pub outputs: Vec<(Arc<str>, ValueId)>,
    /// (state, value that replaces it when the run ends). A jet declares whether it may do so in
    /// place.
    pub updates: Vec<(ValueId, ValueId)>,
}

impl Graph {
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    pub fn fact(&self, id: ValueId) -> &Fact {
        &self.value(id).fact
    }

    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    pub fn value_ids(&self) -> impl Iterator<Item = ValueId> + use<> {
        (0..self.values.len() as u32).map(ValueId)
    }

    /// The node that makes a value, unless it is a leaf.
    pub fn producer(&self, id: ValueId) -> Option<&Node> {
        match &self.value(id).source {
            Source::Node(n, _) => Some(self.node(*n)),
            Source::Input(_)
            | Source::Weight(..)
            | Source::Const(_)
            | Source::Iota
            | Source::State(_)
            | Source::Hole(_) => None,
        }
    }

    /// The names and values of the inputs.
    pub fn inputs(&self) -> impl Iterator<Item = (&Arc<str>, ValueId)> {
        self.leaves(|s| match s {
            Source::Input(name) => Some(name),
            _ => None,
        })
    }

    /// The names and values of the states.
    pub fn states(&self) -> impl Iterator<Item = (&Arc<str>, ValueId)> {
        self.leaves(|s| match s {
            Source::State(name) => Some(name),
            _ => None,
        })
    }

    fn leaves<'g>(
        &'g self,
        pick: impl Fn(&'g Source) -> Option<&'g Arc<str>> + 'g,
    ) -> impl Iterator<Item = (&'g Arc<str>, ValueId)> {
        let picked = move |(v, id): (&'g Value, ValueId)| pick(&v.source).map(|name| (name, id));
        self.values.iter().zip(self.value_ids()).filter_map(picked)
    }

    /// The tensor of a weight or constant.
    pub fn tensor(&self, id: ValueId) -> Option<&Tensor> {
        match &self.value(id).source {
            Source::Weight(_, t, _) | Source::Const(t) => Some(t),
            _ => None,
        }
    }

    pub fn output(&self, name: &str) -> Option<ValueId> {
        self.outputs.iter().find(|(n, _)| **n == *name).map(|(_, v)| *v)
    }

    /// Whether each value is needed for the outputs and updates, and each node likewise.
    pub fn live(&self) -> (Vec<bool>, Vec<bool>) {
        let mut values = vec![false; self.values.len()];
        let mut nodes = vec![false; self.nodes.len()];
        for (_, v) in &self.outputs {
            values[v.index()] = true;
        }
        for (state, v) in &self.updates {
            values[state.index()] = true;
            values[v.index()] = true;
        }
        for (i, node) in self.nodes.iter().enumerate().rev() {
            if node.outputs.iter().any(|v| values[v.index()]) {
                nodes[i] = true;
                node.inputs.iter().for_each(|v| values[v.index()] = true);
            }
        }
        (values, nodes)
    }
}

/// Why a graph cannot be built or is not legal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IrError {
    #[error("{op} takes {want} inputs, not {got}")]
    Arity { op: String, want: String, got: usize },
    #[error("{op} cannot take {facts}: {why}")]
    Operand { op: String, facts: String, why: String },
    #[error("attribute '{name}' must be {want}, not {got}")]
    Attr { name: String, want: &'static str, got: String },
    #[error(transparent)]
    Dim(#[from] DimError),
    #[error("illegal graph: {0}")]
    Illegal(String),
}
