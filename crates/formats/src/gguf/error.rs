//! What can be wrong with a GGUF file.

use std::fmt;
use std::path::PathBuf;

use cyb_tensor::{DType, TensorError};

use crate::text::Excerpt;

/// The part of a file that was being read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Header,
    /// The key of the metadata entry with this index.
    Key(u64),
    /// The value of the metadata entry with this key.
    Value(String),
    /// The description of the tensor with this index.
    Tensor(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Header => f.write_str("the header"),
            Place::Key(i) => write!(f, "the key of metadata entry {i}"),
            Place::Value(key) => write!(f, "metadata {}", Excerpt(key)),
            Place::Tensor(i) => write!(f, "the description of tensor {i}"),
        }
    }
}

/// What is wrong with the content of one GGUF file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GgufError {
    #[error("not a GGUF file; give a GGUF or safetensors file")]
    Magic,
    #[error("GGUF version 1 is not supported; convert the model to version 3")]
    Version1,
    #[error("the GGUF file is big-endian; fetch or convert a little-endian file")]
    BigEndian,
    #[error("GGUF version {0} is not supported (2 and 3 are); update, or convert the model")]
    Version(u32),
    #[error(
        "{place} needs {need} bytes at {at}, but the file ends at {file_len}; \
         it is cut or damaged, fetch it again"
    )]
    Truncated { place: Place, at: u64, need: u64, file_len: u64 },
    #[error("the header counts {count} {what}, more than {limit}; the file is damaged")]
    TooMany { what: &'static str, count: u64, limit: u64 },
    #[error("{place} has no name; the file is damaged or made by a faulty tool")]
    EmptyName { place: Place },
    #[error("{place} is {len} bytes long, more than {limit}; the file is damaged")]
    LongName { place: Place, len: u64, limit: u64 },
    #[error("{place} is not UTF-8 text; the file is damaged or made by a faulty tool")]
    NotUtf8 { place: Place },
    #[error("metadata key {} occurs twice; the file is made by a faulty tool", Excerpt(.0))]
    DuplicateKey(String),
    #[error("{place} has the unknown value type {id}; the file is damaged or newer than this")]
    ValueType { place: Place, id: u32 },
    #[error("{place} is {value}, but a bool is 0 or 1; the file is damaged")]
    Bool { place: Place, value: u8 },
    #[error("{place} nests arrays more than {limit} deep; the file is damaged")]
    Depth { place: Place, limit: usize },
    #[error("metadata 'general.alignment' is {0}; it must be a power of two up to 1048576")]
    Alignment(String),
    #[error("tensor {} is described twice; the file is made by a faulty tool", Excerpt(.0))]
    DuplicateTensor(String),
    #[error(
        "tensor {} has {count} dimensions, more than {limit}; the file is damaged",
        Excerpt(name)
    )]
    Dims { name: String, count: u32, limit: usize },
    #[error(
        "tensor {} has shape {shape:?} with a dimension of zero; \
         the file is damaged or made by a faulty tool",
        Excerpt(name)
    )]
    ZeroDim { name: String, shape: Vec<u64> },
    #[error(
        "tensor size overflows: tensor {} has shape {shape:?}; the file is damaged",
        Excerpt(name)
    )]
    Overflow { name: String, shape: Vec<u64> },
    #[error("tensor {}: {problem}; the file is damaged", Excerpt(name))]
    Size { name: String, problem: TensorError },
    #[error("tensor {} has type number {id}, {origin}", Excerpt(name))]
    UnknownType { name: String, id: u32, origin: &'static str },
    #[error(
        "tensor {} lies at offset {offset}, which is no multiple of the alignment {alignment}; \
         the file is damaged",
        Excerpt(name)
    )]
    Misaligned { name: String, offset: u64, alignment: u64 },
    #[error(
        "tensor {} ends at byte {end}, but the file ends at {file_len}; \
         it is cut, fetch it again",
        Excerpt(name)
    )]
    Short { name: String, end: u64, file_len: u64 },
    #[error("tensors {} and {} overlap; the file is damaged", Excerpt(first), Excerpt(second))]
    Overlap { first: String, second: String },
    #[error(
        "{bytes} bytes before tensor {} belong to no tensor; \
         the file is damaged or made by a faulty tool",
        Excerpt(before)
    )]
    Hole { before: String, bytes: u64 },
    #[error("tensor {} is {dtype}, which GGUF has no type number for", Excerpt(name))]
    UnwritableType { name: String, dtype: DType },
}

/// What is wrong with the parts of a split GGUF model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    #[error(
        "part {number} of {count} of a split model, but its name does not end in \
         '-{number:05}-of-{count:05}.gguf'; give the parts their names back"
    )]
    Name { number: u64, count: u64 },
    #[error("part {number} of {count} is missing: {}; fetch it into the same folder", part.display())]
    Missing { part: PathBuf, number: u64, count: u64 },
    #[error("part {} states that it is part {number} of {count}; fetch the parts of one model again", part.display())]
    Foreign { part: PathBuf, number: u64, count: u64 },
    #[error("the split counts {0} parts, more than 99999; the file is damaged")]
    Count(u64),
    #[error("the part numbered {number} (from 0) of {count} cannot be; the file is damaged")]
    Number { number: u64, count: u64 },
    #[error(
        "the parts have {got} tensors, but {want} belong to the model; fetch the parts of one model again"
    )]
    Tensors { want: u64, got: usize },
    #[error("tensor {} is in two parts; fetch the parts of one model again", Excerpt(.0))]
    DuplicateTensor(String),
}

/// Where a type number that is not in the enumeration comes from, and what to do about it.
pub(super) fn type_origin(id: u32) -> &'static str {
    match id {
        4 | 5 => {
            "which was Q4_2 or Q4_3 and is withdrawn since 2023; \
             make the file anew from the original model with a current tool"
        }
        31..=33 => {
            "which was Q4_0 packed for one kind of ARM processor and is withdrawn; \
             fetch the plain Q4_0 file, it is packed for the processor at load"
        }
        36 => {
            "which is I2_S of the BitNet fork of llama.cpp and unknown outside it; \
             fetch the TQ2_0 or TQ1_0 file of the model"
        }
        37 | 38 => {
            "which was IQ4_NL packed for one kind of ARM processor and is withdrawn; \
             fetch the plain IQ4_NL file, it is packed for the processor at load"
        }
        42..=96 => {
            "which is newer than this version; update, or fetch the model in another quantization"
        }
        97..=999 => {
            "which the ik_llama.cpp fork or another fork of llama.cpp uses; \
             fetch a file made with llama.cpp itself"
        }
        _ => "which no known tool writes; the file is damaged or of a fork, fetch it again",
    }
}
