//! ONNX models: operators as compositions of jets and atoms, for the shapes at hand.
//!
//! An ONNX graph has shapes that depend on its inputs and even on their values, while a graph of
//! atoms has known ones. So a model is imported when the shapes of its inputs are known, and once
//! more for other shapes. Where even shapes do not settle what comes next, such as at a loop that
//! ends when a condition does, the model becomes several graphs, *stages*, and what a stage computes
//! picks the next. All of them are kept, so that a model which is called again only runs.

#![forbid(unsafe_code)]

mod context;
mod error;
mod frame;
mod fuzz;
mod import;
mod ops;
mod session;
#[cfg(test)]
mod tests;
mod value;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use cyb_formats::onnx::{Attribute, Dimension, Elem, Graph, Model, Node, Type, ValueInfo};
use cyb_ir::Fact;
use cyb_tensor::Tensor;
use indexmap::IndexMap;

pub use context::Note;
pub use error::{OnnxError, Unsupported};
pub use fuzz::fuzz_onnx;
pub use session::{Interpreter, Program, Runner, StepTime};

use session::Ready;
use value::Val;

/// Input shapes for which a model stays prepared.
const MOST_SHAPES: usize = 4;

/// A first stage, which one run at a time has.
type First = Arc<Mutex<Ready>>;

/// An input or output of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: String,
    /// `None` when the port is no tensor.
    pub elem: Option<Elem>,
    /// `None` when the rank is not declared.
    pub shape: Option<Vec<Dimension>>,
}

impl Port {
    fn of(info: &ValueInfo) -> Port {
        let (elem, shape) = match &info.ty {
            Type::Tensor { elem, shape } => (Some(*elem), shape.clone()),
            Type::Sequence | Type::Map | Type::Optional | Type::Unknown => (None, None),
        };
        Port { name: info.name.clone(), elem, shape }
    }
}

impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", self.name)?;
        let Some(elem) = self.elem else { return f.write_str("(no tensor)") };
        write!(f, "{elem}")?;
        let Some(shape) = &self.shape else { return Ok(()) };
        let dims: Vec<String> = shape
            .iter()
            .map(|d| match d {
                Dimension::Known(n) => n.to_string(),
                Dimension::Symbol(name) => name.clone(),
                Dimension::Unknown => "?".to_owned(),
            })
            .collect();
        write!(f, "[{}]", dims.join(", "))
    }
}

/// An ONNX model ready to be called.
pub struct Onnx {
    model: Arc<Model>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    runner: Box<dyn Runner>,
    /// The first stages by input shapes, the latest used last.
    ready: Mutex<VecDeque<(Vec<Fact>, First)>>,
}

impl std::fmt::Debug for Onnx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Onnx").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

impl Onnx {
    /// A model that `runner` will run.
    ///
    /// # Errors
    /// Some nodes are not supported; the error names every one.
    pub fn new(model: Model, runner: Box<dyn Runner>) -> Result<Onnx, OnnxError> {
        let unsupported = unsupported(&model);
        if !unsupported.is_empty() {
            return Err(OnnxError::Unsupported(unsupported));
        }
        let inputs = model.graph.inputs.iter().map(Port::of).collect();
        let outputs = model.graph.outputs.iter().map(Port::of).collect();
        Ok(Onnx { model: Arc::new(model), inputs, outputs, runner, ready: Mutex::default() })
    }

    /// What the model must be given: initializers need no value.
    pub fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    pub fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    /// Free text that the exporter put into the file, such as class names.
    pub fn metadata(&self) -> &IndexMap<String, String> {
        &self.model.metadata
    }

    pub fn path(&self) -> Option<&Path> {
        self.model.path.as_deref()
    }

    /// How often each operator stands in the file, graphs inside nodes included.
    pub fn operators(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        graph_nodes(&self.model.graph, &mut |node| {
            let name = match node.domain.as_str() {
                "" => node.op.clone(),
                domain => format!("{domain}.{}", node.op),
            };
            *counts.entry(name).or_default() += 1;
        });
        counts
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Runs the model on named tensors.
    ///
    /// # Errors
    /// An input is missing, unknown, or of the wrong type or shape, or a node cannot run on what it
    /// gets.
    pub fn run(
        &self,
        inputs: &IndexMap<String, Tensor>,
    ) -> Result<IndexMap<String, Tensor>, OnnxError> {
        let (tensors, ready) = self.ready_for(inputs)?;
        let mut ready = ready.lock().unwrap_or_else(PoisonError::into_inner);
        let made = ready.run(tensors, self.runner.as_ref())?;
        let mut outputs = IndexMap::with_capacity(made.len());
        for (name, val, tensor) in made {
            match (tensor, val) {
                (Some(tensor), _) => drop(outputs.insert(name, tensor)),
                (None, Val::Sequence(_)) => {
                    return Err(OnnxError::Run(format!(
                        "output {name:?} is a sequence; export the model with tensor outputs"
                    )));
                }
                (None, _) => {
                    return Err(OnnxError::Run(format!("output {name:?} is no tensor of numbers")));
                }
            }
        }
        Ok(outputs)
    }

    /// Prepares the first stage for inputs of these types and shapes.
    ///
    /// # Errors
    /// As [`Onnx::run`].
    pub fn prepare(&self, inputs: &IndexMap<String, Tensor>) -> Result<(), OnnxError> {
        self.ready_for(inputs).map(drop)
    }

    /// The inputs in their order, and the first stage for them.
    fn ready_for(
        &self,
        inputs: &IndexMap<String, Tensor>,
    ) -> Result<(Vec<Tensor>, First), OnnxError> {
        self.check(inputs)?;
        let tensors: Vec<Tensor> =
            self.inputs.iter().filter_map(|p| inputs.get(&p.name).cloned()).collect();
        let facts: Vec<Fact> = tensors.iter().map(Fact::of).collect();
        let ready = self.ready(&facts)?;
        Ok((tensors, ready))
    }

    /// The steps of every prepared graph, and the time each took since the last
    /// [`Onnx::reset_times`].
    pub fn times(&self) -> Vec<StepTime> {
        let all = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let each = all.iter();
        each.flat_map(|(_, r)| r.lock().unwrap_or_else(PoisonError::into_inner).times()).collect()
    }

    /// What the import found in the graphs that are prepared: layers that became jets, and layers
    /// that nearly did.
    pub fn notes(&self) -> Vec<Note> {
        let all = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let each = all.iter();
        each.flat_map(|(_, r)| r.lock().unwrap_or_else(PoisonError::into_inner).notes()).collect()
    }

    pub fn reset_times(&self) {
        let all = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, ready) in all.iter() {
            ready.lock().unwrap_or_else(PoisonError::into_inner).reset_times();
        }
    }

    /// The first stage for inputs of these shapes.
    fn ready(&self, facts: &[Fact]) -> Result<Arc<Mutex<Ready>>, OnnxError> {
        let mut all = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(i) = all.iter().position(|(known, _)| known == facts)
            && let Some(found) = all.remove(i)
        {
            let ready = found.1.clone();
            all.push_back(found);
            return Ok(ready);
        }
        let typed: Vec<(String, Elem)> =
            self.inputs.iter().map(|p| (p.name.clone(), p.elem.unwrap_or(Elem::F32))).collect();
        let first = Ready::first(&self.model, &typed, facts, self.runner.as_ref())?;
        if all.len() >= MOST_SHAPES {
            all.pop_front();
        }
        let ready = Arc::new(Mutex::new(first));
        all.push_back((facts.to_vec(), ready.clone()));
        Ok(ready)
    }

    fn check(&self, inputs: &IndexMap<String, Tensor>) -> Result<(), OnnxError> {
        let expected = || {
            let all: Vec<String> = self.inputs.iter().map(Port::to_string).collect();
            if all.is_empty() { "none".to_owned() } else { all.join(", ") }
        };
        let fail = |name: &str, why: String| {
            Err(OnnxError::Input { name: name.to_owned(), why, expected: expected() })
        };
        if let Some(name) = inputs.keys().find(|n| !self.inputs.iter().any(|p| p.name == **n)) {
            return fail(name, "is unknown".to_owned());
        }
        let mut symbols: HashMap<&str, usize> = HashMap::new();
        for port in &self.inputs {
            let Some(tensor) = inputs.get(&port.name) else {
                return fail(&port.name, "is missing".to_owned());
            };
            let Some(dtype) = port.elem.and_then(Elem::storage) else {
                return fail(&port.name, "is no tensor of numbers, which is not supported".into());
            };
            if tensor.dtype() != dtype {
                return fail(&port.name, format!("is {}", tensor.dtype()));
            }
            let Some(shape) = &port.shape else { continue };
            let fits = shape.len() == tensor.shape().len()
                && shape.iter().zip(tensor.shape()).all(|(dim, &n)| match dim {
                    Dimension::Known(want) => *want == n,
                    Dimension::Symbol(name) => *symbols.entry(name).or_insert(n) == n,
                    Dimension::Unknown => true,
                });
            if !fits {
                return fail(&port.name, format!("has shape {:?}", tensor.shape()));
            }
        }
        Ok(())
    }
}

/// Every node of the model, its functions and inner graphs that is not supported.
pub fn unsupported(model: &Model) -> Vec<Unsupported> {
    let mut all = Vec::new();
    graph_nodes(&model.graph, &mut |node| check_node(model, node, &mut all));
    for function in model.functions.values() {
        for node in &function.nodes {
            node_and_inner(node, &mut |node| check_node(model, node, &mut all));
        }
    }
    all
}

fn check_node(model: &Model, node: &Node, all: &mut Vec<Unsupported>) {
    let key = (node.domain.clone(), node.op.clone());
    let control = node.domain.is_empty() && matches!(node.op.as_str(), "If" | "Loop" | "Scan");
    if control || model.functions.contains_key(&key) || ops::find(&node.domain, &node.op).is_some()
    {
        return;
    }
    all.push(Unsupported {
        node: node.name.clone(),
        op: node.op.clone(),
        domain: node.domain.clone(),
        opset: model.opset(&node.domain).unwrap_or(1),
        remedy: ops::remedy(&node.domain, &node.op),
    });
}

fn graph_nodes(graph: &Graph, visit: &mut dyn FnMut(&Node)) {
    graph.nodes.iter().for_each(|node| node_and_inner(node, visit));
}

fn node_and_inner(node: &Node, visit: &mut dyn FnMut(&Node)) {
    visit(node);
    for attribute in node.attributes.values() {
        if let Attribute::Graph(graph) = attribute {
            graph_nodes(graph, visit);
        }
    }
}
