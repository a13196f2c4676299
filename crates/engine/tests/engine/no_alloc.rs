//! A steady decode step allocates nothing.

use crate::model::HashModel;
use cyb_engine::{Config, Engine, Event, Flow, Request};
use cyb_sample::SamplingParams;

#[test]
fn a_steady_decode_step_allocates_nothing() {
    let config = Config { n_blocks: 256, block_size: 16, ..Config::default() };
    let mut model = HashModel::new(config.n_blocks, config.block_size);
    model.checks = false;
    let mut engine = Engine::new(model, config);
    for i in 0..4u32 {
        let params = SamplingParams {
            repetition_penalty: 1.1,
            max_tokens: Some(500),
            ..SamplingParams::default()
        };
        let prompt = (0..30 + i).collect();
        engine.submit(Request { prompt, params, context: 1000, ..Request::default() }).unwrap();
    }
    let mut n_tokens = 0;
    let mut run = |engine: &mut Engine<HashModel>, n_steps: usize| {
        for _ in 0..n_steps {
            engine.step(&mut |event| {
                n_tokens += usize::from(matches!(event, Event::Token { .. }));
                Flow::Continue
            });
        }
    };
    // The plan's tables double as they grow; by then they have room for the steps measured.
    run(&mut engine, 300);
    let counted = allocation_counter::measure(|| run(&mut engine, 100));
    assert_eq!(n_tokens, 4 * 400);
    assert_eq!(counted.count_total, 0);
}
