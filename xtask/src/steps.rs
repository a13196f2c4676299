//! The commands that are a list of steps: `demo`, `test`, `golden`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use cyb_zoo::{ALL_MODELS_VAR, DEMO, Set};

use crate::shell::{cargo, environment, root, run};
use crate::tidy::tidy;
use crate::{Failure, models};

/// How long each fuzz test runs; a plain `cargo test` gives them two seconds.
const FUZZ_SECONDS_VAR: &str = "SOMA_FUZZ_SECONDS";

const DEMO_QUESTION: &str = "What is the capital of France, and what is it known for?";

/// Builds the release binary, fetches the demo model and streams an answer.
pub(crate) fn demo(words: &[&str]) -> Result<(), Failure> {
    models::fetch_named(&[DEMO])?;
    run("the build", cargo(["build", "--release", "--package", "soma-runtime"]))?;
    let question = if words.is_empty() { DEMO_QUESTION.to_owned() } else { words.join(" ") };
    eprintln!("> {question}");
    let arguments = ["run", "--quiet", "--release", "--package", "soma-runtime", "--", "run"];
    let mut answer = cargo(arguments);
    answer.args(["--model", DEMO, "--temperature", "0", "--prompt", &question]);
    run("soma-runtime run", answer)
}

/// Everything that must hold before a change lands. `all` adds the large models.
pub(crate) fn test(all: bool) -> Result<(), Failure> {
    step("format", || run("cargo fmt --check", cargo(["fmt", "--all", "--check"])))?;
    step("tidy", tidy)?;
    step("models", || match all {
        true => models::fetch_where(|model| model.set != Set::Extra),
        false => models::fetch_where(|model| model.set == Set::Test),
    })?;
    step("lints", || {
        let arguments = ["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"];
        run("cargo clippy", cargo(arguments))
    })?;
    step("tests", || {
        let mut command = cargo(["test", "--workspace", "--no-fail-fast"]);
        // What the large models add comes below, optimized.
        command.env(ALL_MODELS_VAR, "0");
        if std::env::var_os(FUZZ_SECONDS_VAR).is_none() {
            command.env(FUZZ_SECONDS_VAR, "60");
        }
        run("cargo test", command)
    })?;
    if all {
        // Whole texts through large models: hours without optimization.
        step("real models", || {
            let words = ["test", "--release", "--package", "cyb-llm", "--test", "real_models"];
            let mut command = cargo(words);
            command.env(ALL_MODELS_VAR, "1");
            run("cargo test --release", command)
        })?;
    }
    Ok(())
}

/// Runs the generators of `golden/` (all of them, or those named) in an environment with the
/// pinned packages.
pub(crate) fn golden(names: &[&str]) -> Result<(), Failure> {
    let golden = root().join("golden");
    let scripts = match names {
        [] => scripts_in(&golden)?,
        names => names.iter().map(|name| golden.join(name).with_extension("py")).collect(),
    };
    if let Some(missing) = scripts.iter().find(|script| !script.is_file()) {
        return Err(format!(
            "no generator {}; the names are those of golden/*.py",
            missing.display()
        ));
    }
    let python = environment("golden-venv", &requirements(&golden))?;
    for script in scripts {
        let name = script.file_name().unwrap_or_default().to_string_lossy().into_owned();
        step(&name, || {
            let mut generate = Command::new(&python);
            generate.arg(&script).current_dir(&golden);
            run(&name, generate)
        })?;
    }
    Ok(())
}

/// Compiles the CUDA kernels to PTX, with the compiler that is a Python package.
pub(crate) fn kernels() -> Result<(), Failure> {
    let folder = root().join("crates/cuda/kernels");
    let python = environment("kernels-venv", &requirements(&folder))?;
    step("kernels", || {
        let mut compile = Command::new(&python);
        compile.arg(folder.join("compile.py"));
        run("compile.py", compile)
    })
}

/// Arguments of pip for the packages that a folder pins.
fn requirements(folder: &Path) -> [OsString; 2] {
    ["--requirement".into(), folder.join("requirements.txt").into()]
}

fn scripts_in(golden: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(golden).map_err(|error| format!("{}: {error}", golden.display()))?;
    let mut scripts: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "py"))
        .collect();
    scripts.sort();
    Ok(scripts)
}

/// Announces a step, runs it, says how long it took.
pub(crate) fn step(name: &str, work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    eprintln!("== {name}");
    let start = Instant::now();
    work()?;
    eprintln!("== {name}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}
