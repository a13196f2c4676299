//! The common word shapes, cut by hand.
//!
//! The two grammars, in the notation of the models' own `tokenizer.json`:
//!
//! ```text
//! gpt2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//! cl100k  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}
//!         | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//! ```
//!
//! Alternatives are tried in order at each position, so the code below is the list read aloud.
//! A property test compares it with the expressions.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

use super::{Cl100k, Cut};

/// A set of characters, as sorted ranges.
struct CharSet {
    ranges: Vec<(char, char)>,
}

impl CharSet {
    /// The set of a class expression such as `\p{L}`. Taking it from the regex library keeps the
    /// Unicode version of the scanners and of the expressions the same.
    fn new(class: &str) -> Self {
        let ranges = match regex_syntax::parse(class).map(|hir| hir.into_kind()) {
            Ok(HirKind::Class(Class::Unicode(class))) => {
                class.iter().map(|range| (range.start(), range.end())).collect()
            }
            _ => Vec::new(),
        };
        Self { ranges }
    }

    fn contains(&self, character: char) -> bool {
        let after = self.ranges.partition_point(|&(start, _)| start <= character);
        after > 0 && character <= self.ranges[after - 1].1
    }
}

static LETTERS: LazyLock<CharSet> = LazyLock::new(|| CharSet::new(r"\p{L}"));
static NUMBERS: LazyLock<CharSet> = LazyLock::new(|| CharSet::new(r"\p{N}"));
static MARKS: LazyLock<CharSet> = LazyLock::new(|| CharSet::new(r"\p{M}"));

/// What a character is to a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Letter,
    Number,
    Space,
    Other,
}

fn kind(character: char, marks: bool) -> Kind {
    if character.is_ascii() {
        return match character {
            'a'..='z' | 'A'..='Z' => Kind::Letter,
            '0'..='9' => Kind::Number,
            ' ' | '\t'..='\r' => Kind::Space,
            _ => Kind::Other,
        };
    }
    // `char::is_whitespace` is the property White_Space, which is what `\s` matches.
    if character.is_whitespace() {
        Kind::Space
    } else if LETTERS.contains(character) || (marks && MARKS.contains(character)) {
        Kind::Letter
    } else if NUMBERS.contains(character) {
        Kind::Number
    } else {
        Kind::Other
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Scanner {
    cut: Cut,
}

impl Scanner {
    pub(super) fn new(cut: Cut) -> Self {
        Self { cut }
    }

    /// Pushes the end of each word of `piece`, plus `offset`.
    pub(super) fn split(&self, piece: &str, offset: usize, ends: &mut Vec<usize>) {
        let mut rest = piece;
        while !rest.is_empty() {
            let len = match self.cut {
                Cut::Gpt2 => gpt2_word(rest),
                Cut::Cl100k(rules) => cl100k_word(rest, rules),
                Cut::Digits => digits_piece(rest),
                // Expressions are run elsewhere; a scanner made for one takes the piece whole.
                Cut::Lines => line_piece(rest),
                Cut::Pattern(_) => rest.len(),
            };
            rest = &rest[len..];
            ends.push(offset + piece.len() - rest.len());
        }
    }
}

/// Bytes from the start for which `belongs` holds.
fn run(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.find(|character| !belongs(character)).unwrap_or(text.len())
}

fn first(text: &str) -> char {
    text.chars().next().unwrap_or_default()
}

/// `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll`, `'d`: its length, or 0.
fn contraction(text: &str, any_case: bool) -> usize {
    let Some(rest) = text.strip_prefix('\'') else { return 0 };
    let fold = |byte: &u8| if any_case { byte.to_ascii_lowercase() } else { *byte };
    let mut bytes = rest.as_bytes().iter().map(fold);
    match (bytes.next(), bytes.next()) {
        (Some(b's' | b't' | b'm' | b'd'), _) => 2,
        (Some(b'r' | b'v'), Some(b'e')) | (Some(b'l'), Some(b'l')) => 3,
        _ => 0,
    }
}

/// `\s+(?!\S)|\s+`: white space up to its last character, which goes with the word that follows;
/// all of it at the end of the text.
fn space_run(text: &str) -> usize {
    let len = run(text, char::is_whitespace);
    if len == text.len() {
        return len;
    }
    match text[..len].char_indices().next_back() {
        Some((last, _)) if last > 0 => last,
        _ => len,
    }
}

fn gpt2_word(text: &str) -> usize {
    let contraction = contraction(text, false);
    if contraction > 0 {
        return contraction;
    }
    let space = usize::from(text.starts_with(' '));
    let kind_of = |character| kind(character, false);
    match text[space..].chars().next().map(kind_of) {
        None | Some(Kind::Space) => space_run(text),
        Some(word) => space + run(&text[space..], |character| kind_of(character) == word),
    }
}

fn cl100k_word(text: &str, rules: Cl100k) -> usize {
    if rules.contractions {
        let contraction = contraction(text, true);
        if contraction > 0 {
            return contraction;
        }
    }
    let kind_of = |character| kind(character, rules.marks);
    let head = first(text);
    let after_head = &text[head.len_utf8()..];
    let letters = |text: &str| run(text, |character| kind_of(character) == Kind::Letter);
    match kind_of(head) {
        Kind::Letter => return letters(text),
        Kind::Number => {
            let limit = if rules.digits == 0 { usize::MAX } else { rules.digits };
            let digits = text.char_indices().take(limit);
            let end = digits.take_while(|&(_, digit)| kind_of(digit) == Kind::Number).last();
            return end.map_or(0, |(start, digit)| start + digit.len_utf8());
        }
        Kind::Space | Kind::Other => {
            let word = letters(after_head);
            if word > 0 && !matches!(head, '\r' | '\n') {
                return head.len_utf8() + word;
            }
        }
    }
    let space = usize::from(head == ' ');
    let symbols = run(&text[space..], |character| kind_of(character) == Kind::Other);
    if symbols > 0 {
        let newlines = run(&text[space + symbols..], |c| matches!(c, '\r' | '\n'));
        return space + symbols + newlines;
    }
    let spaces = &text[..run(text, char::is_whitespace)];
    match spaces.rfind(['\r', '\n']) {
        Some(newline) => newline + 1,
        None => space_run(text),
    }
}

fn digits_piece(text: &str) -> usize {
    let head = first(text);
    match kind(head, false) {
        Kind::Number => head.len_utf8(),
        _ => run(text, |character| kind(character, false) != Kind::Number),
    }
}

fn line_piece(text: &str) -> usize {
    let newline = text.starts_with('\n');
    run(text, |character| (character == '\n') == newline)
}
