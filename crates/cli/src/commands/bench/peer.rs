//! `bench --compare`: llama.cpp or ONNX Runtime measured beside, through its Python package.

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

/// The program that measures ONNX Runtime.
const ONNX_SCRIPT: &str = include_str!("peer_onnx.py");

#[derive(Debug, Deserialize)]
struct OnnxReport {
    version: String,
    run_ms: Vec<f64>,
    peak_memory_mb: f64,
}

/// What was measured of ONNX Runtime.
pub(super) struct OnnxPeer {
    pub(super) name: String,
    pub(super) run_ms: Spread,
    pub(super) peak_memory_mb: f64,
}

/// A peer, and the package that it comes in.
#[derive(Clone, Copy)]
struct Package {
    peer: &'static str,
    package: &'static str,
}

const LLAMA: Package = Package { peer: "llama.cpp", package: "llama-cpp-python" };
const ONNX: Package = Package { peer: "ONNX Runtime", package: "onnxruntime" };

/// Whether llama.cpp is there, asked before anything is measured.
pub(super) fn check(python: &str) -> Result<(), Failure> {
    start(LLAMA, python, &["import llama_cpp"]).map(drop)
}

/// Whether ONNX Runtime is there.
pub(super) fn check_onnx(python: &str) -> Result<(), Failure> {
    start(ONNX, python, &["import onnxruntime"]).map(drop)
}

/// What a script printed.
fn start(package: Package, python: &str, arguments: &[&str]) -> Result<String, Failure> {
    let Package { peer, package } = package;
    let output = Command::new(python).arg("-c").args(arguments).output().map_err(|e| {
        Failure::work(format!("cannot run {python} for --compare: {e}; see --python"))
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let why = errors.lines().last().unwrap_or("it printed nothing");
    Err(Failure::work(format!(
        "{peer} could not be measured with {python}: {why}; \
         --compare needs its package {package}, and --python names an interpreter that has it"
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
    let text = start(LLAMA, python, &arguments)?;
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

/// Runs ONNX Runtime on a file with the same inputs and threads.
pub(super) fn measure_onnx(
    python: &str,
    model: &Path,
    inputs: &Path,
    threads: usize,
    repeat: usize,
) -> Result<OnnxPeer, Failure> {
    let words = [model.display().to_string(), inputs.display().to_string()];
    let words = words.into_iter().chain([threads.to_string(), repeat.to_string()]);
    let words: Vec<String> = words.collect();
    let mut arguments = vec![ONNX_SCRIPT];
    arguments.extend(words.iter().map(String::as_str));
    let text = start(ONNX, python, &arguments)?;
    let report = text.lines().last().and_then(|line| serde_json::from_str::<OnnxReport>(line).ok());
    let report = report.ok_or_else(|| {
        Failure::work(format!("the measurement of ONNX Runtime with {python} printed no report"))
    })?;
    Ok(OnnxPeer {
        name: format!("ONNX Runtime ({})", report.version),
        run_ms: Spread::of(report.run_ms),
        peak_memory_mb: report.peak_memory_mb,
    })
}
