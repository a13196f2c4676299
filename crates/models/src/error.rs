//! Why a model file does not become a graph. Every message names the file, what is at fault in it,
//! and what would be right.

use std::path::PathBuf;

use cyb_formats::{FormatError, MetadataError};
use cyb_ir::IrError;

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error(
        "{}: architecture {name:?} is not supported; the nearest supported one is '{nearest}' \
         (all: {supported})",
        file.display()
    )]
    UnknownArchitecture { file: PathBuf, name: String, nearest: &'static str, supported: String },
    #[error("{}: metadata 'general.type' is {what}, so this is no model; give the model itself", file.display())]
    NotAModel { file: PathBuf, what: String },
    #[error(
        "{}: metadata '{key}' = {value} may change what the model computes, and the {family} family \
         does not know it; a newer version of the program may",
        file.display()
    )]
    UnknownKey { file: PathBuf, key: String, value: String, family: &'static str },
    #[error("{}: there is no config.json beside the weights; give the model's directory", file.display())]
    NoConfig { file: PathBuf },
    #[error(
        "{}: the {family} family is read from Hugging Face directories only; give one with \
         config.json, tokenizer.json and safetensors weights",
        file.display()
    )]
    NeedsDirectory { file: PathBuf, family: &'static str },
    #[error("{}: metadata '{key}' is {got}, but {want}", file.display())]
    Value { file: PathBuf, key: String, got: String, want: String },
    #[error("{}: tensor '{tensor}' has shape {got:?}, but the metadata asks for {want:?}", file.display())]
    Shape { file: PathBuf, tensor: String, want: Vec<usize>, got: Vec<usize> },
    #[error("{}: tensor '{tensor}' is {got}, but {want} is wanted", file.display())]
    TensorKind { file: PathBuf, tensor: String, want: &'static str, got: String },
    #[error(
        "{}: the {family} family has no use for {tensors}, which would change what the model \
         computes; a newer version of the program may",
        file.display()
    )]
    UnusedTensors { file: PathBuf, family: &'static str, tensors: String },
    #[error("keys and values cannot be stored as {dtype}: {why}")]
    KvStorage { dtype: cyb_tensor::DType, why: String },
    #[error("no synthetic model {spec:?}: {why}")]
    Synthetic { spec: String, why: String },
    #[error("the graph of the model cannot be built: {0}")]
    Graph(#[from] IrError),
}

impl ModelError {
    /// A tensor of our own making that cannot be.
    pub(crate) fn tensor(problem: cyb_tensor::TensorError) -> ModelError {
        ModelError::Graph(IrError::Illegal(problem.to_string()))
    }
}
