//! The project's own model directory: `config.toml` says what the model is, and everything beside
//! it is TOML too, but the tokenizer and the weights.
//!
//! | file | holds | is read as |
//! |---|---|---|
//! | `config.toml` | what config.json holds; `architecture`; `[components.NAME]` with `weights` | `config.*` |
//! | `chat.toml` | `template`, `bos_token`, `eos_token`, `pad_token` | `tokenizer_config.*` |
//! | `sampling.toml` | how to sample; what generation_config.json holds | `generation_config.*`, `sampling.*` |
//! | `vocab.toml` | the tokenizer, see [`crate::vocab_toml`] | `tokenizer.json`, `vocab.*` |
//! | `pipeline.toml` | stages of sentence-transformers, preprocessing of pictures | as they are named |
//! | `weights.*` | all tensors, where there are no components | tensors |

use std::path::{Path, PathBuf};

use cyb_tensor::{AlignedBytes, Bytes, MappedFile};
use indexmap::IndexMap;

use crate::error::FormatError;
use crate::json::{self, Json};
use crate::metadata::{Array, Metadata, Value};
use crate::model_file::{Format, ModelFile};
use crate::{huggingface, safetensors, vocab_toml};

/// The file that makes a directory one of these.
const CONFIG: &str = "config.toml";

/// How to sample where a user does not say.
const SAMPLING: &str = "sampling.toml";

/// The tokenizer, here and where it comes from.
const VOCAB: &str = "vocab.toml";
const TOKENIZER: &str = "tokenizer.json";

/// The other files and what their keys are put under.
const FILES: [(&str, &str); 4] = [
    ("chat.toml", "tokenizer_config"),
    (SAMPLING, "generation_config"),
    (VOCAB, "vocab"),
    ("pipeline.toml", ""),
];

/// Metadata that goes into `pipeline.toml`.
const PIPELINE: [&str; 5] = [
    "modules",
    "sentence_bert_config",
    "config_sentence_transformers",
    "preprocessor_config",
    "processor_config",
];

/// Keys of the tokenizer's configuration that go into `chat.toml`.
const CHAT: [&str; 8] = [
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "add_bos_token",
    "add_eos_token",
    "model_max_length",
    "tokenizer_class",
];

/// Whether a directory is one of these.
pub(crate) fn is_here(dir: &Path) -> bool {
    dir.join(CONFIG).is_file()
}

fn fail(path: &Path) -> impl Fn(String) -> FormatError + '_ {
    move |problem| FormatError::Toml { path: path.to_owned(), problem }
}

fn read(path: &Path) -> Result<Option<toml::Table>, FormatError> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() && found.len() == 0 => return Ok(Some(toml::Table::new())),
        Ok(found) if found.is_file() => {}
        // What cannot be looked at is not there.
        Ok(_) | Err(_) => return Ok(None),
    }
    let file = MappedFile::open(path)?;
    let text = std::str::from_utf8(file.bytes()).map_err(|e| fail(path)(e.to_string()))?;
    let parsed = toml::from_str::<toml::Table>(text);
    parsed.map(Some).map_err(|e| fail(path)(e.message().to_owned()))
}

/// Opens a directory with a `config.toml`.
pub(crate) fn open(dir: &Path) -> Result<ModelFile, FormatError> {
    let path = dir.join(CONFIG);
    let mut config = read(&path)?.unwrap_or_default();
    let components = match config.remove("components") {
        Some(toml::Value::Table(table)) => table,
        Some(_) => return Err(fail(&path)("components is no table".to_owned())),
        None => toml::Table::new(),
    };
    let mut parts = Vec::new();
    for (name, component) in &components {
        let weights = component.get("weights").and_then(toml::Value::as_str);
        let missing = || fail(&path)(format!("components.{name} names no weights"));
        parts.push(huggingface::inside(dir, weights.ok_or_else(missing)?)?);
    }
    if parts.is_empty() {
        parts = vec![only_weights(dir)?];
    }
    let mut model: Option<ModelFile> = None;
    for part in &parts {
        let opened = crate::open_file(part)?;
        match &mut model {
            None => model = Some(opened),
            Some(model) => {
                if let Some(twice) = opened.tensors.keys().find(|n| model.tensors.contains_key(*n))
                {
                    let problem = format!("tensor '{twice}' is in two components");
                    return Err(fail(&path)(problem));
                }
                model.take_tensors(opened, "");
            }
        }
    }
    let Some(mut model) = model else { return Err(fail(&path)("there are no weights".to_owned())) };
    let entries = model.metadata.iter().map(|(k, v)| (k.to_owned(), v.clone())).collect();
    let mut metadata = Metadata::from_entries(dir, entries);
    // A GGUF file says itself what it is.
    if !matches!(model.format, Format::Gguf { .. }) {
        if let Some(architecture) = config.remove("architecture") {
            config.insert("architectures".to_owned(), toml::Value::Array(vec![architecture]));
        }
        json::flatten(&mut metadata, "config", as_json(toml::Value::Table(config)));
    }
    let mut tokenizer = None;
    for (name, under) in FILES {
        let path = dir.join(name);
        let Some(mut table) = read(&path)? else { continue };
        if name == VOCAB {
            tokenizer = vocab_toml::to_json(&mut table).map_err(fail(&path))?;
        }
        if let Some(template) = table.remove("template") {
            table.insert("chat_template".to_owned(), template);
        }
        match under {
            "" => {
                for (key, value) in table {
                    json::flatten(&mut metadata, &key, as_json(value));
                }
            }
            under => {
                let table = as_json(toml::Value::Table(table));
                if name == SAMPLING {
                    json::flatten(&mut metadata, "sampling", table.clone());
                }
                json::flatten(&mut metadata, under, table);
            }
        }
    }
    huggingface::attach_documents(&mut model, [dir, dir])?;
    if let Some(json) = tokenizer {
        if model.documents.contains_key(TOKENIZER) {
            let problem = format!("there is a vocabulary and a {TOKENIZER} too; keep one of them");
            return Err(fail(&dir.join(VOCAB))(problem));
        }
        let json = Bytes::owned(AlignedBytes::from_slice(&json));
        model.documents.insert(TOKENIZER.to_owned(), json);
    }
    model.metadata = metadata;
    Ok(model)
}

/// The one file, or index, that is called `weights`.
fn only_weights(dir: &Path) -> Result<PathBuf, FormatError> {
    let list = |problem| FormatError::List { path: dir.to_owned(), problem };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(list)? {
        let path = entry.map_err(list)?.path();
        if path.is_file() && path.file_stem().is_some_and(|stem| stem == "weights") {
            found.push(path);
        }
    }
    found.sort();
    match found.as_slice() {
        [one] => Ok(one.clone()),
        several => Err(FormatError::Directory {
            path: dir.to_owned(),
            found: format!("config.toml and {} files called weights", several.len()),
            want: "one weights file, or name each under [components] in config.toml",
        }),
    }
}

fn as_json(value: toml::Value) -> Json {
    match value {
        toml::Value::String(v) => Json::String(v),
        toml::Value::Integer(v) => Json::Int(v),
        toml::Value::Float(v) => Json::Float(v),
        toml::Value::Boolean(v) => Json::Bool(v),
        toml::Value::Datetime(v) => Json::String(v.to_string()),
        toml::Value::Array(list) => Json::List(list.into_iter().map(as_json).collect()),
        toml::Value::Table(table) => {
            Json::Object(table.into_iter().map(|(k, v)| (k, as_json(v))).collect())
        }
    }
}

/// Writes a model as one of these directories. `dir` is made; what is in it stays, but for files of
/// the same names. A GGUF file, whole or in parts, becomes `weights.gguf` and goes on saying itself
/// what it is; `config.toml` then tells people.
///
/// # Errors
/// The model was made in memory, or a file cannot be written.
pub fn write_directory(model: &ModelFile, dir: &Path) -> Result<(), FormatError> {
    match model.format {
        Format::Gguf { .. } => return write_gguf(model, dir),
        Format::Safetensors | Format::Torch => {}
        Format::Memory => {
            return Err(FormatError::Directory {
                path: model.metadata.file().to_owned(),
                found: "a model that was made in memory".to_owned(),
                want: "a Hugging Face directory or a GGUF file",
            });
        }
    }
    let write_failed = |problem| FormatError::Write { path: dir.to_owned(), problem };
    std::fs::create_dir_all(dir).map_err(write_failed)?;
    let m = &model.metadata;
    let mut config = table(m, "config");
    if let Some(toml::Value::Array(names)) = config.remove("architectures")
        && let Some(first) = names.into_iter().next()
    {
        config.insert("architecture".to_owned(), first);
    }
    put(&dir.join(CONFIG), config)?;
    let tokenizer = table(m, "tokenizer_config");
    let mut chat = toml::Table::new();
    let template = model.documents.get("chat_template.jinja").map(|file| file.as_slice());
    let template = template.and_then(|bytes| std::str::from_utf8(bytes).ok());
    if let Some(template) = template.or(m.opt("tokenizer_config.chat_template")?) {
        chat.insert("template".to_owned(), template.into());
    }
    for key in CHAT {
        // A special token is its text or an object with it.
        let value = match tokenizer.get(key).cloned() {
            Some(toml::Value::Table(token)) => token.get("content").cloned(),
            value => value,
        };
        if let Some(value) = value {
            chat.insert(key.to_owned(), value);
        }
    }
    put(&dir.join("chat.toml"), chat)?;
    put(&dir.join(SAMPLING), table(m, "generation_config"))?;
    let json = model.documents.get(TOKENIZER);
    let converted = json.and_then(|json| vocab_toml::from_json(json.as_slice()));
    let is_converted = converted.is_some();
    let mut vocab = converted.unwrap_or_default();
    if let Some(size) = m.opt::<i64>("config.vocab_size")? {
        vocab.insert("vocab_size".to_owned(), size.into());
    }
    put(&dir.join(VOCAB), vocab)?;
    if is_converted {
        // One that is left there from before would be a second tokenizer.
        match std::fs::remove_file(dir.join(TOKENIZER)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(write_failed(error));
            }
            _ => {}
        }
    }
    let mut pipeline = toml::Table::new();
    for name in PIPELINE {
        let part = table(m, name);
        if !part.is_empty() {
            pipeline.insert(name.to_owned(), toml::Value::Table(part));
        }
    }
    put(&dir.join("pipeline.toml"), pipeline)?;
    for (name, document) in &model.documents {
        let said = name == "chat_template.jinja" || (name == TOKENIZER && is_converted);
        if !said {
            crate::atomic::write_file(&dir.join(name), |out| {
                std::io::Write::write_all(out, document.as_slice())
            })?;
        }
    }
    let tensors = model.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    safetensors::write(&dir.join("weights.safetensors"), tensors)
}

fn write_gguf(model: &ModelFile, dir: &Path) -> Result<(), FormatError> {
    const ARCHITECTURE: &str = "general.architecture";
    const TEMPLATE: &str = "tokenizer.chat_template";
    let write_failed = |problem| FormatError::Write { path: dir.to_owned(), problem };
    std::fs::create_dir_all(dir).map_err(write_failed)?;
    let m = &model.metadata;
    let architecture: &str = m.get(ARCHITECTURE)?;
    let mut config = toml::Table::new();
    config.insert("model_type".to_owned(), architecture.into());
    if let Some(name) = m.opt::<&str>("general.name")? {
        config.insert("name".to_owned(), name.into());
    }
    for (key, value) in table(m, architecture) {
        config.insert(key, value);
    }
    put(&dir.join(CONFIG), config)?;
    if let Some(template) = m.opt::<&str>(TEMPLATE)? {
        let chat = toml::Table::from_iter([("template".to_owned(), template.into())]);
        put(&dir.join("chat.toml"), chat)?;
    }
    // The parts of a split model become one file. What the directory itself said stays outside.
    let beside = FILES.map(|(_, under)| under).into_iter().chain(["sampling", "split"]);
    let beside: Vec<String> =
        beside.filter(|under| !under.is_empty()).map(|under| format!("{under}.")).collect();
    let own = m.iter().filter(|(key, _)| !beside.iter().any(|under| key.starts_with(under)));
    let own = Metadata::from_entries(dir, own.map(|(k, v)| (k.to_owned(), v.clone())).collect());
    let tensors = model.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    crate::gguf::write(&dir.join("weights.gguf"), &own, tensors)
}

/// The entries under a prefix as a table, nested as they were.
fn table(metadata: &Metadata, prefix: &str) -> toml::Table {
    let mut out = toml::Table::new();
    let start = format!("{prefix}.");
    for (key, value) in metadata.iter() {
        let (Some(path), Some(value)) = (key.strip_prefix(&start), as_toml(value)) else {
            continue;
        };
        insert(&mut out, path, value);
    }
    out
}

/// Puts a value under a dotted path. Where a value and a table have the same name the first stays.
fn insert(table: &mut toml::Table, path: &str, value: toml::Value) {
    let Some((first, rest)) = path.split_once('.') else {
        table.entry(path).or_insert(value);
        return;
    };
    let inner = table.entry(first).or_insert_with(|| toml::Value::Table(toml::Table::new()));
    if let toml::Value::Table(inner) = inner {
        insert(inner, rest, value);
    }
}

fn as_toml(value: &Value) -> Option<toml::Value> {
    let list = |array: &Array| -> Option<Vec<toml::Value>> {
        (0..array.len()).map(|i| array.get(i).as_ref().and_then(as_toml)).collect()
    };
    Some(match value {
        Value::Bool(v) => (*v).into(),
        Value::U8(v) => i64::from(*v).into(),
        Value::I8(v) => i64::from(*v).into(),
        Value::U16(v) => i64::from(*v).into(),
        Value::I16(v) => i64::from(*v).into(),
        Value::U32(v) => i64::from(*v).into(),
        Value::I32(v) => i64::from(*v).into(),
        Value::U64(v) => i64::try_from(*v).ok()?.into(),
        Value::I64(v) => (*v).into(),
        Value::F32(v) => f64::from(*v).into(),
        Value::F64(v) => (*v).into(),
        Value::String(v) => v.as_str().into(),
        Value::Array(array) => toml::Value::Array(list(array)?),
    })
}

/// Writes a table, unless it is empty.
fn put(path: &Path, table: toml::Table) -> Result<(), FormatError> {
    if table.is_empty() {
        return Ok(());
    }
    let mut text = String::new();
    entries(&mut text, &[], &table);
    crate::atomic::write_file(path, |out| std::io::Write::write_all(out, text.as_bytes()))
}

/// Plain entries first, then tables under their headings.
fn entries(out: &mut String, path: &[&str], table: &toml::Table) {
    let sorted: IndexMap<&String, &toml::Value> = table.iter().collect();
    for (key, value) in sorted.iter().filter(|(_, value)| !value.is_table()) {
        out.push_str(&format!("{} = {}\n", name(key), literal(value)));
    }
    for (key, value) in sorted {
        let toml::Value::Table(inner) = value else { continue };
        let path: Vec<&str> = path.iter().copied().chain([key.as_str()]).collect();
        if inner.values().any(|value| !value.is_table()) || inner.is_empty() {
            let heading: Vec<String> = path.iter().map(|step| name(step)).collect();
            out.push_str(&format!("\n[{}]\n", heading.join(".")));
        }
        entries(out, &path, inner);
    }
}

fn name(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match !key.is_empty() && key.chars().all(bare) {
        true => key.to_owned(),
        false => text(key),
    }
}

fn literal(value: &toml::Value) -> String {
    match value {
        toml::Value::String(v) => text(v),
        toml::Value::Integer(v) => v.to_string(),
        toml::Value::Float(v) => match v.is_finite() {
            // With a point or an exponent, so that it stays a float.
            true => format!("{v:?}"),
            false => v.to_string().to_lowercase(),
        },
        toml::Value::Boolean(v) => v.to_string(),
        toml::Value::Datetime(v) => v.to_string(),
        toml::Value::Array(list) => {
            let items: Vec<String> = list.iter().map(literal).collect();
            format!("[{}]", items.join(", "))
        }
        toml::Value::Table(table) => {
            let items: Vec<String> =
                table.iter().map(|(k, v)| format!("{} = {}", name(k), literal(v))).collect();
            format!("{{ {} }}", items.join(", "))
        }
    }
}

/// A basic string: JSON's escapes are TOML's, but that TOML wants DEL escaped.
fn text(v: &str) -> String {
    let quoted = serde_json::to_string(v).unwrap_or_default();
    quoted.replace('\u{7f}', "\\u007F")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_the_same() {
        let mut m = Metadata::new("m");
        m.insert("config.rope.theta", 1e6);
        m.insert("config.eps", 1e-12);
        m.insert("config.heads", 3i64);
        m.insert("config.odd key", "a \"b\"\n\u{7f}\u{1}");
        m.insert("config.layers.0.kind", "x");
        m.insert("config.names", vec!["a".to_owned(), "b".to_owned()]);
        m.insert("config.flags", vec![true, false]);
        let mut out = String::new();
        entries(&mut out, &[], &table(&m, "config"));
        let back: toml::Table = toml::from_str(&out).unwrap_or_else(|e| panic!("{e}\n{out}"));
        let mut read = Metadata::new("m");
        json::flatten(&mut read, "config", as_json(toml::Value::Table(back)));
        for (key, value) in m.iter() {
            assert_eq!(read.value(key), Some(value), "{key} in\n{out}");
        }
    }

    #[test]
    fn the_parts_of_a_gguf_model_become_one_file() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../golden/formats/split-00001-of-00003.gguf");
        let parts = crate::open(&path).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        write_directory(&parts, &own).unwrap();
        let whole = crate::open(&own).unwrap();
        assert!(whole.tensors.keys().eq(parts.tensors.keys()) && whole.tensors.len() > 2);
        for (name, tensor) in &whole.tensors {
            let (a, b) = (tensor.bytes().as_slice(), parts.tensors[name].bytes().as_slice());
            assert_eq!(a, b, "{name}");
        }
        assert_eq!(whole.metadata.value("split.count"), None);
        let blocks: u32 = whole.metadata.get("golden.block_count").unwrap();
        assert_eq!(blocks, 5);
    }
}
