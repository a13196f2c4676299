//! Encoders from Hugging Face directories, against transformers and sentence-transformers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};

use cyb_llm::{
    BackendKind, Config, DType, Error, IndexMap, LoadOptions, Model, Purpose, Runtime, Scored,
    Tensor, TextOptions, ZeroShot, npz,
};
use serde_json::Value;

fn runtime(threads: usize, backend: BackendKind) -> Runtime {
    Runtime::new(Config { threads: Some(threads), backend, ..Config::auto() }).unwrap()
}

#[allow(clippy::result_large_err, reason = "a test looks at the error as it is")]
fn load(path: &Path) -> Result<Model, Error> {
    runtime(2, BackendKind::Cpu).load(path.to_str().unwrap())
}

fn golden(name: &str) -> PathBuf {
    cyb_testkit::golden(&format!("encoders/{name}"))
}

fn model(name: &str) -> Model {
    load(&golden(name)).unwrap()
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(name)).unwrap()).unwrap()
}

/// The entries of a golden archive under a prefix, without it.
fn arrays(name: &str, prefix: &str) -> IndexMap<String, Tensor> {
    let all = npz::read(&golden(&format!("{name}.npz"))).unwrap();
    all.into_iter()
        .filter_map(|(key, tensor)| Some((key.strip_prefix(prefix)?.to_owned(), tensor)))
        .collect()
}

/// The relative error of a row.
fn error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let sum = |f: &dyn Fn(usize) -> f64| (0..want.len()).map(f).sum::<f64>().sqrt();
    let off = sum(&|i| f64::from(got[i] - want[i]).powi(2));
    off / sum(&|i| f64::from(want[i]).powi(2))
}

/// Every row of every output within a relative error of 1e-3, where the mask is 1.
fn agrees(name: &str, backend: BackendKind) {
    let path = golden(name);
    let options = LoadOptions { purpose: Purpose::Sequences, ..LoadOptions::default() };
    let model = runtime(2, backend).load_with(path.to_str().unwrap(), options).unwrap();
    let inputs = arrays(name, "in.");
    let outputs = model.forward(&inputs).unwrap();
    let mask: Vec<i64> = inputs["attention_mask"].to_vec(DType::I64).unwrap();
    let want = arrays(name, "out.");
    assert!(!want.is_empty());
    for (output, want) in want {
        let got = &outputs[&output];
        assert_eq!(got.shape(), want.shape(), "{name} {output}");
        let width = *want.shape().last().unwrap();
        let per_token = want.shape().len() == 3;
        let (got, want) = (got.to_f32_vec().unwrap(), want.to_f32_vec().unwrap());
        for (i, (got, want)) in got.chunks(width).zip(want.chunks(width)).enumerate() {
            if !per_token || mask[i] == 1 {
                let error = error(got, want);
                assert!(error < 1e-3, "{name} {output} row {i}: relative error {error}");
            }
        }
    }
}

macro_rules! encoders {
    ($($test:ident $name:literal;)*) => {$(
        #[test]
        fn $test() {
            agrees($name, BackendKind::Cpu);
        }
    )*};
}

encoders! {
    bert "bert";
    bert_masked "bert-masked";
    bert_pair "bert-pair";
    bert_rerank_in_bfloat16 "bert-rerank";
    bert_tags "bert-tags";
    roberta "roberta";
    roberta_nli "roberta-nli";
    xlm_roberta_masked "xlm-roberta-masked";
    xlm_roberta_tags_in_half "xlm-roberta-tags";
    distilbert "distilbert";
    distilbert_masked "distilbert-masked";
    electra "electra";
    electra_tags "electra-tags";
    modernbert_with_windows "modernbert";
    modernbert_masked "modernbert-masked";
    mpnet "mpnet";
    nomic_bert "nomic-bert";
    nomic_bert_masked "nomic-masked";
    gte "gte";
    eurobert "eurobert";
    deberta "deberta";
    deberta_tags "deberta-tags";
    deberta_masked "deberta-masked";
    deberta_with_a_convolution "deberta-conv";
    modernbert_by_the_mean "modernbert-mean";
    eurobert_late "eurobert-late";
    t5 "t5";
    t5_gated "t5-gated";
    qwen3_that_ranks "qwen3-rerank";
    gemma2_that_classifies "gemma2-pair";
    llama_that_tags "llama-tags";
    mistral_with_gaps_and_a_window "mistral-gaps";
    gemma3_both_ways "gemma3-both-ways";
    gte_as_published "gte-new";
    eurobert_masked_tied "eurobert-masked";
    bert_masked_untied "bert-untied";
    electra_masked_with_a_gelu_of_its_own "electra-masked";
}

#[test]
fn without_kernels() {
    agrees("bert", BackendKind::Atoms);
    agrees("roberta-nli", BackendKind::Atoms);
    agrees("deberta", BackendKind::Atoms);
    agrees("deberta-conv", BackendKind::Atoms);
    agrees("gemma2-pair", BackendKind::Atoms);
    agrees("gte-new", BackendKind::Atoms);
}

#[test]
fn a_directory_of_our_own_gives_the_same_bits() {
    for name in ["bert-pair", "sentence-cls", "roberta-nli"] {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        let original = model(name);
        original.package().write_directory(&own).unwrap();
        assert!(own.join("config.toml").is_file() && !own.join("config.json").exists());
        // The tokenizer is in vocab.toml, and two of them are none.
        assert!(own.join("vocab.toml").is_file() && !own.join("tokenizer.json").exists());
        std::fs::write(own.join("tokenizer.json"), "{}").unwrap();
        assert!(load(&own).unwrap_err().to_string().contains("keep one"));
        std::fs::remove_file(own.join("tokenizer.json")).unwrap();
        let again = load(&own).unwrap();
        let cut = TextOptions { truncate: true };
        let texts = ["The river flows near Rome.", "why?"];
        if name.starts_with("sentence") {
            assert_eq!(again.embed(&texts, cut).unwrap(), original.embed(&texts, cut).unwrap());
        } else {
            let pairs = texts.map(|text| (text, Some("a bird")));
            let scores = |model: &Model| model.classify(&pairs, cut).unwrap();
            assert_eq!(scores(&again), scores(&original));
        }
        // Two sets of weights are none.
        std::fs::copy(own.join("weights.safetensors"), own.join("weights.bin")).unwrap();
        let error = load(&own).unwrap_err().to_string();
        assert!(error.contains("2 files called weights"), "{error}");
        let config = own.join("config.toml");
        let text = std::fs::read_to_string(&config).unwrap();
        let named = "\n[components.all]\nweights = \"weights.safetensors\"\nrole = \"encoder\"\n";
        std::fs::write(&config, text.clone() + named).unwrap();
        assert!(load(&own).is_ok());
        std::fs::write(&config, text.clone() + &named.replace("weights.s", "../weights.s"))
            .unwrap();
        assert!(load(&own).unwrap_err().to_string().contains("leads out"));
        std::fs::write(&config, text + "\nx = [").unwrap();
        assert!(load(&own).unwrap_err().to_string().contains("config.toml"));
    }
}

/// A copy of a golden model whose config.json is changed.
fn changed(
    name: &str,
    change: impl FnOnce(&mut serde_json::Map<String, Value>),
) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(golden(name)).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
        }
    }
    let path = dir.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(config.as_object_mut().unwrap());
    std::fs::write(&path, config.to_string()).unwrap();
    dir
}

/// A copy of a golden model that has lists of tokens in place of tokenizer.json.
fn with_lists(name: &str) -> tempfile::TempDir {
    let dir = changed(name, |_| ());
    let path = dir.path().join("tokenizer.json");
    let file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let model = &file["model"];
    if model["type"] == "BPE" {
        std::fs::write(dir.path().join("vocab.json"), model["vocab"].to_string()).unwrap();
        let merges = model["merges"].as_array().unwrap().iter();
        let words = |m: &Value| format!("{} {}", m[0].as_str().unwrap(), m[1].as_str().unwrap());
        let merges: Vec<String> = merges.map(words).collect();
        let merges = format!("#version: 0.2\n{}\n", merges.join("\n"));
        std::fs::write(dir.path().join("merges.txt"), merges).unwrap();
    } else {
        let vocab = model["vocab"].as_object().unwrap();
        let mut words: Vec<(&String, u64)> =
            vocab.iter().map(|(word, id)| (word, id.as_u64().unwrap())).collect();
        words.sort_by_key(|(_, id)| *id);
        let lines: String = words.iter().map(|(word, _)| format!("{word}\n")).collect();
        std::fs::write(dir.path().join("vocab.txt"), lines).unwrap();
    }
    dir
}

#[test]
fn lists_of_tokens_in_place_of_a_tokenizer_file() {
    for name in ["bert-pair", "roberta-nli"] {
        let (own, whole) = (with_lists(name), model(name));
        let listed = load(own.path()).unwrap();
        let cut = TextOptions { truncate: true };
        let mut pairs: Vec<(&str, Option<&str>)> = vec![
            ("Is the OLD city small?", Some("No, it is 3 km east.")),
            ("", None),
            ("[SEP] <s> the\tRiver\u{a0}caf\u{e9} \u{6771}\u{4eac}", None),
            ("the dog  sleeps'", Some("")),
        ];
        let long = "the rain ".repeat(80);
        pairs.push((&long, Some("a bird sings")));
        let scores = |model: &Model| model.classify(&pairs, cut).unwrap();
        assert_eq!(scores(&listed), scores(&whole), "{name}");
        let back = |model: &Model| model.detokenize(&[30, 40]).unwrap();
        assert_eq!(back(&listed), back(&whole));
    }
    let no_merges = with_lists("roberta-nli");
    std::fs::remove_file(no_merges.path().join("merges.txt")).unwrap();
    assert!(load(no_merges.path()).unwrap_err().to_string().contains("merges.txt"));
    let bad = with_lists("roberta-nli");
    std::fs::write(bad.path().join("merges.txt"), "a b\nc\n").unwrap();
    let error = load(bad.path()).unwrap_err().to_string();
    assert!(error.contains("merges.txt line 2"), "{error}");
    let lacking = with_lists("bert-pair");
    std::fs::write(lacking.path().join("vocab.txt"), "[PAD]\n[UNK]\n").unwrap();
    assert!(load(lacking.path()).unwrap_err().to_string().contains("[CLS]"));
}

#[test]
fn positions_can_be_given() {
    for name in ["bert", "roberta-nli", "eurobert"] {
        let model = model(name);
        let plain = arrays(name, "in.");
        let want = model.forward(&plain).unwrap();
        let shape = plain["input_ids"].shape().to_vec();
        let ids: Vec<i64> = plain["input_ids"].to_vec(DType::I64).unwrap();
        let positions = |shift: i64| -> Vec<i64> {
            let row = |row: &[i64]| -> Vec<i64> {
                let mut seen = 0;
                let count = |id: &i64| {
                    if name != "roberta-nli" || *id != 1 {
                        seen += 1;
                        if name == "roberta-nli" { seen + 1 + shift } else { seen - 1 + shift }
                    } else {
                        1
                    }
                };
                row.iter().map(count).collect()
            };
            ids.chunks(shape[1]).flat_map(row).collect()
        };
        let with = |values: Vec<i64>| {
            let mut inputs = plain.clone();
            let tensor = Tensor::from_elems(DType::I64, shape.clone(), &values).unwrap();
            inputs.insert("position_ids".to_owned(), tensor);
            inputs
        };
        let same = model.forward(&with(positions(0))).unwrap();
        let first = want.keys().next().unwrap();
        assert_eq!(same[first].to_f32_vec().unwrap(), want[first].to_f32_vec().unwrap(), "{name}");
        let moved = model.forward(&with(positions(3))).unwrap();
        let moved = moved[first].to_f32_vec().unwrap();
        if name == "eurobert" {
            // Turned by their distance, tokens do not see a shift.
            let off = error(&moved, &want[first].to_f32_vec().unwrap());
            assert!(off < 1e-4 && off > 0.0, "{off}");
        } else {
            assert!(error(&moved, &want[first].to_f32_vec().unwrap()) > 1e-2, "{name}");
        }
        let error = model.forward(&with(vec![400; ids.len()])).unwrap_err().to_string();
        assert!(error.contains("position_ids") && error.contains("400"), "{error}");
    }
    // Its positions are distances alone.
    let mut inputs = arrays("t5", "in.");
    inputs.insert("position_ids".to_owned(), inputs["input_ids"].clone());
    let error = model("t5").forward(&inputs).unwrap_err().to_string();
    assert!(error.contains("position_ids") && error.contains("no such input"), "{error}");
}

#[test]
fn what_deberta_makes_and_does_not_use_is_left() {
    let plain = changed("deberta", |config| {
        config.insert("relative_attention".into(), false.into());
    });
    let model = load(plain.path()).unwrap();
    assert_ne!(logits(&model, "deberta"), logits(&self::model("deberta"), "deberta"));
}

fn logits(model: &Model, name: &str) -> Vec<f32> {
    let outputs = model.forward(&arrays(name, "in.")).unwrap();
    outputs["logits"].to_f32_vec().unwrap()
}

#[test]
fn the_spelling_of_transformers_4() {
    let old = changed("bert-rerank", |config| {
        let dtype = config.remove("dtype").unwrap();
        config.insert("torch_dtype".into(), dtype);
        config.insert("position_embedding_type".into(), "absolute".into());
        config.insert("transformers_version".into(), "4.40.0".into());
        config.insert("_name_or_path".into(), "somebody/model".into());
        config.insert("gradient_checkpointing".into(), false.into());
    });
    let want = logits(&model("bert-rerank"), "bert-rerank");
    assert_eq!(logits(&load(old.path()).unwrap(), "bert-rerank"), want);
}

#[test]
fn keys_that_change_the_maths_and_are_not_understood_are_errors() {
    let fails = |key: &str, value: Value, parts: &[&str]| {
        let dir = changed("bert", |config| drop(config.insert(key.to_owned(), value)));
        let error = load(dir.path()).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "no {part:?} in {error}");
        }
    };
    fails("position_embedding_type", "relative_key".into(), &["relative_key", "absolute"]);
    fails("embedding_multiplier", 2.0.into(), &["config.embedding_multiplier", "may change"]);
    fails("hidden_act", "mish".into(), &["mish", "gelu"]);
    fails("quantization_config", serde_json::json!({"bits": 4}), &["quantization_config.bits"]);
    fails("num_attention_heads", 5.into(), &["num_attention_heads", "divide"]);
    fails("num_hidden_layers", 1.into(), &["encoder.layer.1", "no use"]);
    fails("num_hidden_layers", 3.into(), &["encoder.layer.2"]);
    fails("hidden_size", 36.into(), &["shape", "word_embeddings"]);
    fails("is_decoder", true.into(), &["is_decoder"]);
    fails("model_type", "bart".into(), &["bart", "bert"]);
    fails("architectures", vec!["BertForQuestionAnswering"].into(), &["QuestionAnswering"]);
}

#[test]
fn weights_that_are_not_one_set() {
    let dir = changed("bert", |_| {});
    let weights = dir.path().join("model.safetensors");
    std::fs::copy(&weights, dir.path().join("other.safetensors")).unwrap();
    let error = load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("2 safetensors files"), "{error}");
    std::fs::remove_file(dir.path().join("other.safetensors")).unwrap();
    std::fs::write(dir.path().join("model.gguf"), b"GGUF").unwrap();
    let error = load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("GGUF"), "{error}");
    std::fs::remove_file(dir.path().join("model.gguf")).unwrap();
    std::fs::remove_file(dir.path().join("config.json")).unwrap();
    let error = load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("config.json"), "{error}");
}

/// Labels and scores of a pipeline of transformers.
fn same_scores(what: &str, got: &[Scored], want: &Value) {
    let want = want.as_array().unwrap();
    assert_eq!(got.len(), want.len(), "{what}");
    for (got, want) in got.iter().zip(want) {
        let score = want[1].as_f64().unwrap();
        assert_eq!(got.label, want[0].as_str().unwrap(), "{what}");
        assert!((f64::from(got.score) - score).abs() < 1e-3, "{what}: {got:?}, not {score}");
    }
}

#[test]
fn classifiers_give_what_the_pipelines_give() {
    let golden = json("texts.json");
    let texts: Vec<&str> =
        golden["texts"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    for name in ["bert-pair", "roberta-nli", "distilbert", "electra", "gemma2-pair"] {
        let pairs: Vec<_> = texts.iter().map(|t| (*t, None)).collect();
        let scored = model(name).classify(&pairs, TextOptions::default()).unwrap();
        for (scored, want) in scored.iter().zip(golden[name].as_array().unwrap()) {
            same_scores(name, scored, want);
        }
    }
    let tagged = model("bert-tags").classify_tokens(&texts, TextOptions::default()).unwrap();
    for (tokens, want) in tagged.iter().zip(golden["bert-tags"].as_array().unwrap()) {
        let want = want.as_array().unwrap();
        assert_eq!(tokens.len(), want.len());
        for (got, want) in tokens.iter().zip(want) {
            assert_eq!(
                (got.token.as_str(), got.label.as_str()),
                (want[0].as_str().unwrap(), want[1].as_str().unwrap())
            );
            assert!((f64::from(got.score) - want[2].as_f64().unwrap()).abs() < 1e-3);
            let span = want[3].as_u64().unwrap() as usize..want[4].as_u64().unwrap() as usize;
            assert_eq!(got.span, span, "{got:?}");
        }
    }
}

#[test]
fn labels_of_ones_own_and_ranking() {
    let golden = json("texts.json");
    let strings = |name: &str| -> Vec<String> {
        let list = golden[name].as_array().unwrap();
        list.iter().map(|t| t.as_str().unwrap().to_owned()).collect()
    };
    let (texts, topics) = (strings("texts"), strings("topics"));
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    let nli = model("roberta-nli");
    for (key, multi_label) in [("zero-shot", false), ("zero-shot-multi", true)] {
        let how = ZeroShot { multi_label, ..ZeroShot::default() };
        let asked = texts.iter().filter(|t| !t.is_empty());
        for (text, want) in asked.zip(golden[key].as_array().unwrap()) {
            for scored in nli.classify_by(text, &topics, &how, TextOptions::default()).unwrap() {
                let want = want[&scored.label].as_f64().unwrap();
                assert!(
                    (f64::from(scored.score) - want).abs() < 1e-3,
                    "{key} {text}: {scored:?}, not {want}"
                );
            }
        }
    }
    let documents: Vec<&str> = texts.iter().map(String::as_str).collect();
    let query = golden["query"].as_str().unwrap();
    for name in ["bert-rerank", "qwen3-rerank"] {
        let scores = model(name).rerank(query, &documents, TextOptions::default()).unwrap();
        for (score, want) in scores.iter().zip(golden[name].as_array().unwrap()) {
            let want = want.as_f64().unwrap();
            assert!((f64::from(*score) - want).abs() < 1e-3, "{name}: {score}, not {want}");
        }
    }
}

#[test]
fn poolings_dense_stages_and_normalization() {
    let golden = json("sentences.json");
    let texts: Vec<&str> =
        golden["texts"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    let cut = TextOptions { truncate: true };
    for (mode, want) in golden.as_object().unwrap().iter().filter(|(k, _)| *k != "texts") {
        let model = model(&format!("sentence-{mode}"));
        let got = model.embed(&texts, cut).unwrap();
        for (i, (got, want)) in got.iter().zip(want.as_array().unwrap()).enumerate() {
            let want: Vec<f32> =
                want.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
            let error = error(got, &want);
            assert!(error < 1e-5, "{mode}, text {i}: relative error {error}");
        }
        let long = "rain ".repeat(30);
        let error = model.embed(&[long.as_str()], TextOptions::default()).unwrap_err().to_string();
        assert!(model.embed(&[long.as_str()], cut).is_ok());
        assert!(error.contains("takes 20") && error.contains("--truncate"), "{error}");
    }
}

#[test]
fn a_text_gives_the_same_bits_alone_in_any_batch_and_on_any_number_of_threads() {
    let golden = json("sentences.json");
    let texts: Vec<&str> =
        golden["texts"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    let cut = TextOptions { truncate: true };
    let path = self::golden("sentence-mean");
    let model = load(&path).unwrap();
    // Enough for several packs of different make-up.
    let many: Vec<&str> = texts.iter().cycle().take(211).copied().collect();
    let together = model.embed(&many, cut).unwrap();
    let single = runtime(1, BackendKind::Cpu).load(path.to_str().unwrap()).unwrap();
    for (text, vector) in many.iter().zip(&together) {
        assert_eq!(&model.embed(&[*text], cut).unwrap()[0], vector, "{text:?}");
        assert_eq!(&single.embed(&[*text], cut).unwrap()[0], vector, "{text:?}, one thread");
    }
}

#[test]
fn what_a_model_does_not_do() {
    let options = TextOptions::default();
    let fails = |result: Result<(), Error>, parts: &[&str]| {
        let error = result.unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "no {part:?} in {error}");
        }
    };
    let pair = model("bert-pair");
    fails(pair.generate("x", Default::default()).map(drop), &["encoder", "classify"]);
    fails(pair.rerank("q", &["d"], options).map(drop), &["3 labels", "one"]);
    fails(pair.classify_tokens(&["x"], options).map(drop), &["bert-pair", "tokens"]);
    fails(pair.classify_by("x", &[], &ZeroShot::default(), options).map(drop), &["labels"]);
    let sentiment = model("distilbert");
    fails(
        sentiment.classify_by("x", &["a"], &ZeroShot::default(), options).map(drop),
        &["NEGATIVE", "entailment"],
    );
    let long = "rain ".repeat(200);
    fails(pair.classify(&[(&long, None)], options).map(drop), &["202", "99"]);
    assert!(pair.classify(&[(&long, None)], TextOptions { truncate: true }).is_ok());
}

#[test]
fn control_tokens_in_a_text_are_text() {
    let model = model("bert-pair");
    let ids = |text| model.package().tokenize(text, Default::default()).unwrap();
    assert!(!ids("a [SEP] b").contains(&3));
    let marked = cyb_llm::EncodeOptions { parse_special: true, add_special: true };
    assert_eq!(model.package().tokenize("[SEP]", marked).unwrap(), [2, 3, 3]);
}

/// The real model, on 200 texts of many scripts.
#[test]
fn minilm_equals_sentence_transformers() {
    let golden = npz::read(&golden("minilm.npz")).unwrap();
    let text: Vec<u8> = golden["text"].to_vec(DType::U8).unwrap();
    let text = String::from_utf8(text).unwrap();
    let texts: Vec<&str> = text.split('\n').collect();
    assert_eq!(texts.len(), 200);
    let model = load(&cyb_testkit::model("all-MiniLM-L6-v2")).unwrap();
    let cut = TextOptions { truncate: true };

    let lengths: Vec<i32> = golden["lengths"].to_vec(DType::I32).unwrap();
    let ids: Vec<i32> = golden["ids"].to_vec(DType::I32).unwrap();
    let mut at = 0;
    let options = cyb_llm::EncodeOptions { add_special: true, parse_special: false };
    for (text, &n) in texts.iter().zip(&lengths) {
        let want: Vec<u32> = ids[at..at + n as usize].iter().map(|&id| id as u32).collect();
        at += n as usize;
        let got = model.tokenize(text, options).unwrap();
        // The reference's are cut to the model's 256.
        match want.len() {
            256 => assert_eq!(got[..255], want[..255], "{text:?}"),
            _ => assert_eq!(got, want, "{text:?}"),
        }
    }
    let want = golden["embeddings"].to_f32_vec().unwrap();
    let got = model.embed(&texts, cut).unwrap();
    for ((text, got), want) in texts.iter().zip(&got).zip(want.chunks(384)) {
        let cosine: f64 = got.iter().zip(want).map(|(a, b)| f64::from(a * b)).sum();
        assert!(cosine >= 0.99999, "{text:?}: cosine {cosine}");
        let apart = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(apart < 1e-5, "{text:?}: {apart} apart");
    }
}
