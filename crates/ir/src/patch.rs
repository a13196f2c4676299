//! Rewriting: rules see an immutable graph and return patches; one driver applies them.

use std::collections::HashMap;

use cyb_tensor::Tensor;

use crate::{Builder, Graph, IrError, NodeId, Op, Source, ValueId, verify};

/// A value a patch refers to.
#[derive(Clone, Debug)]
pub enum Tap {
    /// A value of the graph.
    Old(ValueId),
    /// Output `1` of the patch's operation `0`.
    New(usize, usize),
    Const(Tensor),
}

/// New operations, and which values of the graph they replace.
#[derive(Clone, Debug, Default)]
pub struct Patch {
    ops: Vec<(Op, Vec<Tap>)>,
    shunts: Vec<(ValueId, Tap)>,
}

impl Patch {
    pub fn new() -> Patch {
        Patch::default()
    }

    /// Adds an operation; its outputs are `Tap::New(returned, i)`.
    pub fn push(&mut self, op: Op, inputs: Vec<Tap>) -> usize {
        self.ops.push((op, inputs));
        self.ops.len() - 1
    }

    /// The operations in the order in which they were added.
    pub fn ops(&self) -> &[(Op, Vec<Tap>)] {
        &self.ops
    }

    /// Everything that read `old` reads `new` instead.
    pub fn shunt(&mut self, old: ValueId, new: Tap) {
        self.shunts.push((old, new));
    }
}

/// What a rule says about a node.
#[derive(Debug)]
pub enum Outcome {
    NoMatch,
    /// It matched, and rewriting would change nothing.
    NoEffect,
    /// It nearly matched; the reason is shown to whoever asks why.
    Rejected(String),
    Rewrite(Patch),
}

/// A named rewrite.
pub struct Rule<'a> {
    pub name: &'a str,
    #[allow(clippy::type_complexity, reason = "the signature of a rule is its documentation")]
    pub apply: Box<dyn Fn(&Graph, NodeId) -> Outcome + 'a>,
}

impl std::fmt::Debug for Rule<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rule({})", self.name)
    }
}

/// What the driver did, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    pub rule: String,
    pub label: String,
    /// Why the rule refused, when it did.
    pub rejected: Option<String>,
}

/// Applies `rules`, in order of preference at each node, until none matches. Unreachable nodes are
/// dropped. A set of rules that finds no fixed point is an error that names the last rule.
pub fn apply_rules(graph: Graph, rules: &[Rule<'_>]) -> Result<(Graph, Vec<Applied>), IrError> {
    let mut graph = graph;
    let mut log = Vec::new();
    // Every sweep that goes on must have rewritten something; twice the size of the graph is more
    // than any set of shrinking rules needs.
    let limit = 2 * graph.nodes.len() + 8;
    let mut swept = false;
    for _ in 0..limit {
        let mut shunts: HashMap<ValueId, Tap> = HashMap::new();
        let mut patches: Vec<Patch> = Vec::new();
        for index in 0..graph.nodes.len() {
            let id = NodeId(index as u32);
            for rule in rules {
                let rejected = match (rule.apply)(&graph, id) {
                    Outcome::NoMatch | Outcome::NoEffect => continue,
                    Outcome::Rejected(why) => Some(why),
                    Outcome::Rewrite(patch) => {
                        if patch.shunts.iter().any(|(old, _)| shunts.contains_key(old)) {
                            continue;
                        }
                        let base = patches.iter().map(|p| p.ops.len()).sum::<usize>();
                        for (old, new) in &patch.shunts {
                            shunts.insert(*old, rebased(new, base));
                        }
                        patches.push(patch);
                        None
                    }
                };
                let entry = Applied {
                    rule: rule.name.to_owned(),
                    label: graph.node(id).label.to_string(),
                    rejected,
                };
                if !log.contains(&entry) || entry.rejected.is_none() {
                    log.push(entry);
                }
            }
        }
        if patches.is_empty() {
            // A rebuilt graph has been swept.
            let graph = if swept { graph } else { sweep(&graph)? };
            return Ok((graph, log));
        }
        graph = rebuild(&graph, &patches, &shunts)?;
        swept = true;
        if cfg!(debug_assertions) {
            verify(&graph)?;
        }
    }
    let last = log.last().map_or("none", |a| a.rule.as_str());
    Err(IrError::Illegal(format!("rules find no fixed point; the last one was {last}")))
}

/// The graph without what its outputs and updates do not need.
pub fn sweep(graph: &Graph) -> Result<Graph, IrError> {
    rebuild(graph, &[], &HashMap::new())
}

fn rebased(tap: &Tap, base: usize) -> Tap {
    match tap {
        Tap::New(op, output) => Tap::New(op + base, *output),
        Tap::Old(_) | Tap::Const(_) => tap.clone(),
    }
}

/// An operation to be placed: an old node, or one of a patch.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Work {
    Node(NodeId),
    Patch(usize),
}

/// Places operations depth first from the outputs, so that the result is in topological order
/// whatever the patches refer to.
fn rebuild(
    graph: &Graph,
    patches: &[Patch],
    shunts: &HashMap<ValueId, Tap>,
) -> Result<Graph, IrError> {
    let mut ops: Vec<(Op, Vec<Tap>)> = Vec::new();
    for patch in patches {
        let base = ops.len();
        for (op, inputs) in &patch.ops {
            ops.push((op.clone(), inputs.iter().map(|t| rebased(t, base)).collect()));
        }
    }
    let mut placer = Placer {
        graph,
        ops: &ops,
        shunts,
        builder: Builder::new(),
        leaves: HashMap::new(),
        done: HashMap::new(),
    };
    // Inputs and states stay part of the signature even when nothing reads them.
    for v in graph.value_ids() {
        if matches!(graph.value(v).source, Source::Input(_) | Source::State(_)) {
            placer.leaf(v);
        }
    }
    for (name, v) in &graph.outputs {
        let new = placer.place(Tap::Old(*v))?;
        placer.builder.output(name, new);
    }
    for (state, v) in &graph.updates {
        let new = placer.place(Tap::Old(*v))?;
        let state = placer.leaf(*state);
        placer.builder.update(state, new);
    }
    Ok(placer.builder.finish())
}

struct Placer<'a> {
    graph: &'a Graph,
    ops: &'a [(Op, Vec<Tap>)],
    shunts: &'a HashMap<ValueId, Tap>,
    builder: Builder,
    leaves: HashMap<ValueId, ValueId>,
    done: HashMap<Work, Vec<ValueId>>,
}

impl Placer<'_> {
    fn leaf(&mut self, v: ValueId) -> ValueId {
        if let Some(&new) = self.leaves.get(&v) {
            return new;
        }
        let value = self.graph.value(v);
        let new = match &value.source {
            Source::Input(name) => self.builder.input(name, value.fact.clone()),
            Source::State(name) => self.builder.state(name, value.fact.clone()),
            Source::Weight(name, tensor, _) => self.builder.weight(name, tensor.clone()),
            Source::Const(tensor) => self.builder.constant(tensor.clone()),
            Source::Iota => self.builder.iota(value.fact.shape[0].clone()),
            Source::Hole(name) => self.builder.input(name, value.fact.clone()),
            Source::Node(..) => v,
        };
        self.leaves.insert(v, new);
        new
    }

    /// Follows shunts to what a tap now means: a leaf or an operation's output.
    fn resolve(&self, tap: &Tap) -> Result<Tap, IrError> {
        let mut tap = tap.clone();
        for _ in 0..=self.shunts.len() {
            match &tap {
                Tap::Old(v) => match self.shunts.get(v) {
                    Some(next) => tap = next.clone(),
                    None => return Ok(tap),
                },
                Tap::New(..) | Tap::Const(_) => return Ok(tap),
            }
        }
        Err(IrError::Illegal("patches replace values by each other in a circle".into()))
    }

    fn ready(&mut self, tap: &Tap) -> Result<Result<ValueId, Work>, IrError> {
        let (work, output) = match self.resolve(tap)? {
            Tap::Const(tensor) => return Ok(Ok(self.builder.constant(tensor))),
            Tap::New(op, output) => (Work::Patch(op), output),
            Tap::Old(v) => match self.graph.value(v).source {
                Source::Node(n, output) => (Work::Node(n), output),
                _ => return Ok(Ok(self.leaf(v))),
            },
        };
        Ok(self.done.get(&work).map(|outputs| outputs[output]).ok_or(work))
    }

    fn place(&mut self, tap: Tap) -> Result<ValueId, IrError> {
        let mut stack: Vec<Work> = match self.ready(&tap)? {
            Ok(v) => return Ok(v),
            Err(work) => vec![work],
        };
        let limit = (self.graph.nodes.len() + self.ops.len() + 1).saturating_mul(4096);
        for _ in 0..limit {
            let Some(&work) = stack.last() else { break };
            if self.done.contains_key(&work) {
                stack.pop();
                continue;
            }
            let inputs = match work {
                Work::Node(n) => {
                    let node = self.graph.node(n);
                    self.builder.set_label(&node.label);
                    node.inputs.iter().map(|&v| Tap::Old(v)).collect()
                }
                Work::Patch(i) => self.ops[i].1.clone(),
            };
            let mut ready = Vec::with_capacity(inputs.len());
            let before = stack.len();
            for input in &inputs {
                match self.ready(input)? {
                    Ok(v) => ready.push(v),
                    Err(missing) => stack.push(missing),
                }
            }
            if stack.len() == before {
                let outputs = match work {
                    Work::Node(n) => {
                        self.builder.push_node(self.graph, self.graph.node(n), &ready)?
                    }
                    Work::Patch(i) => self.builder.push(self.ops[i].0.clone(), &ready)?,
                };
                self.done.insert(work, outputs);
                stack.pop();
            }
        }
        match self.ready(&tap)? {
            Ok(v) => Ok(v),
            Err(_) => Err(IrError::Illegal("a patch makes a value depend on itself".into())),
        }
    }
}
