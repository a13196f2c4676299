//! The tokenizer that callers see, whatever it was made from.

use std::borrow::Cow;
use std::ops::Range;

use crate::huggingface::{JsonConfig, JsonTokenizer};
use crate::native::NativeTokenizer;
use crate::special::Reading;
use crate::template::{Origin, Segment};
use crate::{Detokenizer, TextError, Vocabulary};

/// How text is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add the tokens that the model wants around a text (BOS, EOS, SEP).
    pub add_special: bool,
    /// Read the text of control tokens as control tokens. Never for text from a user.
    pub parse_special: bool,
}

/// How a text or a pair of texts is read for an encoder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PairOptions {
    /// Read the text of control tokens as control tokens. Never for text from a user.
    pub parse_special: bool,
    /// Cut longer texts to so many tokens, special ones included: the longer of a pair first.
    pub truncate_to: Option<usize>,
}

/// A text or a pair of texts as an encoder takes it. All lists are equally long.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids, with the special tokens that the model wants around texts.
    pub ids: Vec<u32>,
    /// The token type of each.
    pub types: Vec<u32>,
    /// Whether it was added rather than read.
    pub special: Vec<bool>,
    /// Characters of its text that it was read from.
    pub spans: Vec<Range<usize>>,
    /// Tokens before anything was cut off.
    pub n_tokens: usize,
}

/// Text to token ids and back.
#[derive(Debug)]
pub struct Tokenizer {
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Native(Box<NativeTokenizer>),
    Json(Box<JsonTokenizer>),
}

impl Tokenizer {
    /// The tokenizer of a GGUF vocabulary.
    ///
    /// # Errors
    /// If the vocabulary is not consistent: duplicate or missing tokens, ids out of range, a
    /// pre-tokenizer that is not known.
    pub fn from_vocabulary(vocabulary: Vocabulary) -> Result<Self, TextError> {
        Ok(Self { inner: Inner::Native(Box::new(NativeTokenizer::new(vocabulary)?)) })
    }

    /// The tokenizer of a Hugging Face `tokenizer.json`.
    ///
    /// # Errors
    /// If the file is not valid or uses a component that is not known.
    pub fn from_json(json: &[u8], config: JsonConfig) -> Result<Self, TextError> {
        Ok(Self { inner: Inner::Json(Box::new(JsonTokenizer::new(json, config)?)) })
    }

    /// The ids of a text.
    ///
    /// # Errors
    /// If a part of the text has no token and the vocabulary has no unknown token.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TextError> {
        match &self.inner {
            Inner::Native(native) => {
                let reading =
                    if options.parse_special { Reading::All } else { Reading::UserDefined };
                native.encode(text, reading, options.add_special)
            }
            Inner::Json(json) => json.encode(text, options),
        }
    }

    /// A text, or a pair of texts, for an encoder.
    ///
    /// # Errors
    /// If a part of the text has no token, or a pair is given to a vocabulary that does not say how
    /// pairs are put together (any but a `tokenizer.json`).
    pub fn encode_pair(
        &self,
        text: &str,
        pair: Option<&str>,
        options: PairOptions,
    ) -> Result<Encoded, TextError> {
        if let Inner::Native(native) = &self.inner
            && let Some(encoded) = native.encode_pair(text, pair, options)?
        {
            return Ok(encoded);
        }
        let native = match &self.inner {
            Inner::Native(_) if pair.is_some() => return Err(TextError::NoPairs),
            Inner::Native(native) => native,
            Inner::Json(json) => return json.encode_pair(text, pair, options),
        };
        let reading = if options.parse_special { Reading::All } else { Reading::UserDefined };
        let bare = native.encode(text, reading, false)?;
        let full = native.encode(text, reading, true)?;
        let n_tokens = full.len();
        let before = full.windows(bare.len().max(1)).position(|w| w == bare).unwrap_or(0);
        let after = n_tokens - bare.len() - before;
        let room = options.truncate_to.unwrap_or(n_tokens).saturating_sub(before + after);
        let kept = bare.len().min(room);
        let ids = [&full[..before], &bare[..kept], &full[n_tokens - after..]].concat();
        let special = (0..ids.len()).map(|i| i < before || i >= before + kept).collect();
        let (types, spans) = (vec![0; ids.len()], vec![0..0; ids.len()]);
        Ok(Encoded { ids, types, special, spans, n_tokens })
    }

    /// The ids of rendered segments, without added specials: control tokens and markup are read
    /// in template segments only.
    pub(crate) fn encode_segments(&self, segments: &[Segment]) -> Result<Vec<u32>, TextError> {
        let readings = segments.iter().map(|segment| {
            let reading = match segment.origin {
                Origin::Template => Reading::Structural,
                Origin::Message => Reading::Nothing,
                Origin::Answer => Reading::Markup,
            };
            (segment.text.as_str(), reading)
        });
        match &self.inner {
            Inner::Native(native) => native.encode_segments(readings),
            Inner::Json(json) => json.encode_segments(readings),
        }
    }

    /// The first control token, or token written like markup, whose text is in `text`.
    #[must_use]
    pub fn control_text_in(&self, text: &str) -> Option<&str> {
        match &self.inner {
            Inner::Native(native) => native.control_text_in(text),
            Inner::Json(json) => json.control_text_in(text),
        }
    }

    /// The text of a whole sequence of ids; the space that the tokenizer adds in front of a text
    /// is taken off. Bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// If an id is not in the vocabulary.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TextError> {
        if let Inner::Json(json) = &self.inner {
            return json.decode(ids, skip_special);
        }
        let mut detokenizer = Detokenizer::whole(self, skip_special);
        let mut text = String::new();
        for &id in ids {
            text.push_str(&detokenizer.push(id)?);
        }
        text.push_str(&detokenizer.finish());
        Ok(text)
    }

    /// The bytes that a token adds to the text (they need not be whole characters); for a control
    /// token its name. `None` if there is no such id.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        match &self.inner {
            Inner::Native(native) => native.token_bytes(id),
            Inner::Json(json) => json.token_bytes(id).map(Cow::Borrowed),
        }
    }

    /// The token as the vocabulary spells it.
    #[must_use]
    pub fn token_text(&self, id: u32) -> Option<&str> {
        match &self.inner {
            Inner::Native(native) => native.token_text(id),
            Inner::Json(json) => json.token_text(id),
        }
    }

    /// The id of the token that the vocabulary spells so.
    #[must_use]
    pub fn id_of(&self, token: &str) -> Option<u32> {
        match &self.inner {
            Inner::Native(native) => native.id_of(token),
            Inner::Json(json) => json.id_of(token),
        }
    }

    /// True for tokens that are no text: BOS, end of turn, unknown.
    #[must_use]
    pub fn is_control(&self, id: u32) -> bool {
        match &self.inner {
            Inner::Native(native) => native.is_control(id),
            Inner::Json(json) => json.is_control(id),
        }
    }

    /// True for tokens that end an answer: EOS, end of turn, end of message.
    #[must_use]
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.end_of_generation().contains(&id)
    }

    /// All tokens that end an answer, in order.
    #[must_use]
    pub fn end_of_generation(&self) -> &[u32] {
        match &self.inner {
            Inner::Native(native) => native.end_of_generation(),
            Inner::Json(json) => json.end_of_generation(),
        }
    }

    /// Number of ids, which run from 0.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        match &self.inner {
            Inner::Native(native) => native.vocab_size(),
            Inner::Json(json) => json.vocab_size(),
        }
    }

    /// The beginning-of-sequence token.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        match &self.inner {
            Inner::Native(native) => native.bos,
            Inner::Json(json) => json.bos,
        }
    }

    /// The end-of-sequence token.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        match &self.inner {
            Inner::Native(native) => native.eos,
            Inner::Json(json) => json.eos,
        }
    }

    /// True if a text begins with BOS by itself.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        match &self.inner {
            Inner::Native(native) => native.add_bos && native.bos.is_some(),
            Inner::Json(_) => false,
        }
    }

    /// True if the first token of a text carries a space that is not in the text.
    pub(crate) fn strips_leading_space(&self) -> bool {
        match &self.inner {
            Inner::Native(native) => native.strips_leading_space(),
            Inner::Json(json) => json.strips_leading_space(),
        }
    }
}
