//! Preparing a graph: kernels, weights in GPU memory, steps.

use std::collections::HashMap;
use std::sync::Arc;

use cyb_exec::{
    Backend, Call, CompiledDim, ExecError, Kernel, PlanMode, Program, Session, StepInfo, Symbols,
};
use cyb_ir::{Atom, Graph, Op as IrOp, Read, Source, ValueId};
use cyb_tensor::DType;

use crate::attention::{self, Attention};
use crate::driver::{CudaError, Gpu, Memory};
use crate::elementwise::{self, Small};
use crate::encoder::{self, LayerNorm, PackedAttention};
use crate::fold::{Folded, fold};
use crate::linear::{self, Linear};
use crate::modules::Modules;
use crate::op::{Before, Build, Device, MAX_RANK, Op, Operand, Row, Weights};
use crate::pack::packed_bytes;
use crate::session::CudaSession;
use crate::views;
use crate::wide::DECODED;

/// Every kernel. Adding one is a row in its file.
static KERNELS: &[&[Row]] = &[linear::ROWS, elementwise::ROWS, attention::ROWS, encoder::ROWS];

/// The first NVIDIA GPU of this machine.
#[derive(Debug)]
pub struct CudaBackend {
    device: Arc<Device>,
}

impl CudaBackend {
    /// Tokens of a prompt that keep a GPU busy: two waves of blocks of 128 rows and 256 tokens for
    /// the narrowest product of an 8B model.
    pub const STEP_TOKENS: usize = 2048;

    /// With `batch_invariant` a token's bits depend on its own sequence only, not on how many other
    /// tokens share a step; prompts and large batches then take longer.
    ///
    /// # Errors
    /// There is no driver, or one too old; no GPU, or one too old.
    pub fn open(batch_invariant: bool) -> Result<CudaBackend, CudaError> {
        let device = Device { gpu: Gpu::open()?, modules: Modules::default(), batch_invariant };
        Ok(CudaBackend { device: Arc::new(device) })
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn device(&self) -> String {
        self.device.gpu.device_line()
    }

    fn kernel(&self, call: &Call<'_>) -> Option<Kernel> {
        find(call)
    }

    fn runs_atoms(&self) -> bool {
        false
    }

    fn free_memory(&self) -> Result<Option<usize>, ExecError> {
        Ok(Some(self.device.gpu.free_memory()?))
    }

    fn packed_bytes(&self, call: &Call<'_>, input: usize) -> Option<usize> {
        if !is_weight_of(call, input) {
            return None;
        }
        let fact = call.inputs[input];
        let [n, k] = &fact.shape[..] else { return None };
        packed_bytes(fact.dtype, n.known()?, k.known()?)
    }

    fn scratch_bytes(&self, call: &Call<'_>) -> usize {
        let weights = linear::weights(call).filter(|_| self.device.gpu.is_hopper());
        let halves = |i: usize| {
            let elems = call.inputs[i].shape.iter().map(|d| d.known()).product::<Option<usize>>();
            elems.map_or(0, |n| n.saturating_mul(2))
        };
        // Decoded weights, for long prompts.
        weights.map_or(0, |range| range.map(halves).max().unwrap_or(0).min(DECODED))
    }

    fn prepare(&self, graph: Graph, mode: PlanMode) -> Result<Box<dyn Program>, ExecError> {
        Ok(Box::new(CudaProgram(Arc::new(prepare(&self.device, graph, mode)?))))
    }
}

/// The kernel for a call. A reshape is one: it costs nothing.
pub(crate) fn find(call: &Call<'_>) -> Option<Kernel> {
    if call.inputs.iter().chain(&call.outputs).any(|f| f.rank() > MAX_RANK) {
        return None;
    }
    match call.op {
        IrOp::Atom(Atom::Read(Read::Reshape(_))) => Some(Kernel { name: "view" }),
        IrOp::Atom(_) => match elementwise::small(call) {
            Some(Small::Add | Small::Mul | Small::Max) => Some(Kernel { name: "binary" }),
            Some(Small::Take) => Some(Kernel { name: "embedding" }),
            Some(Small::Store) => Some(Kernel { name: "kv_cache" }),
            None => views::kernel(call).map(|name| Kernel { name }),
        },
        IrOp::Jet(..) => {
            let name = call.op.name();
            let mut rows = KERNELS.iter().flat_map(|rows| rows.iter());
            let row = rows.find(|r| r.op == name && (r.supports)(call))?;
            Some(Kernel { name: row.name })
        }
    }
}

/// Where a value's bytes are.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Part of the arena, by number of the buffer.
    Buffer(usize),
    Input(usize),
    Fixed(Arc<Memory>),
    State(usize),
    /// No step reads or writes it.
    Nowhere,
}

#[derive(Debug)]
pub(crate) struct Layout {
    dtype: DType,
    dims: Vec<CompiledDim>,
    pub(crate) place: Place,
}

#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) op: Box<dyn Op>,
    /// Values: inputs, then outputs.
    pub(crate) operands: Vec<usize>,
    pub(crate) inputs: usize,
    pub(crate) info: StepInfo,
}

#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) device: Arc<Device>,
    pub(crate) mode: PlanMode,
    pub(crate) symbols: Symbols,
    pub(crate) values: Vec<Layout>,
    pub(crate) steps: Vec<Step>,
    /// Steps between which each buffer is alive.
    pub(crate) alive: Vec<(usize, usize)>,
    /// Values that share each buffer.
    pub(crate) buffer_values: Vec<Vec<usize>>,
    pub(crate) inputs: Vec<usize>,
    pub(crate) outputs: Vec<usize>,
    pub(crate) states: Vec<usize>,
    weight_bytes: usize,
}

impl Prepared {
    /// A value's sizes when the symbols have these values.
    pub(crate) fn resolve(&self, value: usize, bound: &[usize]) -> Result<Operand, ExecError> {
        let layout = &self.values[value];
        let mut dims = [0usize; MAX_RANK];
        for (slot, dim) in dims.iter_mut().zip(&layout.dims) {
            *slot = dim.resolve(bound)?;
        }
        let rank = layout.dims.len();
        let bytes = cyb_tensor::byte_len(layout.dtype, &dims[..rank])?;
        // Kernels count in 32 bits along each axis.
        if dims[..rank].iter().any(|&n| i32::try_from(n).is_err()) {
            return Err(ExecError::Memory { what: "a tensor for the GPU", bytes });
        }
        Ok(Operand::new(layout.dtype, dims, rank, bytes))
    }
}

#[derive(Debug)]
struct CudaProgram(Arc<Prepared>);

impl Program for CudaProgram {
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
        Ok(Box::new(CudaSession::new(self.0.clone(), limits)?))
    }
}

/// The values of a program while it is made.
struct Making<'a> {
    graph: &'a Graph,
    device: &'a Arc<Device>,
    weights: Weights,
    places: HashMap<ValueId, Place>,
    alive: Vec<(usize, usize)>,
    steps: Vec<Step>,
}

impl Making<'_> {
    fn new_buffer(&mut self) -> Place {
        let now = self.steps.len();
        self.alive.push((now, now));
        Place::Buffer(self.alive.len() - 1)
    }

    /// Makes sure that an input of the step to come is in GPU memory until then.
    fn read(&mut self, v: ValueId) -> Result<(), ExecError> {
        let now = self.steps.len();
        if let Some(Place::Buffer(b)) = self.places.get(&v) {
            self.alive[*b].1 = self.alive[*b].1.max(now);
        }
        if matches!(self.places.get(&v), Some(Place::Nowhere)) {
            self.weights.raw(self.graph, &self.device.gpu, v)?;
            if let Some(memory) = self.weights.raw.get(&v) {
                self.places.insert(v, Place::Fixed(memory.clone()));
            }
        }
        Ok(())
    }

    fn push(&mut self, op: Box<dyn Op>, inputs: &[ValueId], outputs: &[ValueId], info: StepInfo) {
        let operands = inputs.iter().chain(outputs).map(|v| v.index()).collect();
        self.steps.push(Step { op, operands, inputs: inputs.len(), info });
    }
}

fn prepare(device: &Arc<Device>, graph: Graph, mode: PlanMode) -> Result<Prepared, ExecError> {
    device.gpu.enter()?;
    let symbols = Symbols::of(&graph);
    let (_, live) = graph.live();
    let folds = fold(&graph, &live, mode == PlanMode::WriteNewOnly);
    let mut m = Making {
        graph: &graph,
        device,
        weights: Weights::default(),
        places: HashMap::new(),
        alive: Vec::new(),
        steps: Vec::new(),
    };
    let (mut inputs, mut states) = (Vec::new(), Vec::new());
    for (_, v) in graph.inputs() {
        m.places.insert(v, Place::Input(inputs.len()));
        inputs.push(v.index());
    }
    for v in graph.value_ids() {
        match &graph.value(v).source {
            Source::State(_) => {
                m.places.insert(v, Place::State(states.len()));
                states.push(v.index());
            }
            Source::Weight(..) | Source::Const(_) => {
                m.places.insert(v, Place::Nowhere);
            }
            Source::Input(_) | Source::Hole(_) | Source::Iota | Source::Node(..) => {}
        }
    }
    for (index, node) in graph.nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
        // A reshape is the same bytes under another shape.
        if let IrOp::Atom(Atom::Read(Read::Reshape(_))) = &node.op {
            m.read(node.inputs[0])?;
            let place = m.places[&node.inputs[0]].clone();
            m.places.insert(node.outputs[0], place);
            continue;
        }
        let kernel = find(&Call::of(&graph, node)).ok_or_else(|| ExecError::Unsupported {
            op: node.op.name().to_owned(),
            facts: "on the GPU".into(),
        })?;
        let stores = elementwise::small(&Call::of(&graph, node)) == Some(Small::Store);
        let state = matches!(m.places.get(&node.inputs[0]), Some(Place::State(_)));
        // Writes in place have no memory of their own, whoever does them.
        let in_place = |output: usize| match &node.op {
            IrOp::Jet(jet, _) => jet.in_place.iter().copied().find(|(_, o)| *o == output),
            IrOp::Atom(_) => (stores && state).then_some((0, output)),
        };
        for (output, &v) in node.outputs.iter().enumerate() {
            if let Some((input, _)) = in_place(output) {
                let place = m.places[&node.inputs[input]].clone();
                m.places.insert(v, place);
            }
        }
        if folds.gone.contains(&index) {
            continue;
        }
        let mut reads: Vec<ValueId> = node.inputs.clone();
        let mut writes: Vec<ValueId> = node.outputs.clone();
        let before =
            folds.before.get(&node.inputs[0]).filter(|_| node.op.name().starts_with("linear"));
        // The activation that the step before has taken over.
        let gated = Folded { before: Before::Plain, x: node.inputs[0], other: None };
        let before = before.or(folds.gated.contains(&index).then_some(&gated));
        let paired = folds.paired.get(&index).copied();
        if let Some(pair) = paired {
            let up = writes.swap_remove(1 - pair.gate);
            m.places.insert(up, Place::Nowhere);
        }
        let rope = folds.attention.get(&index);
        if let Some(before) = before {
            reads[0] = before.x;
            reads.extend(before.other);
        }
        if let Some(rope) = rope {
            reads.extend([rope.q, rope.k, rope.v, rope.slots, rope.frequencies]);
            writes.extend(rope.turned);
            let turned = m.new_buffer();
            m.places.insert(rope.turned[0], turned);
        }
        for &v in &writes {
            if !m.places.contains_key(&v) {
                let place = m.new_buffer();
                m.places.insert(v, place);
            }
        }
        let mut build =
            Build { graph: &graph, device, weights: &mut m.weights, label: &node.label };
        let op: Box<dyn Op> = match node.op.name() {
            "linear" | "linear_add" | "linear_many" | "gated_linear" => {
                Box::new(Linear::build(&mut build, node, before, paired)?)
            }
            "sdpa_paged" => {
                let rope = rope.map(|r| &graph.nodes[r.rope]);
                Box::new(Attention::build(&mut build, node, rope)?)
            }
            "layernorm" => Box::new(LayerNorm::build(&build, node)?),
            "sdpa_packed" | "sdpa_disentangled" => Box::new(PackedAttention::build(&build, node)?),
            _ => match views::build(&mut build, node)? {
                Some(op) => op,
                None => elementwise::build(&mut build, node)?,
            },
        };
        // A product has its weights in its own layout.
        let packed = |i: usize| is_weight_of(&Call::of(&graph, node), i);
        for (i, &v) in reads.iter().enumerate() {
            if i >= node.inputs.len() || !packed(i) {
                m.read(v)?;
            }
        }
        let info = StepInfo {
            op: node.op.name(),
            kernel: kernel.name,
            backend: "cuda",
            label: node.label.to_string(),
        };
        m.push(op, &reads, &writes, info);
    }
    let last = m.steps.len();
    for (_, v) in &graph.outputs {
        if let Some(Place::Buffer(b)) = m.places.get(v) {
            m.alive[*b].1 = last;
        }
    }
    let mut buffer_values = vec![Vec::new(); m.alive.len()];
    let mut values = Vec::with_capacity(graph.values.len());
    for v in graph.value_ids() {
        let fact = graph.fact(v);
        let place = m.places.remove(&v).unwrap_or(Place::Nowhere);
        if let Place::Buffer(b) = &place {
            buffer_values[*b].push(v.index());
        }
        let dims = fact.shape.iter().map(|d| symbols.compile(d)).collect();
        values.push(Layout { dtype: fact.dtype, dims, place });
    }
    Ok(Prepared {
        device: device.clone(),
        mode,
        symbols,
        values,
        weight_bytes: m.weights.bytes(),
        steps: m.steps,
        alive: m.alive,
        buffer_values,
        inputs,
        outputs: graph.outputs.iter().map(|(_, v)| v.index()).collect(),
        states,
    })
}

/// Whether a product keeps input `i` of its node in its own layout.
fn is_weight_of(call: &Call<'_>, i: usize) -> bool {
    linear::weights(call).is_some_and(|range| range.contains(&i))
}
