//! SentencePiece files, against the SentencePiece library.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use cyb_text::{Arrangement, EncodeOptions, PairOptions, Tokenizer, sentencepiece};
use serde_json::Value;

fn golden(name: &str) -> Vec<u8> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/text");
    std::fs::read(dir.join(name)).unwrap()
}

fn model(name: &str, arrangement: Arrangement) -> Tokenizer {
    let file = golden(&format!("spm-{name}.model"));
    Tokenizer::from_vocabulary(sentencepiece(&file, arrangement).unwrap()).unwrap()
}

const BARE: Arrangement = Arrangement::Plain { bos: false, eos: false };

#[test]
fn ids_are_those_of_the_library() {
    let want: Value = serde_json::from_slice(&golden("spm.json")).unwrap();
    let texts = want["texts"].as_array().unwrap();
    for name in ["unigram", "unigram-bytes", "bpe", "bpe-bytes", "deberta"] {
        let tokenizer = model(name, BARE);
        for (text, want) in texts.iter().zip(want[name].as_array().unwrap()) {
            let text = text.as_str().unwrap();
            let want: Vec<u32> =
                want.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            let got = tokenizer.encode(text, EncodeOptions::default()).unwrap();
            assert_eq!(got, want, "{name}: {text:?}");
        }
    }
}

#[test]
fn what_families_put_around_texts() {
    let special = EncodeOptions { add_special: true, parse_special: false };
    let pair = |tokenizer: &Tokenizer, truncate_to| {
        let options = PairOptions { parse_special: false, truncate_to };
        tokenizer.encode_pair("the dog", Some("a fox jumps"), options).unwrap()
    };
    let bare =
        |tokenizer: &Tokenizer, text| tokenizer.encode(text, EncodeOptions::default()).unwrap();

    let deberta = model("deberta", Arrangement::Separated);
    let (a, b) = (bare(&deberta, "the dog"), bare(&deberta, "a fox jumps"));
    let both = pair(&deberta, None);
    assert_eq!(both.ids, [&[1], &a[..], &[2], &b[..], &[2]].concat());
    assert_eq!(both.types.iter().filter(|&&kind| kind == 1).count(), b.len() + 1);
    assert_eq!(both.special.iter().filter(|&&special| special).count(), 3);
    assert_eq!(deberta.encode("the dog", special).unwrap(), [&[1], &a[..], &[2]].concat());
    assert_eq!(deberta.id_of("[MASK]"), Some(deberta.vocab_size() as u32 - 1));
    let cut = pair(&deberta, Some(9));
    assert_eq!((cut.ids.len(), cut.n_tokens), (9, both.ids.len()));
    assert_eq!(cut.ids[1..4], a[..3]);

    let fairseq = model("unigram-bytes", Arrangement::Fairseq);
    let a = bare(&model("unigram-bytes", BARE), "the dog");
    // One id further than in the file.
    let moved: Vec<u32> = a.iter().map(|id| id + 1).collect();
    assert_eq!(fairseq.encode("the dog", special).unwrap(), [&[0], &moved[..], &[2]].concat());
    let ids = pair(&fairseq, None).ids;
    assert_eq!(ids.windows(2).filter(|pair| *pair == [2, 2]).count(), 1);

    let a = bare(&model("unigram", BARE), "the dog");
    let ended = model("unigram", Arrangement::Ended);
    assert_eq!(ended.encode("the dog", special).unwrap(), [&a[..], &[2]].concat());
    let llama = model("bpe-bytes", Arrangement::Plain { bos: true, eos: false });
    assert_eq!(llama.encode("the dog", special).unwrap()[0], 1);
}
