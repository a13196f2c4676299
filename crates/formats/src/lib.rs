//! Model files of every format as one [`ModelFile`]: metadata and named tensors that are mapped,
//! not read.
//!
//! Files come from strangers. A format is told from content, never from a name; every count, size
//! and offset is checked against the file before it is used; a file that is not what it should be
//! is an error of one line that names the file, the value at fault and the remedy.

#![forbid(unsafe_code)]

mod atomic;
mod directory;
mod error;
pub mod fuzz;
pub mod gguf;
mod huggingface;
mod json;
mod metadata;
mod model_file;
mod npy;
pub mod npz;
pub mod onnx;
mod pickle;
mod safetensors;
mod sniff;
mod soma;
mod text;
mod torch;
mod vocab_toml;

use std::path::Path;

use cyb_tensor::MappedFile;

pub use error::FormatError;
pub use metadata::{Array, FromValue, Metadata, MetadataError, Mismatch, StringArray, Value};
pub use model_file::{Format, ModelFile};
pub use npy::NpyError;
pub use pickle::PickleError;
pub use safetensors::SafetensorsError;
pub use sniff::{Sniffed, sniff};
pub use soma::write_directory;
pub use text::edit_distance;
pub use torch::TorchError;

/// Opens a model: a file of any format, one part of a split model, or a directory with one model.
pub fn open(path: &Path) -> Result<ModelFile, FormatError> {
    if path.is_dir() {
        return match soma::is_here(path) {
            true => soma::open(path),
            false => directory::open(path),
        };
    }
    let mut model = open_file(path)?;
    if let (Format::Safetensors | Format::Torch, Some(dir)) = (model.format, path.parent()) {
        huggingface::attach(&mut model, dir, dir)?;
    }
    Ok(model)
}

/// Opens a file for what is in it alone.
fn open_file(path: &Path) -> Result<ModelFile, FormatError> {
    let file = MappedFile::open(path)?;
    match sniff(file.bytes()) {
        Sniffed::Gguf => gguf::load(file),
        Sniffed::Safetensors => safetensors::load(file),
        Sniffed::Torch => torch::load(file),
        Sniffed::Foreign { what, remedy } => {
            Err(FormatError::Foreign { path: path.to_owned(), what, remedy })
        }
    }
}

/// Whether a file is an ONNX model, which has operators instead of an architecture and is opened
/// by [`onnx::Model::open`].
///
/// # Errors
/// The file cannot be read.
pub fn is_onnx_file(path: &Path) -> Result<bool, FormatError> {
    let file = MappedFile::open(path)?;
    let named = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("onnx"));
    let known = sniff(file.bytes());
    // A file with neither the usual first fields nor another format's is taken by its name.
    Ok(sniff::is_onnx(file.bytes()) || (named && matches!(known, Sniffed::Foreign { .. })))
}
