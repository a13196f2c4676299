//! `soma-runtime import` writes a model in the project's own form.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::runtime;
use crate::args::Common;
use crate::failure::Failure;
use crate::output;

/// Write a model as a directory of the program's own form
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A Hugging Face directory or a GGUF file, or its name in the models folder
    #[arg(value_name = "SOURCE")]
    source: String,
    /// Write a directory with config.toml and weights.safetensors (weights.gguf of a GGUF file)
    #[arg(long, required = true)]
    to_directory: bool,
    /// Where it goes [default: the source's name with .soma behind it, in the present directory]
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let package = runtime(common)?.open(&arguments.source)?;
    let dir = arguments
        .output
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("{}.soma", package.name())));
    let full = dir.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    if full {
        return Err(Failure::work(format!(
            "{} has files already; give another directory (-o)",
            dir.display()
        )));
    }
    package.write_directory(&dir)?;
    match common.json {
        true => output::json(&json!({ "path": dir })),
        false => output::line(dir.display()),
    }
}
