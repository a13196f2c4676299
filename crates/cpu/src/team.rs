//! A team of threads that runs one closure at a time, together.
//!
//! The caller is worker 0; the others wait for the next run, spinning a little and then parked.
//! Inside a run, [`Worker::barrier`] separates steps and [`Worker::chunks`] hands out the units of
//! a step. A waiting worker spins a few microseconds (the other workers are usually about to
//! arrive), then yields its core (someone else may need it), then sleeps.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Why a team could not be made or a run did not end well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TeamError {
    #[error("cannot start thread {index} of {count}: {reason}")]
    Spawn { index: usize, count: usize, reason: String },
    #[error("worker {worker} panicked: {message}")]
    Panic { worker: usize, message: String },
    #[error("a worker of the team started another run of it")]
    Nested,
}

/// A fixed set of threads.
#[derive(Debug)]
pub struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Held during a run, so that runs of several callers follow one another.
    entry: Mutex<()>,
}

type Job = dyn Fn(&Worker<'_>) + Sync;

/// Something on its own cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

#[derive(Debug)]
struct Shared {
    count: usize,
    /// Number of the latest run.
    run: Apart<AtomicU64>,
    /// The closure of the latest run; written by the caller before `run`, valid until `busy` is 0.
    job: UnsafeCell<Option<JobPtr>>,
    /// Workers other than the caller that have not finished the run.
    busy: Apart<AtomicUsize>,
    arrived: Apart<AtomicUsize>,
    /// Number of barriers passed.
    passed: Apart<AtomicU64>,
    panicked: AtomicBool,
    panic: Mutex<Option<TeamError>>,
    stop: AtomicBool,
    sleepers: Apart<AtomicUsize>,
    sleep: Mutex<()>,
    wake: Condvar,
}

#[derive(Clone, Copy, Debug)]
struct JobPtr(*const Job);

// SAFETY: the pointer is to a `Sync` closure, and `Team::run` keeps that alive while it is used.
unsafe impl Send for JobPtr {}
// SAFETY: `job` is written by the caller alone while no worker runs, and read by workers after
// acquiring `run`.
unsafe impl Sync for Shared {}

thread_local! {
    static INSIDE: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
}

/// Unwinds workers that wait for one that panicked.
struct Abandoned;

/// Spins before the first yield: a few microseconds.
const SPINS: usize = 300;
/// How long a worker keeps yielding before it sleeps: in a barrier, and between runs.
const BARRIER_PATIENCE: Duration = Duration::from_micros(200);
const IDLE_PATIENCE: Duration = Duration::from_micros(400);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until(&self, patience: Duration, done: impl Fn() -> bool) {
        for _ in 0..SPINS {
            if done() {
                return;
            }
            std::hint::spin_loop();
        }
        let start = Instant::now();
        while start.elapsed() < patience {
            if done() {
                return;
            }
            std::thread::yield_now();
        }
        let mut guard = self.lock();
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        while !done() {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes sleepers after a change of what they wait for. Either this sees the sleeper, or the
    /// sleeper sees the change: both sides fence between their write and their read.
    fn signal(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.0.load(Ordering::SeqCst) > 0 {
            drop(self.lock());
            self.wake.notify_all();
        }
    }

    fn call(&self, index: usize, job: &(dyn Fn(&Worker<'_>) + Sync)) {
        let outer = INSIDE.replace(self);
        let worker = Worker { index, count: self.count, shared: Some(self) };
        let result = catch_unwind(AssertUnwindSafe(|| job(&worker)));
        INSIDE.set(outer);
        if let Err(payload) = result
            && !payload.is::<Abandoned>()
        {
            let error = TeamError::Panic { worker: index, message: message(payload.as_ref()) };
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            self.panicked.store(true, Ordering::SeqCst);
            self.signal();
        }
    }

    fn serve(&self, index: usize) {
        let mut seen = 0;
        loop {
            self.wait_until(IDLE_PATIENCE, || {
                self.run.0.load(Ordering::Acquire) != seen || self.stop.load(Ordering::Acquire)
            });
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            seen = self.run.0.load(Ordering::Acquire);
            // SAFETY: the caller wrote `job` before `run` and writes it again only after `busy`
            // is 0; until then the closure it points to is alive.
            if let Some(JobPtr(job)) = unsafe { *self.job.get() } {
                // SAFETY: as above.
                self.call(index, unsafe { &*job });
            }
            self.busy.0.fetch_sub(1, Ordering::AcqRel);
            self.signal();
        }
    }
}

fn message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

impl Team {
    /// A team of `count` workers (at least one), the caller of [`Team::run`] among them.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn new(count: usize) -> Result<Team, TeamError> {
        let count = count.max(1);
        let shared = Arc::new(Shared {
            count,
            run: Apart::default(),
            job: UnsafeCell::new(None),
            busy: Apart::default(),
            arrived: Apart::default(),
            passed: Apart::default(),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            sleepers: Apart::default(),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut team = Team { shared, threads: Vec::new(), entry: Mutex::new(()) };
        for index in 1..count {
            let shared = Arc::clone(&team.shared);
            let thread = std::thread::Builder::new()
                .name(format!("worker {index}"))
                .spawn(move || shared.serve(index))
                .map_err(|e| TeamError::Spawn { index, count, reason: e.to_string() })?;
            team.threads.push(thread);
        }
        Ok(team)
    }

    /// As many workers as the process may use at once: the CPUs of its affinity mask, limited by
    /// the quota of its control group (version 1 or 2), rounded down, at least one.
    pub fn default_count() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    pub fn count(&self) -> usize {
        self.shared.count
    }

    /// Runs `job` on every worker and returns when all have finished. Allocates nothing.
    ///
    /// # Errors
    /// A worker panicked (the others are released from their barriers and the team stays usable),
    /// or the calling thread is inside a run of this team.
    pub fn run<F: Fn(&Worker<'_>) + Sync>(&self, job: F) -> Result<(), TeamError> {
        let shared = &*self.shared;
        if INSIDE.get() == std::ptr::from_ref(shared) {
            return Err(TeamError::Nested);
        }
        let _entry = self.entry.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: only the lifetime changes. Workers use the pointer until they decrement `busy`,
        // and this function returns after `busy` is 0.
        let long = unsafe {
            std::mem::transmute::<*const (dyn Fn(&Worker<'_>) + Sync + '_), *const Job>(
                &raw const job,
            )
        };
        // SAFETY: no worker runs, so nobody else accesses `job`.
        unsafe { *shared.job.get() = Some(JobPtr(long)) };
        shared.busy.0.store(shared.count - 1, Ordering::Relaxed);
        shared.run.0.fetch_add(1, Ordering::Release);
        shared.signal();
        shared.call(0, &job);
        shared.wait_until(BARRIER_PATIENCE, || shared.busy.0.load(Ordering::Acquire) == 0);
        // SAFETY: no worker runs.
        unsafe { *shared.job.get() = None };
        if shared.panicked.swap(false, Ordering::SeqCst) {
            shared.arrived.0.store(0, Ordering::SeqCst);
            let mut panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner);
            return Err(panic
                .take()
                .unwrap_or(TeamError::Panic { worker: 0, message: "no message".to_owned() }));
        }
        Ok(())
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.signal();
        for thread in self.threads.drain(..) {
            // A worker catches the panics of jobs, so that joining cannot fail.
            let _ = thread.join();
        }
    }
}

/// What a job knows about the worker that runs it.
#[derive(Clone, Copy, Debug)]
pub struct Worker<'a> {
    pub index: usize,
    pub count: usize,
    shared: Option<&'a Shared>,
}

impl Worker<'_> {
    /// A worker on its own, for code that needs no team.
    pub const fn solo() -> Worker<'static> {
        Worker { index: 0, count: 1, shared: None }
    }

    /// Returns when every worker of the run has called it as often; what they wrote before is
    /// visible after.
    pub fn barrier(&self) {
        self.barrier_then(|| {});
    }

    /// A barrier at which the last worker to arrive runs `between` before any goes on. `between`
    /// must not panic.
    pub fn barrier_then(&self, between: impl FnOnce()) {
        let Some(shared) = self.shared.filter(|s| s.count > 1) else { return between() };
        let passed = shared.passed.0.load(Ordering::Acquire);
        if shared.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == shared.count {
            between();
            shared.arrived.0.store(0, Ordering::Relaxed);
            shared.passed.0.store(passed + 1, Ordering::Release);
            shared.signal();
        } else {
            shared.wait_until(BARRIER_PATIENCE, || {
                shared.passed.0.load(Ordering::Acquire) != passed
                    || shared.panicked.load(Ordering::Acquire)
            });
        }
        if shared.panicked.load(Ordering::Acquire) {
            resume_unwind(Box::new(Abandoned));
        }
    }

    /// The units of a step that this worker shall do; over all workers each of `0..units` once.
    ///
    /// Seven of eight are dealt out in advance as runs of neighbors, the rest goes one at a time to
    /// whoever is free, counted by `counter`, which must be 0 before the step and is the step's own.
    pub fn chunks<'c>(&self, counter: &'c AtomicUsize, units: usize) -> Chunks<'c> {
        let dealt = if self.count == 1 { units } else { units * 7 / (8 * self.count) };
        let start = self.index * dealt;
        Chunks { own: start..start + dealt, first_free: dealt * self.count, units, counter }
    }

    /// This worker's share of `0..units` as one contiguous range, the same on every run.
    pub fn share(&self, units: usize) -> std::ops::Range<usize> {
        let (each, more) = (units / self.count, units % self.count);
        let start = self.index * each + self.index.min(more);
        start..start + each + usize::from(self.index < more)
    }
}

/// See [`Worker::chunks`].
#[derive(Debug)]
pub struct Chunks<'c> {
    own: std::ops::Range<usize>,
    first_free: usize,
    units: usize,
    counter: &'c AtomicUsize,
}

impl Iterator for Chunks<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if let Some(unit) = self.own.next() {
            return Some(unit);
        }
        if self.first_free >= self.units {
            return None;
        }
        let unit = self.first_free + self.counter.fetch_add(1, Ordering::Relaxed);
        if unit < self.units {
            return Some(unit);
        }
        self.first_free = self.units;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(n: usize) -> Vec<AtomicUsize> {
        (0..n).map(|_| AtomicUsize::new(0)).collect()
    }

    #[test]
    fn every_unit_is_done_once_whatever_the_team() {
        for count in [1, 2, 3, 7] {
            let team = Team::new(count).unwrap();
            for units in [0, 1, 2, 5, 64, 1000] {
                let counter = AtomicUsize::new(0);
                let done = counters(units);
                let shared = counters(units);
                team.run(|w| {
                    for unit in w.chunks(&counter, units) {
                        done[unit].fetch_add(1, Ordering::Relaxed);
                    }
                    for unit in w.share(units) {
                        shared[unit].fetch_add(1, Ordering::Relaxed);
                    }
                })
                .unwrap();
                assert!(done.iter().chain(&shared).all(|d| d.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn barriers_order_steps() {
        const STEPS: usize = if cfg!(miri) { 5 } else { 2000 };
        let team = Team::new(4).unwrap();
        let sums = counters(STEPS);
        let wrong = AtomicUsize::new(0);
        team.run(|w| {
            for sum in &sums {
                sum.fetch_add(w.index + 1, Ordering::Relaxed);
                w.barrier();
                if sum.load(Ordering::Relaxed) != 10 {
                    wrong.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
        .unwrap();
        assert_eq!(wrong.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_last_to_arrive_works_alone() {
        const STEPS: usize = if cfg!(miri) { 5 } else { 500 };
        for count in [1, 3] {
            let team = Team::new(count).unwrap();
            let total = AtomicUsize::new(0);
            team.run(|w| {
                for step in 0..STEPS {
                    w.barrier_then(|| {
                        // Not one operation: another worker in here would lose counts.
                        let now = total.load(Ordering::Relaxed);
                        std::hint::spin_loop();
                        total.store(now + 1, Ordering::Relaxed);
                    });
                    assert_eq!(total.load(Ordering::Relaxed), step + 1);
                    w.barrier();
                }
            })
            .unwrap();
        }
    }

    #[test]
    fn sleeping_workers_wake_up() {
        let team = Team::new(3).unwrap();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(5));
            let seen = AtomicUsize::new(0);
            team.run(|w| {
                if w.index == 1 {
                    std::thread::sleep(Duration::from_millis(3));
                }
                w.barrier();
                seen.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
            assert_eq!(seen.load(Ordering::Relaxed), 3);
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_team_lives_on() {
        let team = Team::new(3).unwrap();
        for bad in 0..3 {
            let error = team.run(|w| {
                w.barrier();
                assert!(w.index != bad, "worker {bad} breaks");
                w.barrier();
            });
            let message = format!("worker {bad} breaks");
            assert_eq!(error, Err(TeamError::Panic { worker: bad, message }));
            assert_eq!(team.run(|w| w.barrier()), Ok(()));
        }
    }

    #[test]
    fn nested_runs_are_refused() {
        let team = Team::new(2).unwrap();
        let inner = Mutex::new(Vec::new());
        team.run(|_| inner.lock().unwrap().push(team.run(|_| {}))).unwrap();
        assert_eq!(*inner.lock().unwrap(), [Err(TeamError::Nested), Err(TeamError::Nested)]);
    }
}
