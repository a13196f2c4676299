//! The walk over an ONNX graph that makes graphs of atoms and jets.
//!
//! Shapes are known throughout, since the walk begins from inputs of known shapes; what depends on
//! nothing but shapes and constants is computed on the way. Where the walk needs a number that only
//! a run gives (a condition, a trip count, a size), it stops: the graph so far is a *stage*, and the
//! walk goes on in a new graph once the stage has run.

mod apply;
mod control;
mod registers;

use std::collections::HashMap;
use std::sync::Arc;

use cyb_formats::onnx::{Attribute, Elem, Graph as OnnxGraph, Model, Node};
use cyb_ir::{Builder, Fact, Graph, ValueId};
use cyb_tensor::{Dim, Tensor};

use self::apply::{apply, multiplies};
use self::registers::{Waiting, finish};
use crate::context::{Note, Placed, Refs};
use crate::error::{HostCall, OnnxError, OpError, bad};
use crate::frame::{Body, Frame, Then, lookup};
use crate::ops;
use crate::value::{Val, X};

/// Nodes of a model, with loops unrolled.
const MOST_STEPS: usize = 1 << 20;

/// Graphs inside graphs.
const DEEPEST: usize = 256;

/// An import between two stages. A run-time value is the number of a register.
#[derive(Clone, Debug)]
pub(crate) struct Import {
    pub(crate) frames: Vec<Frame>,
    pub(crate) model: Arc<Model>,
    steps: usize,
}

/// A graph of the model, and what comes after it.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) graph: Graph,
    /// The register that feeds each input of the graph.
    pub(crate) feeds: Vec<usize>,
    /// Where each register comes from after this stage.
    pub(crate) registers: Vec<Register>,
    pub(crate) end: End,
    pub(crate) notes: Vec<Note>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Register {
    /// An output of the graph.
    Computed(usize),
    /// A register of before.
    Kept(usize),
}

#[derive(Debug)]
pub(crate) enum End {
    /// The model's outputs, by name.
    Done(Vec<(String, Val)>),
    /// The rest depends on the numbers in a register.
    Choose { register: usize, rest: Box<Import> },
    /// The rest depends on the shapes that a computation outside the graph gives.
    Host { call: HostCall, rest: Box<Import> },
}

/// The graph under construction.
struct Build {
    b: Builder,
    placed: Placed,
    notes: Vec<Note>,
    /// The register behind each input of the graph.
    feeds: Vec<(usize, ValueId)>,
}

enum Stop {
    Need(ValueId),
    Host(HostCall),
    Failed(OnnxError),
}

impl Import {
    /// The beginning: inputs are registers in the order of the facts.
    pub(crate) fn new(model: &Arc<Model>, inputs: &[(String, Elem)]) -> Import {
        let names = inputs
            .iter()
            .enumerate()
            .map(|(i, (name, elem))| {
                (name.clone(), Val::Value(X { id: ValueId(i as u32), elem: *elem }))
            })
            .collect();
        let frame = Frame {
            body: Body::Graph(model.graph.clone()),
            at: 0,
            names,
            then: Then::Finish,
            refs: None,
            opsets: Arc::new(model.opsets.clone()),
        };
        Import { frames: vec![frame], model: model.clone(), steps: 0 }
    }

    /// Puts a tensor where a register is.
    pub(crate) fn decide(&mut self, register: usize, tensor: &Tensor) {
        for frame in &mut self.frames {
            frame.visit(&mut |val| {
                if let Val::Value(x) = val
                    && x.id.index() == register
                {
                    *val = Val::Known { elem: x.elem, tensor: tensor.clone() };
                }
            });
        }
    }

    /// Gives the waiting node its outputs.
    pub(crate) fn answer(&mut self, outputs: Vec<Val>) {
        if let Some(frame) = self.frames.last_mut() {
            let names = frame.body.nodes()[frame.at].outputs.clone();
            bind(frame, &names, outputs);
            frame.at += 1;
        }
    }

    /// Walks on until the end or until a number is needed. `facts` are those of the registers.
    pub(crate) fn stage(mut self, facts: &[Fact]) -> Result<Stage, OnnxError> {
        for fact in facts {
            let dims: Option<Vec<usize>> = fact.shape.iter().map(Dim::known).collect();
            if !dims.is_some_and(|dims| multiplies(&dims)) {
                return Err(OnnxError::Run(format!("a value of {fact} is too large")));
            }
        }
        let mut build = Build {
            b: Builder::new(),
            placed: Placed::default(),
            notes: Vec::new(),
            feeds: Vec::new(),
        };
        let mut ids: HashMap<usize, ValueId> = HashMap::new();
        for frame in &mut self.frames {
            frame.visit(&mut |val| {
                if let Val::Value(x) = val {
                    let register = x.id.index();
                    x.id = *ids.entry(register).or_insert_with(|| {
                        let name = format!("r{register}");
                        let id = build.b.input(&name, facts[register].clone());
                        build.feeds.push((register, id));
                        id
                    });
                }
            });
        }
        loop {
            match self.step(&mut build) {
                Ok(None) => {}
                Ok(Some(outputs)) => return Ok(finish(build, outputs)),
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Need(id)) => return Ok(self.cut(build, Waiting::Number(id))),
                Err(Stop::Host(call)) => return Ok(self.cut(build, Waiting::Host(call))),
            }
        }
    }

    /// One node, or the end of a body. The model's outputs when all is done.
    fn step(&mut self, build: &mut Build) -> Result<Option<Vec<(String, Val)>>, Stop> {
        self.steps += 1;
        let depth = self.frames.len();
        let Some(frame) = self.frames.last() else { return Ok(Some(Vec::new())) };
        let body = frame.body.clone();
        let Some(node) = body.nodes().get(frame.at) else {
            return self.leave(build);
        };
        if self.steps > MOST_STEPS || depth > DEEPEST {
            return Err(failed(node, "loops and graphs inside graphs take too many steps"));
        }
        match self.walk(build, node) {
            Ok(()) => Ok(None),
            Err(OpError::Need(id)) => Err(Stop::Need(id)),
            Err(OpError::Host(call)) => Err(Stop::Host(call)),
            Err(OpError::Bad(why)) => Err(failed(node, why)),
        }
    }

    fn walk(&mut self, build: &mut Build, node: &Node) -> Result<(), OpError> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for name in &node.inputs {
            inputs.push(if name.is_empty() {
                Val::None
            } else {
                match lookup(&self.frames, name) {
                    Some(Val::Known { tensor, .. }) if !multiplies(tensor.shape()) => {
                        return bad(format!("{name:?} of {:?} is too large", tensor.shape()));
                    }
                    Some(val) => val,
                    None => return bad(format!("reads {name:?}, which nothing makes")),
                }
            });
        }
        let Some(frame) = self.frames.last() else { return Ok(()) };
        let (opsets, refs) = (frame.opsets.clone(), frame.refs.clone());
        let key = (node.domain.clone(), node.op.clone());
        if let Some(function) = self.model.functions.get(&key) {
            return self.call(function.clone(), node, inputs, refs.as_deref());
        }
        if node.domain.is_empty() {
            match node.op.as_str() {
                "If" => return self.branch(node, &inputs),
                "Loop" => return self.enter_loop(build, node, inputs),
                "Scan" => return self.enter_scan(build, node, inputs),
                _ => {}
            }
        }
        let Some(op) = ops::find(&node.domain, &node.op) else {
            return bad("is no operator that is supported");
        };
        let opset = opsets.get(&node.domain).copied().unwrap_or(1);
        let outputs = apply(build, node, op, inputs, opset, refs.as_deref())?;
        if let Some(frame) = self.frames.last_mut() {
            bind(frame, &node.outputs, outputs);
            frame.at += 1;
        }
        Ok(())
    }

    fn call(
        &mut self,
        function: Arc<cyb_formats::onnx::Function>,
        node: &Node,
        inputs: Vec<Val>,
        outer: Option<&Refs>,
    ) -> Result<(), OpError> {
        let mut refs = function.defaults.clone();
        for (name, attribute) in &node.attributes {
            let value = match attribute {
                Attribute::Ref(name) => outer.and_then(|o| o.get(name)).cloned(),
                other => Some(other.clone()),
            };
            if let Some(value) = value {
                refs.insert(name.clone(), value);
            }
        }
        let filled = inputs.into_iter().chain(std::iter::repeat(Val::None));
        let names = function.inputs.iter().cloned().zip(filled).collect();
        self.frames.push(Frame {
            opsets: Arc::new(function.opsets.clone()),
            body: Body::Function(function),
            at: 0,
            names,
            then: Then::Return,
            refs: Some(Arc::new(refs)),
        });
        Ok(())
    }

    /// The graph attribute `name` of the node that the top frame stands at.
    fn enter(&mut self, node: &Node, name: &str, then: Then) -> Result<Arc<OnnxGraph>, OpError> {
        let Some(Attribute::Graph(graph)) = node.attributes.get(name) else {
            return bad(format!("attribute {name} must be a graph"));
        };
        let Some(frame) = self.frames.last() else { return bad("stands nowhere") };
        let (refs, opsets) = (frame.refs.clone(), frame.opsets.clone());
        self.frames.push(Frame {
            body: Body::Graph(graph.clone()),
            at: 0,
            names: HashMap::new(),
            then,
            refs,
            opsets,
        });
        Ok(graph.clone())
    }

    /// The end of the top frame's body.
    fn leave(&mut self, build: &mut Build) -> Result<Option<Vec<(String, Val)>>, Stop> {
        let Some(frame) = self.frames.last() else { return Ok(Some(Vec::new())) };
        let names = frame.body.output_names();
        let mut outputs = Vec::with_capacity(names.len());
        for name in &names {
            match lookup(&self.frames, name) {
                Some(val) => outputs.push(val),
                None => {
                    let why = format!("output {name:?} is made by no node");
                    return Err(Stop::Failed(OnnxError::Run(why)));
                }
            }
        }
        let below = self.frames.len().checked_sub(2).map(|i| {
            let frame = &self.frames[i];
            frame.body.nodes()[frame.at].clone()
        });
        let Some(node) = below else {
            return Ok(Some(names.into_iter().zip(outputs).collect()));
        };
        match self.after(build, outputs) {
            Ok(()) => Ok(None),
            Err(OpError::Need(id)) => Err(Stop::Need(id)),
            Err(OpError::Host(call)) => Err(Stop::Host(call)),
            Err(OpError::Bad(why)) => Err(failed(&node, why)),
        }
    }
}

fn failed(node: &Node, why: impl Into<String>) -> Stop {
    let (name, op) = (node.name.clone(), node.op.clone());
    Stop::Failed(OnnxError::Node { node: name, op, why: why.into() })
}

fn bind(frame: &mut Frame, names: &[String], outputs: Vec<Val>) {
    for (name, val) in names.iter().zip(outputs) {
        if !name.is_empty() {
            frame.names.insert(name.clone(), val);
        }
    }
}
