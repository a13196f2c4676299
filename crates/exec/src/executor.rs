//! The sessions of a graph that is spread over backends.
//!
//! Runs of nodes with the same backend become segments; a value that crosses a border
//! is an output of one segment and an input of another and travels through host memory.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use cyb_ir::{Builder, Fact, Graph, Source, ValueId};

use crate::{
    Backend, ExecError, MemoryUse, Observer, Passes, Placed, PlanMode, Program, Session, StateId,
    StepInfo, StepTime, Symbols, Top,
};

/// How a graph is prepared.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrepareOptions {
    pub mode: PlanMode,
    /// Whether the graph is spelled in small operations and must be searched for jets.
    pub foreign: bool,
    /// How many layers may run on the first backend; what comes after them runs on the last. A node
    /// says its layer by a label that begins with `blk.` and a number. `None` for all.
    pub device_layers: Option<usize>,
}

/// Where a node runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub backend: &'static str,
    /// The kernel, or `None` when the node runs as atoms.
    pub kernel: Option<&'static str>,
}

/// A graph ready to run, on one or several backends.
#[derive(Debug)]
pub struct Executor {
    segments: Vec<Segment>,
    symbols: Symbols,
    inputs: Vec<Port>,
    outputs: Vec<(Port, End)>,
    states: Vec<(Arc<str>, End)>,
    passes: Passes,
}

#[derive(Debug)]
struct Port {
    name: Arc<str>,
    fact: Fact,
}

/// A place in a segment: number of the segment, number within it.
#[derive(Clone, Copy, Debug)]
struct End {
    segment: usize,
    index: usize,
}

#[derive(Debug)]
struct Segment {
    program: Box<dyn Program>,
    /// For each symbol of the program, its number in the executor.
    symbols: Vec<usize>,
    inputs: Vec<Feed>,
}

/// What fills a segment's input.
#[derive(Clone, Copy, Debug)]
enum Feed {
    /// Input of the executor.
    Input(usize),
    /// Output of an earlier segment.
    Segment(End),
}

impl Executor {
    /// Prepares `graph` on the backends, in order of preference, if its weights fit them.
    pub fn prepare(
        graph: Graph,
        backends: &[Arc<dyn Backend>],
        options: PrepareOptions,
    ) -> Result<Executor, ExecError> {
        let placed = Placed::new(graph, backends, options)?;
        placed.check(&vec![1; placed.symbols().len()])?;
        Executor::load(placed)
    }

    /// Loads a graph that has its backends.
    pub fn load(placed: Placed<'_>) -> Result<Executor, ExecError> {
        let Placed { graph, passes, backends, options, places, .. } = placed;
        let cuts = Cuts::new(&graph, &places);
        let symbols = Symbols::of(&graph);
        let input_index: HashMap<ValueId, usize> =
            graph.inputs().enumerate().map(|(i, (_, v))| (v, i)).collect();

        let mut segments = Vec::new();
        // Where each crossing value can be read: outputs of segments so far.
        let mut made: HashMap<ValueId, End> = HashMap::new();
        let mut state_ends: HashMap<ValueId, End> = HashMap::new();
        for (number, range) in cuts.ranges.iter().enumerate() {
            let part = cuts.part(&graph, number)?;
            for (index, v) in part.outputs.iter().enumerate() {
                made.insert(*v, End { segment: number, index });
            }
            for (index, v) in part.states.iter().enumerate() {
                state_ends.insert(*v, End { segment: number, index });
            }
            let feed = |v: &ValueId| match made.get(v) {
                Some(end) => Feed::Segment(*end),
                None => Feed::Input(input_index[v]),
            };
            let inputs = part.inputs.iter().map(feed).collect();
            let program = backends[places[range.start]].prepare(part.graph, options.mode)?;
            let index = |name: &Arc<str>| symbols.index(name).unwrap_or(0);
            let part_symbols = program.symbols().names().iter().map(index).collect();
            segments.push(Segment { program, symbols: part_symbols, inputs });
        }
        let port =
            |name: &Arc<str>, v: ValueId| Port { name: name.clone(), fact: graph.fact(v).clone() };
        let outputs = graph
            .outputs
            .iter()
            .map(|(name, v)| match made.get(v) {
                Some(end) => Ok((port(name, *v), *end)),
                None => Err(ExecError::Input {
                    name: name.to_string(),
                    why: "an output must be computed, not be an input or a weight".into(),
                }),
            })
            .collect::<Result<_, _>>()?;
        let states = graph
            .states()
            .filter_map(|(name, v)| state_ends.get(&v).map(|end| (name.clone(), *end)))
            .collect();
        let inputs = graph.inputs().map(|(name, v)| port(name, v)).collect();
        Ok(Executor { segments, symbols, inputs, outputs, states, passes })
    }

    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// Names and facts of the inputs, in the order [`Running::input`] numbers them.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, &Fact)> {
        self.inputs.iter().map(|p| (&*p.name, &p.fact))
    }

    /// Names and facts of the outputs, in the order [`Running::output`] numbers them.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, &Fact)> {
        self.outputs.iter().map(|(p, _)| (&*p.name, &p.fact))
    }

    /// Names of the states, in the order [`Running::state`] numbers them.
    pub fn states(&self) -> impl Iterator<Item = &str> {
        self.states.iter().map(|(name, _)| &**name)
    }

    pub fn passes(&self) -> &Passes {
        &self.passes
    }

    /// The steps of every segment.
    pub fn steps(&self) -> Vec<StepInfo> {
        self.segments.iter().flat_map(|s| s.program.steps()).collect()
    }

    /// Bytes of weights that backends hold in their own layout.
    pub fn weight_bytes(&self) -> usize {
        self.segments.iter().map(|s| s.program.weight_bytes()).sum()
    }

    /// Sessions for runs whose symbols stay at or below `limits`.
    pub fn start(self: &Arc<Executor>, limits: &[usize]) -> Result<Running, ExecError> {
        let session = |s: &Segment| s.program.session(&pick(&s.symbols, limits));
        let sessions = self.segments.iter().map(session).collect::<Result<Vec<_>, _>>()?;
        let scratch = self.segments.iter().map(|s| vec![0; s.symbols.len()]).collect();
        Ok(Running { executor: self.clone(), sessions, scratch, staging: Vec::new() })
    }
}

fn pick(symbols: &[usize], values: &[usize]) -> Vec<usize> {
    symbols.iter().map(|&i| values[i]).collect()
}

/// A started executor: the sessions of its segments.
#[derive(Debug)]
pub struct Running {
    executor: Arc<Executor>,
    sessions: Vec<Box<dyn Session>>,
    /// Symbol values per segment, kept so that binding allocates nothing.
    scratch: Vec<Vec<usize>>,
    staging: Vec<u8>,
}

impl Running {
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Makes room for runs up to `limits`. States keep their content as far as it fits.
    pub fn resize(&mut self, limits: &[usize]) -> Result<(), ExecError> {
        for (segment, session) in self.executor.segments.iter().zip(&mut self.sessions) {
            session.resize(&pick(&segment.symbols, limits))?;
        }
        Ok(())
    }

    /// Binds the symbols, in the order of [`Executor::symbols`], for the runs that follow.
    pub fn bind(&mut self, values: &[usize]) -> Result<(), ExecError> {
        let parts = self.executor.segments.iter().zip(&mut self.sessions).zip(&mut self.scratch);
        for ((segment, session), bound) in parts {
            for (slot, &i) in bound.iter_mut().zip(&segment.symbols) {
                *slot = values[i];
            }
            session.bind(bound)?;
        }
        Ok(())
    }

    /// Fills input number `index` by handing `fill` its bytes under the present binding, once for
    /// each segment that reads it.
    pub fn input(&mut self, index: usize, fill: &mut dyn FnMut(&mut [u8])) {
        for (segment, session) in self.executor.segments.iter().zip(&mut self.sessions) {
            for (i, feed) in segment.inputs.iter().enumerate() {
                if matches!(feed, Feed::Input(n) if *n == index) {
                    fill(session.input(i));
                }
            }
        }
    }

    pub fn run(&mut self) -> Result<(), ExecError> {
        self.run_segments(&mut |session| session.run())
    }

    /// As `run`, showing each step to `observer`.
    pub fn run_traced(&mut self, observer: &mut dyn Observer) -> Result<(), ExecError> {
        self.run_segments(&mut |session| session.run_traced(observer))
    }

    fn run_segments(
        &mut self,
        run: &mut dyn FnMut(&mut dyn Session) -> Result<(), ExecError>,
    ) -> Result<(), ExecError> {
        let executor = self.executor.clone();
        for (number, segment) in executor.segments.iter().enumerate() {
            for (i, feed) in segment.inputs.iter().enumerate() {
                if let Feed::Segment(from) = feed {
                    self.staging.clear();
                    let bytes = self.sessions[from.segment].output(from.index)?;
                    self.staging.extend_from_slice(bytes);
                    self.sessions[number].input(i).copy_from_slice(&self.staging);
                }
            }
            run(self.sessions[number].as_mut())?;
        }
        Ok(())
    }

    /// The bytes of output number `index` of the last run.
    pub fn output(&mut self, index: usize) -> Result<&[u8], ExecError> {
        let (_, end) = self.executor.outputs[index];
        self.sessions[end.segment].output(end.index)
    }

    /// As [`Session::largest`].
    pub fn largest(&mut self, index: usize) -> Result<Option<&[u32]>, ExecError> {
        let (_, end) = self.executor.outputs[index];
        self.sessions[end.segment].largest(end.index)
    }

    /// As [`Session::top`].
    pub fn top(&mut self, index: usize) -> Result<Option<Top<'_>>, ExecError> {
        let (_, end) = self.executor.outputs[index];
        self.sessions[end.segment].top(end.index)
    }

    /// As [`Session::exponentials`].
    pub fn exponentials(&mut self, index: usize, scale: f32) -> Result<Option<&[f64]>, ExecError> {
        let (_, end) = self.executor.outputs[index];
        self.sessions[end.segment].exponentials(end.index, scale)
    }

    pub fn output_shape(&self, index: usize) -> Vec<usize> {
        let (_, end) = &self.executor.outputs[index];
        self.sessions[end.segment].output_shape(end.index)
    }

    /// The content of state number `index`.
    pub fn state(&mut self, index: usize) -> Result<&[u8], ExecError> {
        let (_, end) = self.executor.states[index];
        self.sessions[end.segment].state(StateId(end.index))
    }

    pub fn set_state(&mut self, index: usize, bytes: &[u8]) -> Result<(), ExecError> {
        let (_, end) = self.executor.states[index];
        self.sessions[end.segment].set_state(StateId(end.index), bytes)
    }

    /// Every step in its order, with the time it took so far.
    pub fn step_times(&self) -> Vec<(StepInfo, StepTime)> {
        let segments = self.executor.segments.iter().zip(&self.sessions);
        let each = segments.flat_map(|(segment, session)| {
            segment.program.steps().into_iter().zip(session.times().to_vec())
        });
        each.collect()
    }

    /// Calls and time per operation, the slowest first.
    pub fn times(&self) -> Vec<(&'static str, StepTime)> {
        let mut by_op: BTreeMap<&'static str, StepTime> = BTreeMap::new();
        for (segment, session) in self.executor.segments.iter().zip(&self.sessions) {
            for (info, time) in segment.program.steps().iter().zip(session.times()) {
                let sum = by_op.entry(info.op).or_default();
                sum.calls += time.calls;
                sum.nanos += time.nanos;
            }
        }
        let mut times: Vec<_> = by_op.into_iter().collect();
        times.sort_by_key(|(_, t)| std::cmp::Reverse(t.nanos));
        times
    }

    /// As [`Session::time_steps`].
    pub fn time_steps(&mut self, on: bool) {
        self.sessions.iter_mut().for_each(|session| session.time_steps(on));
    }

    /// As [`Session::loading`], of all sessions.
    pub fn loading(&self) -> Duration {
        self.sessions.iter().map(|session| session.loading()).sum()
    }

    pub fn reset_times(&mut self) {
        self.sessions.iter_mut().for_each(|s| s.reset_times());
    }

    pub fn memory(&self) -> MemoryUse {
        self.sessions.iter().map(|s| s.memory()).fold(MemoryUse::default(), |a, b| MemoryUse {
            arena: a.arena + b.arena,
            states: a.states + b.states,
            scratch: a.scratch + b.scratch,
        })
    }
}

/// The graph cut where the backend changes.
struct Cuts {
    ranges: Vec<std::ops::Range<usize>>,
    /// Segment of each node.
    segment: Vec<usize>,
}

struct Part {
    graph: Graph,
    /// The whole graph's values behind the part's inputs, outputs and states.
    inputs: Vec<ValueId>,
    outputs: Vec<ValueId>,
    states: Vec<ValueId>,
}

impl Cuts {
    fn new(graph: &Graph, places: &[usize]) -> Cuts {
        let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
        let mut segment = Vec::with_capacity(places.len());
        for i in 0..graph.nodes.len() {
            match ranges.last_mut() {
                Some(range) if places[range.start] == places[i] => range.end = i + 1,
                _ => ranges.push(i..i + 1),
            }
            segment.push(ranges.len() - 1);
        }
        Cuts { ranges, segment }
    }

    /// Segment `number` as a graph of its own.
    fn part(&self, graph: &Graph, number: usize) -> Result<Part, ExecError> {
        let mut b = Builder::new();
        let mut map: HashMap<ValueId, ValueId> = HashMap::new();
        let (mut inputs, mut states) = (Vec::new(), Vec::new());
        for node in &graph.nodes[self.ranges[number].clone()] {
            for &v in &node.inputs {
                if map.contains_key(&v) {
                    continue;
                }
                match graph.value(v).source {
                    Source::Weight(..) | Source::Const(_) | Source::Iota => {}
                    Source::State(_) => states.push(v),
                    Source::Input(_) | Source::Hole(_) | Source::Node(..) => inputs.push(v),
                }
                let new = leaf(&mut b, graph, v);
                map.insert(v, new);
            }
            b.set_label(&node.label);
            let operands: Vec<ValueId> = node.inputs.iter().map(|v| map[v]).collect();
            let outputs = b.push(node.op.clone(), &operands)?;
            map.extend(node.outputs.iter().copied().zip(outputs));
        }
        let mut wanted: HashSet<ValueId> = graph.outputs.iter().map(|(_, v)| *v).collect();
        for (i, node) in graph.nodes.iter().enumerate() {
            if self.segment[i] != number {
                wanted.extend(node.inputs.iter().copied());
            }
        }
        let mut outputs = Vec::new();
        for node in &graph.nodes[self.ranges[number].clone()] {
            for v in node.outputs.iter().filter(|v| wanted.contains(v)) {
                b.output(&v.to_string(), map[v]);
                outputs.push(*v);
            }
        }
        for (state, v) in &graph.updates {
            if let (Some(&state), Some(&v)) = (map.get(state), map.get(v)) {
                b.update(state, v);
            }
        }
        Ok(Part { graph: b.finish(), inputs, outputs, states })
    }
}

/// What a node of a part of `graph` reads, in the part's own graph: as it is, or as an input where
/// another part computes it.
pub(crate) fn leaf(b: &mut Builder, graph: &Graph, v: ValueId) -> ValueId {
    let value = graph.value(v);
    match &value.source {
        Source::Weight(name, tensor, _) => b.weight(name, tensor.clone()),
        Source::Const(tensor) => b.constant(tensor.clone()),
        Source::Iota => b.iota(value.fact.shape[0].clone()),
        Source::State(name) => b.state(name, value.fact.clone()),
        Source::Input(name) | Source::Hole(name) => b.input(name, value.fact.clone()),
        Source::Node(..) => b.input(&v.to_string(), value.fact.clone()),
    }
}
