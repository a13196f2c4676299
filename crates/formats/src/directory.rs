//! A directory as a model: what files it holds decides.
//!
//! The same weights may be there as safetensors and as PyTorch checkpoints; the former are read then,
//! which no pickle comes into, and the others are noted.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cyb_tensor::MappedFile;
use indexmap::IndexMap;

use crate::error::FormatError;
use crate::model_file::{Format, ModelFile};
use crate::{gguf, huggingface, safetensors, torch};

/// Opens the one model in a directory: the one its safetensors index describes, or its only
/// safetensors file, or its only GGUF file (in parts or whole), or the same of PyTorch checkpoints.
pub(crate) fn open(dir: &Path) -> Result<ModelFile, FormatError> {
    let weights = huggingface::weights_dir(dir)?;
    let mut model = open_weights(&weights)?;
    if matches!(model.format, Format::Safetensors | Format::Torch) {
        huggingface::attach(&mut model, dir, &weights)?;
    }
    Ok(model)
}

fn open_weights(dir: &Path) -> Result<ModelFile, FormatError> {
    let names = list(dir)?;
    let with = |ext: &str| -> Vec<&PathBuf> {
        names.iter().filter(|p| p.extension().is_some_and(|e| e == ext)).collect()
    };
    let (weights, ggufs) = (with("safetensors"), with("gguf"));
    let checkpoints = checkpoints(&names);
    if let Some(index) = safetensors::find_index(dir) {
        let mut model = safetensors::load_index(&index)?;
        note_strays(&mut model, &weights);
        note_checkpoints(&mut model, &checkpoints);
        return Ok(model);
    }
    if weights.is_empty() && ggufs.is_empty() {
        return open_checkpoints(dir, &checkpoints);
    }
    let mut model = open_files(dir, &weights, &ggufs)?;
    note_checkpoints(&mut model, &checkpoints);
    Ok(model)
}

/// Files of PyTorch that hold weights, not the state of a trainer.
fn checkpoints(names: &[PathBuf]) -> Vec<&PathBuf> {
    const TRAINER: [&str; 5] = ["training_args", "optimizer", "scheduler", "rng_state", "scaler"];
    let named = |path: &Path| {
        path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned()
    };
    names
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == "bin" || e == "pth" || e == "pt"))
        .filter(|path| TRAINER.iter().all(|name| !named(path).starts_with(name)))
        .filter(|path| {
            let mut head = Vec::new();
            let read =
                std::fs::File::open(path).and_then(|file| file.take(4096).read_to_end(&mut head));
            read.is_ok() && crate::sniff(&head) == crate::Sniffed::Torch
        })
        .collect()
}

fn open_checkpoints(dir: &Path, files: &[&PathBuf]) -> Result<ModelFile, FormatError> {
    let index = dir.join("pytorch_model.bin.index.json");
    if index.is_file() {
        let read = |file: &Arc<MappedFile>| Ok((IndexMap::new(), torch::read(file)?));
        return safetensors::load_indexed(&index, Format::Torch, &read);
    }
    match files {
        [file] => crate::open_file(file),
        [] => Err(FormatError::Directory {
            path: dir.to_owned(),
            found: "no model file that is known".to_owned(),
            want: "a GGUF or safetensors file or a PyTorch checkpoint, or a directory with one",
        }),
        several => Err(FormatError::Directory {
            path: dir.to_owned(),
            found: format!("{} PyTorch checkpoints and no index", several.len()),
            want: "one of them",
        }),
    }
}

fn note_checkpoints(model: &mut ModelFile, files: &[&PathBuf]) {
    let note = |path: &&PathBuf| format!("{} is not read: there are other weights", path.display());
    model.notes.extend(files.iter().map(note));
}

fn open_files(
    dir: &Path,
    weights: &[&PathBuf],
    ggufs: &[&PathBuf],
) -> Result<ModelFile, FormatError> {
    match (weights, ggufs) {
        ([file], []) | ([], [file]) => crate::open_file(file),
        ([_], several @ [_, ..]) => Err(FormatError::Directory {
            path: dir.to_owned(),
            found: format!("a safetensors file and {} GGUF files", several.len()),
            want: "one of them",
        }),
        // The parts of a split model are one model.
        ([], [first, rest @ ..]) if rest.iter().all(|p| gguf::same_split(first, p)) => {
            crate::open_file(first)
        }
        ([], several @ [_, ..]) => Err(FormatError::Directory {
            path: dir.to_owned(),
            found: format!("{} GGUF files", several.len()),
            want: "one of them",
        }),
        (several, _) => Err(FormatError::Directory {
            path: dir.to_owned(),
            found: format!("{} safetensors files and no index", several.len()),
            want: "one of them, or fetch model.safetensors.index.json into it",
        }),
    }
}

fn note_strays(model: &mut ModelFile, weights: &[&PathBuf]) {
    let strays: Vec<String> = {
        let used: Vec<&Path> = model.paths().collect();
        let unused = weights.iter().filter(|w| !used.contains(&w.as_path()));
        unused.map(|w| format!("{} is not in the index and ignored", w.display())).collect()
    };
    model.notes.extend(strays);
}

/// The files of a directory, sorted.
fn list(dir: &Path) -> Result<Vec<PathBuf>, FormatError> {
    let fail = |problem| FormatError::List { path: dir.to_owned(), problem };
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.is_file() {
            out.push(path);
        }
    }
    out.sort();
    Ok(out)
}
