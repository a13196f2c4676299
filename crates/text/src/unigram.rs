//! SentencePiece unigram: of all ways to cut the text into tokens, the one with the highest sum of
//! log probabilities (Viterbi).
//!
//! Reference: Kudo 2018, <https://arxiv.org/abs/1804.10959>, and `unigram_model.cc`.

use tokenizers::{NormalizedString, Normalizer, normalizers::Precompiled};

use crate::spm::{ByteTokens, SPACE_MARK};
use crate::token_map::TokenMap;
use crate::{TextError, TokenType};

/// An unknown character costs this much more than the least probable token.
const UNKNOWN_PENALTY: f64 = 10.0;

#[derive(Debug)]
pub(crate) struct UnigramModel {
    /// Log probability of each token; `None` for those that text never becomes.
    scores: Vec<Option<f64>>,
    unknown: u32,
    unknown_score: f64,
    normalizer: SpmNormalizer,
    /// What unknown text becomes instead of one unknown token.
    bytes: Option<ByteTokens>,
}

/// What SentencePiece does with a text before it looks for pieces.
#[derive(Debug)]
pub(crate) struct SpmNormalizer {
    map: Option<Precompiled>,
    collapse_spaces: bool,
}

impl UnigramModel {
    pub(crate) fn new(
        scores: Vec<Option<f32>>,
        types: &[TokenType],
        unknown: u32,
        normalizer: SpmNormalizer,
        bytes: Option<ByteTokens>,
    ) -> Self {
        let normal = scores.iter().zip(types).filter(|(_, kind)| **kind == TokenType::Normal);
        let least = normal.filter_map(|(score, _)| *score).fold(0.0, f32::min);
        let scores = scores.into_iter().zip(types).map(|(score, kind)| match kind {
            // User-defined tokens cost nothing, so that they are taken wherever they fit.
            TokenType::UserDefined => Some(0.0),
            _ => score.map(f64::from),
        });
        Self {
            scores: scores.collect(),
            unknown,
            unknown_score: f64::from(least) - UNKNOWN_PENALTY,
            normalizer,
            bytes,
        }
    }

    /// Appends the tokens of `text`; neighboring unknown characters become one unknown token.
    ///
    /// # Errors
    /// If the normaliser fails.
    pub(crate) fn encode(
        &self,
        tokens: &TokenMap,
        text: &str,
        space_prefix: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let text = self.normalizer.apply(text, space_prefix)?;
        // Best way to reach each byte: score, token, start of the token.
        let mut best = vec![(f64::NEG_INFINITY, self.unknown, 0); text.len() + 1];
        best[0].0 = 0.0;
        for (start, character) in text.char_indices() {
            let so_far = best[start].0;
            let mut offer = |end: usize, score: f64, id: u32| {
                if so_far + score > best[end].0 {
                    best[end] = (so_far + score, id, start);
                }
            };
            let after_first = start + character.len_utf8();
            let mut first_known = false;
            let ends = text[start..].char_indices().map(|(at, c)| start + at + c.len_utf8());
            for end in ends.take_while(|end| end - start <= tokens.max_len()) {
                let id = tokens.id(&text[start..end]);
                if let Some(score) = self.scores.get(id as usize).copied().flatten() {
                    offer(end, score, id);
                    first_known |= end == after_first;
                }
            }
            if !first_known {
                offer(after_first, self.unknown_score, self.unknown);
            }
        }
        let first = ids.len();
        let mut end = text.len();
        while end > 0 {
            let (_, id, start) = best[end];
            if let (Some(bytes), true) = (&self.bytes, id == self.unknown) {
                let from = ids.len();
                bytes.push(&text[start..end], ids)?;
                ids[from..].reverse();
                end = start;
                continue;
            }
            if id != self.unknown || ids[first..].last() != Some(&self.unknown) {
                ids.push(id);
            }
            end = start;
        }
        ids[first..].reverse();
        Ok(())
    }
}

impl SpmNormalizer {
    /// # Errors
    /// If the precompiled character map is not valid.
    pub(crate) fn new(charsmap: Option<&[u8]>, collapse_spaces: bool) -> Result<Self, TextError> {
        let map = match charsmap {
            None | Some([]) => None,
            Some(map) => Some(Precompiled::from(map).map_err(|error| TextError::Json {
                reason: format!("precompiled_charsmap: {error}"),
            })?),
        };
        Ok(Self { map, collapse_spaces })
    }

    /// The text with its spaces as [`SPACE_MARK`]s.
    ///
    /// # Errors
    /// If the map fails.
    pub(crate) fn apply(&self, text: &str, space_prefix: bool) -> Result<String, TextError> {
        let mut normalized = NormalizedString::from(text);
        if let Some(map) = &self.map {
            let failed =
                |error: tokenizers::Error| TextError::PreTokenize { reason: error.to_string() };
            map.normalize(&mut normalized).map_err(failed)?;
        }
        let text = normalized.get();
        let mut marked = String::with_capacity(text.len() + 8);
        if self.collapse_spaces {
            for word in text.split(' ').filter(|word| !word.is_empty()) {
                if !marked.is_empty() || space_prefix {
                    marked.push(SPACE_MARK);
                }
                marked.push_str(word);
            }
        } else {
            if space_prefix {
                marked.push(SPACE_MARK);
            }
            marked.push_str(&text.replace(' ', &SPACE_MARK.to_string()));
        }
        Ok(marked)
    }
}
