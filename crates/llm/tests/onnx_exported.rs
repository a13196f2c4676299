//! Small models as exporters write them against ONNX Runtime, whose outputs `golden/exported.py`
//! stored; and which layers were found in their small operators.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cyb_llm::{BackendKind, Config, DType, IndexMap, Runtime, Tensor, npz};

/// Of the largest number of an output.
const TOLERANCE: f64 = 1e-4;
/// In models of 16-bit floats, some of which are rounded between operators, and in ONNX Runtime others:
/// two units in the last place.
const HALF_TOLERANCE: f64 = 1.0 / 1024.0;

/// The jets that must be found, and how often.
const FOUND: &[(&str, &str, usize)] = &[
    ("bert.script", "sdpa", 2),
    ("bert.dynamo", "sdpa", 2),
    ("bert.script", "linear", 12),
    ("bert.script", "gelu", 2),
    ("decoder.script", "sdpa", 1),
    ("decoder.dynamo", "sdpa", 1),
    ("decoder.script", "rmsnorm", 2),
    ("decoder.dynamo", "rmsnorm", 2),
    ("decoder.script", "silu", 1),
    ("decoder.script", "rotary", 2),
    ("decoder.dynamo", "rotary", 2),
    ("turned.script", "rotary", 4),
    ("turned.dynamo", "rotary", 4),
    ("all_lstm", "lstm", 7),
    ("all_gru", "gru", 6),
    ("all_rnn", "rnn", 5),
    ("recurrent.script", "lstm", 2),
    ("recurrent.script", "gru", 1),
    ("recurrent.script", "rnn", 1),
    ("vit.script", "sdpa", 1),
    ("vit.dynamo", "sdpa", 1),
    ("vit.script", "gelu", 1),
    ("activations.script", "gelu", 5),
    ("activations.dynamo", "gelu", 4),
    ("activations.script", "silu", 1),
    ("keras_dense", "linear", 1),
    ("keras_dense", "gelu", 1),
    ("keras_dense", "softmax", 1),
];

/// The kernels that must run, and how often.
const STEPS: &[(&str, &str, usize)] = &[
    ("bert.script", "linear_activation", 3),
    ("bert.dynamo", "linear_activation", 3),
    ("vit.script", "linear_activation", 1),
    ("vit.dynamo", "linear_activation", 1),
    ("decoder.script", "rotary_f32", 2),
    ("decoder.dynamo", "rotary_f32", 2),
    ("all_lstm", "lstm_f32", 7),
    ("all_gru", "gru_f32", 6),
    ("all_rnn", "rnn_f32", 5),
];

fn folder() -> PathBuf {
    cyb_testkit::golden("exported")
}

fn names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .expect("golden/exported can be read")
        .map(|entry| entry.expect("so can its entries").file_name().into_string().expect("text"))
        .filter_map(|name| name.strip_suffix(".onnx").map(str::to_owned))
        .collect();
    names.sort();
    names
}

fn compare(what: &str, got: &Tensor, want: &Tensor, tolerance: f64) {
    assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()), "{what}");
    if want.dtype() != DType::F32 {
        assert_eq!(got.bytes().as_slice(), want.bytes().as_slice(), "{what}");
        return;
    }
    let got = got.to_f32_vec().expect("f32");
    let want = want.to_f32_vec().expect("f32");
    let scale = want.iter().filter(|w| w.is_finite()).fold(0f64, |m, w| m.max(f64::from(w.abs())));
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        let off = (f64::from(*g) - f64::from(*w)).abs();
        let same = g == w || (g.is_nan() && w.is_nan()) || off <= tolerance * scale;
        assert!(same, "{what}: element {i} is {g}, not {w}");
    }
}

fn run(kind: BackendKind) {
    let config = Config { backend: kind, threads: Some(2), ..Config::auto() };
    let runtime = Runtime::new(config).expect("a runtime starts");
    let names = names();
    assert!(names.len() >= 20, "{names:?}");
    let mut found: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut ran = found.clone();
    for name in &names {
        let golden = npz::read(&folder().join(format!("{name}.npz"))).expect("golden values");
        let path = folder().join(format!("{name}.onnx"));
        let model = runtime.load_onnx(path.to_str().expect("text")).expect("the model loads");
        let inputs: IndexMap<String, Tensor> = golden
            .iter()
            .filter_map(|(key, t)| Some((key.strip_prefix("in.")?.to_owned(), t.clone())))
            .collect();
        let outputs = model.run(&inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
        let tolerance = if name.ends_with("_half") { HALF_TOLERANCE } else { TOLERANCE };
        for (key, want) in &golden {
            let Some(output) = key.strip_prefix("out.") else { continue };
            compare(&format!("{name}: {output}"), &outputs[output], want, tolerance);
        }
        for note in model.notes().iter().filter(|note| note.missed.is_none()) {
            *found.entry((name.clone(), note.jet.clone())).or_default() += 1;
        }
        for step in model.steps() {
            *ran.entry((name.clone(), step.kernel.to_owned())).or_default() += 1;
        }
    }
    let steps = if kind == BackendKind::Cpu { STEPS } else { &[] };
    for (counts, wanted) in [(found, FOUND), (ran, steps)] {
        for (name, what, count) in wanted {
            let got = counts.get(&((*name).to_owned(), (*what).to_owned())).copied().unwrap_or(0);
            assert!(got >= *count, "{name}: {what} is there {got} times, not {count}; {counts:?}");
        }
    }
}

#[test]
fn exported_models_equal_the_reference() {
    run(BackendKind::Cpu);
}

#[test]
fn exported_models_equal_the_reference_without_kernels() {
    run(BackendKind::Atoms);
}
