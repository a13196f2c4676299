//! The builder: the vocabulary in which jets are defined and models are written.
//!
//! Every operation is checked when it is added, and an operation that is already in the graph is
//! not added again, so equal expressions are one value.

use std::collections::HashMap;
use std::sync::Arc;

use cyb_tensor::{AlignedBytes, Bytes, DType, Dim, Tensor};

use crate::{
    Atom, Attr, Attrs, Cmp, Exp, Fact, Float, Graph, IrError, Jet, Node, NodeId, Op, Read, Reduce,
    Residency, Scatter, Slide, Source, Value, ValueId, Write, infer,
};

/// Constants up to this size are made once.
const SHARED_CONST_BYTES: usize = 64;

/// Grows a graph one operation at a time.
#[derive(Debug, Default)]
pub struct Builder {
    graph: Graph,
    known: HashMap<(Op, Vec<ValueId>), Vec<ValueId>>,
    consts: HashMap<(DType, Vec<usize>, Vec<u8>), ValueId>,
    iotas: HashMap<Dim, ValueId>,
    /// Facts that definitions gave: layers repeat each other's calls.
    inferred: HashMap<(Op, Vec<Fact>), Vec<Fact>>,
    label: Arc<str>,
}

type Built = Result<ValueId, IrError>;

impl Builder {
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Continues a graph.
    pub fn over(graph: Graph) -> Builder {
        Builder { graph, ..Builder::default() }
    }

    pub fn finish(self) -> Graph {
        self.graph
    }

    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    pub fn fact(&self, v: ValueId) -> &Fact {
        self.graph.fact(v)
    }

    pub fn shape(&self, v: ValueId) -> &[Dim] {
        &self.fact(v).shape
    }

    pub fn dim(&self, v: ValueId, axis: usize) -> Result<Dim, IrError> {
        self.shape(v).get(axis).cloned().ok_or_else(|| IrError::Operand {
            op: "dim".into(),
            facts: self.fact(v).to_string(),
            why: format!("there is no axis {axis}"),
        })
    }

    /// The index of the innermost axis.
    pub fn last_axis(&self, v: ValueId) -> Result<usize, IrError> {
        self.fact(v).rank().checked_sub(1).ok_or_else(|| IrError::Operand {
            op: "last axis".into(),
            facts: self.fact(v).to_string(),
            why: "a scalar has no axes".into(),
        })
    }

    /// Labels the nodes that follow, for people.
    pub fn set_label(&mut self, label: &str) {
        self.label = label.into();
    }

    fn leaf(&mut self, fact: Fact, source: Source) -> ValueId {
        self.graph.values.push(Value { fact, source });
        ValueId(self.graph.values.len() as u32 - 1)
    }

    pub fn input(&mut self, name: &str, fact: Fact) -> ValueId {
        self.leaf(fact, Source::Input(name.into()))
    }

    pub fn state(&mut self, name: &str, fact: Fact) -> ValueId {
        self.leaf(fact, Source::State(name.into()))
    }

    pub fn weight(&mut self, name: &str, tensor: Tensor) -> ValueId {
        let source = Source::Weight(name.into(), tensor.clone(), Residency::default());
        self.leaf(Fact::of(&tensor), source)
    }

    /// A literal tensor; small ones are shared.
    pub fn constant(&mut self, tensor: Tensor) -> ValueId {
        if tensor.bytes().len() > SHARED_CONST_BYTES {
            return self.leaf(Fact::of(&tensor), Source::Const(tensor));
        }
        let bytes = tensor.bytes().as_slice().to_vec();
        let key = (tensor.dtype(), tensor.shape().to_vec(), bytes);
        if let Some(&v) = self.consts.get(&key) {
            return v;
        }
        let v = self.leaf(Fact::of(&tensor), Source::Const(tensor));
        self.consts.insert(key, v);
        v
    }

    /// A rank-0 constant with the value nearest to `value` in `dtype`.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> Built {
        let bytes = scalar_bytes(dtype, value).ok_or_else(|| IrError::Operand {
            op: "scalar".into(),
            facts: dtype.to_string(),
            why: "a scalar is a plain number".into(),
        })?;
        let bytes = Bytes::owned(AlignedBytes::from_slice(&bytes));
        let tensor =
            Tensor::new(dtype, vec![], bytes).map_err(|e| IrError::Illegal(e.to_string()))?;
        Ok(self.constant(tensor))
    }

    /// A float attribute as a rank-0 value of `dtype`: a constant, or a hole when the attribute is
    /// one.
    pub fn attr_scalar(&mut self, attrs: &Attrs, name: &str, dtype: DType) -> Built {
        if attrs.get(name) == Some(&Attr::Hole) {
            return Ok(self.leaf(Fact::new(dtype, []), Source::Hole(name.into())));
        }
        self.scalar(dtype, attrs.float(name)?)
    }

    /// 0, 1, ... `len` - 1 as `I64`.
    pub fn iota(&mut self, len: Dim) -> ValueId {
        if let Some(&v) = self.iotas.get(&len) {
            return v;
        }
        let v = self.leaf(Fact::new(DType::I64, [len.clone()]), Source::Iota);
        self.iotas.insert(len, v);
        v
    }

    /// Adds an operation with any number of outputs.
    pub fn push(&mut self, op: Op, inputs: &[ValueId]) -> Result<Vec<ValueId>, IrError> {
        self.push_known(op, inputs, None)
    }

    /// Adds a node of another graph, on inputs that stand for its own. Where they have the same facts
    /// the outputs do too, and nothing is inferred again.
    pub(crate) fn push_node(
        &mut self,
        of: &Graph,
        node: &Node,
        inputs: &[ValueId],
    ) -> Result<Vec<ValueId>, IrError> {
        let pairs = node.inputs.iter().zip(inputs);
        let same = pairs.into_iter().all(|(&old, &new)| of.fact(old) == self.fact(new));
        let facts = same.then(|| node.outputs.iter().map(|&v| of.fact(v).clone()).collect());
        self.push_known(node.op.clone(), inputs, facts)
    }

    /// Adds an operation whose outputs have these facts, if somebody knows.
    fn push_known(
        &mut self,
        op: Op,
        inputs: &[ValueId],
        facts: Option<Vec<Fact>>,
    ) -> Result<Vec<ValueId>, IrError> {
        let key = (op, inputs.to_vec());
        if let Some(outputs) = self.known.get(&key) {
            return Ok(outputs.clone());
        }
        let facts = match facts {
            Some(facts) => facts,
            None => self.infer(&key.0, inputs)?,
        };
        let node = NodeId(self.graph.nodes.len() as u32);
        let outputs: Vec<ValueId> = facts
            .into_iter()
            .enumerate()
            .map(|(i, fact)| self.leaf(fact, Source::Node(node, i)))
            .collect();
        self.graph.nodes.push(Node {
            op: key.0.clone(),
            inputs: key.1.clone(),
            outputs: outputs.clone(),
            label: self.label.clone(),
            backend_hint: None,
        });
        self.known.insert(key, outputs.clone());
        Ok(outputs)
    }

    fn infer(&mut self, op: &Op, inputs: &[ValueId]) -> Result<Vec<Fact>, IrError> {
        let facts = inputs.iter().map(|&v| self.graph.fact(v));
        if let Op::Atom(_) = op {
            return infer(op, &facts.collect::<Vec<_>>());
        }
        let key = (op.clone(), facts.cloned().collect::<Vec<_>>());
        if let Some(known) = self.inferred.get(&key) {
            return Ok(known.clone());
        }
        let outputs = infer(op, &key.1.iter().collect::<Vec<_>>())?;
        self.inferred.insert(key, outputs.clone());
        Ok(outputs)
    }

    fn atom(&mut self, atom: Atom, inputs: &[ValueId]) -> Built {
        Ok(self.push(Op::Atom(atom), inputs)?[0])
    }

    /// Applies a jet with one output.
    pub fn jet(&mut self, jet: &'static Jet, attrs: Attrs, inputs: &[ValueId]) -> Built {
        Ok(self.jet_outputs(jet, attrs, inputs)?[0])
    }

    /// Applies a jet with several outputs.
    pub fn jet_outputs(
        &mut self,
        jet: &'static Jet,
        attrs: Attrs,
        inputs: &[ValueId],
    ) -> Result<Vec<ValueId>, IrError> {
        self.push(Op::Jet(jet, attrs), inputs)
    }

    pub fn output(&mut self, name: &str, v: ValueId) {
        self.graph.outputs.push((name.into(), v));
    }

    /// Declares that `new` replaces `state` when a run ends.
    pub fn update(&mut self, state: ValueId, new: ValueId) {
        self.graph.updates.push((state, new));
    }

    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Built {
        self.atom(Atom::Mul, &[a, b])
    }

    pub fn add(&mut self, a: ValueId, b: ValueId) -> Built {
        self.atom(Atom::Add, &[a, b])
    }

    /// `-a`, as `a * -1`.
    pub fn neg(&mut self, a: ValueId) -> Built {
        let minus_one = self.scalar(self.fact(a).dtype, -1.0)?;
        self.mul(a, minus_one)
    }

    /// `a - b`, as `a + -b`.
    pub fn sub(&mut self, a: ValueId, b: ValueId) -> Built {
        let minus_b = self.neg(b)?;
        self.add(a, minus_b)
    }

    /// `a * value`.
    pub fn scale(&mut self, a: ValueId, value: f64) -> Built {
        let value = self.scalar(self.fact(a).dtype, value)?;
        self.mul(a, value)
    }

    /// `a + value`.
    pub fn offset(&mut self, a: ValueId, value: f64) -> Built {
        let value = self.scalar(self.fact(a).dtype, value)?;
        self.add(a, value)
    }

    pub fn cmp(&mut self, kind: Cmp, a: ValueId, b: ValueId) -> Built {
        self.atom(Atom::Cmp(kind), &[a, b])
    }

    pub fn max(&mut self, a: ValueId, b: ValueId) -> Built {
        self.cmp(Cmp::Max, a, b)
    }

    pub fn min(&mut self, a: ValueId, b: ValueId) -> Built {
        self.cmp(Cmp::Min, a, b)
    }

    pub fn lt(&mut self, a: ValueId, b: ValueId) -> Built {
        self.cmp(Cmp::Lt, a, b)
    }

    /// Not, on `Bool`: equal to false.
    pub fn not(&mut self, a: ValueId) -> Built {
        let falsehood = self.scalar(DType::Bool, 0.0)?;
        self.cmp(Cmp::Eq, a, falsehood)
    }

    pub fn select(&mut self, condition: ValueId, a: ValueId, b: ValueId) -> Built {
        self.atom(Atom::Cmp(Cmp::Select), &[condition, a, b])
    }

    pub fn exp(&mut self, kind: Exp, a: ValueId) -> Built {
        self.atom(Atom::Exp(kind), &[a])
    }

    /// `a / b`, as `a * recip(b)`.
    pub fn div(&mut self, a: ValueId, b: ValueId) -> Built {
        let r = self.exp(Exp::Recip, b)?;
        self.mul(a, r)
    }

    pub fn reshape(&mut self, a: ValueId, shape: impl IntoIterator<Item = Dim>) -> Built {
        let shape: Vec<Dim> = shape.into_iter().collect();
        if shape == self.shape(a) {
            return Ok(a);
        }
        self.atom(Atom::Read(Read::Reshape(shape)), &[a])
    }

    /// Inserts an axis of length 1 before `axis`.
    pub fn unsqueeze(&mut self, a: ValueId, axis: usize) -> Built {
        let mut shape = self.shape(a).to_vec();
        shape.insert(axis.min(shape.len()), 1.into());
        self.reshape(a, shape)
    }

    pub fn permute(&mut self, a: ValueId, perm: &[usize]) -> Built {
        self.atom(Atom::Read(Read::Permute(perm.to_vec())), &[a])
    }

    /// `len` elements of `axis` from `start`.
    pub fn slice(
        &mut self,
        a: ValueId,
        axis: usize,
        start: impl Into<Dim>,
        len: impl Into<Dim>,
    ) -> Built {
        let read = Read::Slice { axis, start: start.into(), len: len.into(), step: 1 };
        self.atom(Atom::Read(read), &[a])
    }

    pub fn strided(
        &mut self,
        a: ValueId,
        axis: usize,
        start: impl Into<Dim>,
        len: impl Into<Dim>,
        step: i64,
    ) -> Built {
        let read = Read::Slice { axis, start: start.into(), len: len.into(), step };
        self.atom(Atom::Read(read), &[a])
    }

    pub fn broadcast(&mut self, a: ValueId, shape: impl IntoIterator<Item = Dim>) -> Built {
        let shape: Vec<Dim> = shape.into_iter().collect();
        if shape == self.shape(a) {
            return Ok(a);
        }
        self.atom(Atom::Read(Read::Broadcast(shape)), &[a])
    }

    pub fn pad(
        &mut self,
        a: ValueId,
        axis: usize,
        before: impl Into<Dim>,
        after: impl Into<Dim>,
        value: f64,
    ) -> Built {
        let (before, after) = (before.into(), after.into());
        let value = Float::new(value);
        self.atom(Atom::Read(Read::Pad { axis, before, after, value }), &[a])
    }

    pub fn gather(&mut self, a: ValueId, axis: usize, index: ValueId) -> Built {
        self.atom(Atom::Read(Read::Gather { axis }), &[a, index])
    }

    /// The elements as `dtype`; quantised blocks are decoded.
    pub fn cast(&mut self, a: ValueId, dtype: DType) -> Built {
        if self.fact(a).dtype == dtype {
            return Ok(a);
        }
        self.atom(Atom::Read(Read::Cast(dtype)), &[a])
    }

    pub fn scatter(
        &mut self,
        base: ValueId,
        axis: usize,
        mode: Scatter,
        index: ValueId,
        updates: ValueId,
    ) -> Built {
        self.atom(Atom::Write(Write::Scatter { axis, mode }), &[base, index, updates])
    }

    pub fn concat(&mut self, parts: &[ValueId], axis: usize) -> Built {
        self.atom(Atom::Write(Write::Concat { axis }), parts)
    }

    /// Stores floats as `dtype`.
    pub fn encode(&mut self, a: ValueId, dtype: DType) -> Built {
        if self.fact(a).dtype == dtype {
            return Ok(a);
        }
        self.atom(Atom::Write(Write::Encode(dtype)), &[a])
    }

    /// Collapses `axes`, which leave the shape.
    pub fn reduce(&mut self, kind: Reduce, a: ValueId, axes: &[usize]) -> Built {
        self.atom(Atom::Reduce { kind, axes: axes.to_vec() }, &[a])
    }

    /// Collapses the last axis to length 1.
    pub fn reduce_last(&mut self, kind: Reduce, a: ValueId) -> Built {
        let axis = self.last_axis(a)?;
        let reduced = self.reduce(kind, a, &[axis])?;
        self.unsqueeze(reduced, axis)
    }

    pub fn sum(&mut self, a: ValueId, axes: &[usize]) -> Built {
        self.reduce(Reduce::Sum, a, axes)
    }

    pub fn window(
        &mut self,
        a: ValueId,
        axis: usize,
        size: usize,
        stride: usize,
        dilation: usize,
    ) -> Built {
        self.atom(Atom::Slide(Slide::Window { axis, size, stride, dilation }), &[a])
    }

    pub fn scan(
        &mut self,
        states: usize,
        body: Graph,
        inputs: &[ValueId],
    ) -> Result<Vec<ValueId>, IrError> {
        self.push(Op::Atom(Atom::Slide(Slide::Scan { states, body: Arc::new(body) })), inputs)
    }
}

/// `value` as one element of a plain dtype, rounded to nearest; integers saturate.
fn scalar_bytes(dtype: DType, value: f64) -> Option<Vec<u8>> {
    Some(match dtype {
        DType::Bool => vec![u8::from(value != 0.0)],
        DType::U8 => vec![value as u8],
        DType::I8 => (value as i8).to_le_bytes().to_vec(),
        DType::U16 => (value as u16).to_le_bytes().to_vec(),
        DType::I16 => (value as i16).to_le_bytes().to_vec(),
        DType::U32 => (value as u32).to_le_bytes().to_vec(),
        DType::I32 => (value as i32).to_le_bytes().to_vec(),
        DType::U64 => (value as u64).to_le_bytes().to_vec(),
        DType::I64 => (value as i64).to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f64(value).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f64(value).to_le_bytes().to_vec(),
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F64 => value.to_le_bytes().to_vec(),
        _ => return None,
    })
}
