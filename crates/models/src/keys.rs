//! Reading a family's configuration from GGUF metadata or from config.json.
//!
//! A key of the architecture that no reader asked for is an error: it may change what the model
//! computes. So what a family understands is what its `from_gguf` reads, and there is no list to
//! keep beside it.

use std::cell::RefCell;
use std::collections::BTreeSet;

use cyb_formats::{FromValue, Metadata, Value};

use crate::ModelError;

/// Prefixes of keys that describe a file or its vocabulary and never change the graph.
const DESCRIPTIVE: [&str; 15] = [
    "general.",
    "tokenizer.",
    "quantize.",
    "split.",
    "format",
    "generation_config.",
    "tokenizer_config.",
    "special_tokens_map.",
    "chat_template_json.",
    "modules.",
    "sentence_bert_config.",
    "config_sentence_transformers.",
    "preprocessor_config.",
    "processor_config.",
    "vocab.",
];

/// The prefix of what config.json says.
pub(crate) const CONFIG_JSON: &str = "config";

/// Keys of config.json that concern training, generation or the library that wrote the file.
const BESIDE_THE_MATH: [&str; 47] = [
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "bos_token_id",
    "classifier_dropout",
    "cls_token_id",
    "decoder_start_token_id",
    "directionality",
    "do_sample",
    "dropout",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "initializer_factor",
    "initializer_range",
    "language",
    "layerdrop",
    "mask_token_id",
    "max_length",
    "model_type",
    "name",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "pad_token_id",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "pretraining_tp",
    "resid_pdrop",
    "return_dict",
    "sep_token_id",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "unk_token_id",
    "use_cache",
];

/// The keys under one architecture's prefix. Names are given without it.
pub(crate) struct Keys<'f> {
    pub(crate) metadata: &'f Metadata,
    architecture: &'f str,
    known: RefCell<BTreeSet<String>>,
    /// Objects of config.json whose entries change nothing.
    harmless: RefCell<Vec<String>>,
}

impl<'f> Keys<'f> {
    pub(crate) fn new(metadata: &'f Metadata, architecture: &'f str) -> Keys<'f> {
        Keys { metadata, architecture, known: RefCell::default(), harmless: RefCell::default() }
    }

    /// The keys of config.json.
    pub(crate) fn config_json(metadata: &'f Metadata) -> Keys<'f> {
        let keys = Keys::new(metadata, CONFIG_JSON);
        keys.harmless(&BESIDE_THE_MATH);
        for object in ["auto_map", "task_specific_params", "transformers.js_config"] {
            keys.harmless_under(object);
        }
        keys
    }

    /// Whether the configuration is a config.json.
    pub(crate) fn is_config_json(&self) -> bool {
        self.architecture == CONFIG_JSON
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

    /// Marks the entries of an object as known that change nothing here.
    pub(crate) fn harmless_under(&self, name: &str) {
        self.harmless.borrow_mut().push(format!("{}.{name}.", self.architecture));
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
            let harmless = || self.harmless.borrow().iter().any(|under| key.starts_with(under));
            if key.starts_with(&prefix) && !known.contains(key) && !harmless() {
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
