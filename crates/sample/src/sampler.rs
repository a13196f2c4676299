//! One sequence's sampler: runs the chain.

use std::hash::{BuildHasher, RandomState};

use crate::edit::{self, History};
use crate::mask::{Constraint, ConstraintError, TokenMask};
use crate::rank::{Ranking, Workspace, argmax};
use crate::{Logprobs, SamplingParams, filter, rng};

/// The state of sampling for one sequence: its parameters, its seed, the tokens seen so far and
/// what constrains the next one.
#[derive(Debug)]
pub struct Sampler {
    pub(crate) params: SamplingParams,
    pub(crate) seed: u64,
    pub(crate) history: Option<History>,
    pub(crate) constraint: Option<Constrained>,
}

#[derive(Debug)]
pub(crate) struct Constrained {
    constraint: Box<dyn Constraint>,
    mask: TokenMask,
}

/// A token, with its log-probabilities when the parameters ask for them.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token's id.
    pub token: u32,
    /// Log-probabilities under the model's own distribution.
    pub logprobs: Option<Logprobs>,
}

/// Why no token could be taken. It concerns this sequence only.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// The model produced a logit that is not a number or is plus infinity.
    #[error(
        "the logit of token {token} is {logit}: the model's arithmetic overflowed or its weights are damaged"
    )]
    NotFinite {
        /// The first such token.
        token: u32,
        /// Its logit.
        logit: f32,
    },
    /// Every token is impossible.
    #[error("no token is possible here: the model or the output constraint excludes all of them")]
    NoCandidate,
    /// The constraint failed.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
}

impl Sampler {
    /// A sampler for a sequence that starts with `prompt`. `max_len` is the most tokens that the
    /// sequence can come to hold, prompt included; memory for them is taken now. The parameters must
    /// have been validated.
    pub fn new(
        params: SamplingParams,
        prompt: &[u32],
        max_len: usize,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Self {
        // RandomState is the standard library's access to the system's randomness.
        let seed = params.seed.unwrap_or_else(|| RandomState::new().hash_one(0));
        let history = params.needs_history().then(|| {
            let mut history = History::default();
            prompt.iter().for_each(|&token| history.add(token, false));
            history.reserve(max_len.saturating_sub(prompt.len()));
            history
        });
        let constraint =
            constraint.map(|constraint| Constrained { constraint, mask: TokenMask::default() });
        Sampler { params, seed, history, constraint }
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The seed in use, so that a run whose seed was not given can be repeated.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Takes the token for `position`, its index in the sequence with the prompt counted, and adds
    /// it to the history. `logits` has one number for each token of the vocabulary.
    ///
    /// # Errors
    /// See [`SampleError`]; the history is then unchanged.
    pub fn sample(
        &mut self,
        logits: &[f32],
        position: usize,
        workspace: &mut Workspace,
    ) -> Result<Sampled, SampleError> {
        let mut edited = std::mem::take(&mut workspace.edited);
        let token = self.edit(logits, &mut edited).and_then(|is_edited| {
            self.choose(if is_edited { &edited } else { logits }, position, workspace)
        });
        workspace.edited = edited;
        let token = token?;
        if let Some(constrained) = &mut self.constraint {
            constrained.constraint.accept(token)?;
        }
        let logprobs = match self.params.logprobs {
            Some(top_n) => Some(Logprobs::new(logits, token, top_n as usize, workspace)?),
            None => None,
        };
        self.remember(token);
        Ok(Sampled { token, logprobs })
    }

    /// Adds a token of the output to the history.
    pub(crate) fn remember(&mut self, token: u32) {
        if let Some(history) = &mut self.history {
            history.add(token, true);
        }
    }

    /// The steps before the temperature, on a copy of the logits; false when there is nothing to do
    /// and no copy was made.
    fn edit(&mut self, logits: &[f32], edited: &mut Vec<f32>) -> Result<bool, SampleError> {
        let SamplingParams { repetition_penalty, presence_penalty, frequency_penalty, .. } =
            self.params;
        if self.params.logit_bias.is_empty() && self.history.is_none() && self.constraint.is_none()
        {
            return Ok(false);
        }
        edited.clear();
        edited.extend_from_slice(logits);
        edit::bias(edited, &self.params.logit_bias);
        if let Some(history) = &self.history {
            edit::repetition(edited, history, repetition_penalty);
            edit::presence_and_frequency(edited, history, presence_penalty, frequency_penalty);
        }
        if let Some(Constrained { constraint, mask }) = &mut self.constraint {
            mask.reset(logits.len());
            constraint.allowed(mask)?;
            mask.apply(edited);
        }
        Ok(true)
    }

    /// Temperature, filters and draw.
    fn choose(
        &self,
        logits: &[f32],
        position: usize,
        workspace: &mut Workspace,
    ) -> Result<u32, SampleError> {
        let inv_t = self.params.temperature.recip();
        // Temperatures too small to have a reciprocal are zero for every practical purpose.
        if !inv_t.is_finite() {
            return argmax(logits, workspace);
        }
        let mut ranking = Ranking::new(logits, inv_t, workspace)?;
        self.filter(&mut ranking, logits.len());
        Ok(ranking.draw(rng::uniform(self.seed, position as u64)))
    }

    pub(crate) fn filter(&self, ranking: &mut Ranking<'_>, vocab: usize) {
        let SamplingParams { top_k, top_p, min_p, .. } = self.params;
        if let Some(k) = top_k.map(|k| k as usize).filter(|&k| k < vocab) {
            filter::top_k(ranking, k);
        }
        if top_p < 1.0 {
            filter::top_p(ranking, f64::from(top_p), f64::from(min_p));
        }
        if min_p > 0.0 {
            filter::min_p(ranking, f64::from(min_p));
        }
    }
}

#[cfg(test)]
mod tests;
