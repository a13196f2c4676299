//! The command line.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser};

use crate::commands::Command;
use crate::failure::USAGE_CODE;

/// Runs models of every common format on the machine at hand.
#[derive(Debug, Parser)]
#[command(name = "soma-runtime", version, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

// Options of every command. (A doc comment would become the text of each command's help.)
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    /// Print the result as JSON and nothing else on stdout
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// With an error, print what led to it
    #[arg(long, global = true)]
    pub(crate) verbose: bool,
    /// Threads to compute with [default: what the machine allows this process]
    #[arg(long, global = true, value_name = "N")]
    pub(crate) threads: Option<String>,
    /// Where to compute: auto, cpu, cuda, wgpu, metal, or atoms (the interpreter)
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) backend: Option<String>,
    /// Layers that run on the graphics processor, the others on the processor [default: all]
    #[arg(long, global = true, value_name = "N")]
    pub(crate) gpu_layers: Option<String>,
    /// What products with floating-point weights are computed in: f32, or bf16 on the processor
    /// [default: f32]
    #[arg(long, global = true, value_name = "TYPE")]
    pub(crate) compute: Option<String>,
    /// On a graphics processor, let nothing depend on how many tokens share a step; prompts and large
    /// batches take longer
    #[arg(long, global = true)]
    pub(crate) batch_invariant: bool,
    /// Configuration file [default: soma/config.toml in the user's configuration folder]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

// The model that a command works on.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ModelArgument {
    /// Path of a model, or its name in the models folder [default: the demo model]
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: Option<String>,
}

/// Reads the process's command line. The error is the code to exit with after help was asked for
/// or the line was wrong; what there is to say has been printed by then.
pub(crate) fn parse() -> Result<Arguments, ExitCode> {
    Arguments::try_parse().map_err(|error| {
        if matches!(
            error.kind(),
            ErrorKind::DisplayHelp
                | ErrorKind::DisplayVersion
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        ) {
            // Help that nobody reads any more is no error.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => ExitCode::from(USAGE_CODE),
                _ => ExitCode::SUCCESS,
            };
        }
        // Without stderr there is nobody to tell.
        let _ = writeln!(std::io::stderr(), "{}", one_line(&error));
        ExitCode::from(USAGE_CODE)
    })
}

/// What clap says over several lines, in one.
fn one_line(error: &clap::Error) -> String {
    let rendered = error.render().to_string();
    let mut lines = rendered.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut text = lines.next().unwrap_or("error: the command line is wrong").to_owned();
    // A list, such as of missing arguments, follows a line that ends with a colon.
    let mut separator = " ";
    for line in lines {
        if line.starts_with("Usage:") || line.starts_with("For more") {
            break;
        }
        let line = line.strip_prefix("tip: ").unwrap_or(line);
        if !text.ends_with(':') {
            separator = "; ";
        }
        text.push_str(separator);
        text.push_str(line);
    }
    if let Some(source) = error.source().filter(|_| !text.contains("; ")) {
        let source = source.to_string();
        if !text.contains(&source) {
            text = format!("{text}: {source}");
        }
    }
    let command = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage_command(&usage.to_string()),
        _ => "soma-runtime".to_owned(),
    };
    format!("{text}; see `{command} --help`")
}

/// The program and its subcommands out of a usage line.
fn usage_command(usage: &str) -> String {
    let words = usage.trim_start_matches("Usage:").split_whitespace();
    let is_name = |word: &&str| {
        word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-')
    };
    words.take_while(is_name).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn error_of(words: &[&str]) -> String {
        let words = ["soma-runtime"].iter().chain(words);
        one_line(&Arguments::try_parse_from(words).unwrap_err())
    }

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_says_what_it_is_for() {
        let own = Arguments::command().get_about().map(ToString::to_string);
        let mut seen: Vec<Option<String>> = vec![own];
        for command in Arguments::command().get_subcommands() {
            let about = command.get_about().map(ToString::to_string);
            assert!(about.is_some() && !seen.contains(&about), "{}: {about:?}", command.get_name());
            seen.push(about);
        }
    }

    #[test]
    fn errors_are_one_line_and_name_the_argument() {
        for (words, parts) in [
            (&["run", "--promt", "x"][..], &["--promt", "--prompt", "soma-runtime run --help"][..]),
            (&["tokenise"], &["tokenise", "tokenize", "soma-runtime --help"]),
            (&["detokenize"], &["--ids", "detokenize --help"]),
            (&["models", "info"], &["<MODEL>", "models info --help"]),
            (&["perplexity", "--file", "f", "--context", "x"], &["--context", "x"]),
        ] {
            let text = error_of(words);
            assert!(!text.contains('\n') && text.starts_with("error: "), "{text}");
            for part in parts {
                assert!(text.contains(part), "{words:?}: {text}");
            }
        }
    }
}
