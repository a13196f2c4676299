//! A session: the memory of a program's runs, and running it.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cyb_exec::{ExecError, Lifetime, MemoryUse, Observer, Session, StateId, StepTime, plan_arena};

use crate::buffer::Buffer;
use crate::io::RawTensor;
use crate::pace::Pace;
use crate::program::{Place, Prepared, Step};
use crate::team::{TeamError, Worker};
use crate::walk::{Counter, Walk};

/// Elements up to which a light step is one worker's: about what is computed while workers wait for
/// each other.
const LIGHT: usize = 6144;

#[derive(Debug)]
pub(crate) struct CpuSession {
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
    /// Time that runs spent on packing weights.
    packing: Duration,
    pace: Pace,
}

// SAFETY: the raw pointers lead into memory that the session owns or shares by reference count.
unsafe impl Send for CpuSession {}

impl CpuSession {
    /// A session for runs with symbols up to `limits`.
    pub(crate) fn new(program: Arc<Prepared>, limits: &[usize]) -> Result<CpuSession, ExecError> {
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
            packing: Duration::ZERO,
            pace: Pace::default(),
            program,
        };
        session.resize(limits)?;
        Ok(session)
    }

    fn place(&self, value: usize) -> *mut u8 {
        match &self.program.values[value].place {
            Place::Buffer(b, offset) => self.arena.at(self.offsets[*b] + offset),
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
        if !program.later.is_packed() {
            let start = Instant::now();
            program.later.before(&program.team, &self.values).map_err(team_error)?;
            self.packing += start.elapsed();
        }
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
fn team_error(error: TeamError) -> ExecError {
    ExecError::Step { step: "the thread team".into(), why: error.to_string() }
}

impl Session for CpuSession {
    fn resize(&mut self, limits: &[usize]) -> Result<(), ExecError> {
        let program = self.program.clone();
        let bytes_of = |value: usize| program.resolve(value, limits).map(|t| t.bytes);
        let mut lifetimes = Vec::with_capacity(program.alive.len());
        for (values, &(first, last)) in program.buffer_values.iter().zip(&program.alive) {
            let mut bytes = 0;
            for &v in values {
                let offset = match program.values[v].place {
                    Place::Buffer(_, offset) => offset,
                    Place::Fixed(_) | Place::Packed | Place::State(_) => 0,
                };
                bytes = bytes.max(offset.saturating_add(bytes_of(v)?));
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

    fn loading(&self) -> Duration {
        self.packing
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse {
            arena: self.arena.len(),
            states: self.states.iter().map(Buffer::len).sum(),
            scratch: self.scratch.len(),
        }
    }
}
