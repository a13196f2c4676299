//! Finding control and user-defined tokens in text.
//!
//! The matcher needs no automaton: the token map already knows every token string, so at each
//! position where a special token may begin (by its first byte) the lengths that such tokens have
//! are looked up, longest first. Building costs one pass over the token types.
//!
//! The match is leftmost, then longest, as in Hugging Face tokenizers and SentencePiece.

use std::ops::Range;

use crate::token_map::TokenMap;

/// Which tokens are read in a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reading {
    /// Control, unknown and user-defined tokens: text of a template.
    All,
    /// User-defined tokens: plain text.
    UserDefined,
    /// User-defined tokens that are no markup: text of a message.
    Content,
    /// Markup and control tokens only, the complement of `Content`.
    Structural,
    /// Markup only: text that the model wrote.
    Markup,
    /// None: text that somebody else wrote.
    Nothing,
}

/// Role of a special token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpecialKind {
    /// Control or unknown.
    Control,
    /// User-defined, and written like markup (`</think>`, `[TOOL_CALLS]`).
    Markup,
    /// User-defined: runs of spaces, words.
    Plain,
}

impl Reading {
    pub(crate) fn takes(self, kind: SpecialKind) -> bool {
        match self {
            Self::All => true,
            Self::UserDefined => kind != SpecialKind::Control,
            Self::Content => kind == SpecialKind::Plain,
            Self::Structural => kind != SpecialKind::Plain,
            Self::Markup => kind == SpecialKind::Markup,
            Self::Nothing => false,
        }
    }
}

/// A special token in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpecialMatch {
    pub(crate) range: Range<usize>,
    pub(crate) id: u32,
}

#[derive(Debug)]
pub(crate) struct SpecialTokens {
    /// Kind of each id; `None` for ordinary tokens.
    kinds: Vec<Option<SpecialKind>>,
    /// For each first byte, the lengths of the special tokens that begin with it, longest first.
    lengths: Vec<Vec<usize>>,
}

impl SpecialTokens {
    pub(crate) fn new(tokens: &TokenMap, kinds: Vec<Option<SpecialKind>>) -> Self {
        let mut lengths = vec![Vec::new(); 256];
        for (kind, (_, text)) in kinds.iter().zip(tokens.iter()) {
            if let (Some(_), Some(&first)) = (kind, text.as_bytes().first()) {
                let lengths: &mut Vec<usize> = &mut lengths[usize::from(first)];
                // Few lengths for each byte: a linear search beats a set.
                if !lengths.contains(&text.len()) {
                    lengths.push(text.len());
                }
            }
        }
        for lengths in &mut lengths {
            lengths.sort_unstable_by(|a, b| b.cmp(a));
        }
        Self { kinds, lengths }
    }

    pub(crate) fn kind(&self, id: u32) -> Option<SpecialKind> {
        self.kinds.get(id as usize).copied().flatten()
    }

    /// The first special token at or after byte `from`.
    pub(crate) fn find(
        &self,
        tokens: &TokenMap,
        text: &str,
        from: usize,
        reading: Reading,
    ) -> Option<SpecialMatch> {
        let bytes = text.as_bytes();
        #[allow(clippy::needless_range_loop, reason = "the index is a position in the text")]
        for start in from..bytes.len() {
            for &length in &self.lengths[usize::from(bytes[start])] {
                let Some(candidate) = text.get(start..start + length) else { continue };
                let id = tokens.id(candidate);
                if self.kind(id).is_some_and(|kind| reading.takes(kind)) {
                    return Some(SpecialMatch { range: start..start + length, id });
                }
            }
        }
        None
    }

    /// All special tokens of the text, in order, without overlap.
    pub(crate) fn find_all(
        &self,
        tokens: &TokenMap,
        text: &str,
        reading: Reading,
    ) -> Vec<SpecialMatch> {
        let mut matches = Vec::new();
        let mut from = 0;
        while let Some(found) = self.find(tokens, text, from, reading) {
            from = found.range.end;
            matches.push(found);
        }
        matches
    }
}

/// True for text written like a tag: `<name>`, `</name>`, `<|name|>`, `[NAME]`.
pub(crate) fn is_markup(text: &str) -> bool {
    let inner = text
        .strip_prefix('<')
        .and_then(|rest| rest.strip_suffix('>'))
        .or_else(|| text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')));
    inner.is_some_and(|inner| {
        inner.chars().any(char::is_alphanumeric) && !inner.contains(char::is_whitespace)
    })
}
