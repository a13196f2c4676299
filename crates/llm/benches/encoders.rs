//! Time of all-MiniLM-L6-v2 for batches of equal and unequal lengths, beside what its operations
//! take. `cargo bench -p cyb-llm --bench encoders`

#![allow(clippy::print_stdout, reason = "a benchmark prints what it measures")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

use std::time::Instant;

use cyb_llm::{Config, DType, IndexMap, Model, Runtime, Tensor};

/// The shortest of several runs is the one that nothing disturbed.
const RUNS: usize = 15;

fn batch(rows: usize, tokens: usize, uneven: bool) -> IndexMap<String, Tensor> {
    let ids: Vec<i64> = (0..rows * tokens).map(|i| 1000 + (i as i64 * 7919) % 20_000).collect();
    let length = |row: usize| if uneven { tokens * (row + 1) / rows } else { tokens };
    let mask: Vec<i64> =
        (0..rows * tokens).map(|i| i64::from(i % tokens < length(i / tokens))).collect();
    let tensor =
        |values: &[i64]| Tensor::from_elems(DType::I64, vec![rows, tokens], values).unwrap();
    IndexMap::from_iter([
        ("input_ids".to_owned(), tensor(&ids)),
        ("attention_mask".to_owned(), tensor(&mask)),
    ])
}

fn time(model: &Model, inputs: &IndexMap<String, Tensor>) -> f64 {
    let first = model.forward(inputs).unwrap()["last_hidden_state"].to_f32_vec().unwrap();
    assert!(first.iter().all(|v| v.is_finite()) && first.iter().any(|v| *v != 0.0));
    let times = (0..RUNS).map(|_| {
        let start = Instant::now();
        model.forward(inputs).unwrap();
        start.elapsed().as_secs_f64() * 1e3
    });
    times.fold(f64::INFINITY, f64::min)
}

fn main() {
    let path = cyb_testkit::model("all-MiniLM-L6-v2");
    for threads in [1, 2] {
        let runtime = Runtime::new(Config { threads: Some(threads), ..Config::auto() }).unwrap();
        for (rows, tokens, uneven) in
            [(1, 16, false), (1, 128, false), (32, 128, false), (32, 128, true)]
        {
            let model = runtime.load(path.to_str().unwrap()).unwrap();
            let inputs = batch(rows, tokens, uneven);
            let ms = time(&model, &inputs);
            let kind = if uneven { "up to " } else { "" };
            println!("{threads} threads, {rows} x {kind}{tokens}: {ms:.2} ms");
            let mut ops = model.metrics().ops;
            ops.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
            let all: f64 = ops.iter().map(|op| op.total_ms).sum();
            for op in ops.iter().take(8) {
                println!("    {:5.1} %  {}", 100.0 * op.total_ms / all, op.name);
            }
        }
    }
}
