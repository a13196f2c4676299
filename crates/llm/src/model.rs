//! A loaded model.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use cyb_engine::{Engine, Event, Flow, Request, SeqId};
use cyb_exec::{Executor, Share};
use cyb_models::{EncoderInfo, Summary};
use cyb_text::{EncodeOptions, Message};

use crate::encoder::EncoderRunner;
use crate::generation::{Completion, Generation};
use crate::load::DEFAULT_CONTEXT;
use crate::metrics::{Metrics, OpTime};
use crate::pictures::PictureRunner;
use crate::stepper::{ModelStepper, StepLimits};
use crate::{Config, Error, Package, SamplingParams, memory};

/// Room for an answer to a long prompt when nobody says how much.
const DEFAULT_ANSWER: usize = 1024;

/// The name of a loaded model, unique in its runtime.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub String);

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A model ready to run. A handle: clones share weights, KV memory and the prefix cache.
#[derive(Clone, Debug)]
pub struct Model(pub(crate) Arc<Inner>);

/// What the handles of a model share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) id: ModelId,
    pub(crate) package: Package,
    pub(crate) family: &'static str,
    pub(crate) summary: Summary,
    pub(crate) warnings: Vec<String>,
    pub(crate) executor: Arc<Executor>,
    /// As it was before loading.
    pub(crate) plan: Vec<Share>,
    pub(crate) config: Config,
    pub(crate) block: usize,
    pub(crate) kv_bytes_per_token: u64,
    pub(crate) weight_bytes_per_step: u64,
    pub(crate) load_ms: f64,
    /// Nanoseconds that steps spent on what loading had left to do.
    pub(crate) loading_later: AtomicU64,
    pub(crate) driver: Driver,
    pub(crate) pictures: Option<PictureRunner>,
}

/// What drives a model's graph.
#[derive(Debug)]
pub(crate) enum Driver {
    Decoder(Box<Mutex<Serving>>),
    Encoder(EncoderInfo, Box<Mutex<EncoderRunner>>),
    /// A tower for pictures alone.
    Pictures,
}

/// What all generations of a model share.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) engine: Engine<ModelStepper>,
    /// Events that their generations have not taken yet.
    pub(crate) inbox: HashMap<SeqId, VecDeque<Event>>,
    pub(crate) latest: Metrics,
}

impl Model {
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
                let chosen = serving.engine.choices();
                let latest = Metrics {
                    chosen_on_device: chosen.on_device,
                    chosen_from_logits: chosen.from_logits,
                    ..serving.latest.clone()
                };
                (serving.engine.model().times(), latest)
            }
            Driver::Encoder(_, runner) => {
                let Ok(runner) = runner.lock() else { return Metrics::default() };
                let latest = Metrics { load_ms: self.load_ms(), ..Metrics::default() };
                (runner.times(), latest)
            }
            Driver::Pictures => {
                (Vec::new(), Metrics { load_ms: self.load_ms(), ..Metrics::default() })
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

    /// Tokens of the longest sequence that the model was made for.
    pub fn context_length(&self) -> usize {
        self.0.summary.context_length
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
        ModelStepper::new(&self.0.executor, self.0.summary.vocab_size, limits)
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
        self.0.load_ms + self.loading_later().as_secs_f64() * 1e3
    }

    /// The time that steps spent on what loading had left to do.
    pub(crate) fn loading_later(&self) -> Duration {
        Duration::from_nanos(self.0.loading_later.load(Ordering::Relaxed))
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
            let later = engine.model().loading().as_nanos();
            self.0.loading_later.store(later.try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Ends a sequence, whatever state it is in, and notes what it took.
    pub(crate) fn end(&self, seq: SeqId, metrics: Option<Metrics>) {
        let Ok(mut serving) = self.serving() else { return };
        serving.engine.cancel(seq);
        serving.inbox.remove(&seq);
        if let Some(metrics) = metrics {
            serving.latest = Metrics { load_ms: self.load_ms(), ..metrics };
        }
    }
}

pub(crate) fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
