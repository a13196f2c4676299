//! The boundary between what the runtime knows and what a device does.

use std::fmt;
use std::time::Duration;

use cyb_ir::{Fact, Graph, IrError, Node, Op};
use cyb_tensor::{DimError, TensorError};

use crate::{PlanMode, Room, Symbols};

/// A call as a backend sees it when it is asked for a kernel: no names, no model.
#[derive(Debug)]
pub struct Call<'a> {
    pub op: &'a Op,
    pub inputs: Vec<&'a Fact>,
    pub outputs: Vec<&'a Fact>,
    /// Which inputs are weights or constants, known before any run.
    pub fixed: Vec<bool>,
}

impl<'a> Call<'a> {
    pub fn of(graph: &'a Graph, node: &'a Node) -> Call<'a> {
        Call {
            op: &node.op,
            inputs: node.inputs.iter().map(|&v| graph.fact(v)).collect(),
            outputs: node.outputs.iter().map(|&v| graph.fact(v)).collect(),
            fixed: node.inputs.iter().map(|&v| graph.tensor(v).is_some()).collect(),
        }
    }
}

/// A kernel that would run a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The name under which tests and benches can ask for it.
    pub name: &'static str,
}

/// A device and its kernels.
pub trait Backend: Send + Sync + fmt::Debug {
    fn name(&self) -> &'static str;

    /// The device, for people.
    fn device(&self) -> String;

    /// The kernel this backend has for a call. A backend may run calls without a kernel through
    /// their definition; see [`Backend::runs_atoms`].
    fn kernel(&self, call: &Call<'_>) -> Option<Kernel>;

    /// Whether calls without a kernel run too, as atoms.
    fn runs_atoms(&self) -> bool;

    /// Bytes of the device's own memory that nobody holds now; `None` where weights lie in the
    /// machine's memory.
    ///
    /// # Errors
    /// The device does not answer.
    fn free_memory(&self) -> Result<Option<usize>, ExecError> {
        Ok(None)
    }

    /// Bytes that input number `input` of a call, a weight, takes in a layout that the call's kernel
    /// has for itself; `None` where it stays as in the file, once for all calls.
    fn packed_bytes(&self, _call: &Call<'_>, _input: usize) -> Option<usize> {
        None
    }

    /// Bytes that a call's kernel needs besides its operands, about and at most.
    fn scratch_bytes(&self, _call: &Call<'_>) -> usize {
        0
    }

    /// Prepares everything that does not depend on a run: kernels, weight layouts, steps.
    fn prepare(&self, graph: Graph, mode: PlanMode) -> Result<Box<dyn Program>, ExecError>;
}

/// A prepared graph.
pub trait Program: Send + Sync + fmt::Debug {
    fn symbols(&self) -> &Symbols;

    /// The steps in their order.
    fn steps(&self) -> Vec<StepInfo>;

    /// Bytes held by weights in the backend's own layout.
    fn weight_bytes(&self) -> usize;

    /// Memory for runs whose symbols stay at or below `limits` (one per symbol).
    fn session(&self, limits: &[usize]) -> Result<Box<dyn Session>, ExecError>;
}

/// One step, for people and traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepInfo {
    /// The jet or atom.
    pub op: &'static str,
    pub kernel: &'static str,
    pub backend: &'static str,
    /// Where in the model it stands.
    pub label: String,
}

/// Time a session has spent in one step so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTime {
    pub calls: u64,
    pub nanos: u64,
}

/// Number of a state in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId(pub usize);

/// Bytes a session holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    pub arena: usize,
    pub states: usize,
    pub scratch: usize,
}

/// How many elements of a row [`Session::top`] gives.
pub const TOP: usize = 128;

/// The first elements of rows, from the largest down, of equal ones those that come first in the row
/// first: `[rows, TOP]`. Minus infinity and `u32::MAX` where a row has no more.
#[derive(Clone, Copy, Debug)]
pub struct Top<'a> {
    pub values: &'a [f32],
    /// Where in the row each is.
    pub places: &'a [u32],
}

/// Sees every step of a traced run.
pub trait Observer {
    /// Called after a step with the bytes it read and wrote.
    fn step(&mut self, info: &StepInfo, inputs: &[&[u8]], outputs: &[&[u8]]);
}

/// The memory and state of one user of a program.
pub trait Session: Send + fmt::Debug {
    /// Makes room for runs up to `limits`. States keep their content as far as it fits.
    fn resize(&mut self, limits: &[usize]) -> Result<(), ExecError>;

    /// Binds the symbols for the runs that follow.
    fn bind(&mut self, values: &[usize]) -> Result<(), ExecError>;

    /// The bytes of input number `index` (in the graph's order) under the present binding, to be
    /// filled before `run`.
    fn input(&mut self, index: usize) -> &mut [u8];

    fn run(&mut self) -> Result<(), ExecError>;

    /// As `run`, showing each step.
    fn run_traced(&mut self, observer: &mut dyn Observer) -> Result<(), ExecError>;

    /// The bytes of output number `index` of the last run.
    fn output(&mut self, index: usize) -> Result<&[u8], ExecError>;

    /// The place of the largest element in each row of output number `index` of the last run, the
    /// first of several; `u32::MAX` for rows with a NaN or plus infinity. None where the device has no
    /// better way than to give the output.
    fn largest(&mut self, _index: usize) -> Result<Option<&[u32]>, ExecError> {
        Ok(None)
    }

    /// The [`TOP`] first elements of each row of output number `index` of the last run; a row with a
    /// NaN or plus infinity begins with a NaN. None as for [`Session::largest`].
    fn top(&mut self, _index: usize) -> Result<Option<Top<'_>>, ExecError> {
        Ok(None)
    }

    /// For each row of output number `index` of the last run the sum of
    /// `exp((element - largest) * scale)`, with the bits that the same sum has on the processor
    /// (`cyb_sample::mass`). None as for [`Session::largest`].
    fn exponentials(&mut self, _index: usize, _scale: f32) -> Result<Option<&[f64]>, ExecError> {
        Ok(None)
    }

    /// The resolved shape of output number `index`.
    fn output_shape(&self, index: usize) -> Vec<usize>;

    /// The content of a state.
    fn state(&mut self, id: StateId) -> Result<&[u8], ExecError>;

    /// Replaces the content of a state.
    fn set_state(&mut self, id: StateId, bytes: &[u8]) -> Result<(), ExecError>;

    /// Times steps one by one from now on, or no longer, where that makes runs slower. Backends to
    /// which it makes no difference always do.
    fn time_steps(&mut self, _on: bool) {}

    /// Time per step since the session was made or `reset_times` was called.
    fn times(&self) -> &[StepTime];

    fn reset_times(&mut self);

    /// The part of the time of runs that belongs to loading, such as packing weights after their first
    /// use. Steps do not count it.
    fn loading(&self) -> Duration {
        Duration::ZERO
    }

    fn memory(&self) -> MemoryUse;
}

/// Why something cannot be prepared or run.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error(transparent)]
    Graph(#[from] IrError),
    #[error(transparent)]
    Dim(#[from] DimError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error("no backend here runs {op} ({facts})")]
    Unsupported { op: String, facts: String },
    #[error("{symbol} is {value}, but the session was made for at most {limit}")]
    Limit { symbol: String, value: usize, limit: usize },
    #[error("{0}")]
    Room(Box<Room>),
    #[error("{what} needs {bytes} bytes of memory, which cannot be had")]
    Memory { what: &'static str, bytes: usize },
    #[error("input '{name}': {why}")]
    Input { name: String, why: String },
    #[error("{step}: {why}")]
    Step { step: String, why: String },
}
