//! NumPy archives: a zip of `.npy` arrays, as named tensors. They carry the inputs and outputs of
//! `forward` and the golden values of tests.
//!
//! Types that NumPy has no name for are stored as their bits, in `uint8` or `uint16`, under
//! `<name>::<type>`; reading gives them their type and name back. Arrays in Fortran order and in
//! the opposite byte order are turned around while they are read. Arrays of Python objects are
//! pickles and are refused.

use std::io::{self, Cursor, Read, Seek, Write};
use std::path::Path;

use cyb_tensor::{AlignedBytes, Bytes, DType, MappedFile, Tensor, TensorError, byte_len};
use indexmap::IndexMap;
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::atomic;
use crate::error::FormatError;
use crate::npy::{self, NpyError};
use crate::text::Excerpt;

/// What is wrong with an archive or one of its arrays.
#[derive(Debug, thiserror::Error)]
pub enum NpzError {
    #[error("not a zip archive of arrays ({0}); write it with numpy.savez")]
    Zip(ZipError),
    #[error("{} is in the archive twice; write it with numpy.savez", Excerpt(.0))]
    Duplicate(String),
    #[error("the archive counts an entry twice; write it with numpy.savez")]
    DuplicateEntry,
    #[error("{} in the archive is no .npy array; write it with numpy.savez", Excerpt(.0))]
    NotNpy(String),
    #[error("array {}: {problem}", Excerpt(name))]
    Array { name: String, problem: NpyError },
    #[error("array {}: cannot be read ({problem}); the file is damaged", Excerpt(name))]
    Read { name: String, problem: io::Error },
    #[error(
        "array {} states {stated} bytes, which {packed} packed bytes cannot hold; the file is damaged",
        Excerpt(name)
    )]
    Bomb { name: String, stated: u64, packed: u64 },
    #[error("array {}: {problem}", Excerpt(name))]
    Tensor { name: String, problem: TensorError },
    #[error("{} is {dtype}, which .npz cannot hold; decode it first", Excerpt(name))]
    Unwritable { name: String, dtype: DType },
    #[error("{} cannot name an array; give it a name without zero bytes that is not empty", Excerpt(.0))]
    Name(String),
}

/// Types without a NumPy name: the suffix written, other suffixes read, the type of the bits.
const BITS: [(DType, &str, &[&str], DType); 3] = [
    (DType::BF16, "bfloat16", &["bf16"], DType::U16),
    (DType::F8E4M3, "float8_e4m3fn", &["f8e4m3", "float8_e4m3", "float8e4m3fn"], DType::U8),
    (DType::F8E5M2, "float8_e5m2", &["f8e5m2", "float8e5m2"], DType::U8),
];

/// Reads every array of an archive, in its order.
pub fn read(path: &Path) -> Result<IndexMap<String, Tensor>, FormatError> {
    let file = MappedFile::open(path)?;
    read_bytes(file.bytes()).map_err(|problem| FormatError::Npz { path: path.to_owned(), problem })
}

/// As [`read`], from the bytes of an archive.
pub fn read_bytes(bytes: &[u8]) -> Result<IndexMap<String, Tensor>, NpzError> {
    let mut zip = ZipArchive::new(Cursor::new(bytes)).map_err(NpzError::Zip)?;
    if zip.has_duplicate_names() {
        return Err(NpzError::DuplicateEntry);
    }
    let mut out = IndexMap::new();
    for i in 0..zip.len() {
        let mut entry = zip.by_index(i).map_err(NpzError::Zip)?;
        let file_name = entry.name().map_err(NpzError::Zip)?.into_owned();
        let Some(name) = file_name.strip_suffix(".npy") else {
            return Err(NpzError::NotNpy(file_name));
        };
        // Deflate packs at most 1032 to 1, so that what an array allocates is bounded by the file.
        let (stated, packed) = (entry.size(), entry.compressed_size());
        if stated / 1032 > packed {
            return Err(NpzError::Bomb { name: name.to_owned(), stated, packed });
        }
        let tensor = read_array(name, &mut entry, stated)?;
        let (name, tensor) = retype(name, tensor);
        check_name(&name)?;
        if out.insert(name.clone(), tensor).is_some() {
            return Err(NpzError::Duplicate(name));
        }
    }
    Ok(out)
}

/// Reads one array of `stated` bytes, header included.
fn read_array(name: &str, from: &mut impl Read, stated: u64) -> Result<Tensor, NpzError> {
    let fail = |problem| NpzError::Array { name: name.to_owned(), problem };
    let unread = |problem| NpzError::Read { name: name.to_owned(), problem };
    let header = npy::read_header(from).map_err(|e| match e {
        npy::HeaderError::Io(problem) => unread(problem),
        npy::HeaderError::Npy(problem) => fail(problem),
    })?;
    let len = byte_len(header.dtype, &header.shape)
        .map_err(|problem| NpzError::Tensor { name: name.to_owned(), problem })?;
    let got = stated.saturating_sub(header.len);
    if got != len as u64 {
        return Err(fail(NpyError::Length { want: len as u64, got }));
    }
    let mut bytes = AlignedBytes::zeroed(len);
    from.read_exact(bytes.as_mut_slice()).map_err(unread)?;
    // The check sum is verified at the end of the entry.
    if io::copy(&mut from.take(1), &mut io::sink()).map_err(unread)? != 0 {
        return Err(fail(NpyError::Length { want: len as u64, got: got.saturating_add(1) }));
    }
    header.to_native(&mut bytes);
    Tensor::new(header.dtype, header.shape, Bytes::owned(bytes))
        .map_err(|problem| NpzError::Tensor { name: name.to_owned(), problem })
}

/// Gives bits that are stored under `<name>::<type>` their type and name.
fn retype(name: &str, tensor: Tensor) -> (String, Tensor) {
    let typed = name.rsplit_once("::").and_then(|(stem, suffix)| {
        let (dtype, ..) = BITS.iter().find(|(_, written, read, bits)| {
            tensor.dtype() == *bits && (suffix == *written || read.contains(&suffix))
        })?;
        let same = Tensor::new(*dtype, tensor.shape().to_vec(), tensor.bytes().clone()).ok()?;
        Some((stem.to_owned(), same))
    });
    typed.unwrap_or_else(|| (name.to_owned(), tensor))
}

/// Writes an archive: to a temporary file beside `path`, then renamed. Arrays are not packed.
pub fn write<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<(), FormatError> {
    let tensors: Vec<_> = tensors.into_iter().collect();
    check(&tensors).map_err(|problem| FormatError::Npz { path: path.to_owned(), problem })?;
    atomic::write_file(path, |out| write_checked(out, &tensors))
}

/// As [`write`], to anything that can be written and sought.
pub fn write_to<'a>(
    out: &mut (impl Write + Seek),
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> io::Result<()> {
    let tensors: Vec<_> = tensors.into_iter().collect();
    check(&tensors).map_err(io::Error::other)?;
    write_checked(out, &tensors)
}

/// The name that a tensor has in the archive and the type of its elements there.
fn stored(name: &str, dtype: DType) -> Option<(String, DType)> {
    match BITS.iter().find(|(d, ..)| *d == dtype) {
        Some((_, suffix, _, bits)) => Some((format!("{name}::{suffix}"), *bits)),
        None => npy::descr(dtype).map(|_| (name.to_owned(), dtype)),
    }
}

/// Names are paths in a zip, at most 65535 bytes long.
fn check_name(name: &str) -> Result<(), NpzError> {
    if name.is_empty() || name.contains('\0') || name.len() > 60_000 {
        return Err(NpzError::Name(name.to_owned()));
    }
    Ok(())
}

fn check(tensors: &[(&str, &Tensor)]) -> Result<(), NpzError> {
    let mut names = std::collections::HashSet::new();
    for (name, tensor) in tensors {
        check_name(name)?;
        let dtype = tensor.dtype();
        let Some((stored_name, _)) = stored(name, dtype) else {
            return Err(NpzError::Unwritable { name: (*name).to_owned(), dtype });
        };
        if !names.insert(stored_name) {
            return Err(NpzError::Duplicate((*name).to_owned()));
        }
    }
    Ok(())
}

fn write_checked(out: &mut (impl Write + Seek), tensors: &[(&str, &Tensor)]) -> io::Result<()> {
    let mut zip = ZipWriter::new(out);
    for (name, tensor) in tensors {
        let bytes = tensor.bytes().as_slice();
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            // From 4 GiB on, sizes need their long form; the header is far below the difference.
            .large_file(bytes.len() >= u32::MAX as usize - (1 << 20));
        let unnamed = || io::Error::other(format!("{} has no .npy type", tensor.dtype()));
        let (stored_name, dtype) = stored(name, tensor.dtype()).ok_or_else(unnamed)?;
        zip.start_file(format!("{stored_name}.npy"), options)?;
        let header = npy::header(dtype, tensor.shape()).ok_or_else(unnamed)?;
        zip.write_all(&header)?;
        zip.write_all(bytes)?;
    }
    zip.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests;
