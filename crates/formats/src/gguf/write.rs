//! GGUF files written: version 3, the metadata in its order, tensors one after the other.

use std::io::{self, Write};
use std::path::Path;

use cyb_tensor::{DType, Tensor, byte_len};

use super::{
    ALIGNMENT_KEY, GgufError, MAX_DEPTH, MAX_DIMS, MAX_ENTRIES, MAX_NAME, MAX_TENSORS, Place,
    value_type,
};
use crate::atomic;
use crate::error::FormatError;
use crate::metadata::{Array, Metadata, StringArray, Value};

/// What a tensor to be written will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    pub name: String,
    pub dtype: DType,
    /// Outermost axis first.
    pub shape: Vec<usize>,
}

/// Writes a GGUF file: to a temporary file beside `path`, then renamed.
pub fn write<'a>(
    path: &Path,
    metadata: &Metadata,
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<(), FormatError> {
    let tensors: Vec<_> = tensors.into_iter().collect();
    let specs: Vec<_> = tensors.iter().map(|(name, t)| spec(name, t)).collect();
    write_streamed(path, metadata, &specs, |i, out| out.write_all(tensors[i].1.bytes().as_slice()))
}

/// As [`write`], for tensors that are made one at a time: `body(i, out)` writes the bytes of
/// `specs[i]`, exactly as many as its shape needs.
pub fn write_streamed(
    path: &Path,
    metadata: &Metadata,
    specs: &[TensorSpec],
    body: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
) -> Result<(), FormatError> {
    let layout = Layout::of(metadata, specs)
        .map_err(|problem| FormatError::Gguf { path: path.to_owned(), problem })?;
    atomic::write_file(path, |out| layout.write(out, metadata, specs, body))
}

/// As [`write`], to anything that can be written.
pub fn write_to<'a>(
    out: &mut dyn Write,
    metadata: &Metadata,
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> io::Result<()> {
    let tensors: Vec<_> = tensors.into_iter().collect();
    let specs: Vec<_> = tensors.iter().map(|(name, t)| spec(name, t)).collect();
    let layout = Layout::of(metadata, &specs).map_err(io::Error::other)?;
    layout.write(out, metadata, &specs, |i, out| out.write_all(tensors[i].1.bytes().as_slice()))
}

fn spec(name: &str, tensor: &Tensor) -> TensorSpec {
    TensorSpec { name: name.to_owned(), dtype: tensor.dtype(), shape: tensor.shape().to_vec() }
}

/// Where the tensors of a file will lie; made before anything is written, so that what cannot be
/// written is known first.
struct Layout {
    alignment: u64,
    /// One a tensor: type number, length in bytes, offset from the start of the data.
    placed: Vec<(u32, u64, u64)>,
}

impl Layout {
    fn of(metadata: &Metadata, specs: &[TensorSpec]) -> Result<Layout, GgufError> {
        let too_many = |what, count: usize, limit| {
            let count = count as u64;
            if count > limit { Err(GgufError::TooMany { what, count, limit }) } else { Ok(()) }
        };
        too_many("tensors", specs.len(), MAX_TENSORS)?;
        too_many("metadata entries", metadata.len(), MAX_ENTRIES)?;
        for (i, (key, value)) in metadata.iter().enumerate() {
            check_name(key, Place::Key(i as u64))?;
            if let Value::Array(array) = value {
                check_array(key, array, 1)?;
            }
        }
        let alignment = super::parse::alignment(metadata.value(ALIGNMENT_KEY))?;

        let mut names = std::collections::HashSet::new();
        let mut placed = Vec::with_capacity(specs.len());
        let mut end = 0u64;
        for (i, TensorSpec { name, dtype, shape }) in specs.iter().enumerate() {
            check_name(name, Place::Tensor(i as u64))?;
            if !names.insert(name) {
                return Err(GgufError::DuplicateTensor(name.clone()));
            }
            if shape.len() > MAX_DIMS {
                let count = shape.len() as u32;
                return Err(GgufError::Dims { name: name.clone(), count, limit: MAX_DIMS });
            }
            let wide = || shape.iter().map(|&d| d as u64).collect();
            if shape.contains(&0) {
                return Err(GgufError::ZeroDim { name: name.clone(), shape: wide() });
            }
            let Some(id) = dtype.ggml_id() else {
                return Err(GgufError::UnwritableType { name: name.clone(), dtype: *dtype });
            };
            let len = byte_len(*dtype, shape)
                .map_err(|problem| GgufError::Size { name: name.clone(), problem })?
                as u64;
            let overflow = || GgufError::Overflow { name: name.clone(), shape: wide() };
            let start = end.checked_next_multiple_of(alignment).ok_or_else(overflow)?;
            end = start.checked_add(len).ok_or_else(overflow)?;
            placed.push((id, len, start));
        }
        Ok(Layout { alignment, placed })
    }

    fn write(
        &self,
        out: &mut dyn Write,
        metadata: &Metadata,
        specs: &[TensorSpec],
        mut body: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut out = Counted { out, written: 0 };
        out.write_all(b"GGUF")?;
        out.write_all(&3u32.to_le_bytes())?;
        out.write_all(&(specs.len() as u64).to_le_bytes())?;
        out.write_all(&(metadata.len() as u64).to_le_bytes())?;
        for (key, value) in metadata.iter() {
            put_string(&mut out, key)?;
            put_value(&mut out, value)?;
        }
        for (spec, (id, _, start)) in specs.iter().zip(&self.placed) {
            put_string(&mut out, &spec.name)?;
            out.write_all(&(spec.shape.len() as u32).to_le_bytes())?;
            for &dim in spec.shape.iter().rev() {
                out.write_all(&(dim as u64).to_le_bytes())?;
            }
            out.write_all(&id.to_le_bytes())?;
            out.write_all(&start.to_le_bytes())?;
        }
        out.pad(self.alignment)?;
        for (i, (spec, (_, len, _))) in specs.iter().zip(&self.placed).enumerate() {
            let before = out.written;
            body(i, &mut out)?;
            let got = out.written - before;
            if got != *len {
                return Err(io::Error::other(format!(
                    "tensor '{}' has {got} bytes, but its shape needs {len}",
                    spec.name
                )));
            }
            out.pad(self.alignment)?;
        }
        Ok(())
    }
}

fn check_name(name: &str, place: Place) -> Result<(), GgufError> {
    let len = name.len() as u64;
    match len {
        0 => Err(GgufError::EmptyName { place }),
        1..=MAX_NAME => Ok(()),
        _ => Err(GgufError::LongName { place, len, limit: MAX_NAME }),
    }
}

fn check_array(key: &str, array: &Array, depth: usize) -> Result<(), GgufError> {
    if depth > MAX_DEPTH {
        let place = Place::Value(key.to_owned());
        return Err(GgufError::Depth { place, limit: MAX_DEPTH });
    }
    match array {
        Array::Array(inner) => inner.iter().try_for_each(|a| check_array(key, a, depth + 1)),
        _ => Ok(()),
    }
}

/// Counts what passes, for padding and for the check of what a tensor's maker writes.
struct Counted<'a> {
    out: &'a mut dyn Write,
    written: u64,
}

impl Counted<'_> {
    fn pad(&mut self, alignment: u64) -> io::Result<()> {
        let zeros = self.written.next_multiple_of(alignment) - self.written;
        io::copy(&mut io::Read::take(io::repeat(0), zeros), self)?;
        Ok(())
    }
}

impl Write for Counted<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.out.write(buf)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn put_string(out: &mut impl Write, s: &str) -> io::Result<()> {
    out.write_all(&(s.len() as u64).to_le_bytes())?;
    out.write_all(s.as_bytes())
}

macro_rules! put {
    ($out:expr, $type_id:ident, $v:expr) => {{
        $out.write_all(&value_type::$type_id.to_le_bytes())?;
        $out.write_all(&$v.to_le_bytes())
    }};
}

fn put_value(out: &mut impl Write, value: &Value) -> io::Result<()> {
    match value {
        Value::U8(v) => put!(out, U8, v),
        Value::I8(v) => put!(out, I8, v),
        Value::U16(v) => put!(out, U16, v),
        Value::I16(v) => put!(out, I16, v),
        Value::U32(v) => put!(out, U32, v),
        Value::I32(v) => put!(out, I32, v),
        Value::U64(v) => put!(out, U64, v),
        Value::I64(v) => put!(out, I64, v),
        Value::F32(v) => put!(out, F32, v),
        Value::F64(v) => put!(out, F64, v),
        Value::Bool(v) => put!(out, BOOL, u8::from(*v)),
        Value::String(v) => {
            out.write_all(&value_type::STRING.to_le_bytes())?;
            put_string(out, v)
        }
        Value::Array(v) => {
            out.write_all(&value_type::ARRAY.to_le_bytes())?;
            put_array(out, v)
        }
    }
}

macro_rules! put_all {
    ($out:expr, $type_id:ident, $v:expr) => {{
        put_array_head($out, value_type::$type_id, $v.len())?;
        $v.iter().try_for_each(|v| $out.write_all(&v.to_le_bytes()))
    }};
}

fn put_array(out: &mut impl Write, array: &Array) -> io::Result<()> {
    match array {
        Array::U8(v) => put_all!(out, U8, v),
        Array::I8(v) => put_all!(out, I8, v),
        Array::U16(v) => put_all!(out, U16, v),
        Array::I16(v) => put_all!(out, I16, v),
        Array::U32(v) => put_all!(out, U32, v),
        Array::I32(v) => put_all!(out, I32, v),
        Array::U64(v) => put_all!(out, U64, v),
        Array::I64(v) => put_all!(out, I64, v),
        Array::F32(v) => put_all!(out, F32, v),
        Array::F64(v) => put_all!(out, F64, v),
        Array::Bool(v) => {
            put_array_head(out, value_type::BOOL, v.len())?;
            v.iter().try_for_each(|&b| out.write_all(&[u8::from(b)]))
        }
        Array::String(v) => put_strings(out, v),
        Array::Array(v) => {
            put_array_head(out, value_type::ARRAY, v.len())?;
            v.iter().try_for_each(|inner| put_array(out, inner))
        }
    }
}

fn put_strings(out: &mut impl Write, strings: &StringArray) -> io::Result<()> {
    put_array_head(out, value_type::STRING, strings.len())?;
    strings.iter().try_for_each(|s| put_string(out, s))
}

fn put_array_head(out: &mut impl Write, type_id: u32, len: usize) -> io::Result<()> {
    out.write_all(&type_id.to_le_bytes())?;
    out.write_all(&(len as u64).to_le_bytes())
}
