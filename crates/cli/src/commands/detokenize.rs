//! `soma-runtime detokenize` turns token ids into text.

use clap::Args;
use serde::Serialize;

use super::package;
use crate::args::{Common, ModelArgument};
use crate::failure::Failure;
use crate::output;

/// Print the text of token ids
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// The ids, separated by commas
    #[arg(long, value_name = "IDS", required = true, value_delimiter = ',')]
    ids: Vec<u32>,
}

#[derive(Serialize)]
struct Text {
    text: String,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let text = package(common, &arguments.model)?.detokenize(&arguments.ids)?;
    if common.json { output::json(&Text { text }) } else { output::line(text) }
}
