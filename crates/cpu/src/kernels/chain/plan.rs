//! Which nodes of a graph become one chain, and the instructions of it.

use std::collections::HashMap;

use cyb_ir::{Atom, Cmp, Graph, Node, Op, Read, ValueId};
use cyb_tensor::DType;

use super::block::{Code, has};

/// Instructions of a chain at most: what their blocks take must stay in the first-level cache.
const MOST_INSTRUCTIONS: usize = 40;
/// Tensors that a chain reads at most.
const MOST_INPUTS: usize = 12;
/// Blocks that a chain holds at a time at most.
const MOST_BLOCKS: usize = 12;

/// An operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    /// A tensor that the chain reads.
    Input(usize),
    /// A block of scratch.
    Block(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Instruction {
    pub(super) code: Code,
    pub(super) dtype: DType,
    pub(super) operands: [Operand; 3],
    pub(super) arity: usize,
    /// The block it makes; the last instruction makes the chain's output.
    pub(super) output: usize,
}

/// The program of a chain.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    /// What the chain reads.
    pub(crate) inputs: Vec<ValueId>,
    pub(super) instructions: Vec<Instruction>,
    /// Blocks of scratch that the instructions need.
    pub(super) blocks: usize,
}

impl Chain {
    /// Instructions, each of which visits every element.
    pub(crate) fn len(&self) -> usize {
        self.instructions.len()
    }
}

/// The instruction for a node, if it is elementwise.
fn code_of(graph: &Graph, node: &Node) -> Option<(Code, DType)> {
    let [output] = node.outputs.as_slice() else { return None };
    let first = graph.fact(*node.inputs.first()?).dtype;
    code(&node.op, first, graph.fact(*output).dtype)
}

/// The instruction for an operation by the dtypes of its first input and its output.
pub(super) fn code(op: &Op, first: DType, output: DType) -> Option<(Code, DType)> {
    let (code, dtype) = match op {
        Op::Atom(atom) => match atom {
            Atom::Mul => (Code::Mul, first),
            Atom::Add => (Code::Add, first),
            Atom::Cmp(Cmp::Max) => (Code::Max, first),
            Atom::Cmp(Cmp::Min) => (Code::Min, first),
            Atom::Cmp(Cmp::Lt) => (Code::Lt, first),
            Atom::Cmp(Cmp::Eq) => (Code::Eq, first),
            Atom::Cmp(Cmp::Select) => (Code::Select, output),
            Atom::Exp(kind) => (Code::Exp(*kind), first),
            Atom::Read(Read::Cast(to)) => (Code::Cast(*to), first),
            Atom::Read(_) | Atom::Write(_) | Atom::Reduce { .. } | Atom::Slide(_) => return None,
        },
        Op::Jet(jet, attrs) => {
            let code = match jet.name {
                "sub" => Code::Sub,
                "silu" => Code::Silu,
                "sigmoid" => Code::Sigmoid,
                "tanh" => Code::Tanh,
                "relu" => Code::Relu,
                "leaky_relu" => Code::LeakyRelu((attrs.float("slope").ok()? as f32).to_bits()),
                "gelu" => match attrs.text("approximate").ok()? {
                    "none" => Code::Gelu,
                    "tanh" => Code::GeluTanh,
                    "quick" => Code::GeluQuick,
                    _ => return None,
                },
                _ => return None,
            };
            (code, first)
        }
    };
    has(code, dtype).then_some((code, dtype))
}

/// The chains of a graph: for each node that ends one, its program; and which nodes lie inside
/// one, so that nothing else need compute them. `apart` are values that a chain must not read late,
/// since something else overwrites them.
pub(crate) fn chains(
    graph: &Graph,
    live: &[bool],
    apart: &dyn Fn(ValueId) -> bool,
) -> (HashMap<usize, Chain>, Vec<bool>) {
    let n = graph.nodes.len();
    let mut users: HashMap<ValueId, Vec<usize>> = HashMap::new();
    for (i, node) in graph.nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
        for &v in &node.inputs {
            users.entry(v).or_default().push(i);
        }
    }
    let mut kept = vec![false; graph.values.len()];
    let held = graph.outputs.iter().map(|(_, v)| *v);
    held.chain(graph.updates.iter().map(|(_, v)| *v)).for_each(|v| kept[v.index()] = true);

    let fits = |i: usize| {
        let node = &graph.nodes[i];
        live[i] && code_of(graph, node).is_some() && !node.inputs.iter().any(|&v| apart(v))
    };
    // The end of the chain that each node is in. Users come after what they use.
    let mut end: Vec<Option<usize>> = vec![None; n];
    let mut members: HashMap<usize, Vec<usize>> = HashMap::new();
    for i in (0..n).rev().filter(|&i| fits(i)) {
        let v = graph.nodes[i].outputs[0];
        let mut ends = users.get(&v).into_iter().flatten().map(|&u| end[u]);
        let target = match ends.next() {
            Some(Some(target)) if !kept[v.index()] && ends.all(|e| e == Some(target)) => target,
            _ => i,
        };
        let same = |a: usize| graph.fact(graph.nodes[a].outputs[0]).shape.as_slice();
        let target = if same(target) == same(i) { target } else { i };
        let mut all = members.get(&target).cloned().unwrap_or_default();
        all.push(i);
        if target == i || program(graph, &all).is_some() {
            end[i] = Some(target);
            members.insert(target, all);
        } else {
            end[i] = Some(i);
            members.insert(i, vec![i]);
        }
    }
    let mut inside = vec![false; n];
    let mut chains = HashMap::new();
    for (end, all) in members {
        let Some(chain) = program(graph, &all) else { continue };
        all.iter().filter(|&&i| i != end).for_each(|&i| inside[i] = true);
        chains.insert(end, chain);
    }
    (chains, inside)
}

/// The program of nodes, which are listed from the last to the first; `None` when it is too large.
pub(super) fn program(graph: &Graph, nodes: &[usize]) -> Option<Chain> {
    if nodes.len() > MOST_INSTRUCTIONS {
        return None;
    }
    let mut last_use: HashMap<ValueId, usize> = HashMap::new();
    let order: Vec<&Node> = nodes.iter().rev().map(|&i| &graph.nodes[i]).collect();
    for (at, node) in order.iter().enumerate() {
        last_use.extend(node.inputs.iter().map(|&v| (v, at)));
    }
    let mut inputs: Vec<ValueId> = Vec::new();
    let mut block_of: HashMap<ValueId, usize> = HashMap::new();
    let mut free: Vec<usize> = Vec::new();
    let (mut blocks, mut instructions) = (0, Vec::new());
    for (at, node) in order.iter().enumerate() {
        let (code, dtype) = code_of(graph, node)?;
        let mut operands = [Operand::Input(0); 3];
        // A node alone is a step with the node's own inputs, whether it reads one twice or not.
        let alone = nodes.len() == 1;
        for (slot, &v) in operands.iter_mut().zip(&node.inputs) {
            *slot = match block_of.get(&v) {
                Some(&block) => Operand::Block(block),
                None => {
                    let known = inputs.iter().position(|&i| i == v && !alone);
                    Operand::Input(known.unwrap_or_else(|| {
                        inputs.push(v);
                        inputs.len() - 1
                    }))
                }
            };
        }
        // The output gets a block before its operands give theirs up: they may differ in width.
        let output = free.pop().unwrap_or_else(|| {
            blocks += 1;
            blocks - 1
        });
        for v in &node.inputs {
            if last_use.get(v) == Some(&at)
                && let Some(block) = block_of.remove(v)
            {
                free.push(block);
            }
        }
        block_of.insert(node.outputs[0], output);
        instructions.push(Instruction {
            code,
            dtype,
            operands,
            arity: node.inputs.len().min(3),
            output,
        });
    }
    let fits = inputs.len() <= MOST_INPUTS && blocks <= MOST_BLOCKS;
    (fits || nodes.len() == 1).then_some(Chain { inputs, instructions, blocks })
}
