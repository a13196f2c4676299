//! safetensors: the length of a header (8 bytes, little-endian), a JSON header that maps names to
//! dtype, shape and byte range, then the data without gaps. Published at
//! <https://github.com/huggingface/safetensors>.
//!
//! A model in several files has an index, `model.safetensors.index.json`, that says which file
//! holds which tensor. The index decides: other files beside it are noted and not read.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cyb_tensor::{Bytes, DType, MappedFile, Tensor, TensorError};
use indexmap::{IndexMap, IndexSet};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::error::FormatError;
use crate::metadata::Metadata;
use crate::model_file::{Format, ModelFile};
use crate::text::Excerpt;

/// The longest header that the reference implementation accepts.
pub(crate) const LONGEST_HEADER: u64 = 100_000_000;
/// The longest index that is read; published ones are a few megabytes.
const LONGEST_INDEX: u64 = 100_000_000;
const INDEX_NAME: &str = "model.safetensors.index.json";
const METADATA_KEY: &str = "__metadata__";

/// What is wrong with a safetensors file or index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SafetensorsError {
    #[error(
        "the header is {header} bytes, but the file ends at {file_len}; it is cut, fetch it again"
    )]
    ShortHeader { header: u64, file_len: u64 },
    #[error("the header is no table of tensors: {0}; the file is damaged")]
    Json(String),
    #[error(
        "tensor {} has dtype {}, which is not supported; convert the model to F32, F16 or BF16",
        Excerpt(name),
        Excerpt(dtype)
    )]
    UnknownType { name: String, dtype: String },
    #[error(
        "tensor size overflows: tensor {} has shape {shape:?}; the file is damaged",
        Excerpt(name)
    )]
    Overflow { name: String, shape: Vec<u64> },
    #[error("tensor {}: {problem}; the file is damaged", Excerpt(name))]
    Size { name: String, problem: TensorError },
    #[error("tensor {} has the byte range {start} to {end}; the file is damaged", Excerpt(name))]
    Range { name: String, start: u64, end: u64 },
    #[error(
        "tensor {} ends at byte {end}, but the file ends at {file_len}; it is cut, fetch it again",
        Excerpt(name)
    )]
    Short { name: String, end: u64, file_len: u64 },
    #[error("tensors {} and {} overlap; the file is damaged", Excerpt(first), Excerpt(second))]
    Overlap { first: String, second: String },
    #[error("{bytes} bytes {place} belong to no tensor; the file is damaged")]
    Hole { place: String, bytes: u64 },
    #[error("the index is {0} bytes long; it is damaged")]
    LongIndex(u64),
    #[error("the index names the file {}, which is no plain file name; the index is damaged", Excerpt(.0))]
    FileName(String),
    #[error("the index names {}, which is missing; fetch it into the same folder", Excerpt(.0))]
    MissingFile(String),
    #[error(
        "tensor {} is not in {}, where the index says it is; fetch the model again",
        Excerpt(name),
        Excerpt(file)
    )]
    MissingTensor { name: String, file: String },
}

/// A file's header: free-form metadata and, in the file's order, where each tensor lies.
#[derive(Debug, PartialEq)]
pub(crate) struct Header {
    pub(crate) metadata: IndexMap<String, String>,
    pub(crate) tensors: IndexMap<String, TensorInfo>,
}

/// Where a tensor lies, from the start of the file.
#[derive(Debug, PartialEq)]
pub(crate) struct TensorInfo {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// Reads the header of a safetensors file. `bytes` is the whole file.
pub(crate) fn parse(bytes: &[u8]) -> Result<Header, SafetensorsError> {
    let file_len = bytes.len() as u64;
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(SafetensorsError::ShortHeader { header: 8, file_len });
    };
    let header = u64::from_le_bytes(*len);
    let json = usize::try_from(header)
        .ok()
        .filter(|_| header <= LONGEST_HEADER)
        .and_then(|n| rest.get(..n))
        .ok_or(SafetensorsError::ShortHeader { header, file_len })?;
    let data_start = 8 + json.len();
    let HeaderJson { metadata, tensors } =
        serde_json::from_slice(json).map_err(|e| SafetensorsError::Json(e.to_string()))?;

    check_tiling(&tensors, data_start as u64, file_len)?;
    let tensors = tensors
        .into_iter()
        .map(|(name, json)| {
            let info = json.locate(&name, data_start)?;
            Ok((name, info))
        })
        .collect::<Result<_, SafetensorsError>>()?;
    Ok(Header { metadata, tensors })
}

/// The ranges must cover the data, each byte once.
fn check_tiling(
    tensors: &IndexMap<String, TensorJson>,
    data_start: u64,
    file_len: u64,
) -> Result<(), SafetensorsError> {
    let mut by_start: Vec<_> = tensors.iter().map(|(n, t)| (t.data_offsets, n)).collect();
    by_start.sort_unstable();
    let data_len = file_len - data_start;
    let mut free = 0;
    let mut previous = "";
    for ((start, end), name) in by_start {
        if end < start {
            return Err(SafetensorsError::Range { name: name.clone(), start, end });
        }
        if end > data_len {
            let end = end.saturating_add(data_start);
            return Err(SafetensorsError::Short { name: name.clone(), end, file_len });
        }
        if start < free {
            let (first, second) = (previous.to_owned(), name.clone());
            return Err(SafetensorsError::Overlap { first, second });
        }
        if start > free {
            let place = format!("before tensor {}", Excerpt(name));
            return Err(SafetensorsError::Hole { place, bytes: start - free });
        }
        (free, previous) = (end, name);
    }
    if free < data_len {
        let place = "at the end".to_owned();
        return Err(SafetensorsError::Hole { place, bytes: data_len - free });
    }
    Ok(())
}

struct HeaderJson {
    metadata: IndexMap<String, String>,
    tensors: IndexMap<String, TensorJson>,
}

#[derive(serde::Deserialize)]
struct TensorJson {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl TensorJson {
    /// The range is known to be in the file.
    fn locate(self, name: &str, data_start: usize) -> Result<TensorInfo, SafetensorsError> {
        let Some(dtype) = dtype_of(&self.dtype) else {
            let dtype = self.dtype;
            return Err(SafetensorsError::UnknownType { name: name.to_owned(), dtype });
        };
        let overflow =
            || SafetensorsError::Overflow { name: name.to_owned(), shape: self.shape.clone() };
        let shape: Vec<usize> = self
            .shape
            .iter()
            .map(|&d| usize::try_from(d).map_err(|_| overflow()))
            .collect::<Result<_, _>>()?;
        let size = |problem| SafetensorsError::Size { name: name.to_owned(), problem };
        let want = match cyb_tensor::byte_len(dtype, &shape) {
            Ok(n) => n,
            Err(TensorError::Overflow { .. }) => return Err(overflow()),
            Err(problem) => return Err(size(problem)),
        };
        let (start, end) = self.data_offsets;
        let got = (end - start) as usize;
        if got != want {
            return Err(size(TensorError::Length { dtype, shape, want, got }));
        }
        Ok(TensorInfo { dtype, shape, offset: data_start + start as usize, len: got })
    }
}

fn dtype_of(name: &str) -> Option<DType> {
    Some(match name {
        "BOOL" => DType::Bool,
        "U8" => DType::U8,
        "I8" => DType::I8,
        "U16" => DType::U16,
        "I16" => DType::I16,
        "U32" => DType::U32,
        "I32" => DType::I32,
        "U64" => DType::U64,
        "I64" => DType::I64,
        "F8_E4M3" => DType::F8E4M3,
        "F8_E5M2" => DType::F8E5M2,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        "F32" => DType::F32,
        "F64" => DType::F64,
        _ => return None,
    })
}

impl<'de> Deserialize<'de> for HeaderJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HeaderJson, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = HeaderJson;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HeaderJson, A::Error> {
                let mut metadata = None;
                let mut tensors = IndexMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    let twice = if key == METADATA_KEY {
                        metadata.replace(map.next_value::<UniqueMap<String>>()?.0).is_some()
                    } else {
                        tensors.insert(key.clone(), map.next_value()?).is_some()
                    };
                    if twice {
                        return Err(A::Error::custom(format!("{} occurs twice", Excerpt(&key))));
                    }
                }
                Ok(HeaderJson { metadata: metadata.unwrap_or_default(), tensors })
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

/// A JSON object whose keys are all different.
struct UniqueMap<V>(IndexMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UniqueMap<V>, D::Error> {
        struct MapVisitor<V>(std::marker::PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for MapVisitor<V> {
            type Value = UniqueMap<V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueMap<V>, A::Error> {
                let mut out = IndexMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    if out.insert(key.clone(), map.next_value()?).is_some() {
                        return Err(A::Error::custom(format!("{} occurs twice", Excerpt(&key))));
                    }
                }
                Ok(UniqueMap(out))
            }
        }
        deserializer.deserialize_map(MapVisitor(std::marker::PhantomData))
    }
}

/// Reads one file.
pub(crate) fn load(file: MappedFile) -> Result<ModelFile, FormatError> {
    let file = Arc::new(file);
    let path = file.path().to_owned();
    let (metadata, tensors) = read(&file)?;
    let mut model =
        ModelFile::new(Format::Safetensors, string_metadata(&path, metadata), vec![file]);
    model.tensors = tensors;
    Ok(model)
}

pub(crate) type Content = (IndexMap<String, String>, IndexMap<String, Tensor>);

fn read(file: &Arc<MappedFile>) -> Result<Content, FormatError> {
    let fail = |problem| FormatError::Safetensors { path: file.path().to_owned(), problem };
    let Header { metadata, tensors } = parse(file.bytes()).map_err(fail)?;
    let tensors = tensors
        .into_iter()
        .map(|(name, info)| {
            let end = info.offset.saturating_add(info.len) as u64;
            let Some(bytes) = Bytes::mapped(file.clone(), info.offset, info.len) else {
                let file_len = file.bytes().len() as u64;
                return Err(SafetensorsError::Short { name, end, file_len });
            };
            match Tensor::new(info.dtype, info.shape, bytes) {
                Ok(tensor) => Ok((name, tensor)),
                Err(problem) => Err(SafetensorsError::Size { name, problem }),
            }
        })
        .collect::<Result<_, _>>()
        .map_err(fail)?;
    Ok((metadata, tensors))
}

fn string_metadata(path: &Path, entries: IndexMap<String, String>) -> Metadata {
    let mut metadata = Metadata::new(path);
    entries.into_iter().for_each(|(key, value)| metadata.insert(key, value));
    metadata
}

/// The name of a dtype that the format has.
fn name_of(dtype: DType) -> Option<&'static str> {
    const NAMES: [&str; 15] = [
        "BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F8_E4M3", "F8_E5M2", "F16",
        "BF16", "F32", "F64",
    ];
    NAMES.into_iter().find(|name| dtype_of(name) == Some(dtype))
}

/// Writes tensors as one file, in their order.
///
/// # Errors
/// A tensor is of a type that the format does not have, or the file cannot be written.
pub(crate) fn write<'t>(
    path: &Path,
    tensors: impl Iterator<Item = (&'t str, &'t Tensor)> + Clone,
) -> Result<(), FormatError> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, tensor) in tensors.clone() {
        let Some(dtype) = name_of(tensor.dtype()) else {
            let problem = SafetensorsError::UnknownType {
                name: name.to_owned(),
                dtype: tensor.dtype().to_string(),
            };
            return Err(FormatError::Safetensors { path: path.to_owned(), problem });
        };
        let start = end;
        end += tensor.bytes().len();
        let entry = serde_json::json!({
            "dtype": dtype,
            "shape": tensor.shape(),
            "data_offsets": [start, end],
        });
        header.insert(name.to_owned(), entry);
    }
    let mut header = serde_json::Value::Object(header).to_string();
    // Data begins at a multiple of 8 bytes.
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    crate::atomic::write_file(path, |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        for (_, tensor) in tensors {
            out.write_all(tensor.bytes().as_slice())?;
            tensor.bytes().release();
        }
        Ok(())
    })
}

#[derive(serde::Deserialize)]
struct IndexJson {
    weight_map: UniqueMap<String>,
}

/// The index in a directory, if there is one.
pub(crate) fn find_index(dir: &Path) -> Option<PathBuf> {
    Some(dir.join(INDEX_NAME)).filter(|p| p.is_file())
}

/// Reads the model that an index describes.
pub(crate) fn load_index(index: &Path) -> Result<ModelFile, FormatError> {
    load_indexed(index, Format::Safetensors, &read)
}

/// Reads the parts that an index names with `read`. Other formats have indexes of the same form.
pub(crate) fn load_indexed(
    index: &Path,
    format: Format,
    read: &dyn Fn(&Arc<MappedFile>) -> Result<Content, FormatError>,
) -> Result<ModelFile, FormatError> {
    let fail = |problem| FormatError::Safetensors { path: index.to_owned(), problem };
    let text = MappedFile::open(index)?;
    if text.bytes().len() as u64 > LONGEST_INDEX {
        return Err(fail(SafetensorsError::LongIndex(text.bytes().len() as u64)));
    }
    let IndexJson { weight_map: UniqueMap(weight_map) } = serde_json::from_slice(text.bytes())
        .map_err(|e| fail(SafetensorsError::Json(e.to_string())))?;

    let names: IndexSet<&str> = weight_map.values().map(String::as_str).collect();
    for &name in &names {
        // A file name that is its own last component leads nowhere else.
        if Path::new(name).file_name() != Some(name.as_ref()) || name.contains(['/', '\\']) {
            return Err(fail(SafetensorsError::FileName(name.to_owned())));
        }
        if !index.with_file_name(name).exists() {
            return Err(fail(SafetensorsError::MissingFile(name.to_owned())));
        }
    }
    let mut contents = IndexMap::new();
    let mut files = Vec::new();
    for &name in &names {
        let file = Arc::new(MappedFile::open(&index.with_file_name(name))?);
        contents.insert(name, read(&file)?);
        files.push(file);
    }
    let metadata = contents.values().next().map(|(m, _)| m.clone()).unwrap_or_default();
    let mut model = ModelFile::new(format, string_metadata(index, metadata), files);
    for (name, file) in &weight_map {
        let tensor = contents.get_mut(file.as_str()).and_then(|(_, t)| t.swap_remove(name));
        let Some(tensor) = tensor else {
            let (name, file) = (name.clone(), file.clone());
            return Err(fail(SafetensorsError::MissingTensor { name, file }));
        };
        model.tensors.insert(name.clone(), tensor);
    }
    for (file, (_, left)) in &contents {
        if let Some((name, _)) = left.first() {
            model.notes.push(format!(
                "{} tensors in {} are not in the index and ignored, {} the first",
                left.len(),
                Excerpt(file),
                Excerpt(name)
            ));
        }
    }
    Ok(model)
}

#[cfg(test)]
mod tests;
