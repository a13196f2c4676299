//! `soma-runtime jets` lists the jets, their hashes and kernels.

use clap::Args;
use serde_json::json;

use super::runtime;
use crate::args::Common;
use crate::failure::Failure;
use crate::output;

/// Show every operation with a definition, its hash, and where it has kernels
#[derive(Debug, Args)]
pub(crate) struct Arguments {}

/// Hex digits of a hash that people see.
const HASH_DIGITS: usize = 16;

pub(crate) fn run(common: &Common, Arguments {}: &Arguments) -> Result<(), Failure> {
    let jets = runtime(common)?.jets()?;
    if common.json {
        let jets: Vec<_> = jets
            .iter()
            .map(|jet| {
                json!({
                    "name": jet.name,
                    "summary": jet.summary,
                    "hash": jet.hash,
                    "kernels": jet.kernels,
                })
            })
            .collect();
        return output::json(&json!({ "jets": jets }));
    }
    let rows: Vec<Vec<String>> = jets
        .into_iter()
        .map(|jet| {
            let kernels: Vec<String> = jet
                .kernels
                .iter()
                .map(|(backend, names)| format!("{backend}: {}", names.join(" ")))
                .collect();
            let kernels = if kernels.is_empty() { "atoms".to_owned() } else { kernels.join("; ") };
            let hash = jet.hash.chars().take(HASH_DIGITS).collect();
            vec![jet.name.to_owned(), hash, kernels]
        })
        .collect();
    output::text(&output::table(&rows))
}
