//! From a graph to running steps. This crate knows operations and memory; it knows no model, no
//! sequence and no hardware.
//!
//! The one idea: a backend is three small traits. A [`Backend`] says which calls it has kernels
//! for and prepares a [`Program`] from a graph; a program makes [`Session`]s; a session holds the
//! memory and the state of one user of the program and runs it. Everything that can be decided
//! before the first run is decided in `prepare`.

#![forbid(unsafe_code)]

mod backend;
mod dispatch;
mod executor;
mod fuse;
mod fuse_codes;
mod fuse_conv;
mod passes;
mod placed;
mod placement;
mod plan;
mod symbols;

pub use backend::{
    Backend, Call, ExecError, Kernel, MemoryUse, Observer, Program, Session, StateId, StepInfo,
    StepTime, TOP, Top,
};
pub use dispatch::{Dispatch, FillInput, Sizes, Timing};
pub use executor::{Executor, Placement, PrepareOptions, Running};
pub use passes::{Passes, optimize};
pub use placed::{Placed, Room, Share};
pub use plan::{ArenaPlan, Lifetime, PlanMode, plan_arena};
pub use symbols::{CompiledDim, Symbols};
