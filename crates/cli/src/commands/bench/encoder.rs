//! `bench` on an encoder: whole batches of texts of one length.

use cyb_llm::{EncoderBenchOptions, Model, Runtime};
use serde_json::json;

use super::{Arguments, peer, row, spread, times};
use crate::args::Common;
use crate::commands::Progress;
use crate::failure::Failure;
use crate::output;

/// Steps shown to people.
const SHOWN: usize = 8;

pub(super) fn run(
    common: &Common,
    arguments: &Arguments,
    runtime: &Runtime,
    model: Model,
) -> Result<(), Failure> {
    let options = EncoderBenchOptions {
        batch: arguments.batch,
        tokens: arguments.prompt_tokens,
        repeat: arguments.repeat,
    };
    let progress = Progress::new("run");
    let result = model.bench_encoder(options, &mut |done, all| progress.show(done, all))?;
    let info = model.info();
    // The peer gets the memory that this model had.
    drop(model);
    runtime.unload(&info.id)?;
    let peer = match (arguments.compare, &info.path) {
        (false, _) => None,
        (true, Some(path)) => {
            Some(peer::measure_torch(&arguments.python, path, runtime.threads(), &options)?)
        }
        (true, None) => return Err(Failure::usage("--compare needs a model directory")),
    };
    let tokens = (options.batch * options.tokens) as f64;
    let per_second = 1e3 * tokens / result.run_ms.median;
    if common.json {
        let mut report = json!({
            "model": info.id.to_string(),
            "backend": runtime.backend(),
            "threads": runtime.threads(),
            "load_ms": result.load_ms,
            "forward": { "ms": spread(result.run_ms), "tok_per_sec": per_second },
            "ops": result.ops.iter().map(|op| {
                json!({ "op": op.name, "calls": op.calls, "ms": op.total_ms })
            }).collect::<Vec<_>>(),
            "peak_memory_mb": result.peak_memory_mb,
        });
        if let Some(peer) = peer {
            report["peer"] = peer.json();
        }
        return output::json(&report);
    }
    let mut rows = vec![
        row("model", info.id.to_string()),
        row("backend", format!("{}, {} threads", runtime.backend(), runtime.threads())),
        row("load", format!("{:.0} ms", result.load_ms)),
        row("forward", format!("{}, {} x {}", times(result.run_ms), options.batch, options.tokens)),
        row("", format!("{per_second:.0} tokens/s")),
        row("peak memory", format!("{:.0} MiB", result.peak_memory_mb)),
    ];
    if let Some(peer) = peer {
        rows.extend(peer.rows(result.run_ms));
    }
    let mut ops = result.ops;
    ops.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
    for op in ops.iter().take(SHOWN) {
        let value = format!("{:.3} ms in {} calls", op.total_ms, op.calls);
        rows.push(row(&format!("  {}", op.name), value));
    }
    output::text(&output::table(&rows))
}
