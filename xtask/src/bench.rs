//! `cargo xtask bench`: the release binary beside llama.cpp on every text model, as Markdown.

use std::process::Command;

use serde::Deserialize;

use crate::shell::{cargo, run, target_dir};
use crate::{Failure, models};

/// The models of the table, and how many tokens each measurement has.
const MODELS: [&str; 4] = [
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma-3-270m-q4_k_m.gguf",
    "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf",
    "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf",
];
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
        None => environment()?,
    };
    println!(
        "| model | threads | depth | prefill tok/s | llama.cpp | ratio | decode tok/s | llama.cpp | ratio | load ms | llama.cpp | peak MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for name in MODELS {
        for threads in [2, 1] {
            for depth in [0, 3500] {
                row(name, threads, depth, &python)?;
            }
        }
    }
    Ok(())
}

fn row(name: &str, threads: usize, depth: usize, python: &str) -> Result<(), Failure> {
    let binary = target_dir().join("release/soma-runtime");
    let output = Command::new(binary)
        .args(["bench", "--json", "--compare", "--model", name, "--python", python])
        .args(["--threads", &threads.to_string(), "--depth", &depth.to_string()])
        .args(["--gen-tokens", "64", "--repeat", "3"])
        .output()
        .map_err(|e| format!("soma-runtime bench: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let report: Report = serde_json::from_slice(&output.stdout)
        .map_err(|e| format!("soma-runtime bench --json: {e}"))?;
    let (ours, theirs) = (&report, &report.peer);
    let [prefill, decode] = [(&ours.prefill, &theirs.prefill), (&ours.decode, &theirs.decode)]
        .map(|(ours, theirs)| (ours.tok_per_sec.median, theirs.tok_per_sec.median));
    let pair =
        |(ours, theirs): (f64, f64)| format!("{ours:.1} | {theirs:.1} | {:.2}", ours / theirs);
    println!(
        "| {name} | {} | {depth} | {} | {} | {:.0} | {:.0} | {:.0} |",
        ours.threads,
        pair(prefill),
        pair(decode),
        ours.load_ms,
        theirs.load_ms,
        ours.peak_memory_mb
    );
    Ok(())
}

/// An environment with the peer; its Python.
fn environment() -> Result<String, Failure> {
    let folder = target_dir().join("bench-venv");
    let python = folder.join("bin/python");
    if !python.exists() {
        let mut make = Command::new("python3");
        make.args(["-m", "venv"]).arg(&folder);
        run("python3 -m venv", make)?;
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PEER]);
    install.env("CMAKE_ARGS", "-DGGML_NATIVE=ON");
    run("pip install of llama-cpp-python", install)?;
    Ok(python.display().to_string())
}
