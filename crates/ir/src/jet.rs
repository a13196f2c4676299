//! A jet: a named composition of atoms for which kernels may exist.

use std::hash::{Hash, Hasher};

use crate::{Attrs, Builder, Fact, IrError, ValueId};

/// How far a kernel may be from the definition: |kernel - definition| <= absolute + relative *
/// max(|definition|), where the maximum is over the row the value belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    pub absolute: f32,
    pub relative: f32,
}

/// Facts and attributes a definition can be instantiated with. Holes in the attributes and symbols
/// in the shapes make it a pattern.
#[derive(Clone, Debug)]
pub struct Signature {
    pub inputs: Vec<Fact>,
    pub attrs: Attrs,
}

/// Everything the runtime knows about a jet. The table in `cyb-jets` holds one of these per jet.
#[derive(Debug)]
pub struct Jet {
    pub name: &'static str,
    /// One line for people.
    pub summary: &'static str,
    /// The composition: what every kernel must compute.
    pub define: fn(&mut Builder, &[ValueId], &Attrs) -> Result<Vec<ValueId>, IrError>,
    /// Instances that recognition looks for in foreign graphs; the first one names the jet's
    /// formula hash.
    pub signatures: fn() -> Vec<Signature>,
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
