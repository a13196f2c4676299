//! Hugging Face model directories: what lies beside the weights.
//!
//! JSON files become metadata under the file's name (`config.hidden_size`,
//! `tokenizer_config.bos_token`), the stages of sentence-transformers' `modules.json` become
//! `modules.1.config.pooling_mode_mean_tokens` and tensors `modules.2.linear.weight`, and files that
//! are neither are kept as they are ([`ModelFile::documents`]).

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use cyb_tensor::{Bytes, MappedFile};

use crate::error::FormatError;
use crate::json;
use crate::metadata::Metadata;
use crate::model_file::ModelFile;

/// JSON files and the prefix of their keys.
const CONFIGURATIONS: [(&str, &str); 6] = [
    ("config.json", "config"),
    ("generation_config.json", "generation_config"),
    ("sentence_bert_config.json", "sentence_bert_config"),
    ("config_sentence_transformers.json", "config_sentence_transformers"),
    ("preprocessor_config.json", "preprocessor_config"),
    ("processor_config.json", "processor_config"),
];

/// As [`CONFIGURATIONS`], for files that are beside the tokenizer.
const TOKENIZER_CONFIGURATIONS: [(&str, &str); 3] = [
    ("tokenizer_config.json", "tokenizer_config"),
    ("special_tokens_map.json", "special_tokens_map"),
    ("chat_template.json", "chat_template_json"),
];

/// Files that other crates read.
const DOCUMENTS: [&str; 9] = [
    "tokenizer.json",
    "chat_template.jinja",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
];

/// More stages than any sentence-transformers model has.
const MAX_MODULES: usize = 16;

/// The directory that holds the weights of the model in `dir`: the first stage of `modules.json`
/// may be in a directory of its own.
pub(crate) fn weights_dir(dir: &Path) -> Result<PathBuf, FormatError> {
    let mut modules = Metadata::new(dir);
    if let Some(list) = json::read(&dir.join("modules.json"))? {
        json::flatten(&mut modules, "modules", list);
    }
    match modules.opt::<&str>("modules.0.path")? {
        None | Some("") => Ok(dir.to_owned()),
        Some(path) => inside(dir, path),
    }
}

/// Adds to a model what lies beside its weights. `dir` is the model's directory, `weights` the one
/// of its weights.
pub(crate) fn attach(model: &mut ModelFile, dir: &Path, weights: &Path) -> Result<(), FormatError> {
    let entries = model.metadata.iter().map(|(k, v)| (k.to_owned(), v.clone())).collect();
    let mut metadata = Metadata::from_entries(dir, entries);
    for (name, prefix) in CONFIGURATIONS.iter().chain(&TOKENIZER_CONFIGURATIONS) {
        for place in [weights, dir] {
            if let Some(mut value) = json::read(&place.join(name))? {
                if let json::Json::Object(entries) = &mut value {
                    // What tokenizer.json says too, at the length of thousands of entries.
                    entries.shift_remove("added_tokens_decoder");
                }
                json::flatten(&mut metadata, prefix, value);
                break;
            }
        }
    }
    if let Some(list) = json::read(&dir.join("modules.json"))? {
        json::flatten(&mut metadata, "modules", list);
    }
    for i in 1..MAX_MODULES {
        let Some(path) = metadata.opt::<&str>(&format!("modules.{i}.path"))? else { break };
        if path.is_empty() {
            continue;
        }
        let stage = inside(dir, path)?;
        if let Some(config) = json::read(&stage.join("config.json"))? {
            json::flatten(&mut metadata, &format!("modules.{i}.config"), config);
        }
        let names = ["model.safetensors", "pytorch_model.bin"].map(|name| stage.join(name));
        if let Some(file) = names.iter().find(|file| file.is_file()) {
            model.take_tensors(crate::open_file(file)?, &format!("modules.{i}."));
        }
    }
    attach_documents(model, [weights, dir])?;
    model.metadata = metadata;
    Ok(())
}

/// Keeps the files that other crates read, from the first place that has each.
pub(crate) fn attach_documents(
    model: &mut ModelFile,
    places: [&Path; 2],
) -> Result<(), FormatError> {
    for name in DOCUMENTS {
        let found = places.map(|place| place.join(name)).into_iter().find(|p| p.is_file());
        if let Some(path) = found {
            let file = Arc::new(MappedFile::open(&path)?);
            let len = file.bytes().len();
            if let Some(bytes) = Bytes::mapped(file, 0, len) {
                model.documents.insert(name.to_owned(), bytes);
            }
        }
    }
    Ok(())
}

/// A path below `dir` that a file names.
pub(crate) fn inside(dir: &Path, path: &str) -> Result<PathBuf, FormatError> {
    let steps = Path::new(path).components().all(|c| matches!(c, Component::Normal(_)));
    match steps {
        true => Ok(dir.join(path)),
        false => Err(FormatError::Json {
            path: dir.join("modules.json"),
            problem: format!("{} leads out of the model", crate::text::Excerpt(path)),
        }),
    }
}
