//! How much memory there is, and how much a model takes.

use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// Memory of the machine and of this process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// What the machine, or the process's control group, has; `None` where the system does not say.
    pub total: Option<u64>,
    /// What can still be had.
    pub available: Option<u64>,
    /// The most that this process has held at once; `None` where the system does not say.
    pub process_peak: Option<u64>,
}

impl MachineMemory {
    /// As it is now.
    pub fn now() -> MachineMemory {
        let kind = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
        let system = System::new_with_specifics(kind).ok();
        let limits = system.as_ref().and_then(System::cgroup_limits);
        let least =
            |machine: Option<u64>, group: Option<u64>| machine.into_iter().chain(group).min();
        MachineMemory {
            total: least(
                system.as_ref().map(System::total_memory),
                limits.as_ref().map(|limits| limits.total_memory),
            ),
            available: least(
                system.as_ref().map(System::available_memory),
                limits.as_ref().map(|limits| limits.free_memory),
            ),
            process_peak: process_peak(),
        }
    }
}

/// The most memory that this process has held at once, in bytes.
#[cfg(unix)]
pub(crate) fn process_peak() -> Option<u64> {
    use nix::sys::resource::{UsageWho, getrusage};
    // Kibibytes everywhere but on Apple's systems, where they are bytes.
    let unit = if cfg!(target_vendor = "apple") { 1 } else { 1024 };
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    u64::try_from(usage.max_rss()).ok()?.checked_mul(unit)
}

/// The most memory that this process has held at once, in bytes.
#[cfg(not(unix))]
pub(crate) fn process_peak() -> Option<u64> {
    None
}

/// What a loaded model takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelMemory {
    /// Tensors of its files, mapped: pages that the system may drop and read again.
    pub file: u64,
    /// Weights that backends hold in a layout of their own.
    pub weights: u64,
    /// Keys and values of past tokens.
    pub kv: u64,
    /// Of them, what one token takes.
    pub kv_per_token: u64,
    /// Tokens that `kv` holds.
    pub kv_tokens: u64,
    /// Intermediate results.
    pub arena: u64,
    /// Scratch of kernels.
    pub scratch: u64,
}

impl ModelMemory {
    /// Everything together.
    pub fn total(&self) -> u64 {
        self.file + self.weights + self.kv + self.arena + self.scratch
    }
}
