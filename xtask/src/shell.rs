//! Running other programs, and where the workspace is.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;

/// The workspace's root folder.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The folder of build products.
pub(crate) fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// `cargo` as it was called, in the workspace's root.
pub(crate) fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// Runs a command to its end. `what` names it in the failure.
pub(crate) fn run(what: &str, mut command: Command) -> Result<(), Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} failed ({status})")),
        Err(error) => Err(format!("{what}: cannot start {program}: {error}")),
    }
}

/// What a program prints, when it ends well.
pub(crate) fn printed(name: &str, command: &mut Command) -> Result<String, Failure> {
    let output = command.output().map_err(|error| format!("cannot start {name}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let problem = String::from_utf8_lossy(&output.stderr);
            Err(format!("{name} failed ({}): {}", output.status, problem.trim()))
        }
    }
}

/// The Python of an environment in the target folder that has these packages (arguments of pip).
pub(crate) fn environment<S: AsRef<OsStr>>(name: &str, packages: &[S]) -> Result<PathBuf, Failure> {
    let environment = target_dir().join(name);
    let bin = environment.join(if cfg!(windows) { "Scripts" } else { "bin" });
    let python = bin.join(if cfg!(windows) { "python.exe" } else { "python" });
    if !python.exists() {
        let mut make = Command::new("python3");
        make.args(["-m", "venv"]).arg(&environment);
        run("python3 -m venv", make)?;
    }
    eprintln!("packages of {name}");
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages);
    // What is compiled here is measured here.
    install.env("CMAKE_ARGS", "-DGGML_NATIVE=ON");
    run("pip install", install)?;
    Ok(python)
}
