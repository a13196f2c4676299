//! GGUF, the format of llama.cpp: typed metadata, tensor descriptions, then aligned tensor data.
//! Published at <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.
//!
//! Everything is little-endian. After `GGUF`, the version and the two counts come the metadata
//! entries (key, value type, value), then one description a tensor (name, dimensions innermost
//! first, type number, offset into the data), then padding to the alignment, then the data.
//!
//! The parser reads a byte slice and a file length, so that it can be tested and fuzzed without
//! files. No count, length, offset or size is used before it is known to fit in the file.

mod error;
mod open;
mod parse;
mod write;

#[cfg(test)]
mod tests;

pub use error::{GgufError, Place, SplitError};
pub(crate) use open::{load, same_split};
pub use parse::{Header, TensorInfo, parse};
pub use write::{TensorSpec, write, write_streamed, write_to};

/// The alignment of tensor data when `general.alignment` says nothing else.
const DEFAULT_ALIGNMENT: u64 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";
/// GGML tensors have at most this many axes.
const MAX_DIMS: usize = 4;
/// Bytes of a key or a tensor's name. The format's own limit on keys.
const MAX_NAME: u64 = 65_535;
/// More than any published model has, few enough that their descriptions fit in memory.
const MAX_TENSORS: u64 = 1 << 20;
const MAX_ENTRIES: u64 = 1 << 20;
/// Arrays in arrays; published files have no more than one level.
const MAX_DEPTH: usize = 4;

/// Processors address less than this; a tensor of such a size is a wrong number.
const MAX_TENSOR_BYTES: usize = 1 << 47;

/// Numbers of the value types of metadata.
mod value_type {
    pub(super) const U8: u32 = 0;
    pub(super) const I8: u32 = 1;
    pub(super) const U16: u32 = 2;
    pub(super) const I16: u32 = 3;
    pub(super) const U32: u32 = 4;
    pub(super) const I32: u32 = 5;
    pub(super) const F32: u32 = 6;
    pub(super) const BOOL: u32 = 7;
    pub(super) const STRING: u32 = 8;
    pub(super) const ARRAY: u32 = 9;
    pub(super) const U64: u32 = 10;
    pub(super) const I64: u32 = 11;
    pub(super) const F64: u32 = 12;
}
