//! What a Hugging Face directory says about text: `tokenizer.json` and the configurations beside it.

use cyb_formats::{Metadata, ModelFile, Value};
use cyb_text::{
    Arrangement, JsonConfig, MergeList, SpecialNames, SpecialTokens, Tokenizer, WordPieceList,
    merges_json, sentencepiece, wordpiece_json,
};

use crate::Error;

/// Where a special token may be named: the tokenizer's own configuration first.
const PLACES: [&str; 2] = ["tokenizer_config", "special_tokens_map"];

/// A special token, which is its text or an object with its text.
fn special(metadata: &Metadata, name: &str) -> Result<Option<String>, Error> {
    for place in PLACES {
        for key in [format!("{place}.{name}"), format!("{place}.{name}.content")] {
            if let Some(text) = metadata.opt::<&str>(&key)? {
                return Ok(Some(text.to_owned()));
            }
        }
    }
    Ok(None)
}

/// Ids of one or many tokens that end an answer: what `generation_config.json` says, else
/// `config.json`.
fn end_ids(metadata: &Metadata) -> Result<Vec<u32>, Error> {
    for key in ["generation_config.eos_token_id", "config.eos_token_id"] {
        match metadata.value(key) {
            None => {}
            Some(Value::Array(_)) => return Ok(metadata.get(key)?),
            Some(_) => return Ok(vec![metadata.get(key)?]),
        }
    }
    Ok(Vec::new())
}

/// The tokenizer of a directory.
pub(crate) fn tokenizer(model: &str, metadata: &Metadata, json: &[u8]) -> Result<Tokenizer, Error> {
    let config = JsonConfig {
        bos_token: special(metadata, "bos_token")?,
        eos_token: special(metadata, "eos_token")?,
        eos_ids: end_ids(metadata)?,
    };
    Tokenizer::from_json(json, config)
        .map_err(|problem| Error::Text { model: model.to_owned(), problem })
}

/// Names of SentencePiece files.
const PIECES: [&str; 4] =
    ["spm.model", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model"];

/// The tokenizer of a directory that has a SentencePiece file and no `tokenizer.json`; what is put
/// around texts is then what the family's own tokenizer puts there.
pub(crate) fn from_pieces(model: &str, file: &ModelFile) -> Result<Option<Tokenizer>, Error> {
    let metadata = &file.metadata;
    let Some(document) = PIECES.iter().find_map(|name| file.documents.get(*name)) else {
        return Ok(None);
    };
    let flag = |name: &str| metadata.opt::<bool>(&format!("tokenizer_config.{name}"));
    let arrangement = match metadata.opt::<&str>("config.model_type")?.unwrap_or_default() {
        "deberta-v2" => Arrangement::Separated,
        "xlm-roberta" => Arrangement::Fairseq,
        name if name == "t5" || name.starts_with("siglip") => Arrangement::Ended,
        "llama" | "mistral" | "gemma2" | "gemma3" | "gemma3_text" | "phi3" => Arrangement::Plain {
            bos: flag("add_bos_token")?.unwrap_or(true),
            eos: flag("add_eos_token")?.unwrap_or(false),
        },
        name => {
            let why = format!(
                "it is a SentencePiece model alone, and what the {name} family puts around texts \
                 is not known; fetch tokenizer.json too"
            );
            return Err(Error::Value { what: "tokenizer", why });
        }
    };
    let text = |problem| Error::Text { model: model.to_owned(), problem };
    let vocabulary = sentencepiece(document.as_slice(), arrangement).map_err(text)?;
    Ok(Some(Tokenizer::from_vocabulary(vocabulary).map_err(text)?))
}

/// The tokenizer of a directory that has lists of tokens alone: `vocab.txt`, or `vocab.json` with
/// `merges.txt`. There is none for families whose way to read texts with them is not known.
pub(crate) fn from_lists(model: &str, file: &ModelFile) -> Result<Option<Tokenizer>, Error> {
    let metadata = &file.metadata;
    let document = |name: &str| file.documents.get(name).map(|document| document.as_slice());
    let family = metadata.opt::<&str>("config.model_type")?.unwrap_or_default();
    let flag = |name: &str| metadata.opt::<bool>(&format!("tokenizer_config.{name}"));
    let names = |usual: [&str; 5]| -> Result<SpecialNames, Error> {
        let [unk, pad, cls, sep, mask] = usual;
        let of = |key: &str, usual: &str| -> Result<String, Error> {
            Ok(special(metadata, key)?.unwrap_or_else(|| usual.to_owned()))
        };
        Ok(SpecialNames {
            unk: of("unk_token", unk)?,
            pad: of("pad_token", pad)?,
            cls: of("cls_token", cls)?,
            sep: of("sep_token", sep)?,
            mask: if mask.is_empty() { None } else { Some(of("mask_token", mask)?) },
        })
    };
    let text = |problem| Error::Text { model: model.to_owned(), problem };
    let json = if let Some(vocab) = document("vocab.txt") {
        let typed = match family {
            "bert" | "distilbert" | "electra" | "nomic_bert" | "new" | "gte" | "deberta-v2" => true,
            "mpnet" => false,
            _ => return Ok(None),
        };
        if flag("do_basic_tokenize")? == Some(false) {
            let why = "do_basic_tokenize is false, which is not supported; fetch tokenizer.json";
            return Err(Error::Value { what: "tokenizer_config.json", why: why.to_owned() });
        }
        let usual = match typed {
            true => ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"],
            false => ["[UNK]", "<pad>", "<s>", "</s>", "<mask>"],
        };
        let list = WordPieceList {
            lowercase: flag("do_lower_case")?.unwrap_or(true),
            strip_accents: flag("strip_accents")?,
            chinese_chars: flag("tokenize_chinese_chars")?.unwrap_or(true),
            names: names(usual)?,
            typed,
        };
        wordpiece_json(vocab, &list).map_err(text)?
    } else if let Some(vocab) = document("vocab.json") {
        let Some(merges) = document("merges.txt") else {
            let why = "there is vocab.json, but merges.txt is missing; fetch it";
            return Err(Error::Value { what: "tokenizer", why: why.to_owned() });
        };
        let (list, names) = match family {
            "roberta" => {
                let add_prefix_space = flag("add_prefix_space")?.unwrap_or(false);
                let usual = ["<unk>", "<pad>", "<s>", "</s>", "<mask>"];
                (MergeList::Roberta { add_prefix_space }, names(usual)?)
            }
            "clip" | "clip_text_model" => {
                let of = |key: &str, usual: &str| -> Result<String, Error> {
                    Ok(special(metadata, key)?.unwrap_or_else(|| usual.to_owned()))
                };
                let end = of("eos_token", "<|endoftext|>")?;
                let cls = of("bos_token", "<|startoftext|>")?;
                let (unk, pad) = (of("unk_token", &end)?, of("pad_token", &end)?);
                (MergeList::Clip, SpecialNames { unk, pad, cls, sep: end, mask: None })
            }
            _ => return Ok(None),
        };
        merges_json(vocab, merges, &names, list).map_err(text)?
    } else {
        return Ok(None);
    };
    tokenizer(model, metadata, &json).map(Some)
}

/// The token strings that a chat template prints.
pub(crate) fn special_tokens(metadata: &Metadata) -> Result<SpecialTokens, Error> {
    Ok(SpecialTokens {
        bos: special(metadata, "bos_token")?,
        eos: special(metadata, "eos_token")?,
        unk: special(metadata, "unk_token")?,
        pad: special(metadata, "pad_token")?,
    })
}

/// The chat template: a file of its own, or an entry of the tokenizer's configuration, where it is
/// one text or a list of named ones.
pub(crate) fn chat_template(file: &ModelFile) -> Result<Option<&str>, Error> {
    const KEY: &str = "tokenizer_config.chat_template";
    if let Some(own) = file.documents.get("chat_template.jinja") {
        return std::str::from_utf8(own.as_slice()).map(Some).map_err(|error| Error::Value {
            what: "chat_template.jinja",
            why: format!("{error}; fetch the model again"),
        });
    }
    let metadata = &file.metadata;
    if let Some(text) = metadata.opt::<&str>("chat_template_json.chat_template")? {
        return Ok(Some(text));
    }
    if metadata.contains(KEY) {
        return Ok(metadata.opt::<&str>(KEY)?);
    }
    for i in 0.. {
        match metadata.opt::<&str>(&format!("{KEY}.{i}.name"))? {
            None => break,
            Some("default") => return Ok(metadata.opt(&format!("{KEY}.{i}.template"))?),
            Some(_) => {}
        }
    }
    Ok(None)
}
