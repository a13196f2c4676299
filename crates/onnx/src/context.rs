//! What an operator sees: its inputs, its attributes, and the graph that it adds to.

use std::collections::{HashMap, HashSet};

use cyb_formats::onnx::{Attribute, Elem, Node};
use cyb_ir::{Builder, ValueId};
use cyb_tensor::{Class, DType, Dim, Tensor};
use indexmap::IndexMap;

use crate::error::{HostCall, HostFn, OpError, bad};
use crate::value::{Val, X, to_floats, to_ints};

/// Constants above this size are weights, which later passes leave alone.
const WEIGHT_BYTES: usize = 1 << 14;

pub(crate) type Made = Result<ValueId, OpError>;
pub(crate) type Outputs = Result<Vec<Val>, OpError>;

/// What is already in the graph.
#[derive(Debug, Default)]
pub(crate) struct Placed {
    /// Constants by where their bytes are.
    weights: HashMap<(usize, DType, Vec<usize>), ValueId>,
    /// Values that the file itself narrows, by a `Cast`.
    pub(crate) cast: HashSet<ValueId>,
    /// Floats that were decoded from 8-bit codes with one scale.
    pub(crate) decoded: HashMap<ValueId, Decoded>,
    /// Floats that are exact sums of products of codes times numbers.
    pub(crate) scaled: HashMap<ValueId, Scaled>,
}

/// Integers and the numbers they are multiplied with: one for all, or lined up with them.
#[derive(Clone, Debug)]
pub(crate) struct Scaled {
    pub(crate) sums: ValueId,
    pub(crate) factors: Tensor,
}

/// Codes `(codes - zero) * scale`, with one scale and one zero point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoded {
    pub(crate) codes: X,
    pub(crate) scale: ValueId,
    pub(crate) zero: Option<X>,
}

/// Attributes of a function call, which nodes of the function refer to.
pub(crate) type Refs = IndexMap<String, Attribute>;

#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) b: &'a mut Builder,
    pub(crate) node: &'a Node,
    pub(crate) inputs: Vec<Val>,
    pub(crate) opset: i64,
    pub(crate) refs: Option<&'a Refs>,
    pub(crate) placed: &'a mut Placed,
    pub(crate) notes: &'a mut Vec<Note>,
}

/// What was found, or nearly found, in a graph that spells out a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The node that ends the layer.
    pub node: String,
    /// The jet that the layer is, or the fusion that took it.
    pub jet: String,
    /// Why it is not, where it nearly is.
    pub missed: Option<String>,
}

impl Context<'_> {
    /// Notes that the node ends a layer that is a jet.
    pub(crate) fn found(&mut self, jet: &str) {
        let node = self.node.name.clone();
        self.notes.push(Note { node, jet: jet.to_owned(), missed: None });
    }

    /// Notes why a layer that looks like a jet is not one.
    pub(crate) fn missed(&mut self, jet: &str, why: &str) {
        let (node, missed) = (self.node.name.clone(), Some(why.to_owned()));
        self.notes.push(Note { node, jet: jet.to_owned(), missed });
    }

    /// Input `i` as a value of the graph.
    pub(crate) fn x(&mut self, i: usize) -> Result<X, OpError> {
        let Some(val) = self.inputs.get(i).cloned() else {
            return bad(format!("input {i} is missing"));
        };
        self.place(&val).map_err(|e| match e {
            OpError::Bad(why) => OpError::Bad(format!("input {i} {why}")),
            other => other,
        })
    }

    /// A tensor as a value of the graph.
    pub(crate) fn place(&mut self, val: &Val) -> Result<X, OpError> {
        match val {
            Val::Value(x) => Ok(*x),
            Val::Known { elem, tensor } => Ok(X { id: self.constant(tensor), elem: *elem }),
            Val::Codes(codes) => {
                let tensor = codes.decoded()?;
                Ok(X { id: self.constant(&tensor), elem: Elem::F32 })
            }
            Val::None => bad("is missing"),
            Val::Strings { .. } => bad("holds strings, which no operator here computes with"),
            Val::Sequence(_) => bad("is a sequence, not a tensor"),
        }
    }

    pub(crate) fn constant(&mut self, tensor: &Tensor) -> ValueId {
        if tensor.bytes().len() < WEIGHT_BYTES {
            return self.b.constant(tensor.clone());
        }
        let at = tensor.bytes().as_slice().as_ptr() as usize;
        let key = (at, tensor.dtype(), tensor.shape().to_vec());
        let b = &mut *self.b;
        *self
            .placed
            .weights
            .entry(key)
            .or_insert_with(|| b.weight(&format!("w{at:x}"), tensor.clone()))
    }

    pub(crate) fn has(&self, i: usize) -> bool {
        self.inputs.get(i).is_some_and(|v| !v.is_none())
    }

    pub(crate) fn opt(&mut self, i: usize) -> Result<Option<X>, OpError> {
        if self.has(i) { self.x(i).map(Some) } else { Ok(None) }
    }

    /// Input `i` when it is known before the run; `Need` when only a run tells.
    pub(crate) fn known(&self, i: usize) -> Result<(Elem, Tensor), OpError> {
        match self.inputs.get(i) {
            Some(Val::Known { elem, tensor }) => Ok((*elem, tensor.clone())),
            Some(Val::Codes(codes)) => Ok((Elem::F32, codes.decoded()?)),
            Some(Val::Value(x)) => Err(OpError::Need(x.id)),
            Some(Val::Strings { .. } | Val::Sequence(_)) => {
                bad(format!("input {i} is not a tensor of numbers"))
            }
            Some(Val::None) | None => bad(format!("input {i} is missing")),
        }
    }

    /// Whether input `i` is known before the run.
    pub(crate) fn constant_input(&self, i: usize) -> Option<&Tensor> {
        match self.inputs.get(i) {
            Some(Val::Known { tensor, .. }) => Some(tensor),
            _ => None,
        }
    }

    pub(crate) fn ints(&self, i: usize) -> Result<Vec<i64>, OpError> {
        to_ints(&self.known(i)?.1)
    }

    pub(crate) fn opt_ints(&self, i: usize) -> Result<Option<Vec<i64>>, OpError> {
        if self.has(i) { self.ints(i).map(Some) } else { Ok(None) }
    }

    /// The one integer of input `i`.
    pub(crate) fn int_input(&self, i: usize) -> Result<i64, OpError> {
        match self.ints(i)?.as_slice() {
            [n] => Ok(*n),
            other => bad(format!("input {i} must be one integer, not {}", other.len())),
        }
    }

    pub(crate) fn floats(&self, i: usize) -> Result<Vec<f64>, OpError> {
        to_floats(&self.known(i)?.1)
    }

    /// Runs between two graphs, or now when every input is known.
    pub(crate) fn host(
        &self,
        inputs: &[usize],
        run: impl Fn(&[Tensor]) -> Result<Vec<(Elem, Tensor)>, String> + Send + Sync + 'static,
    ) -> Outputs {
        let inputs: Vec<Val> =
            inputs.iter().map(|&i| self.inputs.get(i).cloned().unwrap_or(Val::None)).collect();
        let known: Option<Vec<Tensor>> = inputs
            .iter()
            .map(|v| match v {
                Val::Known { tensor, .. } => Some(tensor.clone()),
                Val::Codes(codes) => codes.decoded().ok(),
                _ => None,
            })
            .collect();
        if let Some(known) = known {
            let made = run(&known).map_err(OpError::Bad)?;
            return Ok(made
                .into_iter()
                .map(|(elem, tensor)| Val::Known { elem, tensor })
                .collect());
        }
        if let Some(wrong) = inputs
            .iter()
            .position(|v| matches!(v, Val::None | Val::Strings { .. } | Val::Sequence(_)))
        {
            return bad(format!("input {wrong} is not a tensor of numbers"));
        }
        let run: std::sync::Arc<HostFn> = std::sync::Arc::new(run);
        Err(OpError::Host(HostCall { inputs, run }))
    }

    pub(crate) fn dtype(&self, v: ValueId) -> DType {
        self.b.fact(v).dtype
    }

    pub(crate) fn rank(&self, v: ValueId) -> usize {
        self.b.fact(v).rank()
    }

    /// The shape, which is always known: graphs are imported for the shapes at hand.
    pub(crate) fn dims(&self, v: ValueId) -> Result<Vec<usize>, OpError> {
        let known = self.b.shape(v).iter().map(Dim::known).collect::<Option<Vec<usize>>>();
        known.ok_or_else(|| OpError::Bad(format!("{} has a negative size", self.b.fact(v))))
    }

    pub(crate) fn attr(&self, name: &str) -> Result<Option<&Attribute>, OpError> {
        match self.node.attributes.get(name) {
            Some(Attribute::Ref(outer)) => Ok(self.refs.and_then(|refs| refs.get(outer))),
            other => Ok(other),
        }
    }

    fn wrong<T>(&self, name: &str, want: &str) -> Result<T, OpError> {
        bad(format!("attribute {name} must be {want}"))
    }

    pub(crate) fn opt_int(&self, name: &str) -> Result<Option<i64>, OpError> {
        match self.attr(name)? {
            None => Ok(None),
            Some(Attribute::Int(n)) => Ok(Some(*n)),
            Some(_) => self.wrong(name, "an integer"),
        }
    }

    pub(crate) fn int(&self, name: &str, default: i64) -> Result<i64, OpError> {
        Ok(self.opt_int(name)?.unwrap_or(default))
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, OpError> {
        Ok(self.int(name, i64::from(default))? != 0)
    }

    pub(crate) fn opt_float(&self, name: &str) -> Result<Option<f64>, OpError> {
        match self.attr(name)? {
            None => Ok(None),
            Some(Attribute::Float(x)) => Ok(Some(f64::from(*x))),
            Some(Attribute::Int(n)) => Ok(Some(*n as f64)),
            Some(_) => self.wrong(name, "a float"),
        }
    }

    pub(crate) fn float(&self, name: &str, default: f64) -> Result<f64, OpError> {
        Ok(self.opt_float(name)?.unwrap_or(default))
    }

    pub(crate) fn text(&self, name: &str, default: &str) -> Result<String, OpError> {
        match self.attr(name)? {
            None => Ok(default.to_owned()),
            Some(Attribute::Str(bytes)) => Ok(String::from_utf8_lossy(bytes).into_owned()),
            Some(_) => self.wrong(name, "a string"),
        }
    }

    pub(crate) fn texts(&self, name: &str) -> Result<Vec<String>, OpError> {
        match self.attr(name)? {
            None => Ok(Vec::new()),
            Some(Attribute::Strs(all)) => {
                Ok(all.iter().map(|s| String::from_utf8_lossy(s).into_owned()).collect())
            }
            Some(_) => self.wrong(name, "a list of strings"),
        }
    }

    pub(crate) fn opt_int_list(&self, name: &str) -> Result<Option<Vec<i64>>, OpError> {
        match self.attr(name)? {
            None => Ok(None),
            Some(Attribute::Ints(list)) => Ok(Some(list.clone())),
            // A list without elements has no type.
            Some(Attribute::Floats(list)) if list.is_empty() => Ok(Some(Vec::new())),
            Some(_) => self.wrong(name, "a list of integers"),
        }
    }

    pub(crate) fn float_list(&self, name: &str) -> Result<Option<Vec<f64>>, OpError> {
        match self.attr(name)? {
            None => Ok(None),
            Some(Attribute::Floats(list)) => Ok(Some(list.iter().map(|&x| f64::from(x)).collect())),
            Some(Attribute::Ints(list)) if list.is_empty() => Ok(Some(Vec::new())),
            Some(_) => self.wrong(name, "a list of floats"),
        }
    }

    /// An axis counted from the end when it is negative.
    pub(crate) fn axis(&self, axis: i64, rank: usize) -> Result<usize, OpError> {
        let from_start = if axis < 0 { axis + rank as i64 } else { axis };
        match usize::try_from(from_start) {
            Ok(i) if i < rank => Ok(i),
            _ => bad(format!("axis {axis} is outside a tensor of {rank} axes")),
        }
    }

    /// Axes in ascending order, each once.
    pub(crate) fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>, OpError> {
        let mut out: Vec<usize> =
            axes.iter().map(|&a| self.axis(a, rank)).collect::<Result<_, _>>()?;
        out.sort_unstable();
        out.dedup();
        if out.len() != axes.len() {
            return bad("an axis is named twice");
        }
        Ok(out)
    }

    /// The only output.
    pub(crate) fn one(&self, id: ValueId, elem: Elem) -> Outputs {
        Ok(vec![Val::Value(X { id, elem })])
    }

    /// The only output, with the plain type of its dtype.
    pub(crate) fn plain(&self, id: ValueId) -> Outputs {
        let dtype = self.dtype(id);
        match Elem::of(dtype) {
            Some(elem) => self.one(id, elem),
            None => bad(format!("{dtype} has no ONNX type")),
        }
    }

    /// Outputs with the plain types of their dtypes.
    pub(crate) fn several(&self, ids: &[ValueId]) -> Outputs {
        let each = ids.iter().map(|&id| Ok(self.plain(id)?.remove(0)));
        each.collect()
    }

    /// How many outputs are wanted.
    pub(crate) fn wanted(&self, i: usize) -> bool {
        self.node.outputs.get(i).is_some_and(|name| !name.is_empty())
    }

    pub(crate) fn is_float(&self, v: ValueId) -> bool {
        self.dtype(v).class() == Class::Float
    }
}
