//! `soma-runtime models` lists models and says what is in one.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use cyb_llm::{LoadOptions, ModelInfo, OnnxModel, Runtime};
use serde_json::json;

use super::{memory, runtime};
use crate::args::Common;
use crate::failure::Failure;
use crate::output::{self, bytes};
use crate::plan;
use crate::settings::Settings;

/// Show the models that are here
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the models folder
    List,
    /// Show what a model is, what memory it takes and where it runs
    Info {
        /// Path of a model, or its name in the models folder
        #[arg(value_name = "MODEL")]
        model: String,
        /// Tokens of prompt and answer together
        #[arg(long, value_name = "N")]
        context: Option<String>,
        /// For an ONNX model: its graph, the steps it becomes, and which layers were recognized
        #[arg(long)]
        graph: bool,
        /// For --graph: the size of a named dimension [default: one that fits]
        #[arg(long, value_name = "NAME=N", requires = "graph")]
        dim: Vec<String>,
    },
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::List => list(common),
        Command::Info { model, context, graph, dim } => {
            let dims = graph.then(|| super::dims(dim)).transpose()?;
            info(common, model, context.as_deref(), dims)
        }
    }
}

fn list(common: &Common) -> Result<(), Failure> {
    let runtime = runtime(common)?;
    let entries = runtime.library()?;
    let folder = runtime.models_dir().map(|dir| dir.display().to_string());
    if common.json {
        let models: Vec<_> = entries
            .iter()
            .map(|entry| json!({ "name": entry.name, "path": entry.path, "bytes": entry.bytes }))
            .collect();
        return output::json(&json!({ "folder": folder, "models": models }));
    }
    if entries.is_empty() {
        let folder =
            folder.unwrap_or_else(|| "no models folder is set; set SOMA_MODELS".to_owned());
        output::note(format_args!("no models in {folder}"));
        return Ok(());
    }
    let rows: Vec<Vec<String>> =
        entries.iter().map(|entry| vec![entry.name.clone(), bytes(entry.bytes)]).collect();
    output::text(&output::table(&rows))
}

fn info(
    common: &Common,
    model: &str,
    context: Option<&str>,
    graph: Option<BTreeMap<String, usize>>,
) -> Result<(), Failure> {
    let settings = Settings::collect(common, &[("context", context)])?;
    let runtime = Runtime::new(settings.config()?)?;
    if runtime.is_onnx(model)? {
        let model = runtime.load_onnx(model)?;
        return match graph {
            Some(dims) => {
                super::sample_inputs(&model, &dims)?;
                super::graph::show(common, &model)
            }
            None => onnx_info(common, &model),
        };
    }
    if graph.is_some() {
        return Err(Failure::usage("--graph is for ONNX models"));
    }
    let options = LoadOptions { without_template: true, ..LoadOptions::default() };
    let model = runtime.load_with(model, options)?;
    let info = model.info();
    let template = model.package().template_source();
    match common.json {
        true => output::json(&as_json(&info, template)),
        false => output::text(&as_text(&info, template)),
    }
}

/// What an ONNX graph takes and gives, and which operators it has.
fn onnx_info(common: &Common, model: &OnnxModel) -> Result<(), Failure> {
    let file = model.model();
    let opsets: Vec<String> = file
        .opsets
        .iter()
        .map(|(domain, version)| match domain.as_str() {
            "" => format!("ai.onnx {version}"),
            domain => format!("{domain} {version}"),
        })
        .collect();
    let operators = model.operators();
    let ports = |ports: &[cyb_llm::Port]| ports.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (inputs, outputs) = (ports(model.inputs()), ports(model.outputs()));
    if common.json {
        return output::json(&json!({
            "path": model.name(),
            "format": "ONNX",
            "producer": file.producer,
            "opsets": file.opsets,
            "inputs": inputs,
            "outputs": outputs,
            "operators": operators,
            "metadata": model.metadata().iter().collect::<std::collections::BTreeMap<_, _>>(),
        }));
    }
    let mut rows = vec![
        vec!["path".to_owned(), model.name().to_owned()],
        vec!["format".to_owned(), format!("ONNX, {}", opsets.join(", "))],
        vec!["producer".to_owned(), file.producer.clone()],
    ];
    let all = [("input", inputs), ("output", outputs)];
    rows.extend(
        all.iter().flat_map(|(kind, ports)| {
            ports.iter().map(|port| vec![(*kind).to_owned(), port.clone()])
        }),
    );
    let counts: Vec<String> = operators.iter().map(|(op, n)| format!("{n} {op}")).collect();
    rows.push(vec!["operators".to_owned(), counts.join(", ")]);
    let metadata = model.metadata().iter();
    rows.extend(metadata.map(|(key, value)| vec![key.clone(), value.clone()]));
    output::text(&output::table(&rows))
}

fn as_json(info: &ModelInfo, template: Option<&str>) -> serde_json::Value {
    let quantization: Vec<_> = info
        .quantization
        .iter()
        .map(|(dtype, tensors, bytes)| {
            json!({ "type": dtype.name(), "tensors": tensors, "bytes": bytes })
        })
        .collect();
    let runs_on: Vec<_> = info
        .parts
        .iter()
        .map(|part| {
            json!({ "op": part.op, "backend": part.backend, "kernel": part.kernel, "count": part.count })
        })
        .collect();
    json!({
        "id": info.id.0,
        "path": info.path,
        "format": info.format,
        "architecture": info.architecture,
        "family": info.family,
        "parameters": info.parameters,
        "layers": info.layers,
        "hidden_size": info.hidden_size,
        "attention_heads": info.heads.0,
        "key_value_heads": info.heads.1,
        "vocab_size": info.vocab_size,
        "context_length": info.context_length,
        "quantization": quantization,
        "chat_template": template,
        "memory": memory::as_json(&info.memory),
        "plan": plan::as_json(&info.plan),
        "runs_on": runs_on,
        "warnings": info.warnings,
    })
}

fn as_text(info: &ModelInfo, template: Option<&str>) -> String {
    let (heads, kv_heads) = info.heads;
    let shape = format!(
        "{} layers, hidden {}, {heads} heads ({kv_heads} for keys and values), vocabulary {}",
        info.layers, info.hidden_size, info.vocab_size
    );
    let template = match template {
        Some(source) => format!("its own, {} characters", source.chars().count()),
        None => "none".to_owned(),
    };
    let row = |what: &str, value: String| vec![what.to_owned(), value];
    let mut rows = vec![
        row("model", info.id.to_string()),
        row("format", info.format.clone()),
        row("architecture", format!("{} ({} family)", info.architecture, info.family)),
        row("parameters", count(info.parameters)),
        row("shape", shape),
        row("context", format!("{} tokens", info.context_length)),
        row("chat template", template),
        row("memory", bytes(info.memory.total())),
    ];
    rows.extend(memory::lines(&info.memory));
    let mut text = output::table(&rows);
    text.push_str("weights\n");
    let mix: Vec<Vec<String>> = info
        .quantization
        .iter()
        .map(|(dtype, tensors, size)| {
            vec![format!("  {}", dtype.name()), format!("{tensors} tensors"), bytes(*size)]
        })
        .collect();
    text.push_str(&output::table(&mix));
    text.push_str("plan before loading\n");
    plan::lines(&info.plan).iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    text.push_str("runs on\n");
    let parts: Vec<Vec<String>> = info
        .parts
        .iter()
        .map(|part| {
            let on = format!("{} ({})", part.backend, part.kernel);
            vec![format!("  {}", part.op), format!("{} times", part.count), on]
        })
        .collect();
    text.push_str(&output::table(&parts));
    for warning in &info.warnings {
        text.push_str(&format!("note: {warning}\n"));
    }
    text
}

/// A number of parameters as people say it.
fn count(n: u64) -> String {
    match n {
        0..1_000_000 => n.to_string(),
        1_000_000..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.2} B", n as f64 / 1e9),
    }
}
