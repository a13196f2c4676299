//! What becomes of a GPU that is not as it should be, with a driver that has none behind it.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::process::Command;
use std::sync::LazyLock;

use common::{Ran, command, shown, tiny};
use tempfile::TempDir;

static DRIVER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    cyb_testkit::fake_driver(folder.path());
    folder
});

/// A run that sees the fake driver with these variables.
fn with_driver(words: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command: Command = command(words);
    command.env("LD_LIBRARY_PATH", DRIVER.path()).envs(variables.iter().copied());
    Ran::of(command.output().unwrap())
}

fn run(more: &[&str], variables: &[(&str, &str)]) -> Ran {
    let model = tiny();
    let words = ["run", "--model", &model, "--backend", "cuda", "--raw", "--prompt", "abc"];
    with_driver(&[&words[..], &["--max-tokens", "5"], more].concat(), variables)
}

#[test]
fn drivers_and_gpus_that_are_too_old() {
    run(&[], &[("FAKE_CUDA_VERSION", "11080")]).fails(1, &["CUDA 11.8", "12.4 or newer"]);
    run(&[], &[("FAKE_CUDA_CAPABILITY", "75")]).fails(1, &["fake GPU", "7.5", "8.0 or newer"]);
    run(&[], &[("FAKE_CUDA_DEVICES", "0")]).fails(1, &["finds no GPU"]);
    run(&[], &[("FAKE_CUDA_FAIL", "cuInit:100:1")]).fails(1, &["finds no GPU"]);
    let old = with_driver(&["backends", "--json"], &[("FAKE_CUDA_VERSION", "11080")]).json();
    let backends = old["backends"].as_array().unwrap();
    let cuda = backends.iter().find(|b| b["name"] == "cuda").unwrap();
    assert!(cuda["reason"].as_str().unwrap().contains("11.8"), "{cuda}");
    // What is not asked for is not needed.
    let model = tiny();
    let words = ["run", "--model", &model, "--prompt", "abc", "--max-tokens", "2"];
    with_driver(&words, &[("FAKE_CUDA_VERSION", "11080")]).ok();
}

#[test]
fn a_gpu_that_fails_in_the_middle() {
    for (call, n) in
        [("cuStreamSynchronize", "6"), ("cuGraphLaunch", "2"), ("cuLaunchKernelEx", "40")]
    {
        let fail = format!("{call}:719:{n}");
        let ran = run(&["--json"], &[("FAKE_CUDA_FAIL", &fail)]);
        ran.fails(1, &["the GPU failed", call, "unspecified launch failure", "--backend cpu"]);
    }
    // What is no failure of the GPU does not say so.
    let fail = [("FAKE_CUDA_FAIL", "cuStreamCreate:1:1")];
    run(&[], &fail).fails(1, &["cuStreamCreate", "some error"]);
}

#[test]
fn memory_that_runs_out() {
    // All of its operations have kernels.
    let model = shown(&cyb_testkit::golden("families/qwen2.gguf"));
    let info = ["models", "info", &model, "--backend", "cuda", "--json"];
    let plan = with_driver(&info, &[]).json()["plan"].clone();
    let gpu = &plan[0];
    assert_eq!((&gpu["backend"], plan.as_array().unwrap().len()), (&"cuda".into(), 1), "{plan}");
    let size = |of: &serde_json::Value, name: &str| of[name].as_u64().unwrap();
    let needed = size(gpu, "weights") + size(gpu, "states") + size(gpu, "arena");
    let layers = size(gpu, "n_layers");

    // A little less than all of it: some layers fit, and the error says how many.
    let memory = (needed - 1).to_string();
    let short = [("FAKE_CUDA_MEMORY", memory.as_str())];
    let ran = with_driver(&info, &short);
    let (_, rest) = ran.stderr.split_once("(--gpu-layers ").unwrap();
    let fits: u64 = rest.split_once(')').unwrap().0.parse().unwrap();
    assert!(fits > 0 && fits < layers, "{}", ran.stderr);
    ran.fails(1, &["fake GPU", "needs", "free"]);
    let more =
        with_driver(&[&info[..], &["--gpu-layers", &(fits + 1).to_string()]].concat(), &short);
    assert_eq!(more.code, Some(1), "{}", more.stderr);

    // With that many the plan comes first and fits.
    let n = fits.to_string();
    let split = with_driver(&[&info[..], &["--gpu-layers", &n]].concat(), &[]);
    let lines: Vec<&str> = split.stderr.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("plan: layer"), "{lines:?}");
    assert!(lines[0].contains("cuda (fake GPU") && lines[1].contains("cpu"), "{lines:?}");
    let plan = split.json()["plan"].clone();
    assert_eq!(plan[0]["layers"][1], fits - 1);
    assert_eq!((&plan[1]["layers"][0], &plan[1]["free"]), (&fits.into(), &().into()));

    // Nothing fits.
    run(&[], &[("FAKE_CUDA_MEMORY", "1000")]).fails(1, &["fake GPU", "--backend cpu"]);
    // More than was planned is wanted later.
    let fail = [("FAKE_CUDA_FAIL", "cuMemAlloc_v2:2:9")];
    run(&[], &fail).fails(1, &["memory is full", "--context", "--gpu-layers"]);
}

#[test]
fn measured_times_say_where_layers_go() {
    let model = shown(&cyb_testkit::golden("families/qwen2.gguf"));
    let cache = tempfile::tempdir().unwrap();
    let cache_variable = [("XDG_CACHE_HOME", cache.path().to_str().unwrap())];
    let tuned = with_driver(&["autotune", "--model", &model, "--json"], &cache_variable).json();
    let path = tuned["path"].as_str().unwrap();
    let operations = tuned["operations"].as_object().unwrap();
    let times = &operations[operations.keys().find(|key| key.starts_with("linear")).unwrap()];
    assert!(times["cuda"]["one_token_ms"].as_f64() > Some(0.0), "{times}");
    assert!(times["cpu"]["many_tokens_ms"].as_f64() > Some(0.0), "{times}");

    let places = |more: &[&str]| -> Vec<String> {
        let words = ["models", "info", &model, "--json"];
        let plan = with_driver(&[&words[..], more].concat(), &cache_variable).json();
        let shares = plan["plan"].as_array().unwrap().clone();
        shares.iter().map(|share| share["backend"].as_str().unwrap().to_owned()).collect()
    };
    // The driver of tests says that every kernel takes a millisecond, so at least the head, for which the
    // processor has kernels, goes there.
    let planned: Vec<&str> =
        tuned["plan"].as_array().unwrap().iter().map(|s| s["backend"].as_str().unwrap()).collect();
    assert!(planned.contains(&"cpu"), "{planned:?}");
    assert_eq!(places(&[]), planned);
    assert_eq!(places(&[]), planned);
    assert_eq!(places(&["--backend", "cuda"]), ["cuda"]);
    let table = std::fs::read_to_string(path).unwrap();
    let slow: Vec<String> = table
        .lines()
        .map(|line| match line.split_once(" = {") {
            Some((key, _)) => format!("{key} = {{ cpu = [9.0, 9.0], cuda = [0.1, 0.1] }}"),
            None => line.to_owned(),
        })
        .collect();
    std::fs::write(path, slow.join("\n")).unwrap();
    assert_eq!(places(&[]), ["cuda"]);
    std::fs::write(path, "crossing_ms = 1").unwrap();
    let words = ["run", "--model", &model, "--raw", "--prompt", "abc"];
    with_driver(&words, &cache_variable).fails(1, &[path, "autotune"]);
    // It is made anew from nothing.
    with_driver(&["autotune", "--model", &model, "--json"], &cache_variable).ok();
    assert!(places(&[]).contains(&"cpu".to_owned()));
    let bert = shown(&cyb_testkit::golden("encoders/bert"));
    with_driver(&["autotune", "--model", &bert], &cache_variable).fails(1, &["encoder"]);
}
