//! Log-probabilities for the caller.

use crate::rank::{Ranking, Workspace};
use crate::sampler::SampleError;

/// The lowest log-probability that is reported: JSON has no minus infinity, and OpenAI's API gives
/// this number for impossible tokens.
pub const LOGPROB_FLOOR: f32 = -9999.0;

/// Log-probabilities at one position, under the model's own distribution: before bias, penalties,
/// mask, temperature and filters.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// That of the chosen token.
    pub chosen: f32,
    /// The most probable tokens, best first, lower ids first among equals.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// The log-probabilities of `chosen` and of the `top_n` most probable tokens. Every value is
    /// finite and at least [`LOGPROB_FLOOR`].
    ///
    /// # Errors
    /// When a logit is not a number or plus infinity, or all are minus infinity.
    pub fn new(
        logits: &[f32],
        chosen: u32,
        top_n: usize,
        workspace: &mut Workspace,
    ) -> Result<Self, SampleError> {
        let mut ranking = Ranking::new(logits, 1.0, workspace)?;
        let mass = ranking.mass();
        let logit_of =
            |token: u32| logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
        let best = ranking.token(0).map_or(0.0, logit_of);
        let mut top = Vec::with_capacity(top_n);
        while top.len() < top_n
            && let Some(token) = ranking.token(top.len())
        {
            top.push((token, logit_of(token)));
        }
        Ok(Logprobs::of(best, mass, logit_of(chosen), top))
    }

    /// Of the highest logit, the mass relative to it, the chosen token's logit and the best tokens
    /// with their logits.
    pub(crate) fn of(best: f32, mass: f64, chosen: f32, mut top: Vec<(u32, f32)>) -> Self {
        let ln_mass = mass.ln();
        let logprob =
            |logit: f32| ((f64::from(logit) - f64::from(best) - ln_mass) as f32).max(LOGPROB_FLOOR);
        top.iter_mut().for_each(|(_, logit)| *logit = logprob(*logit));
        Logprobs { chosen: logprob(chosen), top }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_to_a_log_softmax() {
        let logits = [1.0f32, 3.0, 2.0, f32::NEG_INFINITY, 3.0];
        let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        let want = |l: f32| (f64::from(l) - sum.ln()) as f32;
        let got = Logprobs::new(&logits, 0, 3, &mut Workspace::default()).unwrap();
        assert!((got.chosen - want(1.0)).abs() < 1e-6);
        assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 4, 2]);
        assert!((got.top[2].1 - want(2.0)).abs() < 1e-6);
    }

    /// Case S9: an impossible token and a list longer than the choices stay finite numbers.
    #[test]
    fn impossible_tokens_stay_finite() {
        let logits = [0.0f32, f32::NEG_INFINITY];
        let got = Logprobs::new(&logits, 1, 5, &mut Workspace::default()).unwrap();
        assert_eq!(got.chosen, LOGPROB_FLOOR);
        assert_eq!(got.top, [(0, 0.0)]);
    }
}
