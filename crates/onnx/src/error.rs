//! What can go wrong between an ONNX file and its outputs.

use std::sync::Arc;

use cyb_formats::onnx::Elem;
use cyb_ir::{IrError, ValueId};
use cyb_tensor::{Tensor, TensorError};

use crate::value::Val;

/// A node of a kind that is not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    pub node: String,
    pub op: String,
    /// The default domain is the empty string.
    pub domain: String,
    pub opset: i64,
    pub remedy: &'static str,
}

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let domain = if self.domain.is_empty() { "ai.onnx" } else { &self.domain };
        write!(f, "node {:?}: {} of {domain} {}: {}", self.node, self.op, self.opset, self.remedy)
    }
}

/// Why a model cannot be imported or run.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OnnxError {
    /// Every node that is not supported.
    #[error("{} nodes are not supported: {}", .0.len(), list(.0))]
    Unsupported(Vec<Unsupported>),
    #[error("node {node:?} ({op}): {why}")]
    Node { node: String, op: String, why: String },
    #[error("input {name:?} {why}; the model takes {expected}")]
    Input { name: String, why: String, expected: String },
    #[error("{0}")]
    Run(String),
}

fn list(all: &[Unsupported]) -> String {
    let all: Vec<String> = all.iter().map(Unsupported::to_string).collect();
    all.join("; ")
}

/// A computation that atoms cannot say, since the shape of its result depends on values: it runs
/// between two graphs.
#[derive(Clone)]
pub(crate) struct HostCall {
    pub(crate) inputs: Vec<Val>,
    pub(crate) run: Arc<HostFn>,
}

pub(crate) type HostFn = dyn Fn(&[Tensor]) -> Result<Vec<(Elem, Tensor)>, String> + Send + Sync;

impl std::fmt::Debug for HostCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostCall").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

/// Why an operator makes no nodes.
#[derive(Debug)]
pub(crate) enum OpError {
    /// It needs the number behind this value, which only a run gives.
    Need(ValueId),
    /// It runs between two graphs.
    Host(HostCall),
    Bad(String),
}

impl From<IrError> for OpError {
    fn from(e: IrError) -> OpError {
        OpError::Bad(e.to_string())
    }
}

impl From<TensorError> for OpError {
    fn from(e: TensorError) -> OpError {
        OpError::Bad(e.to_string())
    }
}

pub(crate) fn bad<T>(why: impl Into<String>) -> Result<T, OpError> {
    Err(OpError::Bad(why.into()))
}
