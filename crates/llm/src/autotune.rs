//! Measured times of a model's operations, kept for the machine: level 2 of scheduling.
//!
//! A table is a file in the user's cache folder, named by the devices and the program, so that a new
//! driver, another GPU or another build begins a new one. It is read when `auto` chooses among
//! several backends; whoever names a backend gets that one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cyb_exec::{Backend, Dispatch, Placed, PrepareOptions, Share, Sizes, Timing};
use cyb_models::{GraphOptions, Template, inputs};
use serde::Deserialize;

use crate::load::step_limits;
use crate::stepper::StepLimits;
use crate::{BackendKind, Config, Error, Package};

/// What a measurement gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Autotuned {
    /// The table's file.
    pub path: PathBuf,
    /// The times, with those of models that were measured earlier.
    pub table: Dispatch,
    /// Operations of this model, in the order of the table.
    pub operations: Vec<String>,
    /// Where its layers go by the table when nobody names a backend.
    pub plan: Vec<Share>,
}

/// The file's form: milliseconds for one token and for many.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    crossing_ms: f64,
    crossing_ms_per_mb: f64,
    operations: BTreeMap<String, BTreeMap<String, [f64; 2]>>,
}

/// Where the table of these backends is; `None` without a cache folder.
fn path(backends: &[Arc<dyn Backend>]) -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")))?;
    let mut key = blake3::Hasher::new();
    key.update(env!("CARGO_PKG_VERSION").as_bytes());
    // The build: other kernels take other times.
    let program = std::env::current_exe().and_then(std::fs::metadata).ok();
    let made = program.as_ref().and_then(|meta| meta.modified().ok());
    key.update(format!("{:?} {made:?}", program.map(|meta| meta.len())).as_bytes());
    for backend in backends {
        key.update(backend.name().as_bytes());
        key.update(backend.device().as_bytes());
    }
    let name: String = key.finalize().to_hex().chars().take(16).collect();
    Some(cache.join("soma/dispatch").join(format!("{name}.toml")))
}

fn read(path: &Path) -> Result<Option<Dispatch>, Error> {
    let bad = |problem: String| Error::Table { path: path.to_owned(), problem };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(bad(error.to_string())),
    };
    let File { crossing_ms, crossing_ms_per_mb, operations } =
        toml::from_str(&text).map_err(|error| bad(error.message().to_owned()))?;
    let mut numbers = operations.values().flat_map(BTreeMap::values).flatten();
    let sound = |ms: f64| ms.is_finite() && ms >= 0.0;
    if !numbers.all(|&ms| sound(ms)) || !sound(crossing_ms) || !sound(crossing_ms_per_mb) {
        return Err(bad("a time is no number of milliseconds".to_owned()));
    }
    let times = |by: BTreeMap<String, [f64; 2]>| {
        by.into_iter().map(|(name, [one, many])| (name, Timing { one, many })).collect()
    };
    let operations = operations.into_iter().map(|(key, by)| (key, times(by))).collect();
    Ok(Some(Dispatch { operations, crossing_ms, crossing_ms_per_mb }))
}

fn text(table: &Dispatch) -> String {
    let mut text = format!(
        "# Times of operations in milliseconds, for one token and for many; made by\n\
         # `soma-runtime autotune`.\n\
         crossing_ms = {:?}\ncrossing_ms_per_mb = {:?}\n\n[operations]\n",
        table.crossing_ms, table.crossing_ms_per_mb
    );
    for (key, by) in &table.operations {
        let times: Vec<String> =
            by.iter().map(|(name, t)| format!("{name} = [{:?}, {:?}]", t.one, t.many)).collect();
        // Writing to a string does not fail.
        let _ = writeln!(text, "{key:?} = {{ {} }}", times.join(", "));
    }
    text
}

/// Writes a table whole or not at all.
fn write(path: &Path, table: &Dispatch) -> Result<(), Error> {
    let write = || {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let part = path.with_extension(format!("part-{}", std::process::id()));
        std::fs::write(&part, text(table))?;
        std::fs::rename(&part, path)
    };
    write().map_err(|error| Error::Table { path: path.to_owned(), problem: error.to_string() })
}

/// The limits with one token.
fn one(limits: StepLimits) -> StepLimits {
    StepLimits { tokens: 1, ..limits }
}

/// Places a decoder's layers by the machine's table, where there is one and nobody named a backend.
///
/// # Errors
/// The table cannot be read.
pub(crate) fn by_table<'a>(
    placed: Placed<'a>,
    backends: &[Arc<dyn Backend>],
    config: &Config,
    limits: StepLimits,
) -> Result<Placed<'a>, Error> {
    let chosen = config.backend != BackendKind::Auto || config.gpu_layers.is_some();
    if chosen || backends.len() < 2 {
        return Ok(placed);
    }
    let Some(table) = path(backends).map(|path| read(&path)).transpose()?.flatten() else {
        return Ok(placed);
    };
    let (few, many) = (one(limits).bound(placed.symbols()), limits.bound(placed.symbols()));
    Ok(placed.by_times(&table, Sizes { one: &few, many: &many })?)
}

/// Times a decoder's operations on every backend and adds them to the machine's table.
pub(crate) fn measure(
    package: &Package,
    backends: &[Arc<dyn Backend>],
    config: &Config,
    tell: &mut dyn FnMut(usize, usize),
) -> Result<Autotuned, Error> {
    let path = path(backends).ok_or_else(|| Error::Value {
        what: "autotune",
        why: "there is no cache folder; set XDG_CACHE_HOME or HOME".to_owned(),
    })?;
    let options = GraphOptions {
        kv_dtype: config.kv_type,
        context: config.context,
        ..GraphOptions::default()
    };
    let built = cyb_models::build(&package.file, &options)?;
    if built.encoder.is_some() || built.family.template == Template::Towers {
        let family = built.family.name;
        return Err(Error::NotADecoder { model: package.name().to_owned(), family });
    }
    let limits = step_limits(config, built.summary.context_length);
    let placed = Placed::new(built.graph, backends, PrepareOptions::default())?;
    let (few, many) = (one(limits).bound(placed.symbols()), limits.bound(placed.symbols()));
    let sizes = Sizes { one: &few, many: &many };
    let fill = |name: &str, bytes: &mut [u8]| fill(name, bytes, limits);
    let new = Dispatch::measure(placed.graph(), backends, sizes, &fill, tell)?;
    let operations: Vec<String> = new.operations.keys().cloned().collect();
    // A table that cannot be read is made anew.
    let mut table = read(&path).ok().flatten().unwrap_or_default();
    table.operations.extend(new.operations);
    (table.crossing_ms, table.crossing_ms_per_mb) = (new.crossing_ms, new.crossing_ms_per_mb);
    write(&path, &table)?;
    let placed = placed.by_times(&table, sizes)?;
    let plan = placed.shares(&many)?;
    Ok(Autotuned { path, table, operations, plan })
}

/// Inputs of a step in the middle of a context: attention sees half of it.
fn fill(name: &str, bytes: &mut [u8], limits: StepLimits) {
    let half = limits.slots / 2;
    let first = if half + bytes.len() / 4 <= limits.slots { half } else { 0 };
    let value = |i: usize| -> [u8; 4] {
        match name {
            inputs::POSITIONS | inputs::SLOTS => ((first + i) as u32).to_ne_bytes(),
            inputs::TABLES => ((i % limits.blocks.max(1)) as u32).to_ne_bytes(),
            inputs::TOKENS | inputs::ROWS | inputs::LOGIT_ROWS => [0; 4],
            // Modest numbers of both signs, no two alike beside each other.
            _ => ((i * 7919 % 2003) as f32 / 1001.0 - 1.0).to_ne_bytes(),
        }
    };
    for (i, to) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *to = value(i);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/table.toml");
        assert_eq!(read(&path).unwrap(), None);
        let time = |one, many| Timing { one, many };
        let by = |list: &[(&str, Timing)]| {
            list.iter().map(|&(name, time)| (name.to_owned(), time)).collect()
        };
        let table = Dispatch {
            operations: BTreeMap::from([
                (
                    "linear(f32[T, 8], q4_0[3, 8])".to_owned(),
                    by(&[("cuda", time(0.1, 2.0)), ("cpu", time(1e-7, 3e9))]),
                ),
                ("odd \"name\"\\".to_owned(), by(&[])),
            ]),
            crossing_ms: 0.03,
            crossing_ms_per_mb: 1.0 / 3.0,
        };
        write(&path, &table).unwrap();
        assert_eq!(read(&path).unwrap(), Some(table));
        for broken in
            ["", "crossing_ms = 1", "crossing_ms = -1.0\ncrossing_ms_per_mb = 0.0\n[operations]"]
        {
            std::fs::write(&path, broken).unwrap();
            let message = read(&path).unwrap_err().to_string();
            assert!(message.contains("table.toml") && !message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn steps_are_filled_within_their_limits() {
        let limits = StepLimits { tokens: 6, sequences: 1, blocks: 2, logits: 1, slots: 8 };
        for tokens in [1, 6] {
            let mut bytes = vec![0xff; tokens * 4];
            for name in [inputs::POSITIONS, inputs::SLOTS, inputs::TABLES, inputs::TOKENS] {
                fill(name, &mut bytes, limits);
                let top = if name == inputs::TABLES { 2 } else { 8 };
                let numbers = bytes.as_chunks::<4>().0.iter().map(|&b| u32::from_ne_bytes(b));
                assert!(
                    numbers.clone().all(|n| n < top),
                    "{name} {:?}",
                    numbers.collect::<Vec<_>>()
                );
            }
            fill("other", &mut bytes, limits);
            let numbers = bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_ne_bytes(b));
            assert!(numbers.clone().all(|x| x.abs() <= 1.1));
        }
    }
}
