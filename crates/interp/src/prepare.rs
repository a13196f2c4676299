//! A graph made ready to be evaluated, and the walk over its nodes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cyb_ir::{
    Atom, Builder, Fact, Graph, IrError, Node, Op, Read, Slide, Source, ValueId, expand, verify,
};
use cyb_tensor::{Bindings, DType, Dim, Tensor};

use crate::InterpError;
use crate::atoms::{self, Call};
use crate::value::Value;

/// A legal graph of atoms: jets are expanded once, not for each run.
#[derive(Clone, Debug)]
pub struct Prepared {
    graph: Graph,
    /// How often each value is read by live nodes, outputs and updates.
    uses: Vec<u32>,
    /// The bodies of scans, by node.
    bodies: HashMap<usize, Prepared>,
}

/// A tensor for a leaf of the graph.
struct Given<'a> {
    id: ValueId,
    /// For messages: `input 'x'`.
    what: String,
    tensor: &'a Tensor,
}

impl Prepared {
    /// # Errors
    /// A graph that is not legal, and a jet whose definition refuses its operands.
    pub fn new(graph: &Graph) -> Result<Prepared, InterpError> {
        let graph = expand(graph, &|_| false)?;
        verify(&graph)?;
        let (_, live) = graph.live();
        let mut uses = vec![0; graph.values.len()];
        let mut bodies = HashMap::new();
        for (i, node) in graph.nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
            node.inputs.iter().for_each(|v| uses[v.index()] += 1);
            if let Op::Atom(Atom::Slide(Slide::Scan { body, .. })) = &node.op {
                if body.states().next().is_some() {
                    let why = "the body of a scan has states of its own";
                    return Err(IrError::Illegal(why.to_owned()).into());
                }
                bodies.insert(i, Prepared::new(body)?);
            }
        }
        graph.outputs.iter().for_each(|(_, v)| uses[v.index()] += 1);
        graph.updates.iter().for_each(|(_, v)| uses[v.index()] += 1);
        Ok(Prepared { graph, uses, bodies })
    }

    /// One operation on inputs with these facts, whose shapes may be symbolic.
    pub fn node(op: &Op, facts: &[Fact]) -> Result<Prepared, InterpError> {
        let mut b = Builder::new();
        let inputs: Vec<ValueId> =
            facts.iter().enumerate().map(|(i, f)| b.input(&i.to_string(), f.clone())).collect();
        let outputs = b.push(op.clone(), &inputs)?;
        for (i, &v) in outputs.iter().enumerate() {
            b.output(&i.to_string(), v);
        }
        Prepared::new(&b.finish())
    }

    /// Evaluates the graph, as [`crate::evaluate`] does. `bindings` holds symbols that no shape
    /// of an input or state gives.
    pub fn run(
        &self,
        bindings: &Bindings,
        inputs: &BTreeMap<String, Tensor>,
        states: &mut BTreeMap<String, Tensor>,
    ) -> Result<BTreeMap<String, Tensor>, InterpError> {
        let known: Vec<&str> = self.graph.inputs().map(|(name, _)| &**name).collect();
        if let Some(name) = inputs.keys().find(|name| !known.contains(&name.as_str())) {
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(InterpError::Unknown { name: name.clone(), known });
        }
        let mut given = Vec::new();
        let leaves = self.graph.inputs().map(|leaf| ("input", leaf, inputs));
        let leaves = leaves.chain(self.graph.states().map(|leaf| ("state", leaf, &*states)));
        for (kind, (name, id), from) in leaves {
            let what = format!("{kind} '{name}'");
            let Some(tensor) = from.get(&**name) else {
                let want = self.graph.fact(id).to_string();
                return Err(InterpError::Missing { what, want });
            };
            given.push(Given { id, what, tensor });
        }
        let mut results = self.run_given(&given, bindings)?;
        let new = results.split_off(self.graph.outputs.len());
        for ((state, _), tensor) in self.graph.updates.iter().zip(new) {
            if let Source::State(name) = &self.graph.value(*state).source {
                states.insert(name.to_string(), tensor);
            }
        }
        let names = self.graph.outputs.iter().map(|(name, _)| name.to_string());
        Ok(names.zip(results).collect())
    }

    /// Evaluates the graph on inputs by position: what [`Prepared::node`] made.
    pub fn run_node(
        &self,
        inputs: &[Tensor],
        bindings: &Bindings,
    ) -> Result<Vec<Tensor>, InterpError> {
        let ids: Vec<ValueId> = self.graph.inputs().map(|(_, id)| id).collect();
        if ids.len() != inputs.len() {
            let (want, got) = (ids.len().to_string(), inputs.len());
            return Err(IrError::Arity { op: "the operation".into(), want, got }.into());
        }
        let given: Vec<Given<'_>> = std::iter::zip(ids, inputs)
            .enumerate()
            .map(|(i, (id, tensor))| Given { id, what: format!("input {i}"), tensor })
            .collect();
        self.run_given(&given, bindings)
    }

    fn run_given(
        &self,
        given: &[Given<'_>],
        bindings: &Bindings,
    ) -> Result<Vec<Tensor>, InterpError> {
        let bindings = self.bind(given, bindings)?;
        let shapes = self.shapes(&bindings)?;
        let leaves = given.iter().map(|g| (g.id, Value::of(g.tensor))).collect();
        let values = self.walk(&bindings, &shapes, leaves)?;
        values.iter().map(|v| Ok(v.to_tensor()?)).collect()
    }

    /// Gives symbols their values and checks every tensor against its fact.
    fn bind(&self, given: &[Given<'_>], bindings: &Bindings) -> Result<Bindings, InterpError> {
        let mut bound = bindings.clone();
        let mut origin: HashMap<Arc<str>, &str> = HashMap::new();
        for g in given {
            for (dim, &n) in self.graph.fact(g.id).shape.iter().zip(g.tensor.shape()) {
                if let Some(name) = dim.as_symbol()
                    && !bound.contains_key(name)
                {
                    bound.insert(name.into(), n);
                    origin.insert(name.into(), &g.what);
                }
            }
        }
        for g in given {
            let fact = self.graph.fact(g.id);
            let rank_fits = fact.rank() == g.tensor.shape().len();
            let mut fits = rank_fits && fact.dtype == g.tensor.dtype();
            let mut hints = Vec::new();
            for dim in fact.shape.iter().filter(|_| rank_fits) {
                for symbol in dim.symbols() {
                    let from = origin.get(&symbol).copied().unwrap_or("the bindings");
                    if let Some(n) = bound.get(&symbol) {
                        hints.push(format!("{symbol} is {n} from {from}"));
                    }
                }
            }
            if fits {
                for (dim, &n) in fact.shape.iter().zip(g.tensor.shape()) {
                    fits &= dim.eval(&bound)? == n;
                }
            }
            if !fits {
                hints.dedup();
                let mut want = fact.to_string();
                if !hints.is_empty() {
                    want = format!("{want} ({})", hints.join(", "));
                }
                let (what, got) = (g.what.clone(), Fact::of(g.tensor).to_string());
                return Err(InterpError::Mismatch { what, want, got });
            }
        }
        Ok(bound)
    }

    /// The shape of every value that is used, by its index.
    pub(crate) fn shapes(&self, bindings: &Bindings) -> Result<Vec<Vec<usize>>, InterpError> {
        let mut shapes = vec![Vec::new(); self.graph.values.len()];
        for v in self.graph.value_ids() {
            let made_by = self.graph.producer(v);
            let used = |v: ValueId| self.uses[v.index()] > 0;
            if used(v) || made_by.is_some_and(|n| n.outputs.iter().any(|&v| used(v))) {
                let shape = self.shape(v, bindings);
                shapes[v.index()] = match made_by {
                    Some(node) => shape.map_err(|e| at(node, e))?,
                    None => shape?,
                };
            }
        }
        Ok(shapes)
    }

    fn shape(&self, v: ValueId, bindings: &Bindings) -> Result<Vec<usize>, InterpError> {
        let dims = self.graph.fact(v).shape.iter();
        let shape: Vec<usize> = dims.map(|d| d.eval(bindings)).collect::<Result<_, _>>()?;
        // Steps and offsets are signed.
        match shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)) {
            Some(n) if isize::try_from(n).is_ok() => Ok(shape),
            _ => Err(InterpError::TooLarge(shape)),
        }
    }

    /// The inputs' ids, in the order of the graph.
    pub(crate) fn input_ids(&self) -> Vec<ValueId> {
        self.graph.inputs().map(|(_, id)| id).collect()
    }

    pub(crate) fn output_dtypes(&self) -> impl Iterator<Item = DType> {
        self.graph.outputs.iter().map(|(_, v)| self.graph.fact(*v).dtype)
    }

    /// Evaluates the nodes in order and returns the outputs, then the new states. A value is freed
    /// after its last use. One that is read once may stay an expression that its reader computes.
    pub(crate) fn walk(
        &self,
        bindings: &Bindings,
        shapes: &[Vec<usize>],
        given: Vec<(ValueId, Value)>,
    ) -> Result<Vec<Value>, InterpError> {
        let mut left = self.uses.clone();
        let mut values: Vec<Option<Value>> = vec![None; self.graph.values.len()];
        for (id, value) in given {
            values[id.index()] = Some(value);
        }
        for v in self.graph.value_ids().filter(|v| self.uses[v.index()] > 0) {
            let leaf = match &self.graph.value(v).source {
                Source::Weight(name, tensor, _) => self.literal(v, name, tensor)?,
                Source::Const(tensor) => self.literal(v, "a constant", tensor)?,
                Source::Iota => {
                    let numbers: Vec<i64> = (0..shapes[v.index()][0] as i64).collect();
                    let shape = vec![numbers.len()];
                    Value::of(&Tensor::from_elems(DType::I64, shape, &numbers)?)
                }
                Source::Hole(name) => return Err(InterpError::Hole(name.to_string())),
                Source::Input(_) | Source::State(_) | Source::Node(..) => continue,
            };
            values[v.index()] = Some(leaf);
        }
        let mut read = |values: &mut [Option<Value>], v: &ValueId| {
            left[v.index()] -= 1;
            let slot = &mut values[v.index()];
            let value = if left[v.index()] == 0 { slot.take() } else { slot.clone() };
            value.ok_or_else(|| IrError::Illegal(format!("{v} is read but never made")))
        };
        for (i, node) in self.graph.nodes.iter().enumerate() {
            let Op::Atom(atom) = &node.op else { continue };
            if node.outputs.iter().all(|v| self.uses[v.index()] == 0) {
                continue;
            }
            let inputs: Result<Vec<Value>, IrError> =
                node.inputs.iter().map(|v| read(&mut values, v)).collect();
            let shapes: Vec<&[usize]> =
                node.outputs.iter().map(|v| shapes[v.index()].as_slice()).collect();
            let call = Call { shapes: &shapes, bindings, body: self.bodies.get(&i) };
            let outputs = atoms::evaluate(atom, inputs?, &call).map_err(|e| at(node, e))?;
            for (v, value) in node.outputs.iter().zip(outputs) {
                values[v.index()] = match self.uses[v.index()] {
                    0 => None,
                    1 => Some(value.bounded()?),
                    _ => Some(value.computed()?),
                };
            }
        }
        let outputs = self.graph.outputs.iter().map(|(_, v)| v);
        let results = outputs.chain(self.graph.updates.iter().map(|(_, v)| v));
        results.map(|v| Ok(read(&mut values, v)?)).collect()
    }

    fn literal(&self, v: ValueId, name: &str, tensor: &Tensor) -> Result<Value, InterpError> {
        let (fact, got) = (self.graph.fact(v), Fact::of(tensor));
        if *fact != got {
            let (what, want) = (name.to_owned(), fact.to_string());
            return Err(InterpError::Mismatch { what, want, got: got.to_string() });
        }
        Ok(Value::of(tensor))
    }
}

/// The error with the node that raised it.
fn at(node: &Node, error: InterpError) -> InterpError {
    let space = if node.label.is_empty() { "" } else { " " };
    let node = format!("{}{space}{}", node.label, node.op.name());
    InterpError::Node { node, error: Box::new(error) }
}

/// The operation with every symbol that `bindings` knows replaced by its value.
pub(crate) fn bound(op: &Op, bindings: &Bindings) -> Op {
    let dim = |d: &Dim| d.substitute(&|name| bindings.get(name).map(|&n| n.into()));
    let dims = |dims: &[Dim]| dims.iter().map(dim).collect::<Vec<Dim>>();
    match op {
        Op::Atom(Atom::Read(read)) => Op::Atom(Atom::Read(match read {
            Read::Reshape(shape) => Read::Reshape(dims(shape)),
            Read::Broadcast(shape) => Read::Broadcast(dims(shape)),
            Read::Slice { axis, start, len, step } => {
                Read::Slice { axis: *axis, start: dim(start), len: dim(len), step: *step }
            }
            Read::Pad { axis, before, after, value } => {
                Read::Pad { axis: *axis, before: dim(before), after: dim(after), value: *value }
            }
            Read::Permute(_) | Read::Gather { .. } | Read::Cast(_) => read.clone(),
        })),
        Op::Atom(Atom::Slide(Slide::Scan { states, body })) => {
            let mut graph = Graph::clone(body);
            for value in &mut graph.values {
                value.fact.shape = dims(&value.fact.shape);
            }
            for node in &mut graph.nodes {
                node.op = bound(&node.op, bindings);
            }
            Op::Atom(Atom::Slide(Slide::Scan { states: *states, body: Arc::new(graph) }))
        }
        Op::Atom(_) | Op::Jet(..) => op.clone(),
    }
}
