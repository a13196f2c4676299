//! Words, labels, and how a text becomes rows of the matrix.
//!
//! A word's rows are its own, if it is in the vocabulary, and those of its character n-grams, which
//! are told apart by a hash only. A pruned model keeps some of the n-grams, under new numbers.

use crate::Problem;
use crate::reader::Reader;

/// Ends a line, as a word.
const EOS: &[u8] = b"</s>";
/// What labels begin with. The file does not say it; the reference's default is what all use.
const LABEL: &[u8] = b"__label__";

/// How texts are cut, from the file's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ngrams {
    /// Fewest and most characters of an n-gram; 0 for none.
    pub(crate) least: usize,
    pub(crate) most: usize,
    /// Words of an n-gram of words.
    pub(crate) words: usize,
    /// Values of the hash.
    pub(crate) buckets: u32,
}

#[derive(Debug)]
pub(crate) struct Dictionary {
    n_words: u32,
    /// Words, then labels.
    text: Vec<u8>,
    ends: Vec<usize>,
    /// How often each label was seen.
    pub(crate) counts: Vec<i64>,
    index: Table,
    /// New numbers of the n-grams of a pruned model.
    kept: Option<Table>,
    ngrams: Ngrams,
}

/// Numbers by a 32-bit key, open addressing. Keys may repeat: the caller looks further.
#[derive(Debug)]
struct Table {
    slots: Vec<(u32, u32)>,
    mask: usize,
}

const FREE: u32 = u32::MAX;

impl Table {
    fn with_room(n: usize) -> Table {
        let size = (n * 2).next_power_of_two().max(16);
        Table { slots: vec![(0, FREE); size], mask: size - 1 }
    }

    fn insert(&mut self, key: u32, value: u32) {
        let mut at = key as usize & self.mask;
        while self.slots[at].1 != FREE {
            at = (at + 1) & self.mask;
        }
        self.slots[at] = (key, value);
    }

    /// The first number under a key that `is` accepts.
    #[inline]
    fn find(&self, key: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = key as usize & self.mask;
        loop {
            let (found, value) = self.slots[at];
            if value == FREE {
                return None;
            }
            if found == key && is(value) {
                return Some(value);
            }
            at = (at + 1) & self.mask;
        }
    }
}

/// FNV-1a over signed bytes, as the reference has it.
#[inline]
fn step(hash: u32, byte: u8) -> u32 {
    (hash ^ i32::from(byte.cast_signed()).cast_unsigned()).wrapping_mul(16_777_619)
}

const START: u32 = 2_166_136_261;

fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(START, |h, &b| step(h, b))
}

fn is_inner(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

impl Dictionary {
    pub(crate) fn read(r: &mut Reader<'_>, ngrams: Ngrams) -> Result<Dictionary, Problem> {
        r.part("the vocabulary");
        let (size, n_words, n_labels) = (r.i32()?, r.i32()?, r.i32()?);
        let _tokens_seen = r.i64()?;
        let pruned = r.i64()?;
        // The shortest entry is an empty word with its count and kind.
        let most = r.rest() / 10;
        let size = r.size("the number of entries", size.into(), most)?;
        let words = r.size("the number of words", n_words.into(), size)?;
        let labels = r.size("the number of labels", n_labels.into(), size)?;
        if words + labels != size || labels == 0 {
            let (what, value) = ("the number of labels", n_labels.into());
            return Err(Problem::Value { what, value, want: "which words do not add up with" });
        }
        let mut dictionary = Dictionary {
            n_words: words as u32,
            text: Vec::new(),
            ends: Vec::with_capacity(size),
            counts: Vec::with_capacity(labels),
            index: Table::with_room(size),
            kept: None,
            ngrams,
        };
        for i in 0..size {
            let word = r.string()?;
            let count = r.i64()?;
            let is_label = r.flag("the kind of an entry")?;
            if is_label != (i >= words) {
                let (what, value) = ("the kind of an entry", i64::from(is_label));
                return Err(Problem::Value { what, value, want: "but words come before labels" });
            }
            if is_label {
                std::str::from_utf8(word).map_err(|_| Problem::Utf8)?;
                dictionary.counts.push(count);
            }
            dictionary.text.extend_from_slice(word);
            dictionary.ends.push(dictionary.text.len());
            dictionary.index.insert(hash(word), i as u32);
        }
        if pruned >= 0 {
            let n = r.size("the number of n-grams", pruned, r.rest() / 8)?;
            let mut kept = Table::with_room(n);
            for _ in 0..n {
                let (old, new) = (r.i32()?, r.i32()?);
                let number = |value: i32| {
                    let (what, value) = ("the number of an n-gram", i64::from(value));
                    let want = "but numbers begin at 0";
                    u32::try_from(value).map_err(|_| Problem::Value { what, value, want })
                };
                let (old, new) = (number(old)?, number(new)?);
                if kept.find(old, |_| true).is_none() {
                    kept.insert(old, new);
                }
            }
            dictionary.kept = Some(kept);
        }
        Ok(dictionary)
    }

    /// Rows that the matrix must have.
    pub(crate) fn rows(&self) -> usize {
        let ngrams = match &self.kept {
            None if self.ngrams.most == 0 && self.ngrams.words < 2 => 0,
            None => self.ngrams.buckets as usize,
            Some(kept) => {
                let numbers = kept.slots.iter().filter(|slot| slot.1 != FREE);
                numbers.map(|slot| slot.1 as usize + 1).max().unwrap_or(0)
            }
        };
        self.n_words as usize + ngrams
    }

    pub(crate) fn is_pruned(&self) -> bool {
        self.kept.is_some()
    }

    fn entry(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.text[start..self.ends[i]]
    }

    pub(crate) fn n_labels(&self) -> usize {
        self.counts.len()
    }

    pub(crate) fn label(&self, i: usize) -> &str {
        // Checked when it was read.
        std::str::from_utf8(self.entry(self.n_words as usize + i)).unwrap_or_default()
    }

    /// The rows of a line. What is white to the reference separates words; a line ends with a word
    /// of its own.
    pub(crate) fn rows_of(&self, text: &str, ids: &mut Vec<u32>, hashes: &mut Vec<i32>) {
        ids.clear();
        hashes.clear();
        let white = |b: &u8| matches!(b, b' ' | b'\n' | b'\r' | b'\t' | 0x0b | 0x0c | 0);
        for word in text.as_bytes().split(white).filter(|w| !w.is_empty()) {
            self.add_word(word, ids, hashes);
            // The text of the end mark ends a line too.
            if word == EOS {
                self.add_word_ngrams(ids, hashes);
                return;
            }
        }
        self.add_word(EOS, ids, hashes);
        self.add_word_ngrams(ids, hashes);
    }

    fn add_word(&self, word: &[u8], ids: &mut Vec<u32>, hashes: &mut Vec<i32>) {
        let h = hash(word);
        match self.index.find(h, |i| self.entry(i as usize) == word) {
            Some(i) if i >= self.n_words => return,
            Some(i) => ids.push(i),
            None if word.starts_with(LABEL) => return,
            None => {}
        }
        if word != EOS && self.ngrams.most > 0 {
            self.add_ngrams(word, ids);
        }
        hashes.push(h.cast_signed());
    }

    /// Character n-grams of `<word>`, without the two that are a bracket alone.
    fn add_ngrams(&self, word: &[u8], ids: &mut Vec<u32>) {
        let Ngrams { least, most, .. } = self.ngrams;
        let len = word.len() + 2;
        let byte = |i: usize| match i {
            0 => b'<',
            _ if i == len - 1 => b'>',
            _ => word[i - 1],
        };
        for start in 0..len {
            if is_inner(byte(start)) {
                continue;
            }
            let (mut end, mut h) = (start, START);
            for n in 1..=most {
                if end >= len {
                    break;
                }
                h = step(h, byte(end));
                end += 1;
                while end < len && is_inner(byte(end)) {
                    h = step(h, byte(end));
                    end += 1;
                }
                if n >= least && !(n == 1 && (start == 0 || end == len)) {
                    self.push(h % self.ngrams.buckets, ids);
                }
            }
        }
    }

    fn add_word_ngrams(&self, ids: &mut Vec<u32>, hashes: &[i32]) {
        for (i, &first) in hashes.iter().enumerate() {
            // Widened with the sign, as the reference does.
            let mut h = i64::from(first).cast_unsigned();
            for &next in hashes.iter().skip(i + 1).take(self.ngrams.words.saturating_sub(1)) {
                h = h.wrapping_mul(116_049_371).wrapping_add(i64::from(next).cast_unsigned());
                self.push((h % u64::from(self.ngrams.buckets)) as u32, ids);
            }
        }
    }

    #[inline]
    fn push(&self, bucket: u32, ids: &mut Vec<u32>) {
        match &self.kept {
            None => ids.push(self.n_words + bucket),
            Some(kept) => {
                if let Some(new) = kept.find(bucket, |_| true) {
                    ids.push(self.n_words + new);
                }
            }
        }
    }
}
