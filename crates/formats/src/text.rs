//! Text of strangers in messages: quoted, on one line, cut to a readable length.

use std::fmt;

/// A quoted excerpt of a string from a file: control characters escaped, long text cut.
pub(crate) struct Excerpt<'a>(pub(crate) &'a str);

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 80;
        f.write_str("'")?;
        for (i, c) in self.0.chars().enumerate() {
            if i == LONGEST {
                return write!(f, "'... ({} bytes)", self.0.len());
            }
            match c {
                '\'' | '"' => write!(f, "{c}")?,
                _ => write!(f, "{}", c.escape_debug())?,
            }
        }
        f.write_str("'")
    }
}

/// The candidate most like `name`, when one is at most a quarter of its length away.
pub(crate) fn nearest<'a>(
    name: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    // Names of models are short; a hostile name is not worth a quadratic comparison.
    const LONGEST: usize = 128;
    if name.len() > LONGEST {
        return None;
    }
    candidates
        .filter(|c| c.len() <= LONGEST && c.len().abs_diff(name.len()) * 4 <= name.len())
        .map(|c| (edit_distance(name.as_bytes(), c.as_bytes()), c))
        .filter(|(d, _)| d * 4 <= name.len())
        .min_by_key(|&(d, _)| d)
        .map(|(_, c)| c)
}

/// Levenshtein distance, one row at a time.
pub fn edit_distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpts_stay_on_one_line() {
        assert_eq!(Excerpt("a\n\u{1b}[2J'b").to_string(), "'a\\n\\u{1b}[2J'b'");
        let long = "x".repeat(100);
        assert_eq!(Excerpt(&long).to_string(), format!("'{}'... (100 bytes)", "x".repeat(80)));
    }

    #[test]
    fn the_nearest_name_is_near() {
        let names = ["blk.0.attn_q.weight", "blk.0.attn_k.weight", "output.weight"];
        let near = |s| nearest(s, names.into_iter());
        assert_eq!(near("blk.0.attn_qq.weight"), Some("blk.0.attn_q.weight"));
        assert_eq!(near("unrelated"), None);
        assert_eq!(edit_distance(b"kitten", b"sitting"), 3);
    }
}
