//! The eight atoms. The enum is closed: adding a variant changes what the runtime *is*, and every
//! match on it is without a wildcard. docs/atoms.md states the numeric contract of each.

use std::sync::Arc;

use cyb_tensor::{DType, Dim};

use crate::Graph;

/// A primitive operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Atom {
    /// Elementwise product with broadcasting; on `Bool` it is *and*.
    Mul,
    /// Elementwise sum with broadcasting; on `Bool` it is *or*.
    Add,
    /// Comparison and choice.
    Cmp(Cmp),
    /// The transcendental atom.
    Exp(Exp),
    /// Indexed load: a view, a gather, a cast.
    Read(Read),
    /// Indexed store: scatter, concatenation, encoding.
    Write(Write),
    /// Collapses `axes`, which leave the shape.
    Reduce { kind: Reduce, axes: Vec<usize> },
    /// Windows and ordered scans.
    Slide(Slide),
}

/// Kinds of [`Atom::Cmp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cmp {
    Max,
    Min,
    /// `a < b`, as `Bool`.
    Lt,
    /// `a == b`, as `Bool`.
    Eq,
    /// `select(condition, a, b)`.
    Select,
}

/// Kinds of [`Atom::Exp`], all on floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exp {
    Exp,
    Ln,
    Sqrt,
    Rsqrt,
    Recip,
    Sin,
    Cos,
    Erf,
    Floor,
}

/// A float compared and hashed by its bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Float(u64);

impl Float {
    pub fn new(v: f64) -> Float {
        Float(v.to_bits())
    }

    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl std::fmt::Debug for Float {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

/// Kinds of [`Atom::Read`]. All but `Gather` and `Cast` are views: they move no value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Read {
    /// The same elements in row-major order under another shape.
    Reshape(Vec<Dim>),
    /// Output axis `i` is input axis `perm[i]`.
    Permute(Vec<usize>),
    /// `len` elements of `axis` from `start`, `step` apart; a negative step walks backwards.
    Slice { axis: usize, start: Dim, len: Dim, step: i64 },
    /// Axes of length 1 repeated, and new leading axes, as in NumPy.
    Broadcast(Vec<Dim>),
    /// `axis` extended on both sides by a constant.
    Pad { axis: usize, before: Dim, after: Dim, value: Float },
    /// Inputs (x, index): axis `axis` of `x` is replaced by the axes of `index`.
    Gather { axis: usize },
    /// Elements as another dtype; quantised blocks are decoded.
    Cast(DType),
}

/// What a scatter does where it meets an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scatter {
    Set,
    Add,
    Mul,
    Max,
    Min,
}

/// Kinds of [`Atom::Write`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// Inputs (base, index[M], updates): rows `index` of `axis` are combined with `updates`, whose
    /// `axis` has length M, in ascending order of M.
    Scatter { axis: usize, mode: Scatter },
    /// Inputs joined along `axis`.
    Concat { axis: usize },
    /// Floats stored as `dtype`, quantised ones included.
    Encode(DType),
}

/// Kinds of [`Atom::Reduce`]. `Argmax` and `Argmin` give the lowest index on a tie, as `I64`, and
/// take one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduce {
    Sum,
    Prod,
    Max,
    Min,
    Argmax,
    Argmin,
}

/// Kinds of [`Atom::Slide`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Slide {
    /// `axis` of length L becomes its (L - dilation*(size-1) - 1) / stride + 1 windows, whose
    /// elements lie along a new last axis.
    Window { axis: usize, size: usize, stride: usize, dilation: usize },
    /// Inputs (states..., sequences...): `body` maps (states..., elements...) to (states...,
    /// results...) for each index of the sequences' first axis in order. Outputs are the last
    /// states, then each result stacked along a new first axis.
    Scan { states: usize, body: Arc<Graph> },
}

impl Atom {
    /// The name in the text form.
    pub fn name(&self) -> &'static str {
        match self {
            Atom::Mul => "mul",
            Atom::Add => "add",
            Atom::Cmp(_) => "cmp",
            Atom::Exp(_) => "exp",
            Atom::Read(_) => "read",
            Atom::Write(_) => "write",
            Atom::Reduce { .. } => "reduce",
            Atom::Slide(_) => "slide",
        }
    }

    /// Whether the first two operands may be exchanged.
    pub fn is_commutative(&self) -> bool {
        matches!(self, Atom::Mul | Atom::Add | Atom::Cmp(Cmp::Max | Cmp::Min | Cmp::Eq))
    }

    /// Whether the atom only rearranges elements.
    pub fn is_view(&self) -> bool {
        matches!(
            self,
            Atom::Read(
                Read::Reshape(_) | Read::Permute(_) | Read::Slice { .. } | Read::Broadcast(_)
            )
        )
    }
}
