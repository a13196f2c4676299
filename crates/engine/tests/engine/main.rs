//! The engine as its callers see it, on the model of `model`.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod model;
mod no_alloc;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cyb_engine::{
    AdmitError, Config, Engine, Event, FinishReason, Flow, Namespace, Request, SeqId,
    SequenceError, StepError, SubmitError, Usage,
};
use cyb_sample::{SampleError, Sampler, SamplingParams, Workspace};
use model::{HashModel, VOCAB, reference_logits};
use proptest::prelude::*;

#[derive(Debug, Default, Clone, PartialEq)]
struct Output {
    tokens: Vec<u32>,
    reason: Option<FinishReason>,
    usage: Usage,
}

#[derive(Debug, Clone)]
struct Job {
    prompt: Vec<u32>,
    params: SamplingParams,
    context: usize,
    eos: Vec<u32>,
    salt: Option<String>,
}

impl Job {
    fn greedy(prompt: &[u32], max_tokens: u32) -> Self {
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens: Some(max_tokens),
            ..SamplingParams::neutral()
        };
        Job { prompt: prompt.to_vec(), params, context: 4096, eos: Vec::new(), salt: None }
    }

    fn request(&self) -> Request {
        Request {
            prompt: self.prompt.clone(),
            params: self.params.clone(),
            context: self.context,
            eos: Arc::from(&self.eos[..]),
            namespace: Namespace { adapter: None, salt: self.salt.clone() },
            constraint: None,
        }
    }

    /// What comes out when nothing is shared, paged, batched or cached.
    fn expected(&self, capacity: usize) -> (Vec<u32>, FinishReason) {
        let mut tokens = self.prompt.clone();
        let mut sampler = Sampler::new(self.params.clone(), &self.prompt, 10_000, None);
        let mut workspace = Workspace::default();
        loop {
            let logits = reference_logits(&tokens);
            let token = sampler.sample(&logits, tokens.len(), &mut workspace).unwrap().token;
            let n_output = tokens.len() - self.prompt.len();
            let done = |tokens: &[u32], reason| (tokens[self.prompt.len()..].to_vec(), reason);
            if self.eos.contains(&token) {
                return done(&tokens, FinishReason::Eos(token));
            }
            tokens.push(token);
            if Some(n_output as u32 + 1) == self.params.max_tokens {
                return done(&tokens, FinishReason::MaxTokens);
            }
            if tokens.len() == self.context.min(capacity) {
                return done(&tokens, FinishReason::ContextFull);
            }
        }
    }
}

fn config(n_blocks: usize, block_size: usize) -> Config {
    Config { n_blocks, block_size, ..Config::default() }
}

fn engine(config: Config) -> Engine<HashModel> {
    Engine::new(HashModel::new(config.n_blocks, config.block_size), config)
}

/// One step; fails when the engine's books are wrong.
fn step(engine: &mut Engine<HashModel>, outputs: &mut HashMap<SeqId, Output>) {
    engine.step(&mut |event| {
        match event {
            Event::Token { seq, token, .. } => {
                let output = outputs.entry(seq).or_default();
                assert_eq!(output.reason, None, "a token after the end");
                output.tokens.push(token);
            }
            Event::Finished { seq, reason, usage } => {
                let output = outputs.entry(seq).or_default();
                assert_eq!(output.reason, None, "ended twice");
                output.reason = Some(reason);
                output.usage = usage;
            }
        }
        Flow::Continue
    });
    engine.scheduler().verify().unwrap();
}

fn run_all(engine: &mut Engine<HashModel>, jobs: &[Job]) -> Vec<Output> {
    let ids: Vec<_> = jobs.iter().map(|job| engine.submit(job.request()).unwrap()).collect();
    let mut outputs = HashMap::new();
    for _ in 0..10_000 {
        if !engine.has_work() {
            break;
        }
        step(engine, &mut outputs);
    }
    assert!(!engine.has_work(), "not everybody finished");
    assert_eq!(engine.stats().free_blocks, engine.stats().blocks, "blocks leaked");
    ids.iter().map(|id| outputs.remove(id).unwrap()).collect()
}

fn assert_as_alone(jobs: &[Job], outputs: &[Output], capacity: usize) {
    for (job, output) in jobs.iter().zip(outputs) {
        let (tokens, reason) = job.expected(capacity);
        assert_eq!(output.tokens, tokens, "{job:?}");
        assert_eq!(output.reason, Some(reason));
        assert_eq!(output.usage.output_tokens, tokens.len());
        assert_eq!(output.usage.prompt_tokens, job.prompt.len());
    }
}

fn five_jobs() -> Vec<Job> {
    (0..5u32)
        .map(|i| {
            let prompt: Vec<u32> = (0..20 + 13 * i).map(|j| (j * 7 + i) % VOCAB as u32).collect();
            let mut job = Job::greedy(&prompt, 20 + i);
            if i % 2 == 1 {
                job.params = SamplingParams {
                    seed: Some(u64::from(i)),
                    max_tokens: job.params.max_tokens,
                    ..SamplingParams::preset("creative").unwrap()
                };
            }
            job
        })
        .collect()
}

#[test]
fn chunks_batches_and_cache_hits_change_nothing() {
    let jobs = five_jobs();
    for chunk in [1, 7, 64, 4096] {
        for step_tokens in [8, 4096] {
            for prefix_cache in [false, true] {
                let config = Config { chunk, step_tokens, prefix_cache, ..config(64, 8) };
                let mut together = engine(config);
                let outputs = run_all(&mut together, &jobs);
                assert_as_alone(&jobs, &outputs, 512);
                // Again, now from the cache.
                let again = run_all(&mut together, &jobs);
                assert_as_alone(&jobs, &again, 512);
                assert_eq!(again[0].usage.cached_tokens, if prefix_cache { 16 } else { 0 });
                let mut alone = engine(config);
                for job in &jobs {
                    let outputs = run_all(&mut alone, std::slice::from_ref(job));
                    assert_as_alone(std::slice::from_ref(job), &outputs, 512);
                }
            }
        }
    }
}

/// Case K1, at every length of prompt around the block size.
#[test]
fn the_same_request_three_times_gives_the_same_text() {
    for n in 1..40u32 {
        let prompt: Vec<u32> = (0..n).collect();
        let job = Job::greedy(&prompt, 12);
        let mut engine = engine(config(16, 8));
        for round in 0..3 {
            let outputs = run_all(&mut engine, std::slice::from_ref(&job));
            assert_as_alone(std::slice::from_ref(&job), &outputs, 128);
            let hits = if round == 0 { 0 } else { (n as usize - 1) / 8 * 8 };
            assert_eq!(outputs[0].usage.cached_tokens, hits);
        }
    }
}

/// A conversation: each turn starts with the last one's prompt and answer.
#[test]
fn the_answer_is_cached_too() {
    let mut engine = engine(config(64, 4));
    let mut job = Job::greedy(&[1, 2, 3, 4, 5], 10);
    for _ in 0..4 {
        let outputs = run_all(&mut engine, std::slice::from_ref(&job));
        assert_as_alone(std::slice::from_ref(&job), &outputs, 256);
        let known = job.prompt.len() + outputs[0].tokens.len() - 1;
        job.prompt.extend(&outputs[0].tokens);
        job.prompt.extend([9, 8, 7]);
        let next = run_all(&mut engine, &[Job::greedy(&job.prompt, 1)]);
        assert_eq!(next[0].usage.cached_tokens, known / 4 * 4);
    }
}

/// Case K3.
#[test]
fn another_tenant_gets_no_hit() {
    let mut engine = engine(config(32, 4));
    let mut job = Job::greedy(&[5; 20], 3);
    for salt in [None, Some("a"), Some("b"), Some("")] {
        job.salt = salt.map(str::to_owned);
        let outputs = run_all(&mut engine, std::slice::from_ref(&job));
        assert_eq!(outputs[0].usage.cached_tokens, 0, "{salt:?}");
        let outputs = run_all(&mut engine, std::slice::from_ref(&job));
        assert_eq!(outputs[0].usage.cached_tokens, 16, "{salt:?}");
    }
}

/// Case K5: the context ends a sequence; nothing shifts.
#[test]
fn a_sequence_stops_at_the_end_of_its_context_or_at_its_count() {
    let prompt = vec![3; 900];
    let mut job = Job::greedy(&prompt, 512);
    job.context = 1024;
    let outputs = run_all(&mut engine(config(64, 32)), std::slice::from_ref(&job));
    assert_eq!(outputs[0].tokens.len(), 124);
    assert_eq!(outputs[0].reason, Some(FinishReason::ContextFull));
    assert_eq!(outputs[0].reason.as_ref().unwrap().as_str(), "length");
    job.params.max_tokens = Some(100);
    let outputs = run_all(&mut engine(config(64, 32)), std::slice::from_ref(&job));
    assert_eq!(outputs[0].tokens.len(), 100);
    assert_eq!(outputs[0].reason, Some(FinishReason::MaxTokens));
    // Ten sequences that do not fit side by side: one pool of 2048 tokens, prompts of over 204.
    let jobs: Vec<_> = (0..10).map(|i| Job::greedy(&vec![i; 300], 200)).collect();
    let outputs = run_all(&mut engine(config(64, 32)), &jobs);
    assert_as_alone(&jobs, &outputs, 2048);
}

#[test]
fn the_memory_ends_a_sequence_that_names_no_count() {
    let mut job = Job::greedy(&[1, 2, 3], 1);
    job.params.max_tokens = None;
    let outputs = run_all(&mut engine(config(4, 8)), std::slice::from_ref(&job));
    assert_eq!(outputs[0].reason, Some(FinishReason::ContextFull));
    assert_as_alone(&[job], &outputs, 32);
}

/// Case K7.
#[test]
fn more_requests_than_slots_are_all_answered() {
    let jobs = five_jobs();
    let mut engine = engine(Config { max_running: 2, ..config(64, 8) });
    let outputs = run_all(&mut engine, &jobs);
    assert_as_alone(&jobs, &outputs, 512);
    assert_eq!(engine.model().widest, 2);
}

/// Case K13.
#[test]
fn a_prompt_edited_in_the_middle_equals_a_cold_run() {
    let prompt: Vec<u32> = (0..50).collect();
    for edit in 0..50 {
        let mut engine = engine(config(32, 8));
        run_all(&mut engine, &[Job::greedy(&prompt, 8)]);
        let mut edited = prompt.clone();
        edited[edit] = 60;
        let job = Job::greedy(&edited, 8);
        let outputs = run_all(&mut engine, std::slice::from_ref(&job));
        assert_as_alone(&[job], &outputs, 256);
        assert_eq!(outputs[0].usage.cached_tokens, (edit / 8 * 8).min(48));
    }
}

#[test]
fn eos_ends_and_is_not_output() {
    let mut job = Job::greedy(&[4, 5, 6], 50);
    let (tokens, _) = job.expected(4096);
    job.eos = vec![tokens[7]];
    let first = tokens.iter().position(|t| *t == tokens[7]).unwrap();
    let outputs = run_all(&mut engine(config(64, 8)), std::slice::from_ref(&job));
    assert_eq!(outputs[0].tokens, tokens[..first]);
    assert_eq!(outputs[0].reason, Some(FinishReason::Eos(tokens[7])));
}

#[test]
fn the_receiver_can_stop_a_sequence_at_a_token() {
    let mut engine = engine(config(64, 8));
    let stopped = engine.submit(Job::greedy(&[1, 2], 50).request()).unwrap();
    let other = engine.submit(Job::greedy(&[2, 3], 10).request()).unwrap();
    let mut n_tokens = BTreeMap::new();
    let mut ended = BTreeMap::new();
    engine.run(&mut |event| match event {
        Event::Token { seq, .. } => {
            *n_tokens.entry(seq).or_insert(0) += 1;
            if seq == stopped && n_tokens[&seq] == 4 { Flow::Stop } else { Flow::Continue }
        }
        Event::Finished { seq, reason, usage } => {
            ended.insert(seq, (reason, usage.output_tokens));
            Flow::Continue
        }
    });
    assert_eq!(ended[&stopped], (FinishReason::Stopped, 4));
    assert_eq!(ended[&other], (FinishReason::MaxTokens, 10));
    assert_eq!(engine.stats().free_blocks, 64);
}

#[test]
fn errors_end_sequences_not_the_engine() {
    let jobs = [
        Job::greedy(&[1, 2, 3], 10),
        Job::greedy(&[1, 2, 55], 10),
        Job::greedy(&[7, 8, 9, 10], 10),
    ];
    // No output may hold 55, so that only the second prompt is at fault.
    let others = [jobs[0].expected(4096), jobs[2].expected(4096)];
    assert!(others.iter().all(|o| !o.0.contains(&55)));

    let mut row = engine(config(64, 8));
    let error = StepError::Row { row: 0, message: "no such thing".into() };
    row.model_mut().poison = Some((55, error));
    let outputs = run_all(&mut row, &jobs);
    let failed = FinishReason::Failed(SequenceError::Step("no such thing".into()));
    assert_eq!(outputs[1].reason, Some(failed));
    assert_as_alone(
        &[jobs[0].clone(), jobs[2].clone()],
        &[outputs[0].clone(), outputs[2].clone()],
        512,
    );

    let mut nan = engine(config(64, 8));
    nan.model_mut().nan_after = Some(55);
    let outputs = run_all(&mut nan, &jobs);
    assert!(matches!(
        outputs[1].reason,
        Some(FinishReason::Failed(SequenceError::Sample(SampleError::NotFinite { token: 3, .. })))
    ));
    assert_as_alone(
        &[jobs[0].clone(), jobs[2].clone()],
        &[outputs[0].clone(), outputs[2].clone()],
        512,
    );

    let mut whole = engine(config(64, 8));
    whole.model_mut().poison = Some((55, StepError::Step("device lost".into())));
    let outputs = run_all(&mut whole, &jobs);
    assert!(outputs.iter().all(|o| o.reason.as_ref().unwrap().as_str() == "error"));
    whole.model_mut().poison = None;
    let outputs = run_all(&mut whole, &jobs);
    assert_as_alone(&jobs, &outputs, 512);
}

#[test]
fn bad_requests_are_refused_and_leave_nothing_behind() {
    let mut engine = engine(Config { max_waiting: 2, ..config(8, 8) });
    let job = Job::greedy(&[1, 2, 3], 4);
    let mut bad = job.clone();
    bad.params.top_p = 2.0;
    assert!(matches!(engine.submit(bad.request()), Err(SubmitError::Params(_))));
    let mut bad = job.clone();
    bad.params.logit_bias.insert(99_999_999, 1.0);
    assert!(matches!(engine.submit(bad.request()), Err(SubmitError::Params(_))));
    let bad = Job::greedy(&[1, VOCAB as u32], 4);
    assert_eq!(
        engine.submit(bad.request()),
        Err(SubmitError::UnknownToken { token: VOCAB as u32, vocab: VOCAB })
    );
    let mut bad = job.clone();
    bad.context = 3;
    assert_eq!(
        engine.submit(bad.request()),
        Err(AdmitError::ContextTooSmall { prompt: 3, context: 3 }.into())
    );
    let ids: Vec<_> = (0..2).map(|_| engine.submit(job.request()).unwrap()).collect();
    assert_eq!(engine.submit(job.request()), Err(AdmitError::QueueFull { limit: 2 }.into()));
    for id in ids {
        assert!(engine.cancel(id).is_some());
        assert!(engine.cancel(id).is_none());
    }
    assert!(!engine.has_work());
}

#[test]
fn logprobs_come_with_the_tokens() {
    let mut job = Job::greedy(&[1, 2, 3], 3);
    job.params.logprobs = Some(2);
    let mut engine = engine(config(8, 8));
    engine.submit(job.request()).unwrap();
    let mut seen = Vec::new();
    engine.run(&mut |event| {
        if let Event::Token { token, logprobs, .. } = event {
            let logprobs = logprobs.unwrap();
            assert_eq!(logprobs.top[0], (token, logprobs.chosen));
            seen.push(logprobs.top.len());
        }
        Flow::Continue
    });
    assert_eq!(seen, [2, 2, 2]);
}

#[derive(Debug, Clone)]
struct Arrival {
    /// Steps after the previous arrival.
    wait: usize,
    job: Job,
    /// Cancelled so many steps after arriving.
    cancel_after: Option<usize>,
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let prompt = (0u32..3, 0usize..60, prop::collection::vec(0..VOCAB as u32, 1..20)).prop_map(
        |(family, shared, own)| {
            let mut prompt: Vec<u32> =
                (0..shared as u32).map(|i| (i * 11 + family) % VOCAB as u32).collect();
            prompt.extend(own);
            prompt
        },
    );
    let sampling = prop_oneof![Just((0.0, 1.0)), Just((1.0, 1.0)), Just((0.8, 1.3))];
    let cancel = prop_oneof![3 => Just(None), 1 => (0usize..20).prop_map(Some)];
    let salt = prop_oneof![3 => Just(None), 1 => Just(Some("x".to_owned()))];
    (prompt, 1u32..30, sampling, any::<u64>(), 0usize..6, cancel, salt, 40usize..100, any::<bool>())
        .prop_map(
            |(
                prompt,
                max,
                (temperature, penalty),
                seed,
                wait,
                cancel_after,
                salt,
                context,
                eos,
            )| {
                let params = SamplingParams {
                    temperature,
                    repetition_penalty: penalty,
                    max_tokens: Some(max),
                    seed: Some(seed),
                    ..SamplingParams::default()
                };
                let context = context.max(prompt.len() + 1);
                let eos = if eos { vec![3, 17, 40] } else { Vec::new() };
                Arrival { wait, job: Job { prompt, params, context, eos, salt }, cancel_after }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever arrives and leaves, under whatever pressure: nothing leaks, nothing is used twice,
    /// everybody finishes, and every output is what its request gives alone.
    #[test]
    fn everybody_gets_what_they_would_get_alone(
        arrivals in prop::collection::vec(arrival(), 1..12),
        block_size in 1usize..9,
        slack in 0usize..40,
        max_running in 1usize..6,
        step_tokens in 1usize..50,
        chunk in 1usize..30,
        prefix_cache in any::<bool>(),
    ) {
        // From just enough for the longest sequence to enough for several.
        let longest = arrivals.iter().map(|a| a.job.prompt.len() + 1).max().unwrap();
        let n_blocks = (longest + 1).div_ceil(block_size) + slack;
        let mut engine = engine(Config {
            block_size, n_blocks, max_running, max_waiting: 100, step_tokens, chunk, prefix_cache,
        });
        let mut outputs = HashMap::new();
        let mut submitted: Vec<(SeqId, &Arrival)> = Vec::new();
        let mut cancels: Vec<(usize, SeqId)> = Vec::new();
        let mut cancelled = Vec::new();
        let mut queue = arrivals.iter().peekable();
        let mut next_arrival = 0;
        for now in 0.. {
            while let Some(arrival) = queue.peek() && now >= next_arrival + arrival.wait {
                let id = engine.submit(arrival.job.request()).unwrap();
                outputs.insert(id, Output::default());
                submitted.push((id, arrival));
                cancels.extend(arrival.cancel_after.map(|after| (now + after, id)));
                next_arrival = now;
                queue.next();
            }
            for &(when, id) in &cancels {
                if when == now && engine.cancel(id).is_some() {
                    cancelled.push(id);
                }
            }
            engine.scheduler().verify().unwrap();
            if queue.peek().is_none() && !engine.has_work() {
                break;
            }
            prop_assert!(now < 20_000, "not everybody finished");
            step(&mut engine, &mut outputs);
        }
        prop_assert_eq!(engine.stats().free_blocks, n_blocks);
        for (id, arrival) in submitted {
            let output = &outputs[&id];
            let (tokens, reason) = arrival.job.expected(n_blocks * block_size);
            if cancelled.contains(&id) {
                prop_assert!(tokens.starts_with(&output.tokens) && output.reason.is_none());
            } else {
                prop_assert_eq!(&output.tokens, &tokens);
                prop_assert_eq!(output.reason.as_ref(), Some(&reason));
            }
        }
    }
}
