//! Decoders from Hugging Face directories, against transformers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};

use cyb_llm::{
    Config, DType, Error, IndexMap, LoadOptions, Message, Model, Purpose, Runtime, SamplingParams,
    Tensor, npz,
};
use serde_json::Value;

#[allow(clippy::result_large_err, reason = "a test looks at the error as it is")]
fn load(path: &Path, context: Option<usize>) -> Result<Model, Error> {
    // Keys and values as they are: the reference has them so.
    let config = Config { threads: Some(2), context, kv_type: DType::F32, ..Config::auto() };
    Runtime::new(config).unwrap().load(path.to_str().unwrap())
}

fn golden(name: &str) -> PathBuf {
    cyb_testkit::golden(&format!("checkpoints/{name}"))
}

/// Every row of logits within a relative error of 1e-3, in one pass and at every length.
fn agrees(name: &str) {
    let arrays = npz::read(&golden(&format!("{name}.npz"))).unwrap();
    for length in [13usize, 40] {
        // A scaling with two sets of frequencies takes the one for the context asked for.
        let model = load(&golden(name), Some(length)).unwrap();
        let ids = arrays[&format!("{length}.input_ids")].clone();
        let want = arrays[&format!("{length}.logits")].to_f32_vec().unwrap();
        let outputs = model.forward(&IndexMap::from_iter([("input_ids".to_owned(), ids)])).unwrap();
        let got = outputs["logits"].to_f32_vec().unwrap();
        assert_eq!(got.len(), want.len());
        let width = want.len() / length;
        for (i, (got, want)) in got.chunks(width).zip(want.chunks(width)).enumerate() {
            let sum = |f: &dyn Fn(usize) -> f64| (0..width).map(f).sum::<f64>().sqrt();
            let off = sum(&|i| f64::from(got[i] - want[i]).powi(2));
            let relative = off / sum(&|i| f64::from(want[i]).powi(2));
            assert!(relative < 1e-3, "{name}, {length} tokens, row {i}: {relative}");
        }
    }
}

macro_rules! checkpoints {
    ($($test:ident $name:literal;)*) => {$(
        #[test]
        fn $test() {
            agrees($name);
        }
    )*};
}

checkpoints! {
    llama_past_its_original_context "llama";
    llama_tied_with_biases_and_yarn "llama-tied";
    mistral_past_its_window "mistral";
    qwen2_in_half "qwen2";
    qwen3_tied "qwen3";
    gemma2_capped "gemma2";
    gemma3 "gemma3";
    phi3_on_both_sides_of_its_original_context "phi3";
}

#[test]
fn masks_with_gaps_and_positions_of_their_own() {
    let arrays = npz::read(&golden("llama-gaps.npz")).unwrap();
    let config = Config { threads: Some(2), kv_type: DType::F32, ..Config::auto() };
    let runtime = Runtime::new(config).unwrap();
    let options = LoadOptions { purpose: Purpose::Sequences, ..LoadOptions::default() };
    let load =
        |name: &str, options| runtime.load_with(golden(name).to_str().unwrap(), options).unwrap();
    let model = load("llama", options);
    let pick = |names: &[&str]| -> IndexMap<String, Tensor> {
        names.iter().map(|name| ((*name).to_owned(), arrays[*name].clone())).collect()
    };
    let masked = pick(&["input_ids", "attention_mask"]);
    let given = pick(&["input_ids", "attention_mask", "position_ids"]);
    let mask: Vec<i64> = arrays["attention_mask"].to_vec(DType::I64).unwrap();
    for (inputs, want) in [(&masked, "counted.logits"), (&given, "given.logits")] {
        let got = model.forward(inputs).unwrap()["logits"].to_f32_vec().unwrap();
        let want = arrays[want].to_f32_vec().unwrap();
        let width = want.len() / mask.len();
        let rows = got.chunks(width).zip(want.chunks(width));
        for ((got, want), _) in rows.zip(&mask).filter(|(_, shown)| **shown == 1) {
            let sum = |f: &dyn Fn(usize) -> f64| (0..width).map(f).sum::<f64>().sqrt();
            let off = sum(&|i| f64::from(got[i] - want[i]).powi(2));
            assert!(off < 1e-3 * sum(&|i| f64::from(want[i]).powi(2)), "{off}");
        }
    }
    let error = model.generate_greedy(&masked, 2).unwrap_err().to_string();
    assert!(error.contains("llama family") && error.contains("writes no text"), "{error}");
    let error = load("llama", LoadOptions::default()).forward(&masked).unwrap_err().to_string();
    assert!(error.contains("row 1") && error.contains("LoadOptions.purpose"), "{error}");
    let error = load("llama", LoadOptions::default()).forward(&given).unwrap_err().to_string();
    assert!(error.contains("position_ids"), "{error}");
}

#[test]
fn a_text_that_outgrows_the_short_frequencies_goes_on_with_the_long_ones() {
    let config = Config { threads: Some(2), kv_type: DType::F32, ..Config::auto() };
    let runtime = Runtime::new(config).unwrap();
    let name = golden("phi3");
    let name = name.to_str().unwrap();
    let arrays = npz::read(&golden("phi3.npz")).unwrap();
    let inputs = IndexMap::from_iter([("input_ids".to_owned(), arrays["13.input_ids"].clone())]);
    // 13 tokens and 24 of the original context: 12 are made with the short ones.
    let made = runtime.generate_greedy(name, &inputs, 20).unwrap();
    let made: Vec<i64> = made.to_vec(DType::I64).unwrap();
    let mut ids: Vec<i64> = inputs["input_ids"].to_vec(DType::I64).unwrap();
    for (step, want) in made.iter().enumerate() {
        let model = load(Path::new(name), Some(ids.len())).unwrap();
        let last = ids.iter().map(|&id| id as u32).collect::<Vec<_>>();
        let logits = model.logits(&last).unwrap();
        let row = &logits[logits.len() - model.vocab_size()..];
        let best = (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
        assert_eq!(best as i64, *want, "token {step}");
        ids.push(*want);
    }
}

#[test]
fn text_and_chat_from_a_directory() {
    let golden: Value =
        serde_json::from_slice(&std::fs::read(self::golden("llama.json")).unwrap()).unwrap();
    let model = load(&self::golden("llama"), None).unwrap();
    let prompt = golden["prompt"].as_str().unwrap();
    let ids = model.tokenize(prompt, Default::default()).unwrap();
    assert_eq!(Value::from(ids.clone()), golden["ids"]);
    let params =
        SamplingParams { temperature: 0.0, max_tokens: Some(12), ..SamplingParams::neutral() };
    let made = model.generate_ids(ids, params).unwrap().complete().unwrap();
    assert_eq!(Value::from(made.token_ids), golden["made"]);
    let rendered = model.render(&[Message::new("user", "Hi")]).unwrap();
    assert_eq!(rendered, "[user]Hi[answer]");
}

fn changed(
    name: &str,
    change: impl FnOnce(&mut serde_json::Map<String, Value>),
) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden(name).join(file), dir.path().join(file)).unwrap();
    }
    let path = dir.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(config.as_object_mut().unwrap());
    std::fs::write(&path, config.to_string()).unwrap();
    dir
}

fn logits(path: &Path) -> Vec<f32> {
    load(path, None).unwrap().logits(&[5, 9, 17, 31, 100]).unwrap()
}

/// What transformers 4 wrote for the same models.
#[test]
fn the_spelling_of_transformers_4() {
    let scaling = |config: &mut serde_json::Map<String, Value>, kind: &str| {
        let mut rope = config.remove("rope_parameters").unwrap().as_object().unwrap().clone();
        let theta = rope.remove("rope_theta").unwrap();
        rope.remove("partial_rotary_factor");
        let named = rope.remove("rope_type").unwrap();
        rope.insert(kind.to_owned(), named);
        config.insert("rope_theta".into(), theta);
        config.insert("rope_scaling".into(), rope.into());
        let dtype = config.remove("dtype").unwrap();
        config.insert("torch_dtype".into(), dtype);
    };
    for (name, kind) in [("llama", "rope_type"), ("llama-tied", "type"), ("phi3", "type")] {
        let old = changed(name, |config| scaling(config, kind));
        assert_eq!(logits(old.path()), logits(&golden(name)), "{name}");
    }
    let old = changed("gemma3", |config| {
        config.remove("rope_parameters");
        config.insert("rope_theta".into(), 1e6.into());
        config.insert("rope_local_base_freq".into(), 1e4.into());
        config.insert(
            "rope_scaling".into(),
            serde_json::json!({"rope_type": "linear", "factor": 8.0}),
        );
    });
    assert_eq!(logits(old.path()), logits(&golden("gemma3")));
}

#[test]
fn keys_that_change_the_maths_and_are_not_understood_are_errors() {
    let fails = |name: &str, key: &str, value: Value, parts: &[&str]| {
        let dir = changed(name, |config| drop(config.insert(key.to_owned(), value)));
        let error = load(dir.path(), None).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "no {part:?} in {error}");
        }
    };
    fails("llama", "hidden_act", "gelu".into(), &["hidden_act", "silu"]);
    fails("llama", "residual_multiplier", 0.5.into(), &["residual_multiplier", "may change"]);
    fails("llama", "attention_bias", true.into(), &["attention_bias", "no biases"]);
    fails("llama", "num_key_value_heads", 3.into(), &["num_key_value_heads", "divide"]);
    fails("qwen2", "layer_types", vec!["linear_attention"; 2].into(), &["layer_types"]);
    fails("qwen2", "num_hidden_layers", 1.into(), &["layer_types"]);
    fails(
        "llama",
        "rope_parameters",
        serde_json::json!({"rope_type": "swirl"}),
        &["swirl", "yarn"],
    );
    fails(
        "llama",
        "rope_parameters",
        serde_json::json!({"rope_type": "linear", "rope_theta": 1e4}),
        &["factor"],
    );
    fails("llama", "use_bidirectional_attention", true.into(), &["use_bidirectional_attention"]);
}

/// L15: with a tied configuration the head is the embedding, whatever else the file holds.
#[test]
fn a_tied_configuration_beside_an_output_head() {
    let dir =
        changed("llama", |config| drop(config.insert("tie_word_embeddings".into(), true.into())));
    let model = load(dir.path(), None).unwrap();
    assert!(
        model.info().warnings.iter().any(|w| w.contains("lm_head")),
        "{:?}",
        model.info().warnings
    );
    assert_ne!(logits(dir.path()), logits(&golden("llama")));
}
