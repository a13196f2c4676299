//! Everything that can go wrong on the command line: one line on stderr, the right code, no result.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{bare, command, demo, file, piped, shown, soma, tiny};

#[test]
fn wrong_command_lines_are_two() {
    let model = tiny();
    let run = |words: &[&str]| {
        soma(&[&["run", "--model", model.as_str(), "--prompt", "x"], words].concat())
    };
    soma(&["run", "--promt", "x"]).fails(2, &["--promt", "--help"]);
    soma(&["tokenise"]).fails(2, &["tokenise"]);
    soma(&["tokenize", "--model", &model]).fails(2, &["--text"]);
    soma(&["detokenize", "--ids", "1,x"]).fails(2, &["'x'"]);
    soma(&["run", "--backend", "gpu", "--prompt", "x"]).fails(2, &["gpu", "cpu", "atoms"]);
    soma(&["run", "--threads", "0", "--prompt", "x"]).fails(2, &["threads", "0"]);
    soma(&["bench", "--model", &model, "--synthetic", "llama-8b:q4_k"]).fails(2, &["--synthetic"]);
    let without = ["bench", "--model", &model, "--compare", "--python", "no-such-python"];
    soma(&without).fails(1, &["no-such-python", "--python"]);
    run(&["--temperature", "3"]).fails(2, &["temperature", "3", "0.0 to 2.0"]);
    run(&["--temperature", "warm"]).fails(2, &["temperature", "warm"]);
    run(&["--top-p", "-1"]).fails(2, &["top_p", "-1"]);
    run(&["--top-k", "0"]).fails(2, &["top_k", "0"]);
    run(&["--max-tokens", "-5"]).fails(2, &["max_tokens"]);
    run(&["--preset", "poet"]).fails(2, &["poet", "router"]);
    run(&["--stop", ""]).fails(2, &["stop"]);
    run(&["--context", "0"]).fails(2, &["context"]);
}

#[test]
fn models_that_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let load = |path: &str| soma(&["run", "--model", path, "--prompt", "x"]);
    load("no-such-model").fails(1, &["no-such-model", "models folder"]);
    load(&file(&dir, "empty.gguf", "")).fails(1, &["empty.gguf"]);
    load(&file(&dir, "text.gguf", "just some text")).fails(1, &["text.gguf"]);
    load(&shown(dir.path())).fails(1, &["directory"]);
    let whole = std::fs::read(tiny()).unwrap();
    for len in [3, 20, 1000, whole.len() / 2, whole.len() - 1] {
        load(&file(&dir, "cut.gguf", &whole[..len])).fails(1, &["cut.gguf"]);
    }
}

#[test]
fn a_name_that_is_close_is_suggested() {
    let dir = tempfile::tempdir().unwrap();
    file(&dir, "my-model.gguf", "x");
    let mut wrong = command(&["run", "--model", "my-modle.gguf", "--prompt", "x"]);
    let output = wrong.env("SOMA_MODELS", dir.path()).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("my-model.gguf"));
}

#[test]
fn backends_that_are_not_here() {
    for name in ["cuda", "wgpu", "metal"] {
        let words = ["run", "--model", &tiny(), "--prompt", "x", "--backend", name];
        soma(&words).fails(1, &[name, "cpu"]);
    }
}

#[test]
fn layers_for_a_gpu_need_one() {
    let on_cpu = ["run", "--model", &tiny(), "--prompt", "x", "--backend", "cpu"];
    soma(&[&on_cpu[..], &["--gpu-layers", "2"]].concat()).fails(1, &["gpu-layers: 2", "cpu"]);
    let model = tiny();
    let info = soma(&["models", "info", &model, "--backend", "cpu", "--json"]).json();
    let plan = &info["plan"][0];
    assert_eq!((&plan["backend"], &plan["partly"]), (&"cpu".into(), &false.into()));
    assert_eq!(plan["layers"][1], plan["n_layers"].as_u64().unwrap() - 1);
    // Weights and keys and values are those of the loaded model.
    assert_eq!(plan["states"], info["memory"]["kv"]);
    assert!(plan["weights"].as_u64() <= info["memory"]["file"].as_u64().map(|n| n + 4096));
}

#[test]
fn a_prompt_must_fit_the_context() {
    let text = "abcdefghijklmnopqrst";
    let words = ["run", "--raw", "--model", &tiny(), "--context", "8", "--prompt", text];
    let counted = soma(&["tokenize", "--model", &tiny(), "--text", text]).json();
    let count = counted.as_array().unwrap().len();
    assert!(count > 8);
    soma(&words).fails(1, &[&format!("{count} tokens"), "holds 8"]);
    let words = ["run", "--model", &tiny(), "--context", "99999999", "--prompt", "x"];
    soma(&words).fails(1, &["99999999", "at most"]);
}

#[test]
fn prompts_that_are_none() {
    let model = bare();
    let run = ["run", "--model", model.as_str()];
    piped(&run, b"").fails(1, &["no prompt"]);
    piped(&run, b"good \xff bad").fails(1, &["stdin", "UTF-8", "byte 5"]);
    let dir = tempfile::tempdir().unwrap();
    let bad = file(&dir, "bad.json", "{\"role\": ");
    soma(&[&run[..], &["--messages", &bad]].concat()).fails(1, &["bad.json"]);
    let none = file(&dir, "none.json", "[]");
    soma(&[&run[..], &["--messages", &none]].concat()).fails(1, &["none.json", "no messages"]);
    let hello = file(&dir, "hello.json", r#"[{"role": "user", "content": "hello"}]"#);
    soma(&[&run[..], &["--messages", &hello]].concat()).fails(1, &["no chat template"]);
    soma(&["template", "--model", &model, "--messages", &hello]).fails(1, &["no chat template"]);
}

#[test]
fn ids_and_texts_out_of_range() {
    let model = tiny();
    soma(&["detokenize", "--model", &model, "--ids", "1,99999999"]).fails(1, &["99999999"]);
    let dir = tempfile::tempdir().unwrap();
    let short = file(&dir, "short.txt", "too short");
    soma(&["perplexity", "--model", &model, "--file", &short, "--context", "64"])
        .fails(1, &["tokens", "128"]);
    soma(&["perplexity", "--model", &model, "--file", "/no/such/file"])
        .fails(1, &["/no/such/file"]);
}

#[test]
fn configuration_that_is_wrong_names_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let config = file(&dir, "soma.toml", "contxt = 5\n");
    soma(&["--config", &config, "config"]).fails(1, &["soma.toml", "contxt"]);
    soma(&["--config", "/no/such.toml", "config"]).fails(1, &["/no/such.toml"]);
    let output = command(&["config"]).env("SOMA_THREADS", "many").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("SOMA_THREADS"));
}

#[test]
fn verbose_adds_what_led_to_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let bad = file(&dir, "bad.gguf", b"GGUF\x03\x00\x00\x00");
    let ran = soma(&["--verbose", "run", "--model", &bad, "--prompt", "x"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.starts_with("error: "), "{}", ran.stderr);
}

/// What was made until then has been shown; the work was not done.
#[cfg(unix)]
#[test]
fn an_interrupt_ends_within_a_step() {
    use std::io::Read;
    use std::process::{Command, Stdio};
    let model = demo();
    let words = ["run", "--model", &model, "--prompt", "Count to a thousand.", "--raw"];
    let words = [&words[..], &["--max-tokens", "4000", "--temperature", "0"]].concat();
    let mut child = command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let sent = std::time::Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(sent.elapsed() < std::time::Duration::from_secs(30), "4000 tokens take minutes");
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors, "error: interrupted before the work was done\n");
    assert!(output.stdout.ends_with(b"\n"));
}

/// Weights are mapped: pages beyond a file's new end can no longer be read.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_becomes_shorter_in_use_is_an_error() {
    use std::io::Read;
    use std::process::Stdio;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::copy(demo(), &path).unwrap();
    let words = ["run", "--model", path.to_str().unwrap(), "--prompt", "Count.", "--raw"];
    let words = [&words[..], &["--max-tokens", "4000", "--temperature", "0"]].concat();
    let mut child = command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("became shorter"), "{errors}");
}

#[test]
fn a_closed_pipe_is_no_error() {
    use std::process::Stdio;
    let model = demo();
    let words =
        ["run", "--model", &model, "--prompt", "Count to a thousand.", "--max-tokens", "64"];
    let mut child = command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}
