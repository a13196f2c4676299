//! Checks of source files.

use super::scan::{code_only, line_of, lines_without_tests, words};
use super::{Finding, Repository};

/// Lines of a file, its tests not counted: what to aim for, and what is refused.
const TARGET_LINES: usize = 600;
const MOST_LINES: usize = 1000;

/// Files that may be longer, with the reason (uniform tables).
const LONG_FILES: &[(&str, &str)] = &[];

/// Where unsafe code may be: a crate's folder or one file.
const UNSAFE: &[&str] =
    &["crates/simd/", "crates/cpu/", "crates/cuda/", "crates/wgpu/", "crates/tensor/src/map.rs"];

/// How many lines above an unsafe block its reason may start.
const SAFETY_REACH: usize = 12;

/// Crates that must know every atom.
const ATOM_CRATES: &[&str] = &["crates/ir/", "crates/interp/", "crates/exec/"];

/// Rust files of the crates and of xtask; the fuzz targets are a workspace of their own.
fn sources(repository: &Repository) -> impl Iterator<Item = (&str, &str)> {
    let ours = |path: &str| path.starts_with("crates/") || path.starts_with("xtask/");
    repository.with_extension(".rs").filter(move |(path, _)| ours(path))
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.contains("/benches/")
}

pub(super) fn file_sizes(repository: &Repository, findings: &mut Vec<Finding>) {
    for extension in [".rs", ".py", ".cu", ".wgsl", ".metal"] {
        for (path, text) in repository.with_extension(extension) {
            let lines = lines_without_tests(text);
            let excused = LONG_FILES.iter().any(|(long, _)| *long == path);
            if lines > TARGET_LINES && !excused && !is_test(path) {
                let message =
                    format!("{lines} lines; aim for {TARGET_LINES}, at most {MOST_LINES}");
                let warning = lines <= MOST_LINES;
                findings.push(Finding { warning, ..Finding::new(path, lines, message) });
            }
        }
    }
}

pub(super) fn module_docs(repository: &Repository, findings: &mut Vec<Finding>) {
    for (path, text) in sources(repository).filter(|(path, _)| !is_test(path)) {
        if !text.starts_with("//!") {
            findings.push(Finding::new(path, 1, "open with `//!`: what the file is for"));
        }
    }
}

pub(super) fn unsafe_code(repository: &Repository, findings: &mut Vec<Finding>) {
    for (path, text) in sources(repository) {
        let may = UNSAFE.iter().any(|place| path.starts_with(place));
        let is_root = path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs");
        let folder = path.split("src/").next().unwrap_or(path);
        let crate_may = UNSAFE.iter().any(|place| place.starts_with(folder));
        if is_root && !crate_may && !text.contains("#![forbid(unsafe_code)]") {
            findings.push(Finding::new(path, 1, "the crate must say #![forbid(unsafe_code)]"));
        }
        let code = code_only(text);
        let lines: Vec<&str> = text.lines().collect();
        for at in words(&code, "unsafe") {
            let line = line_of(&code, at);
            let next = code[at + "unsafe".len()..].trim_start();
            if !may {
                findings.push(Finding::new(
                    path,
                    line,
                    "unsafe code outside the places that may have it",
                ));
            } else if next.starts_with('{') || next.starts_with("impl") {
                let above = &lines[line.saturating_sub(1 + SAFETY_REACH)..line];
                if !above.iter().any(|text| text.contains("SAFETY:")) {
                    findings.push(Finding::new(
                        path,
                        line,
                        "no `SAFETY:` line says why this is sound",
                    ));
                }
            }
        }
    }
}

/// A new atom must be a compile error wherever atoms are told apart.
pub(super) fn atoms_without_wildcard(repository: &Repository, findings: &mut Vec<Finding>) {
    let concerned = |path: &str| ATOM_CRATES.iter().any(|krate| path.starts_with(krate));
    for (path, text) in sources(repository).filter(|(path, _)| concerned(path) && !is_test(path)) {
        let code = code_only(text);
        let code = &code[..byte_of_line(&code, lines_without_tests(text))];
        for at in words(code, "match") {
            if let Some(wildcard) = wildcard_among_atoms(code, at) {
                let message = "a match on atoms has a wildcard arm; name every atom";
                findings.push(Finding::new(path, line_of(code, wildcard), message));
            }
        }
    }
}

fn byte_of_line(text: &str, line: usize) -> usize {
    text.split_inclusive('\n').take(line).map(str::len).sum()
}

/// Where the `match` at `at` has a bare `_` arm, if another of its patterns names a kind of atom.
fn wildcard_among_atoms(code: &str, at: usize) -> Option<usize> {
    let bytes = code.as_bytes();
    let open = at + opening_brace(&bytes[at..])?;
    let (mut depth, mut arm_start, mut in_pattern) = (0_usize, open + 1, true);
    let (mut wildcard, mut names_atoms) = (None, false);
    let mut position = open;
    while position < bytes.len() {
        match bytes[position] {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
                // A block ends its arm even without a comma.
                if depth == 1 && bytes[position] == b'}' && !in_pattern {
                    let rest = code[position + 1..].trim_start();
                    let goes_on = rest.starts_with(['.', '?', ',']) || rest.starts_with("else");
                    if !goes_on {
                        (arm_start, in_pattern) = (position + 1, true);
                    }
                }
            }
            b'=' if depth == 1 && in_pattern && bytes.get(position + 1) == Some(&b'>') => {
                let pattern = code[arm_start..position].trim();
                if pattern == "_" {
                    wildcard = Some(position);
                }
                names_atoms |= words(pattern, "Atom").any(|at| pattern[at..].starts_with("Atom::"));
                in_pattern = false;
            }
            b',' if depth == 1 && !in_pattern => (arm_start, in_pattern) = (position + 1, true),
            _ => {}
        }
        position += 1;
    }
    wildcard.filter(|_| names_atoms)
}

/// The `{` that opens the arms: the first one outside brackets.
fn opening_brace(bytes: &[u8]) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.checked_sub(1)?,
            b'{' if depth == 0 => return Some(at),
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

pub(super) fn markers(repository: &Repository, findings: &mut Vec<Finding>) {
    let markers =
        [concat!("FIX", "ME"), concat!("XX", "X"), concat!("TO", "DO"), concat!("HA", "CK")];
    for (path, text) in sources(repository) {
        for (index, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("#[ignore") {
                findings.push(Finding::new(
                    path,
                    index + 1,
                    "a test is skipped; mend or remove it",
                ));
            }
            if let Some(marker) = markers.iter().find(|marker| words(line, marker).next().is_some())
            {
                let message = format!("{marker}: do it, or write an issue");
                findings.push(Finding::new(path, index + 1, message));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    #[test]
    fn long_files_are_found_without_their_tests() {
        let long = "x\n".repeat(1001);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{long}}}\n");
        let files = [
            ("crates/a/src/l.rs", long.as_str()),
            ("crates/a/src/t.rs", &tests),
            ("crates/a/src/tests.rs", &long),
        ];
        assert_eq!(found(file_sizes, &files), ["crates/a/src/l.rs:1001"]);
    }

    #[test]
    fn unsafe_code_is_confined_and_explained() {
        let block = "//! x\nfn f() { unsafe { g() } }\n";
        let said = "//! x\n// SAFETY: g is sound here.\nlet a = unsafe { g() };\n";
        let hidden = "//! x\n#![forbid(unsafe_code)]\n// unsafe {}\nlet a = \"unsafe {\";\n";
        let files = [
            ("crates/ir/src/lib.rs", hidden),
            ("crates/ir/src/a.rs", block),
            ("crates/jets/src/lib.rs", "//! no lint\n"),
            ("crates/tensor/src/lib.rs", "//! x\n"),
            ("crates/tensor/src/map.rs", said),
            ("crates/cpu/src/a.rs", block),
            ("crates/cpu/src/b.rs", said),
            ("crates/cpu/src/c.rs", "//! x\nunsafe fn f() {}\n"),
        ];
        assert_eq!(
            found(unsafe_code, &files),
            ["crates/ir/src/a.rs:2", "crates/jets/src/lib.rs:1", "crates/cpu/src/a.rs:2"]
        );
    }

    #[test]
    fn a_wildcard_on_atoms_is_found() {
        let lines = |source: &str| found(atoms_without_wildcard, &[("crates/ir/src/a.rs", source)]);
        assert_eq!(
            lines("match op {\n Atom::Mul | Atom::Add => 1,\n _ => 2,\n}"),
            ["crates/ir/src/a.rs:3"]
        );
        assert_eq!(
            lines("match f(|x| { x }) {\n Atom::Mul => { 1 }\n _ => 2,\n}"),
            ["crates/ir/src/a.rs:3"]
        );
        assert_eq!(
            lines("match x {\n Op::Atom(Atom::Read(_)) => if a { b } else { c },\n _ => 2\n}")
                .len(),
            1
        );
        assert!(lines("match op {\n Atom::Mul => match n {\n  1 => 1,\n  _ => 2,\n },\n Atom::Add => 3,\n}").is_empty());
        assert!(lines("match n {\n 1 => Atom::Mul,\n _ => Atom::Add,\n}").is_empty());
        assert!(lines("match op { Atom::Reduce(kind, _) => kind, Atom::Mul => f(_x) }").is_empty());
        assert!(
            found(
                atoms_without_wildcard,
                &[("crates/cpu/src/a.rs", "match op { Atom::Mul => 1, _ => 2 }")]
            )
            .is_empty()
        );
    }

    #[test]
    fn undone_things_are_found() {
        let text = concat!("//! x\n// TO", "DO: y\n#[ignore]\nfn f() {}\n// XX", "XY is fine\n");
        assert_eq!(found(markers, &[("crates/a/src/a.rs", text)]).len(), 2);
        assert_eq!(
            found(module_docs, &[("crates/a/src/a.rs", "use x;\n"), ("crates/a/tests/t.rs", "")])
                .len(),
            1
        );
    }
}
