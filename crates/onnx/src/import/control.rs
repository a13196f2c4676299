//! Branches and loops: a branch that is taken, and bodies that are walked again and again.

use std::sync::Arc;

use cyb_formats::onnx::{Attribute, Elem, Graph as OnnxGraph, Node, Type, ValueInfo};
use cyb_tensor::{Dim, Tensor};

use super::apply::apply;
use super::{Build, Import};
use crate::error::{OpError, bad};
use crate::frame::{Body, Loop, Scan, Then};
use crate::ops;
use crate::value::{Val, to_ints};

impl Import {
    pub(super) fn branch(&mut self, node: &Node, inputs: &[Val]) -> Result<(), OpError> {
        let Some(condition) = inputs.first() else { return bad("has no condition") };
        let branch = if truth(condition)? { "then_branch" } else { "else_branch" };
        self.enter(node, branch, Then::Return).map(drop)
    }

    pub(super) fn enter_loop(
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

    pub(super) fn enter_scan(
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

    pub(super) fn after(
        &mut self,
        build: &mut Build,
        mut outputs: Vec<Val>,
    ) -> Result<(), OpError> {
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
