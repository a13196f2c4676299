//! Which backends there are, and the choice among them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use cyb_cpu::CpuBackend;
use cyb_cpu::team::Team;
use cyb_exec::Backend;

use crate::Error;

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

    /// Why it cannot be used here.
    const fn obstacle(self) -> Option<&'static str> {
        match self {
            BackendKind::Auto | BackendKind::Cpu | BackendKind::Atoms => None,
            BackendKind::Cuda | BackendKind::Wgpu | BackendKind::Metal => {
                Some("this build has none")
            }
        }
    }

    /// The backends to prepare graphs on, in order of preference.
    pub(crate) fn open(self, team: &Arc<Team>) -> Result<Vec<Arc<dyn Backend>>, Error> {
        match self {
            BackendKind::Auto | BackendKind::Cpu => {
                Ok(vec![Arc::new(CpuBackend::new(Arc::clone(team)))])
            }
            BackendKind::Atoms => Ok(vec![Arc::new(CpuBackend::atoms(Arc::clone(team)))]),
            BackendKind::Cuda | BackendKind::Wgpu | BackendKind::Metal => Err(Error::Backend {
                kind: self,
                why: self.obstacle().unwrap_or("this machine has none"),
            }),
        }
    }
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
    pub obstacle: Option<&'static str>,
    /// Whether this runtime uses it.
    pub in_use: bool,
}

/// Every backend that there can be, with what this machine has.
pub(crate) fn survey(team: &Arc<Team>, used: BackendKind) -> Vec<BackendInfo> {
    let used = if used == BackendKind::Auto { BackendKind::Cpu } else { used };
    let named = BackendKind::ALL.into_iter().filter(|&kind| kind != BackendKind::Auto);
    named
        .map(|kind| BackendInfo {
            kind,
            device: kind.open(team).ok().and_then(|opened| Some(opened.first()?.device())),
            obstacle: kind.obstacle(),
            in_use: kind == used,
        })
        .collect()
}
