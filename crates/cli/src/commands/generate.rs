//! `soma-runtime generate` continues token ids by argmax.

use std::path::PathBuf;

use clap::Args;
use cyb_llm::{Runtime, npz};

use crate::args::{Common, ModelArgument};
use crate::failure::Failure;
use crate::settings::Settings;

/// Continue input_ids by the most probable tokens
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// A NumPy archive with input_ids and what else `forward` takes
    #[arg(long, value_name = "IN.npz")]
    inputs: PathBuf,
    /// Where generated_ids goes, the new tokens only
    #[arg(long, value_name = "OUT.npz")]
    output: PathBuf,
    /// How many tokens; nothing stops it earlier
    #[arg(long, value_name = "N")]
    max_new_tokens: usize,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let settings = Settings::collect(common, &[("model", arguments.model.model.as_deref())])?;
    let runtime = Runtime::new(settings.exact_config()?)?;
    let inputs = npz::read(&arguments.inputs).map_err(cyb_llm::Error::from)?;
    let ids = runtime.generate_greedy(settings.model(), &inputs, arguments.max_new_tokens)?;
    Ok(npz::write(&arguments.output, [("generated_ids", &ids)]).map_err(cyb_llm::Error::from)?)
}
