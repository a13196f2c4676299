//! What a loaded model is, where its parts run and what memory it has.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cyb_exec::{MemoryUse, Share, StepInfo};
use cyb_formats::ModelFile;
use cyb_ir::{Graph, Source};
use cyb_tensor::DType;

use crate::ModelMemory;
use crate::model::{Driver, Inner, Model, ModelId};

/// A kind of operation of a model and where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartInfo {
    /// The jet or atom.
    pub op: &'static str,
    /// The backend that runs it.
    pub backend: &'static str,
    /// The kernel.
    pub kernel: &'static str,
    /// How often it is in the model.
    pub count: usize,
}

/// What a model is.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// Its name in the runtime.
    pub id: ModelId,
    /// Where its file is; `None` for one in memory.
    pub path: Option<PathBuf>,
    /// The file's format.
    pub format: String,
    /// What the file says its architecture is.
    pub architecture: String,
    /// The family whose graph it has.
    pub family: &'static str,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Layers.
    pub layers: usize,
    /// Width of the hidden state.
    pub hidden_size: usize,
    /// Attention heads, and those of keys and values.
    pub heads: (usize, usize),
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Tokens of the longest sequence that the model was made for.
    pub context_length: usize,
    /// Storage formats of the tensors with their number and bytes, the largest first.
    pub quantization: Vec<(DType, usize, u64)>,
    /// Whether it has a chat template.
    pub has_template: bool,
    /// Memory in use now.
    pub memory: ModelMemory,
    /// What each backend got, and the memory that was free before loading; empty for towers alone.
    pub plan: Vec<Share>,
    /// Where each kind of operation runs.
    pub parts: Vec<PartInfo>,
    /// What was noticed while loading and does not hinder.
    pub warnings: Vec<String>,
}

impl Model {
    /// What the model is and where it runs.
    pub fn info(&self) -> ModelInfo {
        let Inner { id, package, family, summary, warnings, executor, .. } = &*self.0;
        let architecture = match package.file.metadata.contains("config.model_type") {
            true => package.file.metadata.opt::<&str>("config.model_type"),
            false => package.file.metadata.opt::<&str>("general.architecture"),
        };
        ModelInfo {
            id: id.clone(),
            path: package.path.clone(),
            format: package.file.format.to_string(),
            architecture: architecture.ok().flatten().unwrap_or(family).to_owned(),
            family,
            parameters: summary.parameters,
            layers: summary.num_hidden_layers,
            hidden_size: summary.hidden_size,
            heads: (summary.num_attention_heads, summary.num_key_value_heads),
            vocab_size: summary.vocab_size,
            context_length: summary.context_length,
            quantization: quantization(&package.file),
            has_template: package.has_template(),
            memory: self.memory(),
            plan: self.0.plan.clone(),
            parts: parts(executor.steps()),
            warnings: warnings.clone(),
        }
    }

    /// Memory in use now.
    pub fn memory(&self) -> ModelMemory {
        let (used, kv_tokens) = match &self.0.driver {
            Driver::Decoder(_) => {
                let Ok(serving) = self.serving() else { return ModelMemory::default() };
                let stepper = serving.engine.model();
                (stepper.memory(), stepper.limits().slots as u64)
            }
            Driver::Encoder(_, runner) => {
                let Ok(runner) = runner.lock() else { return ModelMemory::default() };
                (runner.memory(), 0)
            }
            Driver::Pictures => (MemoryUse::default(), 0),
        };
        let seeing = self.0.pictures.as_ref().and_then(|tower| tower.runner.lock().ok());
        let seeing = seeing.map(|runner| runner.memory()).unwrap_or_default();
        let both = match (&self.0.pictures, &self.0.driver) {
            (Some(tower), Driver::Encoder(..)) => tower.executor.weight_bytes(),
            _ => 0,
        };
        ModelMemory {
            file: self.0.package.file.tensor_bytes(),
            weights: (self.0.executor.weight_bytes() + both) as u64,
            kv: used.states as u64,
            kv_per_token: self.0.kv_bytes_per_token,
            kv_tokens,
            arena: (used.arena + seeing.arena) as u64,
            scratch: (used.scratch + seeing.scratch) as u64,
        }
    }
}

/// Bytes of keys and values for one token, all layers together.
pub(crate) fn kv_bytes(graph: &Graph) -> u64 {
    let bytes = graph.states().filter_map(|(_, id)| {
        let fact = graph.fact(id);
        let elems = fact.shape.iter().skip(1).map(|dim| dim.known()).product::<Option<usize>>()?;
        fact.dtype.bytes_for(elems)
    });
    bytes.map(|bytes| bytes as u64).sum()
}

/// Bytes of weights that a step of one token reads: all of each, but one row of an embedding.
pub(crate) fn step_bytes(graph: &Graph) -> u64 {
    let mut read: BTreeMap<&str, u64> = BTreeMap::new();
    for node in &graph.nodes {
        for &input in &node.inputs {
            let Source::Weight(name, tensor, _) = &graph.value(input).source else { continue };
            let mut bytes = tensor.bytes().len() as u64;
            if node.op.name() == "embedding" {
                bytes /= tensor.shape().first().copied().unwrap_or(1).max(1) as u64;
            }
            let known = read.entry(name).or_default();
            *known = bytes.max(*known);
        }
    }
    read.values().sum()
}

fn quantization(file: &ModelFile) -> Vec<(DType, usize, u64)> {
    let mut mix: BTreeMap<&str, (DType, usize, u64)> = BTreeMap::new();
    for tensor in file.tensors.values() {
        let dtype = tensor.dtype();
        let (_, count, bytes) = mix.entry(dtype.name()).or_insert((dtype, 0, 0));
        *count += 1;
        *bytes += tensor.bytes().len() as u64;
    }
    let mut mix: Vec<_> = mix.into_values().collect();
    mix.sort_by_key(|&(_, _, bytes)| std::cmp::Reverse(bytes));
    mix
}

fn parts(steps: Vec<StepInfo>) -> Vec<PartInfo> {
    let mut parts: Vec<PartInfo> = Vec::new();
    for StepInfo { op, kernel, backend, .. } in steps {
        let same = parts.iter_mut().find(|p| (p.op, p.backend, p.kernel) == (op, backend, kernel));
        match same {
            Some(part) => part.count += 1,
            None => parts.push(PartInfo { op, backend, kernel, count: 1 }),
        }
    }
    parts
}
