//! `soma-runtime run` generates text from a prompt, messages, a pipe or a chat.

use std::io::{IsTerminal, Read};
use std::path::PathBuf;

use clap::Args;
use cyb_llm::{
    EncodeOptions, Generation, LoadOptions, Message, Metrics, Model, Runtime, SamplingParams,
};
use serde::Serialize;

use super::{chat, read_messages};
use crate::args::{Common, ModelArgument};
use crate::failure::Failure;
use crate::output;
use crate::plan;
use crate::settings::Settings;

/// Answer a prompt, or chat
///
/// With neither --prompt nor --messages the prompt is read from a pipe; on a terminal a chat
/// begins.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// What to answer
    #[arg(long, short, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// A JSON file with the messages of a chat to go on with
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "system", "raw"])]
    messages: Option<PathBuf>,
    /// A system message before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "raw", allow_hyphen_values = true)]
    system: Option<String>,
    /// Feed the text as it is, without the model's chat template
    #[arg(long)]
    raw: bool,
    /// In raw text, read the text of control tokens as control tokens
    #[arg(long, requires = "raw")]
    parse_special: bool,
    /// Tokens of prompt and answer together
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    context: Option<String>,
    #[command(flatten)]
    sampling: Sampling,
}

// How to sample and when to end.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
struct Sampling {
    /// A named set of the parameters below: router, code, reasoning, creative
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// The most tokens to make [default: to the end of the context]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    max_tokens: Option<String>,
    /// Randomness, 0 to 2; 0 always takes the most probable token [default: 0.7]
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    temperature: Option<String>,
    /// Keep the most probable tokens that make up this much probability [default: 0.9]
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    top_p: Option<String>,
    /// Keep this many of the most probable tokens [default: 40]
    #[arg(long, value_name = "K", allow_hyphen_values = true)]
    top_k: Option<String>,
    /// Drop tokens less probable than this fraction of the most probable [default: 0.05]
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    min_p: Option<String>,
    /// Weaken tokens that prompt or answer already hold, 1 to 2 [default: 1]
    #[arg(long, value_name = "R", allow_hyphen_values = true)]
    repetition_penalty: Option<String>,
    /// Subtract from the logits of tokens that the answer holds, -2 to 2 [default: 0]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    presence_penalty: Option<String>,
    /// Subtract for each time that the answer holds a token, -2 to 2 [default: 0]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    frequency_penalty: Option<String>,
    /// End when this text appears (repeatable)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Make the random draws repeatable
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    seed: Option<String>,
}

impl Arguments {
    fn settings(&self, common: &Common) -> Result<Settings, Failure> {
        let s = &self.sampling;
        let flags = [
            ("model", &self.model.model),
            ("context", &self.context),
            ("preset", &s.preset),
            ("max-tokens", &s.max_tokens),
            ("temperature", &s.temperature),
            ("top-p", &s.top_p),
            ("top-k", &s.top_k),
            ("min-p", &s.min_p),
            ("repetition-penalty", &s.repetition_penalty),
            ("presence-penalty", &s.presence_penalty),
            ("frequency-penalty", &s.frequency_penalty),
            ("seed", &s.seed),
        ]
        .map(|(name, value)| (name, value.as_deref()));
        Settings::collect(common, &flags)
    }
}

/// What to answer.
enum Prompt {
    Text(String),
    Messages(Vec<Message>),
    Terminal,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let settings = arguments.settings(common)?;
    let config = settings.config()?;
    let with_stops = |mut params: SamplingParams| -> Result<SamplingParams, Failure> {
        for stop in &arguments.sampling.stop {
            params.set("stop", stop).map_err(cyb_llm::Error::from)?;
        }
        Ok(params)
    };
    // What is wrong with them is said before anything is loaded.
    with_stops(settings.sampling()?)?;
    let prompt = read_prompt(arguments)?;
    if common.json && matches!(prompt, Prompt::Terminal) {
        return Err(Failure::usage("--json needs a prompt; give --prompt, --messages or a pipe"));
    }
    let runtime = Runtime::new(config)?;
    let options = LoadOptions { without_template: arguments.raw, ..LoadOptions::default() };
    let model = runtime.load_with(settings.model(), options)?;
    if common.verbose {
        for warning in model.info().warnings {
            output::note(format_args!("note: {warning}"));
        }
    }
    let defaults = model.package().sampling(SamplingParams::default())?;
    let params = with_stops(settings.sampling_over(defaults)?)?;
    let as_chat = !arguments.raw && model.package().has_template();
    let generation = match prompt {
        Prompt::Terminal => {
            return chat::run(&model, arguments.system.as_deref(), params, as_chat);
        }
        Prompt::Messages(messages) => model.chat(&messages, params)?,
        Prompt::Text(text) if as_chat => {
            model.chat(&chat::opening(arguments.system.as_deref(), &text), params)?
        }
        Prompt::Text(_) if arguments.system.is_some() => {
            return Err(Failure::work(format!(
                "{} has no chat template, so it takes no --system; put it into the prompt",
                model.id()
            )));
        }
        Prompt::Text(text) => {
            let special =
                EncodeOptions { add_special: true, parse_special: arguments.parse_special };
            model.generate_with(&text, special, params)?
        }
    };
    match common.json {
        true => print_json(&model, generation),
        false => print_text(generation),
    }
}

fn read_prompt(arguments: &Arguments) -> Result<Prompt, Failure> {
    if let Some(path) = &arguments.messages {
        return Ok(Prompt::Messages(read_messages(path)?));
    }
    if let Some(text) = &arguments.prompt {
        return Ok(Prompt::Text(text.clone()));
    }
    let mut stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(Prompt::Terminal);
    }
    let mut bytes = Vec::new();
    stdin
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::work(format!("cannot read the prompt from stdin: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::work(format!("the prompt on stdin is not UTF-8 (byte {at}); give a text in UTF-8"))
    })?;
    // A shell's pipe ends its text with a line end that nobody typed.
    let text = match arguments.raw {
        true => text,
        false => text.trim_end_matches(['\n', '\r']).to_owned(),
    };
    match text.is_empty() {
        true => {
            Err(Failure::work("there is no prompt on stdin; give --prompt, --messages or a text"))
        }
        false => Ok(Prompt::Text(text)),
    }
}

/// Streams an answer. What was made before an interrupt has been shown.
fn print_text(generation: Generation<'_>) -> Result<(), Failure> {
    for piece in generation {
        match piece {
            Ok(piece) if piece.text.is_empty() => {}
            Ok(piece) => output::text(&piece.text)?,
            Err(error) => {
                output::text("\n")?;
                return Err(error.into());
            }
        }
    }
    output::text("\n")
}

#[derive(Serialize)]
struct Report<'a> {
    text: &'a str,
    token_ids: &'a [u32],
    finish_reason: &'static str,
    usage: Usage,
    /// Where a device with memory of its own takes part.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<serde_json::Value>,
    metrics: MetricsReport,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    cached_tokens: usize,
}

#[derive(Serialize)]
struct MetricsReport {
    load_ms: f64,
    prefill_ms: f64,
    decode_ms: f64,
    prefill_tok_per_sec: f64,
    decode_tok_per_sec: f64,
    peak_memory_mb: f64,
    chosen_on_device: u64,
    chosen_from_logits: u64,
    ops: Vec<OpReport>,
}

#[derive(Serialize)]
struct OpReport {
    name: &'static str,
    calls: u64,
    total_ms: f64,
}

impl From<Metrics> for MetricsReport {
    fn from(metrics: Metrics) -> MetricsReport {
        let ops = metrics.ops.into_iter().map(|op| OpReport {
            name: op.name,
            calls: op.calls,
            total_ms: op.total_ms,
        });
        MetricsReport {
            load_ms: metrics.load_ms,
            prefill_ms: metrics.prefill_ms,
            decode_ms: metrics.decode_ms,
            prefill_tok_per_sec: metrics.prefill_tok_per_sec,
            decode_tok_per_sec: metrics.decode_tok_per_sec,
            peak_memory_mb: metrics.peak_memory_mb,
            chosen_on_device: metrics.chosen_on_device,
            chosen_from_logits: metrics.chosen_from_logits,
            ops: ops.collect(),
        }
    }
}

fn print_json(model: &Model, generation: Generation<'_>) -> Result<(), Failure> {
    let done = generation.complete()?;
    let plan = model.info().plan;
    output::json(&Report {
        text: &done.text,
        token_ids: &done.token_ids,
        finish_reason: done.finish.as_str(),
        usage: Usage {
            prompt_tokens: done.usage.prompt_tokens,
            completion_tokens: done.usage.completion_tokens,
            cached_tokens: done.usage.cached_tokens,
        },
        plan: plan.iter().any(|share| share.free.is_some()).then(|| plan::as_json(&plan)),
        metrics: model.metrics().into(),
    })
}
