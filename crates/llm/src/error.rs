//! What can go wrong. Every message is one line that names the input at fault and the remedy.

use std::path::PathBuf;

use cyb_engine::{AdmitError, SequenceError, SubmitError};
use cyb_exec::ExecError;
use cyb_fasttext::FastTextError;
use cyb_formats::{FormatError, MetadataError};
use cyb_ir::IrError;
use cyb_models::ModelError;
use cyb_sample::ParamError;
use cyb_text::TextError;

use crate::BackendKind;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No file, directory or entry of the models folder has this name.
    #[error("no model {name:?}: there is no such path, and {folder}{hint}")]
    NoModel { name: String, folder: String, hint: String },
    /// The models folder cannot be read.
    #[error("cannot list the models folder {}: {problem}", path.display())]
    Folder { path: PathBuf, problem: std::io::Error },
    /// No model with this id is loaded.
    #[error("no loaded model has the id {0:?}; see list_models")]
    NotLoaded(String),
    /// A backend that cannot be used here.
    #[error("backend {kind} cannot be used: {why}; use auto, cpu or atoms")]
    Backend { kind: BackendKind, why: String },
    /// A name that is no backend.
    #[error("there is no backend {0:?}; there are auto, cpu, cuda, wgpu, metal, atoms")]
    UnknownBackend(String),
    /// An ONNX model that cannot be imported or run; names the model.
    #[error("{model}: {problem}")]
    Onnx { model: String, problem: cyb_onnx::OnnxError },
    /// A detector that cannot be used, or an output that is no detector's; names the model.
    #[error("{model}: {why}")]
    Detector { model: String, why: String },
    /// The table of measured times cannot be read or written; names its file.
    #[error("{}: {problem}; run `soma-runtime autotune` again, or delete it", path.display())]
    Table { path: PathBuf, problem: String },
    /// The threads cannot be had.
    #[error("cannot start {threads} threads: {why}; ask for fewer")]
    Threads { threads: usize, why: String },
    /// A value of the configuration or of a call that makes no sense.
    #[error("{what}: {why}")]
    Value { what: &'static str, why: String },
    /// A sampling parameter is wrong.
    #[error(transparent)]
    Parameter(#[from] ParamError),
    /// A file that cannot be opened, read or written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A fastText model that cannot be used.
    #[error(transparent)]
    FastText(#[from] FastTextError),
    /// Metadata that is missing or of the wrong kind.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A model that cannot become a graph.
    #[error(transparent)]
    Graph(#[from] ModelError),
    /// A vocabulary, template or text that cannot be used; names the model.
    #[error("{model}: {problem}")]
    Text { model: String, problem: TextError },
    /// The model has no vocabulary.
    #[error(
        "{model} has no tokenizer (no tokenizer.json, no tokenizer.ggml.* metadata); give one that does, or token ids"
    )]
    NoTokenizer { model: String },
    /// The model has no chat template.
    #[error("{model} has no chat template; give the prompt as it is (--raw)")]
    NoTemplate { model: String },
    /// The model's chat template does not compile.
    #[error("{model}: {why}; give the prompt as it is (--raw)")]
    BadTemplate { model: String, why: String },
    /// The prompt and the answer do not fit.
    #[error(
        "the prompt has {prompt} tokens, but the context holds {context} with the answer; shorten the prompt{remedy}"
    )]
    ContextTooSmall { prompt: usize, context: usize, remedy: String },
    /// A longer context than the model was made for.
    #[error("context {asked}: {model} was made for at most {limit} tokens; ask for no more")]
    ContextTooLong { model: String, asked: usize, limit: usize },
    /// A text that is longer than an encoder takes.
    #[error(
        "the text has {tokens} tokens, but the model takes {limit}; shorten it, or have it cut off there (--truncate)"
    )]
    TextTooLong { tokens: usize, limit: usize },
    /// A model of whole sequences was asked for text.
    #[error(
        "{model} ({family} family) is an encoder, a classifier or made for vectors, and writes no text; use embed, classify or forward"
    )]
    NotADecoder { model: String, family: &'static str },
    /// A model was asked for what another kind of model gives.
    #[error("{model} is {has}; this needs {want}")]
    NoHead { model: String, has: &'static str, want: &'static str },
    /// A stage of a sentence-transformers model that cannot be run as it is written.
    #[error("{model}: {key}: {why}")]
    Stage { model: String, key: String, why: String },
    /// A request that the engine does not take.
    #[error(transparent)]
    Submit(SubmitError),
    /// The model failed on a sequence.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// A graph that cannot be prepared or run.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// An operation that cannot be described.
    #[error(transparent)]
    Ir(#[from] IrError),
    /// A text too short to measure.
    #[error(
        "the text has {tokens} tokens, but a perplexity at context {context} needs at least {need}; give a longer text or a smaller context"
    )]
    TextTooShort { tokens: usize, context: usize, need: usize },
    /// A named tensor that `forward` cannot take.
    #[error("input {name:?}: {why}; expected: {expected}")]
    Input { name: String, why: String, expected: &'static str },
    /// The work was ended by [`crate::Cancel`].
    #[error("interrupted")]
    Interrupted,
    /// An earlier call on this model panicked inside a step.
    #[error("the model failed in an earlier call and cannot go on; load it again")]
    Poisoned,
}

impl From<SubmitError> for Error {
    fn from(error: SubmitError) -> Error {
        match error {
            SubmitError::Params(problem) => Error::Parameter(problem),
            SubmitError::Admit(
                AdmitError::ContextTooSmall { prompt, context }
                | AdmitError::PoolTooSmall { prompt, capacity: context },
            ) => Error::ContextTooSmall { prompt, context, remedy: String::new() },
            other => Error::Submit(other),
        }
    }
}
