//! `embed`, `classify` and `rerank`: what they print, and what they refuse.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{file, shown, soma, tiny};
use serde_json::Value;

fn golden(name: &str) -> String {
    shown(&cyb_testkit::golden(&format!("encoders/{name}")))
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

#[test]
fn vectors_as_json_have_the_fields_of_the_contract() {
    let model = golden("sentence-cls");
    let want: Value = serde_json::from_str(
        &std::fs::read_to_string(cyb_testkit::golden("encoders/sentences.json")).unwrap(),
    )
    .unwrap();
    let texts = [want["texts"][0].as_str().unwrap(), want["texts"][1].as_str().unwrap()];
    let words = ["embed", "--model", &model, "--text", texts[0], texts[1], "--json"];
    let answer = soma(&words).json();
    assert_eq!(answer["dimensions"], 21);
    for i in 0..2 {
        let (got, want) = (floats(&answer["embeddings"][i]), floats(&want["cls"][i]));
        assert_eq!(got.len(), 21);
        assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5), "{got:?} {want:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let list = file(&dir, "texts.json", serde_json::json!(texts).to_string());
    let again = soma(&["embed", "--model", &model, "--texts", &list, "--json"]).json();
    assert_eq!(again, answer);
    let lines = soma(&["embed", "--model", &model, "--text", texts[0]]).ok();
    assert_eq!(lines.split_whitespace().count(), 21);
}

#[test]
fn scores_as_json_have_the_fields_of_the_contract() {
    let want: Value = serde_json::from_str(
        &std::fs::read_to_string(cyb_testkit::golden("encoders/texts.json")).unwrap(),
    )
    .unwrap();
    let text = want["texts"][0].as_str().unwrap();
    let model = golden("bert-pair");
    let answer = soma(&["classify", "--model", &model, "--text", text, "--json"]).json();
    for (got, want) in
        answer["scores"].as_array().unwrap().iter().zip(want["bert-pair"][0].as_array().unwrap())
    {
        assert_eq!(got[0], want[0]);
        assert!((got[1].as_f64().unwrap() - want[1].as_f64().unwrap()).abs() < 1e-4);
    }
    let nli = golden("roberta-nli");
    let words =
        ["classify", "--model", &nli, "--text", text, "--labels", "weather,a city,dog", "--json"];
    let chosen = soma(&words).json();
    let sum: f64 =
        chosen["scores"].as_array().unwrap().iter().map(|s| s[1].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{chosen}");
    let tags = golden("bert-tags");
    let tagged = soma(&["classify", "--model", &tags, "--text", "Rome is old", "--json"]).json();
    assert_eq!(tagged["tokens"][2]["token"], "old");
    assert_eq!(
        (&tagged["tokens"][2]["start"], &tagged["tokens"][2]["end"]),
        (&8.into(), &11.into())
    );
    let model = golden("bert-rerank");
    let words =
        ["rerank", "--model", &model, "--query", "where?", "--json", "--documents", "a", "b"];
    let ranked = soma(&words).json();
    let scores: Vec<f64> =
        (0..2).map(|i| ranked["results"][i]["score"].as_f64().unwrap()).collect();
    assert!(scores[0] >= scores[1], "{ranked}");
}

#[test]
fn what_cannot_be_done_is_said() {
    let bert = golden("bert-pair");
    soma(&["run", "--model", &bert, "--prompt", "x"]).fails(1, &["encoder", "classify"]);
    soma(&["embed", "--model", &bert]).fails(2, &["--text"]);
    let long = "rain ".repeat(150);
    let words = ["classify", "--model", &bert, "--text", &long];
    soma(&words).fails(1, &["152", "99", "--truncate"]);
    soma(&[&words[..], &["--truncate"]].concat()).ok();
    soma(&["classify", "--model", &tiny(), "--text", "x"]).fails(1, &["decoder"]);
    soma(&["rerank", "--model", &bert, "--query", "q", "--documents", "d"]).fails(1, &["3 labels"]);
}

#[test]
fn a_fasttext_model_is_told_from_its_content() {
    let model = shown(&cyb_testkit::model("lid.176.ftz"));
    let text = "Le chat dort sur le fauteuil";
    let answer = soma(&["classify", "--model", &model, "--text", text, "--json"]).json();
    assert_eq!(answer["scores"][0][0], "__label__fr");
    assert_eq!(answer["scores"].as_array().unwrap().len(), 5);
    let words = ["classify", "--model", &model, "--text", text, "--top", "1"];
    assert!(soma(&words).ok().starts_with("__label__fr  0.9"));
    soma(&["embed", "--model", &model, "--text", "x"]).fails(1, &["fastText", "classify"]);
    let dir = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(&model).unwrap();
    let cut = file(&dir, "cut.ftz", &bytes[..bytes.len() / 2]);
    soma(&["classify", "--model", &cut, "--text", "x"])
        .fails(1, &["cut.ftz", "no room", "damaged"]);
}
