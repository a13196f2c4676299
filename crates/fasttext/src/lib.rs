//! fastText classifiers (`.bin`, and `.ftz` with product quantization).
//!
//! A text is a bag: its words, the character n-grams of each word, and n-grams of words, each a row
//! of a matrix. The mean of the rows is multiplied with one row a label. That is microseconds of
//! work, so it does not go through a graph.
//!
//! Papers: <https://arxiv.org/abs/1607.01759>, <https://arxiv.org/abs/1612.03651>. The file format is
//! the one of the reference implementation, <https://github.com/facebookresearch/fastText>.

#![forbid(unsafe_code)]

mod dictionary;
mod file;
pub mod fuzz;
mod loss;
mod matrix;
mod reader;

use std::path::{Path, PathBuf};

pub use file::FastText;

/// The first four bytes of a model file.
pub const MAGIC: [u8; 4] = 793_712_314_i32.to_le_bytes();

/// Why a file is no model that can be used. Every message names the file and the value at fault.
#[derive(Debug, thiserror::Error)]
pub enum FastTextError {
    #[error(transparent)]
    Map(#[from] cyb_tensor::MapError),
    #[error("{}: {problem}", path.display())]
    File { path: PathBuf, problem: Problem },
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("it is no fastText model (it does not begin with the magic number)")]
    Magic,
    #[error("version {0} is not supported; 11 and 12 are")]
    Version(i32),
    #[error("it ends inside {0}; it is cut, fetch it again")]
    Cut(&'static str),
    #[error("{what} is {value}, {want}; the file is damaged")]
    Value { what: &'static str, value: i64, want: &'static str },
    #[error("{0} bytes are left over at its end; the file is damaged")]
    Rest(usize),
    #[error("it holds word vectors, not a classifier; give a model trained with `supervised`")]
    NoClassifier,
    #[error("its words and labels are not UTF-8; the file is damaged")]
    Utf8,
}

/// Names the file of a problem.
fn at(path: &Path) -> impl Fn(Problem) -> FastTextError + '_ {
    |problem| FastTextError::File { path: path.to_owned(), problem }
}

/// Memory that predictions reuse; one for each thread.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    ids: Vec<u32>,
    hashes: Vec<i32>,
    hidden: Vec<f32>,
    pub(crate) stack: Vec<(u32, f32)>,
    pub(crate) outputs: Vec<f32>,
}
