//! Pre-tokenizers: how a BPE model cuts text into words before it merges inside each word.
//!
//! A model's words are defined by regular expressions in its own `tokenizer.json`; a GGUF file
//! carries only a name for them (`tokenizer.ggml.pre`), and [`table`] maps the name back. The two
//! shapes that most models use are cut by [`scan`], which needs no compiled expression and so
//! costs nothing at start; the rest run as regular expressions.

mod scan;
mod table;

#[cfg(test)]
mod tests;

use fancy_regex::Regex;

use crate::TextError;
use scan::Scanner;
pub(crate) use table::PreTokenizerSpec;

/// How one pass cuts a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// As GPT-2: case-sensitive contractions, an optional space before a run.
    Gpt2,
    /// As cl100k: any contraction, an optional symbol before a word, digits in groups.
    Cl100k(Cl100k),
    /// Each character of category N alone.
    Digits,
    /// Runs of newlines apart from everything else.
    Lines,
    /// Matches of the expression, and what lies between them.
    Pattern(&'static str),
}

/// What differs between the models that cut like cl100k.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cl100k {
    /// Longest group of digits; 0 for no limit.
    pub(crate) digits: usize,
    /// Combining marks count as letters.
    pub(crate) marks: bool,
    /// English contractions are words.
    pub(crate) contractions: bool,
}

#[derive(Debug)]
enum Pass {
    Scan(Scanner),
    Regex(Box<Regex>),
}

/// The passes of one model, in order; each cuts the pieces that the one before left.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    passes: Vec<Pass>,
}

impl PreTokenizer {
    /// # Errors
    /// If an expression does not compile.
    pub(crate) fn new(cuts: &[Cut]) -> Result<Self, TextError> {
        let passes = cuts.iter().map(|&cut| match cut {
            Cut::Pattern(pattern) => match Regex::new(pattern) {
                Ok(regex) => Ok(Pass::Regex(Box::new(regex))),
                Err(error) => Err(TextError::PreTokenize { reason: error.to_string() }),
            },
            cut => Ok(Pass::Scan(Scanner::new(cut))),
        });
        Ok(Self { passes: passes.collect::<Result<_, _>>()? })
    }

    /// Writes the end of each word of `text`, in bytes, to `ends`.
    ///
    /// # Errors
    /// If an expression gives up (its backtracking is bounded).
    pub(crate) fn split(&self, text: &str, ends: &mut Vec<usize>) -> Result<(), TextError> {
        ends.clear();
        ends.push(text.len());
        let mut next = Vec::new();
        for pass in &self.passes {
            next.clear();
            let mut start = 0;
            for &end in ends.iter() {
                match pass {
                    Pass::Scan(scanner) => scanner.split(&text[start..end], start, &mut next),
                    Pass::Regex(regex) => {
                        split_by_regex(regex, &text[start..end], start, &mut next)?;
                    }
                }
                start = end;
            }
            std::mem::swap(ends, &mut next);
        }
        Ok(())
    }
}

/// Cuts before and after each match. An empty match is a cut.
fn split_by_regex(
    regex: &Regex,
    piece: &str,
    offset: usize,
    ends: &mut Vec<usize>,
) -> Result<(), TextError> {
    let mut last = 0;
    for found in regex.find_iter(piece) {
        let found = found.map_err(|error| TextError::PreTokenize { reason: error.to_string() })?;
        for cut in [found.start(), found.end()] {
            if cut > last {
                ends.push(offset + cut);
                last = cut;
            }
        }
    }
    if last < piece.len() {
        ends.push(offset + piece.len());
    }
    Ok(())
}

/// The names that `tokenizer.ggml.pre` may have.
#[must_use]
pub fn known_pre_tokenizers() -> Vec<&'static str> {
    table::names().collect()
}
