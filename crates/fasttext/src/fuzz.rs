//! The body of a fuzz target: a function of bytes that must return.

use crate::{FastText, Scratch};

/// Opens `data` as a model; what is accepted must answer every text.
pub fn fuzz_fasttext(data: &[u8]) {
    let Ok(model) = FastText::from_bytes(data.to_vec()) else { return };
    let mut scratch = Scratch::default();
    for text in ["", "the cat </s> sat", "__label__x Größe 東京", "a\n\tb  c d e f g"] {
        for (label, p) in model.predict(text, 3, 0.0, &mut scratch) {
            assert!(!model.label(label).is_empty() || p.is_finite() || p.is_nan());
        }
    }
}
