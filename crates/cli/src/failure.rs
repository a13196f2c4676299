//! How a command can end other than well, and how that is told.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// The work failed, or was interrupted.
pub(crate) const WORK_CODE: u8 = 1;
/// The command line was wrong.
pub(crate) const USAGE_CODE: u8 = 2;

type Cause = Box<dyn Error + Send + Sync>;

#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line was wrong.
    Usage(Cause),
    /// The work failed.
    Work(Cause),
    /// Whoever read the output has gone: no error.
    ClosedPipe,
    /// The user interrupted.
    Interrupted,
}

impl Failure {
    /// A mistake on the command line, in words.
    pub(crate) fn usage(text: impl Into<String>) -> Failure {
        Failure::Usage(text.into().into())
    }

    /// A failure of the work, in words.
    pub(crate) fn work(text: impl Into<String>) -> Failure {
        Failure::Work(text.into().into())
    }

    /// A failure to read or write a file: what was done, to which file.
    pub(crate) fn file(what: &str, path: &std::path::Path, error: io::Error) -> Failure {
        Failure::work(format!("cannot {what} {}: {error}", path.display()))
    }

    /// Says what happened on stderr, in one line unless `verbose`, and gives the code to exit with.
    pub(crate) fn report(&self, verbose: bool) -> ExitCode {
        let (text, code) = match self {
            Failure::Usage(cause) => (message(cause.as_ref(), verbose), USAGE_CODE),
            Failure::Work(cause) => (message(cause.as_ref(), verbose), WORK_CODE),
            Failure::ClosedPipe => return ExitCode::SUCCESS,
            Failure::Interrupted => (format!("error: {}", self.text()), WORK_CODE),
        };
        // Without stderr there is nobody to tell.
        let _ = writeln!(io::stderr(), "{text}");
        ExitCode::from(code)
    }

    /// The message without its prefix, for a report on one item of several.
    pub(crate) fn text(&self) -> String {
        match self {
            Failure::Usage(cause) | Failure::Work(cause) => flat(&cause.to_string()),
            Failure::ClosedPipe => "the output was closed".to_owned(),
            Failure::Interrupted => "interrupted before the work was done".to_owned(),
        }
    }
}

impl From<cyb_llm::Error> for Failure {
    fn from(error: cyb_llm::Error) -> Failure {
        match error {
            cyb_llm::Error::Interrupted => Failure::Interrupted,
            cyb_llm::Error::Parameter(_) => Failure::Usage(error.into()),
            other => Failure::Work(other.into()),
        }
    }
}

/// For writing results: a reader that has gone is told apart.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => Failure::work(format!("cannot write the output: {error}")),
        }
    }
}

fn message(cause: &(dyn Error + 'static), verbose: bool) -> String {
    let mut text = format!("error: {}", flat(&cause.to_string()));
    let mut source = cause.source();
    while let (true, Some(inner)) = (verbose, source) {
        // Writing to a string does not fail.
        let _ = write!(text, "\n  because: {}", flat(&inner.to_string()));
        source = inner.source();
    }
    text
}

/// Text in one line, whatever it quotes.
fn flat(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => line.push(' '),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_without_control_characters() {
        let cause: Cause = "a\nb \u{1b}[31mred".into();
        assert_eq!(message(cause.as_ref(), false), "error: a b \\u{1b}[31mred");
    }

    #[test]
    fn a_closed_pipe_is_told_from_a_full_disk() {
        let pipe = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(matches!(Failure::from(pipe), Failure::ClosedPipe));
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(matches!(Failure::from(full), Failure::Work(_)));
    }
}
