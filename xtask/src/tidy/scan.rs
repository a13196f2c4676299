//! Just enough of Rust's lexical rules to look at code without being fooled by comments and strings.

/// The code with every comment and every text between quotes replaced by spaces; lines stay lines.
pub(super) fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => line_end(bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'*') => comment_end(bytes, at),
            b'"' => string_end(bytes, at + 1),
            b'r' if !continues_a_word(bytes, at) => match raw_string_end(bytes, at + 1) {
                Some(end) => end,
                None => at,
            },
            b'\'' => char_end(bytes, at).unwrap_or(at),
            _ => at,
        };
        if end == at {
            at += 1;
            continue;
        }
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    // Whole literals and comments were blanked, so what is left is still UTF-8.
    String::from_utf8(out).unwrap_or_default()
}

fn continues_a_word(bytes: &[u8], at: usize) -> bool {
    // `br"..."` is a raw byte string, so a `b` before the `r` does not make it part of a word.
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    match at.checked_sub(1).map(|before| bytes[before]) {
        Some(b'b') => at >= 2 && is_word(bytes[at - 2]),
        Some(byte) => is_word(byte),
        None => false,
    }
}

fn line_end(bytes: &[u8], from: usize) -> usize {
    bytes[from..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |n| from + n)
}

fn comment_end(bytes: &[u8], from: usize) -> usize {
    let (mut depth, mut at) = (0_usize, from);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of the raw string whose `r` stands before `at`; `None` when it is none.
fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at..].iter().take_while(|&&byte| byte == b'#').count();
    if bytes.get(at + hashes) != Some(&b'"') {
        return None;
    }
    let closing: Vec<u8> = [b'"'].into_iter().chain(std::iter::repeat_n(b'#', hashes)).collect();
    let start = at + hashes + 1;
    let length = bytes[start..].windows(closing.len()).position(|window| window == closing);
    Some(length.map_or(bytes.len(), |n| start + n + closing.len()))
}

/// The end of the character literal at `at`; `None` when it is a lifetime.
fn char_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at + 1) == Some(&b'\\') {
        let close = bytes[at + 3..].iter().position(|&byte| byte == b'\'')?;
        return Some(at + 3 + close + 1);
    }
    let text = std::str::from_utf8(&bytes[at + 1..]).unwrap_or_default();
    let first = text.chars().next()?;
    text[first.len_utf8()..].starts_with('\'').then(|| at + 1 + first.len_utf8() + 1)
}

/// Number, from 1, of the line that holds the byte `at`.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count()
}

/// Where `word` stands in `code` as a whole word.
pub(super) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_word = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let bytes = code.as_bytes();
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        !is_word(before) && !is_word(bytes.get(at + word.len()))
    })
}

/// The lines before the file's own `mod tests { ... }`.
pub(super) fn lines_without_tests(source: &str) -> usize {
    let lines: Vec<&str> = source.lines().collect();
    let test = lines.windows(2).position(|pair| {
        pair[0].starts_with("#[cfg(test)]") && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    });
    test.unwrap_or(lines.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_become_spaces() {
        let same = |source: &str, expected: &str| assert_eq!(code_only(source), expected);
        same("a // unsafe\nb", "a          \nb");
        same("a /* x /* y */ z */ b", "a                   b");
        same(r#"f("un\"safe") + g"#, "f(          ) + g");
        same("r#\"a\"b\"# c", "         c");
        same("br\"\\\" c", "b     c");
        same("for<'a> x: &'a u8, '\\'', '{', 'é'", "for<'a> x: &'a u8,     ,    ,     ");
        same("var\"x\"", "var   ");
    }

    #[test]
    fn whole_words_only() {
        assert_eq!(words("unsafe unsafe_op is_unsafe (unsafe)", "unsafe").count(), 2);
        assert_eq!(line_of("a\nb\nc", 4), 3);
    }

    #[test]
    fn tests_at_the_end_do_not_count() {
        assert_eq!(lines_without_tests("a\nb\n#[cfg(test)]\nmod tests {\nx\n}\n"), 2);
        assert_eq!(lines_without_tests("a\n#[cfg(test)]\nmod tests;\nb\n"), 4);
    }
}
