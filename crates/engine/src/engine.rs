//! Drives a model with plans and turns logits into events.

use std::collections::HashMap;
use std::sync::Arc;

use cyb_sample::{
    Candidates, Constraint, Logprobs, Needs, ParamError, SampleError, Sampled, Sampler,
    SamplingParams, Workspace,
};

use crate::plan::StepPlan;
use crate::pool::Namespace;
use crate::scheduler::{AdmitError, Config, Scheduler, SeqId, Stats, Usage};

/// A model that computes steps. It owns the KV memory: `n_blocks * block_size` slots.
pub trait Stepper {
    /// Logits per row.
    fn vocab(&self) -> usize;

    /// Computes the plan: writes keys and values to the slots, and the wanted rows of logits. Computing
    /// a plan again, in part or as a whole, must do no harm.
    ///
    /// # Errors
    /// See [`StepError`].
    fn step(&mut self, plan: &StepPlan) -> Result<(), StepError>;

    /// The logits of one of the latest step's rows, in `0..plan.n_logits()`; `vocab` numbers.
    ///
    /// # Errors
    /// They cannot be had from where they were computed.
    fn logits(&mut self, row: usize) -> Result<&[f32], StepError>;

    /// The first token with the highest logit of such a row, where that is known without the logits
    /// coming here and all of them are numbers below infinity.
    ///
    /// # Errors
    /// As [`Stepper::logits`].
    fn best(&mut self, _row: usize) -> Result<Option<u32>, StepError> {
        Ok(None)
    }

    /// How many candidates [`Stepper::candidates`] gives; 0 where it gives none.
    fn n_candidates(&self) -> usize {
        0
    }

    /// The most probable tokens of such a row, with the masses that [`Needs::Candidates`] asks for,
    /// where they are known without the logits coming here.
    ///
    /// # Errors
    /// As [`Stepper::logits`].
    fn candidates(
        &mut self,
        _row: usize,
        _mass: Option<f32>,
        _model_mass: bool,
    ) -> Result<Option<Candidates<'_>>, StepError> {
        Ok(None)
    }
}

/// How tokens were chosen so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Choices {
    /// From what the device said of the logits.
    pub on_device: u64,
    /// From all logits.
    pub from_logits: u64,
}

/// Why a step failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// One row of the plan is at fault. Its sequence ends; the others are computed again.
    #[error("{message}")]
    Row {
        /// The row.
        row: usize,
        /// What is wrong.
        message: String,
    },
    /// All sequences of the plan end.
    #[error("{0}")]
    Step(String),
}

/// A sequence to continue.
#[derive(Debug, Default)]
pub struct Request {
    /// Token ids, at least one.
    pub prompt: Vec<u32>,
    /// How to sample and how many tokens to make. Its stop strings are for the caller to look for.
    pub params: SamplingParams,
    /// The most tokens that prompt and output may have together.
    pub context: usize,
    /// Tokens that end the output; they are not reported as output.
    pub eos: Arc<[u32]>,
    /// Whom the sequence may share computed prefixes with.
    pub namespace: Namespace,
    /// What constrains the output, such as a grammar.
    pub constraint: Option<Box<dyn Constraint>>,
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// A sampling parameter is wrong.
    #[error(transparent)]
    Params(#[from] ParamError),
    /// The prompt holds a token that the model does not have.
    #[error(
        "the prompt has token {token}, but the vocabulary has {vocab} tokens; was it made with another model's tokenizer?"
    )]
    UnknownToken {
        /// The token.
        token: u32,
        /// Tokens of the vocabulary.
        vocab: usize,
    },
    /// It does not fit.
    #[error(transparent)]
    Admit(#[from] AdmitError),
}

/// What happened to a sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A token was added.
    Token {
        /// The sequence.
        seq: SeqId,
        /// The token.
        token: u32,
        /// Log-probabilities, when the request asked for them.
        logprobs: Option<Logprobs>,
    },
    /// The sequence ended; nothing follows for it.
    Finished {
        /// The sequence.
        seq: SeqId,
        /// Why.
        reason: FinishReason,
        /// Token counts.
        usage: Usage,
    },
}

/// Why a sequence ended.
#[derive(Debug, Clone, PartialEq)]
pub enum FinishReason {
    /// The model ended it with this token.
    Eos(u32),
    /// The receiver of events ended it, as for a stop string.
    Stopped,
    /// It has as many tokens as were asked for.
    MaxTokens,
    /// The context, or the KV memory, is full.
    ContextFull,
    /// Something failed for this sequence.
    Failed(SequenceError),
}

impl FinishReason {
    /// OpenAI's word for it: `stop`, `length`, or `error`.
    pub fn as_str(&self) -> &'static str {
        match self {
            FinishReason::Eos(_) | FinishReason::Stopped => "stop",
            FinishReason::MaxTokens | FinishReason::ContextFull => "length",
            FinishReason::Failed(_) => "error",
        }
    }
}

/// What failed for a sequence.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SequenceError {
    /// The model could not compute it.
    #[error("the model failed: {0}")]
    Step(String),
    /// No token could be taken.
    #[error(transparent)]
    Sample(#[from] SampleError),
}

impl From<StepError> for SequenceError {
    fn from(error: StepError) -> SequenceError {
        let (StepError::Row { message, .. } | StepError::Step(message)) = error;
        SequenceError::Step(message)
    }
}

/// What the receiver of a token wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// End the sequence with this token: [`FinishReason::Stopped`].
    Stop,
}

/// What the engine keeps for each sequence besides its tokens.
#[derive(Debug)]
struct Live {
    sampler: Sampler,
    eos: Arc<[u32]>,
    /// Tokens still to make.
    tokens_left: usize,
}

/// Runs sequences on a model. One thread owns it: it submits, steps and cancels.
#[derive(Debug)]
pub struct Engine<M> {
    model: M,
    scheduler: Scheduler,
    plan: StepPlan,
    live: HashMap<SeqId, Live>,
    workspace: Workspace,
    choices: Choices,
}

impl<M: Stepper> Engine<M> {
    /// An idle engine. The model's KV memory must have the configuration's blocks.
    ///
    /// # Panics
    /// See [`Scheduler::new`].
    pub fn new(model: M, config: Config) -> Self {
        Engine {
            model,
            scheduler: Scheduler::new(config),
            plan: StepPlan::default(),
            live: HashMap::new(),
            workspace: Workspace::default(),
            choices: Choices::default(),
        }
    }

    /// Takes a request into the queue.
    ///
    /// # Errors
    /// See [`SubmitError`]; the engine is unchanged.
    pub fn submit(&mut self, request: Request) -> Result<SeqId, SubmitError> {
        let Request { prompt, params, context, eos, namespace, constraint } = request;
        let vocab = self.model.vocab();
        params.validate(vocab)?;
        if let Some(&token) = prompt.iter().find(|&&token| token as usize >= vocab) {
            return Err(SubmitError::UnknownToken { token, vocab });
        }
        let tokens_left = params.max_tokens.map_or(usize::MAX, |n| n as usize);
        let limit = context.min(prompt.len().saturating_add(tokens_left));
        let seq = self.scheduler.submit(&prompt, limit, namespace)?;
        let sampler = Sampler::new(params, &prompt, limit.min(prompt.len() + vocab), constraint);
        self.live.insert(seq, Live { sampler, eos, tokens_left });
        Ok(seq)
    }

    /// Ends a sequence at once, without an event; none when there is no such sequence.
    pub fn cancel(&mut self, seq: SeqId) -> Option<Usage> {
        self.live.remove(&seq)?;
        self.scheduler.remove(seq)
    }

    /// Computes one step and reports what came of it. What the receiver returns for
    /// [`Event::Finished`] means nothing.
    pub fn step(&mut self, receive: &mut dyn FnMut(Event) -> Flow) {
        self.scheduler.schedule(self.scheduler.config().step_tokens, &mut self.plan);
        if self.plan.is_empty() {
            return;
        }
        // Borrowed by the loops below while sequences end.
        let plan = std::mem::take(&mut self.plan);
        match self.model.step(&plan) {
            Ok(()) => {
                self.scheduler.complete(&plan);
                for (row, &seq) in plan.seqs.iter().enumerate() {
                    for logits_row in plan.logits_of(row) {
                        self.take_token(seq, logits_row, receive);
                    }
                }
            }
            Err(StepError::Row { row, message }) if row < plan.n_seqs() => {
                let reason = FinishReason::Failed(SequenceError::Step(message));
                self.finish(plan.seqs[row], reason, receive);
            }
            Err(StepError::Row { message, .. } | StepError::Step(message)) => {
                for &seq in &plan.seqs {
                    let reason = FinishReason::Failed(SequenceError::Step(message.clone()));
                    self.finish(seq, reason, receive);
                }
            }
        }
        self.plan = plan;
    }

    /// Steps until no sequence is left.
    pub fn run(&mut self, receive: &mut dyn FnMut(Event) -> Flow) {
        while self.has_work() {
            self.step(receive);
        }
    }

    /// Whether any sequence is left.
    pub fn has_work(&self) -> bool {
        self.scheduler.has_work()
    }

    /// Counts, for monitoring.
    pub fn stats(&self) -> Stats {
        self.scheduler.stats()
    }

    /// How tokens were chosen so far.
    pub fn choices(&self) -> Choices {
        self.choices
    }

    /// The scheduler, to look at.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The model, to change. When that changes what it computes, [`Engine::clear_cache`] must follow.
    pub fn model_mut(&mut self) -> &mut M {
        &mut self.model
    }

    /// Tells that the model now has `n_blocks` blocks of KV memory; see [`Scheduler::set_blocks`].
    pub fn set_blocks(&mut self, n_blocks: usize) {
        self.scheduler.set_blocks(n_blocks);
    }

    /// Forgets the prefix cache.
    pub fn clear_cache(&mut self) {
        self.scheduler.clear_cache();
    }

    fn take_token(
        &mut self,
        seq: SeqId,
        logits_row: usize,
        receive: &mut dyn FnMut(Event) -> Flow,
    ) {
        // Absent: it ended with an earlier row of this step.
        let Some(live) = self.live.get_mut(&seq) else { return };
        let position = self.scheduler.n_tokens(seq);
        let sampled = choose(
            &mut self.model,
            &mut live.sampler,
            logits_row,
            position,
            &mut self.workspace,
            &mut self.choices,
        );
        let sampled = match sampled {
            Ok(sampled) => sampled,
            Err(error) => return self.finish(seq, FinishReason::Failed(error), receive),
        };
        if live.eos.contains(&sampled.token) {
            return self.finish(seq, FinishReason::Eos(sampled.token), receive);
        }
        live.tokens_left -= 1;
        let tokens_left = live.tokens_left;
        self.scheduler.push_token(seq, sampled.token);
        let event = Event::Token { seq, token: sampled.token, logprobs: sampled.logprobs };
        if receive(event) == Flow::Stop {
            self.finish(seq, FinishReason::Stopped, receive);
        } else if tokens_left == 0 {
            self.finish(seq, FinishReason::MaxTokens, receive);
        } else if self.scheduler.room(seq) == 0 {
            self.finish(seq, FinishReason::ContextFull, receive);
        }
    }

    fn finish(&mut self, seq: SeqId, reason: FinishReason, receive: &mut dyn FnMut(Event) -> Flow) {
        self.live.remove(&seq);
        if let Some(usage) = self.scheduler.remove(seq) {
            receive(Event::Finished { seq, reason, usage });
        }
    }
}

/// The next token of a sequence: from the device's candidates where they decide, else from all
/// logits.
fn choose<M: Stepper>(
    model: &mut M,
    sampler: &mut Sampler,
    row: usize,
    position: usize,
    workspace: &mut Workspace,
    choices: &mut Choices,
) -> Result<Sampled, SequenceError> {
    let chosen = match sampler.needs(model.vocab(), model.n_candidates()) {
        Needs::Best => model.best(row)?.map(|token| Sampled { token, logprobs: None }),
        Needs::Candidates { mass, model_mass } => model
            .candidates(row, mass, model_mass)?
            .and_then(|found| sampler.sample_candidates(&found, position, workspace)),
        Needs::Logits => None,
    };
    if let Some(sampled) = chosen {
        choices.on_device += 1;
        return Ok(sampled);
    }
    choices.from_logits += 1;
    Ok(sampler.sample(model.logits(row)?, position, workspace)?)
}
