//! `models`: fetching with progress on stderr, and the list.

use std::io::{IsTerminal, Write, stderr};

use cyb_zoo::{MODELS, Model, Progress, Set, fetch, find, is_complete, models_dir};

use crate::Failure;

/// Fetches the models that `wanted` picks.
pub(crate) fn fetch_where(wanted: fn(&Model) -> bool) -> Result<(), Failure> {
    MODELS.iter().filter(|model| wanted(model)).try_for_each(fetch_one)
}

/// Fetches the models of these names.
pub(crate) fn fetch_named(names: &[&str]) -> Result<(), Failure> {
    let unknown = |name| format!("no model {name:?}; `cargo xtask models --list` shows the names");
    let models: Vec<_> = names
        .iter()
        .map(|name| find(name).ok_or_else(|| unknown(*name)))
        .collect::<Result<_, _>>()?;
    models.into_iter().try_for_each(fetch_one)
}

/// Prints every model with its size, when it is fetched, and whether it is here.
pub(crate) fn list() -> Result<(), Failure> {
    let dir = models_dir().ok_or_else(|| cyb_zoo::FetchError::NoModelsDir.to_string())?;
    println!("models folder: {}", dir.display());
    for model in MODELS {
        let set = match model.set {
            Set::Test => "test",
            Set::Large => "test --all",
            Set::Extra => "models --all",
        };
        let state = match is_complete(model, &dir) {
            Ok(true) => "here",
            Ok(false) => "not here",
            Err(_) => "another file of this name is here",
        };
        println!("{:42} {:>8}  {set:12}  {state}", model.name, megabytes(model.size()));
    }
    Ok(())
}

fn fetch_one(model: &Model) -> Result<(), Failure> {
    let dir = models_dir().ok_or_else(|| cyb_zoo::FetchError::NoModelsDir.to_string())?;
    let mut display = Display { live: stderr().is_terminal(), drawn: false, last: None };
    let result = fetch(model, &dir, &mut |progress| display.show(&progress));
    display.end_line();
    let path = result.map_err(|error| error.to_string())?;
    eprintln!("{} ({})", path.display(), megabytes(model.size()));
    Ok(())
}

/// On a terminal one line that is redrawn; elsewhere a line for each part.
struct Display {
    live: bool,
    drawn: bool,
    last: Option<(&'static str, u32)>,
}

impl Display {
    fn show(&mut self, progress: &Progress) {
        let part = (progress.file, progress.parts_done);
        let whole = progress.parts_done == progress.parts;
        if whole || (!self.live && self.last == Some(part)) {
            return;
        }
        self.last = Some(part);
        let line = format!(
            "{}: part {} of {}, {} of {}",
            progress.file,
            progress.parts_done + 1,
            progress.parts,
            megabytes(progress.bytes_done + progress.bytes_arriving),
            megabytes(progress.bytes),
        );
        if self.live {
            // A progress line that cannot be written is not worth stopping for.
            let _ = write!(stderr(), "\r\x1b[K{line}");
            self.drawn = true;
        } else {
            eprintln!("{line}");
        }
    }

    fn end_line(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
