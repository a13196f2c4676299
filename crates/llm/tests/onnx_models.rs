//! Real ONNX models against ONNX Runtime, whose outputs `golden/onnx_models.py` stored.

use std::path::Path;

use cyb_llm::{BackendKind, Config, DType, IndexMap, Runtime, Tensor, npz};

/// Of the largest number of an output.
const TOLERANCE: f64 = 1e-4;

fn floats(t: &Tensor) -> Vec<f64> {
    t.to_vec::<f32>(DType::F32).expect("outputs are f32").into_iter().map(f64::from).collect()
}

fn compare(name: &str, model: &str, file: Option<&str>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/onnx_models");
    let golden = npz::read(&folder.join(format!("{name}.npz"))).expect("golden values are there");
    let mut path = cyb_zoo::path(model).expect("the model can be fetched");
    path.extend(file);
    let config = Config { backend: BackendKind::Cpu, threads: Some(2), ..Config::auto() };
    let runtime = Runtime::new(config).expect("a runtime starts");
    let path = path.to_str().expect("the path is text");
    assert!(runtime.is_onnx(path).expect("the file can be read"));
    let model = runtime.load_onnx(path).expect("the model loads");
    let inputs: IndexMap<String, Tensor> = golden
        .iter()
        .filter_map(|(key, t)| Some((key.strip_prefix("in.")?.to_owned(), t.clone())))
        .collect();
    // The second run takes what the first one prepared.
    for _ in 0..2 {
        let outputs = model.run(&inputs).expect("the model runs");
        let mut compared = 0;
        for (key, want) in &golden {
            let Some(output) = key.strip_prefix("out.") else { continue };
            let got = &outputs[output];
            assert_eq!(got.shape(), want.shape(), "{name}: {output}");
            let (got, want) = (floats(got), floats(want));
            let scale = want.iter().fold(0f64, |m, w| m.max(w.abs()));
            let off = got.iter().zip(&want).fold(0f64, |m, (g, w)| m.max((g - w).abs()));
            assert!(off <= TOLERANCE * scale, "{name}: {output} is off by {off} of {scale}");
            compared += 1;
        }
        assert!(compared > 0, "{name} has no outputs");
    }
}

#[test]
fn silero_vad() {
    for name in [
        "silero_vad",
        "silero_vad_16k_op15",
        "silero_vad_op18_ifless",
        "silero_vad_half",
        "silero_vad_openvino_16k",
        "silero_vad_16k_sequence",
    ] {
        compare(name, "silero-vad", Some(&format!("{name}.onnx")));
    }
    compare("silero_vad_8k", "silero-vad", Some("silero_vad.onnx"));
}

#[test]
fn magika() {
    compare("magika", "magika-standard_v3_3.onnx", None);
}

#[test]
fn yolo_detector() {
    compare("320n", "320n.onnx", None);
}

#[test]
fn piper_voice() {
    compare("piper", "en_US-joe-medium", Some("en_US-joe-medium.onnx"));
}

/// Without inputs, sizes are found that a model can be prepared for.
#[test]
fn sizes_that_nobody_gives() {
    let runtime = Runtime::new(Config { threads: Some(2), ..Config::auto() });
    let runtime = runtime.expect("a runtime starts");
    let assumed = |model: &str, file: Option<&str>, given: &[(&str, usize)]| {
        let mut path = cyb_zoo::path(model).expect("the model can be fetched");
        path.extend(file);
        let model = runtime.load_onnx(path.to_str().expect("the path is text"));
        let dims = given.iter().map(|&(name, n)| (name.to_owned(), n)).collect();
        model.expect("the model loads").sample_inputs(&dims).ok().map(|sample| sample.assumed)
    };
    let detector = assumed("320n.onnx", None, &[]).expect("a size fits");
    assert!(detector.iter().all(|(name, &n)| n == if name == "batch" { 1 } else { 320 }));
    assert!(!detector.is_empty());
    let voice = assumed("silero-vad", Some("silero_vad_16k_op15.onnx"), &[]);
    assert_eq!(voice.expect("a size fits").values().max(), Some(&512));
    let small: Vec<(&str, usize)> = detector.keys().map(|name| (name.as_str(), 7)).collect();
    assert!(assumed("320n.onnx", None, &small).is_none());
    assert!(assumed("320n.onnx", None, &[("heigth", 64)]).is_none(), "there is no such dimension");
}
