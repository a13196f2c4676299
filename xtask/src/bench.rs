//! `cargo xtask bench`: the release binary beside llama.cpp on every text model, as Markdown.

use std::process::Command;
use std::time::Instant;

use serde::Deserialize;

use crate::shell::{cargo, environment, printed, run, target_dir};
use crate::{Failure, models};

/// The models of the table, and how many tokens each measurement has.
const MODELS: [&str; 4] = [
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma-3-270m-q4_k_m.gguf",
    "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf",
    "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf",
];
/// The model that is measured at depth too.
const LONG: &str = MODELS[2];
/// Version of the peer that the tables are made with.
const PEER: &str = "llama-cpp-python==0.3.36";

#[derive(Deserialize)]
struct Median {
    median: f64,
}

#[derive(Deserialize)]
struct Speed {
    tok_per_sec: Median,
}

#[derive(Deserialize)]
struct Peer {
    load_ms: f64,
    prefill: Speed,
    decode: Speed,
}

#[derive(Deserialize)]
struct Report {
    threads: usize,
    load_ms: f64,
    prefill: Speed,
    decode: Speed,
    peak_memory_mb: f64,
    peer: Peer,
}

/// Measures. `python` is an interpreter that has the peer; without one, an environment is made,
/// which compiles llama.cpp and takes a while.
pub(crate) fn bench(python: Option<&str>) -> Result<(), Failure> {
    for name in MODELS {
        models::fetch_named(&[name])?;
    }
    run("the build", cargo(["build", "--release", "--package", "soma-runtime"]))?;
    let python = match python {
        Some(python) => python.to_owned(),
        None => environment("bench-venv", &[PEER])?.display().to_string(),
    };
    println!(
        "| model | threads | depth | sequences | prefill tok/s | llama.cpp | ratio | decode tok/s | llama.cpp | ratio | load ms | llama.cpp | peak MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for name in MODELS {
        for (threads, sequences) in [(2, 1), (1, 1), (2, 8)] {
            row(name, threads, 0, sequences, &python)?;
        }
    }
    row(LONG, 2, 3500, 1, &python)?;
    println!("\n| model | cold start to the first token, ms | llama.cpp | ratio |");
    println!("|---|---|---|---|");
    for name in MODELS {
        cold_start(name, &python)?;
    }
    Ok(())
}

/// Sixteen tokens or so in every vocabulary.
const SHORT_PROMPT: &str = "The quick brown fox jumps over the lazy dog, and then it sleeps again.";

/// Prints the milliseconds from a model's file to its first token, imports not counted.
const PEER_COLD_START: &str = r#"
import sys, time
import llama_cpp
start = time.perf_counter()
model = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_threads=2, n_threads_batch=2, verbose=False)
tokens = model.tokenize(sys.argv[2].encode())
model.eval(tokens)
model.sample(temp=0.0)
print((time.perf_counter() - start) * 1000)
"#;

/// From the start of a process to its first token, the file in the page cache; of the peer without
/// the start of Python.
fn cold_start(name: &str, python: &str) -> Result<(), Failure> {
    let binary = target_dir().join("release/soma-runtime");
    let file = cyb_zoo::path(name).map_err(|e| e.to_string())?;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..5 {
        let start = Instant::now();
        let mut ours = Command::new(&binary);
        ours.args(["run", "--raw", "--max-tokens", "1", "--temperature", "0"]);
        ours.args(["--prompt", SHORT_PROMPT, "--model", name]);
        printed("soma-runtime run", &mut ours)?;
        times[0].push(start.elapsed().as_secs_f64() * 1e3);
        let mut theirs = Command::new(python);
        theirs.args(["-c", PEER_COLD_START]).arg(&file).arg(SHORT_PROMPT);
        let text = printed(python, &mut theirs)?;
        let last = text.lines().last().and_then(|line| line.parse().ok());
        times[1].push(last.ok_or_else(|| format!("{python} printed no time: {text:?}"))?);
    }
    let [ours, theirs] = times.map(|mut t| {
        t.sort_by(f64::total_cmp);
        t[t.len() / 2]
    });
    println!("| {name} | {ours:.0} | {theirs:.0} | {:.2} |", ours / theirs);
    Ok(())
}

fn row(
    name: &str,
    threads: usize,
    depth: usize,
    sequences: usize,
    python: &str,
) -> Result<(), Failure> {
    let binary = target_dir().join("release/soma-runtime");
    let mut command = Command::new(binary);
    command
        .args(["bench", "--json", "--compare", "--model", name, "--python", python])
        .args(["--threads", &threads.to_string(), "--depth", &depth.to_string()])
        .args(["--batch", &sequences.to_string(), "--gen-tokens", "64", "--repeat", "3"]);
    let text = printed("soma-runtime bench", &mut command)?;
    let report: Report =
        serde_json::from_str(&text).map_err(|e| format!("soma-runtime bench --json: {e}"))?;
    let (ours, theirs) = (&report, &report.peer);
    let [prefill, decode] = [(&ours.prefill, &theirs.prefill), (&ours.decode, &theirs.decode)]
        .map(|(ours, theirs)| (ours.tok_per_sec.median, theirs.tok_per_sec.median));
    let pair =
        |(ours, theirs): (f64, f64)| format!("{ours:.1} | {theirs:.1} | {:.2}", ours / theirs);
    println!(
        "| {name} | {} | {depth} | {sequences} | {} | {} | {:.0} | {:.0} | {:.0} |",
        ours.threads,
        pair(prefill),
        pair(decode),
        ours.load_ms,
        theirs.load_ms,
        ours.peak_memory_mb
    );
    Ok(())
}
