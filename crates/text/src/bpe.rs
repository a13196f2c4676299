//! Byte-pair encoding by a merge list, and the symbol chain that both BPE kinds merge on.
//!
//! A word begins as one symbol for each byte (or character). The adjacent pair whose merge comes
//! first in the list is joined, the leftmost of equals, until no pair is in the list.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::bytes::byte_to_char;
use crate::spm::ByteTokens;
use crate::token_map::{NO_TOKEN, TokenMap};
use crate::{StringTable, TextError};

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
    /// Bytes of the text; `start == end` once the symbol went into the one on its left.
    start: usize,
    end: usize,
}

/// A doubly linked chain of symbols over a text.
#[derive(Debug)]
pub(crate) struct Symbols(Vec<Symbol>);

impl Symbols {
    /// One symbol for each character, with the id that `id_of` gives to the character's text.
    pub(crate) fn from_chars(text: &str, id_of: impl Fn(&str) -> u32) -> Self {
        let starts = text.char_indices().map(|(start, character)| {
            let end = start + character.len_utf8();
            (id_of(&text[start..end]), start, end)
        });
        Self::link(starts)
    }

    /// One symbol for each byte, with the id that `id_of` gives to it.
    fn from_bytes(text: &str, id_of: &[u32; 256]) -> Self {
        let bytes = text.bytes().enumerate();
        Self::link(bytes.map(|(start, byte)| (id_of[usize::from(byte)], start, start + 1)))
    }

    fn link(symbols: impl Iterator<Item = (u32, usize, usize)>) -> Self {
        let mut chain: Vec<Symbol> = Vec::with_capacity(symbols.size_hint().0);
        for (id, start, end) in symbols {
            let index = chain.len() as u32;
            let previous = index.checked_sub(1).unwrap_or(NONE);
            chain.push(Symbol { id, previous, next: index + 1, start, end });
        }
        if let Some(last) = chain.last_mut() {
            last.next = NONE;
        }
        Self(chain)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn previous(&self, index: u32) -> Option<u32> {
        Some(self.0[index as usize].previous).filter(|&index| index != NONE)
    }

    pub(crate) fn next(&self, index: u32) -> Option<u32> {
        Some(self.0[index as usize].next).filter(|&index| index != NONE)
    }

    fn id(&self, index: u32) -> u32 {
        self.0[index as usize].id
    }

    /// Bytes of two neighbors together.
    pub(crate) fn joined(&self, left: u32, right: u32) -> Range<usize> {
        self.0[left as usize].start..self.0[right as usize].end
    }

    /// Length of two neighbors together; `None` if one of them is merged away.
    pub(crate) fn merged_len(&self, left: u32, right: u32) -> Option<usize> {
        let (left, right) = (self.0[left as usize], self.0[right as usize]);
        let alive = left.start < left.end && right.start < right.end;
        alive.then(|| (left.end - left.start) + (right.end - right.start))
    }

    /// Joins `right` into `left`.
    pub(crate) fn merge(&mut self, left: u32, right: u32, id: u32) {
        let Symbol { next, end, .. } = self.0[right as usize];
        let gone = &mut self.0[right as usize];
        gone.end = gone.start;
        let joined = &mut self.0[left as usize];
        joined.id = id;
        joined.end = end;
        joined.next = next;
        if next != NONE {
            self.0[next as usize].previous = left;
        }
    }

    /// Ids and bytes of the symbols that are left.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, Range<usize>)> {
        let alive = self.0.iter().filter(|symbol| symbol.start < symbol.end);
        alive.map(|symbol| (symbol.id, symbol.start..symbol.end))
    }
}

/// What a word is made of before merging.
#[derive(Debug)]
enum Alphabet {
    /// Bytes, each with its token in the GPT-2 alphabet.
    Bytes(Box<[u32; 256]>),
    /// Characters; those without a token become byte tokens at the end.
    Chars(ByteTokens),
}

#[derive(Debug)]
pub(crate) struct BpeModel {
    /// Pair of ids, left in the high half, to (rank, merged id).
    merges: HashMap<u64, (u32, u32), RandomState>,
    alphabet: Alphabet,
    /// A word that is a token is taken whole, whatever the merges say.
    ignore_merges: bool,
    unknown: Option<u32>,
}

/// Words up to this many symbols are merged by scanning for the best pair; longer ones by a heap.
const SCAN_LIMIT: usize = 48;

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

impl BpeModel {
    /// `byte_level`: words are bytes in the GPT-2 alphabet; otherwise characters.
    ///
    /// # Errors
    /// If a merge is malformed or refers to a token that is not in the vocabulary.
    pub(crate) fn new(
        tokens: &TokenMap,
        merges: &StringTable,
        byte_level: bool,
        ignore_merges: bool,
        unknown: Option<u32>,
    ) -> Result<Self, TextError> {
        let alphabet = if byte_level {
            let mut ids = Box::new([NO_TOKEN; 256]);
            for byte in 0..=255u8 {
                let mut buffer = [0; 4];
                ids[usize::from(byte)] = tokens.id(byte_to_char(byte).encode_utf8(&mut buffer));
            }
            Alphabet::Bytes(ids)
        } else {
            Alphabet::Chars(ByteTokens::new(tokens, unknown))
        };
        Ok(Self { merges: read_merges(tokens, merges)?, alphabet, ignore_merges, unknown })
    }

    /// Appends the tokens of one word, given as plain text.
    ///
    /// # Errors
    /// If a byte has no token and there is no unknown token.
    pub(crate) fn encode_word(
        &self,
        tokens: &TokenMap,
        word: &str,
        scratch: &mut String,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let mut symbols = match &self.alphabet {
            Alphabet::Bytes(bytes) => {
                if self.ignore_merges {
                    scratch.clear();
                    scratch.extend(word.bytes().map(byte_to_char));
                    if let Some(id) = tokens.get(scratch) {
                        ids.push(id);
                        return Ok(());
                    }
                }
                Symbols::from_bytes(word, bytes)
            }
            Alphabet::Chars(_) => {
                let only_newlines = word.bytes().all(|byte| byte == b'\n');
                if let Some(id) = tokens.get(word).filter(|_| self.ignore_merges || only_newlines) {
                    ids.push(id);
                    return Ok(());
                }
                Symbols::from_chars(word, |character| tokens.id(character))
            }
        };
        if symbols.len() <= SCAN_LIMIT {
            self.merge_by_scan(&mut symbols);
        } else {
            self.merge_by_heap(&mut symbols);
        }
        for (id, range) in symbols.iter() {
            match (&self.alphabet, self.unknown) {
                _ if id != NO_TOKEN => ids.push(id),
                (Alphabet::Chars(bytes), _) => bytes.push(&word[range], ids)?,
                (Alphabet::Bytes(_), Some(unknown)) => ids.push(unknown),
                (Alphabet::Bytes(_), None) => {
                    return Err(TextError::NoToken { text: word.to_owned() });
                }
            }
        }
        Ok(())
    }

    fn rank(&self, symbols: &Symbols, left: u32, right: u32) -> Option<(u32, u32)> {
        self.merges.get(&pair(symbols.id(left), symbols.id(right))).copied()
    }

    /// Quadratic, without allocation: the best for words, which are short.
    fn merge_by_scan(&self, symbols: &mut Symbols) {
        // Rank of the pair that begins at each symbol, so that a merge looks up two pairs only.
        let mut ranks = [(NONE, NONE); SCAN_LIMIT];
        for left in 1..symbols.len() as u32 {
            ranks[left as usize - 1] = self.rank(symbols, left - 1, left).unwrap_or((NONE, NONE));
        }
        loop {
            let candidates = ranks[..symbols.len()].iter().zip(0u32..);
            let Some((&(rank, id), left)) = candidates.min_by_key(|((rank, _), _)| *rank) else {
                return;
            };
            let Some(right) = symbols.next(left).filter(|_| rank != NONE) else { return };
            symbols.merge(left, right, id);
            ranks[right as usize] = (NONE, NONE);
            let next = symbols.next(left).and_then(|next| self.rank(symbols, left, next));
            ranks[left as usize] = next.unwrap_or((NONE, NONE));
            if let Some(previous) = symbols.previous(left) {
                ranks[previous as usize] =
                    self.rank(symbols, previous, left).unwrap_or((NONE, NONE));
            }
        }
    }

    fn merge_by_heap(&self, symbols: &mut Symbols) {
        // (rank, left, right, pair, merged id); the pair tells a stale entry.
        let mut heap = BinaryHeap::with_capacity(symbols.len());
        let propose = |symbols: &Symbols, left: u32, right: u32, heap: &mut BinaryHeap<_>| {
            if let Some((rank, id)) = self.rank(symbols, left, right) {
                let pair = pair(symbols.id(left), symbols.id(right));
                heap.push(Reverse((rank, left, right, pair, id)));
            }
        };
        for right in 1..symbols.len() as u32 {
            propose(symbols, right - 1, right, &mut heap);
        }
        while let Some(Reverse((_, left, right, proposed, id))) = heap.pop() {
            let alive = symbols.merged_len(left, right).is_some();
            let current = pair(symbols.id(left), symbols.id(right));
            if !alive || symbols.next(left) != Some(right) || current != proposed {
                continue;
            }
            symbols.merge(left, right, id);
            if let Some(previous) = symbols.previous(left) {
                propose(symbols, previous, left, &mut heap);
            }
            if let Some(next) = symbols.next(left) {
                propose(symbols, left, next, &mut heap);
            }
        }
    }
}

fn read_merges(
    tokens: &TokenMap,
    merges: &StringTable,
) -> Result<HashMap<u64, (u32, u32), RandomState>, TextError> {
    let mut map = HashMap::with_capacity_and_hasher(merges.len(), RandomState::default());
    let mut joined = String::new();
    for (index, merge) in merges.iter().enumerate() {
        // A token may be a space itself, so the separator is looked for after the first byte.
        let split = merge.bytes().skip(1).position(|byte| byte == b' ').map(|at| at + 1);
        let Some((left, right)) =
            split.and_then(|at| Some((merge.get(..at)?, merge.get(at + 1..)?)))
        else {
            return Err(TextError::MalformedMerge { index, merge: merge.to_owned() });
        };
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let id_of = |text: &str| {
            tokens.get(text).ok_or_else(|| TextError::MergeTokenMissing {
                index,
                merge: merge.to_owned(),
                missing: text.to_owned(),
            })
        };
        let pair = pair(id_of(left)?, id_of(right)?);
        let rank = u32::try_from(index).unwrap_or(NONE - 1);
        let id = id_of(&joined)?;
        map.entry(pair).or_insert((rank, id));
    }
    Ok(map)
}
