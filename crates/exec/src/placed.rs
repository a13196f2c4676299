//! A graph whose nodes have their backends, before anything is loaded: what goes where, how many
//! bytes that takes, and whether they are there.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use cyb_ir::{Atom, Graph, Op, Read, Source, ValueId};
use cyb_tensor::byte_len;

use crate::placement::{firsts, layer_of, place};
use crate::{
    Backend, Call, Dispatch, ExecError, Lifetime, Passes, PrepareOptions, Sizes, Symbols, optimize,
    plan_arena,
};

/// A graph after the passes, with the backend of every node; [`crate::Executor::load`] loads it.
#[derive(Debug)]
pub struct Placed<'a> {
    pub(crate) graph: Graph,
    pub(crate) passes: Passes,
    pub(crate) backends: &'a [Arc<dyn Backend>],
    pub(crate) options: PrepareOptions,
    /// Number of the backend of each node.
    pub(crate) places: Vec<usize>,
    symbols: Symbols,
}

/// What one backend gets of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    pub backend: &'static str,
    /// The device, for people.
    pub device: String,
    /// The first and the last layer of which it runs anything.
    pub layers: Option<(usize, usize)>,
    /// Whether another backend runs parts of these layers.
    pub partly: bool,
    /// How many layers the graph has.
    pub n_layers: usize,
    /// What it runs outside layers, by label.
    pub others: Vec<String>,
    /// Bytes of its weights: in a layout of its own where it has one, else as they are in the file.
    pub weights: usize,
    /// Bytes of states, such as keys and values.
    pub states: usize,
    /// Bytes of intermediate results and of scratch, about.
    pub arena: usize,
    /// Bytes of the device's own memory that nobody holds; `None` where it has none of its own.
    pub free: Option<usize>,
}

impl Share {
    /// Bytes together.
    pub fn needed(&self) -> usize {
        self.weights.saturating_add(self.states).saturating_add(self.arena)
    }

    fn fits(&self) -> bool {
        self.free.is_none_or(|free| self.needed() <= free)
    }
}

/// What is missing on a device, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    share: Share,
    free: usize,
    /// The most layers that fit.
    fits: usize,
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Room { share, free, fits } = self;
        let size = |n: usize| match n {
            0..1_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
            _ => format!("{:.1} GB", n as f64 / 1e9),
        };
        write!(
            f,
            "{} needs {} ({} of weights, {} of keys and values, {} of intermediate results), but {} \
             of its memory are free; ",
            share.device,
            size(share.needed()),
            size(share.weights),
            size(share.states),
            size(share.arena),
            size(*free)
        )?;
        match fits {
            0 => f.write_str("run it on the processor (--backend cpu)"),
            n => write!(f, "put {n} of the {} layers there (--gpu-layers {n})", share.n_layers),
        }
    }
}

impl<'a> Placed<'a> {
    /// Runs the passes and finds a backend for every node. Nothing is loaded.
    ///
    /// # Errors
    /// A node has no backend.
    pub fn new(
        graph: Graph,
        backends: &'a [Arc<dyn Backend>],
        options: PrepareOptions,
    ) -> Result<Placed<'a>, ExecError> {
        let (graph, passes) = optimize(graph, backends, options.foreign)?;
        let firsts = firsts(&graph, backends, options.device_layers);
        let places = place(&graph, backends, &firsts)?;
        let symbols = Symbols::of(&graph);
        Ok(Placed { graph, passes, backends, options, places, symbols })
    }

    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// The graph after the passes.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Places layers by measured times. A table that lacks an operation of the graph changes nothing.
    ///
    /// # Errors
    /// A node has no backend.
    pub fn by_times(mut self, table: &Dispatch, sizes: Sizes<'_>) -> Result<Self, ExecError> {
        if let Some(firsts) = table.firsts(&self.graph, self.backends, sizes) {
            self.places = place(&self.graph, self.backends, &firsts)?;
        }
        Ok(self)
    }

    /// What each backend gets, and the bytes that it takes in runs whose symbols stay at or below
    /// `limits`.
    ///
    /// # Errors
    /// A size overflows, or a device does not say what it has.
    pub fn shares(&self, limits: &[usize]) -> Result<Vec<Share>, ExecError> {
        let used: BTreeSet<usize> = self.places.iter().copied().collect();
        used.into_iter().map(|backend| self.share(&self.places, backend, limits)).collect()
    }

    /// Whether all of it fits the memory that is free now.
    ///
    /// # Errors
    /// It does not: [`ExecError::Room`] says what is missing and how many layers fit. Or as
    /// [`Placed::shares`].
    pub fn check(&self, limits: &[usize]) -> Result<(), ExecError> {
        for share in self.shares(limits)? {
            let Some(free) = share.free.filter(|_| !share.fits()) else { continue };
            let fits = self.most_layers(limits, share.n_layers)?;
            return Err(ExecError::Room(Box::new(Room { share, free, fits })));
        }
        Ok(())
    }

    /// The most layers that the devices have room for. More layers never need less.
    fn most_layers(&self, limits: &[usize], layers: usize) -> Result<usize, ExecError> {
        let fits = |n: usize| -> Result<bool, ExecError> {
            let firsts = firsts(&self.graph, self.backends, Some(n));
            let places = place(&self.graph, self.backends, &firsts)?;
            let used: BTreeSet<usize> = places.iter().copied().collect();
            for backend in used {
                if !self.share(&places, backend, limits)?.fits() {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let (mut fit, mut too_many) = (0, layers);
        while too_many - fit > 1 {
            let middle = fit + (too_many - fit) / 2;
            match fits(middle)? {
                true => fit = middle,
                false => too_many = middle,
            }
        }
        Ok(fit)
    }

    fn share(
        &self,
        places: &[usize],
        backend: usize,
        limits: &[usize],
    ) -> Result<Share, ExecError> {
        let graph = &self.graph;
        let bytes = |v: ValueId| -> Result<usize, ExecError> {
            let fact = graph.fact(v);
            let dims = fact.shape.iter().map(|d| self.symbols.compile(d).resolve(limits));
            Ok(byte_len(fact.dtype, &dims.collect::<Result<Vec<_>, _>>()?)?)
        };
        let device = &self.backends[backend];
        let (mut weights, mut states) = (0usize, 0usize);
        let (mut layers, mut others) = (BTreeSet::new(), Vec::new());
        let (mut seen, mut scratch): (HashSet<ValueId>, _) = (HashSet::new(), 0);
        let own = || places.iter().enumerate().filter(|&(_, &b)| b == backend).map(|(i, _)| i);
        for index in own() {
            let node = &graph.nodes[index];
            match layer_of(&node.label) {
                Some(layer) => drop(layers.insert(layer)),
                None if node.label.is_empty() || others.iter().any(|l| *l == *node.label) => {}
                None => others.push(node.label.to_string()),
            }
            let call = Call::of(graph, node);
            scratch = device.scratch_bytes(&call).max(scratch);
            for (input, &v) in node.inputs.iter().enumerate() {
                let size = match (&graph.value(v).source, device.packed_bytes(&call, input)) {
                    // Each call has a copy of its own.
                    (Source::Weight(..) | Source::Const(_), Some(packed)) => packed,
                    (Source::Weight(..) | Source::Const(_), None) if seen.insert(v) => {
                        graph.tensor(v).map_or(0, |tensor| tensor.bytes().len())
                    }
                    (Source::State(_), _) if seen.insert(v) => {
                        states = states.saturating_add(bytes(v)?);
                        0
                    }
                    _ => 0,
                };
                weights = weights.saturating_add(size);
            }
        }
        let elsewhere = |layer: &usize| {
            graph
                .nodes
                .iter()
                .zip(places)
                .any(|(node, &b)| b != backend && layer_of(&node.label) == Some(*layer))
        };
        let n_layers = graph.nodes.iter().filter_map(|node| layer_of(&node.label)).max();
        Ok(Share {
            backend: device.name(),
            device: device.device(),
            layers: layers.first().copied().zip(layers.last().copied()),
            partly: layers.iter().any(elsewhere),
            n_layers: n_layers.map_or(0, |last| last + 1),
            others,
            weights,
            states,
            arena: self.arena(&own().collect::<Vec<_>>(), &bytes)?.saturating_add(scratch),
            free: device.free_memory()?,
        })
    }

    /// Bytes for the results of some nodes, each as long as one of them reads it, and for the rows of
    /// the largest product once more. Fusion within a backend makes it less.
    fn arena(
        &self,
        nodes: &[usize],
        bytes: &dyn Fn(ValueId) -> Result<usize, ExecError>,
    ) -> Result<usize, ExecError> {
        let graph = &self.graph;
        let (mut lifetimes, mut widest) = (Vec::<Lifetime>::new(), 0);
        let mut buffers: HashMap<ValueId, usize> = HashMap::new();
        for (now, &index) in nodes.iter().enumerate() {
            let node = &graph.nodes[index];
            for v in &node.inputs {
                if let Some(&buffer) = buffers.get(v) {
                    lifetimes[buffer].last = now;
                }
            }
            let view = matches!(node.op, Op::Atom(Atom::Read(Read::Reshape(_))));
            for (output, &v) in node.outputs.iter().enumerate() {
                let shared = match &node.op {
                    Op::Jet(jet, _) => jet.in_place.iter().find(|(_, o)| *o == output),
                    Op::Atom(_) => view.then_some(&(0, 0)),
                };
                if let Some((input, _)) = shared {
                    if let Some(&buffer) = buffers.get(&node.inputs[*input]) {
                        buffers.insert(v, buffer);
                    }
                    continue;
                }
                let size = bytes(v)?;
                widest = size.max(widest);
                buffers.insert(v, lifetimes.len());
                lifetimes.push(Lifetime { bytes: size, first: now, last: now });
            }
        }
        for (_, v) in &graph.outputs {
            if let Some(&buffer) = buffers.get(v) {
                lifetimes[buffer].last = nodes.len();
            }
        }
        let too_large = ExecError::Memory { what: "the arena", bytes: usize::MAX };
        let plan = plan_arena(&lifetimes, self.options.mode).ok_or(too_large)?;
        Ok(plan.bytes.saturating_add(widest))
    }
}

#[cfg(test)]
mod tests {
    use cyb_ir::{Attrs, Builder, Fact};
    use cyb_jets::{ADD, LINEAR};
    use cyb_tensor::{DType, Tensor};

    use super::*;
    use crate::{Kernel, PlanMode, Program};

    /// A device with this many bytes free, or the processor.
    #[derive(Debug)]
    struct Device(Option<usize>);

    impl Backend for Device {
        fn name(&self) -> &'static str {
            if self.0.is_some() { "device" } else { "processor" }
        }

        fn device(&self) -> String {
            "GPU of tests".to_owned()
        }

        fn kernel(&self, _: &Call<'_>) -> Option<Kernel> {
            Some(Kernel { name: "any" })
        }

        fn runs_atoms(&self) -> bool {
            true
        }

        fn free_memory(&self) -> Result<Option<usize>, ExecError> {
            Ok(self.0)
        }

        fn packed_bytes(&self, call: &Call<'_>, input: usize) -> Option<usize> {
            // Twice what the file has.
            (self.0.is_some() && call.op.name() == "linear" && input == 1).then_some(2 * WEIGHT)
        }

        fn prepare(&self, _: Graph, _: PlanMode) -> Result<Box<dyn Program>, ExecError> {
            Err(ExecError::Step { step: "prepare".into(), why: "nothing runs here".into() })
        }
    }

    const WIDTH: usize = 32;
    const WEIGHT: usize = WIDTH * WIDTH * 4;
    const LAYERS: usize = 6;

    /// Layers of a product and a sum with one table that all of them read.
    fn graph() -> Graph {
        let mut b = Builder::new();
        let rows = Fact::new(DType::F32, [cyb_tensor::Dim::symbol("T"), WIDTH.into()]);
        let mut x = b.input("x", rows);
        let table = b.weight("table", Tensor::from_f32(vec![WIDTH], &[0.5; WIDTH]).unwrap());
        for layer in 0..LAYERS {
            b.set_label(&format!("blk.{layer}.up"));
            let values = vec![layer as f32; WIDTH * WIDTH];
            let w = Tensor::from_f32(vec![WIDTH, WIDTH], &values).unwrap();
            let w = b.weight(&format!("w{layer}"), w);
            let y = b.jet(&LINEAR, Attrs::new(), &[x, w]).unwrap();
            x = b.jet(&ADD, Attrs::new(), &[y, table]).unwrap();
        }
        b.set_label("output");
        let y = b.jet(&ADD, Attrs::new(), &[x, table]).unwrap();
        b.output("y", y);
        b.finish()
    }

    fn backends(free: usize) -> Vec<Arc<dyn Backend>> {
        vec![Arc::new(Device(Some(free))), Arc::new(Device(None))]
    }

    #[test]
    fn shares_say_layers_and_bytes() {
        let backends = backends(1 << 20);
        let options = PrepareOptions { device_layers: Some(2), ..PrepareOptions::default() };
        let placed = Placed::new(graph(), &backends, options).unwrap();
        let shares = placed.shares(&[3]).unwrap();
        let [device, processor] = &shares[..] else { panic!("{shares:?}") };
        assert_eq!((device.layers, processor.layers), (Some((0, 1)), Some((2, 5))));
        assert_eq!((device.partly, device.n_layers), (false, LAYERS));
        assert_eq!(processor.others, ["output"]);
        let table = WIDTH * 4;
        assert_eq!(device.weights, 2 * 2 * WEIGHT + table);
        assert_eq!(processor.weights, 4 * WEIGHT + table);
        // Two results are alive at a time, and one more is counted for a product's rows.
        assert_eq!(device.arena, 3 * 3 * WIDTH * 4);
        assert_eq!((device.free, processor.free), (Some(1 << 20), None));
        placed.check(&[3]).unwrap();
    }

    #[test]
    fn too_little_memory_names_the_most_layers_that_fit() {
        for fit in 0..LAYERS {
            let needed = |n: usize| {
                let backends = backends(usize::MAX);
                let options =
                    PrepareOptions { device_layers: Some(n), ..PrepareOptions::default() };
                Placed::new(graph(), &backends, options).unwrap().shares(&[1]).unwrap()[0].needed()
            };
            let backends = backends(if fit == 0 { 7 } else { needed(fit) });
            let placed = Placed::new(graph(), &backends, PrepareOptions::default()).unwrap();
            let message = placed.check(&[1]).unwrap_err().to_string();
            let remedy = match fit {
                0 => "--backend cpu".to_owned(),
                n => format!("put {n} of the 6 layers there (--gpu-layers {n})"),
            };
            assert!(message.contains(&remedy) && message.contains("GPU of tests"), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }
}
