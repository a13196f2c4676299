//! What the commands print when all goes well.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::path::Path;

use common::{command, demo, file, piped, shown, soma, tiny};
use cyb_formats::npz;

#[test]
fn an_answer_as_json_has_the_fields_of_the_contract() {
    let model = demo();
    let words = ["run", "--model", &model, "--json", "--temperature", "0", "--max-tokens", "12"];
    let asked = [&words[..], &["--prompt", "What is the capital of France?"]].concat();
    let answer = soma(&asked).json();
    // llama.cpp's greedy tokens for this prompt and file.
    let expected = [60, 23, 39614, 1141, 552, 28, 2618, 2828, 313, 7712, 769, 28];
    assert_eq!(answer["token_ids"], serde_json::json!(expected));
    assert_eq!(answer["text"], "L'Étoile, la Marseillaise,");
    let made = expected.len();
    assert_eq!(answer["usage"]["completion_tokens"], made);
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 10);
    assert!(["stop", "length"].contains(&answer["finish_reason"].as_str().unwrap()));
    for name in ["load_ms", "prefill_ms", "decode_ms", "prefill_tok_per_sec", "peak_memory_mb"] {
        assert!(answer["metrics"][name].as_f64().unwrap() > 0.0, "{name} in {answer}");
    }
    let op = &answer["metrics"]["ops"][0];
    assert!(op["name"].is_string() && op["calls"].as_u64() > Some(0) && op["total_ms"].is_f64());
    let again = piped(&words, b"What is the capital of France?\n").json();
    assert_eq!(again["token_ids"], answer["token_ids"], "a pipe and --prompt are the same");
}

#[test]
fn stop_strings_cut_the_text() {
    let model = demo();
    let words = ["run", "--model", &model, "--json", "--temperature", "0", "--max-tokens", "30"];
    let prompt = ["--prompt", "What is the capital of France?", "--stop", "Marse"];
    let answer = soma(&[&words[..], &prompt].concat()).json();
    assert_eq!(answer["finish_reason"], "stop");
    let text = answer["text"].as_str().unwrap();
    assert_eq!(text, "L'Étoile, la ");
}

#[test]
fn no_tokens_is_an_answer_too() {
    let answer =
        soma(&["run", "--model", &tiny(), "--prompt", "ab", "--max-tokens", "0", "--json"]).json();
    assert_eq!(
        (answer["text"].as_str(), answer["finish_reason"].as_str()),
        (Some(""), Some("length"))
    );
    assert_eq!(answer["usage"]["completion_tokens"], 0);
}

#[test]
fn a_seed_repeats_and_presets_hold() {
    let model = tiny();
    let words = ["run", "--model", &model, "--prompt", "abc", "--max-tokens", "16", "--json"];
    let ids = |more: &[&str]| soma(&[&words[..], more].concat()).json()["token_ids"].clone();
    assert_eq!(ids(&["--seed", "7"]), ids(&["--seed", "7"]));
    assert_ne!(
        ids(&["--seed", "7", "--temperature", "2"]),
        ids(&["--seed", "8", "--temperature", "2"])
    );
    assert_eq!(ids(&["--preset", "router"]), ids(&["--temperature", "0"]));
}

/// Kernels change speed, never tokens.
#[test]
fn the_same_tokens_without_kernels_and_with_any_number_of_threads() {
    let model = tiny();
    let words = ["run", "--model", &model, "--prompt", "abc", "--max-tokens", "12", "--json"];
    let ids = |more: &[&str]| {
        soma(&[&words[..], &["--temperature", "0"], more].concat()).json()["token_ids"].clone()
    };
    let expected = ids(&["--threads", "1"]);
    assert_eq!(ids(&["--threads", "2"]), expected);
    assert_eq!(ids(&["--backend", "atoms"]), expected);
}

#[test]
fn tokens_and_text() {
    let model = demo();
    let text = "Hello, naïve 東京 👩‍👧!";
    let ids = soma(&["tokenize", "--model", &model, "--text", text]).json();
    let list: Vec<String> = ids.as_array().unwrap().iter().map(ToString::to_string).collect();
    let back = soma(&["detokenize", "--model", &model, "--ids", &list.join(",")]).ok();
    assert_eq!(back, format!("{text}\n"));
    let dir = tempfile::tempdir().unwrap();
    let texts = file(&dir, "texts.json", serde_json::json!([text, "", "<|im_end|>"]).to_string());
    let all = soma(&["tokenize", "--model", &model, "--texts", &texts]).json();
    assert_eq!((all[0] == ids, all[1].as_array().unwrap().len()), (true, 0));
    assert!(all[2].as_array().unwrap().len() > 1, "text is no control token: {all}");
    let words = ["tokenize", "--model", &model, "--text", "<|im_end|>", "--parse-special"];
    assert_eq!(soma(&words).json().as_array().unwrap().len(), 1);
}

#[test]
fn templates() {
    let dir = tempfile::tempdir().unwrap();
    let messages = file(&dir, "m.json", r#"[{"role": "user", "content": "Hi"}]"#);
    let prompt = soma(&["template", "--model", &demo(), "--messages", &messages]).ok();
    assert!(prompt.contains("<|im_start|>user\nHi<|im_end|>"), "{prompt}");
    assert!(prompt.ends_with("<|im_start|>assistant\n"), "{prompt}");
}

/// Logits of the reference, by way of files.
#[test]
fn forward_equals_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    let golden = npz::read(&cyb_testkit::golden("families/llama3.npz")).unwrap();
    let inputs = dir.path().join("in.npz");
    npz::write(&inputs, [("input_ids", &golden["40.input_ids"])]).unwrap();
    let (inputs, model) = (common::shown(&inputs), tiny());
    let list = format!(
        "{model}\t{inputs}\t{0}/a.npz\nnone\t{inputs}\t{0}/b.npz\n{model}\t{inputs}\t{0}/c.npz\n",
        dir.path().display()
    );
    let ran = soma(&["forward", "--list", &file(&dir, "list", list)]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("line 2") && ran.stderr.contains("1 of 3"), "{}", ran.stderr);
    assert!(!dir.path().join("b.npz").exists());
    for name in ["a.npz", "c.npz"] {
        let outputs = npz::read(&dir.path().join(name)).unwrap();
        for output in ["logits", "last_hidden_state"] {
            let got = outputs[output].to_f32_vec().unwrap();
            let want = golden[&format!("40.{output}")].to_f32_vec().unwrap();
            assert_eq!(outputs[output].shape(), golden[&format!("40.{output}")].shape());
            let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
            let apart = got.iter().zip(&want).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(apart <= 1e-3 * largest, "{output}: {apart} of {largest}");
        }
    }
}

#[test]
fn forward_and_generate_say_what_they_expect() {
    let dir = tempfile::tempdir().unwrap();
    let golden = npz::read(&cyb_testkit::golden("families/llama3.npz")).unwrap();
    let (ids, logits) = (&golden["13.input_ids"], &golden["13.logits"]);
    let out = common::shown(&dir.path().join("out.npz"));
    let run = |arrays: &[(&str, &cyb_tensor::Tensor)]| {
        let path = dir.path().join("in.npz");
        npz::write(&path, arrays.iter().copied()).unwrap();
        soma(&["forward", "--model", &tiny(), "--inputs", &common::shown(&path), "--output", &out])
    };
    run(&[("ids", ids)]).fails(1, &["\"ids\"", "input_ids"]);
    run(&[("input_ids", logits)]).fails(1, &["input_ids", "expected"]);
    run(&[]).fails(1, &["input_ids"]);
    assert!(!dir.path().join("out.npz").exists());
    let path = common::shown(&dir.path().join("in.npz"));
    npz::write(std::path::Path::new(&path), [("input_ids", ids)]).unwrap();
    let words = ["generate", "--model", &tiny(), "--inputs", &path, "--output", &out];
    assert_eq!(soma(&[&words[..], &["--max-new-tokens", "5"]].concat()).ok(), "");
    let made = npz::read(std::path::Path::new(&out)).unwrap();
    assert_eq!(made["generated_ids"].shape(), [1, 5]);
}

#[test]
fn measurements() {
    let dir = tempfile::tempdir().unwrap();
    let text = file(&dir, "text.txt", "the quick brown fox jumps over the lazy dog. ".repeat(20));
    let words = ["perplexity", "--model", &tiny(), "--file", &text, "--context", "64", "--json"];
    let measured = soma(&words).json();
    assert!(measured["perplexity"].as_f64().unwrap() > 1.0);
    assert_eq!(measured["tokens"].as_u64().unwrap() % 31, 0, "31 tokens of each window count");
    let words = [
        "bench",
        "--model",
        &tiny(),
        "--prompt-tokens",
        "32",
        "--gen-tokens",
        "8",
        "--repeat",
        "2",
        "--json",
    ];
    let bench = soma(&words).json();
    for part in ["prefill", "decode"] {
        let speed = &bench[part]["tok_per_sec"];
        assert!(
            speed["min"].as_f64() > Some(0.0) && speed["max"].as_f64() >= speed["median"].as_f64()
        );
    }
    assert!(bench["decode"]["bytes_per_token"].as_u64() > Some(1000));
    assert!(bench["threads"].as_u64() >= Some(1) && bench["backend"] == "cpu");
}

#[test]
fn what_is_here() {
    let backends = soma(&["backends", "--json"]).json();
    assert!(
        backends["backends"]
            .as_array()
            .unwrap()
            .iter()
            .any(|b| b["name"] == "cpu" && b["in_use"] == true)
    );
    let jets = soma(&["jets", "--json"]).json();
    let jets = jets["jets"].as_array().unwrap();
    assert!(
        jets.iter().any(|jet| jet["name"] == "rmsnorm" && jet["kernels"]["cpu"].is_array()),
        "{jets:?}"
    );
    assert!(jets.iter().all(|jet| jet["hash"].as_str().is_some_and(|hash| hash.len() == 64)));
    let info = soma(&["models", "info", &tiny(), "--json"]).json();
    assert_eq!((info["family"].as_str(), info["chat_template"].is_string()), (Some("llama"), true));
    assert!(
        info["memory"]["total"].as_u64() > Some(100_000) && info["runs_on"][0]["op"].is_string()
    );
    let memory = soma(&["memory", "--model", &tiny(), "--json"]).json();
    assert_eq!(memory["per_model"].as_object().unwrap().len(), 1);
    let checked = soma(&["verify", &demo(), "--json"]).json();
    assert_eq!(checked["ok"], true, "{checked}");
    // The tiny model's vocabulary has no token for many characters.
    let checked = soma(&["verify", &tiny()]);
    assert!(checked.stdout.contains("tokenizer  BAD"), "{}", checked.stdout);
    for (words, parts) in [
        (&["backends"][..], &["cpu", "in use", "threads", "cuda", "metal", "atoms"][..]),
        (&["jets"], &["rmsnorm", "linear", "sdpa_paged", "cpu"]),
        (&["models", "info", &tiny()], &["llama", "parameters", "context", "weights", "runs on"]),
        (&["memory"], &["machine", "available"]),
        (&["memory", "--model", &tiny()], &["llama3.gguf", "keys and values"]),
        (&["config"], &["threads", "backend", "temperature", "default"]),
    ] {
        let shown = soma(words).ok();
        for part in parts {
            assert!(shown.contains(part), "{words:?} has no {part:?}: {shown}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    file(&dir, "one.gguf", "xyz");
    let list = |words: &[&str]| {
        let mut command = command(words);
        command.env("SOMA_MODELS", dir.path()).output().unwrap()
    };
    let shown = String::from_utf8(list(&["models", "list"]).stdout).unwrap();
    assert!(shown.contains("one.gguf") && shown.contains("3 B"), "{shown}");
    let json: serde_json::Value =
        serde_json::from_slice(&list(&["models", "list", "--json"]).stdout).unwrap();
    assert_eq!(json["models"][0]["bytes"], 3);
    assert!(soma(&["completions", "bash"]).ok().contains("soma-runtime"));
}

#[test]
fn options_have_an_order_of_strength() {
    let dir = tempfile::tempdir().unwrap();
    let config = file(&dir, "config.toml", "threads = 1\ncontext = 100\n");
    let show = |words: &[&str], threads: Option<&str>| {
        let mut command = command(&[words, &["--config", &config, "config", "--json"]].concat());
        threads.map(|value| command.env("SOMA_THREADS", value));
        let output = command.output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let from_file = show(&[], None);
    assert_eq!(from_file["threads"]["value"], "1");
    assert!(from_file["threads"]["source"].as_str().unwrap().ends_with("config.toml"));
    assert_eq!(show(&[], Some("2"))["threads"]["source"], "environment variable SOMA_THREADS");
    assert_eq!(show(&["--threads", "3"], Some("2"))["threads"]["source"], "command line");
    assert_eq!(show(&[], None)["backend"]["source"], "default");
}

#[test]
fn a_gguf_file_becomes_a_directory_that_says_how_to_sample() {
    let dir = tempfile::tempdir().unwrap();
    let own = shown(&dir.path().join("own"));
    let run = |model: &str, words: &[&str]| {
        let all = ["run", "--model", model, "--prompt", "x", "--max-tokens", "8", "--json"];
        soma(&[&all[..], words].concat())
    };
    let source = tiny();
    soma(&["import", &source, "--to-directory", "-o", &own]).ok();
    assert!(Path::new(&own).join("weights.gguf").is_file());
    let config = std::fs::read_to_string(Path::new(&own).join("config.toml")).unwrap();
    assert!(config.contains("model_type = \"llama\""), "{config}");
    // What is there already is not written over.
    soma(&["import", &source, "--to-directory", "-o", &own]).fails(1, &["has files already"]);
    let text = |model: &str, words: &[&str]| run(model, words).json()["token_ids"].clone();
    let want = text(&source, &["--temperature", "0"]);
    assert_eq!(text(&own, &["--temperature", "0"]), want);
    let sampling = Path::new(&own).join("sampling.toml");
    std::fs::write(&sampling, "temperature = 0.0\nmax_tokens = 3\nstop = [\"no such text\"]\n")
        .unwrap();
    assert_eq!(text(&own, &[]), want);
    let short = ["run", "--model", &own, "--prompt", "x", "--json"];
    assert_eq!(soma(&short).json()["token_ids"].as_array().unwrap().len(), 3);
    std::fs::write(&sampling, "temperature = 5\n").unwrap();
    run(&own, &[]).fails(1, &["sampling.toml", "temperature", "5"]);
    // A template beside the weights is the one that counts.
    std::fs::write(&sampling, "").unwrap();
    std::fs::write(
        Path::new(&own).join("chat.toml"),
        "template = \"{{ messages[0].content }}!\"\n",
    )
    .unwrap();
    let messages = file(&dir, "m.json", "[{\"role\": \"user\", \"content\": \"hello\"}]");
    assert_eq!(soma(&["template", "--model", &own, "--messages", &messages]).ok().trim(), "hello!");
}
