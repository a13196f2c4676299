//! What a kernel is on this backend, and the table of all kernels.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use cyb_exec::{Call, ExecError};
use cyb_ir::{Graph, Node, ValueId};
use cyb_simd::AnyIsa;
use cyb_tensor::Tensor;

use crate::io::{Io, RawTensor};
use crate::kernels;
use crate::matmul::{Compute, Native, PackedMatrix};
use crate::memory::WeightMemory;
use crate::shared::SharedWeights;
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

    /// Whether a run reads input `i`: weights that were packed are not read again.
    fn reads(&self, _input: usize) -> bool {
        true
    }

    /// Whether input `i` may lie at any address, since it is read byte by byte.
    fn reads_bytes(&self, _input: usize) -> bool {
        false
    }

    /// Whether the first output may lie where input `i` does, which has its shape: every element is
    /// read before it is written, by the worker that writes it.
    fn overwrites(&self, _input: usize) -> bool {
        false
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String>;
}

/// What a kernel is built from.
pub(crate) struct Build<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) node: &'a Node,
    pub(crate) isa: AnyIsa,
    pub(crate) team: &'a Team,
    pub(crate) compute: Compute,
    pub(crate) weights: &'a mut Weights,
    pub(crate) shared: &'a SharedWeights,
}

/// Packed weights of a program.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    memory: WeightMemory,
    /// By the value they were and whether it is turned, so that two users of a weight share one copy.
    packed: HashMap<(ValueId, bool), Arc<PackedMatrix>>,
    /// Matrices that are packed later, each with the value that is multiplied with it.
    pub(crate) later: Vec<(Arc<PackedMatrix>, ValueId)>,
}

impl Weights {
    pub(crate) fn bytes(&self) -> usize {
        self.packed.values().map(|p| p.bytes()).sum()
    }
}

impl Build<'_> {
    /// A weight matrix [n, k] in this backend's layout, or [k, n] where it is `turned`. One that is
    /// not turned may have more axes, which are `k` together. A quantised one of a mapped file is packed
    /// when it is needed a second time, others at once. The mapped bytes it came from are released.
    pub(crate) fn pack(
        &mut self,
        v: ValueId,
        turned: bool,
    ) -> Result<Arc<PackedMatrix>, ExecError> {
        if let Some(packed) = self.weights.packed.get(&(v, turned)) {
            return Ok(packed.clone());
        }
        let fail =
            |why: String| ExecError::Step { step: format!("packing {}", self.node.label), why };
        let tensor = self.graph.tensor(v).ok_or_else(|| fail("it is no weight".into()))?;
        let [n, k] = match (tensor.shape(), turned) {
            (&[n, ref rest @ ..], false) if !rest.is_empty() => [n, rest.iter().product()],
            (&[k, n], true) => [n, k],
            _ => return Err(fail(format!("a matrix has two axes, not {:?}", tensor.shape()))),
        };
        let form = if turned { "matrix, turned" } else { "matrix" };
        let packed = match self.shared.get(tensor, form) {
            Some(packed) => packed,
            None if tensor.dtype().is_quantized() && tensor.bytes().is_mapped() && !turned => {
                let (memory, bytes) = (&mut self.weights.memory, tensor.bytes().clone());
                let packed = PackedMatrix::pack_later(memory, [n, k], tensor.dtype(), bytes)
                    .map_err(|e| fail(e.to_string()))?;
                let packed = Arc::new(packed);
                self.shared.put(tensor, form, &packed);
                packed
            }
            None => {
                let source =
                    Native { dtype: tensor.dtype(), bytes: tensor.bytes().as_slice(), turned };
                let memory = &mut self.weights.memory;
                let done = |part| tensor.bytes().release_range(part);
                let (team, shape) = (self.team, [n, k]);
                let packed =
                    PackedMatrix::pack_for(self.compute, memory, team, shape, source, &done)
                        .map_err(|e| fail(e.to_string()))?;
                tensor.bytes().release();
                let packed = Arc::new(packed);
                self.shared.put(tensor, form, &packed);
                packed
            }
        };
        if !packed.is_made() {
            self.weights.later.push((packed.clone(), self.node.inputs[0]));
        }
        self.weights.packed.insert((v, turned), packed.clone());
        Ok(packed)
    }

    /// For each list of rows of a weight [n, k] the matrix of these rows, for products in `f32`.
    pub(crate) fn pack_rows(
        &mut self,
        v: ValueId,
        form: &str,
        parts: &[Vec<usize>],
    ) -> Result<Arc<Vec<PackedMatrix>>, ExecError> {
        let fail =
            |why: String| ExecError::Step { step: format!("packing {}", self.node.label), why };
        let tensor = self.graph.tensor(v).ok_or_else(|| fail("it is no weight".into()))?;
        if let Some(made) = self.shared.get(tensor, form) {
            return Ok(made);
        }
        let (dtype, bytes) = (tensor.dtype(), tensor.bytes().as_slice());
        let &[_, k] = tensor.shape() else {
            return Err(fail(format!("a matrix has two axes, not {:?}", tensor.shape())));
        };
        let row_bytes = dtype.bytes_for(k).ok_or_else(|| fail("its rows are no blocks".into()))?;
        let mut packed = Vec::with_capacity(parts.len());
        for rows in parts {
            let mut own = Vec::with_capacity(rows.len() * row_bytes);
            for &row in rows {
                let line = bytes.get(row * row_bytes..(row + 1) * row_bytes);
                own.extend_from_slice(line.ok_or_else(|| fail(format!("it has no row {row}")))?);
            }
            let source = Native { dtype, bytes: &own, turned: false };
            let (memory, shape) = (&mut self.weights.memory, [rows.len(), k]);
            let done = |_| {};
            packed.push(
                PackedMatrix::pack_for(Compute::F32, memory, self.team, shape, source, &done)
                    .map_err(|e| fail(e.to_string()))?,
            );
        }
        tensor.bytes().release();
        let packed = Arc::new(packed);
        self.shared.put(tensor, form, &packed);
        Ok(packed)
    }

    /// What `make` makes of a weight, unless some program of the backend has it in this form.
    pub(crate) fn pack_as<T: Any + Send + Sync>(
        &self,
        v: ValueId,
        form: &str,
        make: impl FnOnce(&Tensor) -> Result<T, String>,
    ) -> Result<Arc<T>, ExecError> {
        let fail =
            |why: String| ExecError::Step { step: format!("packing {}", self.node.label), why };
        let tensor = self.graph.tensor(v).ok_or_else(|| fail("it is no weight".into()))?;
        if let Some(made) = self.shared.get(tensor, form) {
            return Ok(made);
        }
        let made = Arc::new(make(tensor).map_err(fail)?);
        tensor.bytes().release();
        self.shared.put(tensor, form, &made);
        Ok(made)
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
    kernels::rotary::ROWS,
    kernels::kv_cache::ROWS,
    kernels::attention::ROWS,
    kernels::attention_packed::ROWS,
    kernels::attention_disentangled::ROWS,
    kernels::embedding::ROWS,
    kernels::conv::ROWS,
    kernels::affine::ROWS,
    kernels::lookup::ROWS,
    kernels::integer::ROWS,
    kernels::integer_conv::ROWS,
    kernels::pool::ROWS,
    kernels::resize::ROWS,
    kernels::recurrent::ROWS,
    kernels::softmax::ROWS,
    kernels::sdpa::ROWS,
];

/// The kernel for a call.
pub(crate) fn find(call: &Call<'_>) -> Option<&'static Row> {
    let name = call.op.name();
    KERNELS.iter().flat_map(|rows| rows.iter()).find(|r| r.op == name && (r.supports)(call))
}
