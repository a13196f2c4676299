//! Project commands, run as `cargo xtask COMMAND`.
//!
//! They need Rust and, to fetch models or make golden values, Python 3 with pip; nothing is
//! installed outside the target folder and the models folder.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

mod bench;
mod cross;
mod models;
mod shell;
mod steps;
mod tidy;

use std::env;
use std::process::ExitCode;

/// A failure as the one line that is printed.
type Failure = String;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  demo [QUESTION]              build the release binary, fetch the demo model, stream an answer
  test [--all]                 format, lints, tidy, every test; --all adds the large models
  models [NAME...] [--all]     fetch the models that the tests use, those named, or all
  models --list                what there is, and what is here
  tidy                         the rules of ARCHITECTURE.md and STYLE.md that a program can check
  bench [--python PROGRAM]     text models beside llama.cpp, as Markdown; PROGRAM has llama-cpp-python
  kernels                      compile the CUDA kernels to PTX anew; needs no GPU
  cross [CHECK...]             the same results without AVX and with NEON, under qemu (Debian only)
  golden [SCRIPT...]           make the golden values anew (golden/*.py) in an own environment
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["demo", rest @ ..] if !has_option(rest) => steps::demo(rest),
        ["test"] => steps::test(false),
        ["test", "--all"] => steps::test(true),
        ["models", "--list"] => models::list(),
        ["models", "--all"] => models::fetch_where(|_| true),
        ["models"] => models::fetch_where(|model| model.set == cyb_zoo::Set::Test),
        ["models", names @ ..] if !has_option(names) => models::fetch_named(names),
        ["tidy"] => tidy::tidy(),
        ["kernels"] => steps::kernels(),
        ["cross", names @ ..] if !has_option(names) => cross::cross(names),
        ["golden", names @ ..] if !has_option(names) => steps::golden(names),
        ["bench"] => bench::bench(None),
        ["bench", "--python", python] => bench::bench(Some(*python)),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn has_option(words: &[&str]) -> bool {
    words.iter().any(|word| word.starts_with('-'))
}
