//! `soma-runtime memory` shows what memory is in use.

use clap::Args;
use cyb_llm::{ModelMemory, Runtime};
use serde_json::json;

use crate::args::{Common, ModelArgument};
use crate::failure::Failure;
use crate::output::{self, bytes};
use crate::plan;
use crate::settings::Settings;

/// Show how much memory there is, and how much a model takes
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// Tokens of prompt and answer together
    #[arg(long, value_name = "N")]
    context: Option<String>,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let flags =
        [("model", arguments.model.model.as_deref()), ("context", arguments.context.as_deref())];
    let settings = Settings::collect(common, &flags)?;
    let runtime = Runtime::new(settings.config()?)?;
    // Only a model that was named is loaded: the machine's memory can be asked for without one.
    let model = match &arguments.model.model {
        Some(name) => Some(runtime.load(name)?),
        None => None,
    };
    let machine = runtime.memory_stats();
    let plan = model.as_ref().map(|model| model.info().plan).unwrap_or_default();
    let taken = model.as_ref().map(|model| (model.id().to_string(), model.memory()));
    if common.json {
        let per_model: serde_json::Map<String, serde_json::Value> =
            taken.into_iter().map(|(name, memory)| (name, as_json(&memory))).collect();
        return output::json(&json!({
            "total": machine.total,
            "available": machine.available,
            "process_peak": machine.process_peak,
            "per_model": per_model,
            "plan": plan::as_json(&plan),
        }));
    }
    let shown = |n: Option<u64>| n.map_or_else(|| "unknown".to_owned(), bytes);
    let mut rows = vec![
        vec!["machine".to_owned(), shown(machine.total)],
        vec!["available".to_owned(), shown(machine.available)],
        vec!["this process, at most".to_owned(), shown(machine.process_peak)],
    ];
    if let Some((name, memory)) = taken {
        rows.push(vec![format!("model {name}"), bytes(memory.total())]);
        rows.extend(lines(&memory));
    }
    let mut text = output::table(&rows);
    plan::lines(&plan).iter().for_each(|line| text.push_str(&format!("plan: {line}\n")));
    output::text(&text)
}

/// The parts of a model's memory, for people.
pub(super) fn lines(memory: &ModelMemory) -> Vec<Vec<String>> {
    let kv = format!(
        "{} for {} tokens, {} each",
        bytes(memory.kv),
        memory.kv_tokens,
        bytes(memory.kv_per_token)
    );
    [
        ("file, mapped", bytes(memory.file)),
        ("weights, laid out anew", bytes(memory.weights)),
        ("keys and values", kv),
        ("intermediate results", bytes(memory.arena)),
        ("scratch", bytes(memory.scratch)),
    ]
    .map(|(what, size)| vec![format!("  {what}"), size])
    .to_vec()
}

pub(super) fn as_json(memory: &ModelMemory) -> serde_json::Value {
    json!({
        "total": memory.total(),
        "file": memory.file,
        "weights": memory.weights,
        "kv": memory.kv,
        "kv_per_token": memory.kv_per_token,
        "kv_tokens": memory.kv_tokens,
        "arena": memory.arena,
        "scratch": memory.scratch,
    })
}
