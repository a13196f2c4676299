//! `soma-runtime verify` checks a model file end to end.

use clap::Args;
use cyb_llm::{LoadOptions, Runtime};
use serde_json::json;

use crate::args::Common;
use crate::failure::Failure;
use crate::output;
use crate::settings::Settings;

/// Check a model file end to end
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Path of a model, or its name in the models folder
    #[arg(value_name = "MODEL")]
    model: String,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let settings = Settings::collect(common, &[])?;
    let runtime = Runtime::new(cyb_llm::Config { context: None, ..settings.config()? })?;
    let package = runtime.open(&arguments.model)?;
    let mut findings: Vec<(&str, Result<String, String>)> =
        package.verify()?.into_iter().map(|finding| (finding.what, finding.result)).collect();
    let options = LoadOptions { without_template: true, ..LoadOptions::default() };
    let graph = runtime.load_with(&arguments.model, options).map(|model| {
        let info = model.info();
        format!("{} family, {} layers, {} parameters", info.family, info.layers, info.parameters)
    });
    findings.push(("graph", graph.map_err(|error| error.to_string())));
    let failed = findings.iter().filter(|(_, result)| result.is_err()).count();
    if common.json {
        let checks: Vec<_> = findings
            .iter()
            .map(|(what, result)| {
                let found = result.as_ref().unwrap_or_else(|problem| problem);
                json!({ "check": what, "ok": result.is_ok(), "found": found })
            })
            .collect();
        output::json(&json!({ "ok": failed == 0, "checks": checks }))?;
    } else {
        let rows: Vec<Vec<String>> = findings
            .iter()
            .map(|(what, result)| match result {
                Ok(found) => vec![(*what).to_owned(), "ok".to_owned(), found.clone()],
                Err(problem) => vec![(*what).to_owned(), "BAD".to_owned(), problem.clone()],
            })
            .collect();
        output::text(&output::table(&rows))?;
    }
    match failed {
        0 => Ok(()),
        _ => {
            let name = &arguments.model;
            Err(Failure::work(format!("{name}: {failed} checks failed; fetch the file again")))
        }
    }
}
