//! Measured times of operations, and where layers go by them.
//!
//! Level 2 of scheduling: each operation of a graph is timed alone on every backend that has a kernel
//! for it, for one token and for many, and so is the way of a value from one backend to another. A
//! graph's layers are then placed so that the sum is least for a stated piece of work. The times say
//! where, never what; one table always gives one placement.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use cyb_ir::{Atom, Builder, Graph, Node, Op, Read, ValueId};
use cyb_tensor::byte_len;

use crate::executor::leaf;
use crate::placement::layer_of;
use crate::{Backend, Call, ExecError, Executor, PrepareOptions, Symbols};

/// Steps of one token for each step of many in the work that a placement is best for.
const STEPS_OF_ONE: f64 = 128.0;
/// Measured runs of an operation, after some that are not.
const RUNS: usize = 7;
const WARMUP: usize = 2;

/// Milliseconds for a step of one token and for one of many.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    pub one: f64,
    pub many: f64,
}

impl Timing {
    /// For the work that placements are best for.
    fn work(self) -> f64 {
        self.one * STEPS_OF_ONE + self.many
    }
}

/// What operations take, on each backend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dispatch {
    /// By operation with the types and shapes of what it reads, then by backend.
    pub operations: BTreeMap<String, BTreeMap<String, Timing>>,
    /// A step's way from one backend to the next, whatever crosses.
    pub crossing_ms: f64,
    /// More for each megabyte (10^6 bytes) that crosses.
    pub crossing_ms_per_mb: f64,
}

/// Values of a graph's symbols for a step of one token and for one of many.
#[derive(Clone, Copy, Debug)]
pub struct Sizes<'a> {
    pub one: &'a [usize],
    pub many: &'a [usize],
}

/// Fills an input by its name, `many` tokens at a time.
pub type FillInput<'a> = &'a dyn Fn(&str, &mut [u8]);

/// An operation with its shape class: what its time depends on.
fn key(graph: &Graph, node: &Node) -> String {
    let facts: Vec<String> = node.inputs.iter().map(|&v| graph.fact(v).to_string()).collect();
    format!("{}({})", node.op.name(), facts.join(", "))
}

/// Whether a node is the same bytes under another shape.
fn is_free(node: &Node) -> bool {
    matches!(node.op, Op::Atom(Atom::Read(Read::Reshape(_))))
}

impl Dispatch {
    /// Times every operation of `graph`, which has been through the passes, and the way between the
    /// backends. `tell` is told how many of all operations are done.
    ///
    /// # Errors
    /// An operation cannot be prepared or run where a backend has a kernel for it.
    pub fn measure(
        graph: &Graph,
        backends: &[Arc<dyn Backend>],
        sizes: Sizes<'_>,
        fill: FillInput<'_>,
        tell: &mut dyn FnMut(usize, usize),
    ) -> Result<Dispatch, ExecError> {
        let mut distinct: BTreeMap<String, &Node> = BTreeMap::new();
        for node in graph.nodes.iter().filter(|node| !is_free(node)) {
            distinct.entry(key(graph, node)).or_insert(node);
        }
        let mut dispatch = Dispatch::default();
        let all = distinct.len();
        for (done, (key, node)) in distinct.into_iter().enumerate() {
            tell(done, all);
            let mut by_backend = BTreeMap::new();
            for backend in backends {
                if backend.kernel(&Call::of(graph, node)).is_some() {
                    let time = time(graph, node, backend, sizes, fill)?;
                    by_backend.insert(backend.name().to_owned(), time);
                }
            }
            dispatch.operations.insert(key, by_backend);
        }
        if let Some(first) = backends.first().filter(|_| backends.len() > 1) {
            let (small, large) = (crossing(first, 1 << 10)?, crossing(first, 16 << 20)?);
            dispatch.crossing_ms = small;
            dispatch.crossing_ms_per_mb = (large - small).max(0.0) / f64::from(16 << 20) * 1e6;
        }
        tell(all, all);
        Ok(dispatch)
    }

    /// The first backend that each node may go to: that of its layer, or of what lies between layers,
    /// so that the work takes the least time. `None` when an operation was not measured.
    pub(crate) fn firsts(
        &self,
        graph: &Graph,
        backends: &[Arc<dyn Backend>],
        sizes: Sizes<'_>,
    ) -> Option<Vec<usize>> {
        let units = units(graph);
        let n = backends.len();
        // The least cost of everything so far when this unit is on each backend, and the backend of
        // the unit before.
        let mut least = vec![0.0f64; n];
        let mut ways: Vec<Vec<usize>> = Vec::with_capacity(units.len());
        for (number, unit) in units.iter().enumerate() {
            let border = if number == 0 { 0.0 } else { self.border(graph, unit.start, sizes)? };
            let mut next = vec![f64::INFINITY; n];
            let mut way = vec![0; n];
            for to in 0..n {
                let own = self.cost(graph, &graph.nodes[unit.clone()], backends, to)?;
                for (from, &before) in least.iter().enumerate() {
                    let cost = before + own + if from == to { 0.0 } else { border };
                    // Of equal costs the earlier backend's holds.
                    if cost < next[to] {
                        (next[to], way[to]) = (cost, from);
                    }
                }
            }
            least = next;
            ways.push(way);
        }
        let mut at = (0..n).min_by(|&a, &b| least[a].total_cmp(&least[b]))?;
        let mut firsts = vec![0; graph.nodes.len()];
        for (unit, way) in units.iter().zip(&ways).rev() {
            firsts[unit.clone()].fill(at);
            at = way[at];
        }
        Some(firsts)
    }

    /// What nodes cost that go to `first`, or behind it where that has no kernel.
    fn cost(
        &self,
        graph: &Graph,
        nodes: &[Node],
        backends: &[Arc<dyn Backend>],
        first: usize,
    ) -> Option<f64> {
        let mut sum = 0.0;
        for node in nodes.iter().filter(|node| !is_free(node)) {
            let times = self.operations.get(&key(graph, node))?;
            let there = backends[first..].iter().find_map(|backend| times.get(backend.name()));
            // What no backend has a kernel for runs as atoms, wherever it is; where only an earlier one
            // has a kernel, nothing goes past that one.
            sum += match there {
                Some(time) => time.work(),
                None if times.is_empty() => 0.0,
                None => f64::INFINITY,
            };
        }
        Some(sum)
    }

    /// What it costs when the nodes from `at` on are on another backend than those before.
    fn border(&self, graph: &Graph, at: usize, sizes: Sizes<'_>) -> Option<f64> {
        let symbols = Symbols::of(graph);
        let mut crossing: Vec<ValueId> =
            graph.nodes[at..].iter().flat_map(|node| node.inputs.iter().copied()).collect();
        crossing.sort_unstable();
        crossing.dedup();
        let made: Vec<ValueId> =
            graph.nodes[..at].iter().flat_map(|node| node.outputs.iter().copied()).collect();
        crossing.retain(|v| made.contains(v));
        let bytes = |bound: &[usize]| -> Option<f64> {
            let mut sum = 0.0;
            for &v in &crossing {
                let fact = graph.fact(v);
                let dims = fact.shape.iter().map(|d| symbols.compile(d).resolve(bound).ok());
                sum += byte_len(fact.dtype, &dims.collect::<Option<Vec<_>>>()?).ok()? as f64;
            }
            Some(self.crossing_ms + sum / 1e6 * self.crossing_ms_per_mb)
        };
        Some(Timing { one: bytes(sizes.one)?, many: bytes(sizes.many)? }.work())
    }
}

/// Runs of nodes that go to one backend: a layer, or what lies between layers.
fn units(graph: &Graph) -> Vec<std::ops::Range<usize>> {
    let mut units: Vec<std::ops::Range<usize>> = Vec::new();
    let layer = |index: usize| layer_of(&graph.nodes[index].label);
    for index in 0..graph.nodes.len() {
        match units.last_mut() {
            Some(unit) if layer(unit.start) == layer(index) => unit.end = index + 1,
            _ => units.push(index..index + 1),
        }
    }
    units
}

/// A node as a graph of its own.
fn alone(graph: &Graph, node: &Node) -> Result<Graph, ExecError> {
    let mut b = Builder::new();
    let mut map: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for &v in &node.inputs {
        map.entry(v).or_insert_with(|| leaf(&mut b, graph, v));
    }
    let inputs: Vec<ValueId> = node.inputs.iter().map(|v| map[v]).collect();
    for (i, v) in b.push(node.op.clone(), &inputs)?.into_iter().enumerate() {
        b.output(&i.to_string(), v);
    }
    Ok(b.finish())
}

fn time(
    graph: &Graph,
    node: &Node,
    backend: &Arc<dyn Backend>,
    sizes: Sizes<'_>,
    fill: FillInput<'_>,
) -> Result<Timing, ExecError> {
    let part = alone(graph, node)?;
    let whole = Symbols::of(graph);
    let own = Symbols::of(&part);
    let bound = |values: &[usize]| -> Vec<usize> {
        own.names().iter().map(|name| whole.index(name).map_or(1, |at| values[at])).collect()
    };
    let options = PrepareOptions::default();
    let backends = std::slice::from_ref(backend);
    let executor = Arc::new(Executor::prepare(part, backends, options)?);
    let names: Vec<String> = executor.inputs().map(|(name, _)| name.to_owned()).collect();
    let mut running = executor.start(&bound(sizes.many))?;
    running.time_steps(true);
    let mut measure = |values: &[usize]| -> Result<f64, ExecError> {
        running.bind(&bound(values))?;
        for (i, name) in names.iter().enumerate() {
            running.input(i, &mut |bytes| fill(name, bytes));
        }
        let mut times = Vec::with_capacity(RUNS);
        for run in 0..WARMUP + RUNS {
            running.reset_times();
            running.run()?;
            let nanos: u64 = running.step_times().iter().map(|(_, time)| time.nanos).sum();
            if run >= WARMUP {
                times.push(nanos as f64 / 1e6);
            }
        }
        Ok(median(times))
    };
    Ok(Timing { one: measure(sizes.one)?, many: measure(sizes.many)? })
}

/// The milliseconds that a value of so many bytes takes to a backend and back, both ways together.
fn crossing(backend: &Arc<dyn Backend>, bytes: usize) -> Result<f64, ExecError> {
    let mut b = Builder::new();
    let fact = cyb_ir::Fact::new(cyb_tensor::DType::F32, [(bytes / 4).into()]);
    let x = b.input("x", fact);
    let y = b.jet(&cyb_jets::ADD, cyb_ir::Attrs::new(), &[x, x])?;
    b.output("y", y);
    let backends = std::slice::from_ref(backend);
    let executor = Arc::new(Executor::prepare(b.finish(), backends, PrepareOptions::default())?);
    let mut running = executor.start(&[])?;
    running.bind(&[])?;
    let mut times = Vec::with_capacity(RUNS);
    for run in 0..WARMUP + RUNS {
        let start = Instant::now();
        running.input(0, &mut |bytes| bytes.fill(0x3f));
        running.run()?;
        running.output(0)?;
        if run >= WARMUP {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(median(times))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use cyb_ir::{Attrs, Fact};
    use cyb_jets::{ADD, LINEAR};
    use cyb_tensor::{DType, Dim, Tensor};

    use super::*;
    use crate::{Kernel, Placed, PlanMode, Program};

    /// A backend that has kernels for all operations, or for all but products.
    #[derive(Debug)]
    struct Named(&'static str, bool);

    impl Backend for Named {
        fn name(&self) -> &'static str {
            self.0
        }

        fn device(&self) -> String {
            String::new()
        }

        fn kernel(&self, call: &Call<'_>) -> Option<Kernel> {
            (self.1 || call.op.name() != "linear").then_some(Kernel { name: "any" })
        }

        fn runs_atoms(&self) -> bool {
            true
        }

        fn prepare(&self, _: Graph, _: PlanMode) -> Result<Box<dyn Program>, ExecError> {
            Err(ExecError::Step { step: "prepare".into(), why: "nothing runs here".into() })
        }
    }

    /// Layers of a product each, the later ones wider, with a sum between them.
    fn graph() -> Graph {
        let mut b = Builder::new();
        let fact = |n: usize| Fact::new(DType::F32, [Dim::symbol("T"), n.into()]);
        let mut x = b.input("x", fact(8));
        for (layer, [n, k]) in [[8usize, 8], [8, 8], [64, 8], [64, 64]].into_iter().enumerate() {
            b.set_label(&format!("blk.{layer}.up"));
            let w = Tensor::from_f32(vec![n, k], &vec![0.5; n * k]).unwrap();
            let w = b.weight(&format!("w{layer}"), w);
            x = b.jet(&LINEAR, Attrs::new(), &[x, w]).unwrap();
        }
        b.set_label("output");
        let y = b.jet(&ADD, Attrs::new(), &[x, x]).unwrap();
        b.output("y", y);
        b.finish()
    }

    /// A table where `far` takes `far_ms` for everything and `near` takes longer for wide products.
    fn table(graph: &Graph, far_ms: f64, crossing_ms: f64) -> Dispatch {
        let time = |one: f64| Timing { one, many: one };
        let near = |key: &str| if key.contains("64") { 4.0 } else { 1.0 };
        let operations = graph.nodes.iter().map(|node| {
            let key = key(graph, node);
            let times = [("far", time(far_ms)), ("near", time(near(&key)))];
            (key, times.map(|(name, time)| (name.to_owned(), time)).into())
        });
        Dispatch { operations: operations.collect(), crossing_ms, crossing_ms_per_mb: 0.0 }
    }

    fn placed(table: &Dispatch, backends: &[Arc<dyn Backend>]) -> Vec<usize> {
        let placed = Placed::new(graph(), backends, PrepareOptions::default()).unwrap();
        let sizes = Sizes { one: &[1], many: &[512] };
        placed.by_times(table, sizes).unwrap().places
    }

    #[test]
    fn layers_go_where_the_work_takes_the_least_time() {
        let backends: [Arc<dyn Backend>; 2] =
            [Arc::new(Named("far", true)), Arc::new(Named("near", true))];
        let graph = graph();
        let places = |far, crossing| placed(&table(&graph, far, crossing), &backends);
        assert_eq!(places(0.5, 0.1), [0, 0, 0, 0, 0]);
        assert_eq!(places(9.0, 0.1), [1, 1, 1, 1, 1]);
        // The wide ones only, unless the way there costs more than it saves.
        assert_eq!(places(2.0, 0.1), [1, 1, 0, 0, 0]);
        assert_eq!(places(2.0, 99.0), [0, 0, 0, 0, 0]);
        assert_eq!(places(3.5, 99.0), [1, 1, 1, 1, 1]);
        // Equal costs: the order of preference.
        assert_eq!(places(1.0, 0.0)[..2], [0, 0]);
    }

    #[test]
    fn operations_without_a_kernel_count_where_they_run() {
        let backends: [Arc<dyn Backend>; 2] =
            [Arc::new(Named("far", false)), Arc::new(Named("near", true))];
        let mut table = table(&graph(), 0.1, 0.1);
        for (key, times) in &mut table.operations {
            if key.starts_with("linear") {
                times.remove("far");
            }
        }
        let places = placed(&table, &backends);
        assert_eq!(places[..4], [1, 1, 1, 1]);
    }

    #[test]
    fn a_table_of_another_model_changes_nothing() {
        let backends: [Arc<dyn Backend>; 2] =
            [Arc::new(Named("far", true)), Arc::new(Named("near", true))];
        assert_eq!(placed(&Dispatch::default(), &backends), [0, 0, 0, 0, 0]);
    }
}
