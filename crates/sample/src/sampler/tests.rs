use std::collections::BTreeMap;

use super::*;

fn sampler(params: SamplingParams, prompt: &[u32]) -> Sampler {
    Sampler::new(params, prompt, 64, None)
}

fn take(params: &SamplingParams, logits: &[f32], position: usize) -> u32 {
    let mut workspace = Workspace::default();
    sampler(params.clone(), &[]).sample(logits, position, &mut workspace).unwrap().token
}

/// Deterministic logits with a wide spread.
fn logits(vocab: usize, salt: u64) -> Vec<f32> {
    (0..vocab).map(|i| (rng::uniform(salt, i as u64) * 12.0 - 6.0) as f32).collect()
}

#[test]
fn the_chain_leaves_what_the_reference_leaves() {
    let golden = include_str!("../../../../golden/sample/pipeline.txt");
    let numbers = |line: &str| -> Vec<f32> {
        line.split(' ').map(|x| x.parse().expect("a number")).collect()
    };
    let lines: Vec<&str> = golden.lines().collect();
    assert_eq!(lines.len(), 4 * 64);
    for case in lines.chunks(4) {
        let p = numbers(case[0]);
        let params = SamplingParams {
            temperature: p[0],
            top_k: Some(p[1] as u32).filter(|&k| k > 0),
            top_p: p[2],
            min_p: p[3],
            repetition_penalty: p[4],
            ..SamplingParams::neutral()
        };
        let history: Vec<u32> = numbers(case[1]).iter().map(|&x| x as u32).collect();
        let raw = numbers(case[2]);
        let want: BTreeMap<u32, f64> = case[3]
            .split(' ')
            .map(|pair| pair.split_once(':').expect("a pair"))
            .map(|(id, p)| (id.parse().expect("an id"), p.parse().expect("a probability")))
            .collect();

        let mut workspace = Workspace::default();
        let mut sampler = sampler(params.clone(), &history);
        let mut edited = Vec::new();
        let is_edited = sampler.edit(&raw, &mut edited).unwrap();
        let logits = if is_edited { &edited } else { &raw };
        let mut ranking = Ranking::new(logits, params.temperature.recip(), &mut workspace).unwrap();
        sampler.filter(&mut ranking, logits.len());
        let mass = ranking.mass();
        let mut got = BTreeMap::new();
        while let (Some(token), Some(weight)) =
            (ranking.token(got.len()), ranking.weight(got.len()))
        {
            got.insert(token, weight / mass);
        }
        assert!(want.keys().eq(got.keys()), "{}\n{want:?}\n{got:?}", case[0]);
        for (token, p) in &want {
            assert!((p - got[token]).abs() < 2e-6, "{}: {token}: {p} {}", case[0], got[token]);
        }
    }
}

/// Case S1.
#[test]
fn temperature_zero_takes_the_lowest_of_equal_maxima_whatever_the_seed() {
    let mut xs = logits(1000, 1);
    xs[700] = 9.0;
    xs[123] = 9.0;
    for seed in 0..50 {
        let params =
            SamplingParams { temperature: 0.0, seed: Some(seed), ..SamplingParams::default() };
        assert_eq!(take(&params, &xs, seed as usize), 123);
        let params = SamplingParams { temperature: 1e-42, ..params };
        assert_eq!(take(&params, &xs, 3), 123);
        let params = SamplingParams { temperature: 1e-30, top_k: Some(1), ..params };
        assert_eq!(take(&params, &xs, 3), 123);
    }
}

/// Case S3.
#[test]
fn a_seed_repeats_and_leaves_the_temperature_alone() {
    let xs = logits(500, 2);
    let run = |seed| -> Vec<u32> {
        let params = SamplingParams { seed: Some(seed), ..SamplingParams::neutral() };
        (0..100).map(|position| take(&params, &xs, position)).collect()
    };
    assert_eq!(run(42), run(42));
    assert_ne!(run(42), run(43));
    let mut distinct = run(42);
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() > 30, "temperature 1 must vary: {distinct:?}");
}

#[test]
fn a_missing_seed_is_fresh_and_can_be_read_back() {
    let a = sampler(SamplingParams::neutral(), &[]);
    let b = sampler(SamplingParams::neutral(), &[]);
    assert_ne!(a.seed(), b.seed());
    assert_eq!(sampler(SamplingParams::preset("router").unwrap(), &[]).seed(), 42);
}

#[test]
fn temperature_zero_sees_the_penalties() {
    let xs = [2.0f32, 1.9, -1.0];
    let params =
        SamplingParams { temperature: 0.0, repetition_penalty: 1.1, ..SamplingParams::neutral() };
    let mut workspace = Workspace::default();
    assert_eq!(sampler(params.clone(), &[]).sample(&xs, 0, &mut workspace).unwrap().token, 0);
    let mut seen = sampler(params, &[0]);
    assert_eq!(seen.sample(&xs, 1, &mut workspace).unwrap().token, 1);
    // Now both are in the history: 2 / 1.1 > 1.9 / 1.1.
    assert_eq!(seen.sample(&xs, 2, &mut workspace).unwrap().token, 0);
}

/// Pearson's statistic for draws against the exact distribution of what the filters leave.
fn chi_square(params: &SamplingParams, xs: &[f32], expected: &[(u32, f64)]) -> f64 {
    let n = 20_000;
    let mut counts: BTreeMap<u32, f64> = BTreeMap::new();
    let mut sampler = sampler(params.clone(), &[]);
    let mut workspace = Workspace::default();
    for position in 0..n {
        let token = sampler.sample(xs, position, &mut workspace).unwrap().token;
        *counts.entry(token).or_default() += 1.0;
    }
    assert!(counts.keys().all(|t| expected.iter().any(|e| e.0 == *t)), "{counts:?}");
    expected
        .iter()
        .map(|&(token, p)| {
            let want = p * n as f64;
            (counts.get(&token).copied().unwrap_or(0.0) - want).powi(2) / want
        })
        .sum()
}

#[test]
fn draws_follow_the_distribution() {
    let xs: Vec<f32> = [0.5f32, 0.25, 0.125, 0.0625, 0.0625].iter().map(|p| p.ln()).collect();
    let base = SamplingParams { seed: Some(5), ..SamplingParams::neutral() };
    let all = [(0, 0.5), (1, 0.25), (2, 0.125), (3, 0.0625), (4, 0.0625)];
    // 99.9 % points of chi-square with 4, 2 and 1 degrees of freedom: 18.5, 13.8, 10.8.
    assert!(chi_square(&base, &xs, &all) < 18.5);
    let top_k = SamplingParams { top_k: Some(3), ..base.clone() };
    let three = [(0, 4.0 / 7.0), (1, 2.0 / 7.0), (2, 1.0 / 7.0)];
    assert!(chi_square(&top_k, &xs, &three) < 13.8);
    let top_p = SamplingParams { top_p: 0.7, ..base.clone() };
    let two = [(0, 2.0 / 3.0), (1, 1.0 / 3.0)];
    assert!(chi_square(&top_p, &xs, &two) < 10.8);
    let min_p = SamplingParams { min_p: 0.4, ..base };
    assert!(chi_square(&min_p, &xs, &two) < 10.8);
}

#[test]
fn the_whole_vocabulary_can_be_drawn_and_impossible_tokens_cannot() {
    // Large enough for several mass blocks; every third token is impossible.
    let xs: Vec<f32> =
        (0..3000).map(|i| if i % 3 == 1 { f32::NEG_INFINITY } else { 0.0 }).collect();
    let params = SamplingParams { seed: Some(1), ..SamplingParams::neutral() };
    let mut seen = vec![0u32; xs.len()];
    for position in 0..40_000 {
        seen[take(&params, &xs, position) as usize] += 1;
    }
    for (id, &n) in seen.iter().enumerate() {
        assert_eq!(n == 0, id % 3 == 1, "token {id} drawn {n} times");
    }
}

#[test]
fn extreme_values_leave_exactly_one_token() {
    let xs = logits(3000, 9);
    let best = take(&SamplingParams { temperature: 0.0, ..SamplingParams::neutral() }, &xs, 0);
    let base = SamplingParams { temperature: 2.0, ..SamplingParams::neutral() };
    for params in [
        SamplingParams { top_k: Some(1), ..base.clone() },
        SamplingParams { top_p: 0.0, ..base.clone() },
        SamplingParams { min_p: 1.0, ..base.clone() },
    ] {
        assert!((0..50).all(|position| take(&params, &xs, position) == best), "{params:?}");
    }
    // More than there are keeps all.
    let params = SamplingParams { top_k: Some(u32::MAX), seed: Some(3), ..base.clone() };
    let all = SamplingParams { seed: Some(3), ..base };
    assert!((0..50).all(|position| take(&params, &xs, position) == take(&all, &xs, position)));
}

#[test]
fn broken_logits_are_errors_on_every_path() {
    for temperature in [0.0, 1.0] {
        for params in [
            SamplingParams { temperature, ..SamplingParams::neutral() },
            SamplingParams { temperature, ..SamplingParams::default() },
            SamplingParams { temperature, frequency_penalty: 1.0, ..SamplingParams::default() },
        ] {
            let mut workspace = Workspace::default();
            let mut sampler = sampler(params, &[]);
            let error = sampler.sample(&[0.0, f32::NAN, 1.0], 0, &mut workspace).unwrap_err();
            assert!(matches!(error, SampleError::NotFinite { token: 1, .. }), "{error}");
            let error = sampler.sample(&[f32::NEG_INFINITY; 3], 0, &mut workspace).unwrap_err();
            assert_eq!(error, SampleError::NoCandidate);
            // The sampler goes on working.
            let ok = sampler.sample(&[f32::NEG_INFINITY, 0.0], 0, &mut workspace).unwrap();
            assert_eq!(ok.token, 1);
        }
    }
}

/// Allows only multiples of `step`, and fails when told so.
#[derive(Debug)]
struct Multiples {
    step: u32,
    vocab: u32,
    accepted: Vec<u32>,
}

impl Constraint for Multiples {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<(), ConstraintError> {
        if self.step == 0 {
            return Err(ConstraintError("no step".into()));
        }
        if self.accepted.len() < 100 {
            (0..self.vocab).filter(|t| t % self.step == 0).for_each(|t| mask.allow(t));
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.accepted.push(token);
        Ok(())
    }
}

#[test]
fn a_constraint_decides_what_is_possible_and_is_caught_at_its_boundary() {
    let xs = logits(200, 4);
    let constrained = |params: SamplingParams, step| {
        let constraint = Multiples { step, vocab: 200, accepted: Vec::new() };
        Sampler::new(params, &[], 64, Some(Box::new(constraint)))
    };
    let mut workspace = Workspace::default();
    for temperature in [0.0, 1.5] {
        let params = SamplingParams {
            temperature,
            top_k: Some(5),
            logprobs: Some(5),
            ..SamplingParams::default()
        };
        let mut sampler = constrained(params, 7);
        for position in 0..100 {
            let sampled = sampler.sample(&xs, position, &mut workspace).unwrap();
            assert_eq!(sampled.token % 7, 0);
            // Case S9: the model's own distribution, so nothing is minus infinity.
            let logprobs = sampled.logprobs.unwrap();
            assert_eq!(logprobs.top.len(), 5);
            assert!(logprobs.top.iter().all(|t| t.1.is_finite()) && logprobs.chosen.is_finite());
        }
        assert_eq!(sampler.sample(&xs, 100, &mut workspace), Err(SampleError::NoCandidate));
    }
    let error = constrained(SamplingParams::default(), 0).sample(&xs, 0, &mut workspace);
    assert!(matches!(error, Err(SampleError::Constraint(_))));
}

#[test]
fn bias_forces_and_bans() {
    let xs = logits(300, 6);
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::neutral() };
    let best = take(&greedy, &xs, 0);
    let ban = SamplingParams { logit_bias: BTreeMap::from([(best, -100.0)]), ..greedy.clone() };
    assert_ne!(take(&ban, &xs, 0), best);
    let force = SamplingParams { logit_bias: BTreeMap::from([(299, 100.0)]), ..greedy };
    assert_eq!(take(&force, &xs, 0), 299);
}
