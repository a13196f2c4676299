//! Preparing a graph and running it.

use std::cell::{Cell, UnsafeCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use cyb_exec::{
    Backend, Call, CompiledDim, ExecError, Kernel as KernelInfo, Lifetime, MemoryUse, Observer,
    PlanMode, Program, Session, StateId, StepInfo, StepTime, Symbols, plan_arena,
};
use cyb_ir::{Atom, Graph, Op, Read, Source, ValueId};
use cyb_simd::AnyIsa;
use cyb_tensor::{AlignedBytes, Bytes, DType};

use crate::atoms::Atoms;
use crate::buffer::Buffer;
use crate::io::{Io, MAX_RANK, PHASES, RawTensor};
use crate::kernel::{self, Build, Kernel, Weights};
use crate::kernels::chain::{ChainKernel, chains};
use crate::matmul::Compute;
use crate::pace::Pace;
use crate::shared::SharedWeights;
use crate::team::{Team, TeamError, Worker};

/// Elements up to which a light step is one worker's: about what is computed while workers wait for
/// each other.
const LIGHT: usize = 6144;

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
enum Place {
    /// Part of the arena, by number of the buffer.
    Buffer(usize),
    Fixed(Bytes),
    /// A weight that no step reads, since its packed form is read instead.
    Packed,
    State(usize),
}

#[derive(Debug)]
struct Layout {
    dtype: DType,
    dims: Vec<CompiledDim>,
    place: Place,
}

#[derive(Debug)]
struct Step {
    kernel: Box<dyn Kernel>,
    /// Operands in the session's table: inputs, then outputs.
    inputs: std::ops::Range<usize>,
    outputs: std::ops::Range<usize>,
    info: StepInfo,
}

#[derive(Debug)]
struct Prepared {
    team: Arc<Team>,
    mode: PlanMode,
    symbols: Symbols,
    values: Vec<Layout>,
    steps: Vec<Step>,
    /// Value of each operand of each step.
    operands: Vec<usize>,
    /// Steps between which each buffer is alive; an input is alive from the start, an output to
    /// the end.
    alive: Vec<(usize, usize)>,
    /// Values that share each buffer.
    buffer_values: Vec<Vec<usize>>,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    states: Vec<usize>,
    weight_bytes: usize,
}

#[derive(Debug)]
struct CpuProgram(Arc<Prepared>);

fn prepare(backend: &CpuBackend, graph: Graph, mode: PlanMode) -> Result<Prepared, ExecError> {
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
                Place::Buffer(alive.len() - 1)
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
            places.insert(v, Place::Buffer(alive.len() - 1));
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
            if let Some(Place::Buffer(b)) = places.get(v) {
                alive[*b].1 = alive[*b].1.max(now);
            }
        }
        // A reshape is the same bytes under another shape.
        if let Op::Atom(Atom::Read(Read::Reshape(_))) = &node.op {
            places.insert(node.outputs[0], places[&node.inputs[0]].clone());
            continue;
        }
        for (output, &v) in node.outputs.iter().enumerate() {
            let in_place = match &node.op {
                Op::Jet(jet, _) => jet.in_place.iter().find(|(_, o)| *o == output),
                Op::Atom(_) => None,
            };
            let place = match in_place {
                Some((input, _)) => places[&node.inputs[*input]].clone(),
                None => {
                    alive.push((now, now));
                    Place::Buffer(alive.len() - 1)
                }
            };
            places.insert(v, place);
        }
        let call = Call::of(&graph, node);
        let row = if backend.kernels { kernel::find(&call) } else { None };
        let (kernel, name): (Box<dyn Kernel>, _) = match (chain, row) {
            (Some(chain), _) => {
                let (isa, workers) = (backend.isa, backend.team.count());
                (Box::new(ChainKernel { chain, isa, workers }), "chain")
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
                ((row.build)(&mut build)?, row.name)
            }
            (None, None) => {
                let atoms = Atoms { op: node.op.clone(), symbols: symbols.clone() };
                (Box::new(atoms), "atoms")
            }
        };
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
        if let Some(Place::Buffer(b)) = places.get(v) {
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
        if let Place::Buffer(b) = &place {
            buffer_values[*b].push(v.index());
        }
        let dims = fact.shape.iter().map(|d| symbols.compile(d)).collect();
        values.push(Layout { dtype: fact.dtype, dims, place });
    }
    settle(&graph, &steps, &operands, mode, &mut values);
    let weight_bytes = weights.bytes();
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
    fn resolve(&self, value: usize, bound: &[usize]) -> Result<RawTensor, ExecError> {
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
        let program = self.0.clone();
        let nothing = || Buffer::zeroed(0).ok_or(ExecError::Memory { what: "a session", bytes: 0 });
        let mut session = CpuSession {
            limits: Vec::new(),
            bound: vec![0; program.symbols.len()],
            arena: nothing()?,
            states: Vec::new(),
            scratch: nothing()?,
            offsets: Vec::new(),
            values: Vec::new(),
            operands: Vec::new(),
            alone: Vec::new(),
            counters: (0..program.steps.len()).map(|_| Counter::default()).collect(),
            times: vec![StepTime::default(); program.steps.len()],
            pace: Pace::default(),
            program,
        };
        session.resize(limits)?;
        Ok(Box::new(session))
    }
}

/// A step's counters, on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counter([AtomicUsize; PHASES]);

impl Counter {
    fn reset(&self) {
        self.0.iter().for_each(|c| c.store(0, Ordering::Relaxed));
    }
}

#[derive(Debug)]
struct CpuSession {
    program: Arc<Prepared>,
    limits: Vec<usize>,
    bound: Vec<usize>,
    arena: Buffer,
    states: Vec<Buffer>,
    scratch: Buffer,
    /// Offset of each buffer in the arena.
    offsets: Vec<usize>,
    /// Every value under the present binding.
    values: Vec<RawTensor>,
    /// The operands of every step, in the program's order.
    operands: Vec<RawTensor>,
    /// Whether each step is one worker's alone under the present binding.
    alone: Vec<bool>,
    counters: Vec<Counter>,
    times: Vec<StepTime>,
    pace: Pace,
}

// SAFETY: the raw pointers lead into memory that the session owns or shares by reference count.
unsafe impl Send for CpuSession {}

impl CpuSession {
    fn place(&self, value: usize) -> *mut u8 {
        match &self.program.values[value].place {
            Place::Buffer(b) => self.arena.at(self.offsets[*b]),
            Place::Fixed(bytes) => bytes.as_slice().as_ptr().cast_mut(),
            Place::Packed => std::ptr::dangling_mut::<u64>().cast(),
            Place::State(i) => self.states[*i].at(0),
        }
    }

    /// Fills the tables of values and operands for the present binding.
    fn refresh(&mut self) -> Result<(), ExecError> {
        let program = self.program.clone();
        self.values.clear();
        for value in 0..program.values.len() {
            let mut raw = program.resolve(value, &self.bound)?;
            raw.start = self.place(value);
            self.values.push(raw);
        }
        self.operands.clear();
        self.operands.extend(program.operands.iter().map(|&v| self.values[v]));
        self.alone.clear();
        self.alone.extend(program.steps.iter().map(|step| {
            let inputs = &self.operands[step.inputs.clone()];
            let outputs = &self.operands[step.outputs.clone()];
            step.kernel.light(inputs, outputs).is_some_and(|n| n <= LIGHT)
        }));
        Ok(())
    }

    fn walk(&mut self, observer: Option<&mut dyn Observer>) -> Result<(), ExecError> {
        let program = self.program.clone();
        let alone = program.team.count() > 1 && self.pace.alone();
        let start = Instant::now();
        let failure: Mutex<Option<(usize, String)>> = Mutex::new(None);
        let failed = AtomicBool::new(false);
        let ended = AtomicBool::new(false);
        let shared = Walk {
            program: &program,
            operands: &self.operands,
            bound: &self.bound,
            scratch: (self.scratch.at(0), self.scratch.len()),
            counters: &self.counters,
            alone: &self.alone,
            times: self.times.as_mut_ptr(),
            clock: UnsafeCell::new(Instant::now()),
            failure: &failure,
            failed: &failed,
            ended: &ended,
        };
        match observer {
            None if alone => shared.all(&Worker::solo()),
            None => {
                program.team.run(|worker| shared.all(worker)).map_err(team_error)?;
            }
            Some(observer) => {
                for (i, step) in program.steps.iter().enumerate() {
                    program.team.run(|worker| shared.one(i, worker)).map_err(team_error)?;
                    // SAFETY: no worker runs; the operands' memory lives as long as the session.
                    let bytes = |t: &RawTensor| unsafe {
                        std::slice::from_raw_parts(t.start.cast_const(), t.bytes)
                    };
                    let of = |r: &std::ops::Range<usize>| -> Vec<&[u8]> {
                        self.operands[r.clone()].iter().map(bytes).collect()
                    };
                    observer.step(&step.info, &of(&step.inputs), &of(&step.outputs));
                    if failed.load(Ordering::Acquire) {
                        break;
                    }
                }
            }
        }
        self.pace.took(alone, start.elapsed());
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some((step, why)) => {
                // A step that stopped half-way leaves its counter anywhere.
                self.counters.iter().for_each(Counter::reset);
                let info = &program.steps[step].info;
                Err(ExecError::Step { step: format!("{} {}", info.op, info.label), why })
            }
        }
    }
}

/// What the workers share while they walk the steps.
struct Walk<'a> {
    program: &'a Prepared,
    operands: &'a [RawTensor],
    bound: &'a [usize],
    scratch: (*mut u8, usize),
    counters: &'a [Counter],
    alone: &'a [bool],
    times: *mut StepTime,
    /// When the latest step ended.
    clock: UnsafeCell<Instant>,
    failure: &'a Mutex<Option<(usize, String)>>,
    failed: &'a AtomicBool,
    /// `failed` as it was at the last barrier, so that all workers see the same.
    ended: &'a AtomicBool,
}

// SAFETY: operands and scratch are shared as kernels' `Io` demands; `times` and `clock` are touched
// by the last worker at a barrier only.
unsafe impl Sync for Walk<'_> {}

impl Walk<'_> {
    /// Walks all steps. Light ones that follow a step are done by the last worker to finish that,
    /// before any worker goes on.
    fn all(&self, worker: &Worker<'_>) {
        let steps = self.program.steps.len();
        let mut next = self.light_from(0);
        worker.barrier_then(|| self.run_light(0..next));
        while next < steps && !self.ended.load(Ordering::Acquire) {
            let step = next;
            next = self.light_from(step + 1);
            self.run(step, worker);
            worker.barrier_then(|| {
                self.finish(step);
                self.run_light(step + 1..next);
            });
        }
    }

    /// Runs one step, whatever it is, on all workers.
    fn one(&self, step: usize, worker: &Worker<'_>) {
        self.run(step, worker);
        worker.barrier_then(|| self.finish(step));
    }

    /// The first step from `step` on that is not light.
    fn light_from(&self, step: usize) -> usize {
        step + self.alone[step..].iter().take_while(|alone| **alone).count()
    }

    fn run_light(&self, steps: std::ops::Range<usize>) {
        for step in steps {
            if self.failed.load(Ordering::Acquire) {
                break;
            }
            self.run(step, &Worker::solo());
            self.finish(step);
        }
        self.ended.store(self.failed.load(Ordering::Acquire), Ordering::Release);
    }

    /// What is left to do after a step, by one worker.
    fn finish(&self, step: usize) {
        self.counters[step].reset();
        let now = Instant::now();
        // SAFETY: one worker at a time comes here, and `times` has one entry per step.
        let (time, clock) = unsafe { (&mut *self.times.add(step), &mut *self.clock.get()) };
        time.calls += 1;
        time.nanos += now.duration_since(*clock).as_nanos() as u64;
        *clock = now;
    }

    /// This worker's part of a step. A failure or a panic of the kernel ends the walk.
    fn run(&self, index: usize, worker: &Worker<'_>) {
        let step = &self.program.steps[index];
        let io = Io {
            inputs: &self.operands[step.inputs.clone()],
            outputs: &self.operands[step.outputs.clone()],
            scratch: self.scratch,
            worker,
            bound: self.bound,
            counters: &self.counters[index].0,
            phase: Cell::new(0),
        };
        // A kernel that panics must not leave the others waiting.
        let result = catch_unwind(AssertUnwindSafe(|| step.kernel.run(&io)));
        let why = match result {
            Ok(Ok(())) => return,
            Ok(Err(why)) => why,
            Err(panic) => panic_text(panic.as_ref()),
        };
        let mut slot = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert((index, why));
        self.failed.store(true, Ordering::Release);
    }
}

fn team_error(error: TeamError) -> ExecError {
    ExecError::Step { step: "the thread team".into(), why: error.to_string() }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("internal error: {}", text.unwrap_or("a kernel panicked"))
}

impl Session for CpuSession {
    fn resize(&mut self, limits: &[usize]) -> Result<(), ExecError> {
        let program = self.program.clone();
        let bytes_of = |value: usize| program.resolve(value, limits).map(|t| t.bytes);
        let mut lifetimes = Vec::with_capacity(program.alive.len());
        for (values, &(first, last)) in program.buffer_values.iter().zip(&program.alive) {
            let mut bytes = 0;
            for &v in values {
                bytes = bytes.max(bytes_of(v)?);
            }
            lifetimes.push(Lifetime { bytes, first, last });
        }
        let no_room = |what, bytes| ExecError::Memory { what, bytes };
        let plan = plan_arena(&lifetimes, program.mode).ok_or(no_room("the arena", usize::MAX))?;
        self.arena = Buffer::zeroed(plan.bytes).ok_or(no_room("the arena", plan.bytes))?;
        self.offsets = plan.offsets;

        let mut states = Vec::with_capacity(program.states.len());
        for (i, &v) in program.states.iter().enumerate() {
            let bytes = bytes_of(v)?;
            if self.states.get(i).is_some_and(|old| old.len() == bytes) {
                continue;
            }
            let mut new = Buffer::zeroed(bytes).ok_or(no_room("a state", bytes))?;
            if let Some(old) = self.states.get(i) {
                let kept = old.len().min(bytes);
                new.as_mut_slice()[..kept].copy_from_slice(&old.as_slice()[..kept]);
            }
            states.push((i, new));
        }
        for (i, new) in states {
            if i < self.states.len() {
                self.states[i] = new;
            } else {
                self.states.push(new);
            }
        }
        self.limits = limits.to_vec();
        self.bound = limits.to_vec();
        self.refresh()?;
        let scratch = |step: &Step| {
            let all = step.inputs.start..step.outputs.end;
            step.kernel.scratch(&self.operands[all])
        };
        let scratch = program.steps.iter().map(scratch).max().unwrap_or(0);
        self.scratch = Buffer::zeroed(scratch).ok_or(no_room("scratch", scratch))?;
        Ok(())
    }

    fn bind(&mut self, values: &[usize]) -> Result<(), ExecError> {
        for (i, (&value, &limit)) in values.iter().zip(&self.limits).enumerate() {
            if value > limit {
                let symbol = self.program.symbols.names()[i].to_string();
                return Err(ExecError::Limit { symbol, value, limit });
            }
        }
        if self.bound != values {
            self.bound.copy_from_slice(values);
            self.refresh()?;
        }
        Ok(())
    }

    fn input(&mut self, index: usize) -> &mut [u8] {
        let raw = self.values[self.program.inputs[index]];
        // SAFETY: the bytes lie in the arena, which is borrowed exclusively through `self`.
        unsafe { std::slice::from_raw_parts_mut(raw.start, raw.bytes) }
    }

    fn run(&mut self) -> Result<(), ExecError> {
        self.walk(None)
    }

    fn run_traced(&mut self, observer: &mut dyn Observer) -> Result<(), ExecError> {
        self.walk(Some(observer))
    }

    fn output(&mut self, index: usize) -> Result<&[u8], ExecError> {
        let raw = self.values[self.program.outputs[index]];
        // SAFETY: no worker runs between runs; the memory belongs to the session or the program.
        Ok(unsafe { std::slice::from_raw_parts(raw.start.cast_const(), raw.bytes) })
    }

    fn output_shape(&self, index: usize) -> Vec<usize> {
        let raw = &self.values[self.program.outputs[index]];
        raw.dims[..raw.rank].to_vec()
    }

    fn state(&mut self, id: StateId) -> Result<&[u8], ExecError> {
        Ok(self.states[id.0].as_slice())
    }

    fn set_state(&mut self, id: StateId, bytes: &[u8]) -> Result<(), ExecError> {
        let state = self.states[id.0].as_mut_slice();
        if state.len() != bytes.len() {
            let why = format!("it has {} bytes, not {}", state.len(), bytes.len());
            return Err(ExecError::Input { name: format!("state {}", id.0), why });
        }
        state.copy_from_slice(bytes);
        Ok(())
    }

    fn times(&self) -> &[StepTime] {
        &self.times
    }

    fn reset_times(&mut self) {
        self.times.fill(StepTime::default());
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse {
            arena: self.arena.len(),
            states: self.states.iter().map(Buffer::len).sum(),
            scratch: self.scratch.len(),
        }
    }
}
