//! A steady step allocates nothing, with every step of the chain in use.

use cyb_sample::{Sampler, SamplingParams, Workspace};

fn logits(vocab: usize, salt: u64) -> Vec<f32> {
    (0..vocab).map(|i| (cyb_sample::uniform(salt, i as u64) * 30.0 - 15.0) as f32).collect()
}

#[test]
fn a_steady_step_allocates_nothing() {
    let vocab = 32_000;
    let rows: Vec<Vec<f32>> = (0..4).map(|salt| logits(vocab, salt)).collect();
    let neutral = SamplingParams::neutral;
    for params in [
        SamplingParams { temperature: 0.0, ..neutral() },
        SamplingParams::default(),
        SamplingParams::preset("reasoning").unwrap(),
        SamplingParams {
            frequency_penalty: 0.5,
            presence_penalty: 0.5,
            ..SamplingParams::preset("creative").unwrap()
        },
    ] {
        let mut workspace = Workspace::default();
        let mut sampler = Sampler::new(params.clone(), &[1, 2, 3], 256, None);
        let mut position = 3;
        let mut take = |n: usize| {
            for _ in 0..n {
                let row = &rows[position % rows.len()];
                sampler.sample(row, position, &mut workspace).unwrap();
                position += 1;
            }
        };
        take(50);
        let counted = allocation_counter::measure(|| take(150));
        assert_eq!(counted.count_total, 0, "{params:?}");
    }
}
