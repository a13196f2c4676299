//! Where an import stands: a stack of graphs whose nodes are being walked.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use cyb_formats::onnx::{Attribute, Function, Graph, Node};

use crate::context::Refs;
use crate::value::Val;

/// Nodes with the names around them.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Graph(Arc<Graph>),
    Function(Arc<Function>),
}

impl Body {
    pub(crate) fn nodes(&self) -> &[Node] {
        match self {
            Body::Graph(g) => &g.nodes,
            Body::Function(f) => &f.nodes,
        }
    }

    pub(crate) fn output_names(&self) -> Vec<String> {
        match self {
            Body::Graph(g) => g.outputs.iter().map(|o| o.name.clone()).collect(),
            Body::Function(f) => f.outputs.clone(),
        }
    }
}

/// What happens when a body has been walked.
#[derive(Clone, Debug)]
pub(crate) enum Then {
    /// The outputs are the model's.
    Finish,
    /// The outputs are those of the node in the frame below.
    Return,
    /// The body may be walked again.
    Loop(Loop),
    Scan(Scan),
}

#[derive(Clone, Debug)]
pub(crate) struct Loop {
    /// Iterations at most.
    pub(crate) trips: Option<i64>,
    pub(crate) done: i64,
    pub(crate) carried: usize,
    /// Results of each iteration for each stacked output.
    pub(crate) stacked: Vec<Vec<Val>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Scan {
    pub(crate) trips: usize,
    pub(crate) done: usize,
    pub(crate) states: usize,
    pub(crate) sequences: Vec<Val>,
    pub(crate) in_axes: Vec<i64>,
    pub(crate) in_reverse: Vec<bool>,
    pub(crate) out_axes: Vec<i64>,
    pub(crate) out_reverse: Vec<bool>,
    pub(crate) stacked: Vec<Vec<Val>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) body: Body,
    /// The next node.
    pub(crate) at: usize,
    pub(crate) names: HashMap<String, Val>,
    pub(crate) then: Then,
    pub(crate) refs: Option<Arc<Refs>>,
    pub(crate) opsets: Arc<BTreeMap<String, i64>>,
}

impl Frame {
    /// Shows every run-time value to `visit`.
    pub(crate) fn visit(&mut self, visit: &mut dyn FnMut(&mut Val)) {
        self.names.values_mut().for_each(|v| v.visit(visit));
        let lists = match &mut self.then {
            Then::Finish | Then::Return => return,
            Then::Loop(l) => &mut l.stacked,
            Then::Scan(s) => {
                s.sequences.iter_mut().for_each(|v| v.visit(visit));
                &mut s.stacked
            }
        };
        lists.iter_mut().flatten().for_each(|v| v.visit(visit));
    }

    /// Forgets names that nothing from here on reads.
    pub(crate) fn forget(&mut self, inner: &HashSet<String>) -> HashSet<String> {
        let mut read = inner.clone();
        // A loop's body begins again.
        let from = match self.then {
            Then::Finish | Then::Return => self.at,
            Then::Loop(_) | Then::Scan(_) => 0,
        };
        for node in self.body.nodes().get(from..).unwrap_or_default() {
            reads(node, &mut read);
        }
        read.extend(self.body.output_names());
        self.names.retain(|name, _| read.contains(name));
        read
    }
}

/// Every name that a node or a graph inside it mentions.
fn reads(node: &Node, into: &mut HashSet<String>) {
    into.extend(node.inputs.iter().cloned());
    for attribute in node.attributes.values() {
        if let Attribute::Graph(graph) = attribute {
            graph.nodes.iter().for_each(|n| reads(n, into));
            into.extend(graph.outputs.iter().map(|o| o.name.clone()));
        }
    }
}

/// The meaning of a name: in the top frame, or in the graphs around its graph.
pub(crate) fn lookup(frames: &[Frame], name: &str) -> Option<Val> {
    for frame in frames.iter().rev() {
        if let Some(val) = frame.names.get(name) {
            return Some(val.clone());
        }
        match &frame.body {
            Body::Graph(graph) => {
                if let Some(constant) = graph.initializers.get(name) {
                    return Some(Val::of(constant));
                }
            }
            // A function sees nothing around its call.
            Body::Function(_) => return None,
        }
    }
    None
}
