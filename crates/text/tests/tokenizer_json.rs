//! What a `tokenizer.json` says is what is done, also where it looks like a slip.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use cyb_text::{EncodeOptions, JsonConfig, TextError, Tokenizer};
use serde_json::{Value, json};

const PARSED: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

/// A tokenizer with whole words for a model, and these parts.
fn words(words: &[&str], parts: Value) -> Result<Tokenizer, TextError> {
    let vocab: serde_json::Map<String, Value> =
        words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
    let mut file = json!({
        "version": "1.0",
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"},
    });
    for (key, value) in parts.as_object().unwrap() {
        file[key] = value.clone();
    }
    Tokenizer::from_json(file.to_string().as_bytes(), JsonConfig::default())
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, PARSED).unwrap()
}

/// T3: a pattern that is a string is that string, however much it looks like an expression.
#[test]
fn a_literal_pattern_is_literal() {
    let split = |pattern: Value| {
        let part =
            json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false});
        words(&["[UNK]", "a1", "a", "1", r"\d+"], json!({"pre_tokenizer": part})).unwrap()
    };
    let literal = split(json!({"String": r"\d+"}));
    assert_eq!(ids(&literal, "a1"), [1]);
    assert_eq!(ids(&literal, r"a\d+1"), [2, 4, 3]);
    assert_eq!(ids(&split(json!({"Regex": r"\d+"})), "a1"), [2, 3]);
}

/// T5: control tokens take the spaces beside them where their flags say so.
#[test]
fn control_tokens_take_spaces_as_their_flags_say() {
    let make = |lstrip: bool, rstrip: bool| {
        let added = |id: u32, content: &str| {
            json!({"id": id, "content": content, "special": true, "single_word": false,
                "lstrip": lstrip, "rstrip": rstrip, "normalized": false})
        };
        let parts = json!({"added_tokens": [added(3, "<|start|>"), added(4, "<|en|>")]});
        words(&["[UNK]", "   ", " ", "<|start|>", "<|en|>"], parts).unwrap()
    };
    let text = "   <|start|> <|en|>   ";
    assert_eq!(ids(&make(false, false), text), [1, 3, 2, 4, 1]);
    assert_eq!(ids(&make(true, false), text), [3, 4, 1]);
    assert_eq!(ids(&make(false, true), text), [1, 3, 4]);
    assert_eq!(ids(&make(true, true), text), [3, 4]);
}

/// T7: a leading space, a tab and none are three texts, unless the file says otherwise.
#[test]
fn leading_space_counts() {
    let make = |prefix: bool| {
        let level = json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true,
            "use_regex": true});
        words(&["[UNK]", "hello", "Ġhello", "ĉ"], json!({"pre_tokenizer": level})).unwrap()
    };
    let plain = make(false);
    let all = ["hello", " hello", "\thello"].map(|text| ids(&plain, text));
    assert_eq!(all, [vec![1], vec![2], vec![3, 1]]);
    assert_eq!(["hello", " hello"].map(|text| ids(&make(true), text)), [[2], [2]]);
}

/// T9: a WordPiece file that keeps case and accents keeps them.
#[test]
fn case_and_accents_are_kept_where_the_file_keeps_them() {
    let make = |lowercase: bool, strip_accents: Value| {
        let normalizer = json!({"type": "BertNormalizer", "clean_text": true,
            "handle_chinese_chars": true, "strip_accents": strip_accents, "lowercase": lowercase});
        let parts =
            json!({"normalizer": normalizer, "pre_tokenizer": {"type": "BertPreTokenizer"}});
        words(&["[UNK]", "Été", "été", "ete", "Ete"], parts).unwrap()
    };
    assert_eq!(ids(&make(false, json!(false)), "Été été"), [1, 2]);
    assert_eq!(ids(&make(true, json!(false)), "Été"), [2]);
    assert_eq!(ids(&make(false, json!(true)), "Été"), [4]);
    // Without a word about accents they go with the case.
    assert_eq!(ids(&make(true, Value::Null), "Été"), [3]);
    assert_eq!(ids(&make(false, Value::Null), "Été"), [1]);
}

/// T11: a SentencePiece model that normalizes nothing has an empty map of characters.
#[test]
fn an_empty_map_of_characters_changes_nothing() {
    let empty = json!({"type": "Precompiled", "precompiled_charsmap": ""});
    let listed = json!({"type": "Sequence", "normalizers": [empty, {"type": "Lowercase"}]});
    let alone = words(&["[UNK]", "ﬁ", "fi"], json!({"normalizer": empty})).unwrap();
    assert_eq!(ids(&alone, "ﬁ"), [1]);
    let among = words(&["[UNK]", "ﬁ", "a"], json!({"normalizer": listed})).unwrap();
    assert_eq!((ids(&among, "ﬁ"), ids(&among, "A")), (vec![1], vec![2]));
    let damaged = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"});
    let result = words(&["[UNK]"], json!({"normalizer": damaged}));
    assert!(matches!(result, Err(TextError::Json { .. })), "{result:?}");
}
