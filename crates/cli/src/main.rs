//! `soma-runtime`: runs models of every common format on the machine at hand.
//!
//! This crate turns words on a command line into calls of `cyb-llm` and results into text. Results
//! go to stdout, everything else to stderr; an error is one line.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod failure;
mod interrupt;
mod output;
mod plan;
mod settings;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args = match args::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let verbose = args.common.verbose;
    cyb_llm::end_on_lost_pages();
    commands::run(args).map_or_else(|failure| failure.report(verbose), |()| ExitCode::SUCCESS)
}
