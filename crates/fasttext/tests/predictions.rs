//! Labels and probabilities against the fasttext package, and a bounded fuzzer of the parser.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use cyb_fasttext::{FastText, MAGIC, Scratch};
use proptest::prelude::*;
use serde_json::Value;

fn expected() -> Value {
    let path = cyb_testkit::golden("fasttext/expected.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn tiny(name: &str) -> Vec<u8> {
    std::fs::read(cyb_testkit::golden(&format!("fasttext/{name}"))).unwrap()
}

/// The same labels in the same order, probabilities within 1e-4.
fn agrees(name: &str, model: &FastText, lines: &Value, want: &Value) {
    let mut scratch = Scratch::default();
    let (lines, want) = (lines.as_array().unwrap(), want.as_array().unwrap());
    assert_eq!(lines.len(), want.len());
    for (line, want) in lines.iter().zip(want) {
        let (line, want) = (line.as_str().unwrap(), want.as_array().unwrap());
        let got = model.predict(line, want.len().max(1), 0.0, &mut scratch);
        assert_eq!(got.len(), want.len(), "{name} {line:?}");
        for ((label, p), want) in got.into_iter().zip(want) {
            let wanted = want[1].as_f64().unwrap();
            assert!((f64::from(p) - wanted).abs() < 1e-4, "{name} {line:?}: {p}, not {wanted}");
            // Equal probabilities have no order.
            let tied = wanted < 1e-4;
            assert!(tied || model.label(label) == want[0].as_str().unwrap(), "{name} {line:?}");
        }
    }
}

#[test]
fn every_loss_and_storage() {
    let expected = expected();
    for name in ["softmax.bin", "ova.bin", "hs.bin", "ns.bin", "cut.ftz", "output.ftz"] {
        let model = FastText::from_bytes(tiny(name)).unwrap();
        assert_eq!(model.n_labels(), 4);
        agrees(name, &model, &expected["short"], &expected[name]);
    }
}

#[test]
fn five_hundred_lines_of_many_languages() {
    let expected = expected();
    let model = FastText::open(&cyb_testkit::model("lid.176.ftz")).unwrap();
    assert_eq!(model.n_labels(), 176);
    agrees("lid.176.ftz", &model, &expected["lines"], &expected["lid.176.ftz"]);
}

#[test]
fn damaged_files_are_refused() {
    let whole = tiny("cut.ftz");
    for len in (0..whole.len()).step_by(97) {
        assert!(FastText::from_bytes(whole[..len].to_vec()).is_err(), "{len} bytes");
    }
    let mut more = whole.clone();
    more.push(0);
    assert!(FastText::from_bytes(more).unwrap_err().to_string().contains("left over"));
    let mut vectors = whole;
    vectors[8 + 7 * 4] = 2;
    assert!(FastText::from_bytes(vectors).unwrap_err().to_string().contains("word vectors"));
    assert!(
        FastText::from_bytes(b"GGUF".to_vec()).unwrap_err().to_string().contains("no fastText")
    );
}

proptest! {
    /// Bits flipped, fields overwritten by numbers that wrap, parts cut out.
    #[test]
    fn mutated_files_never_panic(
        name in prop::sample::select(vec!["softmax.bin", "hs.bin", "cut.ftz", "output.ftz"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), prop_oneof![
            any::<u32>(), Just(u32::MAX), Just(i32::MAX as u32), 0u32..16, Just(1 << 31),
        ]), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = tiny(name);
        for (at, early, value) in changes {
            // Most fields are at the start.
            let at = at.index(if early { 120 } else { bytes.len() - 4 });
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes[..4].copy_from_slice(&MAGIC);
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        cyb_fasttext::fuzz::fuzz_fasttext(&bytes);
    }
}
