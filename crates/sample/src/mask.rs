//! What a grammar contributes: the set of tokens that may come next, and nothing else.

/// A set of token ids, one bit each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
}

impl TokenMask {
    /// Empties the set and gives it room for `vocab` ids.
    pub fn reset(&mut self, vocab: usize) {
        self.words.clear();
        self.words.resize(vocab.div_ceil(32), 0);
    }

    /// Adds an id; one that lies outside the vocabulary is ignored.
    pub fn allow(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 32) {
            *word |= 1 << (token % 32);
        }
    }

    /// Whether the id is in the set.
    pub fn allows(&self, token: u32) -> bool {
        self.words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// The bits, id 0 in the lowest bit of the first word, for engines that fill whole words.
    pub fn words_mut(&mut self) -> &mut [u32] {
        &mut self.words
    }

    /// Sets the logit of every token outside the set to minus infinity.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        for (word_idx, group) in logits.chunks_mut(32).enumerate() {
            let word = self.words.get(word_idx).copied().unwrap_or(0);
            if word == u32::MAX {
                continue;
            }
            for (bit, logit) in group.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}

/// A constraint on the output of one sequence, such as a JSON schema or a regular expression.
///
/// The constraint is asked before each token and told of each token that was taken. It never sees
/// logits, so it cannot change what the model prefers among the allowed tokens.
pub trait Constraint: Send + std::fmt::Debug {
    /// Adds every token that may come next to `mask`, which arrives empty and sized for the
    /// vocabulary. When the output is complete, the end-of-sequence tokens are what it adds.
    ///
    /// # Errors
    /// When the constraint can no longer say what is allowed; the sequence then ends with an error.
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<(), ConstraintError>;

    /// Takes note of the token that was chosen.
    ///
    /// # Errors
    /// When the token does not fit.
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError>;
}

/// Why a constraint could not be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the output constraint failed: {0}")]
pub struct ConstraintError(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_outside_the_set_at_every_size() {
        for vocab in [1usize, 31, 32, 33, 64, 65, 100] {
            let mut mask = TokenMask::default();
            mask.reset(vocab);
            let allowed = [0u32, vocab as u32 / 2, vocab as u32 - 1];
            allowed.iter().for_each(|&t| mask.allow(t));
            let mut logits = vec![1.0f32; vocab];
            mask.apply(&mut logits);
            for (id, logit) in logits.iter().enumerate() {
                let keep = allowed.contains(&(id as u32));
                assert_eq!(*logit == 1.0, keep, "vocab {vocab} id {id}");
                assert_eq!(mask.allows(id as u32), keep);
            }
        }
    }

    #[test]
    fn ids_outside_the_vocabulary_are_ignored() {
        let mut mask = TokenMask::default();
        mask.reset(32);
        mask.allow(99_999_999);
        assert!(!mask.allows(99_999_999));
    }
}
