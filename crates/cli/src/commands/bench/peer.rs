//! `bench --compare`: llama.cpp, ONNX Runtime or PyTorch measured beside, through its Python package.

use std::path::Path;
use std::process::Command;

use cyb_llm::{BenchOptions, EncoderBenchOptions, Spread};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{row, spread, times};
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
const ONNX_SCRIPT: &str = concat!(include_str!("peer_runs.py"), include_str!("peer_onnx.py"));

/// The program that measures PyTorch.
const TORCH_SCRIPT: &str = concat!(include_str!("peer_runs.py"), include_str!("peer_torch.py"));

#[derive(Debug, Deserialize)]
struct RunReport {
    version: String,
    run_ms: Vec<f64>,
    peak_memory_mb: f64,
}

/// What was measured of whole runs of ONNX Runtime or PyTorch.
pub(super) struct RunPeer {
    name: String,
    run_ms: Spread,
    peak_memory_mb: f64,
}

impl RunPeer {
    pub(super) fn json(&self) -> Value {
        json!({
            "name": self.name,
            "forward": { "ms": spread(self.run_ms) },
            "peak_memory_mb": self.peak_memory_mb,
        })
    }

    /// Beside what was measured here.
    pub(super) fn rows(&self, ours: Spread) -> [Vec<String>; 3] {
        let ratio = ours.median / self.run_ms.median;
        [
            row("beside", self.name.clone()),
            row("  forward", format!("{}, ratio {ratio:.2}", times(self.run_ms))),
            row("  peak memory", format!("{:.0} MiB", self.peak_memory_mb)),
        ]
    }
}

/// A peer, and the package that it comes in.
#[derive(Clone, Copy)]
struct Package {
    peer: &'static str,
    package: &'static str,
}

const LLAMA: Package = Package { peer: "llama.cpp", package: "llama-cpp-python" };
const ONNX: Package = Package { peer: "ONNX Runtime", package: "onnxruntime" };
const TORCH: Package = Package { peer: "PyTorch", package: "transformers with torch" };

/// Whether llama.cpp is there, asked before anything is measured.
pub(super) fn check(python: &str) -> Result<(), Failure> {
    start(LLAMA, python, &["import llama_cpp"]).map(drop)
}

/// Whether ONNX Runtime is there.
pub(super) fn check_onnx(python: &str) -> Result<(), Failure> {
    start(ONNX, python, &["import onnxruntime"]).map(drop)
}

/// Whether PyTorch and transformers are there.
pub(super) fn check_torch(python: &str) -> Result<(), Failure> {
    start(TORCH, python, &["import torch, transformers"]).map(drop)
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
) -> Result<RunPeer, Failure> {
    let words = [model.display().to_string(), inputs.display().to_string()];
    let words = words.into_iter().chain([threads.to_string(), repeat.to_string()]);
    measure_runs(ONNX, ONNX_SCRIPT, python, words.collect())
}

/// Runs PyTorch on a directory with the same sizes and threads.
pub(super) fn measure_torch(
    python: &str,
    model: &Path,
    threads: usize,
    options: &EncoderBenchOptions,
) -> Result<RunPeer, Failure> {
    let EncoderBenchOptions { batch, tokens, repeat } = *options;
    let numbers = [threads, batch, tokens, repeat].map(|n| n.to_string());
    let words = [model.display().to_string()].into_iter().chain(numbers);
    measure_runs(TORCH, TORCH_SCRIPT, python, words.collect())
}

fn measure_runs(
    package: Package,
    script: &str,
    python: &str,
    words: Vec<String>,
) -> Result<RunPeer, Failure> {
    let mut arguments = vec![script];
    arguments.extend(words.iter().map(String::as_str));
    let text = start(package, python, &arguments)?;
    let report = text.lines().last().and_then(|line| serde_json::from_str::<RunReport>(line).ok());
    let report = report.ok_or_else(|| {
        let peer = package.peer;
        Failure::work(format!("the measurement of {peer} with {python} printed no report"))
    })?;
    Ok(RunPeer {
        name: format!("{} ({})", package.peer, report.version),
        run_ms: Spread::of(report.run_ms),
        peak_memory_mb: report.peak_memory_mb,
    })
}
