//! SentencePiece `.model` files: a protobuf with pieces, their scores and kinds, and how text is
//! normalized, as a [`Vocabulary`].
//!
//! Reference: `sentencepiece_model.proto` of <https://github.com/google/sentencepiece>.

use crate::vocabulary::Around;
use crate::{StringTable, TextError, TokenType, VocabModel, Vocabulary};

/// How a family of models arranges the pieces of its file and what it puts around texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrangement {
    /// The file's own ids; BOS before a text, EOS after it, as asked.
    Plain { bos: bool, eos: bool },
    /// The file's own ids; `</s>` after each text (T5, SigLIP).
    Ended,
    /// `[CLS] a [SEP] b [SEP]`, and `[MASK]` after all pieces (DeBERTa).
    Separated,
    /// `<s> a </s></s> b </s>`, the first ids being those of fairseq, and `<mask>` after all pieces
    /// (XLM-RoBERTa).
    Fairseq,
}

/// More pieces than any vocabulary has.
const MOST: usize = 1 << 22;

#[derive(Debug, Default)]
struct Model {
    pieces: StringTable,
    scores: Vec<f32>,
    types: Vec<TokenType>,
    bpe: bool,
    byte_fallback: bool,
    unk: Option<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    charsmap: Vec<u8>,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
}

/// The vocabulary of a `.model` file.
///
/// # Errors
/// The file is damaged, or a part that the arrangement needs is missing.
pub fn sentencepiece(bytes: &[u8], arrangement: Arrangement) -> Result<Vocabulary, TextError> {
    let mut model = read(bytes)?;
    let original = model.pieces.len();
    if original == 0 {
        return Err(TextError::EmptyVocabulary);
    }
    let append = |model: &mut Model, piece: &str| {
        if !model.pieces.iter().any(|known| known == piece) {
            model.pieces.push(piece);
            model.scores.push(0.0);
            model.types.push(TokenType::Control);
        }
    };
    match arrangement {
        Arrangement::Plain { .. } | Arrangement::Ended => {}
        Arrangement::Separated => append(&mut model, "[MASK]"),
        Arrangement::Fairseq => {
            // <unk>, <s> and </s> come first in the file.
            const FIRST: [&str; 4] = ["<s>", "<pad>", "</s>", "<unk>"];
            let mut pieces: StringTable = FIRST.into_iter().collect();
            model.pieces.iter().skip(3).for_each(|piece| pieces.push(piece));
            let specials =
                [TokenType::Control, TokenType::Control, TokenType::Control, TokenType::Unknown];
            model.types.splice(..3.min(original), specials);
            model.scores.splice(..3.min(original), [0.0; 4]);
            model.pieces = pieces;
            (model.bos, model.pad, model.eos, model.unk) = (Some(0), Some(1), Some(2), Some(3));
            append(&mut model, "<mask>");
        }
    }
    let id = |piece: &str| model.pieces.iter().position(|known| known == piece).map(|i| i as u32);
    let named = |id: Option<u32>, role| id.ok_or(TextError::MissingSpecial { role });
    let (add_bos, add_eos, around) = match arrangement {
        Arrangement::Plain { bos, eos } => (bos, eos, None),
        Arrangement::Ended => {
            let end = vec![named(model.eos, "EOS")?];
            let around =
                Around { before: Vec::new(), between: end.clone(), after: end, types: false };
            (false, true, Some(around))
        }
        Arrangement::Separated => {
            let (cls, sep) = (named(id("[CLS]"), "CLS")?, named(id("[SEP]"), "SEP")?);
            let (before, after) = (vec![cls], vec![sep]);
            (false, false, Some(Around { before, between: after.clone(), after, types: true }))
        }
        Arrangement::Fairseq => {
            let around =
                Around { before: vec![0], between: vec![2, 2], after: vec![2], types: false };
            (true, true, Some(around))
        }
    };
    let kind = if model.bpe { VocabModel::SentencePiece } else { VocabModel::Unigram };
    let mask = id("[MASK]").or(id("<mask>"));
    Ok(Vocabulary {
        scores: Some(model.scores),
        types: Some(model.types),
        bos: model.bos,
        eos: model.eos,
        pad: model.pad,
        unk: model.unk,
        mask,
        add_bos: Some(add_bos),
        add_eos: Some(add_eos),
        add_space_prefix: Some(model.add_dummy_prefix),
        remove_extra_whitespaces: Some(model.remove_extra_whitespaces),
        precompiled_charsmap: Some(model.charsmap).filter(|map| !map.is_empty()),
        byte_fallback: model.byte_fallback,
        around,
        ..Vocabulary::new(kind, model.pieces)
    })
}

fn damaged(reason: &str) -> TextError {
    TextError::SentencePiece { reason: reason.to_owned() }
}

/// A field of a protobuf message.
enum Field<'a> {
    Number(u64),
    Fixed(u32),
    Bytes(&'a [u8]),
}

/// Calls `field` with each field of a message.
fn fields<'a>(
    mut bytes: &'a [u8],
    mut field: impl FnMut(u64, Field<'a>) -> Result<(), TextError>,
) -> Result<(), TextError> {
    fn varint(bytes: &mut &[u8]) -> Result<u64, TextError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = bytes.split_first().ok_or_else(|| damaged("it is cut"))?;
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(damaged("a number is too long"))
    }
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let mut take = |n: u64| -> Result<&'a [u8], TextError> {
            let n = usize::try_from(n).ok().filter(|&n| n <= bytes.len());
            let (taken, rest) = bytes.split_at(n.ok_or_else(|| damaged("it is cut"))?);
            bytes = rest;
            Ok(taken)
        };
        let value = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)?),
            1 => {
                take(8)?;
                continue;
            }
            5 => {
                let fixed = take(4)?.first_chunk::<4>().copied().unwrap_or_default();
                Field::Fixed(u32::from_le_bytes(fixed))
            }
            2 => {
                let n = varint(&mut bytes)?;
                let n = usize::try_from(n).ok().filter(|&n| n <= bytes.len());
                let (taken, rest) = bytes.split_at(n.ok_or_else(|| damaged("it is cut"))?);
                bytes = rest;
                Field::Bytes(taken)
            }
            _ => return Err(damaged("it is no protobuf")),
        };
        field(tag >> 3, value)?;
    }
    Ok(())
}

fn read(bytes: &[u8]) -> Result<Model, TextError> {
    let mut model = Model {
        add_dummy_prefix: true,
        remove_extra_whitespaces: true,
        unk: Some(0),
        bos: Some(1),
        eos: Some(2),
        ..Model::default()
    };
    let mut unsupported = None;
    fields(bytes, |number, field| {
        match (number, field) {
            (1, Field::Bytes(piece)) => {
                if model.pieces.len() >= MOST {
                    return Err(damaged("it has too many pieces"));
                }
                let (mut text, mut score, mut kind) = ("", 0.0, 1);
                fields(piece, |number, field| {
                    match (number, field) {
                        (1, Field::Bytes(bytes)) => {
                            text = std::str::from_utf8(bytes)
                                .map_err(|_| damaged("a piece is no text"))?;
                        }
                        (2, Field::Fixed(bits)) => score = f32::from_bits(bits),
                        (3, Field::Number(n)) => kind = n as i32,
                        _ => {}
                    }
                    Ok(())
                })?;
                if !score.is_finite() {
                    return Err(damaged("a score is no number"));
                }
                model.pieces.push(text);
                model.scores.push(score);
                model.types.push(TokenType::from(kind));
            }
            (2, Field::Bytes(trainer)) => fields(trainer, |number, field| {
                // A negative number, of 64 bits, is no id.
                let id = |n: u64| u32::try_from(n).ok();
                match (number, field) {
                    (3, Field::Number(kind)) => {
                        model.bpe = kind == 2;
                        if !(1..=2).contains(&kind) {
                            unsupported = Some(kind);
                        }
                    }
                    (24, Field::Number(1)) => unsupported = Some(24),
                    (35, Field::Number(n)) => model.byte_fallback = n != 0,
                    (40, Field::Number(n)) => model.unk = id(n),
                    (41, Field::Number(n)) => model.bos = id(n),
                    (42, Field::Number(n)) => model.eos = id(n),
                    (43, Field::Number(n)) => model.pad = id(n),
                    _ => {}
                }
                Ok(())
            })?,
            (3, Field::Bytes(normalizer)) => fields(normalizer, |number, field| {
                match (number, field) {
                    (2, Field::Bytes(map)) => model.charsmap = map.to_vec(),
                    (3, Field::Number(n)) => model.add_dummy_prefix = n != 0,
                    (4, Field::Number(n)) => model.remove_extra_whitespaces = n != 0,
                    (5, Field::Number(0)) => unsupported = Some(5),
                    _ => {}
                }
                Ok(())
            })?,
            _ => {}
        }
        Ok(())
    })?;
    match unsupported {
        Some(24) => {
            Err(damaged("it puts the mark of a space behind words, which is not supported"))
        }
        Some(5) => Err(damaged("it keeps spaces as they are, which is not supported")),
        Some(_) => {
            Err(damaged("it is a model of words or characters; unigram and BPE are supported"))
        }
        None => Ok(model),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_an_error() {
        let plain = Arrangement::Plain { bos: true, eos: false };
        let fails = |bytes: &[u8]| sentencepiece(bytes, plain).unwrap_err().to_string();
        assert!(fails(b"").contains("empty"));
        assert!(fails(b"\x0a\xff").contains("cut"));
        assert!(fails(b"\x0a\x7f").contains("cut"));
        assert!(fails(b"\x0f").contains("protobuf"));
        assert!(fails(&[0xff; 11]).contains("too long"));
        assert!(fails(b"\x0a\x04\x0a\x02\xc3\x28").contains("no text"));
        // A model of words.
        assert!(fails(b"\x0a\x03\x0a\x01a\x12\x02\x18\x03").contains("words"));
    }
}
