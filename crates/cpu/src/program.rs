//! Preparing a graph: its kernels in order, and where each value's bytes are.

use std::collections::HashMap;
use std::sync::Arc;

use cyb_exec::{
    Backend, Call, CompiledDim, ExecError, Kernel as KernelInfo, PlanMode, Program, Session,
    StepInfo, Symbols,
};
use cyb_ir::{Atom, Graph, Op, Read, Source, ValueId};
use cyb_simd::AnyIsa;
use cyb_tensor::{AlignedBytes, Bytes, DType};

use crate::alias::Aliases;
use crate::atoms::Atoms;
use crate::io::{MAX_RANK, RawTensor};
use crate::kernel::{self, Build, Kernel, Weights};
use crate::kernels::chain::{ChainKernel, chains};
use crate::later::LaterWeights;
use crate::matmul::Compute;
use crate::session::CpuSession;
use crate::shared::SharedWeights;
use crate::team::Team;

/// The CPU, with a team of threads and an instruction set chosen at run time.
#[derive(Debug)]
pub struct CpuBackend {
    team: Arc<Team>,
    isa: AnyIsa,
    kernels: bool,
    shared: Arc<SharedWeights>,
    compute: Compute,
}

impl CpuBackend {
    /// The best instruction set this CPU has.
    pub fn new(team: Arc<Team>) -> CpuBackend {
        CpuBackend::with_isa(team, AnyIsa::best())
    }

    /// A given instruction set, which the CPU must have.
    pub fn with_isa(team: Arc<Team>, isa: AnyIsa) -> CpuBackend {
        CpuBackend { team, isa, kernels: true, compute: Compute::F32, shared: Arc::default() }
    }

    /// What products with floating-point weights are computed in.
    #[must_use]
    pub fn computing(self, compute: Compute) -> CpuBackend {
        CpuBackend { compute, ..self }
    }

    /// No kernels: every call runs through its definition.
    pub fn atoms(team: Arc<Team>) -> CpuBackend {
        CpuBackend { kernels: false, ..CpuBackend::new(team) }
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        if self.kernels { "cpu" } else { "atoms" }
    }

    fn device(&self) -> String {
        format!("{} threads, {}", self.team.count(), self.isa.kind())
    }

    fn kernel(&self, call: &Call<'_>) -> Option<KernelInfo> {
        if !self.kernels {
            return None;
        }
        kernel::find(call).map(|row| KernelInfo { name: row.name })
    }

    fn runs_atoms(&self) -> bool {
        true
    }

    fn prepare(&self, graph: Graph, mode: PlanMode) -> Result<Box<dyn Program>, ExecError> {
        Ok(Box::new(CpuProgram(Arc::new(prepare(self, graph, mode)?))))
    }
}

/// Where a value's bytes are.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Part of the arena: the number of the buffer, and bytes from its start.
    Buffer(usize, usize),
    Fixed(Bytes),
    /// A weight that no step reads, since its packed form is read instead.
    Packed,
    State(usize),
}

#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<CompiledDim>,
    pub(crate) place: Place,
}

#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) kernel: Box<dyn Kernel>,
    /// Operands in the session's table: inputs, then outputs.
    pub(crate) inputs: std::ops::Range<usize>,
    pub(crate) outputs: std::ops::Range<usize>,
    pub(crate) info: StepInfo,
}

#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) team: Arc<Team>,
    pub(crate) mode: PlanMode,
    pub(crate) symbols: Symbols,
    pub(crate) values: Vec<Layout>,
    pub(crate) steps: Vec<Step>,
    /// Value of each operand of each step.
    pub(crate) operands: Vec<usize>,
    /// Steps between which each buffer is alive; an input is alive from the start, an output to
    /// the end.
    pub(crate) alive: Vec<(usize, usize)>,
    /// Values that share each buffer.
    pub(crate) buffer_values: Vec<Vec<usize>>,
    pub(crate) inputs: Vec<usize>,
    pub(crate) outputs: Vec<usize>,
    pub(crate) states: Vec<usize>,
    pub(crate) weight_bytes: usize,
    pub(crate) later: LaterWeights,
}

#[derive(Debug)]
struct CpuProgram(Arc<Prepared>);

pub(crate) fn prepare(
    backend: &CpuBackend,
    graph: Graph,
    mode: PlanMode,
) -> Result<Prepared, ExecError> {
    let symbols = Symbols::of(&graph);
    let mut places: HashMap<ValueId, Place> = HashMap::new();
    let mut alive: Vec<(usize, usize)> = Vec::new();
    let mut states = Vec::new();
    let (live_values, live_nodes) = graph.live();
    // A trace sees every value, so there each operation is a step of its own.
    let chained = backend.kernels && mode == PlanMode::Reuse;
    let (mut chains, inside) = match chained {
        true => chains(&graph, &live_nodes, &|v| is_overwritten(&graph, v)),
        false => (HashMap::new(), vec![false; graph.nodes.len()]),
    };
    let aliases = match chained {
        true => Aliases::of(&graph, &live_nodes, &chains, &inside),
        false => Aliases::default(),
    };
    // The buffer of each value that lies in no other.
    let mut buffers: HashMap<ValueId, usize> = HashMap::new();

    for v in graph.value_ids() {
        let value = graph.value(v);
        let place = match &value.source {
            Source::Weight(_, tensor, _) | Source::Const(tensor) => {
                Place::Fixed(tensor.bytes().clone())
            }
            Source::State(_) => {
                states.push(v.index());
                Place::State(states.len() - 1)
            }
            Source::Input(_) | Source::Hole(_) => {
                alive.push((0, 0));
                buffers.insert(v, alive.len() - 1);
                Place::Buffer(alive.len() - 1, 0)
            }
            Source::Iota | Source::Node(..) => continue,
        };
        places.insert(v, place);
    }
    let mut steps = Vec::new();
    let mut operands: Vec<usize> = Vec::new();
    let mut weights = Weights::default();
    // Leaves that a step computes: their length is known only when a run is bound.
    for v in graph.value_ids().filter(|v| live_values[v.index()]) {
        if matches!(graph.value(v).source, Source::Iota) {
            alive.push((steps.len(), steps.len()));
            places.insert(v, Place::Buffer(alive.len() - 1, 0));
            let start = operands.len();
            operands.push(v.index());
            steps.push(Step {
                kernel: Box::new(crate::kernels::views::Iota),
                inputs: start..start,
                outputs: start..start + 1,
                info: info(backend, "iota", "iota", ""),
            });
        }
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        if !live_nodes[index] || inside[index] {
            continue;
        }
        let now = steps.len();
        let chain = chains.remove(&index).filter(|chain| chain.len() > 1);
        let inputs = chain.as_ref().map_or(&node.inputs, |chain| &chain.inputs).clone();
        for v in &inputs {
            if let Some(Place::Buffer(b, _)) = places.get(v) {
                alive[*b].1 = alive[*b].1.max(now);
            }
        }
        // A reshape is the same bytes under another shape.
        if let Op::Atom(Atom::Read(Read::Reshape(_))) = &node.op {
            places.insert(node.outputs[0], places[&node.inputs[0]].clone());
            continue;
        }
        let call = Call::of(&graph, node);
        let row = if backend.kernels { kernel::find(&call) } else { None };
        let kernel: Option<(Box<dyn Kernel>, _)> = match (chain, row) {
            _ if aliases.is_done(node) => None,
            (Some(chain), _) => {
                let (isa, workers) = (backend.isa, backend.team.count());
                Some((Box::new(ChainKernel { chain, isa, workers }), "chain"))
            }
            (None, Some(row)) => {
                let mut build = Build {
                    graph: &graph,
                    node,
                    isa: backend.isa,
                    compute: backend.compute,
                    team: &backend.team,
                    weights: &mut weights,
                    shared: &backend.shared,
                };
                Some(((row.build)(&mut build)?, row.name))
            }
            (None, None) => {
                let atoms = Atoms { op: node.op.clone(), symbols: symbols.clone() };
                Some((Box::new(atoms), "atoms"))
            }
        };
        for (output, &v) in node.outputs.iter().enumerate() {
            let in_place = match &node.op {
                Op::Jet(jet, _) => jet.in_place.iter().find(|(_, o)| *o == output),
                Op::Atom(_) => None,
            };
            let place = match in_place {
                Some((input, _)) => places[&node.inputs[*input]].clone(),
                None => {
                    let home = aliases.home(v);
                    let taken = (0..inputs.len()).find(|&i| {
                        let fits =
                            output == 0 && kernel.as_ref().is_some_and(|k| k.0.overwrites(i));
                        fits && aliases.may_take(&graph, index, inputs[i])
                    });
                    if let Some(i) = taken
                        && let Place::Buffer(buffer, _) = places[&inputs[i]]
                    {
                        buffers.insert(v, buffer);
                    }
                    let buffer = *buffers.entry(home.root).or_insert_with(|| {
                        alive.push((now, now));
                        alive.len() - 1
                    });
                    Place::Buffer(buffer, home.offset)
                }
            };
            places.insert(v, place);
        }
        let Some((kernel, name)) = kernel else { continue };
        let start = operands.len();
        operands.extend(inputs.iter().map(|v| v.index()));
        let middle = operands.len();
        operands.extend(node.outputs.iter().map(|v| v.index()));
        steps.push(Step {
            kernel,
            inputs: start..middle,
            outputs: middle..operands.len(),
            info: info(backend, node.op.name(), name, &node.label),
        });
    }
    let last = steps.len();
    for (_, v) in &graph.outputs {
        if let Some(Place::Buffer(b, _)) = places.get(v) {
            alive[*b].1 = last;
        }
    }
    // Inputs that no step reads still have a place to be filled.
    let mut buffer_values = vec![Vec::new(); alive.len()];
    let mut values = Vec::with_capacity(graph.values.len());
    for v in graph.value_ids() {
        let fact = graph.fact(v);
        if fact.rank() > MAX_RANK {
            return Err(ExecError::Unsupported {
                op: format!("tensors of more than {MAX_RANK} axes"),
                facts: fact.to_string(),
            });
        }
        let place = places.remove(&v).unwrap_or_else(|| Place::Fixed(empty()));
        if let Place::Buffer(b, _) = &place {
            buffer_values[*b].push(v.index());
        }
        let dims = fact.shape.iter().map(|d| symbols.compile(d)).collect();
        values.push(Layout { dtype: fact.dtype, dims, place });
    }
    settle(&graph, &steps, &operands, mode, &mut values);
    let weight_bytes = weights.bytes();
    let matrices = weights.later.into_iter().map(|(m, x)| (m, x.index())).collect();
    Ok(Prepared {
        team: backend.team.clone(),
        mode,
        symbols,
        values,
        steps,
        operands,
        alive,
        buffer_values,
        inputs: graph.inputs().map(|(_, v)| v.index()).collect(),
        outputs: graph.outputs.iter().map(|(_, v)| v.index()).collect(),
        states,
        weight_bytes,
        later: LaterWeights::new(matrices),
    })
}

/// Lets go of fixed bytes that no step reads, and moves those that kernels read as numbers to where
/// numbers may lie.
fn settle(
    graph: &Graph,
    steps: &[Step],
    operands: &[usize],
    mode: PlanMode,
    values: &mut [Layout],
) {
    // A trace shows every operand.
    let shown = mode != PlanMode::Reuse;
    let mut read = vec![shown; values.len()];
    let mut as_numbers = vec![false; values.len()];
    for step in steps {
        for (i, &v) in operands[step.inputs.clone()].iter().enumerate() {
            let reads = step.kernel.reads(i);
            read[v] |= reads;
            as_numbers[v] |= reads && !step.kernel.reads_bytes(i);
        }
    }
    graph.outputs.iter().for_each(|(_, v)| read[v.index()] = true);
    // One copy for a value and its reshapes.
    let mut moved: HashMap<usize, Bytes> = HashMap::new();
    for (v, layout) in values.iter_mut().enumerate() {
        let Place::Fixed(bytes) = &layout.place else { continue };
        if !read[v] {
            layout.place = Place::Packed;
            continue;
        }
        let start = bytes.as_slice().as_ptr() as usize;
        let size = layout.dtype.layout().bytes;
        if as_numbers[v] && size.is_power_of_two() && !start.is_multiple_of(size) {
            let copy = || Bytes::owned(AlignedBytes::from_slice(bytes.as_slice()));
            let copy = moved.entry(start).or_insert_with(copy).clone();
            layout.place = Place::Fixed(copy);
        }
    }
}

/// Whether a value is a state or what a jet makes of one in place: a later step overwrites it.
fn is_overwritten(graph: &Graph, mut v: ValueId) -> bool {
    while let Some(node) = graph.producer(v) {
        match &node.op {
            Op::Jet(jet, _) => return !jet.in_place.is_empty(),
            Op::Atom(Atom::Read(Read::Reshape(_))) => v = node.inputs[0],
            Op::Atom(_) => return false,
        }
    }
    matches!(graph.value(v).source, Source::State(_))
}

fn empty() -> Bytes {
    Bytes::owned(cyb_tensor::AlignedBytes::zeroed(0))
}

fn info(backend: &CpuBackend, op: &'static str, kernel: &'static str, label: &str) -> StepInfo {
    StepInfo { op, kernel, backend: backend.name(), label: label.to_owned() }
}

impl Prepared {
    /// The dimensions and bytes of a value when the symbols have these values.
    pub(crate) fn resolve(&self, value: usize, bound: &[usize]) -> Result<RawTensor, ExecError> {
        let layout = &self.values[value];
        let mut dims = [0usize; MAX_RANK];
        for (slot, dim) in dims.iter_mut().zip(&layout.dims) {
            *slot = dim.resolve(bound)?;
        }
        let rank = layout.dims.len();
        // Blocks lie along the innermost axis; a tensor without elements may be of any width.
        let bytes = match layout.place {
            Place::Packed => 0,
            _ => cyb_tensor::byte_len(layout.dtype, &dims[..rank])?,
        };
        let start = std::ptr::null_mut();
        Ok(RawTensor { start, bytes, dtype: layout.dtype, dims, rank })
    }
}

impl Program for CpuProgram {
    fn symbols(&self) -> &Symbols {
        &self.0.symbols
    }

    fn steps(&self) -> Vec<StepInfo> {
        self.0.steps.iter().map(|s| s.info.clone()).collect()
    }

    fn weight_bytes(&self) -> usize {
        self.0.weight_bytes
    }

    fn session(&self, limits: &[usize]) -> Result<Box<dyn Session>, ExecError> {
        Ok(Box::new(CpuSession::new(self.0.clone(), limits)?))
    }
}
