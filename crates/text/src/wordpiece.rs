//! WordPiece: clean the text, cut it at spaces and punctuation, then take the longest token from
//! the left of each word until nothing is left; a word that cannot be used up is unknown.
//!
//! In a GGUF vocabulary the first piece of a word begins with `▁` and the pieces that continue a
//! word are bare (the `##` of the original is gone). Reference: `BertNormalizer`,
//! `BertPreTokenizer` and `WordPiece` of Hugging Face tokenizers, of which the first two are used.

use tokenizers::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    normalizers::BertNormalizer, pre_tokenizers::bert::BertPreTokenizer,
};

use crate::TextError;
use crate::spm::SPACE_MARK;
use crate::token_map::TokenMap;

/// Longer words, in characters, are unknown without a search.
const MAX_WORD_CHARS: usize = 100;

#[derive(Debug)]
pub(crate) struct WordPieceModel {
    normalizer: BertNormalizer,
    unknown: u32,
}

impl WordPieceModel {
    pub(crate) fn new(unknown: u32, lowercase: bool, strip_accents: bool) -> Self {
        let normalizer = BertNormalizer::new(true, true, Some(strip_accents), lowercase);
        Self { normalizer, unknown }
    }

    /// Appends the tokens of `text`.
    ///
    /// # Errors
    /// If the normaliser fails.
    pub(crate) fn encode(
        &self,
        tokens: &TokenMap,
        text: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let failed =
            |error: tokenizers::Error| TextError::PreTokenize { reason: error.to_string() };
        let mut normalized = NormalizedString::from(text);
        self.normalizer.normalize(&mut normalized).map_err(failed)?;
        let mut words = PreTokenizedString::from(normalized);
        BertPreTokenizer.pre_tokenize(&mut words).map_err(failed)?;
        for (word, _, _) in words.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            self.encode_word(tokens, word, ids);
        }
        Ok(())
    }

    fn encode_word(&self, tokens: &TokenMap, word: &str, ids: &mut Vec<u32>) {
        let before = ids.len();
        if word.chars().count() > MAX_WORD_CHARS {
            ids.push(self.unknown);
            return;
        }
        let mut rest = format!("{SPACE_MARK}{word}");
        while !rest.is_empty() {
            let ends = rest.char_indices().map(|(start, c)| start + c.len_utf8()).rev();
            let longest = ends
                .filter(|&end| end <= tokens.max_len())
                .find_map(|end| Some((tokens.get(&rest[..end])?, end)));
            let Some((id, end)) = longest else {
                ids.truncate(before);
                ids.push(self.unknown);
                return;
            };
            ids.push(id);
            rest.drain(..end);
        }
    }
}
