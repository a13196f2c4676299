//! `soma-runtime jets` lists the jets, their hashes and kernels, and checks the kernels.

use std::time::SystemTime;

use clap::Args;
use cyb_llm::{CheckLine, Runtime};
use serde_json::json;

use super::runtime;
use crate::args::Common;
use crate::failure::Failure;
use crate::output;

/// Show every operation with a definition, its hash, and where it has kernels; or check the kernels
///
/// With --check every kernel of the backend computes all cases of its operation on random inputs,
/// which are compared with the definition; products, decoder layers and choices of tokens are checked
/// besides. What fails is told, and the exit code is 1.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Check the kernels of the backend, of all operations or of one
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "all")]
    check: Option<String>,
    /// Of the random inputs of a check [default: another one each time]
    #[arg(long, value_name = "N", requires = "check")]
    seed: Option<u64>,
}

/// Hex digits of a hash that people see.
const HASH_DIGITS: usize = 16;

/// Failures of a line that people see.
const SHOWN: usize = 10;

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let runtime = runtime(common)?;
    if let Some(name) = &arguments.check {
        let only = (name != "all").then_some(name.as_str());
        return check(common, &runtime, only, arguments.seed);
    }
    let jets = runtime.jets()?;
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

fn check(
    common: &Common,
    runtime: &Runtime,
    only: Option<&str>,
    seed: Option<u64>,
) -> Result<(), Failure> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // A clock before 1970 gives a seed like any other.
    let seed = seed.unwrap_or_else(|| now.map_or(0, |now| now.as_nanos() as u64 >> 10));
    let mut lines: Vec<CheckLine> = Vec::new();
    let mut printed = Ok(());
    let backend = runtime.backend();
    if !common.json {
        output::line(format_args!("backend {backend}, seed {seed}"))?;
    }
    runtime.check_jets(only, seed, &mut |line| {
        if !common.json && printed.is_ok() {
            printed = output::text(&as_text(line, backend));
        }
        lines.push(line.clone());
    })?;
    printed?;
    let count = |of: fn(&CheckLine) -> usize| lines.iter().map(of).sum::<usize>();
    let (cases, failures) = (count(|line| line.cases), count(|line| line.failures.len()));
    if common.json {
        let checks: Vec<_> = lines
            .iter()
            .map(|line| {
                json!({
                    "name": line.name,
                    "cases": line.cases,
                    "on_backend": line.on_first,
                    "worst": line.worst,
                    "failures": line.failures,
                })
            })
            .collect();
        output::json(&json!({
            "backend": backend,
            "seed": seed,
            "cases": cases,
            "failures": failures,
            "checks": checks,
        }))?;
    } else {
        output::line(format_args!("{cases} cases, {failures} failures"))?;
    }
    match failures {
        0 => Ok(()),
        n => Err(Failure::work(format!(
            "{n} checks failed on {backend}; --check NAME --seed {seed} repeats those of a name"
        ))),
    }
}

fn as_text(line: &CheckLine, backend: &str) -> String {
    let CheckLine { name, cases, on_first, worst, failures } = line;
    let verdict = if failures.is_empty() { "ok" } else { "FAILED" };
    let mut text = format!(
        "{name:20} {on_first:4} of {cases:4} cases on {backend}, worst {worst:.3} of what is allowed, \
         {verdict}\n"
    );
    failures.iter().take(SHOWN).for_each(|failure| text.push_str(&format!("  {failure}\n")));
    if failures.len() > SHOWN {
        text.push_str(&format!("  and {} more\n", failures.len() - SHOWN));
    }
    text
}
