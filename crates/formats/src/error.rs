//! Why a model file cannot be opened, read or written. Every message is one line that names the
//! file, what is wrong with it, and what to do.

use std::path::PathBuf;

use cyb_tensor::MapError;

use crate::gguf::{GgufError, SplitError};
use crate::metadata::MetadataError;
use crate::npz::NpzError;
use crate::onnx::OnnxError;
use crate::safetensors::SafetensorsError;
use crate::text::Excerpt;
use crate::torch::TorchError;

#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error("{} is {what}; {remedy}", path.display())]
    Foreign { path: PathBuf, what: &'static str, remedy: &'static str },
    #[error("{} is a directory with {found}; give {want}", path.display())]
    Directory { path: PathBuf, found: String, want: &'static str },
    #[error("cannot list {}: {problem}", path.display())]
    List { path: PathBuf, problem: std::io::Error },
    #[error("{}: {problem}", path.display())]
    Gguf { path: PathBuf, problem: GgufError },
    #[error("{}: {problem}", path.display())]
    Split { path: PathBuf, problem: SplitError },
    #[error("{}: {problem}", path.display())]
    Safetensors { path: PathBuf, problem: SafetensorsError },
    #[error("{}: {problem}; correct it", path.display())]
    Toml { path: PathBuf, problem: String },
    #[error("{}: {problem}", path.display())]
    Torch { path: PathBuf, problem: TorchError },
    #[error("{}: {problem}; it is damaged, fetch it again", path.display())]
    Json { path: PathBuf, problem: String },
    #[error("{}: {problem}", path.display())]
    Npz { path: PathBuf, problem: NpzError },
    #[error("{}: {problem}", path.display())]
    Onnx { path: PathBuf, problem: OnnxError },
    #[error("{}: there is no tensor {}{hint}", path.display(), Excerpt(name))]
    NoTensor { path: PathBuf, name: String, hint: String },
    #[error("cannot write {}: {problem}", path.display())]
    Write { path: PathBuf, problem: std::io::Error },
}
