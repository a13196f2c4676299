//! Formula hashes: BLAKE3 over a canonical form of a graph of atoms.
//!
//! The canonical form walks the graph from its outputs. Leaves are renamed by the order in which
//! the walk meets them, attributes count by their exact bits, operands of commutative atoms are
//! ordered by their own hashes, and shared values are written once. Names, labels and the order in
//! which a builder added nodes do not matter.

use std::collections::HashMap;
use std::fmt;

use crate::{Builder, graph::Node};
use crate::{Fact, Graph, IrError, Jet, Op, Source, ValueId, infer, jet::Signature};

/// The identity of a composition of atoms.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FormulaHash([u8; 32]);

impl FormulaHash {
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for FormulaHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for FormulaHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Jet {
    /// The composition as a graph with inputs "0", "1", ... and outputs likewise.
    pub fn instantiate(&self, inputs: &[Fact], attrs: &crate::Attrs) -> Result<Graph, IrError> {
        let mut b = Builder::new();
        let ids: Vec<ValueId> =
            inputs.iter().enumerate().map(|(i, f)| b.input(&i.to_string(), f.clone())).collect();
        let outputs = (self.define)(&mut b, &ids, attrs)?;
        for (i, &v) in outputs.iter().enumerate() {
            b.output(&i.to_string(), v);
        }
        Ok(b.finish())
    }

    /// The hash of the jet's first signature.
    pub fn formula_hash(&self) -> Result<FormulaHash, IrError> {
        let signatures = (self.signatures)();
        let Some(Signature { inputs, attrs }) = signatures.first() else {
            return Err(IrError::Illegal(format!("jet {} has no signature", self.name)));
        };
        Ok(formula_hash(&self.instantiate(inputs, attrs)?))
    }
}

/// The hash of one node: its operation on inputs with these facts, jets by their definition.
pub fn node_hash(graph: &Graph, node: &Node) -> Result<FormulaHash, IrError> {
    let facts: Vec<Fact> = node.inputs.iter().map(|&v| graph.fact(v).clone()).collect();
    let mut b = Builder::new();
    let ids: Vec<ValueId> =
        facts.iter().enumerate().map(|(i, f)| b.input(&i.to_string(), f.clone())).collect();
    let outputs = match &node.op {
        Op::Atom(_) => b.push(node.op.clone(), &ids)?,
        Op::Jet(jet, attrs) => (jet.define)(&mut b, &ids, attrs)?,
    };
    for (i, &v) in outputs.iter().enumerate() {
        b.output(&i.to_string(), v);
    }
    Ok(formula_hash(&b.finish()))
}

/// The hash of what `graph` computes.
pub fn formula_hash(graph: &Graph) -> FormulaHash {
    let mut walk = Walk { graph, local: HashMap::new(), leaves: HashMap::new() };
    let mut hasher = blake3::Hasher::new();
    for (_, v) in &graph.outputs {
        // Position-independent hashes decide the order of commutative operands; the second pass
        // names the leaves in that order.
        let tag = walk.value(*v, Naming::Anonymous);
        hasher.update(&tag);
    }
    walk.local.clear();
    for (_, v) in &graph.outputs {
        let tag = walk.value(*v, Naming::ByFirstUse);
        hasher.update(&tag);
    }
    FormulaHash(*hasher.finalize().as_bytes())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Naming {
    /// Leaves are told apart by their facts only.
    Anonymous,
    /// Leaves are numbered as the walk meets them.
    ByFirstUse,
}

struct Walk<'g> {
    graph: &'g Graph,
    local: HashMap<(ValueId, bool), [u8; 32]>,
    leaves: HashMap<ValueId, usize>,
}

impl Walk<'_> {
    fn value(&mut self, v: ValueId, naming: Naming) -> [u8; 32] {
        let key = (v, naming == Naming::ByFirstUse);
        if let Some(hash) = self.local.get(&key) {
            return *hash;
        }
        let mut hasher = blake3::Hasher::new();
        let value = self.graph.value(v);
        match &value.source {
            Source::Const(tensor) => {
                hasher.update(b"const").update(value.fact.to_string().as_bytes());
                hasher.update(tensor.bytes().as_slice());
            }
            Source::Iota => {
                hasher.update(b"iota").update(value.fact.to_string().as_bytes());
            }
            Source::Hole(name) => {
                hasher.update(b"hole").update(name.as_bytes());
            }
            Source::Input(_) | Source::Weight(..) | Source::State(_) => {
                hasher.update(b"leaf").update(value.fact.to_string().as_bytes());
                if naming == Naming::ByFirstUse {
                    let next = self.leaves.len();
                    let index = *self.leaves.entry(v).or_insert(next);
                    hasher.update(&index.to_le_bytes());
                }
            }
            Source::Node(id, output) => {
                let node = self.graph.node(*id);
                let mut order = node.inputs.clone();
                let commutes = matches!(&node.op, Op::Atom(a) if a.is_commutative());
                if commutes {
                    order.sort_by_cached_key(|&i| self.value(i, Naming::Anonymous));
                }
                hasher.update(b"node").update(op_form(&node.op).as_bytes());
                hasher.update(&output.to_le_bytes());
                for i in order {
                    let tag = self.value(i, naming);
                    hasher.update(&tag);
                }
            }
        }
        let hash = *hasher.finalize().as_bytes();
        self.local.insert(key, hash);
        hash
    }
}

/// The operation with its attributes, exactly.
fn op_form(op: &Op) -> String {
    match op {
        Op::Atom(atom) => crate::text::atom_form(atom),
        Op::Jet(jet, attrs) => {
            let attrs: Vec<String> = attrs.iter().map(|(k, v)| format!("{k}={v}")).collect();
            format!("jet {}({})", jet.name, attrs.join(", "))
        }
    }
}

impl PartialEq for Graph {
    /// Graphs are equal when they compute the same formula.
    fn eq(&self, other: &Graph) -> bool {
        formula_hash(self) == formula_hash(other)
    }
}

impl Eq for Graph {}

impl std::hash::Hash for Graph {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        formula_hash(self).hash(state);
    }
}

/// The facts `infer` gives for a node, for checks that a graph still holds together.
pub(crate) fn inferred(graph: &Graph, node: &Node) -> Result<Vec<Fact>, IrError> {
    let facts: Vec<&Fact> = node.inputs.iter().map(|&v| graph.fact(v)).collect();
    infer(&node.op, &facts)
}
