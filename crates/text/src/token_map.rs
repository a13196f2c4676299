//! Token strings and the way back from string to id.
//!
//! The map stores ids only and compares against the string table, so that building it allocates
//! once. This is most of what a tokenizer does at start.

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::hash::BuildHasher;

use crate::{StringTable, TextError};

/// Id of a string that is no token.
pub(crate) const NO_TOKEN: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct TokenMap {
    tokens: StringTable,
    ids: HashTable<u32>,
    hasher: RandomState,
    /// Length of the longest token in bytes.
    max_len: usize,
}

impl TokenMap {
    /// # Errors
    /// If the table is empty, has more entries than ids or holds a string twice.
    pub(crate) fn new(tokens: StringTable) -> Result<Self, TextError> {
        if tokens.is_empty() {
            return Err(TextError::EmptyVocabulary);
        }
        let size = u32::try_from(tokens.len()).unwrap_or(NO_TOKEN);
        if size == NO_TOKEN {
            return Err(TextError::IdOutOfRange { role: "last", id: NO_TOKEN, size: tokens.len() });
        }
        let tokens = name_empty_tokens(tokens);
        let hasher = RandomState::default();
        let mut ids = HashTable::with_capacity(tokens.len());
        let mut max_len = 0;
        for (id, text) in (0..size).zip(tokens.iter()) {
            max_len = max_len.max(text.len());
            let entry = ids.entry(
                hasher.hash_one(text),
                |&other: &u32| tokens.get(other as usize) == Some(text),
                |&other| hasher.hash_one(tokens.get(other as usize).unwrap_or_default()),
            );
            match entry {
                hashbrown::hash_table::Entry::Occupied(other) => {
                    return Err(TextError::DuplicateToken {
                        text: text.to_owned(),
                        first: *other.get(),
                        second: id,
                    });
                }
                hashbrown::hash_table::Entry::Vacant(slot) => {
                    slot.insert(id);
                }
            }
        }
        Ok(Self { tokens, ids, hasher, max_len })
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn max_len(&self) -> usize {
        self.max_len
    }

    pub(crate) fn text(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &str)> {
        (0u32..).zip(self.tokens.iter())
    }

    /// The id of `text`, or [`NO_TOKEN`].
    pub(crate) fn id(&self, text: &str) -> u32 {
        let hash = self.hasher.hash_one(text);
        let found = self.ids.find(hash, |&id| self.tokens.get(id as usize) == Some(text));
        found.copied().unwrap_or(NO_TOKEN)
    }

    pub(crate) fn get(&self, text: &str) -> Option<u32> {
        Some(self.id(text)).filter(|&id| id != NO_TOKEN)
    }
}

/// Unnamed tokens get a name, as llama.cpp gives them, so that two of them are no duplicates.
fn name_empty_tokens(tokens: StringTable) -> StringTable {
    if tokens.iter().all(|text| !text.is_empty()) {
        return tokens;
    }
    let named = tokens.iter().enumerate().map(|(id, text)| match text {
        "" => format!("[EMPTY_{id}]"),
        text => text.to_owned(),
    });
    named.collect()
}
