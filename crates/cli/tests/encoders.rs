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
    soma(&["classify", "--model", &tiny(), "--text", "x"]).fails(1, &["language model"]);
    soma(&["rerank", "--model", &bert, "--query", "q", "--documents", "d"]).fails(1, &["3 labels"]);
}

fn sights(name: &str) -> String {
    shown(&cyb_testkit::golden(&format!("pictures/{name}")))
}

fn picture(name: &str) -> String {
    shown(&cyb_testkit::golden(&format!("detect/{name}")))
}

#[test]
fn pictures_become_vectors_and_scores() {
    let want: Value = serde_json::from_str(
        &std::fs::read_to_string(cyb_testkit::golden("pictures/pictures.json")).unwrap(),
    )
    .unwrap();
    let (face, clip) = (picture("face.png"), sights("clip"));
    let words = ["embed", "--model", &clip, "--image", &face, &face, "--json"];
    let answer = soma(&words).json();
    assert_eq!(answer["embeddings"][0], answer["embeddings"][1]);
    let (got, golden) = (floats(&answer["embeddings"][0]), floats(&want["clip"][0]["vector"]));
    assert_eq!(answer["dimensions"], golden.len());
    assert!(got.iter().zip(&golden).all(|(a, b)| (a - b).abs() < 1e-3), "{got:?} {golden:?}");
    let labels = "a face,a river,two dogs";
    let words = ["classify", "--model", &clip, "--image", &face, "--labels", labels, "--json"];
    let scores = soma(&words).json();
    for (label, want) in labels.split(',').zip(want["clip"][0]["scores"].as_array().unwrap()) {
        let all = scores["scores"].as_array().unwrap();
        let got = all.iter().find(|s| s[0] == label).unwrap();
        let off = (got[1].as_f64().unwrap() - want.as_f64().unwrap()).abs();
        assert!(off < 1e-3, "{label}: {got} {want}");
    }
    let own = sights("clip-labels");
    let scores = soma(&["classify", "--model", &own, "--image", &face, "--json"]).json();
    let golden = &want["clip-labels"][0];
    assert_eq!(scores["scores"][0][0], golden[0][0]);
    let off = scores["scores"][0][1].as_f64().unwrap() - golden[0][1].as_f64().unwrap();
    assert!(off.abs() < 1e-3, "{scores} {golden}");
    let words = ["classify", "--model", &own, "--image", &face, "--top", "1"];
    assert_eq!(soma(&words).ok().lines().count(), 1);
}

#[test]
fn pictures_that_are_none_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(picture("face.png")).unwrap();
    let cut = file(&dir, "cut.png", &bytes[..bytes.len() / 3]);
    let text = file(&dir, "text.png", b"no picture");
    let clip = sights("clip");
    for command in ["embed", "classify"] {
        let fails = |image: &str, parts: &[&str]| {
            let mut words = vec![command, "--model", &clip, "--image", image];
            if command == "classify" {
                words.extend(["--labels", "a,b"]);
            }
            soma(&words).fails(1, parts);
        };
        fails(&cut, &["cut.png"]);
        fails(&text, &["text.png"]);
        fails("no-such.png", &["no-such.png"]);
    }
    let face = picture("face.png");
    soma(&["classify", "--model", &clip, "--image", &face]).fails(1, &["clip", "labels"]);
    let bert = golden("bert-pair");
    soma(&["embed", "--model", &bert, "--image", &face]).fails(1, &["bert-pair", "sees"]);
}

#[test]
fn computing_in_sixteen_bits_is_asked_for_and_close() {
    let model = golden("sentence-mean");
    let text = "The river flows near Rome.";
    let words = ["embed", "--model", &model, "--text", text, "--json"];
    let plain = floats(&soma(&words).json()["embeddings"][0]);
    for (compute, least, most) in [("bf16", 1e-5, 2e-2), ("f16", 1e-6, 3e-3)] {
        let rounded = soma(&[&words[..], &["--compute", compute]].concat()).json();
        let rounded = floats(&rounded["embeddings"][0]);
        let sum = |f: &dyn Fn(usize) -> f64| (0..plain.len()).map(f).sum::<f64>().sqrt();
        let off = sum(&|i| (plain[i] - rounded[i]).powi(2)) / sum(&|i| plain[i].powi(2));
        assert!(off > least && off < most, "{compute}: {off}");
        let atoms = ["--compute", compute, "--backend", "atoms"];
        soma(&[&words[..], &atoms].concat()).fails(1, &["atoms", compute, "cpu"]);
    }
    soma(&[&words[..], &["--compute", "f64"]].concat()).fails(2, &["compute", "f32", "bf16"]);
}

/// A decoder gives vectors when it is asked for them, and one with a classifier's head writes no text.
#[test]
fn decoders_that_read_whole_texts() {
    let words = ["embed", "--model", &tiny(), "--text", "a cat", "a dog", "--json"];
    let vectors = soma(&words).json();
    assert_ne!(vectors["embeddings"][0], vectors["embeddings"][1]);
    let model = golden("qwen3-rerank");
    soma(&["run", "--model", &model, "--prompt", "x"]).fails(1, &["qwen3", "writes no text"]);
    let words = ["rerank", "--model", &model, "--query", "where?", "--documents", "a", "b"];
    assert_eq!(soma(&words).ok().lines().count(), 2);
}

#[test]
fn an_encoder_is_measured_in_whole_batches() {
    let model = golden("bert");
    let words = ["bench", "--model", &model, "--prompt-tokens", "21", "--batch", "3"];
    let report = soma(&[&words[..], &["--repeat", "2", "--json"]].concat()).json();
    assert_eq!(report["backend"], "cpu");
    assert!(report["forward"]["ms"]["median"].as_f64().unwrap() > 0.0, "{report}");
    assert!(report["forward"]["tok_per_sec"].as_f64().unwrap() > 0.0, "{report}");
    assert!(report["ops"].as_array().unwrap().iter().any(|op| op["op"] == "sdpa_packed"));
    soma(&["bench", "--model", &model, "--prompt-tokens", "100"]).fails(1, &["100", "99"]);
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
