//! One answer, as it is made.

use std::time::{Duration, Instant};

use cyb_engine::{Event, FinishReason, SeqId};
use cyb_sample::Logprobs;
use cyb_text::{Detokenizer, StopMatcher};

use crate::metrics::{Metrics, per_second};
use crate::model::{Model, millis};
use crate::{Error, SamplingParams};

/// What one token adds to an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The token; `None` for text that was held back and turned out to belong to the answer.
    pub token: Option<u32>,
    /// The text that is complete with it: whole characters, before any stop string. May be empty.
    pub text: String,
    /// Log-probabilities, when the parameters ask for them.
    pub logprobs: Option<Logprobs>,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it.
    Model,
    /// A stop string appeared; the text ends before it.
    StopText(String),
    /// It has as many tokens as were asked for, or the context is full.
    Length,
}

impl Finish {
    /// OpenAI's word for it: `stop` or `length`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Finish::Model | Finish::StopText(_) => "stop",
            Finish::Length => "length",
        }
    }
}

/// Token counts of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of them, those that an earlier prompt had left computed.
    pub cached_tokens: usize,
    /// Tokens of the answer; the one by which the model ends it does not count.
    pub completion_tokens: usize,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The text.
    pub text: String,
    /// The tokens; those of a stop string are among them.
    pub token_ids: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// Token counts.
    pub usage: Usage,
    /// What it took.
    pub metrics: Metrics,
}

/// An answer being made: an iterator of [`Piece`]s. Dropping it ends it.
#[derive(Debug)]
pub struct Generation<'m> {
    model: &'m Model,
    seq: Option<SeqId>,
    detokenizer: Option<Detokenizer<'m>>,
    stops: StopMatcher,
    token_ids: Vec<u32>,
    usage: Usage,
    finish: Option<Finish>,
    started: Instant,
    /// What loading had left to do and was done before.
    loaded_before: Duration,
    prefill_ms: f64,
    decode_ms: f64,
}

impl<'m> Generation<'m> {
    pub(crate) fn start(
        model: &'m Model,
        prompt: Vec<u32>,
        params: SamplingParams,
    ) -> Result<Generation<'m>, Error> {
        let started = Instant::now();
        params.validate(model.vocab_size())?;
        let usage = Usage { prompt_tokens: prompt.len(), ..Usage::default() };
        let context = model.context_for(prompt.len(), params.max_tokens)?;
        let stops = StopMatcher::new(params.stop.iter().cloned());
        let (seq, finish) = match params.max_tokens {
            Some(0) => (None, Some(Finish::Length)),
            _ => (Some(model.submit(prompt, params, context)?), None),
        };
        Ok(Generation {
            model,
            seq,
            detokenizer: model.package().detokenizer().ok(),
            stops,
            token_ids: Vec::new(),
            usage,
            finish,
            started,
            loaded_before: model.loading_later(),
            prefill_ms: 0.0,
            decode_ms: 0.0,
        })
    }

    /// Why it ended; `None` while it goes on.
    pub fn finish(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }

    /// Token counts so far.
    pub fn usage(&self) -> Usage {
        Usage { completion_tokens: self.token_ids.len(), ..self.usage }
    }

    /// The tokens so far.
    pub fn token_ids(&self) -> &[u32] {
        &self.token_ids
    }

    /// Makes the rest and gives the whole.
    ///
    /// # Errors
    /// The model failed, or the work was interrupted.
    pub fn complete(mut self) -> Result<Completion, Error> {
        let mut text = String::new();
        for piece in self.by_ref() {
            text.push_str(&piece?.text);
        }
        let (finish, usage) = (self.finish.take().unwrap_or(Finish::Length), self.usage());
        let token_ids = std::mem::take(&mut self.token_ids);
        Ok(Completion { text, token_ids, finish, usage, metrics: self.model.metrics() })
    }

    fn step(&mut self) -> Result<Option<Piece>, Error> {
        let Some(seq) = self.seq else { return Ok(None) };
        match self.model.next_event(seq)? {
            Some(Event::Token { token, logprobs, .. }) => {
                self.note_time();
                self.token_ids.push(token);
                let text = match &mut self.detokenizer {
                    Some(detokenizer) => detokenizer.push(token).map_err(|problem| {
                        Error::Text { model: self.model.id().to_string(), problem }
                    })?,
                    None => String::new(),
                };
                let out = self.stops.push(&text);
                if let Some(stop) = out.stop {
                    self.close(Finish::StopText(stop));
                }
                Ok(Some(Piece { token: Some(token), text: out.text, logprobs }))
            }
            Some(Event::Finished { reason, usage, .. }) => {
                self.usage.cached_tokens = usage.cached_tokens;
                let finish = match reason {
                    FinishReason::Failed(error) => return Err(error.into()),
                    FinishReason::Eos(_) | FinishReason::Stopped => Finish::Model,
                    FinishReason::MaxTokens | FinishReason::ContextFull => Finish::Length,
                };
                self.note_end();
                let rest = self.detokenizer.as_mut().map_or(String::new(), Detokenizer::finish);
                let out = self.stops.push(&rest);
                let mut text = out.text;
                match out.stop {
                    Some(stop) => self.close(Finish::StopText(stop)),
                    None => {
                        text.push_str(&self.stops.finish());
                        self.close(finish);
                    }
                }
                Ok((!text.is_empty()).then_some(Piece { token: None, text, logprobs: None }))
            }
            None => {
                self.close(Finish::Length);
                Ok(None)
            }
        }
    }

    fn note_time(&mut self) {
        match self.token_ids.is_empty() {
            true => self.prefill_ms = self.millis(),
            false => self.decode_ms = self.millis() - self.prefill_ms,
        }
    }

    /// An answer that the model ends at once has no token to tell the time by.
    fn note_end(&mut self) {
        if self.token_ids.is_empty() {
            self.prefill_ms = self.millis();
        }
    }

    /// Milliseconds since the start, less what belongs to loading.
    fn millis(&self) -> f64 {
        let loading = self.model.loading_later().saturating_sub(self.loaded_before);
        millis(self.started) - loading.as_secs_f64() * 1e3
    }

    fn close(&mut self, finish: Finish) {
        self.finish = Some(finish);
        self.release();
    }

    fn release(&mut self) {
        if let Some(seq) = self.seq.take() {
            let computed = self.usage.prompt_tokens - self.usage.cached_tokens;
            let made = self.token_ids.len().saturating_sub(1);
            let metrics = Metrics {
                prefill_ms: self.prefill_ms,
                decode_ms: self.decode_ms,
                prefill_tok_per_sec: per_second(computed, self.prefill_ms),
                decode_tok_per_sec: per_second(made, self.decode_ms),
                ..Metrics::default()
            };
            self.model.end(seq, Some(metrics));
        }
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Result<Piece, Error>> {
        match self.step() {
            Ok(piece) => piece.map(Ok),
            Err(error) => {
                self.release();
                Some(Err(error))
            }
        }
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        self.release();
    }
}
