//! An operator applied to what its inputs are: in the graph, or at once where all are known.

use std::collections::BTreeMap;

use cyb_formats::onnx::Node;
use cyb_interp::evaluate;
use cyb_ir::{Builder, Fact, Source};
use cyb_tensor::{Dim, byte_len};

use super::Build;
use crate::context::{Context, Placed, Refs};
use crate::error::{OpError, bad};
use crate::ops;
use crate::value::Val;

/// What depends on constants only is computed during the import when it has at most this many
/// elements in all.
const FOLD_ELEMENTS: usize = 1 << 23;

/// No tensor of a run may take more bytes.
const LARGEST_VALUE: usize = 1 << 34;

/// Applies an operator: now, when its inputs are known and its results are small, else in the
/// graph.
pub(super) fn apply(
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

/// Whether sizes multiply without overflow, whichever of them are multiplied: an axis of length 0 hides
/// no others.
pub(super) fn multiplies(dims: &[usize]) -> bool {
    let most = isize::MAX as usize;
    dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1))).is_some_and(|n| n <= most)
}

/// Elements of a value of known shape that is not too large.
fn checked_size(fact: &Fact) -> Result<usize, OpError> {
    let dims: Option<Vec<usize>> = fact.shape.iter().map(Dim::known).collect();
    let Some(dims) = dims else { return bad(format!("its result {fact} has a negative size")) };
    match byte_len(fact.dtype, &dims) {
        Ok(n) if n <= LARGEST_VALUE && multiplies(&dims) => Ok(dims.iter().product()),
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
