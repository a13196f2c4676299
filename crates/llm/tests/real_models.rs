//! The real models beside llama.cpp: perplexity of a fixed text, greedy continuations, token ids.
//!
//! `golden/checks/real_models.py` and `golden/checks/tokenizers.py` say what llama.cpp makes of them.
//! A plain `cargo test` looks at the demo model;
//! `cargo xtask test --all` at everything of every model.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::print_stdout, reason = "what was found, for those who ask for it")]

use std::collections::BTreeMap;
use std::fs;

use cyb_llm::{
    BackendKind, Config, DType, EncodeOptions, IndexMap, Model, Runtime, SamplingParams, Tensor,
};
use serde::Deserialize;

/// How far apart two perplexities may be, as a fraction.
const PERPLEXITY: f64 = 0.005;

/// Where llama.cpp's best tokens are this close, either may come first: both programs round
/// activations to 8 bits, llama.cpp per 32 or 256 values and this one per 32, so that logits differ
/// by about this much.
const CLOSE: f32 = 0.35;

const WINDOW: usize = 512;

/// Windows of the text that are measured. Without optimization all of them take minutes.
const WINDOWS: usize = if cfg!(debug_assertions) { 12 } else { usize::MAX };

/// What llama.cpp makes of a model.
#[derive(Deserialize)]
struct Golden {
    text_tokens: usize,
    /// The sum of the negative log-likelihoods of each window.
    surprise: Vec<f64>,
    prompts: Vec<Continuation>,
}

/// A prompt and the most probable next tokens one after the other.
#[derive(Deserialize)]
struct Continuation {
    prompt: String,
    ids: Vec<u32>,
    tokens: Vec<u32>,
    /// At every step the tokens whose logits are less than 0.5 behind, and how far.
    near: Vec<Vec<(u32, f32)>>,
}

/// Token ids of `golden/text/strings.json`.
#[derive(Deserialize)]
struct Ids {
    plain: Vec<Vec<u32>>,
    special: Vec<Vec<u32>>,
    with_bos: Vec<u32>,
    /// Texts that do not come back as they were.
    changed: BTreeMap<String, String>,
}

const MODELS: &[(&str, &str)] = &[
    ("SmolLM2-135M-Instruct.Q4_1", "smollm2"),
    ("gemma-3-270m-q4_k_m", "gemma3"),
    ("Qwen2.5-Coder-0.5B-Instruct-Q4_K_M", "qwen2.5"),
    ("Qwen2.5-Coder-1.5B-Instruct-Q4_K_M", "qwen2.5"),
];

fn read<T: serde::de::DeserializeOwned>(path: &str) -> T {
    serde_json::from_slice(&fs::read(cyb_testkit::golden(path)).unwrap()).unwrap()
}

/// The models that this run covers, with the names of their golden files.
fn covered() -> impl Iterator<Item = (String, &'static str, &'static str)> {
    let tested: Vec<&str> = cyb_testkit::tested().map(|model| model.name).collect();
    MODELS.iter().filter_map(move |(stem, ids)| {
        let file = format!("{stem}.gguf");
        tested
            .contains(&file.as_str())
            .then(|| (cyb_testkit::model(&file).to_str().unwrap().to_owned(), *stem, *ids))
    })
}

fn load(path: &str) -> Model {
    Runtime::new(Config { backend: BackendKind::Cpu, ..Config::auto() })
        .unwrap()
        .load(path)
        .unwrap()
}

#[test]
fn perplexity_and_greedy_text_are_those_of_llama_cpp() {
    let text = fs::read_to_string(cyb_testkit::golden("real/text.txt")).unwrap();
    let mut report = Vec::new();
    for (path, stem, _) in covered() {
        let golden: Golden = read(&format!("real/{stem}.json"));
        let model = load(&path);
        for (number, continuation) in golden.prompts.iter().enumerate() {
            compare(&model, continuation, &format!("{stem}, prompt {number}"), &mut report);
        }
        let windows = golden.surprise.len().min(WINDOWS);
        let text = beginning(&model, &text, golden.text_tokens, windows);
        let ours = model.perplexity(&text, WINDOW, &mut |_, _| {}).unwrap();
        assert_eq!(ours.tokens, windows * (WINDOW / 2 - 1), "{stem}");
        let theirs = golden.surprise.iter().take(windows).sum::<f64>() / ours.tokens as f64;
        let (ours, theirs) = (ours.perplexity, theirs.exp());
        let result = format!("{stem}: perplexity {ours:.4} and {theirs:.4}, {windows} windows");
        println!("{result}");
        if (ours / theirs - 1.0).abs() > PERPLEXITY {
            report.push(result);
        }
    }
    assert!(report.is_empty(), "{report:#?}");
}

/// The part of the text that makes these windows.
fn beginning(model: &Model, text: &str, tokens: usize, windows: usize) -> String {
    let options = EncodeOptions { add_special: true, parse_special: false };
    let ids = model.tokenize(text, options).unwrap();
    assert_eq!(ids.len(), tokens);
    let plain = model.tokenize(text, EncodeOptions { add_special: false, ..options }).unwrap();
    let part = &ids[ids.len() - plain.len()..windows * WINDOW];
    let part = model.detokenize(part).unwrap();
    assert_eq!(model.tokenize(&part, options).unwrap(), ids[..windows * WINDOW]);
    part
}

/// Every choice of llama.cpp's continuation, with the same tokens before it, is this program's
/// choice too, or its two best were close and this program takes the other.
fn compare(model: &Model, golden: &Continuation, name: &str, report: &mut Vec<String>) {
    let options = EncodeOptions { add_special: true, parse_special: true };
    let ids = model.tokenize(&golden.prompt, options).unwrap();
    assert_eq!(ids, golden.ids, "{name}");
    let all = [&golden.ids[..], &golden.tokens[..golden.tokens.len() - 1]].concat();
    let (from, vocab) = (golden.ids.len() - 1, model.vocab_size());
    let input: Vec<i64> = all.iter().map(|&id| i64::from(id)).collect();
    let input = Tensor::from_elems(DType::I64, vec![1, input.len()], &input).unwrap();
    let outputs = model.forward(&IndexMap::from([("input_ids".to_owned(), input)])).unwrap();
    let logits = outputs["logits"].to_f32_vec().unwrap();
    let best = |row: &[f32]| {
        let first = row.iter().enumerate().rev().max_by(|a, b| a.1.total_cmp(b.1));
        first.map(|(id, _)| id as u32).unwrap()
    };
    let ours: Vec<u32> = logits.chunks(vocab).skip(from).map(best).collect();
    assert_eq!(ours.len(), golden.tokens.len());
    let differs = |&step: &usize| ours[step] != golden.tokens[step];
    for step in (0..ours.len()).filter(differs) {
        let gap = golden.near[step].iter().find(|(token, _)| *token == ours[step]);
        println!("{name}, step {step}: {} for {}, {gap:?}", ours[step], golden.tokens[step]);
        if gap.is_none_or(|&(_, gap)| gap > CLOSE) {
            let [ours, theirs] = [ours[step], golden.tokens[step]];
            report.push(format!("{name}, step {step}: {ours} and not {theirs}, {gap:?}"));
        }
    }
    // Tokens made one by one are the same, up to where the texts part.
    let agreed = (0..ours.len()).find(differs).unwrap_or(ours.len());
    let n = golden.tokens.len();
    let params = SamplingParams {
        temperature: 0.0,
        max_tokens: Some(n as u32),
        ..SamplingParams::neutral()
    };
    let made = model.generate_ids(ids, params).unwrap().complete().unwrap().token_ids;
    let ended = made.len().min(agreed);
    assert_eq!(made[..ended], golden.tokens[..ended], "{name}");
}

#[test]
fn token_ids_of_awkward_strings_are_those_of_llama_cpp() {
    let texts: Vec<String> = read("text/strings.json");
    assert!(texts.len() >= 200);
    let mut wrong = Vec::new();
    for (path, stem, ids) in covered() {
        let golden: Ids = read(&format!("text/{ids}.json"));
        let package = Runtime::new(Config::auto()).unwrap().open(&path).unwrap();
        let encode = |text: &str, parse_special| {
            package.tokenize(text, EncodeOptions { add_special: false, parse_special }).unwrap()
        };
        for (index, text) in texts.iter().enumerate() {
            for (special, expected) in [(false, &golden.plain), (true, &golden.special)] {
                let ids = encode(text, special);
                if ids != expected[index] {
                    wrong.push(format!("{stem}: {text:?} {ids:?} {:?}", expected[index]));
                }
            }
            let back = package.detokenize(&encode(text, false)).unwrap();
            let expected = golden.changed.get(text).unwrap_or(text);
            if back != *expected {
                wrong.push(format!("{stem}: {text:?} comes back as {back:?}, not {expected:?}"));
            }
        }
        let with_bos = EncodeOptions { add_special: true, parse_special: false };
        assert_eq!(package.tokenize("Hello", with_bos).unwrap(), golden.with_bos, "{stem}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
