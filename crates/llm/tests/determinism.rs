//! The same logits, bit for bit, however a sequence is computed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::path::Path;

use cyb_engine::{
    Config as EngineConfig, Engine, Flow, Request, SeqId, StepError, StepPlan, Stepper,
};
use cyb_llm::{BackendKind, Config, Model, ModelStepper, Runtime, SamplingParams, StepLimits};

/// Bits of the logits by sequence and position.
type Seen = BTreeMap<(SeqId, u32), Vec<u32>>;

/// Notes the logits of every step.
struct Recorder {
    stepper: ModelStepper,
    seen: Seen,
}

impl Stepper for Recorder {
    fn vocab(&self) -> usize {
        self.stepper.vocab()
    }

    fn step(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        self.stepper.step(plan)?;
        for row in 0..plan.n_seqs() {
            for logits in plan.logits_of(row) {
                let position = plan.positions[plan.logits_tokens[logits] as usize];
                let bits = self.stepper.logits(logits)?.iter().map(|logit| logit.to_bits());
                self.seen.insert((plan.seqs[row], position), bits.collect());
            }
        }
        Ok(())
    }

    fn logits(&mut self, row: usize) -> Result<&[f32], StepError> {
        self.stepper.logits(row)
    }
}

fn load(threads: usize, backend: BackendKind) -> Model {
    open(&cyb_testkit::golden("families/llama3.gguf"), threads, backend)
}

fn open(path: &Path, threads: usize, backend: BackendKind) -> Model {
    let config = Config { threads: Some(threads), backend, ..Config::auto() };
    Runtime::new(config).unwrap().load(path.to_str().unwrap()).unwrap()
}

fn engine(model: &Model, chunk: usize) -> Engine<Recorder> {
    let block = model.kv_block();
    let limits = StepLimits { tokens: 1, sequences: 1, blocks: 1, logits: 1, slots: 64 * block };
    let stepper = model.stepper(limits).unwrap();
    let config = EngineConfig {
        block_size: block,
        n_blocks: 64,
        step_tokens: chunk.max(16),
        chunk,
        ..EngineConfig::default()
    };
    Engine::new(Recorder { stepper, seen: Seen::new() }, config)
}

fn request(seed: u32) -> Request {
    let prompt = (0..90).map(|i| (i * 7 + seed * 13 + 1) % 120).collect();
    let params =
        SamplingParams { temperature: 0.0, max_tokens: Some(8), ..SamplingParams::neutral() };
    Request { prompt, params, context: 128, ..Request::default() }
}

fn submit(engine: &mut Engine<Recorder>, seed: u32) -> SeqId {
    engine.submit(request(seed)).unwrap()
}

fn finish(engine: &mut Engine<Recorder>) {
    engine.run(&mut |_| Flow::Continue);
}

/// What was seen of one sequence.
fn logits(engine: &Engine<Recorder>, seq: SeqId) -> BTreeMap<u32, Vec<u32>> {
    let all = engine.model().seen.iter();
    all.filter(|((s, _), _)| *s == seq).map(|((_, at), bits)| (*at, bits.clone())).collect()
}

fn alone(model: &Model, chunk: usize) -> BTreeMap<u32, Vec<u32>> {
    alone_with(model, chunk, request(0))
}

fn alone_with(model: &Model, chunk: usize, request: Request) -> BTreeMap<u32, Vec<u32>> {
    let mut engine = engine(model, chunk);
    let seq = engine.submit(request).unwrap();
    finish(&mut engine);
    let seen = logits(&engine, seq);
    assert_eq!(seen.len(), 8, "one row for each new token");
    seen
}

#[test]
fn logits_do_not_depend_on_threads_chunks_company_or_the_prefix_cache() {
    // Tiny models have heads of odd sizes, whose attention runs as atoms; the demo model has the
    // kernels that real models have.
    same_logits(&cyb_testkit::golden("families/llama3.gguf"));
    same_logits(&cyb_testkit::model(cyb_testkit::DEMO));
}

/// The tiny model's layers see windows of a few tokens; a chunk ends anywhere in one.
#[test]
fn prompts_about_as_long_as_the_window_do_not_depend_on_chunks() {
    let model = open(&cyb_testkit::golden("families/gemma3.gguf"), 1, BackendKind::Cpu);
    for length in [5, 6, 7, 11, 12, 13, 15, 16, 17, 24, 31, 32, 33, 64] {
        let prompt = |mut request: Request| {
            request.prompt.truncate(length);
            request
        };
        let whole = alone_with(&model, 512, prompt(request(0)));
        for chunk in [1, 5, 16] {
            let parts = alone_with(&model, chunk, prompt(request(0)));
            assert!(parts == whole, "{length} tokens in chunks of {chunk}");
        }
    }
}

fn same_logits(path: &Path) {
    let model = open(path, 1, BackendKind::Cpu);
    let expected = alone(&model, 512);
    for chunk in [7, 64] {
        assert!(alone(&model, chunk) == expected, "chunk {chunk}");
    }
    assert!(alone(&open(path, 2, BackendKind::Cpu), 512) == expected, "two threads");

    let mut batch = engine(&model, 64);
    let seqs: Vec<SeqId> =
        [3, 1, 0, 4, 2].into_iter().map(|seed| submit(&mut batch, seed)).collect();
    finish(&mut batch);
    assert!(logits(&batch, seqs[2]) == expected, "in a batch of five");

    let mut twice = engine(&model, 512);
    submit(&mut twice, 0);
    finish(&mut twice);
    let again = submit(&mut twice, 0);
    let mut cached = 0;
    twice.run(&mut |event| {
        if let cyb_engine::Event::Finished { usage, .. } = event {
            cached = usage.cached_tokens;
        }
        Flow::Continue
    });
    assert!(cached > 0, "the prefix cache had nothing");
    assert!(logits(&twice, again) == expected, "after a prefix hit");
}

/// Without a single kernel the model says the same.
#[test]
fn the_interpreter_gives_the_same_tokens() {
    let greedy =
        SamplingParams { temperature: 0.0, max_tokens: Some(12), ..SamplingParams::neutral() };
    let tokens = |backend| {
        let model = load(1, backend);
        model.generate("abc def", greedy.clone()).unwrap().complete().unwrap().token_ids
    };
    assert_eq!(tokens(BackendKind::Atoms), tokens(BackendKind::Cpu));
}

#[test]
fn a_batch_gives_what_each_gives_alone() {
    let model = load(2, BackendKind::Cpu);
    let params =
        SamplingParams { seed: Some(5), max_tokens: Some(10), ..SamplingParams::default() };
    let prompts = ["one", "two two", "three three three", "four", "five"];
    let together = model.generate_batch(&prompts, &params).unwrap();
    for (prompt, together) in prompts.iter().zip(together) {
        let alone = model.generate(prompt, params.clone()).unwrap().complete().unwrap();
        assert_eq!((alone.text, alone.token_ids), (together.text, together.token_ids), "{prompt}");
    }
}

#[test]
fn work_can_be_cancelled_and_taken_up_again() {
    let config = Config::auto();
    let cancel = config.cancel.clone();
    let path = cyb_testkit::golden("families/llama3.gguf");
    let runtime = Runtime::new(config).unwrap();
    let model = runtime.load(path.to_str().unwrap()).unwrap();
    let params =
        SamplingParams { temperature: 0.0, max_tokens: Some(20), ..SamplingParams::neutral() };
    let mut generation = model.generate("abc", params.clone()).unwrap();
    assert!(generation.next().unwrap().is_ok());
    cancel.set();
    assert!(matches!(generation.next(), Some(Err(cyb_llm::Error::Interrupted))));
    assert!(generation.next().is_none(), "it has ended");
    cancel.clear();
    assert_eq!(model.generate("abc", params).unwrap().complete().unwrap().token_ids.len(), 20);
}

#[test]
fn models_come_and_go() {
    let runtime = Runtime::new(Config::auto()).unwrap();
    let path = cyb_testkit::golden("families/qwen2.gguf");
    let first = runtime.load(path.to_str().unwrap()).unwrap();
    let second = runtime.load(path.to_str().unwrap()).unwrap();
    assert_ne!(first.id(), second.id());
    assert_eq!(runtime.list_models().len(), 2);
    let third = runtime.hot_swap(first.id(), path.to_str().unwrap()).unwrap();
    assert_eq!(runtime.list_models().len(), 2);
    assert!(runtime.unload(first.id()).is_err());
    runtime.unload(third.id()).unwrap();
    assert!(runtime.load("no such model").is_err());
}
