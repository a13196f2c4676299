//! Checks of the manifests: which crate may use which, and what may be used from outside.

use super::{Finding, Repository};

/// Which of our crates each crate may use, apart from its tests. Dependencies point from the
/// runtime to the jets to the drivers: a model knows no backend, a backend knows no model.
const ALLOWED: &[(&str, &[&str])] = &[
    ("tensor", &[]),
    ("simd", &[]),
    ("sample", &[]),
    ("ir", &["tensor"]),
    ("interp", &["ir", "tensor"]),
    ("jets", &["ir", "tensor"]),
    ("exec", &["interp", "ir", "jets", "tensor"]),
    // The interpreter computes what has no kernel.
    ("cpu", &["exec", "interp", "ir", "jets", "simd", "tensor"]),
    ("cuda", &["exec", "ir", "jets", "tensor"]),
    ("wgpu", &["exec", "ir", "jets", "tensor"]),
    ("conformance", &["exec", "interp", "ir", "jets", "sample", "tensor"]),
    ("fasttext", &["tensor"]),
    ("formats", &["tensor"]),
    ("models", &["formats", "ir", "jets", "tensor"]),
    ("onnx", &["formats", "interp", "ir", "jets", "tensor"]),
    ("text", &["formats"]),
    ("engine", &["exec", "ir", "sample", "tensor"]),
    ("media", &["tensor"]),
    ("nox", &["exec", "ir", "tensor"]),
    (
        "llm",
        &[
            "conformance",
            "cpu",
            "cuda",
            "engine",
            "exec",
            "fasttext",
            "formats",
            "interp",
            "ir",
            "jets",
            "media",
            "models",
            "nox",
            "onnx",
            "sample",
            "tensor",
            "text",
            "wgpu",
        ],
    ),
    ("context", &["llm"]),
    ("daemon", &["context", "llm"]),
    ("cli", &["context", "daemon", "llm"]),
    ("zoo", &[]),
    ("testkit", &["exec", "formats", "interp", "ir", "jets", "tensor", "zoo"]),
    ("xtask", &["zoo"]),
];

/// Locked packages that compile or bind code of other languages, and why they are no harm.
const FOREIGN: &[(&str, &str)] = &[
    ("cc", "build dependency of blake3, which calls it only without its feature `pure`"),
    ("js-sys", "bindings to the browser, for wasm32 only"),
    ("web-sys", "bindings to the browser, for wasm32 only"),
    ("linux-raw-sys", "constants of the kernel, in Rust"),
    ("windows-sys", "bindings to the operating system, for Windows only"),
];

/// A line `name = ...` or `name.workspace = true` of a dependency table.
struct Dependency<'a> {
    line: usize,
    name: &'a str,
    definition: &'a str,
    dev: bool,
}

/// The dependencies of a manifest, `[target...]` tables included.
fn dependencies(manifest: &str) -> Vec<Dependency<'_>> {
    let (mut inside, mut dev) = (false, false);
    let mut found = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            inside = header.trim_end_matches(']').ends_with("dependencies");
            dev = header.contains("dev-dependencies");
        } else if inside
            && !line.starts_with('#')
            && let Some((key, _)) = line.split_once('=')
        {
            let name = key.trim().trim_end_matches(".workspace");
            found.push(Dependency { line: index + 1, name, definition: line, dev });
        }
    }
    found
}

/// Manifests of the workspace's members as (folder's name, path, text).
fn members(repository: &Repository) -> impl Iterator<Item = (&str, &str, &str)> {
    repository.with_extension("/Cargo.toml").filter_map(|(path, text)| {
        let folder = path.strip_suffix("/Cargo.toml")?;
        let name = folder.strip_prefix("crates/").or((folder == "xtask").then_some(folder))?;
        Some((name, path, text))
    })
}

pub(super) fn dependency_direction(repository: &Repository, findings: &mut Vec<Finding>) {
    for (name, path, text) in members(repository) {
        let Some((_, allowed)) = ALLOWED.iter().find(|(row, _)| *row == name) else {
            let message =
                format!("crate {name} has no row in ALLOWED (xtask/src/tidy/manifests.rs)");
            findings.push(Finding::new(path, 1, message));
            continue;
        };
        for dependency in dependencies(text).into_iter().filter(|dependency| !dependency.dev) {
            let Some(used) = dependency.name.strip_prefix("cyb-") else { continue };
            if !allowed.contains(&used) {
                let message = format!("{name} must not depend on {used}");
                findings.push(Finding::new(path, dependency.line, message));
            }
        }
    }
}

pub(super) fn versions_in_one_place(repository: &Repository, findings: &mut Vec<Finding>) {
    for (_, path, text) in members(repository) {
        for dependency in dependencies(text) {
            let compact: String = dependency.definition.split_whitespace().collect();
            if !compact.contains("workspace=true") {
                let message = format!("{} must come from the workspace", dependency.name);
                findings.push(Finding::new(path, dependency.line, message));
            }
        }
        if !text.contains("[lints]\nworkspace = true") {
            findings.push(Finding::new(path, 1, "the workspace's lints are not switched on"));
        }
    }
}

/// The program is Rust only: no package of the lock file compiles or links other code.
pub(super) fn no_foreign_code(repository: &Repository, findings: &mut Vec<Finding>) {
    let lock = repository.text("Cargo.lock").unwrap_or_default();
    for (index, line) in lock.lines().enumerate() {
        let Some(name) = line.strip_prefix("name = \"").and_then(|rest| rest.strip_suffix('"'))
        else {
            continue;
        };
        let foreign =
            name.ends_with("-sys") || ["cc", "cmake", "bindgen", "pkg-config"].contains(&name);
        if foreign && !FOREIGN.iter().any(|(known, _)| *known == name) {
            let message =
                format!("{name} brings code of another language (`cargo tree --invert {name}`)");
            findings.push(Finding::new("Cargo.lock", index + 1, message));
        }
    }
}

/// External dependencies of the workspace as (line, name).
pub(super) fn external(root_manifest: &str) -> Vec<(usize, &str)> {
    let all = dependencies(root_manifest).into_iter();
    all.filter(|dependency| !dependency.name.starts_with("cyb-"))
        .map(|dependency| (dependency.line, dependency.name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    const LINTS: &str = "[lints]\nworkspace = true\n";

    #[test]
    fn a_wrong_edge_is_found() {
        let manifest = format!(
            "[dependencies]\ncyb-tensor.workspace = true\ncyb-exec.workspace = true\n\
             [dev-dependencies]\ncyb-cpu.workspace = true\n{LINTS}"
        );
        let files = [("crates/ir/Cargo.toml", manifest.as_str())];
        assert_eq!(found(dependency_direction, &files), ["crates/ir/Cargo.toml:3"]);
        let target = "[target.'cfg(unix)'.dependencies]\ncyb-cpu = { workspace = true }\n";
        assert_eq!(found(dependency_direction, &[("crates/ir/Cargo.toml", target)]).len(), 1);
        assert_eq!(found(dependency_direction, &[("crates/new/Cargo.toml", LINTS)]).len(), 1);
    }

    #[test]
    fn an_own_version_is_found() {
        let manifest =
            format!("[dependencies]\nhalf = \"2\"\nzip = {{ workspace = true }}\n{LINTS}");
        let files =
            [("crates/ir/Cargo.toml", manifest.as_str()), ("xtask/Cargo.toml", "[package]\n")];
        assert_eq!(
            found(versions_in_one_place, &files),
            ["crates/ir/Cargo.toml:2", "xtask/Cargo.toml:1"]
        );
    }

    #[test]
    fn foreign_code_is_found() {
        let lock = "name = \"cc\"\nname = \"openssl-sys\"\nname = \"syslog\"\n";
        assert_eq!(found(no_foreign_code, &[("Cargo.lock", lock)]), ["Cargo.lock:2"]);
    }

    #[test]
    fn allowed_edges_have_no_cycle() {
        // Kahn's algorithm: what never becomes free of dependencies is in or behind a cycle.
        let mut left: Vec<_> = ALLOWED.to_vec();
        loop {
            let names: Vec<_> = left.iter().map(|(name, _)| *name).collect();
            let before = left.len();
            left.retain(|(_, uses)| uses.iter().any(|used| names.contains(used)));
            if left.len() == before {
                break;
            }
        }
        assert!(left.is_empty(), "{left:?}");
    }
}
