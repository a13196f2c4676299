//! `soma-runtime template` renders messages as the model's prompt.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::{package, read_messages};
use crate::args::{Common, ModelArgument};
use crate::failure::Failure;
use crate::output;

/// Print the prompt that the model's chat template makes of messages
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// A JSON file with an array of messages
    #[arg(long, value_name = "FILE")]
    messages: PathBuf,
}

#[derive(Serialize)]
struct Prompt {
    prompt: String,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let messages = read_messages(&arguments.messages)?;
    let prompt = package(common, &arguments.model)?.render(&messages)?;
    // As it is: a line end that the template does not write is none of its prompt.
    if common.json { output::json(&Prompt { prompt }) } else { output::text(&prompt) }
}
