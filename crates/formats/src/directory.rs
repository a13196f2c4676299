//! A directory as a model: what files it holds decides.

use std::path::{Path, PathBuf};

use crate::error::FormatError;
use crate::model_file::{Format, ModelFile};
use crate::{gguf, huggingface, safetensors};

/// Opens the one model in a directory: the one its safetensors index describes, or its only
/// safetensors file, or its only GGUF file (in parts or whole).
pub(crate) fn open(dir: &Path) -> Result<ModelFile, FormatError> {
    let weights = huggingface::weights_dir(dir)?;
    let mut model = open_weights(&weights)?;
    if model.format == Format::Safetensors {
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
    if let Some(index) = safetensors::find_index(dir) {
        let mut model = safetensors::load_index(&index)?;
        note_strays(&mut model, &weights);
        return Ok(model);
    }
    match (weights.as_slice(), ggufs.as_slice()) {
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
        ([], []) => Err(FormatError::Directory {
            path: dir.to_owned(),
            found: "no model file that is known".to_owned(),
            want: "a GGUF or safetensors file, or a directory with one",
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
