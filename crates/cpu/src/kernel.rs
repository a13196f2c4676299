//! What a kernel is on this backend, and the table of all kernels.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use cyb_exec::{Call, ExecError};
use cyb_ir::{Graph, Node, ValueId};
use cyb_simd::AnyIsa;

use crate::io::{Io, RawTensor};
use crate::kernels;
use crate::matmul::PackedMatrix;
use crate::memory::WeightMemory;
use crate::team::Team;

/// A prepared call. `run` is entered by every worker of the team; between two steps all workers
/// wait for each other.
pub(crate) trait Kernel: Send + Sync + fmt::Debug {
    /// Bytes of scratch the workers share, given the operands at the session's limits.
    fn scratch(&self, _limits: &[RawTensor]) -> usize {
        0
    }

    /// Elements it makes, when each is so little work that a few thousand are made sooner by one
    /// worker than by several that wait for each other; `None` when it always shares its work.
    fn light(&self, _inputs: &[RawTensor], _outputs: &[RawTensor]) -> Option<usize> {
        None
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String>;
}

/// What a kernel is built from.
pub(crate) struct Build<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) node: &'a Node,
    pub(crate) isa: AnyIsa,
    pub(crate) team: &'a Team,
    pub(crate) weights: &'a mut Weights,
}

/// Packed weights of a program.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    memory: WeightMemory,
    /// By the value they were, so that two users of a weight share one copy.
    packed: HashMap<ValueId, Arc<PackedMatrix>>,
}

impl Weights {
    pub(crate) fn bytes(&self) -> usize {
        self.packed.values().map(|p| p.bytes()).sum()
    }
}

impl Build<'_> {
    /// A weight matrix in this backend's layout. The mapped bytes it came from are released.
    pub(crate) fn pack(&mut self, v: ValueId) -> Result<Arc<PackedMatrix>, ExecError> {
        if let Some(packed) = self.weights.packed.get(&v) {
            return Ok(packed.clone());
        }
        let fail =
            |why: String| ExecError::Step { step: format!("packing {}", self.node.label), why };
        let tensor = self.graph.tensor(v).ok_or_else(|| fail("it is no weight".into()))?;
        let [n, k] = *tensor.shape() else {
            return Err(fail(format!("a matrix has two axes, not {:?}", tensor.shape())));
        };
        let bytes = tensor.bytes().as_slice();
        let memory = &mut self.weights.memory;
        let done = |part| tensor.bytes().release_range(part);
        let packed = PackedMatrix::pack(memory, self.team, tensor.dtype(), n, k, bytes, &done)
            .map_err(|e| fail(e.to_string()))?;
        tensor.bytes().release();
        let packed = Arc::new(packed);
        self.weights.packed.insert(v, packed.clone());
        Ok(packed)
    }
}

/// A kernel for one operation.
pub(crate) struct Row {
    /// The jet's or atom's name.
    pub(crate) op: &'static str,
    pub(crate) name: &'static str,
    pub(crate) supports: fn(&Call<'_>) -> bool,
    pub(crate) build: fn(&mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError>,
}

/// Every kernel, preferred ones first. Adding one is a file in `kernels/` and a line here.
pub(crate) static KERNELS: &[&[Row]] = &[
    kernels::linear::ROWS,
    kernels::normalization::ROWS,
    kernels::elementwise::ROWS,
    kernels::chain::ROWS,
    kernels::product::ROWS,
    kernels::reduce::ROWS,
    kernels::views::ROWS,
    kernels::rope::ROWS,
    kernels::kv_cache::ROWS,
    kernels::attention::ROWS,
    kernels::attention_packed::ROWS,
    kernels::attention_disentangled::ROWS,
    kernels::embedding::ROWS,
    kernels::conv::ROWS,
    kernels::pool::ROWS,
    kernels::resize::ROWS,
    kernels::softmax::ROWS,
    kernels::sdpa::ROWS,
];

/// The kernel for a call.
pub(crate) fn find(call: &Call<'_>) -> Option<&'static Row> {
    let name = call.op.name();
    KERNELS.iter().flat_map(|rows| rows.iter()).find(|r| r.op == name && (r.supports)(call))
}
