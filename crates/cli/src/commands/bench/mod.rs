//! `soma-runtime bench` measures prefill and decode, or whole runs of an encoder or an ONNX model.

mod encoder;
mod forward;
mod peer;

use clap::Args;
use cyb_llm::{BenchOptions, LoadOptions, Runtime, Spread};
use serde_json::{Value, json};

use super::Progress;
use crate::args::{Common, ModelArgument};
use crate::failure::Failure;
use crate::output;
use crate::settings::Settings;

/// Measure how fast a model runs
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// A model of this shape with random weights, such as llama-8b:q4_k
    #[arg(long, value_name = "FAMILY:QUANT", conflicts_with = "model")]
    synthetic: Option<String>,
    /// Tokens of a prompt, or of each text of an encoder's batch
    #[arg(long, value_name = "N", default_value_t = 512)]
    prompt_tokens: usize,
    /// Tokens made one by one
    #[arg(long, value_name = "N", default_value_t = 128)]
    gen_tokens: usize,
    /// Tokens in the context before either begins
    #[arg(long, value_name = "N", default_value_t = 0)]
    depth: usize,
    /// Sequences decoded at once, or texts of an encoder's batch
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: usize,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value_t = 5)]
    repeat: usize,
    /// For an ONNX model: a NumPy archive with its inputs [default: made up]
    #[arg(long, value_name = "IN.npz", conflicts_with = "synthetic")]
    inputs: Option<std::path::PathBuf>,
    /// For an ONNX model: the size of a named dimension of made-up inputs [default: one that fits]
    #[arg(long, value_name = "NAME=N", conflicts_with = "inputs")]
    dim: Vec<String>,
    /// Measure llama.cpp, ONNX Runtime, or PyTorch for an encoder, on the same file too, and print
    /// both (needs the Python package llama-cpp-python, onnxruntime or transformers)
    #[arg(long, conflicts_with = "synthetic")]
    compare: bool,
    /// The Python that has the package
    #[arg(long, value_name = "PROGRAM", default_value = "python3", requires = "compare")]
    python: String,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let settings = Settings::collect(common, &[("model", arguments.model.model.as_deref())])?;
    let config = cyb_llm::Config { context: None, ..settings.config()? };
    let runtime = Runtime::new(config)?;
    if arguments.synthetic.is_none() && runtime.is_onnx(settings.model())? {
        return forward::run(common, arguments, &runtime, settings.model());
    }
    if arguments.inputs.is_some() || !arguments.dim.is_empty() {
        return Err(Failure::usage("--inputs and --dim are for ONNX models"));
    }
    let backend = runtime.backend();
    let options = LoadOptions { without_template: true, ..LoadOptions::default() };
    let model = match &arguments.synthetic {
        Some(spec) => runtime.synthetic(spec)?,
        None => runtime.load_with(settings.model(), options)?,
    };
    if model.task().is_some() {
        if arguments.compare {
            peer::check_torch(&arguments.python)?;
        }
        return encoder::run(common, arguments, &runtime, model);
    }
    if arguments.compare {
        peer::check(&arguments.python)?;
    }
    let options = BenchOptions {
        prompt_tokens: arguments.prompt_tokens,
        gen_tokens: arguments.gen_tokens,
        depth: arguments.depth,
        batch: arguments.batch,
        repeat: arguments.repeat,
    };
    let progress = Progress::new("measurement");
    let result = model.bench(options, &mut |done, all| progress.show(done, all))?;
    let (name, threads) = (model.id().to_string(), runtime.threads());
    let cyb_llm::ModelInfo { path, plan, .. } = model.info();
    // The peer gets the memory that this model had.
    drop(model);
    drop(runtime);
    let peer = match (arguments.compare, path) {
        (false, _) => None,
        (true, Some(path)) => Some(peer::measure(&arguments.python, &path, threads, &options)?),
        (true, None) => return Err(Failure::usage("--compare needs a model file")),
    };
    if common.json {
        let mut report = json!({
            "model": name,
            "backend": backend,
            "threads": threads,
            "load_ms": result.load_ms,
            "prefill": { "tok_per_sec": spread(result.prefill) },
            "decode": {
                "tok_per_sec": spread(result.decode),
                "bytes_per_token": result.bytes_per_token,
                "bandwidth_gb_per_sec": result.bandwidth_gb_per_sec,
            },
            "peak_memory_mb": result.peak_memory_mb,
            "plan": crate::plan::as_json(&plan),
        });
        if let Some(peer) = peer {
            report["peer"] = json!({
                "name": peer.name,
                "load_ms": peer.load_ms,
                "prefill": { "tok_per_sec": spread(peer.prefill) },
                "decode": { "tok_per_sec": spread(peer.decode) },
            });
        }
        return output::json(&report);
    }
    let speed = |s: Spread| format!("{:.1} tokens/s ({:.1} to {:.1})", s.median, s.min, s.max);
    let mut rows = vec![
        row("model", name),
        row("backend", format!("{}, {threads} threads", backend)),
        row("load", format!("{:.0} ms", result.load_ms)),
        row("prefill", format!("{}, {} tokens", speed(result.prefill), arguments.prompt_tokens)),
        row("decode", format!("{}, {} tokens", speed(result.decode), arguments.gen_tokens)),
        row("bandwidth", format!("{:.1} GB/s", result.bandwidth_gb_per_sec)),
        row("peak memory", format!("{:.0} MiB", result.peak_memory_mb)),
    ];
    if let Some(peer) = peer {
        let beside = |ours: Spread, theirs: Spread| {
            format!("{}, ratio {:.2}", speed(theirs), ours.median / theirs.median)
        };
        rows.push(row("beside", peer.name));
        rows.push(row("  load", format!("{:.0} ms", peer.load_ms)));
        rows.push(row("  prefill", beside(result.prefill, peer.prefill)));
        rows.push(row("  decode", beside(result.decode, peer.decode)));
    }
    output::text(&output::table(&rows))
}

/// Measurements as JSON.
fn spread(s: Spread) -> Value {
    json!({ "median": s.median, "min": s.min, "max": s.max })
}

/// Measured times for people.
fn times(s: Spread) -> String {
    format!("{:.3} ms ({:.3} to {:.3})", s.median, s.min, s.max)
}

/// A row of a table.
fn row(what: &str, value: String) -> Vec<String> {
    vec![what.to_owned(), value]
}
