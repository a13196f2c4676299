//! Token ids to text, one at a time.

use crate::{TextError, Tokenizer};

/// Turns a stream of ids into text, giving out whole characters only.
///
/// A token may end in the middle of a UTF-8 sequence. Its bytes wait until the sequence is
/// complete; bytes that can be no part of a character become U+FFFD as soon as that is certain.
#[derive(Debug)]
pub struct Detokenizer<'t> {
    tokenizer: &'t Tokenizer,
    skip_special: bool,
    /// The next bytes are the first of the text, and a leading space that the tokenizer puts
    /// there by itself is to be taken off.
    strip_space: bool,
    pending: Vec<u8>,
}

impl<'t> Detokenizer<'t> {
    /// For text that goes on after a prompt: a leading space is text.
    #[must_use]
    pub fn new(tokenizer: &'t Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, strip_space: false, pending: Vec::new() }
    }

    /// For a whole text: the space that the tokenizer adds in front is taken off again.
    #[must_use]
    pub fn whole(tokenizer: &'t Tokenizer, skip_special: bool) -> Self {
        let strip_space = tokenizer.strips_leading_space();
        Self { strip_space, ..Self::new(tokenizer, skip_special) }
    }

    /// The text that token `id` completes.
    ///
    /// # Errors
    /// If the vocabulary has no such id.
    pub fn push(&mut self, id: u32) -> Result<String, TextError> {
        let size = self.tokenizer.vocab_size();
        let bytes = self.tokenizer.token_bytes(id).ok_or(TextError::UnknownId { id, size })?;
        if self.skip_special && self.tokenizer.is_control(id) {
            return Ok(String::new());
        }
        let mut bytes = bytes.as_ref();
        if self.strip_space && !bytes.is_empty() {
            self.strip_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.pending.extend_from_slice(bytes);
        Ok(take_complete(&mut self.pending))
    }

    /// The rest: bytes that still waited are not a character and become U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

/// Takes from `bytes` what is certain, and leaves the beginning of a character.
fn take_complete(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut taken = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        taken += chunk.valid().len();
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            continue;
        }
        let last = taken + invalid.len() == bytes.len();
        if last && may_go_on(invalid) {
            break;
        }
        text.push(char::REPLACEMENT_CHARACTER);
        taken += invalid.len();
    }
    bytes.drain(..taken);
    text
}

/// True if more bytes can make a character of these.
fn may_go_on(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(pieces: &[&[u8]]) -> Vec<String> {
        let mut pending = Vec::new();
        let mut texts: Vec<String> = Vec::new();
        for piece in pieces {
            pending.extend_from_slice(piece);
            texts.push(take_complete(&mut pending));
        }
        texts.push(String::from_utf8_lossy(&pending).into_owned());
        texts
    }

    #[test]
    fn half_characters_wait() {
        let family = "👩‍👧".as_bytes();
        let texts = stream(&[&family[..2], &family[2..5], &family[5..]]);
        assert_eq!(texts, ["", "👩", "\u{200d}👧", ""]);
    }

    #[test]
    fn invalid_bytes_are_replaced_when_certain() {
        assert_eq!(stream(&[b"a\xff", b"b"]), ["a\u{fffd}", "b", ""]);
        assert_eq!(stream(&[b"\xf0\x9f", b"x"]), ["", "\u{fffd}x", ""]);
        assert_eq!(stream(&[b"\xe2\x82"]), ["", "\u{fffd}"]);
    }

    proptest! {
        /// However bytes arrive, the text is that of the whole.
        #[test]
        fn chunking_changes_nothing(bytes in prop::collection::vec(prop_oneof![Just(0xe2u8), Just(0x82), Just(0xac), Just(0xf0), Just(0x9f), any::<u8>()], 0..20), size in 1usize..5) {
            let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
            prop_assert_eq!(stream(&pieces).concat(), String::from_utf8_lossy(&bytes));
        }
    }
}
