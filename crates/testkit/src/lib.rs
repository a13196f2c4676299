//! What the tests of several crates share. For tests only: its functions panic, with a message that
//! says what to do, where a test cannot go on.
#![forbid(unsafe_code)]

mod fake_driver;
mod golden_jets;

use std::path::{Path, PathBuf};

pub use fake_driver::fake_driver;
pub use golden_jets::{GoldenCase, golden_jets};

pub use cyb_zoo::{DEMO, tested};

/// The path of a real model, fetched now if it is not in the models folder.
///
/// # Panics
/// When it cannot be had: a test that needs a model fails without it, it is not skipped.
pub fn model(name: &str) -> PathBuf {
    cyb_zoo::path(name).unwrap_or_else(|error| panic!("{error}"))
}

/// A file of the `golden` folder, by its path in there.
///
/// # Panics
/// When it is not there.
pub fn golden(path: &str) -> PathBuf {
    let full = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden").join(path);
    assert!(full.exists(), "no golden/{path}; `cargo xtask golden` makes the golden files");
    full
}
