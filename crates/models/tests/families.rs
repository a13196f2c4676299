//! Tiny random models of every family, run by the atom interpreter, against the logits and hidden
//! states that transformers computes for them: in one pass and in chunks, below, at and past the
//! sliding window and the original context of a scaled rope.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeMap;
use std::path::Path;

use cyb_interp::Prepared;
use cyb_models::{GraphOptions, TextModel, build, inputs};
use cyb_tensor::{AlignedBytes, Bindings, Bytes, DType, Tensor, byte_len};

const BLOCK: usize = 8;
/// Blocks of a sequence's table: enough for the longest golden sequence.
const TABLE: usize = 14;

/// One model with its pools, whose blocks a sequence takes in no particular order.
struct Runner {
    model: TextModel,
    states: BTreeMap<String, Tensor>,
}

impl Runner {
    fn new(name: &str, options: &GraphOptions) -> Runner {
        let model = build(&open(name), options).unwrap();
        let slots = 2 * TABLE * BLOCK;
        let states = model.graph.states().map(|(state, v)| {
            let fact = model.graph.fact(v);
            let mut shape: Vec<usize> = fact.shape.iter().map(|d| d.known().unwrap_or(0)).collect();
            shape[0] = slots;
            let bytes = AlignedBytes::zeroed(byte_len(fact.dtype, &shape).unwrap());
            let pool = Tensor::new(fact.dtype, shape, Bytes::owned(bytes)).unwrap();
            (state.to_string(), pool)
        });
        let states = states.collect();
        Runner { model, states }
    }

    /// Runs tokens, each with its sequence and position, with logits for all.
    fn step(&mut self, tokens: &[(usize, usize, i32)]) -> BTreeMap<String, Tensor> {
        let block = |sequence: usize, i: usize| 2 * ((5 * i + 3) % TABLE) + sequence;
        let slot = |&(sequence, position, _): &(usize, usize, i32)| {
            block(sequence, position / BLOCK) * BLOCK + position % BLOCK
        };
        let ints = |shape: Vec<usize>, values: Vec<usize>| {
            let values: Vec<i32> = values.into_iter().map(|n| n as i32).collect();
            Tensor::from_i32(shape, &values).unwrap()
        };
        let n = tokens.len();
        let tables = (0..2).flat_map(|s| (0..TABLE).map(move |i| block(s, i))).collect();
        let ids: Vec<i32> = tokens.iter().map(|t| t.2).collect();
        let given = BTreeMap::from([
            (inputs::TOKENS.into(), Tensor::from_i32(vec![n], &ids).unwrap()),
            (inputs::POSITIONS.into(), ints(vec![n], tokens.iter().map(|t| t.1).collect())),
            (inputs::SLOTS.into(), ints(vec![n], tokens.iter().map(slot).collect())),
            (inputs::ROWS.into(), ints(vec![n], tokens.iter().map(|t| t.0).collect())),
            (inputs::TABLES.into(), ints(vec![2, TABLE], tables)),
            (inputs::LOGIT_ROWS.into(), ints(vec![n], (0..n).collect())),
        ]);
        let prepared = Prepared::new(&self.model.graph).unwrap();
        prepared.run(&Bindings::new(), &given, &mut self.states).unwrap()
    }

    /// Logits of sequence 0 from its start, `chunk` tokens at a time.
    fn logits(&mut self, ids: &[i32], chunk: usize) -> Vec<f32> {
        let tokens: Vec<_> = ids.iter().enumerate().map(|(p, &id)| (0, p, id)).collect();
        let parts = tokens.chunks(chunk);
        parts.flat_map(|part| self.step(part)[inputs::LOGITS].to_f32_vec().unwrap()).collect()
    }
}

fn golden(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/families").join(name)
}

fn open(name: &str) -> cyb_formats::ModelFile {
    cyb_formats::open(&golden(&format!("{name}.gguf"))).unwrap()
}

fn f32_pools() -> GraphOptions {
    GraphOptions { kv_dtype: DType::F32, kv_block: BLOCK, ..GraphOptions::default() }
}

/// A whole sequence behind another one.
fn packed(name: &str, ids: &[i32]) -> BTreeMap<String, Tensor> {
    let options = GraphOptions { packed: true, ..f32_pools() };
    let model = build(&open(name), &options).unwrap();
    let before = [7, 8, 9];
    let n = (before.len() + ids.len()) as i32;
    let ints = |values: Vec<i32>| Tensor::from_i32(vec![values.len()], &values).unwrap();
    let positions = (0..3).chain(0..n - 3).collect();
    let given = BTreeMap::from([
        (inputs::TOKENS.into(), ints(before.iter().chain(ids).copied().collect())),
        (inputs::POSITIONS.into(), ints(positions)),
        (inputs::BOUNDS.into(), ints(vec![0, 3, n])),
        (inputs::SHOWN.into(), ints(vec![1; n as usize])),
        (inputs::LOGIT_ROWS.into(), ints((3..n).collect())),
    ]);
    let prepared = Prepared::new(&model.graph).unwrap();
    let mut outputs = prepared.run(&Bindings::new(), &given, &mut BTreeMap::new()).unwrap();
    // Hidden states come for all tokens.
    let all = outputs[inputs::LAST_HIDDEN_STATE].to_f32_vec().unwrap();
    let width = all.len() / n as usize;
    let own = Tensor::from_f32(vec![ids.len(), width], &all[3 * width..]).unwrap();
    outputs.insert(inputs::LAST_HIDDEN_STATE.into(), own);
    outputs
}

/// The golden cases of a model, shortest first: ids, logits, last hidden states.
fn cases(name: &str) -> Vec<(Vec<i32>, Vec<f32>, Vec<f32>)> {
    let arrays = cyb_formats::npz::read(&golden(&format!("{name}.npz"))).unwrap();
    let mut lengths: Vec<usize> =
        arrays.keys().filter_map(|k| k.strip_suffix(".input_ids")?.parse().ok()).collect();
    lengths.sort_unstable();
    assert!(!lengths.is_empty());
    let case = |length: usize| {
        let ids: Vec<i64> = arrays[&format!("{length}.input_ids")].to_vec(DType::I64).unwrap();
        let floats = |what: &str| arrays[&format!("{length}.{what}")].to_f32_vec().unwrap();
        let ids = ids.into_iter().map(|id| i32::try_from(id).unwrap()).collect();
        (ids, floats("logits"), floats("last_hidden_state"))
    };
    lengths.into_iter().map(case).collect()
}

/// Every row within a relative error of 1e-3, and the largest element in the same place.
fn close(what: &str, got: &[f32], want: &[f32], rows: usize) {
    assert_eq!(got.len(), want.len(), "{what}");
    let width = want.len() / rows;
    let top = |row: &[f32]| (0..width).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    for (i, (got, want)) in got.chunks(width).zip(want.chunks(width)).enumerate() {
        let norm = |v: f64| v.sqrt();
        let error: f64 = got.iter().zip(want).map(|(g, w)| f64::from(g - w).powi(2)).sum();
        let size: f64 = want.iter().map(|w| f64::from(*w).powi(2)).sum();
        let relative = norm(error) / norm(size);
        assert!(relative < 1e-3, "{what}, position {i}: relative error {relative}");
        assert_eq!(top(got), top(want), "{what}, position {i}");
    }
}

/// One pass and chunks of 7 against transformers, and against each other to the last bit.
fn agrees(name: &str) {
    for (ids, logits, hidden) in cases(name) {
        let what = format!("{name}, {} tokens", ids.len());
        let whole = Runner::new(name, &f32_pools()).logits(&ids, ids.len());
        close(&what, &whole, &logits, ids.len());
        let chunked = Runner::new(name, &f32_pools()).logits(&ids, 7);
        assert!(whole == chunked, "{what}: chunks of 7 differ from one pass");

        let packed = packed(name, &ids);
        let states = packed[inputs::LAST_HIDDEN_STATE].to_f32_vec().unwrap();
        close(&format!("{what}, hidden"), &states, &hidden, ids.len());
        let logits_packed = packed[inputs::LOGITS].to_f32_vec().unwrap();
        close(&format!("{what}, packed"), &logits_packed, &logits, ids.len());
    }
}

macro_rules! families {
    ($($test:ident $name:literal;)*) => {$(
        #[test]
        fn $test() {
            agrees($name);
        }
    )*};
}

families! {
    llama2 "llama2";
    llama3_past_its_original_context "llama3";
    llama_linear_past_its_original_context "llama-linear";
    llama_yarn_past_its_original_context "llama-yarn";
    smollm2_tied "smollm2";
    mistral_around_its_window "mistral";
    qwen2 "qwen2";
    qwen3 "qwen3";
    gemma3_around_its_window "gemma3";
    gemma3_scaled "gemma3-scaled";
}

/// Two sequences in one call, at different positions, give what each gives alone.
#[test]
fn sequences_in_a_batch_do_not_see_each_other() {
    let cases = cases("mistral");
    let (first, second) = (&cases[5].0, &cases[0].0);
    let alone = Runner::new("mistral", &f32_pools()).logits(first, first.len());
    let other = Runner::new("mistral", &f32_pools()).logits(second, second.len());
    let width = alone.len() / first.len();

    let mut runner = Runner::new("mistral", &f32_pools());
    let (head, tail) = first.split_at(40);
    runner.logits(head, 40);
    let mut tokens: Vec<_> = tail.iter().enumerate().map(|(i, &id)| (0, 40 + i, id)).collect();
    tokens.extend(second.iter().enumerate().map(|(p, &id)| (1, p, id)));
    let batch = runner.step(&tokens)[inputs::LOGITS].to_f32_vec().unwrap();
    let (rest, beside) = batch.split_at(tail.len() * width);
    assert!(rest == &alone[40 * width..]);
    assert!(beside == other);
}
