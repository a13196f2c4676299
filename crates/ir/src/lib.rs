//! The graph: a DAG of typed tensor operations, each an atom or a jet.
//!
//! The one idea: there are eight atoms and nothing else has a meaning of its own. A jet is a name
//! for a composition of atoms, and [`Jet::define`] is that composition. Facts about a jet's
//! outputs, the pattern that finds it in foreign graphs and the oracle for its kernels all come
//! from running `define` over a [`Builder`].

#![forbid(unsafe_code)]

mod atom;
mod attrs;
mod build;
mod expand;
mod graph;
mod hash;
mod infer;
mod jet;
mod patch;
mod pattern;
mod text;
mod verify;

#[cfg(test)]
mod tests;

pub use atom::{Atom, Cmp, Exp, Float, Read, Reduce, Scatter, Slide, Write};
pub use attrs::{Attr, Attrs};
pub use build::Builder;
pub use expand::expand;
pub use graph::{Fact, Graph, IrError, Node, NodeId, Op, Residency, Source, Value, ValueId};
pub use hash::{FormulaHash, formula_hash, node_hash};
pub use infer::infer;
pub use jet::{Case, Define, Fill, Jet, Signature, Tolerance};
pub use patch::{Applied, Outcome, Patch, Rule, Tap, apply_rules, sweep};
pub use pattern::{Match, match_jet};
pub use text::{ParseError, parse, print};
pub use verify::verify;
