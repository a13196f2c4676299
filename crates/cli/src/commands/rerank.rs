//! `soma-runtime rerank` sorts documents by how well they answer a query.

use clap::Args;
use cyb_llm::{Runtime, TextOptions};
use serde_json::json;

use super::load_for_sequences;
use crate::args::{Common, ModelArgument};
use crate::failure::Failure;
use crate::output;
use crate::settings::Settings;

/// Sort documents by how well they answer a query
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// The query
    #[arg(long, allow_hyphen_values = true)]
    query: String,
    /// The documents
    #[arg(long, required = true, num_args = 1.., value_name = "TEXT")]
    documents: Vec<String>,
    /// Cut a document that is too long for the model instead of failing
    #[arg(long)]
    truncate: bool,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let settings = Settings::collect(common, &[("model", arguments.model.model.as_deref())])?;
    let model = load_for_sequences(&Runtime::new(settings.config()?)?, settings.model())?;
    let documents: Vec<&str> = arguments.documents.iter().map(String::as_str).collect();
    let options = TextOptions { truncate: arguments.truncate };
    let scores = model.rerank(&arguments.query, &documents, options)?;
    let mut ranked: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if common.json {
        let results: Vec<_> = ranked
            .iter()
            .map(|&(i, score)| json!({ "index": i, "score": score, "document": documents[i] }))
            .collect();
        return output::json(&json!({ "results": results }));
    }
    for (i, score) in ranked {
        output::line(format_args!("{score:.6}  {}", documents[i]))?;
    }
    Ok(())
}
