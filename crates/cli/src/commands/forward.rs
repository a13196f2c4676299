//! `soma-runtime forward` runs a graph once on named tensors.

use std::path::{Path, PathBuf};

use clap::Args;
use cyb_llm::{LoadOptions, Purpose, Runtime, npz};

use super::read_text;
use crate::args::{Common, ModelArgument};
use crate::failure::Failure;
use crate::output;
use crate::settings::Settings;

/// Run a model once on named tensors
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// A NumPy archive with the inputs, such as input_ids and attention_mask
    #[arg(long, value_name = "IN.npz", required_unless_present = "list", requires = "output")]
    inputs: Option<PathBuf>,
    /// Where the outputs go, such as logits and last_hidden_state
    #[arg(long, value_name = "OUT.npz", required_unless_present = "list")]
    output: Option<PathBuf>,
    /// Many runs: a file with lines of model, inputs and output, separated by tabs
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "inputs", "output"])]
    list: Option<PathBuf>,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let settings = Settings::collect(common, &[("model", arguments.model.model.as_deref())])?;
    let config = cyb_llm::Config { context: None, ..settings.exact_config()? };
    let runtime = Runtime::new(config)?;
    match (&arguments.list, &arguments.inputs, &arguments.output) {
        (Some(list), ..) => run_list(&runtime, list),
        (None, Some(inputs), Some(out)) => forward(&runtime, settings.model(), inputs, out),
        _ => Err(Failure::usage("give --inputs and --output, or --list")),
    }
}

fn forward(runtime: &Runtime, model: &str, inputs: &Path, out: &Path) -> Result<(), Failure> {
    let inputs = npz::read(inputs).map_err(cyb_llm::Error::from)?;
    if runtime.is_onnx(model)? {
        let outputs = runtime.load_onnx(model)?.run(&inputs)?;
        let arrays = outputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
        return Ok(npz::write(out, arrays).map_err(cyb_llm::Error::from)?);
    }
    let tokens = inputs.get("input_ids").and_then(|ids| ids.shape().last().copied());
    let load = |context| {
        let (purpose, without_template) = (Purpose::Sequences, true);
        let options = LoadOptions { purpose, context, without_template };
        runtime.load_with(model, options).map_err(Failure::from)
    };
    let mut model = load(None)?;
    // Longer texts than it is built for are those of a second set of rotary frequencies, if it has
    // one.
    if let Some(tokens) = tokens.filter(|&tokens| tokens > model.context_length())
        && let Ok(longer) = load(Some(tokens))
    {
        runtime.unload(model.id())?;
        model = longer;
    }
    let result = model.forward(&inputs).map_err(Failure::from).and_then(|outputs| {
        let arrays = outputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
        Ok(npz::write(out, arrays).map_err(cyb_llm::Error::from)?)
    });
    runtime.unload(model.id())?;
    result
}

/// One that fails leaves no output and does not stop the others.
fn run_list(runtime: &Runtime, list: &Path) -> Result<(), Failure> {
    let text = read_text(list)?;
    let (mut failed, mut all) = (0, 0);
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        all += 1;
        let fields: Vec<&str> = line.split('\t').collect();
        let result = match fields.as_slice() {
            [model, inputs, out] => {
                let out = Path::new(out);
                // What an earlier run left is no result of this one.
                match std::fs::remove_file(out) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        Err(Failure::file("replace", out, error))
                    }
                    _ => forward(runtime, model, Path::new(inputs), out),
                }
            }
            _ => Err(Failure::work("a line is model, inputs and output, separated by tabs")),
        };
        match result {
            Ok(()) => {}
            Err(Failure::Interrupted) => return Err(Failure::Interrupted),
            Err(failure) => {
                failed += 1;
                output::note(format_args!(
                    "error: {} line {}: {}",
                    list.display(),
                    number + 1,
                    failure.text()
                ));
            }
        }
    }
    match failed {
        0 => Ok(()),
        _ => Err(Failure::work(format!("{}: {failed} of {all} runs failed", list.display()))),
    }
}
