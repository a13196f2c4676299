//! What a step is on this backend: given its operands' addresses and sizes, a list of launches.

use std::collections::HashMap;
use std::sync::Arc;

use cyb_exec::{Call, ExecError};
use cyb_ir::{Attrs, Graph, Op as IrOp, ValueId};
use cyb_tensor::DType;

use crate::driver::{CudaError, Function, Gpu, Launch, Memory, Parameter};
use crate::modules::Modules;

/// The most axes of a tensor.
pub(crate) const MAX_RANK: usize = 6;

/// A tensor in GPU memory under the present binding.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Operand {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) dtype: Option<DType>,
    dims: [usize; MAX_RANK],
    rank: usize,
}

impl Operand {
    pub(crate) fn new(dtype: DType, dims: [usize; MAX_RANK], rank: usize, bytes: usize) -> Operand {
        Operand { address: 0, bytes, dtype: Some(dtype), dims, rank }
    }

    pub(crate) fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    pub(crate) fn elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// The last axis; 1 for a scalar.
    pub(crate) fn width(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// How many rows of `width` there are.
    pub(crate) fn rows(&self) -> usize {
        self.dims().iter().rev().skip(1).product()
    }
}

/// The GPU and what is loaded on it.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) modules: Modules,
    /// Whether what a token gets must not depend on how many tokens share its step.
    pub(crate) batch_invariant: bool,
}

impl Device {
    pub(crate) fn function(&self, module: &'static str, name: &str) -> Result<Function, CudaError> {
        self.modules.get(&self.gpu, module, name)
    }

    /// Whether a kernel may begin before the one ahead has ended: on Hopper, whose modules wait.
    pub(crate) fn overlaps(&self) -> bool {
        self.gpu.is_hopper()
    }
}

/// Memory that a step may use, and where it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scratch {
    /// Free for all steps.
    pub(crate) address: u64,
    /// Zeros, which a step leaves as zeros.
    pub(crate) zeros: u64,
}

/// Bytes of [`Scratch`] that a step needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    pub(crate) scratch: usize,
    pub(crate) zeros: usize,
}

/// A prepared step. Operands are its inputs, then its outputs.
pub(crate) trait Op: Send + Sync + std::fmt::Debug {
    /// Memory for operands of at most these sizes.
    fn needs(&self, _operands: &[Operand]) -> Needs {
        Needs::default()
    }

    /// Appends the launches for these operands.
    fn launches(&self, operands: &[Operand], scratch: Scratch, out: &mut Vec<Launch>);
}

/// What a step is built from.
pub(crate) struct Build<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) device: &'a Arc<Device>,
    pub(crate) weights: &'a mut Weights,
    pub(crate) label: &'a str,
}

/// What a program keeps in GPU memory for its whole life.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    /// Tensors as they are in the file, by value.
    pub(crate) raw: HashMap<ValueId, Arc<Memory>>,
    bytes: usize,
}

impl Weights {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn upload(&mut self, gpu: &Arc<Gpu>, bytes: &[u8]) -> Result<Memory, CudaError> {
        let memory = gpu.upload(bytes)?;
        self.bytes += memory.len();
        Ok(memory)
    }

    /// A tensor's bytes as they are.
    pub(crate) fn raw(
        &mut self,
        graph: &Graph,
        gpu: &Arc<Gpu>,
        v: ValueId,
    ) -> Result<(), ExecError> {
        if let (None, Some(tensor)) = (self.raw.get(&v), graph.tensor(v)) {
            let memory = self.upload(gpu, tensor.bytes().as_slice())?;
            self.raw.insert(v, Arc::new(memory));
        }
        Ok(())
    }
}

/// A kernel of the table.
pub(crate) struct Row {
    /// The jet's name.
    pub(crate) op: &'static str,
    pub(crate) name: &'static str,
    pub(crate) supports: fn(&Call<'_>) -> bool,
}

pub(crate) fn attrs_of(op: &IrOp) -> &Attrs {
    static NONE: std::sync::LazyLock<Attrs> = std::sync::LazyLock::new(Attrs::new);
    match op {
        IrOp::Jet(_, attrs) => attrs,
        IrOp::Atom(_) => &NONE,
    }
}

/// What stands before a product; the fields of `Source` in `common.cuh`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Before {
    Plain,
    /// rmsnorm with this epsilon.
    Norm(f32),
    Gated(Activation),
}

/// The numbering of `common.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    Silu,
    GeluErf,
    GeluTanh,
    GeluQuick,
    Sigmoid,
    Tanh,
    Relu,
}

impl Activation {
    /// `silu`, or a form of GELU.
    pub(crate) fn named(name: &str) -> Activation {
        match name {
            "none" => Activation::GeluErf,
            "tanh" => Activation::GeluTanh,
            "quick" => Activation::GeluQuick,
            _ => Activation::Silu,
        }
    }
}

impl Before {
    /// The `Source` of rows at `x`, with the norm's weight or the gated `up` at `other`.
    pub(crate) fn source(self, x: u64, other: u64) -> Parameter {
        let (kind, activation, eps) = match self {
            Before::Plain => (0, Activation::Silu, 0.0),
            Before::Norm(eps) => (1, Activation::Silu, eps),
            Before::Gated(activation) => (2, activation, 0.0),
        };
        Parameter::new().u64(x).u64(other).i32(kind).i32(activation as usize).f32(eps)
    }
}

/// A launch over `n` elements, 256 a block.
pub(crate) fn per_element(function: Function, n: usize, parameters: Vec<Parameter>) -> Launch {
    let blocks = n.div_ceil(256) as u32;
    Launch { function, grid: (blocks, 1, 1), block: 256, cluster: 1, shared: 0, parameters }
}

/// A launch of one block of 256 threads a row.
pub(crate) fn per_row(function: Function, rows: usize, parameters: Vec<Parameter>) -> Launch {
    Launch { function, grid: (rows as u32, 1, 1), block: 256, cluster: 1, shared: 0, parameters }
}
