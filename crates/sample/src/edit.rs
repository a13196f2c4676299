//! The steps that change logits: bias and penalties. Each touches only the tokens it names.

use std::collections::{BTreeMap, HashMap};

/// The distinct tokens of a sequence so far, with how often each appears in the output.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// `(token, occurrences in the output)`, in order of first appearance.
    entries: Vec<(u32, u32)>,
    position: HashMap<u32, usize>,
}

impl History {
    /// Room for `n_distinct` distinct tokens, so that later additions allocate nothing.
    pub(crate) fn reserve(&mut self, n_distinct: usize) {
        self.entries.reserve(n_distinct);
        self.position.reserve(n_distinct);
    }

    pub(crate) fn add(&mut self, token: u32, is_output: bool) {
        let entries = &mut self.entries;
        let at = *self.position.entry(token).or_insert_with(|| {
            entries.push((token, 0));
            entries.len() - 1
        });
        entries[at].1 += u32::from(is_output);
    }

    /// How often the output holds a token; none for one that neither prompt nor output holds.
    pub(crate) fn count(&self, token: u32) -> Option<u32> {
        self.position.get(&token).map(|&at| self.entries[at].1)
    }
}

/// Adds the bias of each token (OpenAI's `logit_bias`).
pub(crate) fn bias(logits: &mut [f32], bias: &BTreeMap<u32, f32>) {
    for (&token, &value) in bias {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit += value;
        }
    }
}

/// Divides positive logits and multiplies negative ones, for every token of prompt and output
/// (Keskar et al., "CTRL", 2019, as Hugging Face's `RepetitionPenaltyLogitsProcessor` does it).
pub(crate) fn repetition(logits: &mut [f32], history: &History, penalty: f32) {
    for &(token, _) in &history.entries {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = repeated(*logit, penalty);
        }
    }
}

/// One logit of [`repetition`].
pub(crate) fn repeated(logit: f32, penalty: f32) -> f32 {
    if logit < 0.0 { logit * penalty } else { logit / penalty }
}

/// `logit - count * frequency - (count > 0) * presence`, over the output only (OpenAI API
/// reference, "frequency and presence penalties").
pub(crate) fn presence_and_frequency(
    logits: &mut [f32],
    history: &History,
    presence: f32,
    frequency: f32,
) {
    for &(token, count) in &history.entries {
        if count > 0
            && let Some(logit) = logits.get_mut(token as usize)
        {
            *logit = present(*logit, count, presence, frequency);
        }
    }
}

/// One logit of [`presence_and_frequency`], of a token that the output holds.
pub(crate) fn present(logit: f32, count: u32, presence: f32, frequency: f32) -> f32 {
    logit - (count as f32 * frequency + presence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(prompt: &[u32], output: &[u32]) -> History {
        let mut history = History::default();
        prompt.iter().for_each(|&t| history.add(t, false));
        output.iter().for_each(|&t| history.add(t, true));
        history
    }

    /// Case S5.
    #[test]
    fn repetition_divides_positive_and_multiplies_negative() {
        let mut logits = [2.0, -1.0, 3.0, 0.0];
        repetition(&mut logits, &history(&[0], &[1, 3]), 1.1);
        assert_eq!(logits, [2.0 / 1.1, -1.1, 3.0, 0.0]);
        assert!((logits[0] - 1.818_181_8).abs() < 1e-6);
    }

    #[test]
    fn repetition_counts_a_token_once() {
        let mut logits = [4.0];
        repetition(&mut logits, &history(&[0, 0, 0], &[0]), 2.0);
        assert_eq!(logits, [2.0]);
    }

    #[test]
    fn presence_and_frequency_see_the_output_only() {
        let mut logits = [1.0, 1.0, 1.0];
        presence_and_frequency(&mut logits, &history(&[0, 1], &[1, 1, 2]), 0.5, 0.25);
        assert_eq!(logits, [1.0, 0.0, 0.25]);
    }

    #[test]
    fn tokens_outside_the_vocabulary_are_ignored() {
        let mut logits = [1.0];
        let history = history(&[7], &[99_999_999]);
        repetition(&mut logits, &history, 1.5);
        presence_and_frequency(&mut logits, &history, 1.0, 1.0);
        bias(&mut logits, &BTreeMap::from([(99_999_999, 5.0)]));
        assert_eq!(logits, [1.0]);
    }
}
