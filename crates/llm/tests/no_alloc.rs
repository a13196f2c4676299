//! A steady decode step allocates nothing: scheduler, plan, every kernel, sampler, events.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use cyb_engine::{Config as EngineConfig, Engine, Event, Flow, Request};
use cyb_llm::{BackendKind, Config, ModelStepper, Runtime, SamplingParams, StepLimits};

const SEQUENCES: usize = 3;
/// The plan's tables double as sequences grow; by then they have room for the steps that count.
const WARM_UP: usize = 80;
const COUNTED: usize = 25;
const CONTEXT: usize = 128;

fn engine(threads: usize) -> Engine<ModelStepper> {
    let config = Config { threads: Some(threads), backend: BackendKind::Cpu, ..Config::auto() };
    // A real model: tiny ones have shapes that run as atoms.
    let path = cyb_testkit::model(cyb_testkit::DEMO);
    let model = Runtime::new(config).unwrap().load(path.to_str().unwrap()).unwrap();
    let block = model.kv_block();
    let blocks = CONTEXT.div_ceil(block);
    let n_blocks = SEQUENCES * blocks;
    let limits = StepLimits {
        tokens: 64,
        sequences: SEQUENCES,
        blocks,
        logits: SEQUENCES,
        slots: n_blocks * block,
    };
    let stepper = model.stepper(limits).unwrap();
    Engine::new(stepper, EngineConfig { block_size: block, n_blocks, ..EngineConfig::default() })
}

#[test]
fn a_steady_decode_step_allocates_nothing() {
    // The caller computes too, so that with one thread all kernels are counted; with two, the
    // handing out of work is.
    for threads in [1, 2] {
        let mut engine = engine(threads);
        for sequence in 0..SEQUENCES as u32 {
            let prompt = (1..12 + sequence).collect();
            let params = SamplingParams {
                repetition_penalty: 1.1,
                seed: Some(u64::from(sequence)),
                max_tokens: Some(110),
                ..SamplingParams::default()
            };
            let request = Request { prompt, params, context: CONTEXT, ..Request::default() };
            engine.submit(request).unwrap();
        }
        let mut tokens = 0;
        let mut run = |engine: &mut Engine<ModelStepper>, steps: usize| {
            for _ in 0..steps {
                engine.step(&mut |event| {
                    tokens += usize::from(matches!(event, Event::Token { .. }));
                    Flow::Continue
                });
            }
        };
        run(&mut engine, WARM_UP);
        let counted = allocation_counter::measure(|| run(&mut engine, COUNTED));
        assert_eq!(tokens, SEQUENCES * (WARM_UP + COUNTED));
        assert_eq!(counted.count_total, 0, "{threads} threads");
    }
}
