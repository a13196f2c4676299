//! Many sequences, one model: continuous batching over a paged KV cache.
//!
//! The one idea: a sequence has *computed* and *total* tokens, and a step hands out one token budget
//! so that computed catches up. Prefill, chunked prefill, decode, recomputation after preemption and
//! prefix-cache hits are all this rule with different numbers; there are no phases.
//!
//! - [`BlockPool`] hands out blocks of KV memory (by number; the memory itself is elsewhere), counts
//!   references and finds blocks whose content is a wanted prefix.
//! - [`Scheduler`] is a pure state machine: no tensors, clock, threads or I/O. It turns its state and
//!   a budget into a [`StepPlan`], flat arrays that a model can be fed with.
//! - [`Engine`] drives a [`Stepper`] with plans, samples, decides when a sequence ends and reports
//!   [`Event`]s. It knows token ids only; text, and with it stop strings, belong to its caller.

#![forbid(unsafe_code)]

mod engine;
mod plan;
mod pool;
mod scheduler;

pub use engine::{
    Choices, Engine, Event, FinishReason, Flow, Request, SequenceError, StepError, Stepper,
    SubmitError,
};
pub use plan::StepPlan;
pub use pool::{BlockId, BlockPool, Namespace, PrefixId};
pub use scheduler::{AdmitError, Config, Scheduler, SeqId, Stats, Usage};
