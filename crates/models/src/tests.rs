//! Graphs of the tiny golden files and of broken variants of them.

use std::path::Path;

use cyb_formats::{Array, ModelFile};
use cyb_ir::{Graph, Op, Source, verify};
use cyb_tensor::{DType, Tensor};

use crate::{FAMILIES, GraphOptions, Head, ModelError, TextModel, build, find};

fn golden(name: &str) -> ModelFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../golden/families")
        .join(format!("{name}.gguf"));
    cyb_formats::open(&path).unwrap()
}

fn built(file: &ModelFile) -> TextModel {
    let model = build(file, &GraphOptions::default()).unwrap();
    verify(&model.graph).unwrap();
    model
}

fn error(file: &ModelFile) -> String {
    build(file, &GraphOptions::default()).unwrap_err().to_string()
}

fn fact(graph: &Graph, name: &str) -> String {
    graph.fact(graph.output(name).unwrap()).to_string()
}

/// One attribute of every node of a jet, in order.
fn attrs<'g>(graph: &'g Graph, jet: &str, attr: &str) -> Vec<&'g cyb_ir::Attr> {
    let pick = |node: &'g cyb_ir::Node| match &node.op {
        Op::Jet(j, attrs) if j.name == jet => attrs.get(attr),
        _ => None,
    };
    graph.nodes.iter().filter_map(pick).collect()
}

fn windows(graph: &Graph) -> Vec<i64> {
    let number = |a: &cyb_ir::Attr| match a {
        cyb_ir::Attr::Int(n) => *n,
        other => panic!("{other} is no window"),
    };
    attrs(graph, "sdpa_paged", "window").into_iter().map(number).collect()
}

#[test]
fn a_decoder_has_the_inputs_states_and_outputs_of_the_contract() {
    let model = built(&golden("smollm2"));
    let graph = &model.graph;
    let inputs: Vec<String> =
        graph.inputs().map(|(name, v)| format!("{name} {}", graph.fact(v))).collect();
    let expected = [
        "tokens i32[T]",
        "positions i32[T]",
        "slots i32[T]",
        "rows i32[T]",
        "tables i32[R, M]",
        "logit_rows i32[L]",
    ];
    assert_eq!(inputs, expected);
    let states: Vec<String> =
        graph.states().map(|(name, v)| format!("{name} {}", graph.fact(v))).collect();
    assert_eq!(states[0], "k.0 f16[N, 1, 18]");
    assert_eq!(states[5], "v.2 f16[N, 1, 18]");
    assert_eq!((states.len(), graph.updates.len()), (6, 6));
    assert_eq!(fact(graph, "logits"), "f32[L, 131]");
    assert!(graph.output("last_hidden_state").is_none());
    assert_eq!(model.family.name, "llama");
    let s = model.summary;
    assert_eq!((s.vocab_size, s.hidden_size, s.num_hidden_layers), (131, 54, 3));
    assert_eq!((s.num_attention_heads, s.num_key_value_heads, s.head_dim), (3, 1, 18));
    assert_eq!(s.context_length, 128);
    let (layer, norms) = (54 * 54 * 2 + 54 * 18 * 2 + 3 * 54 * 92, 7 * 54);
    assert_eq!(s.parameters, (131 * 54 + 3 * layer + norms) as u64);
    assert!(model.warnings.is_empty(), "{:?}", model.warnings);
}

#[test]
fn a_decoder_of_whole_sequences_has_the_inputs_of_an_encoder() {
    let file = golden("gemma3");
    let options = GraphOptions { packed: true, ..GraphOptions::default() };
    let model = build(&file, &options).unwrap();
    let graph = &model.graph;
    let inputs: Vec<String> =
        graph.inputs().map(|(name, v)| format!("{name} {}", graph.fact(v))).collect();
    let expected =
        ["tokens i32[T]", "positions i32[T]", "bounds i32[B]", "shown i32[T]", "logit_rows i32[L]"];
    assert_eq!(inputs, expected);
    assert_eq!(graph.states().count(), 0);
    assert_eq!(fact(graph, "logits"), "f32[L, 389]");
    assert_eq!(fact(graph, "last_hidden_state"), "f32[T, 40]");
    assert_eq!(model.encoder.unwrap().head, Head::Words);
}

/// Past the last attention only the rows that logits are asked for are computed.
#[test]
fn the_last_layer_computes_what_is_needed() {
    let graph = built(&golden("qwen3")).graph;
    let out = |label: &str| {
        let node = graph.nodes.iter().find(|n| *n.label == *label && n.op.name() == "linear");
        graph.fact(node.unwrap().outputs[0]).to_string()
    };
    assert_eq!(out("blk.0.ffn_down"), "f32[T, 44]");
    assert_eq!(out("blk.1.attn_v"), "f32[T, 40]");
    assert_eq!(out("blk.1.attn_output"), "f32[L, 44]");
}

#[test]
fn every_golden_family_builds_without_a_warning() {
    let names = [
        ("llama2", "llama"),
        ("llama3", "llama"),
        ("llama-linear", "llama"),
        ("llama-yarn", "llama"),
        ("smollm2", "llama"),
        ("mistral", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("gemma3", "gemma3"),
        ("gemma3-scaled", "gemma3"),
    ];
    for (name, family) in names {
        let model = built(&golden(name));
        assert_eq!(model.family.name, family, "{name}");
        assert!(model.warnings.is_empty(), "{name}: {:?}", model.warnings);
    }
}

#[test]
fn windows_are_where_the_family_has_them() {
    assert_eq!(windows(&built(&golden("mistral")).graph), [16, 16, 16]);
    assert_eq!(windows(&built(&golden("llama2")).graph), [0, 0]);
    let mut gemma = golden("gemma3");
    assert_eq!(windows(&built(&gemma).graph), [16, 16, 16, 16, 16, 0, 16]);
    gemma.metadata.insert("gemma3.attention.sliding_window_pattern", 2u32);
    assert_eq!(windows(&built(&gemma).graph), [16, 0, 16, 0, 16, 0, 16]);
    let mut local = vec![true; 7];
    local[3] = false;
    let pattern = |local: Vec<bool>| cyb_formats::Value::Array(Array::Bool(local));
    gemma.metadata.insert("gemma3.attention.sliding_window_pattern", pattern(local));
    assert_eq!(windows(&built(&gemma).graph), [16, 16, 16, 0, 16, 16, 16]);
    gemma.metadata.insert("gemma3.attention.sliding_window_pattern", pattern(vec![true]));
    assert!(error(&gemma).contains("it must have 7 booleans"), "{}", error(&gemma));
}

#[test]
fn the_tensors_decide_whether_the_head_is_shared() {
    let table = |file: &ModelFile| {
        let graph = built(file).graph;
        let (_, logits) = graph.outputs[0];
        let weight = graph.producer(logits).unwrap().inputs[1];
        match &graph.value(weight).source {
            Source::Weight(name, ..) => name.to_string(),
            other => panic!("{other:?} is no weight"),
        }
    };
    let mut file = golden("llama2");
    assert_eq!(table(&file), "output.weight");
    file.tensors.shift_remove("output.weight").unwrap();
    assert_eq!(table(&file), "token_embd.weight");
}

/// A configuration that says the head is shared, beside a head in the file: it loads, the file's
/// head is used, and the user is told.
#[test]
fn a_contradicted_tie_is_reported() {
    use crate::decoder::{Decoder, Ending};
    use crate::keys::Keys;
    use crate::rope::Style;
    use crate::weights::Weights;

    let file = golden("llama2");
    let options = GraphOptions::default();
    let keys = Keys::new(&file.metadata, "llama");
    let mut config =
        crate::Config::from_gguf(&keys, &Weights::new(&file), Style::Pairs, 10_000.0).unwrap();
    for (tied, told) in [(None, 0), (Some(false), 0), (Some(true), 1)] {
        config.tie_word_embeddings = tied;
        let ending = Ending { head: Head::Words, labels: 0, packed: false };
        let mut decoder = Decoder::new(&config, Weights::new(&file), &options, ending).unwrap();
        let x = decoder.embed().unwrap();
        decoder.head(x).unwrap();
        let (_, _, notes) = decoder.finish();
        assert_eq!(notes.len(), told, "{notes:?}");
        assert!(notes.iter().all(|n| n.contains("output.weight")), "{notes:?}");
    }
}

#[test]
fn an_unknown_architecture_names_itself_the_nearest_and_all() {
    let mut file = golden("qwen2");
    file.metadata.insert("general.architecture", "qwen22");
    let text = error(&file);
    assert!(text.contains("architecture \"qwen22\" is not supported"), "{text}");
    assert!(text.contains("nearest supported one is 'qwen2'"), "{text}");
    for family in FAMILIES {
        assert!(family.names.iter().all(|n| text.contains(n)), "{text}");
        assert!(family.names.iter().all(|n| find(n).is_some_and(|f| f.name == family.name)));
    }
    file.metadata.insert("general.architecture", "x".repeat(1 << 20));
    assert!(error(&file).len() < 800);
    file.metadata.remove("general.architecture");
    assert!(error(&file).contains("general.architecture"));
}

#[test]
fn keys_that_may_change_the_result_are_errors() {
    let fails = |name: &str, key: &str, value: cyb_formats::Value, says: &str| {
        let mut file = golden(name);
        file.metadata.insert(key, value);
        let text = error(&file);
        assert!(text.contains(key) && text.contains(says), "{text}");
        assert!(text.contains(&format!("{name}.gguf")), "{text}");
    };
    fails("llama2", "llama.attention.logit_softcapping", 30f32.into(), "does not know it");
    fails("qwen2", "qwen2.attention.sliding_window", 64u32.into(), "does not know it");
    fails("llama2", "llama.expert_count", 8u32.into(), "only 0 is supported");
    fails("llama2", "llama.rope.scaling.type", "ntk-parts".into(), "only none, linear and yarn");
    fails("llama2", "llama.attention.head_count", 0u32.into(), "it must be from 1");
    fails("qwen3", "qwen3.attention.head_count_kv", 3u32.into(), "must divide the 4 query heads");
    fails("qwen3", "qwen3.rope.dimension_count", 7u32.into(), "must be even");
    fails("qwen3", "qwen3.rope.dimension_count", 22u32.into(), "at most the head's 20");
    fails("qwen3", "qwen3.attention.key_length", (1u64 << 29).into(), "at most 16384");
    fails("qwen3", "qwen3.attention.value_length", 16u32.into(), "only 20 is supported");
    fails("llama2", "llama.block_count", u64::MAX.into(), "it must be from 1");
    fails("llama2", "llama.rope.freq_base", f32::NAN.into(), "greater than 0");
    fails("llama2", "llama.attention.causal", false.into(), "only true is supported");
    fails("llama2", "general.type", "adapter".into(), "adapter");
    fails("llama2", "llama.context_length", "long".into(), "size");

    let mut twice = golden("llama3");
    twice.metadata.insert("llama.rope.scaling.factor", 2f32);
    assert!(error(&twice).contains("the file also has rope_freqs.weight"), "{}", error(&twice));
}

#[test]
fn harmless_additions_are_not_errors() {
    let mut file = golden("llama2");
    file.metadata.insert("general.quantized_by", "somebody");
    file.metadata.insert("quantize.imatrix.entries_count", 224i32);
    file.metadata.insert("split.count", 1u16);
    file.metadata.insert("llama.expert_count", 0u32);
    file.metadata.insert("llama.rope.scaling.type", "none");
    file.metadata.insert("llama.tensor_data_layout", "Meta AI original pth");
    assert!(built(&file).warnings.is_empty());
    file.metadata.insert("other.key", 1u32);
    file.tensors.insert("cls.weight".into(), Tensor::from_f32(vec![1], &[0.0]).unwrap());
    let warnings = built(&file).warnings;
    assert_eq!(warnings, ["metadata 'other.key' is ignored", "tensor 'cls.weight' is not used"]);
}

#[test]
fn tensors_are_checked_against_the_metadata() {
    let ones = |shape: Vec<usize>| {
        let elems = vec![1.0; shape.iter().product()];
        Tensor::from_f32(shape, &elems).unwrap()
    };
    let mut file = golden("qwen2");
    file.tensors.insert("blk.1.ffn_up.weight".into(), ones(vec![90, 48]));
    let text = error(&file);
    let says =
        "tensor 'blk.1.ffn_up.weight' has shape [90, 48], but the metadata asks for [90, 56]";
    assert!(text.contains(says), "{text}");

    let mut file = golden("qwen2");
    file.tensors.shift_remove("blk.1.attn_k.bias").unwrap();
    let text = error(&file);
    assert!(text.contains("blk.1.attn_k.bias"), "{text}");

    let mut file = golden("llama2");
    file.tensors.shift_remove("output_norm.weight").unwrap();
    assert!(error(&file).contains("output_norm.weight"));

    let mut file = golden("llama2");
    file.tensors.insert("blk.0.attn_q.bias".into(), ones(vec![48]));
    let graph = built(&file).graph;
    assert!(graph.nodes.iter().any(|n| n.op.name() == "linear" && n.inputs.len() == 3));

    file.tensors.insert("blk.0.attn_sinks.weight".into(), ones(vec![4]));
    file.tensors.insert("blk.2.attn_q.weight".into(), ones(vec![48, 48]));
    let text = error(&file);
    assert!(text.contains("no use for tensor 'blk.0.attn_sinks.weight' and 1 more"), "{text}");

    let mut file = golden("llama3");
    file.tensors.insert("rope_freqs.weight".into(), ones(vec![5]));
    assert!(error(&file).contains("rope_freqs.weight"));
}

#[test]
fn a_cache_that_cannot_hold_the_heads_is_an_error() {
    let file = golden("qwen3");
    let with = |kv_dtype, kv_block| {
        let options = GraphOptions { kv_dtype, kv_block, ..GraphOptions::default() };
        build(&file, &options)
    };
    assert!(with(DType::BF16, 1).is_ok());
    let text = with(DType::Q8_0, 32).unwrap_err().to_string();
    assert!(text.contains("heads of 20 are not whole blocks of 32"), "{text}");
    assert!(matches!(with(DType::I8, 32), Err(ModelError::KvStorage { .. })));
    assert!(matches!(with(DType::F16, 0), Err(ModelError::KvStorage { .. })));
}
