//! `detect` as a user runs it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{Ran, file, shown, soma};
use serde_json::Value;

fn picture(name: &str) -> String {
    shown(&cyb_testkit::golden(&format!("detect/{name}")))
}

fn detect(words: &[&str]) -> Ran {
    let model = shown(&cyb_testkit::model("320n.onnx"));
    soma(&[&["detect", "--model", model.as_str()], words].concat())
}

fn expected(name: &str, confidence: f64) -> Vec<Value> {
    let text = std::fs::read_to_string(cyb_testkit::golden("detect/expected.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let found = all[name]["detections"].as_array().unwrap().iter();
    found.filter(|d| d["confidence"].as_f64() >= Some(confidence)).cloned().collect()
}

#[test]
fn boxes_are_printed_as_json() {
    for name in ["face.png", "cat.webp", "through.png", "deep.png"] {
        let words = ["--image", &picture(name), "--confidence", "0.05", "--json"];
        let got = detect(&words).json();
        let got = got["detections"].as_array().unwrap().clone();
        let want = expected(name, 0.05);
        assert_eq!(got.len(), want.len(), "{name}: {got:?}");
        for (got, want) in got.iter().zip(&want) {
            let keys: Vec<&str> = got.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(keys, ["class", "class_id", "confidence", "bbox"], "{name}");
            assert_eq!((&got["class"], &got["class_id"]), (&want["class"], &want["class_id"]));
            let number = |v: &Value| v.as_f64().unwrap();
            assert!((number(&got["confidence"]) - number(&want["confidence"])).abs() < 1e-3);
            for i in 0..4 {
                assert!((number(&got["bbox"][i]) - number(&want["bbox"][i])).abs() < 1.0, "{name}");
            }
        }
    }
}

#[test]
fn people_get_a_table_and_a_picture() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("boxes.png");
    let face = picture("face.png");
    let text = detect(&["--image", &face, "--output", &shown(&out)]).ok();
    assert_eq!(text.lines().count(), expected("face.png", 0.25).len(), "{text}");
    // The picture keeps its size, and nothing else is left in the folder.
    let drawn = std::fs::read(&out).unwrap();
    let size = |bytes: &[u8]| bytes[16..24].to_vec();
    assert_eq!(size(&drawn), size(&std::fs::read(&face).unwrap()));
    assert_ne!(drawn, std::fs::read(&face).unwrap());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    // Nothing above a confidence of 1: no result is a result.
    assert_eq!(detect(&["--image", &face, "--confidence", "1"]).ok(), "");
    let none = detect(&["--image", &face, "--confidence", "1", "--json"]).json();
    assert_eq!(none["detections"].as_array().map(Vec::len), Some(0));
}

#[test]
fn labels_replace_the_names_of_the_model() {
    let face = picture("face.png");
    let names: Vec<String> = (0..18).map(|i| format!("thing {i}")).collect();
    let list = names.join(",");
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "names.txt", names.join("\n"));
    for labels in [list.as_str(), path.as_str()] {
        let got = detect(&["--image", &face, "--labels", labels, "--json"]).json();
        let first = &got["detections"][0];
        assert_eq!(first["class"], format!("thing {}", first["class_id"]), "{first}");
    }
    detect(&["--image", &face, "--labels", "one,two"]).fails(1, &["2 classes"]);
    detect(&["--image", &face, "--labels", ","]).fails(2, &["--labels"]);
}

#[test]
fn what_is_no_picture_is_an_error_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let whole = std::fs::read(picture("face.png")).unwrap();
    let photo = std::fs::read(picture("turned.jpg")).unwrap();
    let out = shown(&dir.path().join("out.png"));
    for (name, bytes) in [
        ("empty.png", &[][..]),
        ("text.png", b"not a picture"),
        ("cut.png", &whole[..whole.len() / 2]),
        ("head.png", &whole[..30]),
        ("cut.jpg", &photo[..40]),
    ] {
        let bad = file(&dir, name, bytes);
        detect(&["--image", &bad, "--output", &out]).fails(1, &[name]);
    }
    // A header that claims 4 billion pixels a side.
    let mut huge = whole.clone();
    huge[16..24].fill(0xff);
    let bad = file(&dir, "huge.png", huge);
    detect(&["--image", &bad]).fails(1, &["huge.png"]);
    assert!(!std::path::Path::new(&out).exists());
    detect(&["--image", "no-such.png"]).fails(1, &["no-such.png"]);
    let face = picture("face.png");
    detect(&["--image", &face, "--confidence", "2"]).fails(2, &["--confidence", "0 to 1"]);
    detect(&["--image", &face, "--output", "x.tiff"]).fails(2, &["x.tiff"]);
    let nowhere = shown(&dir.path().join("no/such/out.png"));
    detect(&["--image", &face, "--output", &nowhere]).fails(1, &["out.png"]);
    soma(&["detect", "--model", &common::tiny(), "--image", &face]).fails(1, &["llama3.gguf"]);
}
