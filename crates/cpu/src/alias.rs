//! Values that lie inside others, so that nothing moves them: a slice inside what it is a slice of,
//! a part of a concatenation inside the whole, wherever the bytes of the one are a run of the
//! other's. A whole then takes memory from when its first part is made, so a part is put there only
//! where that does not raise the most that is alive at once.
//!
//! Times are numbers of nodes. Only values whose size is known when a program is prepared take part.

use std::collections::{HashMap, HashSet};

use cyb_ir::{Atom, Fact, Graph, Node, Op, Read, Source, ValueId, Write};
use cyb_tensor::Class;

use crate::kernels::chain::Chain;

/// A value's bytes: where they begin in the memory of a value that lies in no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) root: ValueId,
    pub(crate) offset: usize,
}

/// Which values lie in others.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    /// The value that each lies in, and where in it.
    inside: HashMap<ValueId, Home>,
    /// Outputs of nodes that have nothing left to do.
    done: HashSet<ValueId>,
    /// Of the values that lie in no other.
    uses: HashMap<ValueId, Use>,
}

impl Aliases {
    /// Where a value lies; in itself if in no other.
    pub(crate) fn home(&self, v: ValueId) -> Home {
        let mut home = Home { root: v, offset: 0 };
        while let Some(outer) = self.inside.get(&home.root) {
            home = Home { root: outer.root, offset: outer.offset + home.offset };
        }
        home
    }

    /// Whether a node need not run, since its output is where it belongs without it.
    pub(crate) fn is_done(&self, node: &Node) -> bool {
        node.outputs.first().is_some_and(|v| self.done.contains(v))
    }

    /// Whether the first output of node number `i` may lie where its input does: nothing reads that
    /// later, and neither lies in something larger.
    pub(crate) fn may_take(&self, graph: &Graph, i: usize, input: ValueId) -> bool {
        let node = &graph.nodes[i];
        let output = node.outputs[0];
        let home = self.home(input);
        let Some((from, to)) = self.uses.get(&home.root).zip(self.uses.get(&output)) else {
            return false;
        };
        let apart = node.inputs.iter().filter(|&&v| self.home(v).root == home.root).count() == 1;
        let made = matches!(graph.value(home.root).source, Source::Node(..));
        apart && made && from.last == i && from.bytes == to.bytes && to.first == i
    }

    /// The aliases of a graph of which only `live` nodes that are not `inside` a chain are steps.
    pub(crate) fn of(
        graph: &Graph,
        live: &[bool],
        chains: &HashMap<usize, Chain>,
        inside: &[bool],
    ) -> Aliases {
        let steps = || {
            let all = graph.nodes.iter().enumerate();
            all.filter(|(i, _)| live[*i] && !inside[*i])
        };
        let overwritten = overwritten(graph, steps().map(|(_, node)| node));
        let mut found = Aliases::default();
        for (_, node) in steps() {
            if let Some((input, offset)) = view(graph, node, &overwritten) {
                found.inside.insert(node.outputs[0], Home { root: input, offset });
                found.done.insert(node.outputs[0]);
            }
        }
        let mut uses: HashMap<ValueId, Use> = HashMap::new();
        for v in graph.value_ids() {
            if let (Source::Input(_), Some(bytes)) = (&graph.value(v).source, bytes(graph, v)) {
                uses.insert(v, Use { bytes, first: 0, last: 0 });
            }
        }
        for (i, node) in steps() {
            let reads = chains.get(&i).map_or(&node.inputs, |chain| &chain.inputs);
            for &v in reads {
                if let Some(used) = uses.get_mut(&found.home(v).root) {
                    used.last = i;
                }
            }
            // Where a reshape is no alias it shares the memory of a weight or a state.
            if matches!(node.op, Op::Atom(Atom::Read(Read::Reshape(_)))) {
                continue;
            }
            for &v in node.outputs.iter().filter(|v| !found.inside.contains_key(v)) {
                if let Some(bytes) = bytes(graph, v) {
                    uses.insert(v, Use { bytes, first: i, last: i });
                }
            }
        }
        for (_, v) in &graph.outputs {
            if let Some(used) = uses.get_mut(&found.home(*v).root) {
                used.last = graph.nodes.len();
            }
        }
        let mut load = Load::of(graph.nodes.len() + 1, uses.values());
        for (_, node) in steps() {
            if let Op::Atom(Atom::Write(Write::Concat { axis })) = &node.op
                && !overwritten.contains(&node.outputs[0])
            {
                found.join(graph, node, *axis, &overwritten, &mut uses, &mut load);
            }
        }
        uses.retain(|v, _| !overwritten.contains(v));
        found.uses = uses;
        found
    }

    /// Puts the parts of a concatenation where they belong in it, those that may lie there.
    fn join(
        &mut self,
        graph: &Graph,
        node: &Node,
        axis: usize,
        overwritten: &HashSet<ValueId>,
        uses: &mut HashMap<ValueId, Use>,
        load: &mut Load,
    ) {
        let whole = node.outputs[0];
        let fact = graph.fact(whole);
        if !is_run(fact, axis) || !uses.contains_key(&whole) {
            return;
        }
        let mut at = 0;
        let mut parts = Vec::with_capacity(node.inputs.len());
        for &v in &node.inputs {
            let Some(bytes) = bytes(graph, v) else { return };
            parts.push((v, at, bytes));
            at += bytes;
        }
        let mut placed = 0;
        for &(v, at, own) in &parts {
            let home = self.home(v);
            if home.root == whole {
                placed += usize::from(home.offset == at);
                continue;
            }
            let made = matches!(graph.value(home.root).source, Source::Node(..));
            let (Some(part), Some(shift)) = (uses.get(&home.root), at.checked_sub(home.offset))
            else {
                continue;
            };
            // All of what the part lies in must belong where it would come to lie.
            let belongs = |&&(v, at, _): &&(ValueId, usize, usize)| {
                let other = self.home(v);
                other.root == home.root && other.offset.checked_add(shift) == Some(at)
            };
            let covered = || parts.iter().filter(belongs).map(|(_, _, bytes)| bytes).sum::<usize>();
            let whole_part = own == part.bytes || covered() == part.bytes;
            let kept = !made || overwritten.contains(&home.root) || !whole_part;
            if kept || !load.join(uses[&whole], *part) {
                continue;
            }
            let joined = uses[&whole].joined(*part);
            uses.remove(&home.root);
            uses.insert(whole, joined);
            self.inside.insert(home.root, Home { root: whole, offset: shift });
            placed += 1;
        }
        if placed == parts.len() {
            self.done.insert(whole);
        }
    }
}

/// The values that some jet overwrites with its output.
fn overwritten<'a>(graph: &Graph, nodes: impl Iterator<Item = &'a Node>) -> HashSet<ValueId> {
    let mut found = HashSet::new();
    for node in nodes {
        let Op::Jet(jet, _) = &node.op else { continue };
        for (input, output) in jet.in_place {
            found.extend(node.outputs.get(*output));
            let mut v = node.inputs[*input];
            while found.insert(v) {
                match graph.producer(v).map(|node| (&node.op, &node.inputs)) {
                    Some((Op::Atom(Atom::Read(Read::Reshape(_))), inputs)) => v = inputs[0],
                    _ => break,
                }
            }
        }
    }
    found
}

/// What a node's output is a run of bytes of, and where it begins in that.
fn view(graph: &Graph, node: &Node, overwritten: &HashSet<ValueId>) -> Option<(ValueId, usize)> {
    let Op::Atom(Atom::Read(read)) = &node.op else { return None };
    let input = *node.inputs.first()?;
    let fact = graph.fact(input);
    let offset = match read {
        Read::Reshape(_) => return lies_in_arena(graph, input).then_some((input, 0)),
        Read::Slice { axis, start, step: 1, .. } if is_run(fact, *axis) => {
            let inner = known(&fact.shape[axis + 1..])?;
            start.known()?.checked_mul(inner)?.checked_mul(fact.dtype.layout().bytes)?
        }
        Read::Permute(order) if keeps_order(fact, order) => 0,
        _ => return None,
    };
    let [all, part] = [bytes(graph, input)?, bytes(graph, node.outputs[0])?];
    let apart = overwritten.contains(&input) || overwritten.contains(&node.outputs[0]);
    let inside = offset.checked_add(part)? <= all;
    (inside && !apart && lies_in_arena(graph, input)).then_some((input, offset))
}

/// Whether a value is memory of a run: no weight, constant or state.
fn lies_in_arena(graph: &Graph, mut v: ValueId) -> bool {
    loop {
        match &graph.value(v).source {
            Source::Input(_) | Source::Hole(_) => return true,
            Source::Node(..) => {}
            Source::Weight(..) | Source::Const(_) | Source::State(_) | Source::Iota => {
                return false;
            }
        }
        let Some(node) = graph.producer(v) else { return false };
        match &node.op {
            Op::Atom(Atom::Read(Read::Reshape(_) | Read::Slice { .. } | Read::Permute(_))) => {
                v = node.inputs[0];
            }
            Op::Atom(_) => return true,
            Op::Jet(jet, _) => return jet.in_place.is_empty(),
        }
    }
}

/// Whether what lies side by side on `axis` is a run of bytes.
fn is_run(fact: &Fact, axis: usize) -> bool {
    fact.dtype.class() != Class::Quantized && known(&fact.shape[..axis]) == Some(1)
}

/// Whether only axes of length one change their places.
fn keeps_order(fact: &Fact, order: &[usize]) -> bool {
    let long = order.iter().filter(|&&axis| fact.shape[axis].known() != Some(1));
    fact.dtype.class() != Class::Quantized && long.is_sorted()
}

fn known(dims: &[cyb_tensor::Dim]) -> Option<usize> {
    dims.iter().try_fold(1usize, |n, d| n.checked_mul(d.known()?))
}

fn bytes(graph: &Graph, v: ValueId) -> Option<usize> {
    let fact = graph.fact(v);
    let plain = fact.dtype.class() != Class::Quantized;
    known(&fact.shape)?.checked_mul(fact.dtype.layout().bytes).filter(|_| plain)
}

/// When a value is alive, from the node that makes it to the last that reads it.
#[derive(Clone, Copy, Debug)]
struct Use {
    bytes: usize,
    first: usize,
    last: usize,
}

impl Use {
    /// This one with a part that lies inside it.
    fn joined(self, part: Use) -> Use {
        let (first, last) = (self.first.min(part.first), self.last.max(part.last));
        Use { first, last, ..self }
    }
}

/// Bytes alive at each node.
struct Load {
    at: Vec<usize>,
    most: usize,
}

impl Load {
    fn of<'a>(nodes: usize, uses: impl Iterator<Item = &'a Use>) -> Load {
        let mut at = vec![0usize; nodes];
        for used in uses {
            at[used.first..=used.last].iter_mut().for_each(|n| *n = n.saturating_add(used.bytes));
        }
        let most = at.iter().copied().max().unwrap_or(0);
        Load { at, most }
    }

    /// Counts a part as lying in the whole, unless that would be more than the most so far.
    fn join(&mut self, whole: Use, part: Use) -> bool {
        let joined = whole.joined(part);
        let held = |used: Use, i: usize| match (used.first..=used.last).contains(&i) {
            true => used.bytes,
            false => 0,
        };
        let new = |at: usize, i: usize| {
            let others = at.saturating_sub(held(whole, i)).saturating_sub(held(part, i));
            others.saturating_add(held(joined, i))
        };
        let range = joined.first..=joined.last;
        let fits = range.clone().all(|i| new(self.at[i], i) <= self.most);
        if fits {
            range.for_each(|i| self.at[i] = new(self.at[i], i));
        }
        fits
    }
}
