//! From a package to a model that is ready to run.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use cyb_engine::{Config as EngineConfig, Engine};
use cyb_exec::{Backend, Executor, Placed, PrepareOptions};
use cyb_models::{GraphOptions, Summary, Template, TextModel};

use crate::encoder::EncoderRunner;
use crate::info::{kv_bytes, step_bytes};
use crate::metrics::Metrics;
use crate::model::{Driver, Inner, Model, ModelId, Serving, millis};
use crate::package::{PackageFile, TextParts};
use crate::pictures::PictureRunner;
use crate::stepper::{ModelStepper, StepLimits};
use crate::{Config, Error, Package, autotune, sentence};

/// Tokens that a sequence may hold when nobody says how many.
pub(crate) const DEFAULT_CONTEXT: usize = 4096;

/// Sequences that may wait for others to end.
const MAX_WAITING: usize = 1024;

/// What a model is loaded for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// What its files say: whole sequences of encoders, classifiers, and decoders with stages of
    /// sentence-transformers beside them; text of other decoders.
    #[default]
    Stated,
    /// To write text, where it is a decoder.
    Text,
    /// To take whole sequences, for [`Model::forward`] with all it takes and gives,
    /// [`Model::embed`] and the like.
    Sequences,
}

/// How a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// What for.
    pub purpose: Purpose,
    /// Tokens that a sequence may hold, in place of what [`Config::context`] says. Models with two
    /// sets of rotary frequencies (long rope) are built for texts of this length.
    pub context: Option<usize>,
    /// Load even if the chat template does not compile; prompts are then given as they are.
    pub without_template: bool,
}

impl Model {
    pub(crate) fn prepare(
        id: ModelId,
        opened: PackageFile,
        backends: &[Arc<dyn Backend>],
        config: &Config,
        options: LoadOptions,
        start: Instant,
    ) -> Result<Model, Error> {
        let asked = Config { context: options.context.or(config.context), ..config.clone() };
        let config = &asked;
        let graph_options = GraphOptions {
            kv_dtype: config.kv_type,
            context: config.context,
            packed: match options.purpose {
                Purpose::Stated => sentence::has_stages(&opened.file.metadata),
                Purpose::Text => false,
                Purpose::Sequences => true,
            },
            ..GraphOptions::default()
        };
        let prepare = PrepareOptions { device_layers: config.gpu_layers, ..Default::default() };
        // The vocabulary is read while the graph is built.
        let (text, made) = thread::scope(|scope| {
            let text = scope.spawn(|| TextParts::read(&opened.name, &opened.file));
            let made = Made::of(&opened, &graph_options, backends, prepare);
            (text.join(), made)
        });
        let text = text.unwrap_or_else(|panic| resume_unwind(panic))?;
        let package = Package::of(opened, text);
        if !options.without_template && package.has_template() {
            package.template()?;
        }
        let Made { built, placed, kv_bytes_per_token, weight_bytes_per_step } = made?;
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
        let mut warnings = package.file.notes.clone();
        warnings.extend(built.warnings);
        let pictures = built
            .pictures
            .map(|tower| PictureRunner::new(*tower, built.contrast, backends))
            .transpose()?;
        let block = graph_options.kv_block;
        let limits = step_limits(config, summary.context_length);
        let mut plan = Vec::new();
        let executor = match placed {
            None => pictures.as_ref().expect("else its graph is placed").executor.clone(),
            Some(placed) => {
                let placed = match built.encoder {
                    None => autotune::by_table(placed, backends, config, limits)?,
                    Some(_) => placed,
                };
                let bound = limits.bound(placed.symbols());
                plan = placed.shares(&bound)?;
                if let Some(announce) = config.announce {
                    announce(&plan);
                }
                placed.check(&bound)?;
                Arc::new(Executor::load(placed)?)
            }
        };
        let inner = |executor: Arc<Executor>, load_ms: f64, driver: Driver| Inner {
            id,
            package,
            family: built.family.name,
            summary,
            warnings,
            executor,
            plan,
            config: config.clone(),
            block,
            kv_bytes_per_token,
            weight_bytes_per_step,
            load_ms,
            loading_later: AtomicU64::new(0),
            driver,
            pictures,
        };
        if let Some(info) = built.encoder {
            let runner = EncoderRunner::new(&executor)?;
            let driver = Driver::Encoder(info, Box::new(Mutex::new(runner)));
            return Ok(Model(Arc::new(inner(executor, millis(start), driver))));
        }
        if built.family.template == Template::Towers {
            return Ok(Model(Arc::new(inner(executor, millis(start), Driver::Pictures))));
        }
        let stepper = ModelStepper::new(&executor, summary.vocab_size, limits)?;
        let engine_config = EngineConfig {
            block_size: block,
            n_blocks: limits.blocks,
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
}

/// A graph before anything is loaded, and what is known of it.
struct Made<'a> {
    /// Without its graph where that is placed.
    built: TextModel,
    /// `None` for towers of pictures alone, which have a graph of their own.
    placed: Option<Placed<'a>>,
    kv_bytes_per_token: u64,
    weight_bytes_per_step: u64,
}

impl Made<'_> {
    fn of<'a>(
        opened: &PackageFile,
        options: &GraphOptions,
        backends: &'a [Arc<dyn Backend>],
        prepare: PrepareOptions,
    ) -> Result<Made<'a>, Error> {
        let mut built = cyb_models::build(&opened.file, options)?;
        let (kv, step) = (kv_bytes(&built.graph), step_bytes(&built.graph));
        let placed = match (&built.pictures, &built.encoder) {
            (Some(_), None) => None,
            _ => Some(Placed::new(std::mem::take(&mut built.graph), backends, prepare)?),
        };
        Ok(Made { built, placed, kv_bytes_per_token: kv, weight_bytes_per_step: step })
    }
}

/// What a decoder has memory for at first.
pub(crate) fn step_limits(config: &Config, longest: usize) -> StepLimits {
    let block = GraphOptions::default().kv_block;
    let context = config.context.unwrap_or(DEFAULT_CONTEXT).min(longest);
    let blocks = context.div_ceil(block);
    StepLimits {
        tokens: config.chunk().min(context),
        sequences: 1,
        blocks,
        logits: 1,
        slots: blocks * block,
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
