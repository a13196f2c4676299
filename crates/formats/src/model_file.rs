//! The one type that every format is read into.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cyb_tensor::{Bytes, MappedFile, Tensor};
use indexmap::IndexMap;

use crate::error::FormatError;
use crate::metadata::Metadata;
use crate::text::{Excerpt, nearest};

/// Where a model file's content came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// With the version that the file states.
    Gguf {
        version: u32,
    },
    Safetensors,
    /// A checkpoint of PyTorch.
    Torch,
    /// Made, not read.
    Memory,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Format::Gguf { version } => write!(f, "GGUF v{version}"),
            Format::Safetensors => f.write_str("safetensors"),
            Format::Torch => f.write_str("PyTorch checkpoint"),
            Format::Memory => f.write_str("in memory"),
        }
    }
}

/// A model as metadata and named tensors, whatever its format and however many files it takes.
#[derive(Debug)]
pub struct ModelFile {
    pub format: Format,
    pub metadata: Metadata,
    /// In the files' order. The bytes are mapped: nothing is read until they are.
    pub tensors: IndexMap<String, Tensor>,
    /// What was noticed and does not hinder, such as a file that belongs to no index.
    pub notes: Vec<String>,
    /// Files beside the weights that are kept as they are, by name: `tokenizer.json`,
    /// `chat_template.jinja`, vocabularies.
    pub documents: IndexMap<String, Bytes>,
    files: Vec<Arc<MappedFile>>,
}

impl ModelFile {
    /// The first of `files` is the one that errors name.
    pub(crate) fn new(format: Format, metadata: Metadata, files: Vec<Arc<MappedFile>>) -> Self {
        ModelFile {
            format,
            metadata,
            tensors: IndexMap::new(),
            notes: Vec::new(),
            documents: IndexMap::new(),
            files,
        }
    }

    /// Takes over the tensors of another file, under a prefix.
    pub(crate) fn take_tensors(&mut self, part: ModelFile, prefix: &str) {
        self.tensors.extend(part.tensors.into_iter().map(|(n, t)| (format!("{prefix}{n}"), t)));
        self.files.extend(part.files);
    }

    /// A model that is in memory and in no file; errors name it as its metadata does.
    pub fn in_memory(metadata: Metadata, tensors: IndexMap<String, Tensor>) -> ModelFile {
        let mut model = ModelFile::new(Format::Memory, metadata, Vec::new());
        model.tensors = tensors;
        model
    }

    /// The files that hold the model, in order; none when it is in memory.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(|f| f.path())
    }

    /// A tensor by name, without a copy.
    pub fn tensor(&self, name: &str) -> Result<Tensor, FormatError> {
        self.tensors.get(name).cloned().ok_or_else(|| {
            let near = nearest(name, self.tensors.keys().map(String::as_str));
            FormatError::NoTensor {
                path: self.first_path(),
                name: name.to_owned(),
                hint: near.map_or(String::new(), |n| format!("; the nearest is {}", Excerpt(n))),
            }
        })
    }

    /// Bytes of all tensors together.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.values().map(|t| t.bytes().len() as u64).sum()
    }

    /// Fails when a file was written or cut since it was mapped. Loaders call it before they read
    /// weights, because reading past the new end of a mapped file ends the process.
    pub fn check_unchanged(&self) -> Result<(), FormatError> {
        self.files.iter().try_for_each(|f| Ok(f.check_unchanged()?))
    }

    fn first_path(&self) -> PathBuf {
        self.paths().next().unwrap_or(self.metadata.file()).to_owned()
    }
}
