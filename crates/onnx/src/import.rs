//! The walk over an ONNX graph that makes graphs of atoms and jets.
//!
//! Shapes are known throughout, since the walk begins from inputs of known shapes; what depends on
//! nothing but shapes and constants is computed on the way. Where the walk needs a number that only
//! a run gives (a condition, a trip count, a size), it stops: the graph so far is a *stage*, and the
//! walk goes on in a new graph once the stage has run.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cyb_formats::onnx::{Attribute, Elem, Graph as OnnxGraph, Model, Node, Type, ValueInfo};
use cyb_interp::evaluate;
use cyb_ir::{Builder, Fact, Graph, Source, ValueId};
use cyb_tensor::{Dim, Tensor, byte_len};

use crate::context::{Context, Note, Placed, Refs};
use crate::error::{HostCall, OnnxError, OpError, bad};
use crate::frame::{Body, Frame, Loop, Scan, Then, lookup};
use crate::ops;
use crate::value::{Val, X, to_ints};

/// What depends on constants only is computed during the import when it has at most this many
/// elements in all.
const FOLD_ELEMENTS: usize = 1 << 23;

/// No tensor of a run may take more bytes.
const LARGEST_VALUE: usize = 1 << 34;

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

    /// Ends a stage: run-time values that are still needed become registers.
    fn cut(mut self, build: Build, waiting: Waiting) -> Stage {
        let mut inner = std::collections::HashSet::new();
        for frame in self.frames.iter_mut().rev() {
            inner = frame.forget(&inner);
        }
        let mut out = Registers::new(build);
        for frame in &mut self.frames {
            frame.visit(&mut |val| out.keep(val));
        }
        let rest = Box::new(self);
        let end = match waiting {
            Waiting::Number(id) => End::Choose { register: out.register(id), rest },
            Waiting::Host(mut call) => {
                call.inputs.iter_mut().for_each(|v| v.visit(&mut |val| out.keep(val)));
                End::Host { call, rest }
            }
        };
        out.stage(end)
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

    fn branch(&mut self, node: &Node, inputs: &[Val]) -> Result<(), OpError> {
        let Some(condition) = inputs.first() else { return bad("has no condition") };
        let branch = if truth(condition)? { "then_branch" } else { "else_branch" };
        self.enter(node, branch, Then::Return).map(drop)
    }

    fn enter_loop(
        &mut self,
        build: &mut Build,
        node: &Node,
        inputs: Vec<Val>,
    ) -> Result<(), OpError> {
        let trips = match inputs.first() {
            None | Some(Val::None) => None,
            Some(val) => Some(integer(val)?),
        };
        let go = match inputs.get(1) {
            None | Some(Val::None) => true,
            Some(val) => truth(val)?,
        };
        let carried: Vec<Val> = inputs.into_iter().skip(2).collect();
        let Some(Attribute::Graph(body)) = node.attributes.get("body") else {
            return bad("attribute body must be a graph");
        };
        let n_stacked = (body.outputs.len())
            .checked_sub(carried.len() + 1)
            .ok_or_else(|| OpError::Bad("the body gives too few outputs".into()))?;
        if body.inputs.len() != carried.len() + 2 {
            return bad("the body takes another number of inputs than the loop");
        }
        let state =
            Loop { trips, done: 0, carried: carried.len(), stacked: vec![Vec::new(); n_stacked] };
        let body = self.enter(node, "body", Then::Loop(state.clone()))?;
        if !go || trips.is_some_and(|n| n <= 0) {
            self.frames.pop();
            return self.end_loop(build, carried, state.stacked, &body, &[], &[]);
        }
        self.begin_iteration(&body, 0, true, carried)
    }

    fn begin_iteration(
        &mut self,
        body: &OnnxGraph,
        number: i64,
        condition: bool,
        carried: Vec<Val>,
    ) -> Result<(), OpError> {
        let Some(frame) = self.frames.last_mut() else { return bad("stands nowhere") };
        frame.at = 0;
        frame.names.clear();
        let number = Tensor::from_elems(cyb_tensor::DType::I64, vec![], &[number])?;
        let condition =
            Tensor::from_elems(cyb_tensor::DType::Bool, vec![], &[u8::from(condition)])?;
        let first = [
            Val::Known { elem: Elem::I64, tensor: number },
            Val::Known { elem: Elem::Bool, tensor: condition },
        ];
        for (info, val) in body.inputs.iter().zip(first.into_iter().chain(carried)) {
            frame.names.insert(info.name.clone(), val);
        }
        Ok(())
    }

    fn enter_scan(
        &mut self,
        build: &mut Build,
        node: &Node,
        inputs: Vec<Val>,
    ) -> Result<(), OpError> {
        let opset = self.frames.last().and_then(|f| f.opsets.get("").copied()).unwrap_or(9);
        // The scan of one example inside a scan over the batch follows the rules of opset 9.
        if opset < 9 && !node.attributes.contains_key("scan_input_axes") {
            let (node, inputs) = over_batch(node, inputs)?;
            return self.enter_scan(build, &node, inputs);
        }
        let list = |name: &str| match node.attributes.get(name) {
            Some(Attribute::Ints(list)) => list.clone(),
            _ => Vec::new(),
        };
        let Some(Attribute::Int(n)) = node.attributes.get("num_scan_inputs") else {
            return bad("attribute num_scan_inputs is missing");
        };
        let states = usize::try_from(*n).ok().and_then(|n| inputs.len().checked_sub(n));
        let Some(states) = states.filter(|_| *n > 0) else {
            return bad("attribute num_scan_inputs does not fit the inputs");
        };
        let mut carried = inputs;
        let sequences = carried.split_off(states);
        let pad = |mut v: Vec<i64>, n: usize| {
            v.resize(n.max(v.len()), 0);
            v
        };
        let Some(Attribute::Graph(body)) = node.attributes.get("body") else {
            return bad("attribute body must be a graph");
        };
        let Some(n_stacked) = body.outputs.len().checked_sub(states) else {
            return bad("the body gives too few outputs");
        };
        if body.inputs.len() != states + sequences.len() {
            return bad("the body takes another number of inputs than the scan");
        }
        let flags = |v: Vec<i64>| v.into_iter().map(|d| d != 0).collect::<Vec<bool>>();
        let in_axes = pad(list("scan_input_axes"), sequences.len());
        let mut trips = None;
        for (val, &axis) in sequences.iter().zip(&in_axes) {
            let dims = shape_of(build, val)?;
            let axis = if axis < 0 { axis + dims.len() as i64 } else { axis };
            let n = usize::try_from(axis).ok().and_then(|a| dims.get(a).copied());
            let Some(n) = n else { return bad("a scan axis is outside its input") };
            if trips.is_some_and(|t| t != n) {
                return bad("the sequences differ in length");
            }
            trips = Some(n);
        }
        let scan = Scan {
            trips: trips.unwrap_or(0),
            done: 0,
            states,
            in_reverse: flags(pad(list("scan_input_directions"), sequences.len())),
            out_axes: pad(list("scan_output_axes"), n_stacked),
            out_reverse: flags(pad(list("scan_output_directions"), n_stacked)),
            sequences,
            in_axes,
            stacked: vec![Vec::new(); n_stacked],
        };
        let axes = scan.out_axes.clone();
        let body = self.enter(node, "body", Then::Scan(scan.clone()))?;
        if scan.trips == 0 {
            self.frames.pop();
            return self.end_loop(build, carried, scan.stacked, &body, &axes, &[]);
        }
        self.begin_element(build, &body, scan, carried)
    }

    fn begin_element(
        &mut self,
        build: &mut Build,
        body: &OnnxGraph,
        scan: Scan,
        carried: Vec<Val>,
    ) -> Result<(), OpError> {
        let mut vals = carried;
        for (i, val) in scan.sequences.iter().enumerate() {
            let at = if scan.in_reverse[i] { scan.trips - 1 - scan.done } else { scan.done };
            let index = Tensor::from_elems(cyb_tensor::DType::I64, vec![], &[at as i64])?;
            let index = Val::Known { elem: Elem::I64, tensor: index };
            let node = synthetic("Gather", &[("axis", scan.in_axes[i])]);
            vals.extend(self.synthetic(build, &node, vec![val.clone(), index])?);
        }
        let Some(frame) = self.frames.last_mut() else { return bad("stands nowhere") };
        frame.at = 0;
        frame.names = body.inputs.iter().map(|info| info.name.clone()).zip(vals).collect();
        frame.then = Then::Scan(scan);
        Ok(())
    }

    fn synthetic(
        &self,
        build: &mut Build,
        node: &Node,
        inputs: Vec<Val>,
    ) -> Result<Vec<Val>, OpError> {
        match ops::find("", &node.op) {
            Some(op) => apply(build, node, op, inputs, 18, None),
            None => bad(format!("{} is no operator", node.op)),
        }
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

    fn after(&mut self, build: &mut Build, mut outputs: Vec<Val>) -> Result<(), OpError> {
        let Some(frame) = self.frames.last() else { return Ok(()) };
        let body = match &frame.body {
            Body::Graph(graph) => graph.clone(),
            Body::Function(_) => {
                self.frames.pop();
                self.answer(outputs);
                return Ok(());
            }
        };
        match frame.then.clone() {
            Then::Finish => Ok(()),
            Then::Return => {
                self.frames.pop();
                self.answer(outputs);
                Ok(())
            }
            Then::Loop(mut state) => {
                let go = truth(&outputs[0])?;
                outputs.remove(0);
                let stacked = outputs.split_off(state.carried);
                for (all, one) in state.stacked.iter_mut().zip(stacked) {
                    all.push(one);
                }
                state.done += 1;
                if go && state.trips.is_none_or(|n| state.done < n) {
                    let number = state.done;
                    if let Some(frame) = self.frames.last_mut() {
                        frame.then = Then::Loop(state);
                    }
                    return self.begin_iteration(&body, number, go, outputs);
                }
                self.frames.pop();
                self.end_loop(build, outputs, state.stacked, &body, &[], &[])
            }
            Then::Scan(mut scan) => {
                let stacked = outputs.split_off(scan.states);
                for (all, one) in scan.stacked.iter_mut().zip(stacked) {
                    all.push(one);
                }
                scan.done += 1;
                if scan.done < scan.trips {
                    return self.begin_element(build, &body, scan, outputs);
                }
                self.frames.pop();
                let (axes, reverse) = (scan.out_axes, scan.out_reverse);
                self.end_loop(build, outputs, scan.stacked, &body, &axes, &reverse)
            }
        }
    }

    /// Stacks what the iterations gave along new axes (0 where none is named).
    fn end_loop(
        &mut self,
        build: &mut Build,
        mut outputs: Vec<Val>,
        stacked: Vec<Vec<Val>>,
        body: &OnnxGraph,
        axes: &[i64],
        reverse: &[bool],
    ) -> Result<(), OpError> {
        let infos = &body.outputs[body.outputs.len() - stacked.len()..];
        for (i, mut parts) in stacked.into_iter().enumerate() {
            if reverse.get(i).copied().unwrap_or(false) {
                parts.reverse();
            }
            if parts.is_empty() {
                outputs.push(nothing(&infos[i].ty)?);
                continue;
            }
            let node = synthetic(
                "ConcatFromSequence",
                &[("axis", axes.get(i).copied().unwrap_or(0)), ("new_axis", 1)],
            );
            outputs.extend(self.synthetic(build, &node, vec![Val::Sequence(parts)])?);
        }
        self.answer(outputs);
        Ok(())
    }
}

/// A `Scan` of opset 8, all of whose inputs and outputs have a batch axis in front, as a scan over
/// that axis whose body is the scan of one example.
fn over_batch(node: &Node, inputs: Vec<Val>) -> Result<(Node, Vec<Val>), OpError> {
    let Some(Attribute::Graph(body)) = node.attributes.get("body") else {
        return bad("attribute body must be a graph");
    };
    let Some(Attribute::Int(n)) = node.attributes.get("num_scan_inputs") else {
        return bad("attribute num_scan_inputs is missing");
    };
    let mut inputs = inputs;
    if inputs.is_empty() || !inputs.remove(0).is_none() {
        return bad("sequence_lens is not supported; convert the model to opset 9");
    }
    if body.inputs.len() != inputs.len() {
        return bad("the body takes another number of inputs than the scan");
    }
    let zeros = |n: usize| Attribute::Ints(vec![0; n]);
    // No file has names with a NUL, so these hide none that the body reads from around it.
    let named = |kind: &str, info: &ValueInfo| ValueInfo {
        name: format!("\0{kind} {}", info.name),
        ty: info.ty.clone(),
    };
    let taken: Vec<ValueInfo> = body.inputs.iter().map(|info| named("in", info)).collect();
    let given: Vec<ValueInfo> = body.outputs.iter().map(|info| named("out", info)).collect();
    let names = |infos: &[ValueInfo]| infos.iter().map(|info| info.name.clone()).collect();
    let mut one = node.clone();
    one.inputs = names(&taken);
    one.outputs = names(&given);
    let sequences = usize::try_from(*n).unwrap_or(0).min(inputs.len());
    one.attributes.insert("scan_input_axes".into(), zeros(sequences));
    if let Some(directions) = one.attributes.swap_remove("directions") {
        one.attributes.insert("scan_input_directions".into(), directions);
    }
    let mut all = node.clone();
    let graph = OnnxGraph {
        name: format!("an example of {}", node.name),
        nodes: vec![one],
        inputs: taken,
        outputs: given,
        ..OnnxGraph::default()
    };
    all.attributes = [
        ("body".to_owned(), Attribute::Graph(Arc::new(graph))),
        ("num_scan_inputs".to_owned(), Attribute::Int(inputs.len() as i64)),
        ("scan_input_axes".to_owned(), zeros(inputs.len())),
    ]
    .into_iter()
    .collect();
    Ok((all, inputs))
}

/// A stacked output of no iterations.
fn nothing(ty: &Type) -> Result<Val, OpError> {
    let Type::Tensor { elem, shape } = ty else {
        return bad("a stacked output must be a tensor");
    };
    let Some(dtype) = elem.storage() else { return bad(format!("{elem} has no dtype here")) };
    let mut dims = vec![0];
    for dim in shape.iter().flatten() {
        dims.push(match dim {
            cyb_formats::onnx::Dimension::Known(n) => *n,
            _ => 0,
        });
    }
    let bytes = cyb_tensor::Bytes::owned(cyb_tensor::AlignedBytes::zeroed(0));
    Ok(Val::Known { elem: *elem, tensor: Tensor::new(dtype, dims, bytes)? })
}

fn synthetic(op: &str, ints: &[(&str, i64)]) -> Node {
    let attributes =
        ints.iter().map(|(name, n)| ((*name).to_owned(), Attribute::Int(*n))).collect();
    Node {
        name: op.to_owned(),
        op: op.to_owned(),
        domain: String::new(),
        inputs: Vec::new(),
        outputs: vec![op.to_owned()],
        attributes,
    }
}

fn shape_of(build: &Build, val: &Val) -> Result<Vec<usize>, OpError> {
    match val {
        Val::Known { tensor, .. } => Ok(tensor.shape().to_vec()),
        Val::Codes(codes) => Ok(codes.codes.shape().to_vec()),
        Val::Value(x) => {
            let dims = build.b.shape(x.id).iter().map(Dim::known).collect::<Option<_>>();
            dims.ok_or_else(|| OpError::Bad("a size is negative".into()))
        }
        _ => bad("a sequence to scan must be a tensor"),
    }
}

fn integer(val: &Val) -> Result<i64, OpError> {
    match val {
        Val::Known { tensor, .. } => match to_ints(tensor)?.as_slice() {
            [n] => Ok(*n),
            other => bad(format!("one number is needed, not {}", other.len())),
        },
        Val::Value(x) => Err(OpError::Need(x.id)),
        _ => bad("a number is needed"),
    }
}

fn truth(val: &Val) -> Result<bool, OpError> {
    Ok(integer(val)? != 0)
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

/// Applies an operator: now, when its inputs are known and its results are small, else in the
/// graph.
fn apply(
    build: &mut Build,
    node: &Node,
    op: ops::OpFn,
    inputs: Vec<Val>,
    opset: i64,
    refs: Option<&Refs>,
) -> Result<Vec<Val>, OpError> {
    let known =
        |v: &Val| matches!(v, Val::None | Val::Known { .. } | Val::Codes(_) | Val::Strings { .. });
    if inputs.iter().all(known)
        && let Some(outputs) = fold(node, op, &inputs, opset, refs)?
    {
        return Ok(outputs);
    }
    build.b.set_label(&node.name);
    let (b, placed, notes) = (&mut build.b, &mut build.placed, &mut build.notes);
    let mut outputs = op(&mut Context { b, node, inputs, opset, refs, placed, notes })?;
    for val in &mut outputs {
        if let Val::Value(x) = val {
            checked_size(build.b.fact(x.id))?;
            if let Some(tensor) = build.b.graph().tensor(x.id) {
                *val = Val::Known { elem: x.elem, tensor: tensor.clone() };
            }
        }
    }
    Ok(outputs)
}

/// Elements of a value of known shape that is not too large.
fn checked_size(fact: &Fact) -> Result<usize, OpError> {
    let dims: Option<Vec<usize>> = fact.shape.iter().map(Dim::known).collect();
    let Some(dims) = dims else { return bad(format!("its result {fact} has a negative size")) };
    match byte_len(fact.dtype, &dims) {
        Ok(n) if n <= LARGEST_VALUE => Ok(dims.iter().product()),
        _ => bad(format!("its result {fact} takes more than {LARGEST_VALUE} bytes")),
    }
}

fn fold(
    node: &Node,
    op: ops::OpFn,
    inputs: &[Val],
    opset: i64,
    refs: Option<&Refs>,
) -> Result<Option<Vec<Val>>, OpError> {
    let mut b = Builder::new();
    let (mut placed, mut notes) = (Placed::default(), Vec::new());
    let inputs = inputs.to_vec();
    let mut outputs = op(&mut Context {
        b: &mut b,
        node,
        inputs,
        opset,
        refs,
        placed: &mut placed,
        notes: &mut notes,
    })?;
    let mut graph = b.finish();
    let mut elements = 0usize;
    for value in &graph.values {
        if matches!(value.source, Source::Node(..)) {
            elements = elements.saturating_add(checked_size(&value.fact)?);
        }
    }
    if elements > FOLD_ELEMENTS {
        return Ok(None);
    }
    for (i, val) in outputs.iter().enumerate() {
        if let Val::Value(x) = val {
            graph.outputs.push((i.to_string().into(), x.id));
        }
    }
    if graph.outputs.is_empty() {
        return Ok(Some(outputs));
    }
    let made = evaluate(&graph, &BTreeMap::new(), &mut BTreeMap::new())
        .map_err(|e| OpError::Bad(e.to_string()))?;
    for (i, val) in outputs.iter_mut().enumerate() {
        if let (Val::Value(x), Some(tensor)) = (&*val, made.get(&i.to_string())) {
            *val = Val::Known { elem: x.elem, tensor: tensor.clone() };
        }
    }
    Ok(Some(outputs))
}

enum Waiting {
    Number(ValueId),
    Host(HostCall),
}

/// The values that leave a stage.
struct Registers {
    build: Build,
    outputs: Vec<ValueId>,
    from: Vec<Register>,
    number: HashMap<ValueId, usize>,
}

impl Registers {
    fn new(build: Build) -> Registers {
        Registers { build, outputs: Vec::new(), from: Vec::new(), number: HashMap::new() }
    }

    fn register(&mut self, id: ValueId) -> usize {
        if let Some(&n) = self.number.get(&id) {
            return n;
        }
        let kept = self.build.feeds.iter().find(|(_, input)| *input == id);
        self.from.push(match kept {
            Some((register, _)) => Register::Kept(*register),
            None => {
                self.outputs.push(id);
                Register::Computed(self.outputs.len() - 1)
            }
        });
        self.number.insert(id, self.from.len() - 1);
        self.from.len() - 1
    }

    /// Turns a value of the graph into a register, or into a tensor when it is a constant.
    fn keep(&mut self, val: &mut Val) {
        let Val::Value(x) = val else { return };
        if let Some(tensor) = self.build.b.graph().tensor(x.id) {
            *val = Val::Known { elem: x.elem, tensor: tensor.clone() };
            return;
        }
        x.id = ValueId(self.register(x.id) as u32);
    }

    fn stage(self, end: End) -> Stage {
        let feeds = self.build.feeds.iter().map(|(register, _)| *register).collect();
        let notes = self.build.notes;
        let mut graph = self.build.b.finish();
        for (i, id) in self.outputs.iter().enumerate() {
            graph.outputs.push((format!("o{i}").into(), *id));
        }
        Stage { graph, feeds, registers: self.from, end, notes }
    }
}

fn finish(build: Build, mut outputs: Vec<(String, Val)>) -> Stage {
    let mut out = Registers::new(build);
    outputs.iter_mut().for_each(|(_, val)| val.visit(&mut |v| out.keep(v)));
    out.stage(End::Done(outputs))
}
