//! Tokenizers built from the metadata of a GGUF file.
//!
//! These do not go through the `tokenizers` crate, whose maps of owned strings cost more than the
//! rest of the start of a small model (measured numbers are in `docs/text.md`). Ids are tested for
//! equality with it and with llama.cpp.

use std::borrow::Cow;

use crate::bpe::BpeModel;
use crate::bytes::{char_to_byte, parse_byte_token};
use crate::pretokenize::{PreTokenizer, PreTokenizerSpec};
use crate::special::{Reading, SpecialKind, SpecialTokens, is_markup};
use crate::spm::{ByteTokens, SPACE_MARK, SpmModel};
use crate::token_map::TokenMap;
use crate::tokenizer::{Encoded, PairOptions};
use crate::unigram::{SpmNormalizer, UnigramModel};
use crate::vocabulary::Around;
use crate::wordpiece::WordPieceModel;
use crate::{TextError, TokenType, VocabModel, Vocabulary};

#[derive(Debug)]
enum Model {
    Bpe {
        words: PreTokenizer,
        bpe: BpeModel,
        spm_spaces: bool,
    },
    /// With what is done to the text before, where that is more than marking spaces.
    SentencePiece(SpmModel, Option<SpmNormalizer>),
    WordPiece(WordPieceModel),
    Unigram(UnigramModel),
}

#[derive(Debug)]
pub(crate) struct NativeTokenizer {
    tokens: TokenMap,
    types: Vec<TokenType>,
    special: SpecialTokens,
    model: Model,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    sep: Option<u32>,
    pub(crate) add_bos: bool,
    add_eos: bool,
    add_sep: bool,
    add_space_prefix: bool,
    around: Option<Around>,
    end_of_generation: Vec<u32>,
}

/// Tokens that end an answer by their name; models often declare only one of several.
pub(crate) const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// What a model assumes where the file is silent.
struct Defaults {
    bos: Option<u32>,
    eos: Option<u32>,
    unk: Option<u32>,
    sep: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    add_sep: bool,
    add_space_prefix: bool,
}

impl Defaults {
    fn of(model: VocabModel, pre: Option<&PreTokenizerSpec>) -> Self {
        let none = Self {
            bos: None,
            eos: None,
            unk: None,
            sep: None,
            add_bos: pre.is_some_and(|pre| pre.add_bos),
            add_eos: false,
            add_sep: pre.is_some_and(|pre| pre.add_sep),
            add_space_prefix: false,
        };
        match model {
            VocabModel::Bpe | VocabModel::SpmBpe => none,
            VocabModel::SentencePiece => Self {
                bos: Some(1),
                eos: Some(2),
                unk: Some(0),
                add_bos: true,
                add_space_prefix: true,
                ..none
            },
            VocabModel::WordPiece => Self {
                bos: Some(101),
                unk: Some(100),
                sep: Some(102),
                add_bos: true,
                add_sep: true,
                ..none
            },
            VocabModel::Unigram => {
                Self { eos: Some(1), unk: Some(2), add_eos: true, add_space_prefix: true, ..none }
            }
        }
    }
}

impl NativeTokenizer {
    pub(crate) fn new(mut vocabulary: Vocabulary) -> Result<Self, TextError> {
        let size = vocabulary.tokens.len();
        if size == 0 {
            return Err(TextError::EmptyVocabulary);
        }
        check_lengths(&vocabulary)?;
        check_ids(&vocabulary)?;
        let pre = match vocabulary.model {
            VocabModel::Bpe => Some(PreTokenizerSpec::from_name(vocabulary.pre.as_deref())?),
            VocabModel::SpmBpe => Some(PreTokenizerSpec::from_name(Some("gemma4"))?),
            _ => None,
        };
        let defaults = Defaults::of(vocabulary.model, pre);
        let in_range = |id: Option<u32>| id.filter(|&id| (id as usize) < size);
        // A BERT file names its first token CLS; it plays the part of BOS.
        let bos = vocabulary.bos.or(vocabulary.cls).or(in_range(defaults.bos));
        let eos = vocabulary.eos.or(in_range(defaults.eos));
        let unk = vocabulary.unk.or(in_range(defaults.unk));
        let sep = vocabulary.sep.or(in_range(defaults.sep));
        let add_bos = vocabulary.add_bos.unwrap_or(defaults.add_bos);
        let add_eos = vocabulary.add_eos.unwrap_or(defaults.add_eos);
        let add_sep = vocabulary.add_sep.unwrap_or(defaults.add_sep);
        for (wanted, id, role) in
            [(add_bos, bos, "BOS"), (add_eos, eos, "EOS"), (add_sep, sep, "SEP")]
        {
            if wanted && id.is_none() {
                return Err(TextError::MissingSpecial { role });
            }
        }

        let mut types = vocabulary.types.take().unwrap_or_else(|| vec![TokenType::Normal; size]);
        let tokens = TokenMap::new(std::mem::take(&mut vocabulary.tokens))?;
        let declared = [eos, vocabulary.eot, vocabulary.eom];
        let end_of_generation = mark_control_tokens(&tokens, &mut types, declared);
        let kinds = tokens.iter().zip(&types).map(|((_, text), kind)| match kind {
            TokenType::Control | TokenType::Unknown => Some(SpecialKind::Control),
            TokenType::UserDefined if vocabulary.model == VocabModel::Bpe && is_markup(text) => {
                Some(SpecialKind::Markup)
            }
            TokenType::UserDefined => Some(SpecialKind::Plain),
            TokenType::Undefined | TokenType::Normal | TokenType::Unused | TokenType::Byte => None,
        });
        let special = SpecialTokens::new(&tokens, kinds.collect());
        let model = build_model(&vocabulary, pre, &tokens, &types, unk)?;
        Ok(Self {
            tokens,
            types,
            special,
            model,
            bos,
            eos,
            sep,
            add_bos,
            add_eos,
            add_sep,
            add_space_prefix: vocabulary.add_space_prefix.unwrap_or(defaults.add_space_prefix),
            around: vocabulary.around,
            end_of_generation,
        })
    }

    pub(crate) fn encode(
        &self,
        text: &str,
        reading: Reading,
        add_special: bool,
    ) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 4);
        if let (Some(around), true) = (&self.around, add_special) {
            ids.extend(&around.before);
            Encoder::new(self).run(text, reading, &mut ids)?;
            ids.extend(&around.after);
            return Ok(ids);
        }
        if add_special {
            ids.extend(self.bos.filter(|_| self.add_bos));
        }
        let mut encoder = Encoder::new(self);
        encoder.run(text, reading, &mut ids)?;
        if add_special {
            ids.extend(self.eos.filter(|_| self.add_eos));
            ids.extend(self.sep.filter(|_| self.add_sep));
        }
        Ok(ids)
    }

    /// A text or a pair with what is put around them; `None` where pairs are not known.
    ///
    /// # Errors
    /// As [`NativeTokenizer::encode`].
    pub(crate) fn encode_pair(
        &self,
        text: &str,
        pair: Option<&str>,
        options: PairOptions,
    ) -> Result<Option<Encoded>, TextError> {
        let Some(around) = &self.around else { return Ok(None) };
        let reading = if options.parse_special { Reading::All } else { Reading::UserDefined };
        let mut first = self.encode(text, reading, false)?;
        let mut second = pair.map(|pair| self.encode(pair, reading, false)).transpose()?;
        let between = second.as_ref().map_or(0, |_| around.between.len());
        let added = around.before.len() + between + around.after.len();
        let n_tokens = first.len() + second.as_ref().map_or(0, Vec::len) + added;
        if let Some(limit) = options.truncate_to.filter(|&limit| n_tokens > limit) {
            let room = limit.saturating_sub(added);
            let lengths = [first.len(), second.as_ref().map_or(0, Vec::len)];
            let [a, b] = longest_first(lengths, room);
            first.truncate(a);
            second.iter_mut().for_each(|second| second.truncate(b));
        }
        let mut encoded = Encoded { n_tokens, ..Encoded::default() };
        let mut add = |ids: &[u32], kind: u32, special: bool| {
            encoded.ids.extend(ids);
            encoded.types.resize(encoded.ids.len(), kind);
            encoded.special.resize(encoded.ids.len(), special);
            encoded.spans.resize(encoded.ids.len(), 0..0);
        };
        add(&around.before, 0, true);
        add(&first, 0, false);
        let mut kind = 0;
        if let Some(second) = &second {
            add(&around.between, 0, true);
            kind = u32::from(around.types);
            add(second, kind, false);
        }
        add(&around.after, kind, true);
        Ok(Some(encoded))
    }

    /// Tokens of a text of which only some stretches are from a template. Control tokens and
    /// markup are read there only; what is between them is encoded as one text, so that the
    /// borders of the stretches leave no trace.
    pub(crate) fn encode_segments<'s>(
        &self,
        segments: impl Iterator<Item = (&'s str, Reading)>,
    ) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        let mut encoder = Encoder::new(self);
        let mut text = String::new();
        for (segment, reading) in segments {
            let mut from = 0;
            for found in self.special.find_all(&self.tokens, segment, reading) {
                text.push_str(&segment[from..found.range.start]);
                encoder.run(&text, Reading::Content, &mut ids)?;
                text.clear();
                ids.push(found.id);
                encoder.after_special = true;
                from = found.range.end;
            }
            text.push_str(&segment[from..]);
        }
        encoder.run(&text, Reading::Content, &mut ids)?;
        Ok(ids)
    }

    /// Names of the control tokens and markup in `text`.
    pub(crate) fn control_text_in(&self, text: &str) -> Option<&str> {
        let found = self.special.find(&self.tokens, text, 0, Reading::Structural)?;
        self.tokens.text(found.id)
    }

    pub(crate) fn vocab_size(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn id_of(&self, token: &str) -> Option<u32> {
        self.tokens.get(token)
    }

    pub(crate) fn token_text(&self, id: u32) -> Option<&str> {
        self.tokens.text(id)
    }

    pub(crate) fn is_control(&self, id: u32) -> bool {
        let kind = self.types.get(id as usize);
        kind.is_some_and(|kind| matches!(kind, TokenType::Control | TokenType::Unknown))
    }

    pub(crate) fn end_of_generation(&self) -> &[u32] {
        &self.end_of_generation
    }

    pub(crate) fn strips_leading_space(&self) -> bool {
        self.add_space_prefix || matches!(self.model, Model::WordPiece(_))
    }

    pub(crate) fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        let text = self.tokens.text(id)?;
        let bytes = match self.types[id as usize] {
            TokenType::Control | TokenType::Unknown | TokenType::UserDefined => {
                Cow::Borrowed(text.as_bytes())
            }
            TokenType::Byte => match parse_byte_token(text) {
                Some(byte) => Cow::Owned(vec![byte]),
                None => Cow::Borrowed(text.as_bytes()),
            },
            TokenType::Unused | TokenType::Undefined => Cow::Borrowed(&[][..]),
            TokenType::Normal => match &self.model {
                Model::Bpe { spm_spaces: false, .. } => Cow::Owned(decode_byte_level(text)),
                _ if text.contains(SPACE_MARK) => {
                    Cow::Owned(text.replace(SPACE_MARK, " ").into_bytes())
                }
                _ => Cow::Borrowed(text.as_bytes()),
            },
        };
        Some(bytes)
    }
}

/// Encodes the plain stretches of one text.
struct Encoder<'t> {
    tokenizer: &'t NativeTokenizer,
    /// At the start of the text or right after a special token: where a space is put in front.
    after_special: bool,
    ends: Vec<usize>,
    scratch: String,
}

impl<'t> Encoder<'t> {
    fn new(tokenizer: &'t NativeTokenizer) -> Self {
        Self { tokenizer, after_special: true, ends: Vec::new(), scratch: String::new() }
    }

    fn run(&mut self, text: &str, reading: Reading, ids: &mut Vec<u32>) -> Result<(), TextError> {
        let Self { tokenizer, .. } = *self;
        let mut from = 0;
        while from < text.len() {
            let found = tokenizer.special.find(&tokenizer.tokens, text, from, reading);
            let end = found.as_ref().map_or(text.len(), |found| found.range.start);
            if from < end {
                self.plain(&text[from..end], ids)?;
                self.after_special = false;
            }
            from = text.len();
            if let Some(found) = found {
                ids.push(found.id);
                self.after_special = true;
                from = found.range.end;
            }
        }
        Ok(())
    }

    fn plain(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        let Self { tokenizer, after_special, .. } = *self;
        let tokens = &tokenizer.tokens;
        let prefix = tokenizer.add_space_prefix && after_special;
        match &tokenizer.model {
            Model::Bpe { words, bpe, spm_spaces } => {
                let text =
                    if *spm_spaces { mark_spaces(text, prefix) } else { Cow::Borrowed(text) };
                words.split(&text, &mut self.ends)?;
                let mut start = 0;
                for &end in &self.ends {
                    bpe.encode_word(tokens, &text[start..end], &mut self.scratch, ids)?;
                    start = end;
                }
                Ok(())
            }
            Model::SentencePiece(spm, None) => spm.encode(tokens, &mark_spaces(text, prefix), ids),
            Model::SentencePiece(spm, Some(normalizer)) => {
                spm.encode(tokens, &normalizer.apply(text, prefix)?, ids)
            }
            Model::WordPiece(model) => model.encode(tokens, text, ids),
            Model::Unigram(model) => model.encode(tokens, text, prefix, ids),
        }
    }
}

/// Lengths of a text and its pair that fit into `room`: the longer one is cut first.
fn longest_first([a, b]: [usize; 2], room: usize) -> [usize; 2] {
    let (short, long) = (a.min(b), a.max(b));
    let (short, long) = match short > room / 2 {
        true => (room / 2, room - room / 2),
        false => (short, long.min(room - short)),
    };
    if a <= b { [short, long] } else { [long, short] }
}

/// Spaces as SentencePiece writes them, one more in front if `prefix`.
fn mark_spaces(text: &str, prefix: bool) -> Cow<'_, str> {
    if !prefix && !text.contains(' ') {
        return Cow::Borrowed(text);
    }
    let mut marked = String::with_capacity(text.len() + text.len() / 3 + SPACE_MARK.len_utf8());
    if prefix {
        marked.push(SPACE_MARK);
    }
    for part in text.split_inclusive(' ') {
        match part.strip_suffix(' ') {
            Some(part) => {
                marked.push_str(part);
                marked.push(SPACE_MARK);
            }
            None => marked.push_str(part),
        }
    }
    Cow::Owned(marked)
}

/// Bytes of a token in the GPT-2 alphabet; characters outside the alphabet stand for themselves.
fn decode_byte_level(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match char_to_byte(character) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend(character.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    bytes
}

fn check_lengths(vocabulary: &Vocabulary) -> Result<(), TextError> {
    let tokens = vocabulary.tokens.len();
    let counts = [
        ("scores", vocabulary.scores.as_ref().map(Vec::len)),
        ("token types", vocabulary.types.as_ref().map(Vec::len)),
    ];
    for (what, count) in counts {
        if let Some(count) = count.filter(|&count| count != tokens) {
            return Err(TextError::LengthMismatch { what, count, tokens });
        }
    }
    Ok(())
}

fn check_ids(vocabulary: &Vocabulary) -> Result<(), TextError> {
    let size = vocabulary.tokens.len();
    let ids = [
        ("bos", vocabulary.bos),
        ("eos", vocabulary.eos),
        ("eot", vocabulary.eot),
        ("eom", vocabulary.eom),
        ("unknown", vocabulary.unk),
        ("separator", vocabulary.sep),
        ("padding", vocabulary.pad),
        ("cls", vocabulary.cls),
        ("mask", vocabulary.mask),
    ];
    for (role, id) in ids {
        if let Some(id) = id.filter(|&id| id as usize >= size) {
            return Err(TextError::IdOutOfRange { role, id, size });
        }
    }
    Ok(())
}

/// Finds the tokens that end generation and makes them control tokens, which some files forget.
fn mark_control_tokens(
    tokens: &TokenMap,
    types: &mut [TokenType],
    declared: [Option<u32>; 3],
) -> Vec<u32> {
    let mut ends: Vec<u32> = END_OF_GENERATION.iter().filter_map(|name| tokens.get(name)).collect();
    let has = |name: &str| tokens.get(name).is_some();
    // Harmony and its kin end a message, not the answer, with <|end|>.
    if (has("<|call|>") || has("<|calls|>")) && (has("<|return|>") || has("<|flush|>")) {
        ends.retain(|&id| tokens.text(id) != Some("<|end|>"));
    }
    // Gemma 4 has an HTML tag by this name.
    if has("<|tool_response>") {
        ends.retain(|&id| tokens.text(id) != Some("</s>"));
    }
    for &id in &ends {
        types[id as usize] = TokenType::Control;
    }
    ends.extend(declared.into_iter().flatten());
    ends.sort_unstable();
    ends.dedup();
    ends
}

fn build_model(
    vocabulary: &Vocabulary,
    pre: Option<&PreTokenizerSpec>,
    tokens: &TokenMap,
    types: &[TokenType],
    unk: Option<u32>,
) -> Result<Model, TextError> {
    let missing = |what| TextError::MissingPart { model: vocabulary.model.name(), what };
    let text_scores = |also_unused: bool| -> Result<Vec<Option<f32>>, TextError> {
        let scores = vocabulary.scores.as_ref().ok_or(missing("scores"))?;
        let scored = scores.iter().zip(types).map(|(&score, kind)| match kind {
            TokenType::Normal | TokenType::UserDefined => Some(score),
            TokenType::Unused | TokenType::Undefined => Some(score).filter(|_| also_unused),
            TokenType::Control | TokenType::Unknown | TokenType::Byte => None,
        });
        Ok(scored.collect())
    };
    match vocabulary.model {
        VocabModel::Bpe | VocabModel::SpmBpe => {
            let pre = pre.ok_or(missing("a pre-tokenizer"))?;
            if vocabulary.merges.is_empty() {
                return Err(missing("merges"));
            }
            let words = PreTokenizer::new(pre.cuts)?;
            let byte_level = !pre.spm_bpe;
            let bpe =
                BpeModel::new(tokens, &vocabulary.merges, byte_level, pre.ignore_merges, unk)?;
            Ok(Model::Bpe { words, bpe, spm_spaces: pre.spm_bpe })
        }
        VocabModel::SentencePiece => {
            let spm = SpmModel::new(text_scores(true)?, ByteTokens::new(tokens, unk));
            let charsmap = vocabulary.precompiled_charsmap.as_deref();
            let collapse = vocabulary.remove_extra_whitespaces.unwrap_or(false);
            let normalizer = match collapse || charsmap.is_some_and(|map| !map.is_empty()) {
                true => Some(SpmNormalizer::new(charsmap, collapse)?),
                false => None,
            };
            Ok(Model::SentencePiece(spm, normalizer))
        }
        VocabModel::WordPiece => {
            let unknown = unk.ok_or(missing("an unknown token"))?;
            let lowercase = vocabulary.lowercase.unwrap_or(true);
            let strip_accents = vocabulary.strip_accents.unwrap_or(lowercase);
            Ok(Model::WordPiece(WordPieceModel::new(unknown, lowercase, strip_accents)))
        }
        VocabModel::Unigram => {
            let unknown = unk.ok_or(missing("an unknown token"))?;
            let charsmap = vocabulary.precompiled_charsmap.as_deref();
            let collapse = vocabulary.remove_extra_whitespaces.unwrap_or(true);
            let normalizer = SpmNormalizer::new(charsmap, collapse)?;
            let bytes = vocabulary.byte_fallback.then(|| ByteTokens::new(tokens, unk));
            let scores = text_scores(true)?;
            Ok(Model::Unigram(UnigramModel::new(scores, types, unknown, normalizer, bytes)))
        }
    }
}
