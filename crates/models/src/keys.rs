//! Reading a family's configuration from GGUF metadata.
//!
//! A key of the architecture that no reader asked for is an error: it may change what the model
//! computes. So what a family understands is what its `from_gguf` reads, and there is no list to
//! keep beside it.

use std::cell::RefCell;
use std::collections::BTreeSet;

use cyb_formats::{FromValue, Metadata, Value};

use crate::ModelError;

/// Prefixes of keys that describe a file or its vocabulary and never change the graph.
const DESCRIPTIVE: [&str; 4] = ["general.", "tokenizer.", "quantize.", "split."];

/// The keys under one architecture's prefix. Names are given without it.
pub(crate) struct Keys<'f> {
    pub(crate) metadata: &'f Metadata,
    architecture: &'f str,
    known: RefCell<BTreeSet<String>>,
}

impl<'f> Keys<'f> {
    pub(crate) fn new(metadata: &'f Metadata, architecture: &'f str) -> Keys<'f> {
        Keys { metadata, architecture, known: RefCell::default() }
    }

    fn key(&self, name: &str) -> String {
        let key = format!("{}.{name}", self.architecture);
        self.known.borrow_mut().insert(key.clone());
        key
    }

    /// A value that must be there.
    pub(crate) fn get<T: FromValue<'f>>(&self, name: &str) -> Result<T, ModelError> {
        Ok(self.metadata.get(&self.key(name))?)
    }

    /// A value that may be absent.
    pub(crate) fn opt<T: FromValue<'f>>(&self, name: &str) -> Result<Option<T>, ModelError> {
        Ok(self.metadata.opt(&self.key(name))?)
    }

    /// A value of any type.
    pub(crate) fn value(&self, name: &str) -> Option<&'f Value> {
        self.metadata.value(&self.key(name))
    }

    /// A size greater than zero.
    pub(crate) fn size(&self, name: &str) -> Result<usize, ModelError> {
        self.positive(name, self.get(name)?)
    }

    /// A size greater than zero that may be absent.
    pub(crate) fn opt_size(&self, name: &str) -> Result<Option<usize>, ModelError> {
        self.opt(name)?.map(|n| self.positive(name, n)).transpose()
    }

    fn positive(&self, name: &str, n: usize) -> Result<usize, ModelError> {
        // Dimensions are kept as signed 64-bit numbers and multiplied with each other.
        const LARGEST: usize = 1 << 30;
        match n {
            1..=LARGEST => Ok(n),
            _ => Err(self.wrong(name, format!("it must be from 1 to {LARGEST}"))),
        }
    }

    /// A finite number greater than zero that may be absent.
    pub(crate) fn opt_positive(&self, name: &str) -> Result<Option<f32>, ModelError> {
        match self.opt::<f32>(name)? {
            Some(x) if !(x.is_finite() && x > 0.0) => {
                Err(self.wrong(name, "it must be a number greater than 0".into()))
            }
            x => Ok(x),
        }
    }

    /// Accepts the key when it is absent or has the value that changes nothing.
    pub(crate) fn only<T>(&self, name: &str, neutral: T) -> Result<(), ModelError>
    where
        T: FromValue<'f> + PartialEq + std::fmt::Display,
    {
        match self.opt::<T>(name)? {
            Some(got) if got != neutral => {
                Err(self.wrong(name, format!("only {neutral} is supported for this family")))
            }
            _ => Ok(()),
        }
    }

    /// Marks keys as known that change nothing here.
    pub(crate) fn harmless(&self, names: &[&str]) {
        names.iter().for_each(|name| drop(self.key(name)));
    }

    /// The error for a value that a reader cannot take.
    pub(crate) fn wrong(&self, name: &str, want: String) -> ModelError {
        let key = self.key(name);
        let got = self.metadata.value(&key).map_or("absent".to_owned(), Value::to_string);
        ModelError::Value { file: self.metadata.file().to_owned(), key, got, want }
    }

    /// Fails when the architecture has a key that nobody read; tells of keys of other origins.
    pub(crate) fn finish(self, family: &'static str) -> Result<Vec<String>, ModelError> {
        let known = self.known.borrow();
        let prefix = format!("{}.", self.architecture);
        let mut notes = Vec::new();
        for (key, value) in self.metadata.iter() {
            if key.starts_with(&prefix) && !known.contains(key) {
                let (key, value) = (key.to_owned(), value.to_string());
                return Err(ModelError::UnknownKey {
                    file: self.metadata.file().to_owned(),
                    key,
                    value,
                    family,
                });
            }
            if !key.starts_with(&prefix) && !DESCRIPTIVE.iter().any(|p| key.starts_with(p)) {
                notes.push(format!("metadata '{}' is ignored", key.escape_debug()));
            }
        }
        Ok(notes)
    }
}
