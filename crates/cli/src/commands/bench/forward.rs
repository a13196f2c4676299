//! `bench` on an ONNX model: whole runs on given inputs.

use std::collections::BTreeMap;

use cyb_llm::{IndexMap, Runtime, StepTime, Tensor, npz};
use serde_json::json;

use super::{Arguments, peer, row, spread, times};
use crate::args::Common;
use crate::commands::{Progress, dims, sample_inputs};
use crate::failure::Failure;
use crate::output;

/// Steps shown to people.
const SHOWN: usize = 12;

pub(super) fn run(
    common: &Common,
    arguments: &Arguments,
    runtime: &Runtime,
    name: &str,
) -> Result<(), Failure> {
    if arguments.compare {
        peer::check_onnx(&arguments.python)?;
    }
    let model = runtime.load_onnx(name)?;
    let inputs = match &arguments.inputs {
        Some(path) => npz::read(path).map_err(cyb_llm::Error::from)?,
        None => sample_inputs(&model, &dims(&arguments.dim)?)?,
    };
    let progress = Progress::new("run");
    let result =
        model.bench(&inputs, arguments.repeat, &mut |done, all| progress.show(done, all))?;
    let path = std::path::PathBuf::from(model.name());
    drop(model);
    let threads = runtime.threads();
    let peer = match arguments.compare {
        true => {
            let file = archive(&inputs)?;
            let repeat = arguments.repeat;
            Some(peer::measure_onnx(&arguments.python, &path, file.path(), threads, repeat)?)
        }
        false => None,
    };
    let ops = by_kernel(&result.steps);
    let per_run = |nanos: u64| nanos as f64 / 1e6 / arguments.repeat as f64;
    if common.json {
        let each = ops.iter().map(|(op, kernel, calls, nanos)| {
            let calls = calls / arguments.repeat as u64;
            json!({ "op": op, "kernel": kernel, "calls": calls, "ms": per_run(*nanos) })
        });
        let mut report = json!({
            "model": path.display().to_string(),
            "backend": runtime.backend(),
            "threads": threads,
            "first_run_ms": result.first_ms,
            "forward": { "ms": spread(result.run_ms) },
            "ops": each.collect::<Vec<_>>(),
            "steps": result.steps.iter().map(|step| json!({
                "op": step.op,
                "kernel": step.kernel,
                "node": step.node,
                "ms": per_run(step.nanos),
            })).collect::<Vec<_>>(),
            "peak_memory_mb": result.peak_memory_mb,
        });
        if let Some(peer) = peer {
            report["peer"] = peer.json();
        }
        return output::json(&report);
    }
    let mut rows = vec![
        row("model", path.display().to_string()),
        row("backend", format!("{}, {threads} threads", runtime.backend())),
        row("first run", format!("{:.1} ms", result.first_ms)),
        row("forward", times(result.run_ms)),
        row("peak memory", format!("{:.0} MiB", result.peak_memory_mb)),
    ];
    if let Some(peer) = peer {
        rows.extend(peer.rows(result.run_ms));
    }
    for (op, kernel, calls, nanos) in ops.iter().take(SHOWN) {
        let calls = calls / arguments.repeat as u64;
        rows.push(row(
            &format!("  {op} ({kernel})"),
            format!("{:.3} ms in {calls} steps", per_run(*nanos)),
        ));
    }
    output::text(&output::table(&rows))?;
    if let Some(slowest) = result.steps.iter().max_by_key(|step| step.nanos) {
        output::note(format_args!(
            "slowest step: {} of node {:?}, {:.3} ms",
            slowest.op,
            slowest.node,
            per_run(slowest.nanos)
        ));
    }
    Ok(())
}

/// The inputs as a file for the peer.
fn archive(inputs: &IndexMap<String, Tensor>) -> Result<tempfile::NamedTempFile, Failure> {
    let fail = |error: std::io::Error| Failure::work(format!("cannot make a file: {error}"));
    let file = tempfile::Builder::new().suffix(".npz").tempfile().map_err(fail)?;
    let arrays = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
    npz::write(file.path(), arrays).map_err(cyb_llm::Error::from)?;
    Ok(file)
}

/// Calls and nanoseconds of each operation and kernel, the slowest first.
fn by_kernel(steps: &[StepTime]) -> Vec<(&'static str, &'static str, u64, u64)> {
    let mut sums: BTreeMap<(&'static str, &'static str), (u64, u64)> = BTreeMap::new();
    for step in steps {
        let sum = sums.entry((step.op, step.kernel)).or_default();
        *sum = (sum.0 + step.calls, sum.1 + step.nanos);
    }
    let mut all: Vec<_> =
        sums.into_iter().map(|((op, kernel), (c, n))| (op, kernel, c, n)).collect();
    all.sort_by_key(|(.., nanos)| std::cmp::Reverse(*nanos));
    all
}
