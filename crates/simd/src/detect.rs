//! Which instruction sets this CPU has, and entering a kernel with one of them.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

#[cfg(target_arch = "aarch64")]
use crate::neon;
#[cfg(target_arch = "x86_64")]
use crate::x86;
use crate::{Isa, Portable, SimdOp};

/// The name of an instruction set that kernels are compiled for, fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IsaKind {
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512Vnni,
    /// AVX2, FMA, F16C and the 256-bit VNNI instructions.
    Avx2Vnni,
    /// AVX2, FMA and F16C.
    Avx2,
    /// NEON with the dot product and the 8-bit matrix instructions.
    NeonI8mm,
    /// NEON with the dot product instructions.
    Neon,
    /// No instruction set beyond the target's baseline.
    Portable,
}

impl IsaKind {
    pub const ALL: [IsaKind; 6] = [
        IsaKind::Avx512Vnni,
        IsaKind::Avx2Vnni,
        IsaKind::Avx2,
        IsaKind::NeonI8mm,
        IsaKind::Neon,
        IsaKind::Portable,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            IsaKind::Avx512Vnni => "avx512vnni",
            IsaKind::Avx2Vnni => "avx2vnni",
            IsaKind::Avx2 => "avx2",
            IsaKind::NeonI8mm => "neoni8mm",
            IsaKind::Neon => "neon",
            IsaKind::Portable => "portable",
        }
    }
}

impl fmt::Display for IsaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An instruction set was asked for that does not exist or that this CPU lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this CPU cannot run instruction set '{wanted}'; it has {have}")]
pub struct UnknownIsa {
    wanted: String,
    have: String,
}

/// A token of an instruction set chosen at run time.
#[derive(Clone, Copy, Debug)]
pub struct AnyIsa(Token);

#[derive(Clone, Copy, Debug)]
enum Token {
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(x86::Avx512Vnni),
    #[cfg(target_arch = "x86_64")]
    Avx2Vnni(x86::Avx2<true>),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2<false>),
    #[cfg(target_arch = "aarch64")]
    NeonI8mm(neon::Neon<true>),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon<false>),
    Portable(Portable),
}

impl AnyIsa {
    /// Every instruction set this CPU has, fastest first; `portable` is always the last.
    pub fn detect() -> &'static [AnyIsa] {
        static FOUND: OnceLock<Vec<AnyIsa>> = OnceLock::new();
        FOUND.get_or_init(|| {
            let mut found = Vec::new();
            #[cfg(target_arch = "x86_64")]
            {
                found.extend(x86::Avx512Vnni::new().map(Token::Avx512Vnni));
                found.extend(x86::Avx2::<true>::new().map(Token::Avx2Vnni));
                found.extend(x86::Avx2::<false>::new().map(Token::Avx2));
            }
            #[cfg(target_arch = "aarch64")]
            {
                found.extend(neon::Neon::<true>::new().map(Token::NeonI8mm));
                found.extend(neon::Neon::<false>::new().map(Token::Neon));
            }
            found.push(Token::Portable(Portable));
            found.into_iter().map(AnyIsa).collect()
        })
    }

    /// The fastest instruction set of this CPU.
    pub fn best() -> AnyIsa {
        AnyIsa::detect()[0]
    }

    /// The one named by the environment variable `SOMA_ISA`, or the best when it is not set.
    ///
    /// # Errors
    /// The variable names an instruction set that this CPU lacks.
    pub fn choose() -> Result<AnyIsa, UnknownIsa> {
        match std::env::var("SOMA_ISA") {
            Ok(name) if !name.is_empty() => name.parse(),
            Ok(_) | Err(_) => Ok(AnyIsa::best()),
        }
    }

    pub fn kind(self) -> IsaKind {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Token::Avx512Vnni(_) => IsaKind::Avx512Vnni,
            #[cfg(target_arch = "x86_64")]
            Token::Avx2Vnni(_) => IsaKind::Avx2Vnni,
            #[cfg(target_arch = "x86_64")]
            Token::Avx2(_) => IsaKind::Avx2,
            #[cfg(target_arch = "aarch64")]
            Token::NeonI8mm(_) => IsaKind::NeonI8mm,
            #[cfg(target_arch = "aarch64")]
            Token::Neon(_) => IsaKind::Neon,
            Token::Portable(_) => IsaKind::Portable,
        }
    }

    /// Whether a single row's product should ask for all of its weights ahead of their use, on this CPU.
    ///
    /// Intel's cores keep too few lines on their way by themselves: on a Xeon of 2023 such a product
    /// reads half to two thirds of what the memory gives, and nine tenths of it when it asks. AMD's
    /// keep up, and lose up to a quarter by being asked (Zen 4). Others were not measured.
    pub fn wants_asking() -> bool {
        static WANTS: OnceLock<bool> = OnceLock::new();
        *WANTS.get_or_init(|| {
            #[cfg(target_arch = "x86_64")]
            {
                x86::vendor() == *b"GenuineIntel"
            }
            #[cfg(not(target_arch = "x86_64"))]
            {
                false
            }
        })
    }

    /// The instructions for pairs of bfloat16 values that belong to this instruction set.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn pairs(self) -> Option<x86::Avx512Bf16> {
        match self.0 {
            Token::Avx512Vnni(s) => x86::Avx512Bf16::beside(s),
            Token::Avx2Vnni(_) | Token::Avx2(_) | Token::Portable(_) => None,
        }
    }

    /// Runs `op` in a function compiled for this instruction set.
    #[inline]
    pub fn run<Op: SimdOp>(self, op: Op) -> Op::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Token::Avx512Vnni(s) => s.run(op),
            #[cfg(target_arch = "x86_64")]
            Token::Avx2Vnni(s) => s.run(op),
            #[cfg(target_arch = "x86_64")]
            Token::Avx2(s) => s.run(op),
            #[cfg(target_arch = "aarch64")]
            Token::NeonI8mm(s) => s.run(op),
            #[cfg(target_arch = "aarch64")]
            Token::Neon(s) => s.run(op),
            Token::Portable(s) => s.run(op),
        }
    }
}

impl FromStr for AnyIsa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<AnyIsa, UnknownIsa> {
        let wanted = name.to_ascii_lowercase();
        let found = AnyIsa::detect();
        found.iter().copied().find(|isa| isa.kind().name() == wanted).ok_or_else(|| {
            let have: Vec<_> = found.iter().map(|isa| isa.kind().name()).collect();
            UnknownIsa { wanted, have: have.join(", ") }
        })
    }
}
