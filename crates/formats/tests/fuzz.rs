//! A bounded mutation fuzzer: golden files with bits flipped, fields overwritten by numbers that
//! wrap or overflow, parts cut, doubled and removed. It runs for `SOMA_FUZZ_SECONDS` a target (two
//! without it) and shrinks what fails. `SOMA_FUZZ_SEED` gives other files; the default is fixed.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// One change of a file.
#[derive(Clone, Debug)]
enum Mutation {
    FlipBit(Index, u8),
    SetByte(Index, u8),
    /// A little-endian field of 4 or 8 bytes: a length, a count, a type, a dimension, an offset.
    SetField {
        at: Index,
        wide: bool,
        value: u64,
    },
    Truncate(Index),
    Remove(Index, usize),
    Duplicate(Index, usize),
    Insert(Index, Vec<u8>),
}

/// Numbers at which arithmetic changes its mind.
fn edge() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0u32..64, -2i64..=2).prop_map(|(bit, d)| (1u64 << bit).wrapping_add_signed(d)),
        0u64..64,
        any::<u64>(),
        Just(u64::MAX),
    ]
}

fn mutation() -> impl Strategy<Value = Mutation> {
    use Mutation::*;
    prop_oneof![
        2 => (any::<Index>(), 0u8..8).prop_map(|(i, b)| FlipBit(i, b)),
        2 => (any::<Index>(), any::<u8>()).prop_map(|(i, b)| SetByte(i, b)),
        6 => (any::<Index>(), any::<bool>(), edge())
            .prop_map(|(at, wide, value)| SetField { at, wide, value }),
        1 => any::<Index>().prop_map(Truncate),
        1 => (any::<Index>(), 1usize..64).prop_map(|(i, n)| Remove(i, n)),
        1 => (any::<Index>(), 1usize..64).prop_map(|(i, n)| Duplicate(i, n)),
        1 => (any::<Index>(), prop::collection::vec(any::<u8>(), 1..32)).prop_map(|(i, v)| Insert(i, v)),
    ]
}

/// `fields` are the offsets of the header's lengths, counts and types, which are hit on purpose.
fn apply(mutation: &Mutation, fields: &[usize], data: &mut Vec<u8>) {
    if data.is_empty() {
        return;
    }
    let len = data.len();
    match mutation {
        Mutation::FlipBit(i, bit) => data[i.index(len)] ^= 1 << bit,
        Mutation::SetByte(i, byte) => data[i.index(len)] = *byte,
        Mutation::SetField { at, wide, value } => {
            let start = if fields.is_empty() { at.index(len) } else { *at.get(fields) };
            let width = if *wide { 8 } else { 4 };
            let bytes = value.to_le_bytes();
            for (slot, byte) in data.iter_mut().skip(start).zip(&bytes[..width]) {
                *slot = *byte;
            }
        }
        Mutation::Truncate(i) => data.truncate(i.index(len)),
        Mutation::Remove(i, n) => {
            let start = i.index(len);
            data.drain(start..len.min(start + n));
        }
        Mutation::Duplicate(i, n) => {
            let start = i.index(len);
            let copy = data[start..len.min(start + n)].to_vec();
            data.splice(start..start, copy);
        }
        Mutation::Insert(i, bytes) => {
            let start = i.index(len);
            data.splice(start..start, bytes.iter().copied());
        }
    }
}

/// A file to start from and where its numeric fields are.
struct Seed {
    bytes: Vec<u8>,
    fields: Vec<usize>,
}

/// Runs `target` on mutated seeds until the time is over.
fn fuzz(seeds: &[Seed], target: fn(&[u8])) {
    let seconds = number("SOMA_FUZZ_SECONDS").unwrap_or(2);
    let mut rng_seed = [0; 32];
    rng_seed[..8].copy_from_slice(&number("SOMA_FUZZ_SEED").unwrap_or(1).to_le_bytes());
    let config = Config { cases: 512, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &rng_seed);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let input = (any::<Index>(), prop::collection::vec(mutation(), 1..6));
    let end = Instant::now() + Duration::from_secs(seconds);
    seeds.iter().for_each(|seed| target(&seed.bytes));
    while Instant::now() < end {
        let result = runner.run(&input, |(which, mutations)| {
            let seed = which.get(seeds);
            let mut data = seed.bytes.clone();
            mutations.iter().for_each(|m| apply(m, &seed.fields, &mut data));
            target(&data);
            Ok(())
        });
        if let Err(failure) = result {
            panic!("{failure}");
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is '{text}', not a number")))
}

fn golden(name: &str) -> Vec<u8> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/formats");
    std::fs::read(dir.join(name)).unwrap()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

/// Where a GGUF header has numbers: found by reading it once more, without any check.
fn gguf_fields(bytes: &[u8]) -> Vec<usize> {
    fn value(type_id: u32, at: usize, fields: &mut Vec<usize>, b: &[u8]) -> usize {
        fields.push(at);
        match type_id {
            0 | 1 | 7 => at + 1,
            2 | 3 => at + 2,
            4..=6 => at + 4,
            10..=12 => at + 8,
            8 => at + 8 + u64_at(b, at),
            9 => {
                fields.push(at + 4);
                let inner = u32_at(b, at);
                (0..u64_at(b, at + 4)).fold(at + 12, |at, _| value(inner, at, fields, b))
            }
            other => panic!("golden files have no type {other}"),
        }
    }
    let mut fields = vec![4, 8, 16];
    let (n_tensors, n_entries) = (u64_at(bytes, 8), u64_at(bytes, 16));
    let mut at = 24;
    for _ in 0..n_entries {
        fields.push(at);
        at += 8 + u64_at(bytes, at);
        fields.push(at);
        at = value(u32_at(bytes, at), at + 4, &mut fields, bytes);
    }
    for _ in 0..n_tensors {
        fields.push(at);
        at += 8 + u64_at(bytes, at);
        fields.push(at);
        let n_dims = u32_at(bytes, at) as usize;
        at += 4;
        fields.extend((0..n_dims).map(|d| at + 8 * d));
        at += 8 * n_dims;
        fields.extend([at, at + 4]);
        at += 12;
    }
    fields
}

#[test]
fn gguf() {
    let seeds: Vec<Seed> = [
        "every_type.gguf",
        "split-00001-of-00003.gguf",
        "split-00002-of-00003.gguf",
        "split-00003-of-00003.gguf",
    ]
    .into_iter()
    .map(|name| {
        let bytes = golden(name);
        let fields = gguf_fields(&bytes);
        Seed { bytes, fields }
    })
    .collect();
    fuzz(&seeds, cyb_formats::fuzz::fuzz_gguf);
}

#[test]
fn safetensors() {
    let seeds = [Seed { bytes: golden("plain.safetensors"), fields: vec![] }];
    fuzz(&seeds, cyb_formats::fuzz::fuzz_safetensors);
}

#[test]
fn npz() {
    let seeds =
        ["plain.npz", "packed.npz"].map(|name| Seed { bytes: golden(name), fields: vec![] });
    fuzz(&seeds, cyb_formats::fuzz::fuzz_npz);
}

#[test]
fn torch() {
    let seeds = ["checkpoint.bin", "checkpoint-legacy.bin", "checkpoint-calls.bin"]
        .map(|name| Seed { bytes: golden(name), fields: vec![] });
    fuzz(&seeds, cyb_formats::fuzz::fuzz_torch);
}

#[test]
fn onnx() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/exported");
    let seeds = ["activations.script", "keras_conv", "plain_qop", "loops.script", "shapes.script"]
        .map(|name| Seed {
            bytes: std::fs::read(dir.join(format!("{name}.onnx"))).unwrap(),
            fields: vec![],
        });
    fuzz(&seeds, cyb_onnx::fuzz_onnx);
}
