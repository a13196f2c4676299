//! How fast a model runs: prefill and decode apart, each several times, with the spread.

use std::time::Instant;

use cyb_engine::{SeqId, StepPlan, Stepper};
use cyb_models::Head;

use crate::encoder::{Sequence, Wanted};
use crate::metrics::{OpTime, per_second};
use crate::model::millis;
use crate::stepper::{ModelStepper, StepLimits};
use crate::{Error, Model, memory};

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchOptions {
    /// Tokens of a prompt.
    pub prompt_tokens: usize,
    /// Tokens made one by one.
    pub gen_tokens: usize,
    /// Tokens in the context before either begins.
    pub depth: usize,
    /// Sequences decoded at once.
    pub batch: usize,
    /// How often each is measured.
    pub repeat: usize,
}

/// Measurements in order: the middle one and the ends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchResult {
    /// Loading the model.
    pub load_ms: f64,
    /// Prompt tokens a second; zeros when none were asked for.
    pub prefill: Spread,
    /// Tokens made a second, all sequences together; zeros when none were asked for.
    pub decode: Spread,
    /// Bytes of weights and of keys and values that are read for a token.
    pub bytes_per_token: u64,
    /// The memory traffic that the median decode speed means, in 10^9 bytes a second.
    pub bandwidth_gb_per_sec: f64,
    /// The most memory that the process has held, in MiB.
    pub peak_memory_mb: f64,
}

/// What to measure of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderBenchOptions {
    /// Texts of a run.
    pub batch: usize,
    /// Tokens of each.
    pub tokens: usize,
    /// How often a run is measured.
    pub repeat: usize,
}

/// What was measured of an encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderBench {
    /// Loading the model.
    pub load_ms: f64,
    /// A run of the whole batch to its hidden states, or what the model's head makes of them.
    pub run_ms: Spread,
    /// Calls and milliseconds of each kind of operation in a run.
    pub ops: Vec<OpTime>,
    /// The most memory that the process has held, in MiB.
    pub peak_memory_mb: f64,
}

impl Spread {
    /// Of measurements in any order; zeros for none.
    pub fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (values.first(), values.last()) else {
            return Spread::default();
        };
        let half = values.len() / 2;
        let median = match values.len() % 2 {
            0 => (values[half - 1] + values[half]) / 2.0,
            _ => values[half],
        };
        Spread { median, min, max }
    }
}

impl Model {
    /// Measures. `progress` is told how many of how many measurements are done.
    ///
    /// # Errors
    /// The tokens do not fit the model's context, or there is not enough memory.
    pub fn bench(
        &self,
        options: BenchOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<BenchResult, Error> {
        let BenchOptions { prompt_tokens, gen_tokens, depth, batch, repeat } = options;
        let length = depth + prompt_tokens.max(gen_tokens);
        if length > self.context_length() || length == 0 {
            let why = format!(
                "{depth} tokens of depth and {} more; the model takes 1 to {}",
                prompt_tokens.max(gen_tokens),
                self.context_length()
            );
            return Err(Error::Value { what: "length", why });
        }
        if batch == 0 || repeat == 0 {
            let why = "0; give 1 or more".to_owned();
            return Err(Error::Value { what: if batch == 0 { "batch" } else { "repeat" }, why });
        }
        let stride = length.div_ceil(self.kv_block());
        let chunk = self.config().chunk();
        let stepper = self.stepper(StepLimits {
            tokens: chunk.min(length).max(batch),
            sequences: batch,
            blocks: stride,
            logits: batch,
            slots: batch * stride * self.kv_block(),
        })?;
        let mut bench = Bench { model: self, stepper, plan: StepPlan::default(), stride, batch };
        let total = 2 * repeat;
        // Weights come from disk and threads from sleep the first time.
        for row in 0..batch {
            bench.prefill(row, 0, depth.max(1), chunk)?;
        }
        bench.decode(depth, 1)?;
        let mut prefill = Vec::new();
        for number in 0..if prompt_tokens == 0 { 0 } else { repeat } {
            progress(number, total);
            let start = Instant::now();
            bench.prefill(0, depth, prompt_tokens, chunk)?;
            prefill.push(per_second(prompt_tokens, millis(start)));
        }
        let mut decode = Vec::new();
        for number in 0..if gen_tokens == 0 { 0 } else { repeat } {
            progress(repeat + number, total);
            let start = Instant::now();
            bench.decode(depth, gen_tokens)?;
            decode.push(per_second(gen_tokens * batch, millis(start)));
        }
        progress(total, total);
        let decode = Spread::of(decode);
        let seen = depth as u64 + gen_tokens as u64 / 2;
        let bytes_per_token =
            self.weight_bytes_per_step() / batch as u64 + self.memory().kv_per_token * seen;
        Ok(BenchResult {
            load_ms: self.load_ms() + bench.stepper.loading().as_secs_f64() * 1e3,
            prefill: Spread::of(prefill),
            decode,
            bytes_per_token,
            bandwidth_gb_per_sec: bytes_per_token as f64 * decode.median / 1e9,
            peak_memory_mb: memory::process_peak().unwrap_or(0) as f64 / f64::from(1 << 20),
        })
    }
}

impl Model {
    /// Measures an encoder on a batch of texts of one length. `progress` is told how many of how
    /// many runs are done.
    ///
    /// # Errors
    /// The model is no encoder of texts, or the tokens do not fit it.
    pub fn bench_encoder(
        &self,
        options: EncoderBenchOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<EncoderBench, Error> {
        let EncoderBenchOptions { batch, tokens, repeat } = options;
        if tokens == 0 || tokens > self.context_length() {
            let why = format!("{tokens} tokens; the model takes 1 to {}", self.context_length());
            return Err(Error::Value { what: "length", why });
        }
        if batch == 0 || repeat == 0 {
            let why = "0; give 1 or more".to_owned();
            return Err(Error::Value { what: if batch == 0 { "batch" } else { "repeat" }, why });
        }
        let Some((info, runner)) = self.encoder() else {
            let model = self.package().name().to_owned();
            let (has, want) = ("a decoder", "an encoder of texts");
            return Err(Error::NoHead { model, has, want });
        };
        let vocab = self.vocab_size() as u64;
        let id = |at: usize| ((at as u64).wrapping_mul(7919) % vocab.max(1)) as u32;
        let sequence = |row: usize| Sequence {
            ids: (row * tokens..(row + 1) * tokens).map(id).collect(),
            types: vec![0; tokens],
            ..Sequence::default()
        };
        let sequences: Vec<Sequence> = (0..batch).map(sequence).collect();
        let head = info.head != Head::None;
        let wanted = Wanted { hidden: !head, logits: head, ..Wanted::default() };
        let mut runner = runner.lock().map_err(|_| Error::Poisoned)?;
        let mut one = || -> Result<f64, Error> {
            let start = Instant::now();
            runner.run(&sequences, info, wanted, &self.config().cancel, &mut |_, _| Ok(()))?;
            Ok(millis(start))
        };
        // Memory is got and weights come to the caches the first time.
        one()?;
        one()?;
        let mut times = Vec::with_capacity(repeat);
        for number in 0..repeat {
            progress(number, repeat);
            times.push(one()?);
        }
        progress(repeat, repeat);
        drop(runner);
        let runs = (repeat + 2) as f64;
        let metrics = self.metrics();
        let ops = metrics.ops.into_iter().map(|op| OpTime {
            calls: (op.calls as f64 / runs) as u64,
            total_ms: op.total_ms / runs,
            ..op
        });
        Ok(EncoderBench {
            load_ms: self.load_ms(),
            run_ms: Spread::of(times),
            ops: ops.collect(),
            peak_memory_mb: metrics.peak_memory_mb,
        })
    }
}

struct Bench<'m> {
    model: &'m Model,
    stepper: ModelStepper,
    plan: StepPlan,
    /// Blocks of each sequence.
    stride: usize,
    batch: usize,
}

impl Bench<'_> {
    fn step(&mut self) -> Result<(), Error> {
        if self.model.config().cancel.is_set() {
            return Err(Error::Interrupted);
        }
        self.stepper
            .step(&self.plan)
            .map_err(|error| Error::Value { what: "step", why: error.to_string() })
    }

    /// Some token: which one does not matter for speed, but equal ones would share cache lines.
    fn token(&self, position: usize) -> u32 {
        let vocab = self.model.vocab_size() as u64;
        ((position as u64).wrapping_mul(0x9E37_79B9) % vocab.max(1)) as u32
    }

    /// Computes `n` tokens of sequence `row` from position `from` on, in chunks.
    fn prefill(&mut self, row: usize, from: usize, n: usize, chunk: usize) -> Result<(), Error> {
        let end = from + n;
        for at in (from..end).step_by(chunk) {
            let here = chunk.min(end - at);
            let last = at + here == end;
            self.begin();
            self.row(0, row, at, here);
            if last {
                self.plan.logits_tokens.push(here as u32 - 1);
            }
            self.plan.logits_starts.push(self.plan.logits_tokens.len() as u32);
            self.step()?;
        }
        Ok(())
    }

    /// Computes `n` tokens of every sequence from position `from` on, one each a step.
    fn decode(&mut self, from: usize, n: usize) -> Result<(), Error> {
        for at in from..from + n {
            self.begin();
            for row in 0..self.batch {
                self.row(row, row, at, 1);
                self.plan.logits_tokens.push(row as u32);
                self.plan.logits_starts.push(row as u32 + 1);
            }
            self.step()?;
            // What a server needs of a step: each sequence's next token.
            for row in 0..self.batch {
                let next = self.stepper.best(row);
                next.map_err(|error| Error::Value { what: "step", why: error.to_string() })?;
            }
        }
        Ok(())
    }

    fn begin(&mut self) {
        let StepPlan { tokens, positions, slots, rows, .. } = &mut self.plan;
        [tokens, positions, slots, rows].into_iter().for_each(Vec::clear);
        self.plan.seqs.clear();
        self.plan.context_lens.clear();
        self.plan.tables.clear();
        self.plan.table_stride = self.stride;
        self.plan.logits_tokens.clear();
        self.plan.token_starts.clear();
        self.plan.token_starts.push(0);
        self.plan.logits_starts.clear();
        self.plan.logits_starts.push(0);
    }

    fn row(&mut self, row: usize, sequence: usize, at: usize, n: usize) {
        let base = sequence * self.stride * self.model.kv_block();
        for position in at..at + n {
            let token = self.token(position + sequence);
            self.plan.tokens.push(token);
            self.plan.positions.push(position as u32);
            self.plan.slots.push((base + position) as u32);
            self.plan.rows.push(row as u32);
        }
        self.plan.seqs.push(SeqId(sequence as u64));
        self.plan.token_starts.push(self.plan.tokens.len() as u32);
        self.plan.context_lens.push((at + n) as u32);
        let first = (sequence * self.stride) as u32;
        self.plan.tables.extend(first..first + self.stride as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(vec![4.0, 1.0]).median, 2.5);
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }
}
