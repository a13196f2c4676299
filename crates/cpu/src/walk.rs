//! How workers walk the steps of a program together.

use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use cyb_exec::StepTime;

use crate::io::{Io, PHASES, RawTensor};
use crate::program::Prepared;
use crate::team::Worker;

/// A step's counters, on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counter([AtomicUsize; PHASES]);

impl Counter {
    pub(crate) fn reset(&self) {
        self.0.iter().for_each(|c| c.store(0, Ordering::Relaxed));
    }
}

/// What the workers share while they walk the steps.
pub(crate) struct Walk<'a> {
    pub(crate) program: &'a Prepared,
    pub(crate) operands: &'a [RawTensor],
    pub(crate) bound: &'a [usize],
    pub(crate) scratch: (*mut u8, usize),
    pub(crate) counters: &'a [Counter],
    pub(crate) alone: &'a [bool],
    pub(crate) times: *mut StepTime,
    /// When the latest step ended.
    pub(crate) clock: UnsafeCell<Instant>,
    pub(crate) failure: &'a Mutex<Option<(usize, String)>>,
    pub(crate) failed: &'a AtomicBool,
    /// `failed` as it was at the last barrier, so that all workers see the same.
    pub(crate) ended: &'a AtomicBool,
}

// SAFETY: operands and scratch are shared as kernels' `Io` demands; `times` and `clock` are touched
// by the last worker at a barrier only.
unsafe impl Sync for Walk<'_> {}

impl Walk<'_> {
    /// Walks all steps. Light ones that follow a step are done by the last worker to finish that,
    /// before any worker goes on.
    pub(crate) fn all(&self, worker: &Worker<'_>) {
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
    pub(crate) fn one(&self, step: usize, worker: &Worker<'_>) {
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

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("internal error: {}", text.unwrap_or("a kernel panicked"))
}
