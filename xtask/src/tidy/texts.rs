//! Checks of everything that is text, and of the repository as a whole.

use super::manifests::external;
use super::{Finding, Repository};

/// The files of the repository together, in bytes.
const MOST_BYTES: u64 = 40_000_000;

/// What no file may say, and why. Pieces are joined here, so that this file does not say it.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("pypi", ".org"), "name the package; its host is pip's business"),
    (concat!("python", "hosted.org"), "name the package; its host is pip's business"),
    (concat!("crates", ".io/"), "name the crate; its host is cargo's business"),
    (concat!("download.py", "torch.org"), "name the package; its host is pip's business"),
];

/// The lock file and cargo's own vocabulary name the registry.
const EXEMPT: &[&str] = &["Cargo.lock", "fuzz/Cargo.lock"];

pub(super) fn forbidden_words(repository: &Repository, findings: &mut Vec<Finding>) {
    for (path, text) in repository.texts().filter(|(path, _)| !EXEMPT.contains(path)) {
        for (index, line) in text.lines().enumerate() {
            for (word, why) in FORBIDDEN.iter().filter(|(word, _)| line.contains(word)) {
                findings.push(Finding::new(path, index + 1, format!("{word:?}: {why}")));
            }
        }
    }
}

pub(super) fn documented_dependencies(repository: &Repository, findings: &mut Vec<Finding>) {
    const TABLE: &str = "docs/dependencies.md";
    let manifest = repository.text("Cargo.toml").unwrap_or_default();
    let table = repository.text(TABLE).unwrap_or_default();
    let row_of = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    let rows: Vec<(usize, String)> = table
        .lines()
        .enumerate()
        .filter_map(|(index, line)| Some((index + 1, row_of(line)?)))
        .collect();
    let used = external(manifest);
    for (line, name) in &used {
        if !rows.iter().any(|(_, row)| row == name) {
            let message = format!("{name} has no row in {TABLE}");
            findings.push(Finding::new("Cargo.toml", *line, message));
        }
    }
    for (line, row) in &rows {
        if !used.iter().any(|(_, name)| name == row) {
            findings.push(Finding::new(
                TABLE,
                *line,
                format!("{row} is not used by the workspace"),
            ));
        }
    }
}

/// A document that names `crates/x` names one that is there.
pub(super) fn named_crates_exist(repository: &Repository, findings: &mut Vec<Finding>) {
    for (path, text) in repository.with_extension(".md") {
        for (index, line) in text.lines().enumerate() {
            for (_, rest) in line.match_indices("crates/").map(|(at, _)| line.split_at(at + 7)) {
                let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_' && c != '-');
                let name = &rest[..end.unwrap_or(rest.len())];
                let exists = repository.text(&format!("crates/{name}/Cargo.toml")).is_some();
                if !name.is_empty() && !exists {
                    let message = format!("there is no crate crates/{name}");
                    findings.push(Finding::new(path, index + 1, message));
                }
            }
        }
    }
}

pub(super) fn repository_size(repository: &Repository, findings: &mut Vec<Finding>) {
    let total: u64 = repository.files.iter().map(|file| file.bytes).sum();
    if total > MOST_BYTES {
        let largest = repository.files.iter().max_by_key(|file| file.bytes);
        let path = largest.map_or("", |file| file.path.as_str());
        let message = format!(
            "the repository has {total} bytes, allowed are {MOST_BYTES}; this is its largest file"
        );
        findings.push(Finding::new(path, 1, message));
    }
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    #[test]
    fn machine_paths_and_hosts_are_found() {
        let text = concat!("ok\nsee /wo", "rk/x\nhttps://pypi", ".org/simple\n");
        assert_eq!(found(forbidden_words, &[("a.md", text)]), ["a.md:2", "a.md:3"]);
    }

    #[test]
    fn the_table_of_dependencies_matches_the_manifest() {
        let manifest =
            "[workspace.dependencies]\ncyb-ir = { path = \"x\" }\nhalf = \"2\"\nzip = \"9\"\n";
        let table = "| crate | why |\n|---|---|\n| `half` | f16 |\n| `gone` | x |\n";
        let files = [("Cargo.toml", manifest), ("docs/dependencies.md", table)];
        assert_eq!(
            found(documented_dependencies, &files),
            ["Cargo.toml:4", "docs/dependencies.md:4"]
        );
    }

    #[test]
    fn documents_name_crates_that_exist() {
        let files =
            [("README.md", "see `crates/ir/src` and crates/none."), ("crates/ir/Cargo.toml", "")];
        assert_eq!(found(named_crates_exist, &files), ["README.md:1"]);
    }
}
