//! Tokenizers that are lists of tokens, as directories had them before `tokenizer.json`: BERT's
//! `vocab.txt`, and `vocab.json` with `merges.txt` of RoBERTa and CLIP.
//!
//! What the list does not say (how texts are cut, what is put around them) is what the model
//! family's own tokenizer of Hugging Face transformers does. The result is the `tokenizer.json` that
//! transformers would write, so that there is one reader.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::TextError;

/// How a family reads texts with `vocab.txt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WordPieceList {
    pub lowercase: bool,
    /// Whether accents are taken off; as `lowercase` when not said.
    pub strip_accents: Option<bool>,
    /// Whether each Chinese character is a word.
    pub chinese_chars: bool,
    pub names: SpecialNames,
    /// Whether the second of a pair has token type 1, and one separator before it; else two.
    pub typed: bool,
}

/// How a family reads texts with `vocab.json` and `merges.txt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeList {
    /// Bytes as GPT-2 writes them; a space belongs to the word behind it.
    Roberta { add_prefix_space: bool },
    /// Lower-cased words that end with `</w>`.
    Clip,
}

/// Texts of the special tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialNames {
    pub unk: String,
    pub pad: String,
    /// Before a text.
    pub cls: String,
    /// Behind a text.
    pub sep: String,
    pub mask: Option<String>,
}

impl SpecialNames {
    fn all(&self) -> impl Iterator<Item = &str> {
        let names = [&self.unk, &self.pad, &self.cls, &self.sep];
        let mut seen: Vec<&str> = Vec::new();
        for name in names.into_iter().chain(&self.mask) {
            if !seen.contains(&name.as_str()) {
                seen.push(name);
            }
        }
        seen.into_iter()
    }

    /// Entries of `added_tokens` of those that the vocabulary has.
    fn added(&self, vocab: &BTreeMap<String, u32>) -> Vec<Value> {
        let mut entries: Vec<(u32, Value)> = self
            .all()
            .filter_map(|name| {
                let id = *vocab.get(name)?;
                // A gap that is to be filled takes the space before it with it.
                let lstrip = Some(name) == self.mask.as_deref() && name == "<mask>";
                let entry = json!({
                    "id": id, "content": name, "single_word": false, "lstrip": lstrip,
                    "rstrip": false, "normalized": false, "special": true,
                });
                Some((id, entry))
            })
            .collect();
        entries.sort_by_key(|(id, _)| *id);
        entries.into_iter().map(|(_, entry)| entry).collect()
    }

    fn id(&self, vocab: &BTreeMap<String, u32>, name: &str) -> Result<u32, TextError> {
        let missing = || TextError::Json {
            reason: format!("the vocabulary has no {name:?}, which is put around texts"),
        };
        vocab.get(name).copied().ok_or_else(missing)
    }
}

/// The `tokenizer.json` of a `vocab.txt`, a token a line.
///
/// # Errors
/// It is no UTF-8, or lacks a token that is put around texts.
pub fn wordpiece_json(vocab: &[u8], list: &WordPieceList) -> Result<Vec<u8>, TextError> {
    let text = std::str::from_utf8(vocab)
        .map_err(|error| TextError::Json { reason: format!("vocab.txt is no UTF-8: {error}") })?;
    // A line may end with any kind of white space but keeps what it begins with.
    let lines = text.strip_suffix('\n').unwrap_or(text).split('\n');
    let vocab: BTreeMap<String, u32> =
        lines.map(|line| line.trim_end_matches('\r').to_owned()).zip(0..).collect();
    let WordPieceList { names, typed, .. } = list;
    let (cls, sep) = (&names.cls, &names.sep);
    let (cls_id, sep_id) = (names.id(&vocab, cls)?, names.id(&vocab, sep)?);
    names.id(&vocab, &names.unk)?;
    let token = |name: &str, kind: u32| json!({ "SpecialToken": { "id": name, "type_id": kind } });
    let part = |name: &str, kind: u32| json!({ "Sequence": { "id": name, "type_id": kind } });
    let single = vec![token(cls, 0), part("A", 0), token(sep, 0)];
    let mut pair = single.clone();
    let kind = u32::from(*typed);
    if !typed {
        pair.push(token(sep, 0));
    }
    pair.extend([part("B", kind), token(sep, kind)]);
    let entry = |name: &str, id: u32| json!({ "id": name, "ids": [id], "tokens": [name] });
    write(&json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": names.added(&vocab),
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true,
            "handle_chinese_chars": list.chinese_chars,
            "strip_accents": list.strip_accents, "lowercase": list.lowercase,
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": {
            "type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": { cls.as_str(): entry(cls, cls_id), sep.as_str(): entry(sep, sep_id) },
        },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": {
            "type": "WordPiece", "unk_token": names.unk, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab,
        },
    }))
}

/// The `tokenizer.json` of a `vocab.json` and a `merges.txt`.
///
/// # Errors
/// They are not what their names say, or lack a token that is put around texts.
pub fn merges_json(
    vocab: &[u8],
    merges: &[u8],
    names: &SpecialNames,
    list: MergeList,
) -> Result<Vec<u8>, TextError> {
    let vocab: BTreeMap<String, u32> = serde_json::from_slice(vocab)
        .map_err(|error| TextError::Json { reason: format!("vocab.json: {error}") })?;
    let text = std::str::from_utf8(merges)
        .map_err(|error| TextError::Json { reason: format!("merges.txt is no UTF-8: {error}") })?;
    let merges = text
        .lines()
        .enumerate()
        .filter(|(number, line)| !(line.is_empty() || *number == 0 && line.starts_with("#version")))
        .map(|(number, line)| match line.split_once(' ') {
            Some((a, b)) if !a.is_empty() && !b.is_empty() && !b.contains(' ') => Ok(json!([a, b])),
            _ => Err(TextError::Json {
                reason: format!("merges.txt line {}: two tokens are expected", number + 1),
            }),
        })
        .collect::<Result<Vec<Value>, TextError>>()?;
    let (cls, sep) = (&names.cls, &names.sep);
    let around = |add_prefix_space: bool, trim_offsets: bool| -> Result<Value, TextError> {
        Ok(json!({
            "type": "RobertaProcessing", "sep": [sep, names.id(&vocab, sep)?],
            "cls": [cls, names.id(&vocab, cls)?], "trim_offsets": trim_offsets,
            "add_prefix_space": add_prefix_space,
        }))
    };
    let bytes = |add_prefix_space: bool| {
        json!({
            "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true,
            "use_regex": true,
        })
    };
    let (normalizer, pre_tokenizer, post_processor, suffix, unk) = match list {
        MergeList::Roberta { add_prefix_space: space } => {
            (Value::Null, bytes(space), around(space, true)?, Value::Null, Value::Null)
        }
        MergeList::Clip => {
            let words = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";
            let special = r"<\|startoftext\|>|<\|endoftext\|>";
            let normalizer = json!({ "type": "Sequence", "normalizers": [
                { "type": "NFC" },
                { "type": "Replace", "pattern": { "Regex": r"\s+" }, "content": " " },
                { "type": "Lowercase" },
            ] });
            let pre = json!({ "type": "Sequence", "pretokenizers": [
                {
                    "type": "Split", "pattern": { "Regex": format!("{special}|{words}") },
                    "behavior": "Removed", "invert": true,
                },
                bytes(false),
            ] });
            (normalizer, pre, around(false, false)?, json!("</w>"), json!(names.unk))
        }
    };
    write(&json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": names.added(&vocab),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                     "use_regex": true },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unk, "continuing_subword_prefix":
            if suffix.is_null() { Value::Null } else { json!("") },
            "end_of_word_suffix": suffix, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocab, "merges": merges,
        },
    }))
}

fn write(file: &Value) -> Result<Vec<u8>, TextError> {
    serde_json::to_vec(file).map_err(|error| TextError::Json { reason: error.to_string() })
}
