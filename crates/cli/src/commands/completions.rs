//! `soma-runtime completions` prints completions for a shell.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::output;

/// Print completions for a shell
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    let mut command = crate::args::Arguments::command();
    clap_complete::generate(arguments.shell, &mut command, "soma-runtime", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}
