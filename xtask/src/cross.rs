//! `cross`: the same results on processors that this machine does not have, under emulation.
//!
//! Needs Debian's `qemu-user`, and for NEON also `gcc-aarch64-linux-gnu rustc-web cargo-web
//! rust-web-src`: a compiler that comes with the source of its library, so that the library can be
//! built for a processor that the installed toolchain has none for.

use std::env;
use std::path::Path;
use std::process::Command;

use crate::Failure;
use crate::shell::{cargo, printed, root, run, target_dir};
use crate::steps::step;

const ARM: &str = "aarch64-unknown-linux-gnu";

/// Where Debian installs its own compiler.
const DEBIAN_BIN: &str = "/usr/bin";

type Check = fn() -> Result<(), Failure>;

/// The checks, by name.
const CHECKS: [(&str, Check); 2] = [("without-avx", without_avx), ("neon", neon)];

/// Runs the checks of these names, or all.
pub(crate) fn cross(names: &[&str]) -> Result<(), Failure> {
    if let Some(unknown) = names.iter().find(|name| CHECKS.iter().all(|(known, _)| known != *name))
    {
        let known = CHECKS.map(|(name, _)| name).join(", ");
        return Err(format!("no check {unknown:?}; there are {known}"));
    }
    for (name, check) in CHECKS {
        if names.is_empty() || names.contains(&name) {
            step(name, check)?;
        }
    }
    Ok(())
}

/// The binary as it is built for this machine starts on one without AVX, takes the portable
/// kernels there, and says the same.
fn without_avx() -> Result<(), Failure> {
    if !cfg!(target_arch = "x86_64") {
        return Err("this check is for x86-64; run `cargo xtask cross neon`".to_owned());
    }
    run("the build", cargo(["build", "--package", "soma-runtime"]))?;
    let binary = target_dir().join("debug/soma-runtime");
    let emulated = |words: &[&str]| {
        let mut qemu = Command::new("qemu-x86_64");
        qemu.args(["-cpu", "Nehalem"]).arg(&binary).args(words);
        printed("qemu-x86_64", &mut qemu)
            .map_err(|error| format!("{error}; qemu-x86_64 is in Debian's qemu-user"))
    };
    let native = |words: &[&str]| {
        let mut command = Command::new(&binary);
        command.args(words);
        printed("soma-runtime", &mut command)
    };
    let here = emulated(&["backends"])?;
    if !here.contains("portable") {
        return Err(format!("on a processor without AVX the kernels are not portable: {here}"));
    }
    for family in ["llama3", "gemma3"] {
        let model = root().join(format!("golden/families/{family}.gguf"));
        let model = model.to_string_lossy();
        let words = ["run", "--model", &model, "--raw", "--prompt", "abc", "--temperature", "0"];
        let words = [&words[..], &["--max-tokens", "24"]].concat();
        let (there, here) = (emulated(&words)?, native(&words)?);
        if there != here || here.trim().is_empty() {
            return Err(format!("{family}: {there:?} without AVX, {here:?} here"));
        }
    }
    Ok(())
}

/// The instruction set of `simd` and the conformance suite of `cpu` with NEON and its dot product.
fn neon() -> Result<(), Failure> {
    for tool in ["rustc", "cargo"] {
        if !Path::new(DEBIAN_BIN).join(tool).exists() {
            return Err(format!("no {DEBIAN_BIN}/{tool}; install Debian's {tool}-web"));
        }
    }
    let mut test = Command::new(Path::new(DEBIAN_BIN).join("cargo"));
    test.args(["test", "-Zbuild-std", "--target", ARM, "--ignore-rust-version"]);
    test.args(["--package", "cyb-simd", "--package", "cyb-cpu", "--lib"]);
    let path = env::var_os("PATH").unwrap_or_default();
    let paths = [DEBIAN_BIN.into()].into_iter().chain(env::split_paths(&path));
    let path = env::join_paths(paths).map_err(|error| format!("PATH: {error}"))?;
    test.current_dir(root())
        .env("PATH", path)
        .env("RUSTC", Path::new(DEBIAN_BIN).join("rustc"))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", target_dir().join("cross"))
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            "qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu",
        );
    for inherited in ["RUSTUP_TOOLCHAIN", "RUSTC_WORKSPACE_WRAPPER", "CARGO", "RUSTDOC"] {
        test.env_remove(inherited);
    }
    run("the tests on AArch64", test)
}
