//! `soma-runtime autotune` times a model's operations on the backends of this machine.

use clap::Args;
use cyb_llm::{Autotuned, Runtime};
use serde_json::json;

use super::Progress;
use crate::args::{Common, ModelArgument};
use crate::failure::Failure;
use crate::output;
use crate::plan;
use crate::settings::Settings;

/// Time a text model's operations on this machine, so that `--backend auto` places its layers by them
///
/// The times go into a table in the user's cache folder, which holds for this hardware and this build.
/// They say where layers run, never what they compute; a table always gives the same placement.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// Instead of a model: a published shape with random weights, such as llama-8b:q4_k
    #[arg(long, value_name = "FAMILY:TYPE", conflicts_with = "model")]
    synthetic: Option<String>,
    /// Tokens of prompt and answer together
    #[arg(long, value_name = "N")]
    context: Option<String>,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let flags =
        [("model", arguments.model.model.as_deref()), ("context", arguments.context.as_deref())];
    let settings = Settings::collect(common, &flags)?;
    let runtime = Runtime::new(settings.config()?)?;
    let progress = Progress::new("operation");
    let mut tell = |done, all| progress.show(done, all);
    let tuned = match &arguments.synthetic {
        Some(spec) => runtime.autotune_synthetic(spec, &mut tell)?,
        None => runtime.autotune(settings.model(), &mut tell)?,
    };
    match common.json {
        true => output::json(&as_json(&tuned)),
        false => output::text(&as_text(&tuned)),
    }
}

fn as_json(tuned: &Autotuned) -> serde_json::Value {
    let operations: serde_json::Map<String, serde_json::Value> = tuned
        .operations
        .iter()
        .filter_map(|name| Some((name, tuned.table.operations.get(name)?)))
        .map(|(name, by)| {
            let times = by.iter().map(|(backend, time)| {
                let time = json!({ "one_token_ms": time.one, "many_tokens_ms": time.many });
                (backend.clone(), time)
            });
            (name.clone(), times.collect::<serde_json::Map<_, _>>().into())
        })
        .collect();
    json!({
        "path": tuned.path,
        "operations": operations,
        "crossing_ms": tuned.table.crossing_ms,
        "crossing_ms_per_mb": tuned.table.crossing_ms_per_mb,
        "plan": plan::as_json(&tuned.plan),
    })
}

fn as_text(tuned: &Autotuned) -> String {
    let mut rows =
        vec![["operation", "backend", "one token", "many tokens"].map(String::from).to_vec()];
    for name in &tuned.operations {
        for (backend, time) in tuned.table.operations.get(name).into_iter().flatten() {
            let ms = |ms: f64| format!("{ms:.4} ms");
            rows.push(vec![name.clone(), backend.clone(), ms(time.one), ms(time.many)]);
        }
    }
    let mut text = output::table(&rows);
    text.push_str(&format!(
        "between backends: {:.4} ms and {:.4} ms for each 10^6 bytes\ntable: {}\n",
        tuned.table.crossing_ms,
        tuned.table.crossing_ms_per_mb,
        tuned.path.display()
    ));
    plan::lines(&tuned.plan).iter().for_each(|line| text.push_str(&format!("plan: {line}\n")));
    text
}
