//! Where the time of decoding goes: a synthetic model answers a prompt of a given length, then the
//! time per operation is printed. With `SOMA_CUDA_TIMES=1` a GPU's steps are timed one by one.
//!
//! usage: profile SHAPE:FORMAT PROMPT_TOKENS NEW_TOKENS BACKEND

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program that measures")]

use cyb_llm::{Config, Runtime, SamplingParams};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| words[i].parse::<u32>().unwrap();
    let config = Config { backend: words[3].parse().unwrap(), ..Config::auto() };
    let runtime = Runtime::new(config).unwrap();
    let model = runtime.synthetic(&words[0]).unwrap();
    let prompt: Vec<u32> = (0..number(1)).map(|i| i * 7919 % 30000).collect();
    let params = SamplingParams {
        max_tokens: Some(number(2)),
        temperature: 0.0,
        ..SamplingParams::default()
    };
    model.generate_ids(prompt, params).unwrap().complete().unwrap();
    let metrics = model.metrics();
    println!("{metrics:#?}");
}
