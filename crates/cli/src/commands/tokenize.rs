//! `soma-runtime tokenize` turns text into token ids.

use std::path::PathBuf;

use clap::Args;
use cyb_llm::EncodeOptions;

use super::{package, read_json};
use crate::args::{Common, ModelArgument};
use crate::failure::Failure;
use crate::output;

/// Print the token ids of a text as a JSON array
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    #[command(flatten)]
    source: Source,
    /// Add no BOS or EOS
    #[arg(long)]
    no_special: bool,
    /// Read the text of control tokens as control tokens
    #[arg(long)]
    parse_special: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Source {
    /// The text
    #[arg(long, allow_hyphen_values = true)]
    text: Option<String>,
    /// A JSON file with an array of strings; the result is an array of arrays
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let package = package(common, &arguments.model)?;
    let options = EncodeOptions {
        add_special: !arguments.no_special,
        parse_special: arguments.parse_special,
    };
    match &arguments.source.texts {
        None => {
            let text = arguments.source.text.as_deref().unwrap_or_default();
            output::json(&package.tokenize(text, options)?)
        }
        Some(path) => {
            let texts: Vec<String> = read_json(path, "a JSON array of strings")?;
            let mut ids = Vec::with_capacity(texts.len());
            for text in &texts {
                ids.push(package.tokenize(text, options)?);
            }
            output::json(&ids)
        }
    }
}
