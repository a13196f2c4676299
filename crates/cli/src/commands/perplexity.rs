//! `soma-runtime perplexity` measures how well a model predicts a text.

use std::path::PathBuf;

use clap::Args;
use cyb_llm::Runtime;
use serde::Serialize;

use super::{Progress, read_text};
use crate::args::{Common, ModelArgument};
use crate::failure::Failure;
use crate::output;
use crate::settings::Settings;

/// Measure how well a model predicts a text, as llama.cpp's tool does
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// The text
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// Tokens of a window; its second half is predicted
    #[arg(long, value_name = "N", default_value_t = 512)]
    context: usize,
}

#[derive(Serialize)]
struct Report {
    perplexity: f64,
    tokens: usize,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let text = read_text(&arguments.file)?;
    let settings = Settings::collect(common, &[("model", arguments.model.model.as_deref())])?;
    // The window is this command's own; a context set for chats does not matter.
    let config = cyb_llm::Config { context: None, ..settings.config()? };
    let model = Runtime::new(config)?.load(settings.model())?;
    let progress = Progress::new("window");
    let measured =
        model.perplexity(&text, arguments.context, &mut |done, all| progress.show(done, all))?;
    let (perplexity, tokens) = (measured.perplexity, measured.tokens);
    match common.json {
        true => output::json(&Report { perplexity, tokens }),
        false => output::line(format!("perplexity {perplexity:.4} over {tokens} tokens")),
    }
}
