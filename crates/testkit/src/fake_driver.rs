//! A driver library without a GPU, for what a program does when the GPU fails.

use std::path::Path;
use std::process::Command;

/// Compiles the fake driver of `crates/cuda/fake_driver` into `folder` as `libcuda.so`. A program that
/// is started with `folder` in `LD_LIBRARY_PATH` finds it.
///
/// # Panics
/// When it does not compile.
pub fn fake_driver(folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda/fake_driver/libcuda.rs");
    // The compiler beside the cargo that runs the tests.
    let cargo = std::env::var_os("CARGO").unwrap_or_default();
    let beside = Path::new(&cargo).with_file_name("rustc");
    let compiler = if beside.exists() { beside } else { "rustc".into() };
    let ran = Command::new(&compiler)
        .args(["--edition=2024", "--crate-type=cdylib", "-Copt-level=1", "-o"])
        .arg(folder.join("libcuda.so"))
        .arg(&source)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", compiler.display()));
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
