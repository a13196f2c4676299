//! `tidy`: the rules of ARCHITECTURE.md and STYLE.md that a program can check.
//!
//! Each check looks at the files of the repository and pushes what it finds; nothing is changed.

mod manifests;
mod scan;
mod sources;
mod texts;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::shell::root;

/// The checks, in the order in which their findings are shown.
const CHECKS: &[fn(&Repository, &mut Vec<Finding>)] = &[
    manifests::dependency_direction,
    manifests::versions_in_one_place,
    manifests::no_foreign_code,
    sources::file_sizes,
    sources::module_docs,
    sources::unsafe_code,
    sources::atoms_without_wildcard,
    sources::markers,
    texts::forbidden_words,
    texts::documented_dependencies,
    texts::named_crates_exist,
    texts::repository_size,
];

/// Folders that hold products, not sources.
const SKIPPED: &[&str] = &[".git", "target", ".venv", "__pycache__"];

/// A file of the repository. `text` is absent where it is not UTF-8.
struct File {
    /// Path from the root, with `/`.
    path: String,
    bytes: u64,
    text: Option<String>,
}

/// Every file of the repository, in the order of their paths.
struct Repository {
    files: Vec<File>,
}

/// Something that breaks a rule, or (`warning`) comes close.
struct Finding {
    path: String,
    line: usize,
    message: String,
    warning: bool,
}

impl Repository {
    fn load(root: &Path) -> Result<Self, Failure> {
        let mut paths = Vec::new();
        collect(root, &mut paths)?;
        let mut files = Vec::new();
        for path in paths {
            let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy();
            files.push(File {
                path: relative.replace('\\', "/"),
                bytes: bytes.len() as u64,
                text: String::from_utf8(bytes).ok(),
            });
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { files })
    }

    /// Text files as (path, text).
    fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|file| Some((file.path.as_str(), file.text.as_deref()?)))
    }

    /// Text files whose name ends with `extension`.
    fn with_extension(&self, extension: &'static str) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(move |(path, _)| path.ends_with(extension))
    }

    fn text(&self, path: &str) -> Option<&str> {
        self.texts().find(|(other, _)| *other == path).map(|(_, text)| text)
    }
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into(), warning: false }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.warning { "warning" } else { "error" };
        write!(f, "{kind}: {}:{}: {}", self.path, self.line, self.message)
    }
}

/// Runs every check.
pub(crate) fn tidy() -> Result<(), Failure> {
    let repository = Repository::load(&root())?;
    let mut findings = Vec::new();
    for check in CHECKS {
        check(&repository, &mut findings);
    }
    for finding in &findings {
        eprintln!("{finding}");
    }
    match findings.iter().filter(|finding| !finding.warning).count() {
        0 => Ok(()),
        n => Err(format!("tidy found {n} broken rules")),
    }
}

fn collect(dir: &Path, paths: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let failed = |error| format!("{}: {error}", dir.display());
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() && !SKIPPED.iter().any(|name| entry.file_name() == *name) {
            collect(&entry.path(), paths)?;
        } else if kind.is_file() && entry.file_name() != ".git" {
            paths.push(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
fn repository(files: &[(&str, &str)]) -> Repository {
    let file = |(path, text): &(&str, &str)| File {
        path: (*path).to_owned(),
        bytes: text.len() as u64,
        text: Some((*text).to_owned()),
    };
    Repository { files: files.iter().map(file).collect() }
}

/// What a check finds in these files, one `path:line` each.
#[cfg(test)]
fn found(check: fn(&Repository, &mut Vec<Finding>), files: &[(&str, &str)]) -> Vec<String> {
    let mut findings = Vec::new();
    check(&repository(files), &mut findings);
    findings.iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
}
