//! Tensors of ONNX files: bytes in the message, in typed fields, or in a file beside the model.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use cyb_tensor::{AlignedBytes, Bytes, DType, MappedFile, Tensor, byte_len};

use super::elem::Elem;
use super::proto::{SparseTensorProto, TensorProto};

/// A sparse tensor is made dense; the result may not be larger than this.
const LARGEST_DENSE: usize = 1 << 28;

/// A tensor of the file. Strings have no dtype here.
#[derive(Clone, Debug)]
pub enum Constant {
    Tensor { elem: Elem, tensor: Tensor },
    Strings { shape: Vec<usize>, strings: Vec<Vec<u8>> },
}

impl Constant {
    pub fn elem(&self) -> Elem {
        match self {
            Constant::Tensor { elem, .. } => *elem,
            Constant::Strings { .. } => Elem::Str,
        }
    }

    /// The tensor, unless it is one of strings.
    pub fn tensor(&self) -> Option<&Tensor> {
        match self {
            Constant::Tensor { tensor, .. } => Some(tensor),
            Constant::Strings { .. } => None,
        }
    }
}

/// Why a tensor cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorProblem {
    #[error("element type {0} is unknown; export the model with an older `onnx`")]
    Type(i32),
    #[error("{0} has no dtype here; export the model with real numbers")]
    Complex(Elem),
    #[error("dimension {0} is negative; the file is damaged")]
    Negative(i64),
    #[error(
        "shape {shape:?} of {elem} takes more bytes than can be addressed; the file is damaged"
    )]
    Overflow { elem: Elem, shape: Vec<usize> },
    #[error(
        "shape {shape:?} of {elem} takes {want} bytes, but there are {got}; the file is damaged"
    )]
    Bytes { elem: Elem, shape: Vec<usize>, want: usize, got: usize },
    #[error("shape {shape:?} has {want} elements, but there are {got}; the file is damaged")]
    Elements { shape: Vec<usize>, want: usize, got: usize },
    #[error("its data is in '{0}', and the model has no folder; give the model by its path")]
    NoFolder(String),
    #[error("its data is in '{0}', which is not inside the model's folder; move it there")]
    Outside(String),
    #[error("its data is in '{file}': {problem}")]
    File { file: String, problem: String },
    #[error(
        "bytes {offset} to {offset} + {len} are not inside '{file}' ({have} bytes); fetch it again"
    )]
    Range { file: String, offset: u64, len: u64, have: usize },
    #[error("the external data has {0}; the file is damaged")]
    Key(String),
    #[error("the sparse tensor {0}; the file is damaged")]
    Sparse(&'static str),
}

/// Where a message's bytes are, so that tensors can be slices of the mapped file.
pub(super) struct Store {
    /// The file that the message was decoded from, when it is mapped.
    pub(super) file: Option<Arc<MappedFile>>,
    /// Where external data may be.
    pub(super) folder: Option<PathBuf>,
    pub(super) external: HashMap<PathBuf, Arc<MappedFile>>,
}

impl Store {
    pub(super) fn constant(&mut self, proto: &TensorProto) -> Result<Constant, TensorProblem> {
        let shape = shape(&proto.dims)?;
        let elem = Elem::from_id(i64::from(proto.data_type))
            .ok_or(TensorProblem::Type(proto.data_type))?;
        if elem == Elem::Str {
            return strings(proto, shape);
        }
        let Some(dtype) = elem.storage() else { return Err(TensorProblem::Complex(elem)) };
        let count = elements(elem, &shape)?;
        let want = file_len(elem, count).ok_or_else(|| overflow(elem, &shape))?;
        let wrong = |got| TensorProblem::Bytes { elem, shape: shape.clone(), want, got };
        const EXTERNAL: i32 = 1;
        let bytes = if proto.data_location == EXTERNAL {
            self.external(proto, want)?
        } else if let Some(raw) = &proto.raw_data {
            if raw.len() != want {
                return Err(wrong(raw.len()));
            }
            self.slice(raw)
        } else {
            let bytes = typed(elem, proto, count).map_err(|got| {
                let want = typed_len(elem, count);
                TensorProblem::Elements { shape: shape.clone(), want, got }
            })?;
            Bytes::owned(AlignedBytes::from_slice(&bytes))
        };
        if bytes.len() != want {
            return Err(wrong(bytes.len()));
        }
        let bytes = if elem.is_plain() { bytes } else { widen(elem, bytes.as_slice(), count) };
        let tensor =
            Tensor::new(dtype, shape.clone(), bytes).map_err(|_| overflow(elem, &shape))?;
        Ok(Constant::Tensor { elem, tensor })
    }

    /// The bytes as a slice of the mapped file, at whatever address they lie, or as a copy where
    /// there is no file.
    fn slice(&self, raw: &[u8]) -> Bytes {
        let mapped = self.file.as_ref().and_then(|file| {
            let offset = (raw.as_ptr() as usize).checked_sub(file.bytes().as_ptr() as usize)?;
            Bytes::mapped(file.clone(), offset, raw.len())
        });
        mapped.unwrap_or_else(|| Bytes::owned(AlignedBytes::from_slice(raw)))
    }

    fn external(&mut self, proto: &TensorProto, want: usize) -> Result<Bytes, TensorProblem> {
        let key =
            |key: &str| proto.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
        let number = |name: &str| match key(name) {
            None => Ok(None),
            Some(text) => text
                .parse::<u64>()
                .map(Some)
                .map_err(|_| TensorProblem::Key(format!("{name} '{text}'"))),
        };
        let Some(location) = key("location") else {
            return Err(TensorProblem::Key("no location".into()));
        };
        let (offset, len) = (number("offset")?.unwrap_or(0), number("length")?);
        let len = len.unwrap_or(want as u64);
        if want == 0 {
            return Ok(Bytes::owned(AlignedBytes::zeroed(0)));
        }
        let file = self.open(location)?;
        let range = || {
            let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
            Bytes::mapped(file.clone(), offset, len)
        };
        range().ok_or_else(|| {
            let have = file.bytes().len();
            TensorProblem::Range { file: location.into(), offset, len, have }
        })
    }

    /// Opens a file beside the model. Links may not lead out of the folder.
    fn open(&mut self, location: &str) -> Result<Arc<MappedFile>, TensorProblem> {
        let Some(folder) = &self.folder else {
            return Err(TensorProblem::NoFolder(location.into()));
        };
        let inside = |p: &Path| {
            p.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir))
        };
        if location.is_empty() || !inside(Path::new(location)) {
            return Err(TensorProblem::Outside(location.into()));
        }
        let problem = |e: &dyn std::fmt::Display| TensorProblem::File {
            file: location.into(),
            problem: e.to_string(),
        };
        let path = folder.join(location).canonicalize().map_err(|e| problem(&e))?;
        let root = folder.canonicalize().map_err(|e| problem(&e))?;
        if !path.starts_with(&root) {
            return Err(TensorProblem::Outside(location.into()));
        }
        if let Some(file) = self.external.get(&path) {
            return Ok(file.clone());
        }
        let file = Arc::new(MappedFile::open(&path).map_err(|e| problem(&e))?);
        self.external.insert(path, file.clone());
        Ok(file)
    }

    /// A sparse tensor in coordinate form, made dense.
    pub(super) fn dense(
        &mut self,
        proto: &SparseTensorProto,
    ) -> Result<(String, Constant), TensorProblem> {
        let sparse = TensorProblem::Sparse;
        let (Some(values), Some(indices)) = (&proto.values, &proto.indices) else {
            return Err(sparse("has no values or indices"));
        };
        let shape = shape(&proto.dims)?;
        let Constant::Tensor { elem, tensor: data } = self.constant(values)? else {
            return Err(sparse("holds strings"));
        };
        let Constant::Tensor { tensor: at, .. } = self.constant(indices)? else {
            return Err(sparse("has strings as indices"));
        };
        let len = byte_len(data.dtype(), &shape).map_err(|_| overflow(elem, &shape))?;
        if len > LARGEST_DENSE {
            return Err(sparse("is too large to be made dense"));
        }
        let at = at.to_vec::<i64>(DType::I64).map_err(|_| sparse("has no int64 indices"))?;
        let rank = if indices.dims.len() == 1 { 1 } else { shape.len() };
        let total: usize = shape.iter().product();
        if rank == 0 || at.len() != data.elems() * rank {
            return Err(sparse("has another number of indices than values"));
        }
        let size = data.dtype().layout().bytes;
        let mut bytes = AlignedBytes::zeroed(len);
        for (index, value) in at.chunks(rank).zip(data.bytes().as_slice().chunks(size)) {
            let linear = if rank == 1 {
                usize::try_from(index[0]).ok()
            } else {
                index.iter().zip(&shape).try_fold(0usize, |n, (&i, &d)| {
                    usize::try_from(i).ok().filter(|&i| i < d).map(|i| n * d + i)
                })
            };
            let Some(linear) = linear.filter(|&i| i < total) else {
                return Err(sparse("has an index outside its shape"));
            };
            bytes.as_mut_slice()[linear * size..][..size].copy_from_slice(value);
        }
        let tensor = Tensor::new(data.dtype(), shape.clone(), Bytes::owned(bytes))
            .map_err(|_| overflow(elem, &shape))?;
        Ok((values.name.clone(), Constant::Tensor { elem, tensor }))
    }
}

fn overflow(elem: Elem, shape: &[usize]) -> TensorProblem {
    TensorProblem::Overflow { elem, shape: shape.to_vec() }
}

fn shape(dims: &[i64]) -> Result<Vec<usize>, TensorProblem> {
    dims.iter().map(|&d| usize::try_from(d).map_err(|_| TensorProblem::Negative(d))).collect()
}

fn elements(elem: Elem, shape: &[usize]) -> Result<usize, TensorProblem> {
    let product = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    product.filter(|&n| n <= isize::MAX as usize / 16).ok_or_else(|| overflow(elem, shape))
}

/// Bytes of `count` elements in a file.
fn file_len(elem: Elem, count: usize) -> Option<usize> {
    count.checked_mul(elem.bits()? as usize).map(|bits| bits.div_ceil(8))
}

/// Entries of the typed field that hold `count` elements: packed types share an entry.
fn typed_len(elem: Elem, count: usize) -> usize {
    match elem.bits() {
        Some(bits) if bits < 8 => count.div_ceil(8 / bits as usize),
        _ => count,
    }
}

fn strings(proto: &TensorProto, shape: Vec<usize>) -> Result<Constant, TensorProblem> {
    let want = elements(Elem::Str, &shape)?;
    let got = proto.string_data.len();
    if got != want {
        return Err(TensorProblem::Elements { shape, want, got });
    }
    Ok(Constant::Strings { shape, strings: proto.string_data.iter().map(|s| s.to_vec()).collect() })
}

/// Little-endian bytes of a typed field, as `raw_data` would hold them; the field's length when it
/// is wrong.
fn typed(elem: Elem, proto: &TensorProto, count: usize) -> Result<Vec<u8>, usize> {
    fn bytes<T: Copy, const N: usize>(
        field: &[T],
        want: usize,
        to: impl Fn(T) -> [u8; N],
    ) -> Result<Vec<u8>, usize> {
        if field.len() != want {
            return Err(field.len());
        }
        Ok(field.iter().flat_map(|&x| to(x)).collect())
    }
    let want = typed_len(elem, count);
    match elem {
        Elem::F32 => bytes(&proto.float_data, want, f32::to_le_bytes),
        Elem::F64 => bytes(&proto.double_data, want, f64::to_le_bytes),
        Elem::I64 => bytes(&proto.int64_data, want, i64::to_le_bytes),
        Elem::U64 => bytes(&proto.uint64_data, want, u64::to_le_bytes),
        Elem::U32 => bytes(&proto.uint64_data, want, |x| (x as u32).to_le_bytes()),
        Elem::I32 => bytes(&proto.int32_data, want, i32::to_le_bytes),
        Elem::U16 | Elem::I16 | Elem::F16 | Elem::BF16 => {
            bytes(&proto.int32_data, want, |x| (x as u16).to_le_bytes())
        }
        Elem::Bool => bytes(&proto.int32_data, want, |x| [u8::from(x != 0)]),
        _ => bytes(&proto.int32_data, want, |x| [x as u8]),
    }
}

/// Elements of a type without a dtype of its own, in their storage dtype. Packed elements start at
/// the low bits.
fn widen(elem: Elem, bytes: &[u8], count: usize) -> Bytes {
    let bits = elem.bits().unwrap_or(8).min(8) as usize;
    let (per_byte, mask) = (8 / bits, (0xffu16 >> (8 - bits)) as u8);
    let code = |i: usize| (bytes[i / per_byte] >> (i % per_byte * bits)) & mask;
    let out: Vec<u8> = if elem.storage() == Some(DType::F32) {
        (0..count).flat_map(|i| elem.decode_narrow(code(i)).unwrap_or(0.0).to_le_bytes()).collect()
    } else {
        let signed = matches!(elem, Elem::I2 | Elem::I4);
        let sign_extend = |c: u8| ((c << (8 - bits)) as i8 >> (8 - bits)) as u8;
        (0..count).map(|i| if signed { sign_extend(code(i)) } else { code(i) }).collect()
    };
    Bytes::owned(AlignedBytes::from_slice(&out))
}
