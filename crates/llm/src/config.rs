//! How a runtime is set up.

use std::path::PathBuf;
use std::sync::Arc;

use cyb_cpu::Compute;
use cyb_exec::Share;
use cyb_tensor::DType;

use crate::{BackendKind, Cancel};

/// The set-up of a [`crate::Runtime`]. Start from [`Config::auto`] and change what matters.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads to compute with; `None` for as many as the process may use at once.
    pub threads: Option<usize>,
    /// Where to compute.
    pub backend: BackendKind,
    /// How many of a text model's layers run on a graphics processor, the others and the output head
    /// on the processor; `None` for all.
    pub gpu_layers: Option<usize>,
    /// Whether a token's bits on a graphics processor must not depend on how many other tokens share
    /// its steps, as they never do on the processor; prompts then take longer.
    pub batch_invariant: bool,
    /// How keys and values of past tokens are stored: `F32`, `F16`, `BF16`, `Q8_0` or `Q4_0`.
    pub kv_type: DType,
    /// What products with floating-point weights are computed in, on the processor. In bfloat16 or half
    /// precision both sides are rounded to it and sums are `f32`. A CPU with AVX-512 BF16 is faster in
    /// bfloat16, any other gives the same results more slowly; half precision halves the weights.
    pub compute: Compute,
    /// Where models are looked for by name; `None` for [`crate::default_models_dir`].
    pub models_dir: Option<PathBuf>,
    /// Tokens that a sequence may hold, prompt and answer together; `None` for as many as it needs
    /// up to what the model was made for.
    pub context: Option<usize>,
    /// The most tokens of a prompt that one step computes; `None` for as many as keep the device
    /// busy.
    pub chunk: Option<usize>,
    /// The most sequences that are computed at once.
    pub max_sequences: usize,
    /// Whether a prompt that begins as an earlier one did takes over what was computed for it.
    pub prefix_cache: bool,
    /// Told what goes where, and how many bytes that takes, before a model's weights are loaded.
    pub announce: Option<fn(&[Share])>,
    /// Ends running work when set.
    pub cancel: Arc<Cancel>,
}

impl Config {
    /// The best for the machine at hand.
    pub fn auto() -> Config {
        Config {
            threads: None,
            backend: BackendKind::Auto,
            gpu_layers: None,
            batch_invariant: false,
            kv_type: DType::F16,
            compute: Compute::F32,
            models_dir: None,
            context: None,
            chunk: None,
            max_sequences: 16,
            prefix_cache: true,
            announce: None,
            cancel: Arc::new(Cancel::new()),
        }
    }

    /// The most tokens of a prompt that one step computes.
    pub(crate) fn chunk(&self) -> usize {
        self.chunk.unwrap_or(crate::backends::STEP_TOKENS)
    }
}

impl Default for Config {
    fn default() -> Config {
        Config::auto()
    }
}
