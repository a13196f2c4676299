//! `vocab.toml` of the project's own directories: a tokenizer in TOML.
//!
//! | key | is |
//! |---|---|
//! | `type` | `bpe`, `unigram`, `wordpiece`, `wordlevel`, or `byte` for tokens without merges |
//! | `vocab_size` | how many tokens there are, for people |
//! | `vocabulary` | the tokens; the place of each is its id, and one that is empty is none |
//! | `scores` | of a unigram vocabulary, one for each token |
//! | `merges` | of a BPE vocabulary, the most urgent first: `"a b"`, or `["a", "b"]` |
//! | `added_tokens` | tokens that are read before all others: tables as in tokenizer.json, or the texts of special ones |
//! | `[model]` | what else the model of tokenizer.json has |
//! | `[normalizer]` `[pre_tokenizer]` `[post_processor]` `[decoder]` | as in tokenizer.json |
//!
//! A file without any of the last four is read as the type usually is: BPE with the byte alphabet of
//! GPT-2, WordPiece as BERT has it, unigram with `▁` for spaces. Without `vocabulary` the tokenizer is
//! a file beside it.

use std::collections::HashSet;

use serde_json::{Map, Value as Json, json};
use toml::Value as Toml;

/// More ids than any vocabulary has.
const MAX_IDS: usize = 1 << 22;

const VOCABULARY: &str = "vocabulary";
const SECTIONS: [&str; 4] = ["normalizer", "pre_tokenizer", "post_processor", "decoder"];

/// Takes the tokenizer out of a `vocab.toml`, as tokenizer.json has it; `None` without a vocabulary.
pub(crate) fn to_json(table: &mut toml::Table) -> Result<Option<Vec<u8>>, String> {
    let Some(vocabulary) = table.remove(VOCABULARY) else { return Ok(None) };
    let tokens = strings(VOCABULARY, vocabulary)?;
    let scores = table.remove("scores");
    let merges = table.remove("merges");
    let added = table.remove("added_tokens");
    let sections = SECTIONS.map(|name| table.remove(name).map(as_json));
    let mut model = match table.remove("model").map(as_json) {
        None => Map::new(),
        Some(Json::Object(model)) => model,
        Some(_) => return Err("model is no table".to_owned()),
    };
    let kind = table.get("type").and_then(Toml::as_str).unwrap_or_default();
    let mut seen = HashSet::new();
    if let Some(twice) = tokens.iter().find(|t| !t.is_empty() && !seen.insert(t.as_str())) {
        return Err(format!("vocabulary has {twice:?} twice"));
    }
    let plain = sections.iter().all(Option::is_none);
    let usual = usual(kind, plain, &mut model)?;
    if kind == "unigram" {
        let scores = numbers("scores", scores.unwrap_or(Toml::Array(Vec::new())))?;
        if scores.len() != tokens.len() {
            let (scores, tokens) = (scores.len(), tokens.len());
            return Err(format!("there are {scores} scores for {tokens} tokens"));
        }
        let pairs = tokens.iter().zip(scores).map(|(token, score)| json!([token, score]));
        model.insert("vocab".to_owned(), pairs.collect());
    } else {
        let entries = tokens.iter().enumerate().filter(|(_, token)| !token.is_empty());
        let vocab: Map<String, Json> =
            entries.map(|(id, token)| (token.clone(), json!(id))).collect();
        model.insert("vocab".to_owned(), Json::Object(vocab));
    }
    if matches!(kind, "bpe" | "byte") {
        let merges = match merges {
            None => Vec::new(),
            Some(Toml::Array(list)) => {
                list.into_iter().enumerate().map(merge).collect::<Result<_, _>>()?
            }
            Some(_) => return Err("merges is no list".to_owned()),
        };
        model.insert("merges".to_owned(), Json::Array(merges));
    }
    let mut file = Map::new();
    file.insert("version".to_owned(), json!("1.0"));
    file.insert("added_tokens".to_owned(), added_tokens(added, &tokens)?);
    for ((name, given), usual) in SECTIONS.into_iter().zip(sections).zip(usual) {
        file.insert(name.to_owned(), given.unwrap_or(usual));
    }
    file.insert("model".to_owned(), Json::Object(model));
    serde_json::to_vec(&file).map(Some).map_err(|error| error.to_string())
}

/// What a type has in place of absent sections, in their order, and of what its model does not say.
fn usual(kind: &str, plain: bool, model: &mut Map<String, Json>) -> Result<[Json; 4], String> {
    let mut set = |key: &str, value: Json| {
        model.entry(key).or_insert(value);
    };
    let none = || Json::Null;
    let parts = match kind {
        "bpe" | "byte" => {
            set("type", json!("BPE"));
            let bytes = json!({
                "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": true,
            });
            [none(), bytes.clone(), none(), bytes]
        }
        "wordpiece" => {
            set("type", json!("WordPiece"));
            set("unk_token", json!("[UNK]"));
            set("continuing_subword_prefix", json!("##"));
            set("max_input_chars_per_word", json!(100));
            let normalizer = json!({
                "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": null, "lowercase": true,
            });
            let decoder = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
            [normalizer, json!({"type": "BertPreTokenizer"}), none(), decoder]
        }
        "unigram" => {
            set("type", json!("Unigram"));
            let spaces = json!({
                "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true,
            });
            [none(), spaces.clone(), none(), spaces]
        }
        "wordlevel" => {
            set("type", json!("WordLevel"));
            set("unk_token", json!("[UNK]"));
            [none(), json!({"type": "Whitespace"}), none(), none()]
        }
        other => {
            return Err(format!(
                "type {other:?} is not known; bpe, unigram, wordpiece, wordlevel and byte are"
            ));
        }
    };
    Ok(if plain { parts } else { [none(), none(), none(), none()] })
}

fn strings(key: &str, value: Toml) -> Result<Vec<String>, String> {
    let Toml::Array(list) = value else { return Err(format!("{key} is no list")) };
    if list.len() > MAX_IDS {
        return Err(format!("{key} has {} entries; at most {MAX_IDS} are taken", list.len()));
    }
    let text = |(i, value)| match value {
        Toml::String(text) => Ok(text),
        _ => Err(format!("{key}: entry {i} is no text")),
    };
    list.into_iter().enumerate().map(text).collect()
}

fn numbers(key: &str, value: Toml) -> Result<Vec<f64>, String> {
    let Toml::Array(list) = value else { return Err(format!("{key} is no list")) };
    let number = |(i, value)| match value {
        Toml::Float(v) => Ok(v),
        Toml::Integer(v) => Ok(v as f64),
        _ => Err(format!("{key}: entry {i} is no number")),
    };
    list.into_iter().enumerate().map(number).collect()
}

fn merge((i, value): (usize, Toml)) -> Result<Json, String> {
    let pair = match &value {
        Toml::String(text) => text.split_once(' '),
        Toml::Array(list) => match list.as_slice() {
            [Toml::String(left), Toml::String(right)] => Some((left.as_str(), right.as_str())),
            _ => None,
        },
        _ => None,
    };
    match pair.filter(|(left, right)| !left.is_empty() && !right.is_empty()) {
        Some((left, right)) => Ok(json!([left, right])),
        None => Err(format!("merges: entry {i} is no pair of tokens")),
    }
}

fn added_tokens(added: Option<Toml>, tokens: &[String]) -> Result<Json, String> {
    let list = match added {
        None => Vec::new(),
        Some(Toml::Array(list)) => list,
        Some(_) => return Err("added_tokens is no list".to_owned()),
    };
    let token = |value| match value {
        Toml::String(text) => match tokens.iter().position(|token| *token == text) {
            Some(id) => Ok(json!({
                "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })),
            None => Err(format!("the added token {text:?} is not in the vocabulary")),
        },
        other => Ok(as_json(other)),
    };
    list.into_iter().map(token).collect()
}

/// The entries of `vocab.toml` that say a tokenizer.json; `None` where it has something that they
/// cannot say.
pub(crate) fn from_json(json: &[u8]) -> Option<toml::Table> {
    let Json::Object(mut file) = serde_json::from_slice(json).ok()? else { return None };
    let Json::Object(mut model) = file.remove("model")? else { return None };
    let kind = match model.get("type")?.as_str()? {
        "BPE" => "bpe",
        "Unigram" => "unigram",
        "WordPiece" => "wordpiece",
        "WordLevel" => "wordlevel",
        _ => return None,
    };
    let mut out = toml::Table::new();
    out.insert("type".to_owned(), kind.into());
    let (tokens, scores) = match model.remove("vocab")? {
        Json::Object(vocab) => (by_id(vocab)?, None),
        Json::Array(pairs) => {
            let pair = |pair: &Json| {
                let (text, score) = (pair.get(0)?.as_str()?, pair.get(1)?.as_f64()?);
                Some((Toml::from(text), Toml::Float(score)))
            };
            let (tokens, scores): (Vec<Toml>, Vec<Toml>) =
                pairs.iter().map(pair).collect::<Option<Vec<_>>>()?.into_iter().unzip();
            (tokens, Some(scores))
        }
        _ => return None,
    };
    out.insert(VOCABULARY.to_owned(), Toml::Array(tokens));
    if let Some(scores) = scores {
        out.insert("scores".to_owned(), Toml::Array(scores));
    }
    if let Some(Json::Array(merges)) = model.remove("merges") {
        let merges = merges.into_iter().map(|merge| match merge {
            Json::Array(pair) => match pair.as_slice() {
                [Json::String(a), Json::String(b)] if !a.contains(' ') && !b.contains(' ') => {
                    Some(Toml::String(format!("{a} {b}")))
                }
                _ => as_toml(Json::Array(pair)),
            },
            other => as_toml(other),
        });
        out.insert("merges".to_owned(), Toml::Array(merges.collect::<Option<_>>()?));
    }
    out.insert("added_tokens".to_owned(), as_toml(file.remove("added_tokens")?)?);
    out.insert("model".to_owned(), as_toml(Json::Object(model))?);
    for name in SECTIONS {
        if let Some(section) = file.remove(name).filter(|section| !section.is_null()) {
            out.insert(name.to_owned(), as_toml(section)?);
        }
    }
    // A tokenizer that does nothing beside its model would be read as the type usually is.
    SECTIONS.iter().any(|name| out.contains_key(*name)).then_some(out)
}

/// Tokens in the order of their ids, empty where there is none.
fn by_id(vocab: Map<String, Json>) -> Option<Vec<Toml>> {
    let mut tokens: Vec<Toml> = Vec::new();
    for (token, id) in vocab {
        let id = usize::try_from(id.as_u64()?).ok().filter(|&id| id < MAX_IDS)?;
        if tokens.len() <= id {
            tokens.resize(id + 1, Toml::String(String::new()));
        }
        if token.is_empty() || tokens[id].as_str() != Some("") {
            return None;
        }
        tokens[id] = Toml::String(token);
    }
    Some(tokens)
}

/// `None` for what TOML has no word for: a null in a list, an integer above 2^63. In an object a null
/// is as good as absent.
fn as_toml(value: Json) -> Option<Toml> {
    Some(match value {
        Json::Null => return None,
        Json::Bool(v) => Toml::Boolean(v),
        Json::Number(n) => match n.as_i64() {
            Some(v) => Toml::Integer(v),
            None if n.is_f64() => Toml::Float(n.as_f64()?),
            None => return None,
        },
        Json::String(v) => Toml::String(v),
        Json::Array(list) => Toml::Array(list.into_iter().map(as_toml).collect::<Option<_>>()?),
        Json::Object(map) => {
            let entries = map.into_iter().filter(|(_, value)| !value.is_null());
            let entries = entries.map(|(key, value)| Some((key, as_toml(value)?)));
            Toml::Table(entries.collect::<Option<_>>()?)
        }
    })
}

fn as_json(value: Toml) -> Json {
    match value {
        Toml::String(v) => Json::String(v),
        Toml::Integer(v) => json!(v),
        Toml::Float(v) => json!(v),
        Toml::Boolean(v) => Json::Bool(v),
        Toml::Datetime(v) => Json::String(v.to_string()),
        Toml::Array(list) => Json::Array(list.into_iter().map(as_json).collect()),
        Toml::Table(table) => {
            Json::Object(table.into_iter().map(|(k, v)| (k, as_json(v))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Json, String> {
        let mut table: toml::Table = toml::from_str(text).unwrap();
        let json = to_json(&mut table)?.unwrap();
        Ok(serde_json::from_slice(&json).unwrap())
    }

    #[test]
    fn a_vocabulary_alone_is_read_as_its_type_usually_is() {
        let file = read(
            "type = \"bpe\"\nvocabulary = [\"a\", \"b\", \"ab\", \"<end>\"]\n\
             merges = [\"a b\"]\nadded_tokens = [\"<end>\"]\n",
        )
        .unwrap();
        assert_eq!(file["model"]["vocab"], json!({"a": 0, "b": 1, "ab": 2, "<end>": 3}));
        assert_eq!(file["model"]["merges"], json!([["a", "b"]]));
        assert_eq!(file["pre_tokenizer"]["type"], "ByteLevel");
        assert_eq!(
            (&file["added_tokens"][0]["id"], &file["added_tokens"][0]["special"]),
            (&json!(3), &json!(true))
        );
        let file = read("type = \"unigram\"\nvocabulary = [\"▁a\"]\nscores = [-1]\n").unwrap();
        assert_eq!(file["model"]["vocab"], json!([["▁a", -1.0]]));
        let none = to_json(&mut toml::from_str("type = \"bpe\"\nvocab_size = 3").unwrap());
        assert_eq!(none, Ok(None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("type = \"x\"\nvocabulary = []", "type \"x\""),
            ("vocabulary = [\"a\"]", "type \"\""),
            ("type = \"bpe\"\nvocabulary = 3", "vocabulary is no list"),
            ("type = \"bpe\"\nvocabulary = [3]", "no text"),
            ("type = \"bpe\"\nvocabulary = [\"a\", \"a\"]", "\"a\" twice"),
            ("type = \"bpe\"\nvocabulary = [\"a\"]\nmerges = [\"ab\"]", "no pair"),
            ("type = \"bpe\"\nvocabulary = [\"a\"]\nadded_tokens = [\"b\"]", "\"b\""),
            ("type = \"unigram\"\nvocabulary = [\"a\"]\nscores = []", "0 scores for 1"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn what_toml_cannot_say_is_not_written() {
        let file = |model: &str| {
            let rest = r#""added_tokens": [], "decoder": {"type": "ByteLevel"}"#;
            from_json(format!("{{{rest}, \"model\": {model}}}").as_bytes())
        };
        let plain = file(r#"{"type": "BPE", "dropout": null, "vocab": {"a": 2}, "merges": []}"#);
        let plain = plain.unwrap();
        assert_eq!(plain["vocabulary"].as_array().unwrap().len(), 3);
        assert!(!plain["model"].as_table().unwrap().contains_key("dropout"));
        for bad in [
            r#"{"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}"#,
            r#"{"type": "BPE", "vocab": {"a": 99999999}, "merges": []}"#,
            r#"{"type": "Other", "vocab": {}}"#,
            r#"{"type": "BPE", "vocab": {}, "merges": [null]}"#,
        ] {
            assert!(file(bad).is_none(), "{bad}");
        }
    }
}
