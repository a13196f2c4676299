//! `soma-runtime backends` lists the backends of this machine.

use clap::Args;
use serde::Serialize;

use super::runtime;
use crate::args::Common;
use crate::failure::Failure;
use crate::output;

/// Show what this machine can compute with
#[derive(Debug, Args)]
pub(crate) struct Arguments {}

#[derive(Serialize)]
struct Backend {
    name: &'static str,
    available: bool,
    device: Option<String>,
    reason: Option<String>,
    in_use: bool,
}

pub(crate) fn run(common: &Common, Arguments {}: &Arguments) -> Result<(), Failure> {
    let backends: Vec<Backend> = runtime(common)?
        .backends()
        .into_iter()
        .map(|info| Backend {
            name: info.kind.name(),
            available: info.device.is_some(),
            device: info.device,
            reason: info.obstacle,
            in_use: info.in_use,
        })
        .collect();
    if common.json {
        return output::json(&serde_json::json!({ "backends": backends }));
    }
    let rows: Vec<Vec<String>> = backends
        .into_iter()
        .map(|b| {
            let state = match (b.available, b.in_use) {
                (true, true) => "in use",
                (true, false) => "available",
                (false, _) => "not here",
            };
            let about = b.device.or(b.reason).unwrap_or_default();
            vec![b.name.to_owned(), state.to_owned(), about]
        })
        .collect();
    output::text(&output::table(&rows))
}
