//! Finding a jet in a graph of atoms: the jet's definition, instantiated on a signature, is the
//! pattern.
//!
//! Matching walks pattern and graph together from the result towards the leaves. A pattern input
//! binds to any value whose dtype fits, a hole to any scalar constant, a shape symbol to any
//! dimension; a second meeting must agree with the first. Constants match by their exact bits.
//! Commutative operands are tried both ways, undoing what a failed try has bound.

use std::collections::HashMap;

use cyb_tensor::{DType, Dim};

use crate::{Atom, Attr, Attrs, Fact, Graph, IrError, Jet, Op, Read, Signature, Source, ValueId};

/// A jet found: what to apply it to.
#[derive(Clone, Debug)]
pub struct Match {
    pub jet: &'static Jet,
    pub inputs: Vec<ValueId>,
    pub attrs: Attrs,
}

/// Whether `root` is the first output of `jet`, and on which inputs. Inputs that a definition does
/// not use cannot be found and make the match fail.
pub fn match_jet(
    graph: &Graph,
    root: ValueId,
    jet: &'static Jet,
) -> Result<Option<Match>, IrError> {
    for signature in (jet.signatures)() {
        let pattern = jet.instantiate(&signature.inputs, &signature.attrs)?;
        let Some((_, top)) = pattern.outputs.first() else { continue };
        let mut unify = Unify { graph, pattern: &pattern, bound: Bound::default() };
        if unify.value(*top, root)
            && let Some(found) = unify.bound.into_match(jet, &signature)
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[derive(Clone, Default)]
struct Bound {
    values: HashMap<ValueId, ValueId>,
    inputs: HashMap<String, ValueId>,
    holes: HashMap<String, Attr>,
    dims: HashMap<String, Dim>,
}

impl Bound {
    fn into_match(mut self, jet: &'static Jet, signature: &Signature) -> Option<Match> {
        let inputs: Option<Vec<ValueId>> =
            (0..signature.inputs.len()).map(|i| self.inputs.remove(&i.to_string())).collect();
        let attrs: Option<Attrs> = signature
            .attrs
            .iter()
            .map(|(name, attr)| match attr {
                Attr::Hole => Some((name.to_owned(), self.holes.remove(name)?)),
                known => Some((name.to_owned(), known.clone())),
            })
            .collect();
        Some(Match { jet, inputs: inputs?, attrs: attrs? })
    }
}

struct Unify<'a> {
    graph: &'a Graph,
    pattern: &'a Graph,
    bound: Bound,
}

impl Unify<'_> {
    fn value(&mut self, p: ValueId, v: ValueId) -> bool {
        if let Some(&seen) = self.bound.values.get(&p) {
            return seen == v;
        }
        let fits = match &self.pattern.value(p).source {
            Source::Input(name) => {
                self.fact(self.pattern.fact(p), self.graph.fact(v)) && {
                    self.bound.inputs.insert(name.to_string(), v);
                    true
                }
            }
            Source::Hole(name) => self.hole(name, v),
            Source::Const(want) => self.graph.tensor(v).is_some_and(|got| {
                got.dtype() == want.dtype()
                    && got.shape() == want.shape()
                    && got.bytes().as_slice() == want.bytes().as_slice()
            }),
            Source::Iota => {
                matches!(self.graph.value(v).source, Source::Iota)
                    && self.fact(self.pattern.fact(p), self.graph.fact(v))
            }
            Source::Node(..) => self.node(p, v),
            Source::Weight(..) | Source::State(_) => false,
        };
        if fits {
            self.bound.values.insert(p, v);
        }
        fits
    }

    fn hole(&mut self, name: &str, v: ValueId) -> bool {
        let Some(tensor) = self.graph.tensor(v).filter(|t| t.elems() == 1) else { return false };
        let number = match tensor.dtype() {
            DType::F32 => tensor.to_f32_vec().ok().and_then(|x| x.first().map(|&x| f64::from(x))),
            DType::F64 => tensor.to_vec::<f64>(DType::F64).ok().and_then(|x| x.first().copied()),
            _ => None,
        };
        let Some(attr) = number.map(Attr::from) else { return false };
        match self.bound.holes.get(name) {
            Some(seen) => *seen == attr,
            None => {
                self.bound.holes.insert(name.to_owned(), attr);
                true
            }
        }
    }

    fn node(&mut self, p: ValueId, v: ValueId) -> bool {
        let (Source::Node(pn, po), Source::Node(vn, vo)) =
            (&self.pattern.value(p).source, &self.graph.value(v).source)
        else {
            return false;
        };
        let (pn, vn) = (self.pattern.node(*pn), self.graph.node(*vn));
        if po != vo || pn.inputs.len() != vn.inputs.len() || !self.op(&pn.op, &vn.op) {
            return false;
        }
        let before = self.bound.clone();
        if pn.inputs.iter().zip(&vn.inputs).all(|(&p, &v)| self.value(p, v)) {
            return true;
        }
        self.bound = before;
        let commutes = matches!(&pn.op, Op::Atom(a) if a.is_commutative());
        commutes && self.value(pn.inputs[0], vn.inputs[1]) && self.value(pn.inputs[1], vn.inputs[0])
    }

    fn op(&mut self, p: &Op, v: &Op) -> bool {
        if let (Op::Atom(Atom::Read(p)), Op::Atom(Atom::Read(v))) = (p, v) {
            return self.read(p, v);
        }
        p == v
    }

    fn read(&mut self, p: &Read, v: &Read) -> bool {
        match (p, v) {
            (Read::Reshape(p), Read::Reshape(v)) | (Read::Broadcast(p), Read::Broadcast(v)) => {
                self.dims(p, v)
            }
            (
                Read::Slice { axis: pa, start: ps, len: pl, step: pt },
                Read::Slice { axis: va, start: vs, len: vl, step: vt },
            ) => pa == va && pt == vt && self.dim(ps, vs) && self.dim(pl, vl),
            _ => p == v,
        }
    }

    fn fact(&mut self, p: &Fact, v: &Fact) -> bool {
        p.dtype == v.dtype && self.dims(&p.shape, &v.shape)
    }

    fn dims(&mut self, p: &[Dim], v: &[Dim]) -> bool {
        p.len() == v.len() && p.iter().zip(v).all(|(p, v)| self.dim(p, v))
    }

    fn dim(&mut self, p: &Dim, v: &Dim) -> bool {
        if let Some(name) = p.as_symbol() {
            return match self.bound.dims.get(name) {
                Some(seen) => seen == v,
                None => {
                    self.bound.dims.insert(name.to_owned(), v.clone());
                    true
                }
            };
        }
        let bound = &self.bound.dims;
        let known = p.symbols().iter().all(|s| bound.contains_key(&**s));
        known && p.substitute(&|s| bound.get(s).cloned()) == *v
    }
}
