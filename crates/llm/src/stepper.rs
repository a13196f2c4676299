//! The engine's model: a step plan bound to the inputs of a prepared graph.
//!
//! A step allocates nothing once the limits have been reached: inputs are filled in place and logits
//! are read where the backend has them.

use std::sync::Arc;
use std::time::Duration;

use cyb_engine::{StepError, StepPlan, Stepper};
use cyb_exec::{ExecError, Executor, MemoryUse, Running, StepTime, Symbols, TOP};
use cyb_models::inputs;
use cyb_sample::Candidates;

use crate::Error;

/// The largest sizes that a stepper has memory for; it grows when a plan or a caller asks for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Tokens in a step.
    pub tokens: usize,
    /// Sequences in a step.
    pub sequences: usize,
    /// Blocks in the table of a sequence.
    pub blocks: usize,
    /// Rows of logits in a step.
    pub logits: usize,
    /// Tokens whose keys and values are kept.
    pub slots: usize,
}

impl StepLimits {
    /// In the order of [`SYMBOLS`].
    fn in_order(&self) -> [usize; 5] {
        let StepLimits { tokens, sequences, blocks, logits, slots } = *self;
        [tokens, sequences, blocks, logits, slots]
    }

    /// Values of a decoder's symbols; 1 for others.
    pub(crate) fn bound(&self, symbols: &Symbols) -> Vec<usize> {
        let value = |name: &str| {
            let known = SYMBOLS.iter().position(|symbol| *symbol == name);
            known.map_or(1, |at| self.in_order()[at])
        };
        symbols.names().iter().map(|name| value(name)).collect()
    }

    fn max(self, other: StepLimits) -> StepLimits {
        StepLimits {
            tokens: self.tokens.max(other.tokens),
            sequences: self.sequences.max(other.sequences),
            blocks: self.blocks.max(other.blocks),
            logits: self.logits.max(other.logits),
            slots: self.slots.max(other.slots),
        }
    }
}

/// A model that computes steps: a started executor with its KV memory.
#[derive(Debug)]
pub struct ModelStepper {
    running: Running,
    ports: Ports,
    limits: StepLimits,
    /// Values of the executor's symbols, in its order.
    bound: Vec<usize>,
    vocab: usize,
    /// Rows of logits of the latest step.
    rows: usize,
}

/// Where a decoder's inputs, outputs and symbols are in its executor.
#[derive(Clone, Copy, Debug)]
struct Ports {
    tokens: usize,
    positions: usize,
    slots: usize,
    rows: usize,
    tables: usize,
    logit_rows: usize,
    logits: usize,
    symbols: [Option<usize>; 5],
}

/// Names of a decoder's symbols: tokens, sequences, blocks of a table, rows of logits, slots.
const SYMBOLS: [&str; 5] = ["T", "R", "M", "L", "N"];

impl Ports {
    fn of(executor: &Executor) -> Result<Ports, Error> {
        let missing = |name: &str| {
            Error::Exec(ExecError::Input {
                name: name.to_owned(),
                why: "the graph has none".into(),
            })
        };
        let input = |name: &str| {
            executor.inputs().position(|(n, _)| n == name).ok_or_else(|| missing(name))
        };
        let output = |name: &str| executor.outputs().position(|(n, _)| n == name);
        Ok(Ports {
            tokens: input(inputs::TOKENS)?,
            positions: input(inputs::POSITIONS)?,
            slots: input(inputs::SLOTS)?,
            rows: input(inputs::ROWS)?,
            tables: input(inputs::TABLES)?,
            logit_rows: input(inputs::LOGIT_ROWS)?,
            logits: output(inputs::LOGITS).ok_or_else(|| missing(inputs::LOGITS))?,
            symbols: SYMBOLS.map(|name| executor.symbols().index(name)),
        })
    }

    fn set(&self, bound: &mut [usize], sizes: &StepLimits) {
        for (place, size) in self.symbols.iter().zip(sizes.in_order()) {
            if let Some(symbol) = place.and_then(|index| bound.get_mut(index)) {
                *symbol = size;
            }
        }
    }
}

impl ModelStepper {
    pub(crate) fn new(
        executor: &Arc<Executor>,
        vocab: usize,
        limits: StepLimits,
    ) -> Result<ModelStepper, Error> {
        let ports = Ports::of(executor)?;
        let mut bound = vec![1; executor.symbols().len()];
        ports.set(&mut bound, &limits);
        let running = executor.start(&bound)?;
        Ok(ModelStepper { running, ports, limits, bound, vocab, rows: 0 })
    }

    /// The sizes that there is memory for.
    pub fn limits(&self) -> StepLimits {
        self.limits
    }

    /// Makes room for larger sizes. What the slots hold is kept.
    ///
    /// # Errors
    /// There is not that much memory.
    pub fn reserve(&mut self, limits: StepLimits) -> Result<(), Error> {
        let limits = self.limits.max(limits);
        if limits != self.limits {
            self.ports.set(&mut self.bound, &limits);
            self.running.resize(&self.bound)?;
            self.limits = limits;
        }
        Ok(())
    }

    pub(crate) fn memory(&self) -> MemoryUse {
        self.running.memory()
    }

    pub(crate) fn times(&self) -> Vec<(&'static str, StepTime)> {
        self.running.times()
    }

    /// As [`Running::loading`].
    pub(crate) fn loading(&self) -> Duration {
        self.running.loading()
    }

    fn compute(&mut self, plan: &StepPlan) -> Result<(), Error> {
        let sizes = StepLimits {
            tokens: plan.n_tokens(),
            sequences: plan.n_seqs(),
            blocks: plan.table_stride.max(1),
            // A step in the middle of a prompt wants no logits; one row is computed all the same.
            logits: plan.n_logits().max(1),
            slots: self.limits.slots,
        };
        self.reserve(sizes)?;
        self.ports.set(&mut self.bound, &sizes);
        let Ports { tokens, positions, slots, rows, tables, logit_rows, .. } = self.ports;
        self.rows = 0;
        self.running.bind(&self.bound)?;
        for (port, values) in [
            (tokens, &plan.tokens),
            (positions, &plan.positions),
            (slots, &plan.slots),
            (rows, &plan.rows),
            (tables, &plan.tables),
            (logit_rows, &plan.logits_tokens),
        ] {
            self.running.input(port, &mut |bytes| fill(bytes, values));
        }
        self.running.run()?;
        self.rows = plan.n_logits();
        Ok(())
    }
}

/// Writes `values` as 32-bit integers, and zeros after them.
fn fill(bytes: &mut [u8], values: &[u32]) {
    let mut values = values.iter();
    for place in bytes.chunks_exact_mut(4) {
        place.copy_from_slice(&values.next().copied().unwrap_or(0).to_ne_bytes());
    }
}

impl Stepper for ModelStepper {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn step(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        self.compute(plan).map_err(|error| StepError::Step(error.to_string()))
    }

    fn logits(&mut self, row: usize) -> Result<&[f32], StepError> {
        // The engine asks for rows of the plan only; an absent one reads as no logits at all.
        if row >= self.rows {
            return Ok(&[]);
        }
        let fail = |error: &dyn std::fmt::Display| StepError::Step(error.to_string());
        let bytes = self.running.output(self.ports.logits).map_err(|error| fail(&error))?;
        let values = bytemuck::try_cast_slice::<u8, f32>(bytes).map_err(|error| fail(&error))?;
        let from = row.saturating_mul(self.vocab);
        Ok(values.get(from..from.saturating_add(self.vocab)).unwrap_or(&[]))
    }

    fn best(&mut self, row: usize) -> Result<Option<u32>, StepError> {
        if row >= self.rows {
            return Ok(None);
        }
        let best = self.running.largest(self.ports.logits);
        let best = best.map_err(|error| StepError::Step(error.to_string()))?;
        Ok(best.and_then(|best| best.get(row).copied()).filter(|&token| token != u32::MAX))
    }

    fn n_candidates(&self) -> usize {
        TOP
    }

    fn candidates(
        &mut self,
        row: usize,
        mass: Option<f32>,
        model_mass: bool,
    ) -> Result<Option<Candidates<'_>>, StepError> {
        if row >= self.rows {
            return Ok(None);
        }
        let logits = self.ports.logits;
        let mut sum = |scale: Option<f32>| -> Result<Option<f64>, ExecError> {
            let Some(scale) = scale else { return Ok(None) };
            let sums = self.running.exponentials(logits, scale)?;
            Ok(sums.and_then(|sums| sums.get(row).copied()))
        };
        let fail = |error: ExecError| StepError::Step(error.to_string());
        let model_mass = sum(model_mass.then_some(1.0)).map_err(fail)?;
        let mass = sum(mass).map_err(fail)?;
        let vocab = self.vocab;
        let Some(top) = self.running.top(logits).map_err(fail)? else { return Ok(None) };
        let range = row * TOP..(row + 1) * TOP;
        let (Some(ids), Some(logits)) = (top.places.get(range.clone()), top.values.get(range))
        else {
            return Ok(None);
        };
        Ok(Some(Candidates { ids, logits, vocab, mass, model_mass }))
    }
}
