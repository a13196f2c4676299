//! ONNX graphs: any model as a function of named tensors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use cyb_exec::{Backend, Executor, PrepareOptions, Running};
use cyb_formats::onnx::{Dimension, Elem};
use cyb_ir::{Graph, Source};
use cyb_onnx::{Note, Onnx, Port, Program, Runner, StepTime};
use cyb_tensor::{AlignedBytes, Bindings, Bytes, Class, DType, Tensor};
use indexmap::IndexMap;

use crate::detect::{MAX_SIDE, sides_of};
use crate::model::millis;
use crate::{Error, Runtime, Spread, library, memory};

/// An ONNX model ready to be called. It is prepared for the shapes of its inputs when it is first
/// called with them.
#[derive(Debug)]
pub struct OnnxModel {
    name: String,
    onnx: Onnx,
}

impl Runtime {
    /// Whether a path, or a name in the models folder, is an ONNX file.
    ///
    /// # Errors
    /// There is no such model, or it cannot be read.
    pub fn is_onnx(&self, name: &str) -> Result<bool, Error> {
        let path = library::resolve(name, self.models_dir())?;
        Ok(path.is_file() && cyb_formats::is_onnx_file(&path)?)
    }

    /// Loads an ONNX model: a path, or a name in the models folder.
    ///
    /// # Errors
    /// There is no such model, its file is not what it should be, or it has operators that are not
    /// supported, all of which the error names.
    pub fn load_onnx(&self, name: &str) -> Result<OnnxModel, Error> {
        let path = library::resolve(name, self.models_dir())?;
        let model = cyb_formats::onnx::Model::open(&path)?;
        self.prepare_onnx(path.display().to_string(), model)
    }

    /// Loads an ONNX model from memory; external data is looked for in `folder`.
    ///
    /// # Errors
    /// As [`Runtime::load_onnx`].
    pub fn onnx_from_bytes(
        &self,
        name: &str,
        bytes: Vec<u8>,
        folder: Option<&Path>,
    ) -> Result<OnnxModel, Error> {
        let model = cyb_formats::onnx::Model::from_bytes(bytes, folder).map_err(|problem| {
            Error::Format(cyb_formats::FormatError::Onnx { path: name.into(), problem })
        })?;
        self.prepare_onnx(name.to_owned(), model)
    }

    fn prepare_onnx(
        &self,
        name: String,
        model: cyb_formats::onnx::Model,
    ) -> Result<OnnxModel, Error> {
        let runner = Box::new(OnBackends(self.opened_backends().to_vec()));
        match Onnx::new(model, runner) {
            Ok(onnx) => Ok(OnnxModel { name, onnx }),
            Err(problem) => Err(Error::Onnx { model: name, problem }),
        }
    }
}

impl OnnxModel {
    /// The path or name it was loaded by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Names, element types and declared shapes of what it takes.
    pub fn inputs(&self) -> &[Port] {
        self.onnx.inputs()
    }

    /// Names, element types and declared shapes of what it gives.
    pub fn outputs(&self) -> &[Port] {
        self.onnx.outputs()
    }

    /// Free text that the exporter put into the file, such as class names.
    pub fn metadata(&self) -> &IndexMap<String, String> {
        self.onnx.metadata()
    }

    /// The graph as the file has it.
    pub fn model(&self) -> &cyb_formats::onnx::Model {
        self.onnx.model()
    }

    /// How often each operator stands in the file, graphs inside nodes included.
    pub fn operators(&self) -> BTreeMap<String, usize> {
        self.onnx.operators()
    }

    /// Prepares the model for inputs of these types and shapes, as far as shapes alone tell.
    ///
    /// # Errors
    /// As [`OnnxModel::run`].
    pub fn prepare(&self, inputs: &IndexMap<String, Tensor>) -> Result<(), Error> {
        let problem = |problem| Error::Onnx { model: self.name.clone(), problem };
        self.onnx.prepare(inputs).map_err(problem)
    }

    /// The steps of every prepared graph, with the time they took so far.
    pub fn steps(&self) -> Vec<StepTime> {
        self.onnx.times()
    }

    /// What was found in the graphs that are prepared: layers spelled out that became jets, and
    /// layers that nearly did.
    pub fn notes(&self) -> Vec<Note> {
        self.onnx.notes()
    }

    /// Runs the model on named tensors.
    ///
    /// # Errors
    /// An input is missing, unknown, or of the wrong type or shape, or a node cannot run on what it
    /// gets.
    pub fn run(
        &self,
        inputs: &IndexMap<String, Tensor>,
    ) -> Result<IndexMap<String, Tensor>, Error> {
        self.onnx.run(inputs).map_err(|problem| Error::Onnx { model: self.name.clone(), problem })
    }
}

/// Sizes that are tried for dimensions that nobody gives: pictures and sounds must not be too small.
const ASSUMED: [usize; 3] = [1, 64, 512];

/// Made-up inputs.
#[derive(Clone, Debug)]
pub struct SampleInputs {
    pub inputs: IndexMap<String, Tensor>,
    /// Sizes of named dimensions that nobody gave.
    pub assumed: BTreeMap<String, usize>,
}

/// How fast an ONNX model runs.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardBench {
    /// The first run, which prepares the model for the shapes of its inputs.
    pub first_ms: f64,
    /// The runs after it, in milliseconds.
    pub run_ms: Spread,
    /// Every step, with the time of all runs together.
    pub steps: Vec<StepTime>,
    /// The most memory that the process has held, in MiB.
    pub peak_memory_mb: f64,
}

impl OnnxModel {
    /// Inputs of the declared shapes that the model can be prepared for, as it then is. Sizes come from
    /// `dims` by name; others are 1 where they count the first axis of an input, and elsewhere those of
    /// the pictures that a detector says it was exported for, or the first of a few sizes that fits.
    ///
    /// # Errors
    /// An input is no tensor of numbers, or has no declared shape; `dims` names a dimension that no
    /// input has; or no size fits.
    pub fn sample_inputs(&self, dims: &BTreeMap<String, usize>) -> Result<SampleInputs, Error> {
        let shapes = self.inputs().iter().filter_map(|port| port.shape.as_ref());
        let name = |dim: &Dimension| match dim {
            Dimension::Symbol(name) => Some(name.clone()),
            _ => None,
        };
        let named: BTreeSet<String> = shapes.flatten().filter_map(name).collect();
        if let Some(unknown) = dims.keys().find(|&name| !named.contains(name)) {
            let named = named.into_iter().collect::<Vec<_>>().join(", ");
            let named = if named.is_empty() { "none".to_owned() } else { named };
            let why = format!("no input has a dimension {unknown:?}; the named ones are: {named}");
            return Err(Error::Value { what: "dim", why });
        }
        let mut failures = Vec::new();
        let pictures = self.picture_sides(dims);
        let first = (!pictures.is_empty()).then_some((ASSUMED[0], pictures));
        let others = ASSUMED.map(|size| (size, BTreeMap::new()));
        for (size, mut assumed) in first.into_iter().chain(others) {
            let inputs = self.inputs_of_size(dims, size, &mut assumed)?;
            match self.prepare(&inputs) {
                Ok(()) => return Ok(SampleInputs { inputs, assumed }),
                Err(failure) => failures.push((failure, assumed)),
            }
        }
        let (failure, assumed) = failures.swap_remove(0);
        if assumed.is_empty() {
            return Err(failure);
        }
        let names: Vec<String> = assumed.into_keys().collect();
        let names = names.join(", ");
        let why = format!("{failure}; no size assumed for {names} fits, give it with --dim NAME=N");
        Err(Error::Value { what: "dim", why })
    }

    /// The sides of pictures [batch, channels, height, width] whose names `dims` lacks, as the metadata of
    /// a detector have them.
    fn picture_sides(&self, dims: &BTreeMap<String, usize>) -> BTreeMap<String, usize> {
        let mut sides = BTreeMap::new();
        let exported = self.metadata().get("imgsz").and_then(|text| sides_of(text));
        let Some(exported) = exported.filter(|all| all.iter().all(|n| (1..=MAX_SIDE).contains(n)))
        else {
            return sides;
        };
        for port in self.inputs() {
            let Some([_, _, picture @ ..]) = port.shape.as_deref() else { continue };
            if picture.len() != 2 {
                continue;
            }
            for (dim, side) in picture.iter().zip(exported) {
                if let Dimension::Symbol(name) = dim
                    && !dims.contains_key(name)
                {
                    sides.insert(name.clone(), side as usize);
                }
            }
        }
        sides
    }

    /// Inputs of the declared shapes: floats from 0 to 1 (0 where they have 16 bits or fewer), integers
    /// and truths 1.
    fn inputs_of_size(
        &self,
        dims: &BTreeMap<String, usize>,
        size: usize,
        assumed: &mut BTreeMap<String, usize>,
    ) -> Result<IndexMap<String, Tensor>, Error> {
        // The first axis counts what the model is given at once.
        let first_of = |port: &Port| match port.shape.as_deref() {
            Some([Dimension::Symbol(name), _, ..]) => Some(name.clone()),
            _ => None,
        };
        let batches: BTreeSet<String> = self.inputs().iter().filter_map(first_of).collect();
        let mut inputs = IndexMap::new();
        for port in self.inputs() {
            let fail = |why: &str| Error::Value {
                what: "input",
                why: format!("{port} {why}; give the inputs in an .npz file"),
            };
            let shape = port.shape.as_ref().ok_or_else(|| fail("has no declared shape"))?;
            let shape: Vec<usize> = shape
                .iter()
                .enumerate()
                .map(|(axis, dim)| match dim {
                    Dimension::Known(n) => *n,
                    Dimension::Symbol(name) => dims.get(name).copied().unwrap_or_else(|| {
                        let size = if batches.contains(name) { 1 } else { size };
                        *assumed.entry(name.clone()).or_insert(size)
                    }),
                    Dimension::Unknown if axis == 0 => 1,
                    Dimension::Unknown => size,
                })
                .collect();
            let storage = port.elem.and_then(Elem::storage);
            let dtype = storage.ok_or_else(|| fail("is no tensor of numbers"))?;
            let size = dtype.layout().bytes;
            let len = cyb_tensor::byte_len(dtype, &shape).map_err(|e| fail(&e.to_string()))?;
            let mut bytes = AlignedBytes::zeroed(len);
            for (i, element) in bytes.as_mut_slice().chunks_exact_mut(size).enumerate() {
                // Steps of the golden ratio: spread out, and the same each time.
                let float = i as f64 * 0.618_033_988_75 % 1.0;
                match dtype {
                    DType::F64 => element.copy_from_slice(&float.to_le_bytes()),
                    DType::F32 => element.copy_from_slice(&(float as f32).to_le_bytes()),
                    _ if matches!(dtype.class(), Class::Float) => {}
                    _ => element[0] = 1,
                }
            }
            let tensor = Tensor::new(dtype, shape, Bytes::owned(bytes));
            let tensor = tensor.map_err(|error| fail(&error.to_string()))?;
            inputs.insert(port.name.clone(), tensor);
        }
        Ok(inputs)
    }

    /// Runs the model `repeat` times, after one run that prepares it and one that warms it up.
    ///
    /// # Errors
    /// As [`OnnxModel::run`], or `repeat` is 0.
    pub fn bench(
        &self,
        inputs: &IndexMap<String, Tensor>,
        repeat: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<ForwardBench, Error> {
        if repeat == 0 {
            return Err(Error::Value { what: "repeat", why: "0; give 1 or more".to_owned() });
        }
        let start = Instant::now();
        self.run(inputs)?;
        let first_ms = millis(start);
        self.run(inputs)?;
        self.onnx.reset_times();
        let mut times = Vec::with_capacity(repeat);
        for number in 0..repeat {
            progress(number, repeat);
            let start = Instant::now();
            self.run(inputs)?;
            times.push(millis(start));
        }
        progress(repeat, repeat);
        let peak = memory::process_peak().unwrap_or(0);
        Ok(ForwardBench {
            first_ms,
            run_ms: Spread::of(times),
            steps: self.onnx.times(),
            peak_memory_mb: peak as f64 / f64::from(1 << 20),
        })
    }
}

/// Runs graphs on the backends of a runtime.
struct OnBackends(Vec<Arc<dyn Backend>>);

impl Runner for OnBackends {
    fn prepare(&self, graph: Graph) -> Result<Box<dyn Program>, String> {
        let (graph, fixed) = without_constants(graph)?;
        if fixed.iter().all(Option::is_some) {
            return Ok(Box::new(OnExecutor { running: None, feeds: Vec::new(), fixed }));
        }
        let names: Vec<Arc<str>> = graph.inputs().map(|(name, _)| name.clone()).collect();
        // The import says jets itself; a search for patterns of atoms takes longer than the run.
        let options = PrepareOptions::default();
        let executor =
            Executor::prepare(graph, &self.0, options).map_err(|error| error.to_string())?;
        let running = Arc::new(executor).start(&[]).and_then(|mut running| {
            running.bind(&[])?;
            Ok(running)
        });
        let running = running.map_err(|error| error.to_string())?;
        // Passes drop inputs that nothing reads.
        let feeds = running
            .executor()
            .inputs()
            .filter_map(|(name, _)| names.iter().position(|n| **n == *name))
            .collect();
        Ok(Box::new(OnExecutor { running: Some(running), feeds, fixed }))
    }
}

/// The graph without the outputs that no input reaches, and those outputs computed.
fn without_constants(mut graph: Graph) -> Result<(Graph, Vec<Option<Tensor>>), String> {
    let mut varies = vec![false; graph.values.len()];
    for (i, value) in graph.values.iter().enumerate() {
        varies[i] = matches!(value.source, Source::Input(_) | Source::State(_));
    }
    for node in &graph.nodes {
        if node.inputs.iter().any(|v| varies[v.index()]) {
            node.outputs.iter().for_each(|v| varies[v.index()] = true);
        }
    }
    if graph.outputs.iter().all(|(_, v)| varies[v.index()]) {
        let fixed = vec![None; graph.outputs.len()];
        return Ok((graph, fixed));
    }
    let (varying, constant): (Vec<_>, Vec<_>) =
        std::mem::take(&mut graph.outputs).into_iter().partition(|(_, v)| varies[v.index()]);
    let order: Vec<bool> = {
        let mut all: Vec<(usize, bool)> = Vec::new();
        let number = |name: &str| name.trim_start_matches('o').parse().unwrap_or(usize::MAX);
        all.extend(varying.iter().map(|(name, _)| (number(name), false)));
        all.extend(constant.iter().map(|(name, _)| (number(name), true)));
        all.sort_unstable();
        all.into_iter().map(|(_, is_constant)| is_constant).collect()
    };
    graph.outputs = constant;
    let without_inputs = prune(&graph)?;
    let prepared = cyb_interp::Prepared::new(&without_inputs).map_err(|error| error.to_string())?;
    // Nothing reads them, but the interpreter wants every input.
    let zeros = without_inputs.inputs().map(|(name, v)| {
        let fact = without_inputs.fact(v);
        let dims: Option<Vec<usize>> = fact.shape.iter().map(|d| d.known()).collect();
        let dims = dims.ok_or_else(|| format!("input {name} has no known shape"))?;
        let len = cyb_tensor::byte_len(fact.dtype, &dims).map_err(|error| error.to_string())?;
        let bytes = Bytes::owned(AlignedBytes::zeroed(len));
        let tensor = Tensor::new(fact.dtype, dims, bytes).map_err(|error| error.to_string())?;
        Ok((name.to_string(), tensor))
    });
    let zeros = zeros.collect::<Result<_, String>>()?;
    let made = prepared
        .run(&Bindings::new(), &zeros, &mut Default::default())
        .map_err(|error| error.to_string())?;
    let mut computed = graph.outputs.iter().map(|(name, _)| made.get(&**name).cloned());
    let fixed = order
        .into_iter()
        .map(|is_constant| if is_constant { computed.next().flatten() } else { None })
        .collect();
    graph.outputs = varying;
    Ok((graph, fixed))
}

/// The part of a graph that its outputs need.
fn prune(graph: &Graph) -> Result<Graph, String> {
    cyb_ir::sweep(graph).map_err(|error| error.to_string())
}

struct OnExecutor {
    running: Option<Running>,
    /// Which input each of the executor's is.
    feeds: Vec<usize>,
    /// Outputs that are the same in each run.
    fixed: Vec<Option<Tensor>>,
}

impl Program for OnExecutor {
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let mut computed = Vec::new();
        if let Some(running) = &mut self.running {
            for (i, &feed) in self.feeds.iter().enumerate() {
                let from = inputs[feed].bytes().as_slice();
                running.input(i, &mut |bytes| bytes.copy_from_slice(from));
            }
            running.run().map_err(|error| error.to_string())?;
            let dtypes: Vec<_> = running.executor().outputs().map(|(_, fact)| fact.dtype).collect();
            for (i, dtype) in dtypes.into_iter().enumerate() {
                let shape = running.output_shape(i);
                let bytes = running.output(i).map_err(|error| error.to_string())?;
                let bytes = Bytes::owned(AlignedBytes::from_slice(bytes));
                computed.push(Tensor::new(dtype, shape, bytes).map_err(|e| e.to_string())?);
            }
        }
        let mut computed = computed.into_iter();
        let each = self.fixed.iter().map(|fixed| match fixed {
            Some(tensor) => Ok(tensor.clone()),
            None => computed.next().ok_or_else(|| "an output was not computed".to_owned()),
        });
        each.collect()
    }

    fn times(&self) -> Vec<StepTime> {
        let steps = self.running.iter().flat_map(Running::step_times);
        let each = steps.map(|(info, time)| StepTime {
            op: info.op,
            kernel: info.kernel,
            node: info.label,
            calls: time.calls,
            nanos: time.nanos,
        });
        each.collect()
    }

    fn reset_times(&mut self) {
        self.running.iter_mut().for_each(Running::reset_times);
    }

    fn notes(&self) -> Vec<Note> {
        let Some(running) = &self.running else { return Vec::new() };
        let applied = &running.executor().passes().applied;
        // A pass may refuse a layer at first and take it when others have gone.
        let taken = |one: &cyb_ir::Applied| {
            let same = |a: &&cyb_ir::Applied| a.rule == one.rule && a.label == one.label;
            applied.iter().filter(same).any(|a| a.rejected.is_none())
        };
        let shown = applied.iter().filter(|one| one.rejected.is_none() || !taken(one));
        let each = shown.filter(|one| one.rule != "fold").map(|one| Note {
            node: one.label.clone(),
            jet: one.rule.clone(),
            missed: one.rejected.clone(),
        });
        each.collect()
    }
}
