//! A jet: a named composition of atoms for which kernels may exist.

use std::hash::{Hash, Hasher};

use cyb_tensor::DType;

use crate::{Attrs, Builder, Fact, IrError, ValueId};

/// How far a kernel may be from the definition: |kernel - definition| <= absolute + relative *
/// max(|definition|), where the maximum is over the row the value belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    pub absolute: f32,
    pub relative: f32,
}

/// What a call on f32 alone may be off by, whatever the jet allows for narrower weights.
const WIDE_RELATIVE: f32 = 1e-3;

impl Jet {
    /// The tolerance of a call with inputs of these types. Products round activations to the width
    /// of their weights, so a jet's tolerance has room for that; a call without narrow inputs
    /// rounds nothing and gets none.
    pub fn tolerance_of(&self, inputs: impl IntoIterator<Item = DType>) -> Tolerance {
        let narrow =
            |dtype: DType| dtype.is_quantized() || matches!(dtype, DType::F16 | DType::BF16);
        match inputs.into_iter().any(narrow) {
            true => self.tolerance,
            false => {
                Tolerance { relative: self.tolerance.relative.min(WIDE_RELATIVE), ..self.tolerance }
            }
        }
    }
}

/// Facts and attributes a definition can be instantiated with. Holes in the attributes and symbols
/// in the shapes make it a pattern.
#[derive(Clone, Debug)]
pub struct Signature {
    pub inputs: Vec<Fact>,
    pub attrs: Attrs,
}

/// A definition: a function over the builder.
pub type Define = fn(&mut Builder, &[ValueId], &Attrs) -> Result<Vec<ValueId>, IrError>;

/// How a test fills an input.
#[derive(Clone, Debug)]
pub enum Fill {
    /// Floats of a normal distribution with this deviation.
    Normal(f32),
    /// Integers from 0 up to, not including, this.
    Below(u32),
    /// These integers, repeated as needed.
    Ints(Vec<i64>),
    /// These floats, repeated as needed.
    Floats(Vec<f32>),
}

/// A concrete call that every kernel of the jet is tested with.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub inputs: Vec<(Fact, Fill)>,
    pub attrs: Attrs,
}

impl Case {
    pub fn new(name: impl Into<String>, attrs: Attrs) -> Case {
        Case { name: name.into(), inputs: Vec::new(), attrs }
    }

    /// Adds an input of fixed shape.
    pub fn input(mut self, dtype: DType, shape: &[usize], fill: Fill) -> Case {
        self.inputs.push((Fact::new(dtype, shape.iter().map(|&n| n.into())), fill));
        self
    }

    /// Adds an `F32` input of normally distributed values.
    pub fn normal(self, shape: &[usize]) -> Case {
        self.input(DType::F32, shape, Fill::Normal(1.0))
    }
}

/// Everything the runtime knows about a jet. The table in `cyb-jets` holds one of these per jet.
#[derive(Debug)]
pub struct Jet {
    pub name: &'static str,
    /// One line for people.
    pub summary: &'static str,
    /// The composition: what every kernel must compute.
    pub define: Define,
    /// Instances that recognition looks for in foreign graphs; the first one names the jet's
    /// formula hash.
    pub signatures: fn() -> Vec<Signature>,
    /// Calls that the conformance suite makes on every backend.
    pub cases: fn() -> Vec<Case>,
    pub tolerance: Tolerance,
    /// (input, output) pairs where a kernel overwrites a state in place.
    pub in_place: &'static [(usize, usize)],
}

/// A jet is its name; the table has each name once.
impl PartialEq for Jet {
    fn eq(&self, other: &Jet) -> bool {
        self.name == other.name
    }
}

impl Eq for Jet {}

impl Hash for Jet {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}
