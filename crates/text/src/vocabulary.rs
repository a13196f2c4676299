//! The vocabulary as a GGUF file carries it (`tokenizer.ggml.*`), before it becomes a tokenizer.
//!
//! Reference: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, section "Tokenizer".

use crate::TextError;

/// Many strings in one allocation. A vocabulary has up to a few hundred thousand entries, and one
/// heap block for each would cost more than everything else that a tokenizer does at start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StringTable {
    text: String,
    /// End of entry `i` in `text`, in bytes.
    ends: Vec<usize>,
}

impl StringTable {
    /// Room for `entries` strings of `bytes` bytes together.
    #[must_use]
    pub fn with_capacity(entries: usize, bytes: usize) -> Self {
        Self { text: String::with_capacity(bytes), ends: Vec::with_capacity(entries) }
    }

    /// Appends one string.
    pub fn push(&mut self, entry: &str) {
        self.text.push_str(entry);
        self.ends.push(self.text.len());
    }

    /// Number of strings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if there is no string.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String number `index`, if there is one.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1],
        };
        self.text.get(start..end)
    }

    /// All strings in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.text[start..end])
    }
}

impl<S: AsRef<str>> FromIterator<S> for StringTable {
    fn from_iter<I: IntoIterator<Item = S>>(entries: I) -> Self {
        let entries = entries.into_iter();
        let mut table = Self::with_capacity(entries.size_hint().0, 0);
        entries.for_each(|entry| table.push(entry.as_ref()));
        table
    }
}

/// How text becomes tokens: `tokenizer.ggml.model`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VocabModel {
    /// `gpt2`: byte-level BPE with a merge list.
    Bpe,
    /// `gemma4`: BPE with a merge list over characters, spaces as `▁`, bytes as `<0xXX>`.
    SpmBpe,
    /// `llama`: SentencePiece BPE, merges ordered by token scores.
    SentencePiece,
    /// `bert`: WordPiece, words begin with `▁`.
    WordPiece,
    /// `t5`: SentencePiece unigram, scores are log probabilities.
    Unigram,
}

impl VocabModel {
    const NAMES: [(&str, Self); 5] = [
        ("gpt2", Self::Bpe),
        ("gemma4", Self::SpmBpe),
        ("llama", Self::SentencePiece),
        ("bert", Self::WordPiece),
        ("t5", Self::Unigram),
    ];

    /// The model that `tokenizer.ggml.model` names.
    ///
    /// # Errors
    /// If the name is not known; the error lists those that are.
    pub fn from_name(name: &str) -> Result<Self, TextError> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, model)| *model).ok_or_else(|| TextError::UnknownModel {
            name: name.to_owned(),
            known: Self::NAMES.map(|(known, _)| known).join(", "),
        })
    }

    /// The name in `tokenizer.ggml.model`.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, model)| *model == self).map_or("", |(name, _)| name)
    }
}

/// What a token is for: `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
    Undefined,
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl From<i32> for TokenType {
    /// Numbers as in the GGUF file; those without a meaning are [`TokenType::Undefined`].
    fn from(number: i32) -> Self {
        match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Undefined,
        }
    }
}

/// Ids that stand before a text, between a text and its pair, and at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Around {
    pub before: Vec<u32>,
    pub between: Vec<u32>,
    pub after: Vec<u32>,
    /// Whether tokens of the second text have a type of their own.
    pub types: bool,
}

/// The metadata of a vocabulary. `None` means that the file does not say; the tokenizer then takes
/// the default of the model.
#[derive(Debug, Clone)]
pub struct Vocabulary {
    /// `tokenizer.ggml.model`.
    pub model: VocabModel,
    /// `tokenizer.ggml.pre`: the pre-tokenizer of a BPE model.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`; the index is the id.
    pub tokens: StringTable,
    /// `tokenizer.ggml.scores`.
    pub scores: Option<Vec<f32>>,
    /// `tokenizer.ggml.token_type`.
    pub types: Option<Vec<TokenType>>,
    /// `tokenizer.ggml.merges`, the first merge being the strongest.
    pub merges: StringTable,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`: end of turn.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`: end of message.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.seperator_token_id` (the key is spelt like this).
    pub sep: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<u32>,
    /// `tokenizer.ggml.cls_token_id`.
    pub cls: Option<u32>,
    /// `tokenizer.ggml.mask_token_id`.
    pub mask: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_sep_token`.
    pub add_sep: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.ggml.remove_extra_whitespaces`.
    pub remove_extra_whitespaces: Option<bool>,
    /// `tokenizer.ggml.precompiled_charsmap`: the normaliser of a unigram model.
    pub precompiled_charsmap: Option<Vec<u8>>,
    /// Text without a token becomes byte tokens, for unigram models; BPE ones do so by themselves.
    pub byte_fallback: bool,
    /// What is put around texts and pairs, where it is more than BOS and EOS.
    pub around: Option<Around>,
    /// `tokenizer.ggml.normalizer.lowercase`, for WordPiece.
    pub lowercase: Option<bool>,
    /// `tokenizer.ggml.normalizer.strip_accents`, for WordPiece.
    pub strip_accents: Option<bool>,
}

impl Vocabulary {
    /// A vocabulary that says nothing but its model and its tokens.
    #[must_use]
    pub fn new(model: VocabModel, tokens: StringTable) -> Self {
        Self {
            model,
            pre: None,
            tokens,
            scores: None,
            types: None,
            merges: StringTable::default(),
            bos: None,
            eos: None,
            eot: None,
            eom: None,
            unk: None,
            sep: None,
            pad: None,
            cls: None,
            mask: None,
            add_bos: None,
            add_eos: None,
            add_sep: None,
            add_space_prefix: None,
            remove_extra_whitespaces: None,
            precompiled_charsmap: None,
            byte_fallback: false,
            around: None,
            lowercase: None,
            strip_accents: None,
        }
    }
}
