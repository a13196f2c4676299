//! The CPU backend.
//!
//! Kernels are written once over [`cyb_simd::Isa`] and run by a [`team::Team`] of threads. Work is
//! cut into units that do not depend on the number of threads, and each unit is computed the same
//! way by whoever takes it, so that results never depend on the machine's load.

pub mod team;
