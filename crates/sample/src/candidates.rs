//! The chain on the most probable tokens alone, for logits that are in a device's memory.
//!
//! The filters keep a prefix of the ranking, so a device need give only its beginning. What keeps the
//! answer exact: bias and penalties that only lower logits move no token from outside the candidates
//! above the last of them, so that of the candidates those that still reach it are the true
//! beginning; a sum over all tokens comes from the device bit for bit as [`mass`] computes it; and
//! whatever else would be needed makes the answer [`None`], never a guess.

use crate::rank::{Ranking, Workspace, key, key_logit, key_token};
use crate::{Logprobs, SampleError, Sampled, Sampler, SamplingParams, edit, rng};

/// The beginning of a row's ranking.
#[derive(Debug, Clone, Copy)]
pub struct Candidates<'a> {
    /// Tokens, most probable first, of equal ones those with lower ids first.
    pub ids: &'a [u32],
    /// Their logits, as the model gave them. Where fewer tokens are possible than there is room for,
    /// minus infinity ends the list.
    pub logits: &'a [f32],
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// [`mass`] of the row, where [`Needs::Candidates`] asked for it.
    pub mass: Option<f64>,
    /// [`mass`] of the row at temperature 1, where that was asked for.
    pub model_mass: Option<f64>,
}

/// What of a row's logits a sampler needs for its next token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Needs {
    /// The first token with the highest logit, and nothing else.
    Best,
    /// Its most probable tokens, which in most cases decide.
    Candidates {
        /// The reciprocal of the temperature, when the mass at it is needed.
        mass: Option<f32>,
        /// Whether the mass at temperature 1 is needed.
        model_mass: bool,
    },
    /// All of them.
    Logits,
}

/// The sum over a row of `exp((logit - max) * inv_t)`, in the order that the sampler has.
///
/// # Errors
/// When a logit is not a number or plus infinity, or all are minus infinity.
pub fn mass(logits: &[f32], inv_t: f32, workspace: &mut Workspace) -> Result<f64, SampleError> {
    Ok(Ranking::new(logits, inv_t, workspace)?.mass())
}

impl Sampler {
    /// What the next token needs of `vocab` logits, where at most `n_candidates` are to be had.
    pub fn needs(&self, vocab: usize, n_candidates: usize) -> Needs {
        let SamplingParams { temperature, top_k, top_p, min_p, logprobs, .. } = self.params;
        let greedy = !temperature.recip().is_finite();
        let edits = !self.params.logit_bias.is_empty() || self.history.is_some();
        if greedy && logprobs.is_none() && !edits && self.constraint.is_none() {
            return Needs::Best;
        }
        let few = |n: Option<u32>| n.map(|n| n as usize).filter(|&n| n < vocab);
        let enough = [few(top_k), few(logprobs)].into_iter().flatten().all(|n| n <= n_candidates);
        let cuts = greedy || few(top_k).is_some() || top_p < 1.0 || min_p > 0.0;
        let summed = !greedy && few(top_k).is_none() && top_p < 1.0;
        // The mass is that of the model's logits.
        if self.constraint.is_some() || !enough || !cuts || self.raises() || summed && edits {
            return Needs::Logits;
        }
        let mass = summed.then(|| temperature.recip());
        Needs::Candidates { mass, model_mass: logprobs.is_some() }
    }

    /// Whether bias or penalties can make a token more probable.
    fn raises(&self) -> bool {
        let SamplingParams { repetition_penalty, presence_penalty, frequency_penalty, .. } =
            self.params;
        repetition_penalty < 1.0
            || presence_penalty < 0.0
            || frequency_penalty < 0.0
            || self.params.logit_bias.values().any(|&bias| bias > 0.0)
    }

    /// As [`Sampler::sample`], from the most probable tokens. `None` when they do not decide: nothing
    /// has changed then, and [`Sampler::sample`] must be given all logits.
    pub fn sample_candidates(
        &mut self,
        candidates: &Candidates<'_>,
        position: usize,
        workspace: &mut Workspace,
    ) -> Option<Sampled> {
        if matches!(self.needs(candidates.vocab, candidates.ids.len()), Needs::Logits) {
            return None;
        }
        let possible = candidates.logits.iter().take_while(|&&l| l > f32::NEG_INFINITY).count();
        let whole = possible < candidates.ids.len() || possible >= candidates.vocab;
        // What is no number is for all logits to report.
        if possible == 0 || !candidates.logits[..possible].iter().all(|l| l.is_finite()) {
            return None;
        }
        let ranked = || candidates.ids.iter().copied().zip(candidates.logits.iter().copied());
        let ranked = || ranked().take(possible);
        workspace.keys.clear();
        workspace.keys.extend(ranked().map(|(id, logit)| key(logit, id as usize)));
        self.edit_candidates(whole, &mut workspace.keys);
        let first = key_token(*workspace.keys.first()?);
        let inv_t = self.params.temperature.recip();
        let token = if inv_t.is_finite() {
            let mut ranking = Ranking::of_candidates(inv_t, candidates.mass, whole, workspace);
            self.filter(&mut ranking, candidates.vocab);
            // A ranking that was not cut is drawn from in another order.
            let token = ranking.draw(rng::uniform(self.seed, position as u64));
            (!ranking.undecided()).then_some(token)?
        } else {
            first
        };
        let logprobs = match self.params.logprobs.map(|n| n as usize) {
            Some(n) if n > possible && !whole => return None,
            Some(n) => {
                let chosen = ranked().find(|&(id, _)| id == token)?.1;
                let best = candidates.logits[0];
                let top = ranked().take(n).collect();
                Some(Logprobs::of(best, candidates.model_mass?, chosen, top))
            }
            None => None,
        };
        self.remember(token);
        Some(Sampled { token, logprobs })
    }

    /// Bias and penalties on candidates; leaves those that are sure to be the first of all.
    fn edit_candidates(&self, whole: bool, keys: &mut Vec<u64>) {
        let SamplingParams { repetition_penalty, presence_penalty, frequency_penalty, .. } =
            self.params;
        if self.params.logit_bias.is_empty() && self.history.is_none() {
            return;
        }
        let last = keys.last().copied().unwrap_or(0);
        for at in keys.iter_mut() {
            let (token, mut logit) = (key_token(*at), key_logit(*at));
            if let Some(bias) = self.params.logit_bias.get(&token) {
                logit += bias;
            }
            if let Some(count) = self.history.as_ref().and_then(|history| history.count(token)) {
                logit = edit::repeated(logit, repetition_penalty);
                if count > 0 {
                    logit = edit::present(logit, count, presence_penalty, frequency_penalty);
                }
            }
            *at = key(logit, token as usize);
        }
        keys.sort_unstable();
        keys.retain(|&k| (whole || k <= last) && key_logit(k) > f32::NEG_INFINITY);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The `n` first tokens by a full sort.
    fn beginning(logits: &[f32], n: usize) -> (Vec<u32>, Vec<f32>) {
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        let logit = |id: u32| logits[id as usize];
        ids.sort_by(|&a, &b| logit(b).partial_cmp(&logit(a)).unwrap().then(a.cmp(&b)));
        ids.resize(n, u32::MAX);
        let values =
            ids.iter().map(|&id| logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY));
        (ids.clone(), values.collect())
    }

    /// The answer from `n` candidates, and from all logits.
    fn both(
        params: &SamplingParams,
        prompt: &[u32],
        logits: &[f32],
        n: usize,
        position: usize,
    ) -> (Option<Sampled>, Result<Sampled, SampleError>) {
        let mut workspace = Workspace::default();
        let sampler = || Sampler::new(params.clone(), prompt, prompt.len() + 64, None);
        let mut short = sampler();
        let (ids, values) = beginning(logits, n);
        let wanted = short.needs(logits.len(), n);
        let (mut at, mut at_one) = (None, None);
        if let Needs::Candidates { mass: inv_t, model_mass } = wanted {
            at = inv_t.and_then(|inv_t| mass(logits, inv_t, &mut workspace).ok());
            at_one = model_mass.then(|| mass(logits, 1.0, &mut workspace).ok()).flatten();
        }
        let candidates = Candidates {
            ids: &ids,
            logits: &values,
            vocab: logits.len(),
            mass: at,
            model_mass: at_one,
        };
        let got = match wanted {
            Needs::Best => Some(Sampled { token: ids[0], logprobs: None }),
            _ => short.sample_candidates(&candidates, position, &mut workspace),
        };
        (got, sampler().sample(logits, position, &mut workspace))
    }

    fn params() -> impl Strategy<Value = SamplingParams> {
        let choice = |values: &'static [f32]| prop::sample::select(values);
        let penalties =
            (choice(&[1.0, 1.0, 1.3, 0.8]), choice(&[0.0, 0.0, 0.7, -0.5]), choice(&[0.0, 0.2]));
        let filters = (
            choice(&[0.0, 0.3, 0.7, 1.0, 2.0, 1e-39]),
            choice(&[1.0, 0.9, 0.5, 0.99]),
            choice(&[0.0, 0.05, 0.5]),
            prop::sample::select(&[None, Some(1), Some(5), Some(40), Some(300), Some(9999)][..]),
        );
        let bias = prop::collection::btree_map(0u32..300, choice(&[-1.0, -30.0, 2.0]), 0..2);
        let logprobs = prop::sample::select(&[None, None, Some(0), Some(5), Some(20)][..]);
        (penalties, filters, bias, logprobs, any::<u64>()).prop_map(
            |(p, f, bias, logprobs, seed)| SamplingParams {
                temperature: f.0,
                top_p: f.1,
                min_p: f.2,
                top_k: f.3,
                repetition_penalty: p.0,
                presence_penalty: p.1,
                frequency_penalty: p.2,
                logit_bias: bias,
                logprobs,
                seed: Some(seed),
                ..SamplingParams::neutral()
            },
        )
    }

    fn logits() -> impl Strategy<Value = Vec<f32>> {
        let tied = prop_oneof![
            8 => (-40i32..40).prop_map(|x| x as f32 / 8.0),
            1 => Just(f32::NEG_INFINITY),
            1 => Just(-0.0f32),
        ];
        let spread = (-12.0f32..12.0).prop_map(|x| x);
        let any = prop_oneof![
            prop::collection::vec(tied, 1..700),
            prop::collection::vec(spread, 1..3000),
        ];
        any.prop_filter("a possible token", |l| l.iter().any(|&x| x > f32::NEG_INFINITY))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1500))]
        /// Whatever the candidates decide is what all logits decide.
        #[test]
        fn candidates_give_what_all_logits_give(
            params in params(),
            logits in logits(),
            prompt in prop::collection::vec(0u32..400, 0..30),
            n in prop::sample::select(&[1usize, 2, 64, 128][..]),
            position in 0usize..1000,
        ) {
            let (got, want) = both(&params, &prompt, &logits, n, position);
            if let Some(got) = got {
                prop_assert_eq!(got, want.unwrap());
            }
        }
    }

    /// The usual parameters are decided by 128 candidates.
    #[test]
    fn usual_parameters_are_decided() {
        let logits: Vec<f32> =
            (0..40_000).map(|i| (rng::uniform(7, i) * 30.0 - 20.0) as f32).collect();
        let prompt: Vec<u32> = (0..500).collect();
        let usual = SamplingParams { seed: Some(3), ..SamplingParams::default() };
        for params in [
            usual.clone(),
            SamplingParams { top_k: Some(50), repetition_penalty: 1.1, ..usual.clone() },
            SamplingParams { top_k: Some(128), logprobs: Some(20), ..usual.clone() },
            SamplingParams { top_k: None, top_p: 1.0, min_p: 0.9, ..usual.clone() },
            SamplingParams { temperature: 0.0, presence_penalty: 0.5, ..usual.clone() },
            SamplingParams { top_k: None, top_p: 0.05, min_p: 0.0, ..usual.clone() },
        ] {
            for position in 0..50 {
                let (got, want) = both(&params, &prompt, &logits, 128, position);
                assert_eq!(got.unwrap(), want.unwrap(), "{params:?}");
            }
        }
    }

    #[test]
    fn what_candidates_cannot_decide_is_left_to_all_logits() {
        let logits: Vec<f32> = (0..5000).map(|i| (i % 7) as f32 / 100.0).collect();
        let open = SamplingParams { seed: Some(1), ..SamplingParams::neutral() };
        let sampler = |params: &SamplingParams| Sampler::new(params.clone(), &[1], 9, None);
        for params in [
            open.clone(),
            SamplingParams { top_k: Some(129), ..open.clone() },
            SamplingParams { top_k: Some(5), presence_penalty: -1.0, ..open.clone() },
            SamplingParams { top_p: 0.9, repetition_penalty: 1.2, ..open.clone() },
        ] {
            assert_eq!(sampler(&params).needs(5000, 128), Needs::Logits, "{params:?}");
        }
        // A flat distribution: 128 tokens are not 90 % of it.
        let flat = SamplingParams { top_p: 0.9, ..open.clone() };
        let wanted = Needs::Candidates { mass: Some(1.0), model_mass: false };
        assert_eq!(sampler(&flat).needs(5000, 128), wanted);
        assert_eq!(both(&flat, &[], &logits, 128, 4).0, None);
        let broken = vec![f32::NAN; 200];
        let few = SamplingParams { top_k: Some(5), ..open };
        let ids: Vec<u32> = (0..128).collect();
        let candidates = Candidates {
            ids: &ids,
            logits: &broken[..128],
            vocab: 200,
            mass: None,
            model_mass: None,
        };
        let mut workspace = Workspace::default();
        assert_eq!(sampler(&few).sample_candidates(&candidates, 0, &mut workspace), None);
    }
}
