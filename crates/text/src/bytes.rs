//! The printable alphabet that byte-level BPE vocabularies are written in.
//!
//! GPT-2 gave each byte a printable character: printable Latin-1 stands for itself, the other 68
//! bytes are moved, in order, to U+0100 and up. A space is `Ġ`, a line feed `Ċ`.

/// The character that stands for `byte`.
pub(crate) const fn byte_to_char(byte: u8) -> char {
    ALPHABET[byte as usize]
}

/// The byte that `character` stands for, if it is of the alphabet.
pub(crate) fn char_to_byte(character: char) -> Option<u8> {
    let code = character as u32;
    if code < 256 {
        let byte = code as u8;
        return stands_for_itself(byte).then_some(byte);
    }
    MOVED.get((code - 256) as usize).copied()
}

const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

const N_MOVED: usize = 68;

const MOVED: [u8; N_MOVED] = {
    let mut moved = [0; N_MOVED];
    let (mut byte, mut count) = (0usize, 0);
    while byte < 256 {
        if !stands_for_itself(byte as u8) {
            moved[count] = byte as u8;
            count += 1;
        }
        byte += 1;
    }
    moved
};

const ALPHABET: [char; 256] = {
    let mut alphabet = ['\0'; 256];
    let mut byte = 0;
    while byte < 256 {
        alphabet[byte] = byte as u8 as char;
        byte += 1;
    }
    let mut index = 0;
    while index < N_MOVED {
        // 256 + index is below the surrogates, so the fallback is never taken.
        alphabet[MOVED[index] as usize] = match char::from_u32(256 + index as u32) {
            Some(character) => character,
            None => '\0',
        };
        index += 1;
    }
    alphabet
};

/// The byte of a token `<0xXX>`.
pub(crate) fn parse_byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_is_a_bijection_with_the_known_points() {
        for byte in 0..=255u8 {
            assert_eq!(char_to_byte(byte_to_char(byte)), Some(byte));
        }
        assert_eq!(byte_to_char(b' '), 'Ġ');
        assert_eq!(byte_to_char(b'\n'), 'Ċ');
        assert_eq!(byte_to_char(0xAD), 'Ń');
        assert_eq!(char_to_byte(' '), None);
        assert_eq!(char_to_byte('ń'), None);
    }

    #[test]
    fn byte_tokens() {
        assert_eq!(parse_byte_token("<0x0A>"), Some(10));
        for text in ["<0x0>", "<0x+1>", "<0x0A", "0x0A", "<0x0AB>"] {
            assert_eq!(parse_byte_token(text), None, "{text}");
        }
    }
}
