//! Tokenizers from a Hugging Face `tokenizer.json`, run by the `tokenizers` crate.

use serde_json::Value;
use tokenizers::tokenizer::normalizer::Range;
use tokenizers::tokenizer::pre_tokenizer::Split;
use tokenizers::{
    AddedToken, Encoding, Model, Normalizer, OffsetType, PostProcessor, PreTokenizedString,
    PreTokenizer, Token, Tokenizer as HfTokenizer, TruncationParams, TruncationStrategy,
    truncate_encodings,
};

use crate::bytes::{char_to_byte, parse_byte_token};
use crate::native::END_OF_GENERATION;
use crate::special::{Reading, SpecialKind, is_markup};
use crate::spm::SPACE_MARK;
use crate::tokenizer::{Encoded, PairOptions};
use crate::{EncodeOptions, TextError};

/// What a model directory says about its tokenizer outside `tokenizer.json`
/// (`tokenizer_config.json`, `generation_config.json`, `config.json`).
#[derive(Debug, Clone, Default)]
pub struct JsonConfig {
    /// `bos_token` of `tokenizer_config.json`.
    pub bos_token: Option<String>,
    /// `eos_token` of `tokenizer_config.json`.
    pub eos_token: Option<String>,
    /// `eos_token_id` of `generation_config.json` or `config.json`: one or many.
    pub eos_ids: Vec<u32>,
}

/// How tokens spell bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// The GPT-2 alphabet.
    ByteLevel,
    /// `▁` for a space, `<0xXX>` for a byte.
    SentencePiece,
    /// `##` before pieces that continue a word.
    WordPiece,
    /// As they are.
    Literal,
}

#[derive(Debug)]
struct Added {
    id: u32,
    token: AddedToken,
    kind: SpecialKind,
}

#[derive(Debug)]
pub(crate) struct JsonTokenizer {
    tokenizer: HfTokenizer,
    /// Added tokens, the longest first.
    added: Vec<Added>,
    texts: Vec<Option<String>>,
    bytes: Vec<Vec<u8>>,
    spelling: Spelling,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    end_of_generation: Vec<u32>,
}

/// Reads the file. The `tokenizers` crate panics on some faults of a map of characters.
fn parsed(json: &[u8]) -> Result<HfTokenizer, TextError> {
    match std::panic::catch_unwind(|| HfTokenizer::from_bytes(json)) {
        Ok(result) => result.map_err(|error| TextError::Json { reason: error.to_string() }),
        Err(_) => Err(TextError::Json { reason: "a normalizer is damaged".to_owned() }),
    }
}

/// The file without normalizers whose map of characters is empty, which the `tokenizers` crate
/// refuses: SentencePiece writes one for a model that normalizes nothing. `None` if it has none.
fn without_empty_maps(json: &[u8]) -> Option<Vec<u8>> {
    const MAP: &[u8] = b"precompiled_charsmap";
    if !json.windows(MAP.len()).any(|window| window == MAP) {
        return None;
    }
    let empty = |part: &Value| {
        part["type"] == "Precompiled" && part["precompiled_charsmap"].as_str() == Some("")
    };
    let mut file: Value = serde_json::from_slice(json).ok()?;
    let normalizer = file.get_mut("normalizer")?;
    if empty(normalizer) {
        *normalizer = Value::Null;
    } else {
        let parts = normalizer.get_mut("normalizers")?.as_array_mut()?;
        let all = parts.len();
        parts.retain(|part| !empty(part));
        if parts.len() == all {
            return None;
        }
    }
    serde_json::to_vec(&file).ok()
}

/// More ids than any vocabulary has; a larger id in a file is a fault.
const MAX_IDS: usize = 1 << 22;

impl JsonTokenizer {
    pub(crate) fn new(json: &[u8], config: JsonConfig) -> Result<Self, TextError> {
        let mut tokenizer = parsed(without_empty_maps(json).as_deref().unwrap_or(json))?;
        // Lengths are the caller's business; a file that asks for truncation would lose text.
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(None)
            .map_err(|error| TextError::Json { reason: error.to_string() })?;
        let vocabulary = tokenizer.get_vocab(true);
        if vocabulary.is_empty() {
            return Err(TextError::EmptyVocabulary);
        }
        let size = vocabulary.values().max().map_or(0, |&last| last as usize + 1);
        if size > MAX_IDS {
            return Err(TextError::Json { reason: format!("a token has the id {}", size - 1) });
        }
        let mut texts = vec![None; size];
        for (text, id) in vocabulary {
            texts[id as usize] = Some(text);
        }
        let mut added: Vec<Added> = tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .map(|(id, token)| {
                let kind = match (token.special, is_markup(&token.content)) {
                    (true, _) => SpecialKind::Control,
                    (false, true) => SpecialKind::Markup,
                    (false, false) => SpecialKind::Plain,
                };
                Added { id, token, kind }
            })
            .filter(|added| !added.token.content.is_empty())
            .collect();
        added.sort_by_key(|added| (std::cmp::Reverse(added.token.content.len()), added.id));
        let spelling = spelling(&tokenizer);
        let is_added = |id: u32| added.iter().any(|added| added.id == id);
        let added_ids: Vec<bool> = (0..size as u32).map(is_added).collect();
        let bytes = texts.iter().zip(added_ids).map(|(text, added)| match text {
            Some(text) if added => text.clone().into_bytes(),
            Some(text) => spelled_bytes(text, spelling),
            None => Vec::new(),
        });
        let bytes = bytes.collect();

        let named = |name: &Option<String>, role: &'static str| match name {
            None => Ok(None),
            Some(name) => match tokenizer.token_to_id(name) {
                Some(id) => Ok(Some(id)),
                None => Err(TextError::Json {
                    reason: format!("the {role} token {name:?} is not in the vocabulary"),
                }),
            },
        };
        let (bos, eos) = (named(&config.bos_token, "bos")?, named(&config.eos_token, "eos")?);
        for &id in &config.eos_ids {
            if id as usize >= size {
                return Err(TextError::IdOutOfRange { role: "eos", id, size });
            }
        }
        let mut end_of_generation = config.eos_ids;
        end_of_generation.extend(eos);
        // Without a word from the model's own configuration the names have to do.
        if end_of_generation.is_empty() {
            let by_name = added.iter().filter(|added| added.kind == SpecialKind::Control);
            let ends = by_name.filter(|a| END_OF_GENERATION.contains(&a.token.content.as_str()));
            end_of_generation.extend(ends.map(|added| added.id));
        }
        end_of_generation.sort_unstable();
        end_of_generation.dedup();
        Ok(Self { tokenizer, added, texts, bytes, spelling, bos, eos, end_of_generation })
    }

    pub(crate) fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TextError> {
        let encoding = self.plain(text, options.parse_special, OffsetType::None)?;
        if !options.add_special {
            return Ok(encoding.get_ids().to_vec());
        }
        let encoding = self.tokenizer.post_process(encoding, None, true).map_err(failed)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// A text, or a pair of texts, with the special tokens and token types of the model.
    pub(crate) fn encode_pair(
        &self,
        text: &str,
        pair: Option<&str>,
        options: PairOptions,
    ) -> Result<Encoded, TextError> {
        let encode = |text| self.plain(text, options.parse_special, OffsetType::Char);
        let (mut first, mut second) = (encode(text)?, pair.map(encode).transpose()?);
        let processor = self.tokenizer.get_post_processor();
        let added = processor.map_or(0, |p| p.added_tokens(pair.is_some()));
        let n_tokens = first.len() + second.as_ref().map_or(0, |s| s.len()) + added;
        if let Some(limit) = options.truncate_to.filter(|&limit| n_tokens > limit) {
            let params = TruncationParams {
                max_length: limit.saturating_sub(added),
                strategy: TruncationStrategy::LongestFirst,
                ..TruncationParams::default()
            };
            (first, second) = truncate_encodings(first, second, &params).map_err(failed)?;
        }
        let encoding = self.tokenizer.post_process(first, second, true).map_err(failed)?;
        Ok(Encoded {
            ids: encoding.get_ids().to_vec(),
            types: encoding.get_type_ids().to_vec(),
            special: encoding.get_special_tokens_mask().iter().map(|&m| m != 0).collect(),
            spans: encoding.get_offsets().iter().map(|&(start, end)| start..end).collect(),
            n_tokens,
        })
    }

    /// A text without added special tokens.
    fn plain(
        &self,
        text: &str,
        parse_special: bool,
        offsets: OffsetType,
    ) -> Result<Encoding, TextError> {
        if parse_special || self.find(text, 0, Reading::Structural).is_none() {
            return match offsets {
                OffsetType::None => self.tokenizer.encode_fast(text, false),
                OffsetType::Char | OffsetType::Byte => {
                    self.tokenizer.encode_char_offsets(text, false)
                }
            }
            .map_err(failed);
        }
        self.encode_readings(std::iter::once((text, Reading::UserDefined)), offsets)
    }

    /// See [`crate::native::NativeTokenizer::encode_segments`].
    pub(crate) fn encode_segments<'s>(
        &self,
        segments: impl Iterator<Item = (&'s str, Reading)>,
    ) -> Result<Vec<u32>, TextError> {
        Ok(self.encode_readings(segments, OffsetType::None)?.get_ids().to_vec())
    }

    fn encode_readings<'s>(
        &self,
        segments: impl Iterator<Item = (&'s str, Reading)>,
        offsets: OffsetType,
    ) -> Result<Encoding, TextError> {
        // Plain added tokens are read everywhere; they are found on the joined text below.
        let mut text = String::new();
        let mut found: Vec<(std::ops::Range<usize>, u32)> = Vec::new();
        for (segment, reading) in segments {
            let offset = text.len();
            let mut from = 0;
            while let Some((range, id)) = self.find(segment, from, reading) {
                from = range.end;
                found.push((offset + range.start..offset + range.end, id));
            }
            text.push_str(segment);
        }
        let mut pieces: Vec<(std::ops::Range<usize>, Option<u32>)> = Vec::new();
        let mut from = 0;
        let end = text.len()..text.len();
        for (range, id) in found.into_iter().map(|(r, id)| (r, Some(id))).chain([(end, None)]) {
            let stretch = &text[..range.start];
            while let Some((plain, id)) = self.find(stretch, from, Reading::Content) {
                pieces.push((from..plain.start, None));
                from = plain.end;
                pieces.push((plain, Some(id)));
            }
            pieces.push((from..range.start, None));
            from = range.end;
            if id.is_some() {
                pieces.push((range, id));
            }
        }
        pieces.retain(|(range, _)| !range.is_empty());

        let mut words = PreTokenizedString::from(text.as_str());
        words
            .split(|_, whole| {
                let split = pieces.iter().filter_map(|(range, id)| {
                    let piece = whole.slice(Range::Original(range.clone()))?;
                    let value = text[range.clone()].to_owned();
                    let tokens = id.map(|id| vec![Token::new(id, value, (0, range.len()))]);
                    Some(Split::from((piece, tokens)))
                });
                Ok(split.collect::<Vec<_>>())
            })
            .map_err(failed)?;
        if let Some(normalizer) = self.tokenizer.get_normalizer() {
            words.normalize(|piece| normalizer.normalize(piece)).map_err(failed)?;
        }
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut words).map_err(failed)?;
        }
        let model = self.tokenizer.get_model();
        words.tokenize(|piece| model.tokenize(piece.get())).map_err(failed)?;
        words.into_encoding(None, 0, offsets).map_err(failed)
    }

    /// The first added token at or after byte `from`, with the spaces that its flags absorb.
    fn find(
        &self,
        text: &str,
        from: usize,
        reading: Reading,
    ) -> Option<(std::ops::Range<usize>, u32)> {
        let mut best: Option<(std::ops::Range<usize>, &Added)> = None;
        for added in self.added.iter().filter(|added| reading.takes(added.kind)) {
            let limit = best.as_ref().map_or(text.len(), |(best, _)| {
                text.len().min(best.start + added.token.content.len())
            });
            let content = added.token.content.as_str();
            let limit = text.floor_char_boundary(limit);
            let at = text.get(from..limit).and_then(|window| window.find(content));
            if let Some(start) = at.map(|at| from + at) {
                let range = start..start + content.len();
                // Longest first, so that only an earlier start beats what is there.
                if best.as_ref().is_none_or(|(best, _)| range.start < best.start) {
                    best = Some((range, added));
                }
            }
        }
        let (mut range, added) = best?;
        if added.token.lstrip {
            range.start = from + text[from..range.start].trim_end().len();
        }
        if added.token.rstrip {
            range.end = text.len() - text[range.end..].trim_start().len();
        }
        Some((range, added.id))
    }

    pub(crate) fn control_text_in(&self, text: &str) -> Option<&str> {
        let (_, id) = self.find(text, 0, Reading::Structural)?;
        self.token_text(id)
    }

    pub(crate) fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TextError> {
        let size = self.texts.len();
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= size) {
            return Err(TextError::UnknownId { id, size });
        }
        self.tokenizer.decode(ids, skip_special).map_err(failed)
    }

    pub(crate) fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id as usize).map(Vec::as_slice)
    }

    pub(crate) fn token_text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize)?.as_deref()
    }

    pub(crate) fn id_of(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    pub(crate) fn is_control(&self, id: u32) -> bool {
        self.added.iter().any(|added| added.id == id && added.kind == SpecialKind::Control)
    }

    pub(crate) fn end_of_generation(&self) -> &[u32] {
        &self.end_of_generation
    }

    pub(crate) fn vocab_size(&self) -> usize {
        self.texts.len()
    }

    pub(crate) fn strips_leading_space(&self) -> bool {
        matches!(self.spelling, Spelling::SentencePiece | Spelling::WordPiece)
    }
}

fn failed(error: tokenizers::Error) -> TextError {
    TextError::Encode { reason: error.to_string() }
}

/// Read from the decoder, which is the part of the file that undoes the spelling.
fn spelling(tokenizer: &HfTokenizer) -> Spelling {
    let decoder = serde_json::to_string(&tokenizer.get_decoder()).unwrap_or_default();
    if decoder.contains("\"ByteLevel\"") {
        Spelling::ByteLevel
    } else if decoder.contains("\"WordPiece\"") {
        Spelling::WordPiece
    } else if decoder.contains("\"Metaspace\"") || decoder.contains(SPACE_MARK) {
        Spelling::SentencePiece
    } else {
        Spelling::Literal
    }
}

fn spelled_bytes(text: &str, spelling: Spelling) -> Vec<u8> {
    match spelling {
        Spelling::ByteLevel => {
            let bytes = text.chars().map(char_to_byte).collect::<Option<Vec<u8>>>();
            bytes.unwrap_or_else(|| text.as_bytes().to_vec())
        }
        Spelling::SentencePiece => match parse_byte_token(text) {
            Some(byte) => vec![byte],
            None => text.replace(SPACE_MARK, " ").into_bytes(),
        },
        Spelling::WordPiece => match text.strip_prefix("##") {
            Some(rest) => rest.as_bytes().to_vec(),
            None => format!(" {text}").into_bytes(),
        },
        Spelling::Literal => text.as_bytes().to_vec(),
    }
}
