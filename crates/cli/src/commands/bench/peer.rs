//! `bench --compare`: llama.cpp measured beside, through its Python package.

use std::path::Path;
use std::process::Command;

use cyb_llm::{BenchOptions, Spread};
use serde::Deserialize;

use crate::failure::Failure;

/// What measures the peer.
const SCRIPT: &str = include_str!("peer.py");

#[derive(Debug, Deserialize)]
struct Report {
    version: String,
    load_ms: f64,
    prefill: Vec<f64>,
    decode: Vec<f64>,
}

/// What was measured of llama.cpp.
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) load_ms: f64,
    /// Tokens a second.
    pub(super) prefill: Spread,
    pub(super) decode: Spread,
}

/// Whether the peer is there, asked before anything is measured.
pub(super) fn check(python: &str) -> Result<(), Failure> {
    start(python, &["import llama_cpp"]).map(drop)
}

/// What a script printed.
fn start(python: &str, arguments: &[&str]) -> Result<String, Failure> {
    let output = Command::new(python).arg("-c").args(arguments).output().map_err(|e| {
        Failure::work(format!("cannot run {python} for --compare: {e}; see --python"))
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let why = errors.lines().last().unwrap_or("it printed nothing");
    Err(Failure::work(format!(
        "llama.cpp could not be measured with {python}: {why}; \
         --compare needs its package llama-cpp-python, and --python names an interpreter that has it"
    )))
}

/// Runs the peer on a GGUF file with the same threads and sizes.
pub(super) fn measure(
    python: &str,
    model: &Path,
    threads: usize,
    options: &BenchOptions,
) -> Result<Peer, Failure> {
    let BenchOptions { prompt_tokens, gen_tokens, depth, batch, repeat } = *options;
    let numbers = [threads, prompt_tokens, gen_tokens, depth, batch, repeat];
    let numbers = numbers.map(|n| n.to_string());
    let mut arguments = vec![SCRIPT];
    let model = model.display().to_string();
    arguments.push(&model);
    arguments.extend(numbers.iter().map(String::as_str));
    let text = start(python, &arguments)?;
    // The package may print; the report is the last line.
    let report = text.lines().last().and_then(|line| serde_json::from_str::<Report>(line).ok());
    let report = report.ok_or_else(|| {
        Failure::work(format!("llama.cpp's measurement with {python} printed no report"))
    })?;
    Ok(Peer {
        name: format!("llama.cpp ({})", report.version),
        load_ms: report.load_ms,
        prefill: Spread::of(report.prefill),
        decode: Spread::of(report.decode),
    })
}
