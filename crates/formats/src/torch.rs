//! PyTorch checkpoints: a pickle that describes tensors, and their numbers. Since 2020 a zip archive
//! with the pickle in `data.pkl` and each storage in an entry of its own, before that several
//! pickles in a row with the storages after them.
//!
//! Reference: `torch/serialization.py` of <https://github.com/pytorch/pytorch>.

use std::collections::HashMap;
use std::io::Cursor;
use std::ops::Range;
use std::sync::Arc;

use cyb_tensor::{AlignedBytes, Bytes, DType, MappedFile, Tensor, TensorError, byte_len};
use indexmap::IndexMap;
use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

use crate::error::FormatError;
use crate::metadata::Metadata;
use crate::model_file::{Format, ModelFile};
use crate::pickle::{self, Built, PickleError, Value, View};
use crate::text::Excerpt;

/// What is wrong with a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum TorchError {
    #[error("the archive cannot be read ({0}); fetch the file again")]
    Zip(ZipError),
    #[error(transparent)]
    Pickle(#[from] PickleError),
    #[error("the archive has no {}; the file is damaged", Excerpt(.0))]
    NoEntry(String),
    #[error("{} is compressed, which PyTorch never writes; unpack and store it", Excerpt(.0))]
    Compressed(String),
    #[error("the numbers are in big-endian order; save it on a little-endian machine")]
    BigEndian,
    #[error(
        "storage {} has {got} bytes, but its description asks for {want}; the file is cut or damaged",
        Excerpt(key)
    )]
    Storage { key: String, want: usize, got: usize },
    #[error("tensor {} is not inside its storage; the file is damaged", Excerpt(.0))]
    Outside(String),
    #[error("tensor {}: {problem}; the file is damaged", Excerpt(name))]
    Tensor { name: String, problem: TensorError },
    #[error("it holds no table of tensors; give a checkpoint of weights (a state_dict)")]
    NoTensors,
}

/// How a checkpoint before 2020 begins: the pickle of a number.
pub(crate) const LEGACY: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";

/// Names under which trainers keep the weights beside other things.
const NESTED: [&str; 3] = ["state_dict", "model_state_dict", "model"];

/// A tensor before its bytes are taken: where its storage is and which part of it.
#[derive(Debug, PartialEq)]
pub(crate) struct Described {
    pub(crate) dtype: DType,
    /// Bytes of the storage in the file.
    pub(crate) storage: Range<usize>,
    pub(crate) view: View,
}

/// Finds the tensors of a checkpoint. `bytes` is the whole file.
pub(crate) fn parse(bytes: &[u8]) -> Result<IndexMap<String, Described>, TorchError> {
    let mut built = Built::default();
    let (top, places) = match bytes.starts_with(b"PK") {
        true => archive(bytes, &mut built)?,
        false => in_a_row(bytes, &mut built)?,
    };
    let mut tensors = IndexMap::new();
    for (name, view) in table_of_tensors(&built, top)? {
        let view = built.views[view].clone();
        let storage = &built.storages[view.storage];
        let want = byte_len(storage.dtype, &[storage.len])
            .map_err(|problem| TorchError::Tensor { name: name.clone(), problem })?;
        let key = || storage.key.clone();
        let place = places.get(&storage.key).cloned().ok_or_else(|| TorchError::NoEntry(key()))?;
        if place.len() != want {
            return Err(TorchError::Storage { key: key(), want, got: place.len() });
        }
        check(&view, storage.len).ok_or_else(|| TorchError::Outside(name.clone()))?;
        tensors.insert(name, Described { dtype: storage.dtype, storage: place, view });
    }
    Ok(tensors)
}

/// Names and views of the table at the top, or of the one inside that trainers write.
fn table_of_tensors(built: &Built, top: Value) -> Result<Vec<(String, usize)>, TorchError> {
    let tensors = |table: usize| -> Vec<(String, usize)> {
        let entries = built.tables[table].iter();
        entries
            .filter_map(|&(key, value)| match value {
                Value::Tensor(view) => Some((built.text(key)?.to_owned(), view)),
                _ => None,
            })
            .collect()
    };
    let Value::Table(table) = top else { return Err(TorchError::NoTensors) };
    let own = tensors(table);
    if !own.is_empty() {
        return Ok(own);
    }
    let inner = NESTED.iter().find_map(|wanted| {
        built.tables[table].iter().find_map(|&(key, value)| match value {
            Value::Table(inner) if built.text(key) == Some(wanted) => Some(tensors(inner)),
            _ => None,
        })
    });
    inner.filter(|found| !found.is_empty()).ok_or(TorchError::NoTensors)
}

/// Fails when a view reaches outside of its storage or has more numbers than it.
fn check(view: &View, len: usize) -> Option<()> {
    if view.shape.len() != view.strides.len() {
        return None;
    }
    let count = view.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    if count == 0 {
        return Some(());
    }
    let mut last = view.offset;
    for (&n, &stride) in view.shape.iter().zip(&view.strides) {
        last = last.checked_add((n - 1).checked_mul(stride)?)?;
    }
    (last < len && count <= len).then_some(())
}

type Found = (Value, HashMap<String, Range<usize>>);

fn archive(bytes: &[u8], built: &mut Built) -> Result<Found, TorchError> {
    let mut zip = ZipArchive::new(Cursor::new(bytes)).map_err(TorchError::Zip)?;
    let mut entries: HashMap<String, Range<usize>> = HashMap::new();
    let mut root = None;
    for i in 0..zip.len() {
        let entry = zip.by_index_raw(i).map_err(TorchError::Zip)?;
        let name = entry.name().map_err(TorchError::Zip)?.into_owned();
        if let Some(start) = name.strip_suffix("data.pkl")
            && (start.is_empty() || start.ends_with('/'))
        {
            root = Some(start.to_owned());
        }
        if entry.compression() != CompressionMethod::Stored {
            return Err(TorchError::Compressed(name));
        }
        let outside = || TorchError::NoEntry(name.clone());
        let start = entry.data_start().ok_or_else(outside)?;
        let start = usize::try_from(start).map_err(|_| outside())?;
        let end = usize::try_from(entry.size()).ok().and_then(|n| start.checked_add(n));
        let end = end.filter(|&end| end <= bytes.len()).ok_or_else(outside)?;
        entries.insert(name, start..end);
    }
    let root = root.ok_or_else(|| TorchError::NoEntry("data.pkl".to_owned()))?;
    let own = |name: &str| entries.get(&format!("{root}{name}")).cloned();
    if own("byteorder").is_some_and(|order| &bytes[order] != b"little") {
        return Err(TorchError::BigEndian);
    }
    let program = own("data.pkl").ok_or_else(|| TorchError::NoEntry("data.pkl".to_owned()))?;
    let (top, _) = pickle::run(&bytes[program], 0, built)?;
    let data = format!("{root}data/");
    let places = entries.into_iter();
    let places = places.filter_map(|(name, at)| Some((name.strip_prefix(&data)?.to_owned(), at)));
    Ok((top, places.collect()))
}

/// The magic number, a version, the machine, the tensors, the order of storages; then each storage
/// with its length before it.
fn in_a_row(bytes: &[u8], built: &mut Built) -> Result<Found, TorchError> {
    let mut at = 0;
    for _ in 0..2 {
        at = pickle::run(bytes, at, &mut Built::default())?.1;
    }
    let mut machine = Built::default();
    let (about, end) = pickle::run(bytes, at, &mut machine)?;
    if let Value::Table(table) = about
        && machine.tables[table].iter().any(|&(key, value)| {
            machine.text(key) == Some("little_endian") && value == Value::Bool(false)
        })
    {
        return Err(TorchError::BigEndian);
    }
    let (top, end) = pickle::run(bytes, end, built)?;
    let mut names = Built::default();
    let (order, mut at) = pickle::run(bytes, end, &mut names)?;
    let order = match order {
        Value::List(list) => names.lists[list].clone(),
        _ => Vec::new(),
    };
    let mut places = HashMap::new();
    for key in order {
        let Some(key) = names.text(key) else { continue };
        let Some(storage) = built.storages.iter().find(|s| s.key == key) else { continue };
        let short = |got| TorchError::Storage { key: key.to_owned(), want: storage.len, got };
        let stated = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>());
        let stated = u64::from_le_bytes(*stated.ok_or_else(|| short(0))?);
        let start = at + 8;
        let len = byte_len(storage.dtype, &[storage.len])
            .map_err(|problem| TorchError::Tensor { name: key.to_owned(), problem })?;
        let end = start.checked_add(len).filter(|&end| end <= bytes.len());
        match end {
            Some(end) if stated == storage.len as u64 => {
                places.insert(key.to_owned(), start..end);
                at = end;
            }
            _ => return Err(short(bytes.len().saturating_sub(start))),
        }
    }
    Ok((top, places))
}

/// Reads one file.
pub(crate) fn load(file: MappedFile) -> Result<ModelFile, FormatError> {
    let file = Arc::new(file);
    let metadata = Metadata::new(file.path());
    let tensors = read(&file)?;
    let mut model = ModelFile::new(Format::Torch, metadata, vec![file]);
    model.tensors = tensors;
    Ok(model)
}

/// The tensors of a file. Those that lie in order where they can be used are mapped, others copied.
pub(crate) fn read(file: &Arc<MappedFile>) -> Result<IndexMap<String, Tensor>, FormatError> {
    let fail = |problem| FormatError::Torch { path: file.path().to_owned(), problem };
    let described = parse(file.bytes()).map_err(fail)?;
    let one = |(name, described): (String, Described)| {
        let bytes = match mapped(file, &described) {
            Some(bytes) => bytes,
            None => Bytes::owned(AlignedBytes::from_slice(&gathered(file.bytes(), &described))),
        };
        match Tensor::new(described.dtype, described.view.shape, bytes) {
            Ok(tensor) => Ok((name, tensor)),
            Err(problem) => Err(TorchError::Tensor { name, problem }),
        }
    };
    described.into_iter().map(one).collect::<Result<_, _>>().map_err(fail)
}

fn width(dtype: DType) -> usize {
    dtype.layout().bytes
}

fn mapped(file: &Arc<MappedFile>, described: &Described) -> Option<Bytes> {
    let Described { dtype, storage, view } = described;
    let mut step = 1;
    for (&n, &stride) in view.shape.iter().zip(&view.strides).rev() {
        if n > 1 && stride != step {
            return None;
        }
        step *= n;
    }
    let start = storage.start + view.offset * width(*dtype);
    match start.is_multiple_of(width(*dtype)) {
        true => Bytes::mapped(file.clone(), start, step * width(*dtype)),
        false => None,
    }
}

/// The numbers of a view in order. That they are inside the storage is checked.
fn gathered(bytes: &[u8], described: &Described) -> Vec<u8> {
    let Described { dtype, storage, view } = described;
    let (storage, width) = (&bytes[storage.clone()], width(*dtype));
    let count: usize = view.shape.iter().product();
    let mut out = Vec::with_capacity(count * width);
    let mut index = vec![0; view.shape.len()];
    for _ in 0..count {
        let at: usize = index.iter().zip(&view.strides).map(|(i, stride)| i * stride).sum();
        let at = (view.offset + at) * width;
        out.extend(&storage[at..at + width]);
        for (i, &n) in index.iter_mut().zip(&view.shape).rev() {
            *i += 1;
            if *i < n {
                break;
            }
            *i = 0;
        }
    }
    out
}

#[cfg(test)]
mod tests;
