//! GGUF files to a [`ModelFile`], and the parts of a split model found by one of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cyb_tensor::{Bytes, MappedFile, Tensor};

use super::{GgufError, Header, SplitError, parse};
use crate::error::FormatError;
use crate::metadata::Metadata;
use crate::model_file::{Format, ModelFile};

const SPLIT_COUNT: &str = "split.count";
const SPLIT_NUMBER: &str = "split.no";
const SPLIT_TENSORS: &str = "split.tensors.count";

/// One parsed file of a model.
struct Part {
    file: Arc<MappedFile>,
    version: u32,
    metadata: Metadata,
    tensors: Vec<(String, Tensor)>,
}

/// Reads `file`, and the other parts when it is one of a split model.
pub(crate) fn load(file: MappedFile) -> Result<ModelFile, FormatError> {
    let given = read_part(file)?;
    let count = given.metadata.opt::<u64>(SPLIT_COUNT)?.unwrap_or(1);
    if count <= 1 {
        return join(vec![given]);
    }
    let path = given.file.path().to_owned();
    let fail = |problem| FormatError::Split { path: path.clone(), problem };
    if count > 99_999 {
        return Err(fail(SplitError::Count(count)));
    }
    let number = given.metadata.get::<u64>(SPLIT_NUMBER)?;
    if number >= count {
        return Err(fail(SplitError::Number { number, count }));
    }
    let stem = split_stem(&path, number + 1, count)
        .ok_or_else(|| fail(SplitError::Name { number: number + 1, count }))?;

    let name = |n: u64| path.with_file_name(format!("{stem}{}", split_suffix(n + 1, count)));
    // All names are looked up before any other part is read: a missing one is said at once.
    let others = || (0..count).filter(|&n| n != number);
    if let Some(n) = others().find(|&n| !name(n).exists()) {
        return Err(fail(SplitError::Missing { part: name(n), number: n + 1, count }));
    }
    let mut parts = Vec::new();
    for n in others() {
        let part = read_part(MappedFile::open(&name(n))?)?;
        let stated = part.metadata.opt::<u64>(SPLIT_NUMBER)?.unwrap_or(0);
        let of = part.metadata.opt::<u64>(SPLIT_COUNT)?.unwrap_or(1);
        if (stated, of) != (n, count) {
            let number = stated.saturating_add(1);
            return Err(fail(SplitError::Foreign { part: name(n), number, count: of }));
        }
        parts.push(part);
    }
    // `number` is less than `count`, and all others are there.
    parts.insert(number as usize, given);
    join(parts)
}

fn read_part(file: MappedFile) -> Result<Part, FormatError> {
    let fail = |problem| FormatError::Gguf { path: file.path().to_owned(), problem };
    let bytes = file.bytes();
    let Header { version, metadata, tensors } = parse(bytes, bytes.len() as u64).map_err(fail)?;
    let metadata = Metadata::from_entries(file.path(), metadata);
    let file = Arc::new(file);
    let tensors = tensors
        .into_iter()
        .map(|(name, info)| {
            let end = info.offset.saturating_add(info.len) as u64;
            let Some(bytes) = Bytes::mapped(file.clone(), info.offset, info.len) else {
                let file_len = file.bytes().len() as u64;
                return Err(GgufError::Short { name, end, file_len });
            };
            match Tensor::new(info.dtype, info.shape, bytes) {
                Ok(tensor) => Ok((name, tensor)),
                Err(problem) => Err(GgufError::Size { name, problem }),
            }
        })
        .collect::<Result<_, _>>()
        .map_err(|problem| FormatError::Gguf { path: file.path().to_owned(), problem })?;
    Ok(Part { file, version, metadata, tensors })
}

/// One model of parts in order; the first part's metadata is the model's.
fn join(mut parts: Vec<Part>) -> Result<ModelFile, FormatError> {
    let files = parts.iter().map(|p| p.file.clone()).collect();
    let rest = parts.split_off(1);
    let Some(first) = parts.pop() else { unreachable!("a model has the file it was opened by") };
    let path: PathBuf = first.file.path().to_owned();
    let fail = |problem| FormatError::Split { path: path.clone(), problem };
    let stated = first.metadata.opt::<u64>(SPLIT_TENSORS)?;

    let is_split = !rest.is_empty();
    let mut model = ModelFile::new(Format::Gguf { version: first.version }, first.metadata, files);
    for (name, tensor) in first.tensors.into_iter().chain(rest.into_iter().flat_map(|p| p.tensors))
    {
        if model.tensors.contains_key(&name) {
            return Err(fail(SplitError::DuplicateTensor(name)));
        }
        model.tensors.insert(name, tensor);
    }
    if let Some(want) = stated.filter(|_| is_split)
        && want != model.tensors.len() as u64
    {
        return Err(fail(SplitError::Tensors { want, got: model.tensors.len() }));
    }
    Ok(model)
}

fn split_suffix(number: u64, count: u64) -> String {
    format!("-{number:05}-of-{count:05}.gguf")
}

/// The part of a file name that all parts share.
fn split_stem(path: &Path, number: u64, count: u64) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    Some(name.strip_suffix(&split_suffix(number, count))?.to_owned())
}

/// Whether two file names are those of parts of one split model.
pub(crate) fn same_split(a: &Path, b: &Path) -> bool {
    let parse = |path: &Path| -> Option<(String, u64)> {
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (head, count) = name.rsplit_once("-of-")?;
        let (stem, _number) = head.rsplit_once('-')?;
        Some((stem.to_owned(), count.parse().ok()?))
    };
    parse(a).is_some_and(|of_a| Some(of_a) == parse(b))
}
