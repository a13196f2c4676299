//! Load a model of any common format and run it, from Rust.
//!
//! ```no_run
//! use cyb_llm::{Config, Message, Runtime, SamplingParams};
//!
//! # fn main() -> Result<(), cyb_llm::Error> {
//! let runtime = Runtime::new(Config::auto())?;
//! let model = runtime.load("SmolLM2-135M-Instruct.Q4_1.gguf")?;
//! let question = [Message::new("user", "What is the capital of France?")];
//! for piece in model.chat(&question, SamplingParams::default())? {
//!     let text = piece?.text; // whole characters, as they are made
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The one idea: a [`Runtime`] is a machine (threads, backends, the models folder), a [`Package`] is
//! what a model file says about text, a [`Model`] is a package whose graph is prepared for the
//! machine. Every function returns an [`Error`] instead of panicking, and nothing is ever printed.

#![forbid(unsafe_code)]

mod autotune;
mod backends;
mod bench;
mod cancel;
mod config;
mod detect;
mod directory;
mod embed;
mod encoder;
mod error;
mod forward;
mod generation;
mod info;
mod jets;
mod library;
mod load;
mod memory;
mod metrics;
mod model;
mod onnx;
mod package;
mod perplexity;
mod pictures;
mod preprocess;
mod runtime;
mod score;
mod sentence;
mod stepper;
mod vocabulary;

pub use autotune::Autotuned;
pub use backends::{BackendInfo, BackendKind};
pub use bench::{BenchOptions, BenchResult, EncoderBench, EncoderBenchOptions, Spread};
pub use cancel::Cancel;
pub use config::Config;
pub use detect::{DetectOptions, Detection, Detector};
pub use embed::{Scored, Task, TextOptions, TokenLabel, ZeroShot};
pub use error::Error;
pub use forward::{ENCODER_INPUTS, ENCODER_OUTPUTS, TENSOR_INPUTS, TENSOR_OUTPUTS};
pub use generation::{Completion, Finish, Generation, Piece, Usage};
pub use info::{ModelInfo, PartInfo};
pub use jets::JetInfo;
pub use library::{Entry, default_models_dir};
pub use load::{LoadOptions, Purpose};
pub use memory::{MachineMemory, ModelMemory};
pub use metrics::{Metrics, OpTime};
pub use model::{Model, ModelId};
pub use onnx::{ForwardBench, OnnxModel, SampleInputs};
pub use package::{Finding, Package};
pub use perplexity::Perplexity;
pub use pictures::{PICTURE_INPUTS, PICTURE_OUTPUTS};
pub use runtime::Runtime;
pub use stepper::{ModelStepper, StepLimits};

pub use cyb_conformance::Line as CheckLine;
pub use cyb_cpu::Compute;
pub use cyb_exec::{Dispatch, Share, Timing};
pub use cyb_fasttext::{FastText, FastTextError, Scratch};
pub use cyb_formats::onnx::{Dimension, Elem};
pub use cyb_onnx::{Note, OnnxError, Port, StepTime, Unsupported};
pub use cyb_sample::{PARAMETERS, PRESETS, ParamError, Parameter, SamplingParams};
pub use cyb_tensor::{DType, Tensor, end_on_lost_pages};
pub use cyb_text::{Content, EncodeOptions, Message, RenderOptions};
pub use indexmap::IndexMap;

/// Pictures, for detectors.
pub mod media {
    pub use cyb_media::{Box2, Image, Label, MediaError, PictureFormat, class_color, draw_labels};
}

/// Reading and writing NumPy archives, which carry the tensors of [`Model::forward`].
pub mod npz {
    pub use cyb_formats::npz::{read, write};
}
