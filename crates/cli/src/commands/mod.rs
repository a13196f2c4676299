//! The commands, one file each.

mod autotune;
mod backends;
mod bench;
mod chat;
mod classify;
mod completions;
mod config;
mod detect;
mod detokenize;
mod embed;
mod forward;
mod generate;
mod graph;
mod import;
mod jets;
mod memory;
mod models;
mod perplexity;
mod rerank;
mod run;
mod template;
mod tokenize;
mod verify;

use std::collections::BTreeMap;
use std::path::Path;

use clap::Subcommand;
use cyb_llm::media::Image;
use cyb_llm::{
    IndexMap, LoadOptions, Message, Model, OnnxModel, Package, Purpose, Runtime, SampleInputs,
    Tensor,
};

use crate::args::{Arguments, Common, ModelArgument};
use crate::failure::Failure;
use crate::output;
use crate::settings::Settings;

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one is made in a process")]
pub(crate) enum Command {
    Run(run::Arguments),
    Tokenize(tokenize::Arguments),
    Detokenize(detokenize::Arguments),
    Template(template::Arguments),
    Perplexity(perplexity::Arguments),
    Embed(embed::Arguments),
    Classify(classify::Arguments),
    Rerank(rerank::Arguments),
    Detect(detect::Arguments),
    Forward(forward::Arguments),
    Generate(generate::Arguments),
    Bench(bench::Arguments),
    Models(models::Arguments),
    Import(import::Arguments),
    Verify(verify::Arguments),
    Backends(backends::Arguments),
    Memory(memory::Arguments),
    Jets(jets::Arguments),
    Autotune(autotune::Arguments),
    Config(config::Arguments),
    Completions(completions::Arguments),
}

/// Does what the command line asks for.
pub(crate) fn run(Arguments { common, command }: Arguments) -> Result<(), Failure> {
    match command {
        Command::Run(arguments) => run::run(&common, &arguments),
        Command::Tokenize(arguments) => tokenize::run(&common, &arguments),
        Command::Detokenize(arguments) => detokenize::run(&common, &arguments),
        Command::Template(arguments) => template::run(&common, &arguments),
        Command::Perplexity(arguments) => perplexity::run(&common, &arguments),
        Command::Embed(arguments) => embed::run(&common, &arguments),
        Command::Classify(arguments) => classify::run(&common, &arguments),
        Command::Rerank(arguments) => rerank::run(&common, &arguments),
        Command::Detect(arguments) => detect::run(&common, &arguments),
        Command::Forward(arguments) => forward::run(&common, &arguments),
        Command::Generate(arguments) => generate::run(&common, &arguments),
        Command::Bench(arguments) => bench::run(&common, &arguments),
        Command::Models(arguments) => models::run(&common, &arguments),
        Command::Import(arguments) => import::run(&common, &arguments),
        Command::Verify(arguments) => verify::run(&common, &arguments),
        Command::Backends(arguments) => backends::run(&common, &arguments),
        Command::Memory(arguments) => memory::run(&common, &arguments),
        Command::Jets(arguments) => jets::run(&common, &arguments),
        Command::Autotune(arguments) => autotune::run(&common, &arguments),
        Command::Config(arguments) => config::run(&common, &arguments),
        Command::Completions(arguments) => completions::run(&arguments),
    }
}

/// The runtime for a command without options of its own.
fn runtime(common: &Common) -> Result<Runtime, Failure> {
    Ok(Runtime::new(Settings::collect(common, &[])?.config()?)?)
}

/// A model opened for its text side only.
fn package(common: &Common, model: &ModelArgument) -> Result<Package, Failure> {
    let settings = Settings::collect(common, &[("model", model.model.as_deref())])?;
    Ok(Runtime::new(settings.config()?)?.open(settings.model())?)
}

/// A model for vectors and scores.
fn load_for_sequences(runtime: &Runtime, name: &str) -> Result<Model, Failure> {
    let (purpose, without_template) = (Purpose::Sequences, true);
    let options = LoadOptions { purpose, without_template, ..LoadOptions::default() };
    Ok(runtime.load_with(name, options)?)
}

/// The picture in a file.
pub(super) fn read_image(path: &Path) -> Result<Image, Failure> {
    let bytes = std::fs::read(path).map_err(|error| Failure::file("read", path, error))?;
    Image::decode(&bytes).map_err(|error| Failure::work(format!("{}: {error}", path.display())))
}

/// A text file.
fn read_text(path: &Path) -> Result<String, Failure> {
    let bytes = std::fs::read(path).map_err(|error| Failure::file("read", path, error))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::work(format!("{} is not UTF-8 (byte {at}); give a text in UTF-8", path.display()))
    })
}

/// A JSON file.
fn read_json<T: serde::de::DeserializeOwned>(path: &Path, wanted: &str) -> Result<T, Failure> {
    serde_json::from_str(&read_text(path)?)
        .map_err(|error| Failure::work(format!("{}: {error}; give {wanted}", path.display())))
}

/// Messages of a chat from a JSON file.
fn read_messages(path: &Path) -> Result<Vec<Message>, Failure> {
    let wanted = r#"a JSON array of messages ({"role": "user", "content": "..."})"#;
    let messages: Vec<Message> = read_json(path, wanted)?;
    match messages.is_empty() {
        true => Err(Failure::work(format!("{} has no messages; give {wanted}", path.display()))),
        false => Ok(messages),
    }
}

/// Shows how far work is, on a terminal only; the line is wiped at the end.
struct Progress {
    what: &'static str,
    live: bool,
}

impl Progress {
    fn new(what: &'static str) -> Progress {
        Progress { what, live: std::io::IsTerminal::is_terminal(&std::io::stderr()) }
    }

    fn show(&self, done: usize, all: usize) {
        use std::io::Write;
        if self.live {
            // Without stderr there is nobody to tell.
            let _ = match done == all {
                true => write!(std::io::stderr(), "\r\x1b[2K"),
                false => write!(std::io::stderr(), "\r{} {done}/{all}", self.what),
            };
        }
    }
}

/// Inputs of the declared shapes; sizes that were assumed are said on stderr.
fn sample_inputs(
    model: &OnnxModel,
    dims: &BTreeMap<String, usize>,
) -> Result<IndexMap<String, Tensor>, Failure> {
    let SampleInputs { inputs, assumed } = model.sample_inputs(dims)?;
    if !assumed.is_empty() {
        let sizes: Vec<String> = assumed.iter().map(|(name, n)| format!("{name}={n}")).collect();
        output::note(format_args!("assumed --dim {}", sizes.join(" --dim ")));
    }
    Ok(inputs)
}

/// `NAME=N` each.
fn dims(given: &[String]) -> Result<BTreeMap<String, usize>, Failure> {
    let each = given.iter().map(|text| {
        let parts = text.split_once('=').and_then(|(name, n)| Some((name, n.parse().ok()?)));
        let (name, n) =
            parts.ok_or_else(|| Failure::usage(format!("--dim {text}: give NAME=NUMBER")))?;
        Ok((name.to_owned(), n))
    });
    each.collect()
}
