//! The atom interpreter: the definition of what every kernel must compute.
//!
//! It is safe, single-threaded and plain. A kernel that disagrees with it beyond its jet's
//! tolerance is wrong. What it computes is written in docs/atoms.md.

#![forbid(unsafe_code)]

mod atoms;
mod number;
mod prepare;
mod value;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use cyb_ir::{Graph, IrError, Op};
use cyb_tensor::quant::QuantError;
use cyb_tensor::{Bindings, DimError, Tensor, TensorError};

pub use prepare::Prepared;

/// Why a graph cannot be evaluated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InterpError {
    #[error("{what} is missing: give {want}")]
    Missing { what: String, want: String },
    #[error("input '{name}' is unknown: the graph takes {known}")]
    Unknown { name: String, known: String },
    /// A tensor of another dtype, rank or size than the graph's.
    #[error("{what} must be {want}, not {got}")]
    Mismatch { what: String, want: String, got: String },
    #[error("hole '{0}' has no value: a pattern cannot be evaluated")]
    Hole(String),
    #[error("index {index} is outside 0..{len}, axis {axis}")]
    Index { index: i128, len: usize, axis: usize },
    #[error("elements {start}, {start} + {step}, ... ({len} of them) leave 0..{have}, axis {axis}")]
    Slice { start: usize, len: usize, step: i64, have: usize, axis: usize },
    #[error("{from:?} does not hold as many elements as {to:?}")]
    Reshape { from: Vec<usize>, to: Vec<usize> },
    #[error("axis {axis} is empty and has no largest or smallest element")]
    EmptyArg { axis: usize },
    #[error("shape {0:?} has more elements than can be counted")]
    TooLarge(Vec<usize>),
    #[error("quantised rows are written whole and unchanged: decode, combine and encode instead")]
    QuantizedScatter,
    /// Which node, by label and name.
    #[error("{node}: {error}")]
    Node { node: String, error: Box<InterpError> },
    #[error(transparent)]
    Ir(#[from] IrError),
    #[error(transparent)]
    Dim(#[from] DimError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    Quant(#[from] QuantError),
}

/// Evaluates `graph`: its outputs by name. `states` are read, and replaced when the run ends.
///
/// Symbols get their values from the shapes of `inputs` and `states`.
///
/// # Errors
/// An illegal graph, a tensor that is missing or does not fit, and whatever docs/atoms.md names as
/// an error. `states` are then unchanged.
pub fn evaluate(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    states: &mut BTreeMap<String, Tensor>,
) -> Result<BTreeMap<String, Tensor>, InterpError> {
    Prepared::new(graph)?.run(&Bindings::new(), inputs, states)
}

/// Evaluates one operation, by its definition if it is a jet. `bindings` holds the symbols that
/// its attributes mention.
///
/// To evaluate it again and again, keep a [`Prepared::node`].
pub fn evaluate_node(
    op: &Op,
    inputs: &[Tensor],
    bindings: &Bindings,
) -> Result<Vec<Tensor>, InterpError> {
    let facts: Vec<cyb_ir::Fact> = inputs.iter().map(cyb_ir::Fact::of).collect();
    Prepared::node(&prepare::bound(op, bindings), &facts)?.run_node(inputs, bindings)
}
