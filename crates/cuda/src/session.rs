//! The memory and state of one user of a program, and its runs.

use std::sync::Arc;

use cyb_exec::{
    ExecError, Lifetime, MemoryUse, Observer, Session, StateId, StepTime, Top, plan_arena,
};

use cyb_tensor::DType;

use crate::driver::{CudaError, Function, Graph, Launch, Memory, Parameter, Pinned, Stream};
use crate::op::{Needs, Operand, Scratch};
use crate::program::{Place, Prepared};
use crate::sampling::{Best, Firsts};

/// Graphs that are kept; a server's steps alternate between a few sizes.
const GRAPHS: usize = 8;
/// Inputs begin at multiples of this.
const ALIGN: usize = 256;

/// When set, steps are timed one by one, which makes runs slower.
const TIMES: &str = "SOMA_CUDA_TIMES";

/// What a recorded run depends on.
#[derive(Clone, Default, PartialEq)]
struct Shape {
    bound: Vec<usize>,
    /// The output whose rows' largest elements are searched, and the rows that the search has room for.
    best: Option<(usize, usize)>,
}

pub(crate) struct CudaSession {
    program: Arc<Prepared>,
    limits: Vec<usize>,
    bound: Vec<usize>,
    arena: Memory,
    states: Vec<Memory>,
    scratch: Memory,
    zeros: Memory,
    /// Inputs as they are filled, and their copy on the GPU; a kernel makes it, which begins sooner
    /// than the driver's copy.
    staging: Pinned,
    inputs: Memory,
    copy_in: Function,
    /// Where each input begins under the present binding, and the end of all.
    input_offsets: Vec<usize>,
    outputs: Vec<Pinned>,
    /// Outputs of the last run that have been copied.
    fetched: Vec<bool>,
    best: Best,
    /// Made when they are first asked for.
    firsts: Option<Firsts>,
    /// Offset of each buffer in the arena.
    offsets: Vec<usize>,
    values: Vec<Operand>,
    launches: Vec<Launch>,
    /// Where the launches of each step begin, and the end of all.
    starts: Vec<usize>,
    graphs: Vec<(Shape, Graph)>,
    /// That of the last run: a graph is recorded when it comes again.
    last: Shape,
    /// A state as it was last read.
    read_state: Vec<u8>,
    times: Vec<StepTime>,
    timed: bool,
    /// Last, so that the stream outlives what its work uses.
    stream: Stream,
}

impl std::fmt::Debug for CudaSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaSession").field("bound", &self.bound).finish_non_exhaustive()
    }
}

impl Drop for CudaSession {
    fn drop(&mut self) {
        // Memory must not go while work in flight uses it.
        if self.program.device.gpu.enter().is_ok() {
            let _ = self.stream.wait();
        }
    }
}

impl CudaSession {
    pub(crate) fn new(program: Arc<Prepared>, limits: &[usize]) -> Result<CudaSession, ExecError> {
        let gpu = &program.device.gpu;
        let stream = gpu.stream()?;
        let mut session = CudaSession {
            limits: Vec::new(),
            bound: vec![0; program.symbols.len()],
            arena: gpu.allocate(0)?,
            states: Vec::new(),
            scratch: gpu.allocate(0)?,
            zeros: gpu.allocate(0)?,
            staging: gpu.pinned(0)?,
            inputs: gpu.allocate(0)?,
            copy_in: program.device.function("elementwise", "copy_in")?,
            input_offsets: Vec::new(),
            outputs: Vec::new(),
            fetched: vec![false; program.outputs.len()],
            best: Best::new(&program.device)?,
            firsts: None,
            offsets: Vec::new(),
            values: Vec::new(),
            launches: Vec::new(),
            starts: Vec::new(),
            graphs: Vec::new(),
            last: Shape::default(),
            read_state: Vec::new(),
            times: vec![StepTime::default(); program.steps.len()],
            timed: std::env::var_os(TIMES).is_some(),
            stream,
            program,
        };
        session.resize(limits)?;
        Ok(session)
    }

    /// The sizes of all values, and where inputs lie.
    fn sizes(&self, bound: &[usize]) -> Result<(Vec<Operand>, Vec<usize>), ExecError> {
        let program = &self.program;
        let resolve = |value| program.resolve(value, bound);
        let values = (0..program.values.len()).map(resolve).collect::<Result<Vec<_>, _>>()?;
        let mut offsets = vec![0];
        for &input in &program.inputs {
            let end = offsets[offsets.len() - 1] + values[input].bytes;
            offsets.push(end.next_multiple_of(ALIGN));
        }
        Ok((values, offsets))
    }

    /// Fills the tables of values and launches for the present binding.
    fn refresh(&mut self) -> Result<(), ExecError> {
        let program = self.program.clone();
        let (mut values, offsets) = self.sizes(&self.bound)?;
        self.input_offsets = offsets;
        for (value, layout) in values.iter_mut().zip(&program.values) {
            value.address = match &layout.place {
                Place::Buffer(b) => self.arena.at(self.offsets[*b]),
                Place::Input(i) => self.inputs.at(self.input_offsets[*i]),
                Place::Fixed(memory) => memory.at(0),
                Place::State(i) => self.states[*i].at(0),
                Place::Nowhere => 0,
            };
        }
        self.values = values;
        self.launches.clear();
        self.starts.clear();
        let scratch = Scratch { address: self.scratch.at(0), zeros: self.zeros.at(0) };
        for step in &program.steps {
            self.starts.push(self.launches.len());
            let operands: Vec<Operand> = step.operands.iter().map(|&v| self.values[v]).collect();
            step.op.launches(&operands, scratch, &mut self.launches);
        }
        self.starts.push(self.launches.len());
        Ok(())
    }

    /// Queues launches; only the first waits for what is not a kernel.
    fn queue(&self, range: std::ops::Range<usize>) -> Result<(), CudaError> {
        let overlaps = self.program.device.overlaps();
        for (i, launch) in self.launches[range].iter().enumerate() {
            self.stream.launch(launch, overlaps && i > 0)?;
        }
        Ok(())
    }

    fn send_inputs(&self) -> Result<(), CudaError> {
        // Inputs begin at multiples of `ALIGN`, so does their end.
        let pieces = self.input_offsets.last().copied().unwrap_or(0) / 16;
        if pieces == 0 {
            return Ok(());
        }
        let launch = Launch {
            function: self.copy_in,
            grid: (pieces.div_ceil(256).min(1 << 16) as u32, 1, 1),
            block: 256,
            cluster: 1,
            shared: 0,
            parameters: vec![
                Parameter::address(self.staging.address()),
                Parameter::address(self.inputs.at(0)),
                Parameter::long(pieces),
            ],
        };
        self.stream.launch(&launch, false)
    }

    /// Output number `index`, which is copied when it is first asked for: logits of many sequences
    /// take longer on their way than a step of a small model.
    fn fetch_output(&mut self, index: usize) -> Result<(), ExecError> {
        if !self.fetched[index] {
            let value = &self.values[self.program.outputs[index]];
            self.program.device.gpu.enter()?;
            self.stream.fetch(value.address, &self.outputs[index], value.bytes)?;
            self.stream.wait()?;
            self.fetched[index] = true;
        }
        Ok(())
    }

    /// Queues a whole run, with the search in output `best`.
    fn queue_run(&mut self, best: Option<usize>) -> Result<(), CudaError> {
        self.send_inputs()?;
        self.queue(0..self.launches.len())?;
        match best {
            None => Ok(()),
            Some(index) => {
                let device = &self.program.device;
                let value = &self.values[self.program.outputs[index]];
                let overlaps = device.overlaps() && !self.launches.is_empty();
                self.best.queue(&device.gpu, &self.stream, index, value, overlaps)
            }
        }
    }

    /// Output number `index`, if its rows are of `f32`; the GPU is then the thread's own.
    fn rows_of(&self, index: usize) -> Result<Option<Operand>, ExecError> {
        let value = self.values[self.program.outputs[index]];
        if value.dtype != Some(DType::F32) || value.bytes == 0 {
            return Ok(None);
        }
        self.program.device.gpu.enter()?;
        Ok(Some(value))
    }

    /// A whole run; the second one of a shape is recorded, and later ones are replays.
    fn start_run(&mut self, best: Option<usize>) -> Result<(), CudaError> {
        let room = self.best.room();
        let same = |shape: &Shape, bound: &[usize]| {
            shape.bound == bound && shape.best == best.map(|index| (index, room))
        };
        if let Some((_, graph)) = self.graphs.iter().find(|(shape, _)| same(shape, &self.bound)) {
            if let Some(index) = best {
                self.best.expect(index, &self.values[self.program.outputs[index]]);
            }
            return self.stream.replay(graph);
        }
        if same(&self.last, &self.bound) && !self.launches.is_empty() {
            self.stream.begin_record()?;
            let queued = self.queue_run(best);
            let graph = self.stream.end_record(queued)?;
            self.stream.replay(&graph)?;
            if self.graphs.len() == GRAPHS {
                self.graphs.remove(0);
            }
            self.graphs.push((self.last.clone(), graph));
            return Ok(());
        }
        self.queue_run(best)?;
        // With the room that there is now.
        let room = self.best.room();
        self.last = Shape { bound: self.bound.clone(), best: best.map(|index| (index, room)) };
        Ok(())
    }

    /// A run whose steps are timed one by one.
    fn run_timed(&mut self) -> Result<(), CudaError> {
        self.send_inputs()?;
        for step in 0..self.program.steps.len() {
            let range = self.starts[step]..self.starts[step + 1];
            let millis = self.stream.time(|| self.queue(range))?;
            self.times[step].calls += 1;
            self.times[step].nanos += (f64::from(millis) * 1e6) as u64;
        }
        Ok(())
    }
}

impl Session for CudaSession {
    fn resize(&mut self, limits: &[usize]) -> Result<(), ExecError> {
        let program = self.program.clone();
        let gpu = &program.device.gpu;
        gpu.enter()?;
        self.stream.wait()?;
        self.graphs.clear();
        self.last = Shape::default();
        let (values, input_offsets) = self.sizes(limits)?;
        let mut lifetimes = Vec::with_capacity(program.alive.len());
        for (shared, &(first, last)) in program.buffer_values.iter().zip(&program.alive) {
            let bytes = shared.iter().map(|&v| values[v].bytes).max().unwrap_or(0);
            lifetimes.push(Lifetime { bytes, first, last });
        }
        let too_large = ExecError::Memory { what: "the arena", bytes: usize::MAX };
        let plan = plan_arena(&lifetimes, program.mode).ok_or(too_large)?;
        if plan.bytes > self.arena.len() {
            self.arena = gpu.allocate(plan.bytes)?;
        }
        self.offsets = plan.offsets;
        let mut needs = Needs::default();
        for step in &program.steps {
            let operands: Vec<Operand> = step.operands.iter().map(|&v| values[v]).collect();
            let step = step.op.needs(&operands);
            needs.scratch = needs.scratch.max(step.scratch);
            needs.zeros = needs.zeros.max(step.zeros);
        }
        if needs.scratch > self.scratch.len() {
            self.scratch = gpu.allocate(needs.scratch)?;
        }
        if needs.zeros > self.zeros.len() {
            self.zeros = gpu.zeroed(needs.zeros, &self.stream)?;
        }
        let input_bytes = input_offsets.last().copied().unwrap_or(0);
        if input_bytes > self.inputs.len() {
            self.inputs = gpu.allocate(input_bytes)?;
            self.staging = gpu.pinned(input_bytes)?;
        }
        for (i, &value) in program.outputs.iter().enumerate() {
            let bytes = values[value].bytes;
            match self.outputs.get(i) {
                None => self.outputs.push(gpu.pinned(bytes)?),
                Some(old) if old.len() < bytes => self.outputs[i] = gpu.pinned(bytes)?,
                Some(_) => {}
            }
        }
        for (i, &value) in program.states.iter().enumerate() {
            let bytes = values[value].bytes;
            if self.states.get(i).is_some_and(|old| old.len() == bytes) {
                continue;
            }
            let new = gpu.zeroed(bytes, &self.stream)?;
            match self.states.get_mut(i) {
                None => self.states.push(new),
                Some(old) => {
                    self.stream.copy(old, &new, old.len().min(bytes))?;
                    self.stream.wait()?;
                    *old = new;
                }
            }
        }
        self.limits = limits.to_vec();
        self.bound = limits.to_vec();
        self.refresh()
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
        let start = self.input_offsets[index];
        let bytes = self.values[self.program.inputs[index]].bytes;
        &mut self.staging.as_mut_slice()[start..][..bytes]
    }

    fn run(&mut self) -> Result<(), ExecError> {
        self.program.device.gpu.enter()?;
        self.fetched.fill(false);
        let asked = |session: &CudaSession, index: usize| {
            session.values[session.program.outputs[index]].bytes > 0
        };
        let best = self.best.begin().filter(|&index| asked(self, index));
        let firsts = self.firsts.as_mut().and_then(Firsts::begin);
        let firsts = firsts.filter(|&(index, _)| asked(self, index));
        match self.timed {
            true => self.run_timed()?,
            false => self.start_run(best)?,
        }
        if let (Some((index, scale)), Some(found)) = (firsts, &mut self.firsts) {
            let value = &self.values[self.program.outputs[index]];
            found.queue(&self.program.device.gpu, &self.stream, index, value)?;
            if let Some(scale) = scale {
                found.queue_sums(&self.stream, value, scale)?;
            }
        }
        Ok(self.stream.wait()?)
    }

    fn run_traced(&mut self, observer: &mut dyn Observer) -> Result<(), ExecError> {
        let program = self.program.clone();
        let gpu = &program.device.gpu;
        gpu.enter()?;
        self.fetched.fill(false);
        self.best.begin();
        self.firsts.as_mut().and_then(Firsts::begin);
        self.send_inputs()?;
        for (number, step) in program.steps.iter().enumerate() {
            self.queue(self.starts[number]..self.starts[number + 1])?;
            let mut bytes: Vec<Pinned> = Vec::with_capacity(step.operands.len());
            for &value in &step.operands {
                let value = &self.values[value];
                // A product's weights are in a layout of their own.
                let size = if value.address == 0 { 0 } else { value.bytes };
                let copy = gpu.pinned(size)?;
                self.stream.fetch(value.address, &copy, size)?;
                bytes.push(copy);
            }
            self.stream.wait()?;
            let seen: Vec<&[u8]> = bytes.iter().map(Pinned::as_slice).collect();
            observer.step(&step.info, &seen[..step.inputs], &seen[step.inputs..]);
        }
        Ok(())
    }

    fn output(&mut self, index: usize) -> Result<&[u8], ExecError> {
        self.fetch_output(index)?;
        let bytes = self.values[self.program.outputs[index]].bytes;
        Ok(&self.outputs[index].as_slice()[..bytes])
    }

    fn largest(&mut self, index: usize) -> Result<Option<&[u32]>, ExecError> {
        let Some(value) = self.rows_of(index)? else { return Ok(None) };
        let gpu = &self.program.device.gpu;
        Ok(Some(self.best.of(gpu, &self.stream, index, &value)?))
    }

    fn top(&mut self, index: usize) -> Result<Option<Top<'_>>, ExecError> {
        let Some(value) = self.rows_of(index)? else { return Ok(None) };
        let device = &self.program.device;
        let firsts = match &mut self.firsts {
            Some(firsts) => firsts,
            none => none.insert(Firsts::new(device)?),
        };
        Ok(Some(firsts.of(&device.gpu, &self.stream, index, &value)?))
    }

    fn exponentials(&mut self, index: usize, scale: f32) -> Result<Option<&[f64]>, ExecError> {
        let Some(value) = self.rows_of(index)? else { return Ok(None) };
        let device = &self.program.device;
        let firsts = match &mut self.firsts {
            Some(firsts) => firsts,
            none => none.insert(Firsts::new(device)?),
        };
        Ok(firsts.sums(&device.gpu, &self.stream, index, &value, scale)?)
    }

    fn output_shape(&self, index: usize) -> Vec<usize> {
        self.values[self.program.outputs[index]].dims().to_vec()
    }

    fn state(&mut self, id: StateId) -> Result<&[u8], ExecError> {
        let gpu = &self.program.device.gpu;
        gpu.enter()?;
        let state = &self.states[id.0];
        let copy = gpu.pinned(state.len())?;
        self.stream.fetch(state.at(0), &copy, state.len())?;
        self.stream.wait()?;
        self.read_state.clear();
        self.read_state.extend_from_slice(copy.as_slice());
        Ok(&self.read_state)
    }

    fn set_state(&mut self, id: StateId, bytes: &[u8]) -> Result<(), ExecError> {
        let state = &self.states[id.0];
        if state.len() != bytes.len() {
            let why = format!("it has {} bytes, not {}", state.len(), bytes.len());
            return Err(ExecError::Input { name: format!("state {}", id.0), why });
        }
        self.program.device.gpu.enter()?;
        self.stream.wait()?;
        Ok(state.fill(0, bytes)?)
    }

    fn time_steps(&mut self, on: bool) {
        self.timed = on;
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
            states: self.states.iter().map(Memory::len).sum(),
            scratch: self.scratch.len() + self.zeros.len(),
        }
    }
}
