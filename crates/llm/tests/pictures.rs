//! Models of texts and pictures, against transformers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::PathBuf;

use cyb_llm::media::Image;
use cyb_llm::{
    BackendKind, Config, IndexMap, LoadOptions, Model, Purpose, Runtime, Tensor, TextOptions,
    ZeroShot, npz,
};
use serde_json::Value;

fn golden(name: &str) -> PathBuf {
    cyb_testkit::golden(&format!("pictures/{name}"))
}

fn model_on(name: &str, backend: BackendKind) -> Model {
    let config = Config { threads: Some(2), backend, ..Config::auto() };
    let options = LoadOptions { purpose: Purpose::Sequences, ..LoadOptions::default() };
    let path = golden(name);
    Runtime::new(config).unwrap().load_with(path.to_str().unwrap(), options).unwrap()
}

fn model(name: &str) -> Model {
    model_on(name, BackendKind::Cpu)
}

fn arrays(name: &str, prefix: &str) -> IndexMap<String, Tensor> {
    let all = npz::read(&golden(&format!("{name}.npz"))).unwrap();
    all.into_iter()
        .filter_map(|(key, tensor)| Some((key.strip_prefix(prefix)?.to_owned(), tensor)))
        .collect()
}

fn apart(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let sum = |f: &dyn Fn(usize) -> f64| (0..want.len()).map(f).sum::<f64>().sqrt();
    sum(&|i| f64::from(got[i] - want[i]).powi(2)) / sum(&|i| f64::from(want[i]).powi(2))
}

/// Every row of every output within a relative error of 1e-3, of tokens where they are shown.
fn agrees(name: &str, backend: BackendKind) {
    let model = model_on(name, backend);
    let inputs = arrays(name, "in.");
    let outputs = model.forward(&inputs).unwrap();
    let want = arrays(name, "out.");
    let names = |of: &IndexMap<String, Tensor>| {
        let mut names: Vec<String> = of.keys().cloned().collect();
        names.sort();
        names
    };
    assert_eq!(names(&outputs), names(&want), "{name}");
    let mask = inputs.get("attention_mask").filter(|_| want.contains_key("last_hidden_state"));
    let mask: Option<Vec<i64>> = mask.map(|m| m.to_vec(cyb_llm::DType::I64).unwrap());
    for (output, want) in want {
        let got = &outputs[&output];
        assert_eq!(got.shape(), want.shape(), "{name} {output}");
        let per_token = want.shape().len() == 3;
        let width = *want.shape().last().unwrap();
        let (got, want) = (got.to_f32_vec().unwrap(), want.to_f32_vec().unwrap());
        for (i, (got, want)) in got.chunks(width).zip(want.chunks(width)).enumerate() {
            if !per_token || mask.as_ref().is_none_or(|mask| mask[i] == 1) {
                let error = apart(got, want);
                assert!(error < 1e-3, "{name} {output} row {i}: relative error {error}");
            }
        }
    }
}

#[test]
fn towers_agree() {
    for name in ["clip", "clip-text", "clip-vision", "siglip", "siglip-vision", "siglip2"] {
        agrees(name, BackendKind::Cpu);
    }
}

#[test]
fn classifiers_of_pictures() {
    let golden_values: Value =
        serde_json::from_slice(&std::fs::read(golden("pictures.json")).unwrap()).unwrap();
    for name in ["clip-labels", "siglip-labels", "siglip2-labels"] {
        agrees(name, BackendKind::Cpu);
        let model = model(name);
        let pictures = golden_values["pictures"].as_array().unwrap();
        for (picture, want) in pictures.iter().zip(golden_values[name].as_array().unwrap()) {
            let picture = picture.as_str().unwrap();
            let bytes = std::fs::read(cyb_testkit::golden(&format!("detect/{picture}"))).unwrap();
            let image = Image::decode(&bytes).unwrap();
            let most = if picture.ends_with(".jpg") { 2e-2 } else { 1e-3 };
            let scored = model.label_image(&image).unwrap();
            assert_eq!(scored.len(), want.as_array().unwrap().len());
            assert!(scored.windows(2).all(|two| two[0].score >= two[1].score));
            for want in want.as_array().unwrap() {
                let got = scored.iter().find(|s| want[0] == s.label.as_str()).unwrap();
                let off = (f64::from(got.score) - want[1].as_f64().unwrap()).abs();
                assert!(off < most, "{name} {picture}: {got:?}, not {want}");
            }
        }
        let image = Image::filled(9, 9, [1; 3]).unwrap();
        let error = model.embed_images(std::slice::from_ref(&image)).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("classifier"), "{error}");
        let how = ZeroShot::default();
        let error = model.classify_image(&image, &["a"], &how, TextOptions::default());
        assert!(error.unwrap_err().to_string().contains("labels"));
    }
    let clip = model("clip");
    let error = clip.label_image(&Image::filled(9, 9, [1; 3]).unwrap()).unwrap_err().to_string();
    assert!(error.contains("labels to choose among"), "{error}");
}

#[test]
fn without_kernels() {
    agrees("siglip2", BackendKind::Atoms);
}

#[test]
fn pictures_and_labels() {
    let golden_values: Value =
        serde_json::from_slice(&std::fs::read(golden("pictures.json")).unwrap()).unwrap();
    let strings = |name: &str| -> Vec<String> {
        let list = golden_values[name].as_array().unwrap();
        list.iter().map(|t| t.as_str().unwrap().to_owned()).collect()
    };
    let floats = |value: &Value| -> Vec<f32> {
        value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
    };
    let labels = strings("labels");
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let how = ZeroShot { hypothesis: "This is a photo of {}.".to_owned(), multi_label: false };
    for name in ["clip", "siglip", "siglip2"] {
        let model = model(name);
        let sentences: Vec<String> =
            labels.iter().map(|label| format!("This is a photo of {label}.")).collect();
        let sentences: Vec<&str> = sentences.iter().map(String::as_str).collect();
        let texts = model.embed(&sentences, TextOptions::default()).unwrap();
        for (picture, want) in
            strings("pictures").iter().zip(golden_values[name].as_array().unwrap())
        {
            let bytes = std::fs::read(cyb_testkit::golden(&format!("detect/{picture}"))).unwrap();
            let image = Image::decode(&bytes).unwrap();
            let vector = model.embed_images(std::slice::from_ref(&image)).unwrap().remove(0);
            // JPEG decoders differ by a step of 256 here and there.
            let most = if picture.ends_with(".jpg") { 2e-2 } else { 1e-4 };
            let error = apart(&vector, &floats(&want["vector"]));
            assert!(error < most, "{name} {picture}: relative error {error}");
            for (text, want) in texts.iter().zip(want["texts"].as_array().unwrap()) {
                assert!(apart(text, &floats(want)) < 1e-3, "{name}");
            }
            let scores = floats(&want["scores"]);
            let options = TextOptions::default();
            for scored in model.classify_image(&image, &labels, &how, options).unwrap() {
                let place = labels.iter().position(|label| *label == scored.label).unwrap();
                let off = (scored.score - scores[place]).abs();
                assert!(off < most as f32, "{name} {picture}: {scored:?}, not {}", scores[place]);
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let fails = |model: &Model, inputs: IndexMap<String, Tensor>, parts: &[&str]| {
        let error = model.forward(&inputs).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "no {part:?} in {error}");
        }
    };
    let clip = model("clip");
    let zeros = |shape: &[usize]| {
        Tensor::from_f32(shape.to_vec(), &vec![0.0; shape.iter().product()]).unwrap()
    };
    let one = |name: &str, tensor| IndexMap::from_iter([(name.to_owned(), tensor)]);
    fails(&clip, one("pixel_values", zeros(&[1, 3, 32, 33])), &["[1, 3, 32, 33]", "28 x 28"]);
    fails(&clip, one("pixel_values", zeros(&[1, 4, 33, 33])), &["3 channels"]);
    fails(&clip, one("pixels", zeros(&[1])), &["pixels", "no such input"]);
    fails(&clip, IndexMap::new(), &["input_ids", "missing"]);
    let seen = model("clip-vision");
    fails(&seen, IndexMap::new(), &["pixel_values", "missing"]);
    fails(&seen, arrays("clip-text", "in."), &["input_ids", "no such input"]);
    let text = seen.embed(&["a"], TextOptions::default()).unwrap_err().to_string();
    assert!(text.contains("clip-vision"), "{text}");
    let any = model("siglip2");
    let mut inputs = arrays("siglip2", "in.");
    inputs.shift_remove("spatial_shapes");
    fails(&any, inputs, &["spatial_shapes", "missing"]);
    let words = model("clip-text");
    let image = Image::filled(9, 9, [1; 3]).unwrap();
    let error = words.embed_images(&[image]).unwrap_err().to_string();
    assert!(error.contains("clip-text") && error.contains("sees"), "{error}");
}
