//! Which backends there are, and the choice among them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use cyb_cpu::team::Team;
use cyb_cpu::{Compute, CpuBackend};
use cyb_cuda::CudaBackend;
use cyb_exec::Backend;

use crate::{Config, Error};

/// A backend by name, or the wish for the best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendKind {
    /// The best that the machine has.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// NVIDIA graphics processors.
    Cuda,
    /// Graphics processors through WebGPU.
    Wgpu,
    /// Apple graphics processors.
    Metal,
    /// The interpreter: every operation by its definition, without kernels.
    Atoms,
}

impl BackendKind {
    /// All of them.
    pub const ALL: [BackendKind; 6] = [
        BackendKind::Auto,
        BackendKind::Cpu,
        BackendKind::Cuda,
        BackendKind::Wgpu,
        BackendKind::Metal,
        BackendKind::Atoms,
    ];

    /// As users write it.
    pub const fn name(self) -> &'static str {
        match self {
            BackendKind::Auto => "auto",
            BackendKind::Cpu => "cpu",
            BackendKind::Cuda => "cuda",
            BackendKind::Wgpu => "wgpu",
            BackendKind::Metal => "metal",
            BackendKind::Atoms => "atoms",
        }
    }

    /// Opens the backend, with the processor behind it for what a device has no kernel for.
    pub(crate) fn open(self, team: &Arc<Team>, config: &Config) -> Result<Opened, Error> {
        let Config { compute, batch_invariant, .. } = *config;
        let cpu = || -> Arc<dyn Backend> {
            Arc::new(CpuBackend::new(Arc::clone(team)).computing(compute))
        };
        let on_cpu = || Opened { backends: vec![cpu()], step_tokens: STEP_TOKENS };
        let on_gpu = |cuda| Opened {
            backends: vec![Arc::new(cuda), cpu()],
            step_tokens: CudaBackend::STEP_TOKENS,
        };
        match self {
            // What was asked for is the processor's.
            BackendKind::Auto if compute != Compute::F32 => Ok(on_cpu()),
            BackendKind::Cuda | BackendKind::Atoms if compute != Compute::F32 => {
                let name = match compute {
                    Compute::F32 => "f32",
                    Compute::Bf16 => "bf16",
                    Compute::F16 => "f16",
                };
                let why = format!("it does not compute in {name}; use the backend cpu");
                Err(Error::Backend { kind: self, why })
            }
            BackendKind::Auto => {
                Ok(CudaBackend::open(batch_invariant).map_or_else(|_| on_cpu(), on_gpu))
            }
            BackendKind::Cpu => Ok(on_cpu()),
            BackendKind::Cuda => CudaBackend::open(batch_invariant)
                .map(on_gpu)
                .map_err(|error| Error::Backend { kind: self, why: error.to_string() }),
            BackendKind::Atoms => {
                let atoms = CpuBackend::atoms(Arc::clone(team));
                Ok(Opened { backends: vec![Arc::new(atoms)], step_tokens: STEP_TOKENS })
            }
            BackendKind::Wgpu | BackendKind::Metal => {
                Err(Error::Backend { kind: self, why: "this build has none".to_owned() })
            }
        }
    }
}

/// The processor, computing in `f32`.
pub(crate) fn processor(team: &Arc<Team>) -> Arc<dyn Backend> {
    Arc::new(CpuBackend::new(Arc::clone(team)))
}

/// Tokens of a prompt that one step computes on a processor.
pub(crate) const STEP_TOKENS: usize = 512;

/// What a [`BackendKind`] opens.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The backends to prepare graphs on, in order of preference.
    pub(crate) backends: Vec<Arc<dyn Backend>>,
    /// Tokens of a prompt that one step computes where nobody says how many.
    pub(crate) step_tokens: usize,
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BackendKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<BackendKind, Error> {
        let found = BackendKind::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| Error::UnknownBackend(name.to_owned()))
    }
}

/// A backend as [`crate::Runtime::backends`] tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendInfo {
    /// Its name.
    pub kind: BackendKind,
    /// The device, where it can be used.
    pub device: Option<String>,
    /// Why it cannot be used, where not.
    pub obstacle: Option<String>,
    /// Whether this runtime uses it.
    pub in_use: bool,
}

/// Every backend that there can be, with what this machine has. `used` is the name of the one in
/// use.
pub(crate) fn survey(team: &Arc<Team>, used: &str) -> Vec<BackendInfo> {
    let named = BackendKind::ALL.into_iter().filter(|&kind| kind != BackendKind::Auto);
    named
        .map(|kind| {
            let opened = kind.open(team, &Config::auto()).ok();
            let device = opened.and_then(|o| Some(o.backends.first()?.device()));
            let obstacle = obstacle(kind, team, &Config::auto());
            BackendInfo { kind, device, obstacle, in_use: kind.name() == used }
        })
        .collect()
}

/// Why a backend cannot be used.
pub(crate) fn obstacle(kind: BackendKind, team: &Arc<Team>, config: &Config) -> Option<String> {
    match kind.open(team, config) {
        Ok(_) => None,
        Err(Error::Backend { why, .. }) => Some(why),
        Err(other) => Some(other.to_string()),
    }
}
