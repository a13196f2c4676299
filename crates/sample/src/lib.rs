//! From logits to a token.
//!
//! The pipeline is a chain of small steps in a fixed order:
//!
//! ```text
//! logits -> logit bias -> repetition penalty -> presence and frequency penalties -> grammar mask
//!        -> temperature -> top_k -> top_p -> min_p -> draw
//! ```
//!
//! The steps before the temperature edit the dense logits in place ([`edit`]) and touch few of
//! them. Each of the three filters keeps a *prefix of the tokens ordered by probability*, so they
//! share one lazily sorted ranking ([`rank`]) and a vocabulary of 262,144 is never sorted as a whole
//! unless the distribution is flat. The draw uses a counter-based generator keyed by (seed,
//! position) ([`rng`]): the same seed at the same position gives the same number, whether the
//! sequence runs alone, in a batch, or is resumed.
//!
//! Where the logits are in a device's memory, the chain can run on the most probable tokens alone
//! ([`candidates`]): it gives the token that it would give for all logits, or says that they do not
//! decide it.
//!
//! A [`Sampler`] belongs to one sequence (its parameters, seed and token history); a [`Workspace`]
//! is scratch memory that any number of samplers use in turn, so that a steady step allocates
//! nothing.

#![forbid(unsafe_code)]

mod candidates;
mod edit;
mod exp;
mod filter;
mod logprobs;
mod mask;
mod params;
mod rank;
mod rng;
mod sampler;

pub use candidates::{Candidates, Needs, mass};
pub use logprobs::{LOGPROB_FLOOR, Logprobs};
pub use mask::{Constraint, ConstraintError, TokenMask};
pub use params::{
    Field, PARAMETERS, PRESETS, ParamError, Parameter, Preset, Range, SamplingParams,
};
pub use rank::Workspace;
pub use rng::uniform;
pub use sampler::{SampleError, Sampled, Sampler};
