//! Bytes to a checked header: metadata and where every tensor lies.

use cyb_tensor::{DType, TensorError, byte_len};
use indexmap::IndexMap;
use indexmap::map::Entry;

use super::error::type_origin;
use super::{
    ALIGNMENT_KEY, DEFAULT_ALIGNMENT, GgufError, MAX_DEPTH, MAX_DIMS, MAX_ENTRIES, MAX_NAME,
    MAX_TENSOR_BYTES, MAX_TENSORS, Place, value_type,
};
use crate::metadata::{Array, StringArray, Value};

/// What a GGUF file says about itself. Every tensor lies inside the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    pub version: u32,
    pub metadata: IndexMap<String, Value>,
    /// By name, in the order of their descriptions.
    pub tensors: IndexMap<String, TensorInfo>,
}

/// Where a tensor lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub dtype: DType,
    /// Outermost axis first (GGUF files store the innermost first).
    pub shape: Vec<usize>,
    /// From the start of the file.
    pub offset: usize,
    /// In bytes.
    pub len: usize,
}

/// Reads the header of a GGUF file. `bytes` is the file or its start, `file_len` the length of the
/// whole file, against which the places of tensors are checked.
pub fn parse(bytes: &[u8], file_len: u64) -> Result<Header, GgufError> {
    let mut r = Reader { bytes, at: 0, file_len: file_len.max(bytes.len() as u64) };
    let header = &|| Place::Header;
    if r.array::<4>(header)? != *b"GGUF" {
        return Err(GgufError::Magic);
    }
    let version = u32::from_le_bytes(r.array(header)?);
    match version {
        1 => return Err(GgufError::Version1),
        2 | 3 => {}
        // Versions are small: read in the wrong order, the low half is zero.
        v if v != 0 && v & 0xffff == 0 => return Err(GgufError::BigEndian),
        v => return Err(GgufError::Version(v)),
    }
    let n_tensors = r.u64(header)?;
    let n_entries = r.u64(header)?;
    check_count("tensors", n_tensors, MAX_TENSORS)?;
    check_count("metadata entries", n_entries, MAX_ENTRIES)?;

    let mut metadata = IndexMap::new();
    for i in 0..n_entries {
        let key = r.name(&|| Place::Key(i))?;
        let place = || Place::Value(key.to_owned());
        let type_id = r.u32(&place)?;
        let value = r.value(type_id, &place)?;
        match metadata.entry(key.to_owned()) {
            Entry::Occupied(e) => return Err(GgufError::DuplicateKey(e.key().clone())),
            Entry::Vacant(e) => e.insert(value),
        };
    }
    let alignment = alignment(metadata.get(ALIGNMENT_KEY))?;

    let mut tensors = IndexMap::new();
    for i in 0..n_tensors {
        let (name, info) = r.tensor(i, alignment)?;
        match tensors.entry(name) {
            Entry::Occupied(e) => return Err(GgufError::DuplicateTensor(e.key().clone())),
            Entry::Vacant(e) => e.insert(info),
        };
    }
    let data_start = (r.at as u64).next_multiple_of(alignment);
    let tensors = place_tensors(tensors, data_start, alignment, r.file_len)?;
    Ok(Header { version, metadata, tensors })
}

fn check_count(what: &'static str, count: u64, limit: u64) -> Result<(), GgufError> {
    if count > limit { Err(GgufError::TooMany { what, count, limit }) } else { Ok(()) }
}

pub(super) fn alignment(value: Option<&Value>) -> Result<u64, GgufError> {
    let n = match value {
        None => DEFAULT_ALIGNMENT,
        Some(&Value::U32(n)) => n.into(),
        Some(&Value::U64(n)) => n,
        Some(other) => return Err(GgufError::Alignment(other.to_string())),
    };
    if n.is_power_of_two() && n <= 1 << 20 {
        Ok(n)
    } else {
        Err(GgufError::Alignment(n.to_string()))
    }
}

/// A tensor's description with its offset from the start of the data.
struct Described {
    dtype: DType,
    shape: Vec<usize>,
    relative: u64,
    len: usize,
}

/// Turns relative offsets into absolute ones and checks that the tensors tile the data: in the
/// file, apart from each other, and with nothing but padding between them.
fn place_tensors(
    described: IndexMap<String, Described>,
    data_start: u64,
    alignment: u64,
    file_len: u64,
) -> Result<IndexMap<String, TensorInfo>, GgufError> {
    let mut by_offset: Vec<(&String, &Described)> = described.iter().collect();
    by_offset.sort_by_key(|(_, d)| d.relative);
    let data_len = file_len.saturating_sub(data_start);
    let mut previous: Option<(&str, u64)> = None;
    for (name, d) in by_offset {
        let end = d.relative.saturating_add(d.len as u64);
        if end > data_len {
            let end = end.saturating_add(data_start);
            return Err(GgufError::Short { name: name.clone(), end, file_len });
        }
        let (before, free) = previous.unwrap_or(("", 0));
        if d.relative < free {
            let (first, second) = (before.to_owned(), name.clone());
            return Err(GgufError::Overlap { first, second });
        }
        // `free` is inside the file, and the alignment is at most 2^20, so this cannot wrap.
        if d.relative > free.next_multiple_of(alignment) {
            let (before, bytes) = (name.clone(), d.relative - free);
            return Err(GgufError::Hole { before, bytes });
        }
        previous = Some((name, end));
    }
    described
        .into_iter()
        .map(|(name, d)| {
            let Described { dtype, shape, relative, len } = d;
            let start = data_start + relative;
            let Ok(offset) = usize::try_from(start) else {
                return Err(GgufError::Short { name, end: start, file_len });
            };
            Ok((name, TensorInfo { dtype, shape, offset, len }))
        })
        .collect()
}

/// A function that says what is being read; called only when an error is made.
type At<'a> = &'a dyn Fn() -> Place;

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    file_len: u64,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: u64, place: At<'_>) -> Result<&'a [u8], GgufError> {
        let rest = &self.bytes[self.at..];
        match usize::try_from(n).ok().and_then(|n| rest.get(..n)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(GgufError::Truncated {
                place: place(),
                at: self.at as u64,
                need: n,
                file_len: self.file_len,
            }),
        }
    }

    fn array<const N: usize>(&mut self, place: At<'_>) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, place)?);
        Ok(out)
    }

    fn u32(&mut self, place: At<'_>) -> Result<u32, GgufError> {
        self.array(place).map(u32::from_le_bytes)
    }

    fn u64(&mut self, place: At<'_>) -> Result<u64, GgufError> {
        self.array(place).map(u64::from_le_bytes)
    }

    fn string(&mut self, place: At<'_>) -> Result<&'a str, GgufError> {
        let len = self.u64(place)?;
        let bytes = self.take(len, place)?;
        std::str::from_utf8(bytes).map_err(|_| GgufError::NotUtf8 { place: place() })
    }

    /// A string that is a key or a tensor's name: neither empty nor longer than keys may be.
    fn name(&mut self, place: At<'_>) -> Result<&'a str, GgufError> {
        let start = self.at;
        let len = self.u64(place)?;
        if len == 0 {
            return Err(GgufError::EmptyName { place: place() });
        }
        if len > MAX_NAME {
            return Err(GgufError::LongName { place: place(), len, limit: MAX_NAME });
        }
        self.at = start;
        self.string(place)
    }

    fn boolean(&mut self, place: At<'_>) -> Result<bool, GgufError> {
        match self.array(place)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [value] => Err(GgufError::Bool { place: place(), value }),
        }
    }

    fn value(&mut self, type_id: u32, place: At<'_>) -> Result<Value, GgufError> {
        Ok(match type_id {
            value_type::U8 => Value::U8(u8::from_le_bytes(self.array(place)?)),
            value_type::I8 => Value::I8(i8::from_le_bytes(self.array(place)?)),
            value_type::U16 => Value::U16(u16::from_le_bytes(self.array(place)?)),
            value_type::I16 => Value::I16(i16::from_le_bytes(self.array(place)?)),
            value_type::U32 => Value::U32(u32::from_le_bytes(self.array(place)?)),
            value_type::I32 => Value::I32(i32::from_le_bytes(self.array(place)?)),
            value_type::U64 => Value::U64(u64::from_le_bytes(self.array(place)?)),
            value_type::I64 => Value::I64(i64::from_le_bytes(self.array(place)?)),
            value_type::F32 => Value::F32(f32::from_le_bytes(self.array(place)?)),
            value_type::F64 => Value::F64(f64::from_le_bytes(self.array(place)?)),
            value_type::BOOL => Value::Bool(self.boolean(place)?),
            value_type::STRING => Value::String(self.string(place)?.to_owned()),
            value_type::ARRAY => Value::Array(self.array_value(1, place)?),
            id => return Err(GgufError::ValueType { place: place(), id }),
        })
    }

    /// An array: type of the elements, their number, the elements.
    fn array_value(&mut self, depth: usize, place: At<'_>) -> Result<Array, GgufError> {
        let type_id = self.u32(place)?;
        let count = self.u64(place)?;
        Ok(match type_id {
            value_type::U8 => Array::U8(self.numbers(count, place, u8::from_le_bytes)?),
            value_type::I8 => Array::I8(self.numbers(count, place, i8::from_le_bytes)?),
            value_type::U16 => Array::U16(self.numbers(count, place, u16::from_le_bytes)?),
            value_type::I16 => Array::I16(self.numbers(count, place, i16::from_le_bytes)?),
            value_type::U32 => Array::U32(self.numbers(count, place, u32::from_le_bytes)?),
            value_type::I32 => Array::I32(self.numbers(count, place, i32::from_le_bytes)?),
            value_type::U64 => Array::U64(self.numbers(count, place, u64::from_le_bytes)?),
            value_type::I64 => Array::I64(self.numbers(count, place, i64::from_le_bytes)?),
            value_type::F32 => Array::F32(self.numbers(count, place, f32::from_le_bytes)?),
            value_type::F64 => Array::F64(self.numbers(count, place, f64::from_le_bytes)?),
            value_type::BOOL => {
                self.check_room(count, 1, place)?;
                Array::Bool((0..count).map(|_| self.boolean(place)).collect::<Result<_, _>>()?)
            }
            value_type::STRING => Array::String(self.strings(count, place)?),
            value_type::ARRAY => {
                if depth == MAX_DEPTH {
                    return Err(GgufError::Depth { place: place(), limit: MAX_DEPTH });
                }
                // An inner array takes 12 bytes at least.
                self.check_room(count, 12, place)?;
                let inner = (0..count).map(|_| self.array_value(depth + 1, place));
                Array::Array(inner.collect::<Result<_, _>>()?)
            }
            id => return Err(GgufError::ValueType { place: place(), id }),
        })
    }

    /// Fails unless `count` things of at least `size` bytes can follow.
    fn check_room(&self, count: u64, size: u64, place: At<'_>) -> Result<u64, GgufError> {
        let rest = (self.bytes.len() - self.at) as u64;
        match count.checked_mul(size) {
            Some(need) if need <= rest => Ok(need),
            need => Err(GgufError::Truncated {
                place: place(),
                at: self.at as u64,
                need: need.unwrap_or(u64::MAX),
                file_len: self.file_len,
            }),
        }
    }

    fn numbers<T, const N: usize>(
        &mut self,
        count: u64,
        place: At<'_>,
        decode: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, GgufError> {
        let need = self.check_room(count, N as u64, place)?;
        let (chunks, _) = self.take(need, place)?.as_chunks::<N>();
        Ok(chunks.iter().map(|&c| decode(c)).collect())
    }

    fn strings(&mut self, count: u64, place: At<'_>) -> Result<StringArray, GgufError> {
        // A string takes the 8 bytes of its length at least.
        let lengths = self.check_room(count, 8, place)? as usize;
        // A vocabulary has some hundred thousand short strings: this loop is most of the time that
        // opening a file takes.
        let mut rest = &self.bytes[self.at..];
        let mut text = Vec::with_capacity(lengths.min(rest.len()));
        let mut ends = Vec::with_capacity(lengths / 8);
        for _ in 0..count {
            let next = rest.split_first_chunk::<8>().and_then(|(len, after)| {
                after.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)
            });
            let Some((bytes, after)) = next else {
                // Read this one in the ordinary way, which says what is wrong.
                self.at = self.bytes.len() - rest.len();
                let len = self.u64(place)?;
                self.take(len, place)?;
                break;
            };
            text.extend_from_slice(bytes);
            ends.push(text.len());
            rest = after;
        }
        self.at = self.bytes.len() - rest.len();
        String::from_utf8(text)
            .ok()
            .and_then(|text| StringArray::from_parts(text, ends))
            .ok_or_else(|| GgufError::NotUtf8 { place: place() })
    }

    fn tensor(&mut self, i: u64, alignment: u64) -> Result<(String, Described), GgufError> {
        let place = &|| Place::Tensor(i);
        let name = self.name(place)?.to_owned();
        let n_dims = self.u32(place)?;
        if n_dims as usize > MAX_DIMS {
            return Err(GgufError::Dims { name, count: n_dims, limit: MAX_DIMS });
        }
        let mut dims = Vec::with_capacity(MAX_DIMS);
        for _ in 0..n_dims {
            dims.push(self.u64(place)?);
        }
        dims.reverse();
        let type_id = self.u32(place)?;
        let relative = self.u64(place)?;

        let Some(dtype) = DType::from_ggml_id(type_id) else {
            return Err(GgufError::UnknownType { name, id: type_id, origin: type_origin(type_id) });
        };
        if dims.contains(&0) {
            return Err(GgufError::ZeroDim { name, shape: dims });
        }
        let shape: Result<Vec<usize>, _> = dims.iter().map(|&d| usize::try_from(d)).collect();
        let Ok(shape) = shape else { return Err(GgufError::Overflow { name, shape: dims }) };
        let len = match byte_len(dtype, &shape) {
            Ok(len) if len < MAX_TENSOR_BYTES => len,
            Ok(_) | Err(TensorError::Overflow { .. }) => {
                return Err(GgufError::Overflow { name, shape: dims });
            }
            Err(problem) => return Err(GgufError::Size { name, problem }),
        };
        if !relative.is_multiple_of(alignment) {
            return Err(GgufError::Misaligned { name, offset: relative, alignment });
        }
        Ok((name, Described { dtype, shape, relative, len }))
    }
}
