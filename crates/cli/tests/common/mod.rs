//! Running the binary and looking at what came of it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(dead_code, unreachable_pub, reason = "not every test file needs each of these")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// What a run left.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn of(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The result of a run that must have succeeded.
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.stdout
    }

    pub fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// Checks that it failed with `code` and one line that has all `parts`, and printed no result.
    pub fn fails(self, code: i32, parts: &[&str]) {
        assert_eq!((self.code, self.stdout.as_str()), (Some(code), ""), "{}", self.stderr);
        let errors: Vec<&str> = self.stderr.lines().collect();
        assert!(errors.len() == 1 && errors[0].starts_with("error: "), "{errors:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} in {}", self.stderr);
        }
    }
}

/// The binary, without the surrounding options.
pub fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_soma-runtime"));
    command.args(words).stdin(Stdio::null());
    for name in ["SOMA_THREADS", "SOMA_BACKEND", "SOMA_CONTEXT", "SOMA_MODEL", "SOMA_CONFIG"] {
        command.env_remove(name);
    }
    command.env("XDG_CONFIG_HOME", "/nonexistent").env("XDG_CACHE_HOME", "/nonexistent");
    // The same answers on every machine: no GPU is to be seen.
    command.env("CUDA_VISIBLE_DEVICES", "");
    command
}

pub fn soma(words: &[&str]) -> Ran {
    Ran::of(command(words).output().unwrap())
}

/// As [`soma`], with text on stdin.
pub fn piped(words: &[&str], input: &[u8]) -> Ran {
    let mut command = command(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    Ran::of(child.wait_with_output().unwrap())
}

/// A tiny random model with a tokenizer and a template.
pub fn tiny() -> String {
    shown(&cyb_testkit::golden("families/llama3.gguf"))
}

/// A tiny random model with a tokenizer and no template.
pub fn bare() -> String {
    shown(&cyb_testkit::golden("families/gemma3.gguf"))
}

/// The demo model.
pub fn demo() -> String {
    shown(&cyb_testkit::model(cyb_testkit::DEMO))
}

pub fn shown(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// A file of `text` in `dir`.
pub fn file(dir: &tempfile::TempDir, name: &str, text: impl AsRef<[u8]>) -> String {
    let path: PathBuf = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    shown(&path)
}
