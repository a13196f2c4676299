//! SentencePiece BPE: adjacent symbols merge while their concatenation is a token, the pair with
//! the highest score first, the leftmost of equals; what is left over becomes bytes.
//!
//! There is no merge list: the scores are the order. Reference: the SentencePiece library,
//! `bpe_model.cc`, and llama.cpp's SPM tokenizer, which this equals.

use std::collections::BinaryHeap;

use crate::TextError;
use crate::bpe::Symbols;
use crate::token_map::{NO_TOKEN, TokenMap};

/// The character that stands for a space in SentencePiece tokens.
pub(crate) const SPACE_MARK: char = '\u{2581}';

#[derive(Debug)]
pub(crate) struct SpmModel {
    /// Merge priority of each token; `None` for those that text never becomes (control, bytes).
    scores: Vec<Option<f32>>,
    /// Token of each byte.
    bytes: ByteTokens,
}

/// Tokens `<0x00>` to `<0xFF>` for text that has no other token.
#[derive(Debug)]
pub(crate) struct ByteTokens {
    ids: Vec<u32>,
    unknown: Option<u32>,
}

impl ByteTokens {
    pub(crate) fn new(tokens: &TokenMap, unknown: Option<u32>) -> Self {
        let ids = (0..=255u8).map(|byte| tokens.id(&format!("<0x{byte:02X}>"))).collect();
        Self { ids, unknown }
    }

    /// # Errors
    /// If a byte has no token and there is no unknown token.
    pub(crate) fn push(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        let bytes = text.bytes().map(|byte| self.ids[usize::from(byte)]);
        if bytes.clone().all(|id| id != NO_TOKEN) {
            ids.extend(bytes);
            return Ok(());
        }
        let unknown = self.unknown.ok_or_else(|| TextError::NoToken { text: text.to_owned() })?;
        // Neighbors that are unknown are one unknown token.
        if ids.last() != Some(&unknown) {
            ids.push(unknown);
        }
        Ok(())
    }
}

/// A possible merge, ordered by score, then from left to right.
#[derive(Debug, PartialEq)]
struct Merge {
    score: f32,
    left: u32,
    right: u32,
    /// Length of the merged text in bytes: a merge whose symbols have changed since is stale.
    len: usize,
    id: u32,
}

impl Eq for Merge {}

impl Ord for Merge {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Merge {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl SpmModel {
    pub(crate) fn new(scores: Vec<Option<f32>>, bytes: ByteTokens) -> Self {
        Self { scores, bytes }
    }

    /// Appends the tokens of `text`, in which spaces are [`SPACE_MARK`]s already.
    ///
    /// # Errors
    /// If a character has no token, no byte tokens and no unknown token.
    pub(crate) fn encode(
        &self,
        tokens: &TokenMap,
        text: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let mut symbols = Symbols::from_chars(text, |character| tokens.id(character));
        let mut heap = BinaryHeap::with_capacity(symbols.len());
        for left in 1..symbols.len() {
            self.propose(tokens, text, &symbols, left as u32 - 1, left as u32, &mut heap);
        }
        while let Some(merge) = heap.pop() {
            let (left, right) = (merge.left, merge.right);
            if symbols.merged_len(left, right) != Some(merge.len) {
                continue;
            }
            symbols.merge(left, right, merge.id);
            if let Some(previous) = symbols.previous(left) {
                self.propose(tokens, text, &symbols, previous, left, &mut heap);
            }
            if let Some(next) = symbols.next(left) {
                self.propose(tokens, text, &symbols, left, next, &mut heap);
            }
        }
        for (id, range) in symbols.iter() {
            match self.scores.get(id as usize).copied().flatten() {
                Some(_) => ids.push(id),
                None => self.bytes.push(&text[range], ids)?,
            }
        }
        Ok(())
    }

    fn propose(
        &self,
        tokens: &TokenMap,
        text: &str,
        symbols: &Symbols,
        left: u32,
        right: u32,
        heap: &mut BinaryHeap<Merge>,
    ) {
        let range = symbols.joined(left, right);
        if range.len() > tokens.max_len() {
            return;
        }
        let len = range.len();
        let id = tokens.id(&text[range]);
        if let Some(score) = self.scores.get(id as usize).copied().flatten() {
            heap.push(Merge { score, left, right, len, id });
        }
    }
}
