//! A loaded model.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use cyb_engine::{Config as EngineConfig, Engine, Event, Flow, Request, SeqId};
use cyb_exec::{Backend, Executor, MemoryUse, PrepareOptions, StepInfo};
use cyb_formats::ModelFile;
use cyb_ir::{Graph, Source};
use cyb_models::{EncoderInfo, GraphOptions, Summary, Template};
use cyb_tensor::DType;
use cyb_text::{EncodeOptions, Message};

use crate::encoder::EncoderRunner;
use crate::generation::{Completion, Generation};
use crate::metrics::{Metrics, OpTime};
use crate::pictures::PictureRunner;
use crate::stepper::{ModelStepper, StepLimits};
use crate::{Config, Error, ModelMemory, Package, SamplingParams, memory, sentence};

/// Tokens that a sequence may hold when nobody says how many.
const DEFAULT_CONTEXT: usize = 4096;

/// Room for an answer to a long prompt when nobody says how much.
const DEFAULT_ANSWER: usize = 1024;

/// Sequences that may wait for others to end.
const MAX_WAITING: usize = 1024;

/// The name of a loaded model, unique in its runtime.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub String);

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a model is loaded for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Also compute the last hidden states, for [`Model::forward`], and take `position_ids` there;
    /// costs a little in every step.
    pub hidden_states: bool,
    /// Tokens that a sequence may hold, in place of what [`Config::context`] says. Models with two
    /// sets of rotary frequencies (long rope) are built for texts of this length.
    pub context: Option<usize>,
    /// Load even if the chat template does not compile; prompts are then given as they are.
    pub without_template: bool,
}

/// A model ready to run. A handle: clones share weights, KV memory and the prefix cache.
#[derive(Clone, Debug)]
pub struct Model(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: ModelId,
    package: Package,
    family: &'static str,
    summary: Summary,
    warnings: Vec<String>,
    executor: Arc<Executor>,
    config: Config,
    block: usize,
    kv_bytes_per_token: u64,
    weight_bytes_per_step: u64,
    load_ms: f64,
    driver: Driver,
    pictures: Option<PictureRunner>,
    /// The fewest positions that a token of some layer of a decoder sees; `None` where all see all.
    window: Option<usize>,
}

/// What drives a model's graph.
#[derive(Debug)]
enum Driver {
    Decoder(Box<Mutex<Serving>>),
    Encoder(EncoderInfo, Box<Mutex<EncoderRunner>>),
    /// There is a tower for pictures alone.
    Pictures,
}

/// What all generations of a model share.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) engine: Engine<ModelStepper>,
    /// Events that their generations have not taken yet.
    inbox: HashMap<SeqId, VecDeque<Event>>,
    latest: Metrics,
}

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
    /// Where each kind of operation runs.
    pub parts: Vec<PartInfo>,
    /// What was noticed while loading and does not hinder.
    pub warnings: Vec<String>,
}

impl Model {
    pub(crate) fn prepare(
        id: ModelId,
        package: Package,
        backends: &[Arc<dyn Backend>],
        config: &Config,
        options: LoadOptions,
        start: Instant,
    ) -> Result<Model, Error> {
        if !options.without_template && package.has_template() {
            package.template()?;
        }
        let asked = Config { context: options.context.or(config.context), ..config.clone() };
        let config = &asked;
        let graph_options = GraphOptions {
            kv_dtype: config.kv_type,
            context: config.context,
            last_hidden_state: options.hidden_states
                || sentence::has_stages(&package.file.metadata),
            rope_positions: options.hidden_states,
            ..GraphOptions::default()
        };
        let built = cyb_models::build(&package.file, &graph_options)?;
        let summary = built.summary;
        check_vocabulary(&package, &summary)?;
        if let Some(asked) = config.context.filter(|&asked| asked > summary.context_length) {
            let (model, limit) = (package.name.clone(), summary.context_length);
            return Err(Error::ContextTooLong { model, asked, limit });
        }
        if config.context == Some(0) {
            return Err(Error::Value { what: "context", why: "0; give 1 or more".to_owned() });
        }
        package.file.check_unchanged()?;
        let window = narrowest_window(&built.graph);
        let kv_bytes_per_token = kv_bytes(&built.graph);
        let weight_bytes_per_step = step_bytes(&built.graph);
        let mut warnings = package.file.notes.clone();
        warnings.extend(built.warnings);
        let pictures = built
            .pictures
            .map(|tower| PictureRunner::new(*tower, built.contrast, backends))
            .transpose()?;
        let executor = match &pictures {
            Some(pictures) if built.encoder.is_none() => pictures.executor.clone(),
            _ => {
                let layers = config.gpu_layers;
                let options = PrepareOptions { device_layers: layers, ..Default::default() };
                Arc::new(Executor::prepare(built.graph, backends, options)?)
            }
        };
        let inner = |executor: Arc<Executor>, load_ms: f64, driver: Driver| Inner {
            id,
            package,
            family: built.family.name,
            summary,
            warnings,
            executor,
            config: config.clone(),
            block: graph_options.kv_block,
            kv_bytes_per_token,
            weight_bytes_per_step,
            load_ms,
            driver,
            pictures,
            window,
        };
        if let Some(info) = built.encoder {
            let runner = EncoderRunner::new(&executor)?;
            let driver = Driver::Encoder(info, Box::new(Mutex::new(runner)));
            return Ok(Model(Arc::new(inner(executor, millis(start), driver))));
        }
        if built.family.template == Template::Towers {
            return Ok(Model(Arc::new(inner(executor, millis(start), Driver::Pictures))));
        }
        let block = graph_options.kv_block;
        let context = config.context.unwrap_or(DEFAULT_CONTEXT).min(summary.context_length);
        let n_blocks = context.div_ceil(block);
        let limits = StepLimits {
            tokens: config.chunk().min(context),
            sequences: 1,
            blocks: n_blocks,
            logits: 1,
            slots: n_blocks * block,
        };
        let stepper =
            ModelStepper::new(&executor, summary.vocab_size, summary.hidden_size, limits)?;
        let engine_config = EngineConfig {
            block_size: block,
            n_blocks,
            max_running: config.max_sequences,
            max_waiting: MAX_WAITING,
            step_tokens: config.chunk().max(config.max_sequences),
            chunk: config.chunk(),
            prefix_cache: config.prefix_cache,
        };
        let load_ms = millis(start);
        let latest = Metrics { load_ms, ..Metrics::default() };
        let serving =
            Serving { engine: Engine::new(stepper, engine_config), inbox: HashMap::new(), latest };
        let driver = Driver::Decoder(Box::new(Mutex::new(serving)));
        Ok(Model(Arc::new(inner(executor, load_ms, driver))))
    }

    /// Its name in the runtime.
    pub fn id(&self) -> &ModelId {
        &self.0.id
    }

    /// The file and its tokenizer.
    pub fn package(&self) -> &Package {
        &self.0.package
    }

    /// The ids of a text; see [`Package::tokenize`].
    ///
    /// # Errors
    /// As there.
    pub fn tokenize(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, Error> {
        self.0.package.tokenize(text, options)
    }

    /// The text of ids; see [`Package::detokenize`].
    ///
    /// # Errors
    /// As there.
    pub fn detokenize(&self, ids: &[u32]) -> Result<String, Error> {
        self.0.package.detokenize(ids)
    }

    /// The prompt for messages; see [`Package::render`].
    ///
    /// # Errors
    /// As there.
    pub fn render(&self, messages: &[Message]) -> Result<String, Error> {
        self.0.package.render(messages)
    }

    /// Continues a text as it is, after the model's own BOS rule.
    ///
    /// # Errors
    /// The text has no tokens, does not fit the context, or a parameter is wrong.
    pub fn generate(&self, prompt: &str, params: SamplingParams) -> Result<Generation<'_>, Error> {
        let options = EncodeOptions { add_special: true, parse_special: false };
        self.generate_with(prompt, options, params)
    }

    /// As [`Model::generate`], with a choice of how the text is read.
    ///
    /// # Errors
    /// As there.
    pub fn generate_with(
        &self,
        prompt: &str,
        options: EncodeOptions,
        params: SamplingParams,
    ) -> Result<Generation<'_>, Error> {
        self.generate_ids(self.tokenize_prompt(prompt, options)?, params)
    }

    /// Tokens of a prompt. What would end a text is left out: the answer is to go on.
    fn tokenize_prompt(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, Error> {
        let mut ids = self.tokenize(text, options)?;
        let bare = self.tokenize(text, EncodeOptions { add_special: false, ..options })?;
        if let (Some(&last), true) = (ids.last(), options.add_special)
            && bare.last() != Some(&last)
            && self.0.package.tokenizer()?.is_end_of_generation(last)
        {
            ids.pop();
        }
        Ok(ids)
    }

    /// Answers messages, through the model's chat template.
    ///
    /// # Errors
    /// There is no template, it refuses the messages, or as [`Model::generate`].
    pub fn chat(
        &self,
        messages: &[Message],
        params: SamplingParams,
    ) -> Result<Generation<'_>, Error> {
        self.generate_ids(self.0.package.tokenize_chat(messages)?, params)
    }

    /// Continues tokens.
    ///
    /// # Errors
    /// As [`Model::generate`].
    pub fn generate_ids(
        &self,
        prompt: Vec<u32>,
        params: SamplingParams,
    ) -> Result<Generation<'_>, Error> {
        Generation::start(self, prompt, params)
    }

    /// Continues several texts at once. The results are those of each alone.
    ///
    /// # Errors
    /// As [`Model::generate`], for any of them.
    pub fn generate_batch(
        &self,
        prompts: &[&str],
        params: &SamplingParams,
    ) -> Result<Vec<Completion>, Error> {
        let options = EncodeOptions { add_special: true, parse_special: false };
        let prompts: Vec<Vec<u32>> = prompts
            .iter()
            .map(|prompt| self.tokenize_prompt(prompt, options))
            .collect::<Result<_, _>>()?;
        let needs = prompts.iter().take(self.0.config.max_sequences).map(|ids| {
            ids.len().saturating_add(params.max_tokens.map_or(DEFAULT_ANSWER, |n| n as usize))
        });
        let needs = needs.map(|n| n.min(self.context_length()).next_multiple_of(self.0.block));
        self.reserve(needs.sum())?;
        let generations: Vec<Generation<'_>> = prompts
            .into_iter()
            .map(|ids| self.generate_ids(ids, params.clone()))
            .collect::<Result<_, _>>()?;
        generations.into_iter().map(Generation::complete).collect()
    }

    /// What the latest generation took.
    pub fn metrics(&self) -> Metrics {
        let (times, latest) = match &self.0.driver {
            Driver::Decoder(_) => {
                let Ok(serving) = self.serving() else { return Metrics::default() };
                (serving.engine.model().times(), serving.latest.clone())
            }
            Driver::Encoder(_, runner) => {
                let Ok(runner) = runner.lock() else { return Metrics::default() };
                let latest = Metrics { load_ms: self.0.load_ms, ..Metrics::default() };
                (runner.times(), latest)
            }
            Driver::Pictures => {
                (Vec::new(), Metrics { load_ms: self.0.load_ms, ..Metrics::default() })
            }
        };
        let times = times.into_iter().filter(|(_, time)| time.calls > 0);
        let ops = times.map(|(name, time)| OpTime {
            name,
            calls: time.calls,
            total_ms: time.nanos as f64 / 1e6,
        });
        let peak_memory_mb = memory::process_peak().unwrap_or(0) as f64 / f64::from(1 << 20);
        Metrics { ops: ops.collect(), peak_memory_mb, ..latest }
    }

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

    /// Tokens of the longest sequence that the model was made for.
    pub fn context_length(&self) -> usize {
        self.0.summary.context_length
    }

    /// The fewest positions that a token of some layer of a decoder sees.
    pub(crate) fn window(&self) -> Option<usize> {
        self.0.window
    }

    /// Tokens of the vocabulary; every logits row has this length.
    pub fn vocab_size(&self) -> usize {
        self.0.summary.vocab_size
    }

    /// A stepper of its own, for callers that plan steps themselves; see `cyb_engine::Stepper`.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn stepper(&self, limits: StepLimits) -> Result<ModelStepper, Error> {
        if !matches!(self.0.driver, Driver::Decoder(_)) {
            return Err(self.not_a_decoder());
        }
        let Summary { vocab_size, hidden_size, .. } = self.0.summary;
        ModelStepper::new(&self.0.executor, vocab_size, hidden_size, limits)
    }

    pub(crate) fn summary(&self) -> &Summary {
        &self.0.summary
    }

    pub(crate) fn config(&self) -> &Config {
        &self.0.config
    }

    /// Tokens of a block of KV memory.
    pub fn kv_block(&self) -> usize {
        self.0.block
    }

    pub(crate) fn load_ms(&self) -> f64 {
        self.0.load_ms
    }

    /// Bytes of weights that a step of one token reads.
    pub(crate) fn weight_bytes_per_step(&self) -> u64 {
        self.0.weight_bytes_per_step
    }

    pub(crate) fn serving(&self) -> Result<MutexGuard<'_, Serving>, Error> {
        match &self.0.driver {
            Driver::Decoder(serving) => serving.lock().map_err(|_| Error::Poisoned),
            Driver::Encoder(..) | Driver::Pictures => Err(self.not_a_decoder()),
        }
    }

    /// What drives an encoder; `None` for a decoder.
    pub(crate) fn encoder(&self) -> Option<(&EncoderInfo, &Mutex<EncoderRunner>)> {
        match &self.0.driver {
            Driver::Decoder(_) | Driver::Pictures => None,
            Driver::Encoder(info, runner) => Some((info, &**runner)),
        }
    }

    /// The tower for pictures of a model that sees.
    pub(crate) fn pictures(&self) -> Option<&PictureRunner> {
        self.0.pictures.as_ref()
    }

    fn not_a_decoder(&self) -> Error {
        Error::NotADecoder { model: self.0.package.name.clone(), family: self.0.family }
    }

    /// Makes room for `tokens` in the KV memory if nothing is running; else what there is must do.
    fn reserve(&self, tokens: usize) -> Result<(), Error> {
        let mut serving = self.serving()?;
        let n_blocks = tokens.div_ceil(self.0.block);
        if n_blocks <= serving.engine.scheduler().config().n_blocks || serving.engine.has_work() {
            return Ok(());
        }
        let now = serving.engine.model().limits();
        let limits = StepLimits { slots: n_blocks * self.0.block, ..now };
        serving.engine.model_mut().reserve(limits)?;
        serving.engine.set_blocks(n_blocks);
        Ok(())
    }

    /// The most tokens that a sequence with this prompt may hold. Checks that the prompt fits.
    pub(crate) fn context_for(
        &self,
        prompt: usize,
        max_tokens: Option<u32>,
    ) -> Result<usize, Error> {
        let limit = self.context_length();
        let asked = self.0.config.context;
        let context = asked.unwrap_or(limit);
        let room = usize::from(max_tokens != Some(0));
        if prompt + room > context {
            let remedy = match asked {
                Some(asked) if asked < limit => {
                    format!(" or ask for a larger context (the model takes up to {limit})")
                }
                _ => String::new(),
            };
            return Err(Error::ContextTooSmall { prompt, context, remedy });
        }
        Ok(asked.unwrap_or_else(|| {
            let answer = max_tokens.map_or(DEFAULT_ANSWER, |n| n as usize);
            prompt.saturating_add(answer).max(DEFAULT_CONTEXT).min(limit)
        }))
    }

    /// Hands a sequence to the engine.
    pub(crate) fn submit(
        &self,
        prompt: Vec<u32>,
        params: SamplingParams,
        context: usize,
    ) -> Result<SeqId, Error> {
        // A model without a tokenizer ends with nothing but its count.
        let eos = self.0.package.tokenizer().map_or(&[][..], |t| t.end_of_generation());
        self.submit_with(Request { prompt, params, context, eos: eos.into(), ..Request::default() })
    }

    /// As [`Model::submit`], for a sequence that no token ends.
    pub(crate) fn submit_endless(
        &self,
        prompt: Vec<u32>,
        params: SamplingParams,
        context: usize,
    ) -> Result<SeqId, Error> {
        self.submit_with(Request { prompt, params, context, ..Request::default() })
    }

    fn submit_with(&self, request: Request) -> Result<SeqId, Error> {
        self.reserve(request.context)?;
        let mut serving = self.serving()?;
        let seq = serving.engine.submit(request)?;
        serving.inbox.insert(seq, VecDeque::new());
        Ok(seq)
    }

    /// The next event of a sequence, stepping all sequences until there is one.
    pub(crate) fn next_event(&self, seq: SeqId) -> Result<Option<Event>, Error> {
        let mut serving = self.serving()?;
        let Serving { engine, inbox, .. } = &mut *serving;
        loop {
            let Some(events) = inbox.get_mut(&seq) else { return Ok(None) };
            if let Some(event) = events.pop_front() {
                return Ok(Some(event));
            }
            if self.0.config.cancel.is_set() {
                return Err(Error::Interrupted);
            }
            if !engine.has_work() {
                return Ok(None);
            }
            engine.step(&mut |event| {
                let (Event::Token { seq, .. } | Event::Finished { seq, .. }) = &event;
                if let Some(events) = inbox.get_mut(seq) {
                    events.push_back(event);
                }
                Flow::Continue
            });
        }
    }

    /// Ends a sequence, whatever state it is in, and notes what it took.
    pub(crate) fn end(&self, seq: SeqId, metrics: Option<Metrics>) {
        let Ok(mut serving) = self.serving() else { return };
        serving.engine.cancel(seq);
        serving.inbox.remove(&seq);
        if let Some(metrics) = metrics {
            serving.latest = Metrics { load_ms: self.0.load_ms, ..metrics };
        }
    }
}

/// A tokenizer with ids that the model has no embedding for would fail in the middle of an answer.
fn check_vocabulary(package: &Package, summary: &Summary) -> Result<(), Error> {
    let Ok(tokenizer) = package.tokenizer() else { return Ok(()) };
    let (tokens, rows) = (tokenizer.vocab_size(), summary.vocab_size);
    if tokens > rows {
        let why = format!(
            "{} has {tokens} tokens, but the model has {rows} embeddings; the file is damaged",
            package.name
        );
        return Err(Error::Value { what: "vocabulary", why });
    }
    Ok(())
}

pub(crate) fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Bytes of keys and values for one token, all layers together.
fn kv_bytes(graph: &Graph) -> u64 {
    let bytes = graph.states().filter_map(|(_, id)| {
        let fact = graph.fact(id);
        let elems = fact.shape.iter().skip(1).map(|dim| dim.known()).product::<Option<usize>>()?;
        fact.dtype.bytes_for(elems)
    });
    bytes.map(|bytes| bytes as u64).sum()
}

/// The smallest window of any attention over a cache.
fn narrowest_window(graph: &Graph) -> Option<usize> {
    let windows = graph.nodes.iter().filter(|node| node.op.name() == "sdpa_paged");
    let windows = windows.filter_map(|node| match &node.op {
        cyb_ir::Op::Jet(_, attrs) => attrs.size("window").ok(),
        cyb_ir::Op::Atom(_) => None,
    });
    windows.filter(|&window| window > 0).min()
}

/// Bytes of weights that a step of one token reads: all of each, but one row of an embedding.
fn step_bytes(graph: &Graph) -> u64 {
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
