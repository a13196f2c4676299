//! Where a tensor's bytes are: owned memory or a slice of a mapped file, shared either way.

use std::fmt;
use std::sync::{Arc, Weak};

use bytemuck::{AnyBitPattern, NoUninit, Pod, Zeroable};

use crate::{DType, MappedFile};

/// Owned bytes aligned to 64, the width of a cache line and of the widest vector registers.
#[derive(Clone)]
pub struct AlignedBytes {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl AlignedBytes {
    pub fn zeroed(len: usize) -> AlignedBytes {
        AlignedBytes { lines: vec![Line([0; 64]); len.div_ceil(64)], len }
    }

    pub fn from_slice(bytes: &[u8]) -> AlignedBytes {
        let mut out = AlignedBytes::zeroed(bytes.len());
        out.as_mut_slice().copy_from_slice(bytes);
        out
    }

    pub fn as_slice(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBytes({})", self.len)
    }
}

/// Read-only bytes that are cheap to clone.
#[derive(Clone, Debug)]
pub struct Bytes(Source);

#[derive(Clone, Debug)]
enum Source {
    Owned { bytes: Arc<AlignedBytes>, offset: usize, len: usize },
    Mapped { file: Arc<MappedFile>, offset: usize, len: usize },
}

impl Bytes {
    pub fn owned(bytes: AlignedBytes) -> Bytes {
        let len = bytes.len;
        Bytes(Source::Owned { bytes: Arc::new(bytes), offset: 0, len })
    }

    /// `len` bytes of `file` from `offset`; `None` when they are not inside the file.
    pub fn mapped(file: Arc<MappedFile>, offset: usize, len: usize) -> Option<Bytes> {
        let end = offset.checked_add(len)?;
        (end <= file.bytes().len()).then_some(Bytes(Source::Mapped { file, offset, len }))
    }

    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Source::Owned { bytes, offset, len } => &bytes.as_slice()[*offset..*offset + *len],
            Source::Mapped { file, offset, len } => &file.bytes()[*offset..*offset + *len],
        }
    }

    /// Whether they are part of a mapped file, which holds no memory that nothing else could use.
    pub fn is_mapped(&self) -> bool {
        matches!(self.0, Source::Mapped { .. })
    }

    pub fn len(&self) -> usize {
        match &self.0 {
            Source::Owned { len, .. } | Source::Mapped { len, .. } => *len,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part, without a copy; `None` when it is not inside.
    pub fn slice(&self, part: std::ops::Range<usize>) -> Option<Bytes> {
        let size = part.end.checked_sub(part.start)?;
        if part.end > self.len() {
            return None;
        }
        let mut slice = self.clone();
        match &mut slice.0 {
            Source::Owned { offset, len, .. } | Source::Mapped { offset, len, .. } => {
                *offset += part.start;
                *len = size;
            }
        }
        Some(slice)
    }

    /// A handle that keeps nothing alive, to tell later whether bytes are these.
    pub fn downgrade(&self) -> WeakBytes {
        WeakBytes(match &self.0 {
            Source::Owned { bytes, offset, len } => {
                WeakSource::Owned(Arc::downgrade(bytes), *offset, *len)
            }
            Source::Mapped { file, offset, len } => {
                WeakSource::Mapped(Arc::downgrade(file), *offset, *len)
            }
        })
    }

    /// Drops the resident pages of a mapped slice, once a backend has made its own copy. Owned
    /// bytes are unaffected.
    pub fn release(&self) {
        self.release_range(0..self.len());
    }

    /// As [`release`](Bytes::release), for a part.
    pub fn release_range(&self, part: std::ops::Range<usize>) {
        if let Source::Mapped { file, offset, len } = &self.0 {
            file.release(*offset + part.start.min(*len)..*offset + part.end.min(*len));
        }
    }
}

/// What [`Bytes`] were, as long as somebody holds them.
#[derive(Clone, Debug)]
pub struct WeakBytes(WeakSource);

#[derive(Clone, Debug)]
enum WeakSource {
    Owned(Weak<AlignedBytes>, usize, usize),
    Mapped(Weak<MappedFile>, usize, usize),
}

impl WeakBytes {
    /// Whether `bytes` are the same part of the same memory.
    pub fn is(&self, bytes: &Bytes) -> bool {
        match (&self.0, &bytes.0) {
            (WeakSource::Owned(weak, a, n), Source::Owned { bytes, offset, len }) => {
                weak.as_ptr() == Arc::as_ptr(bytes) && a == offset && n == len
            }
            (WeakSource::Mapped(weak, a, n), Source::Mapped { file, offset, len }) => {
                weak.as_ptr() == Arc::as_ptr(file) && a == offset && n == len
            }
            (WeakSource::Owned(..), Source::Mapped { .. })
            | (WeakSource::Mapped(..), Source::Owned { .. }) => false,
        }
    }

    /// Whether nobody holds them any more.
    pub fn is_gone(&self) -> bool {
        match &self.0 {
            WeakSource::Owned(weak, ..) => weak.strong_count() == 0,
            WeakSource::Mapped(weak, ..) => weak.strong_count() == 0,
        }
    }
}

/// A tensor does not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    #[error("shape {shape:?} of {dtype} needs more bytes than can be addressed")]
    Overflow { dtype: DType, shape: Vec<usize> },
    #[error("rows of {inner} elements are not whole {dtype} blocks of {block}")]
    PartialBlock { dtype: DType, inner: usize, block: usize },
    #[error("shape {shape:?} of {dtype} takes {want} bytes, but {got} are given")]
    Length { dtype: DType, shape: Vec<usize>, want: usize, got: usize },
    #[error("the tensor holds {got}, not {want}")]
    WrongDType { want: DType, got: DType },
}

/// A dtype, a shape (outermost axis first) and contiguous row-major bytes.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Bytes,
}

impl Tensor {
    pub fn new(dtype: DType, shape: Vec<usize>, bytes: Bytes) -> Result<Tensor, TensorError> {
        let want = byte_len(dtype, &shape)?;
        if bytes.len() != want {
            return Err(TensorError::Length { dtype, shape, want, got: bytes.len() });
        }
        Ok(Tensor { dtype, shape, bytes })
    }

    /// A tensor of plain elements. `T` must be the Rust type of `dtype`'s elements.
    pub fn from_elems<T: NoUninit>(
        dtype: DType,
        shape: Vec<usize>,
        elems: &[T],
    ) -> Result<Tensor, TensorError> {
        let bytes = AlignedBytes::from_slice(bytemuck::cast_slice(elems));
        Tensor::new(dtype, shape, Bytes::owned(bytes))
    }

    pub fn from_f32(shape: Vec<usize>, elems: &[f32]) -> Result<Tensor, TensorError> {
        Tensor::from_elems(DType::F32, shape, elems)
    }

    pub fn from_i32(shape: Vec<usize>, elems: &[i32]) -> Result<Tensor, TensorError> {
        Tensor::from_elems(DType::I32, shape, elems)
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn elems(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The elements as `T`, copied so that mapped bytes of any alignment can be read.
    pub fn to_vec<T: AnyBitPattern>(&self, dtype: DType) -> Result<Vec<T>, TensorError> {
        if self.dtype != dtype || dtype.layout().bytes != size_of::<T>() {
            return Err(TensorError::WrongDType { want: dtype, got: self.dtype });
        }
        Ok(pod_vec(self.bytes.as_slice()))
    }

    pub fn to_f32_vec(&self) -> Result<Vec<f32>, TensorError> {
        self.to_vec(DType::F32)
    }
}

/// Bytes of a contiguous tensor, with every product checked.
pub fn byte_len(dtype: DType, shape: &[usize]) -> Result<usize, TensorError> {
    let block = dtype.layout().block;
    let inner = shape.last().copied().unwrap_or(1);
    if !inner.is_multiple_of(block) {
        return Err(TensorError::PartialBlock { dtype, inner, block });
    }
    shape
        .iter()
        .try_fold(1usize, |n, &d| n.checked_mul(d))
        .and_then(|n| dtype.bytes_for(n))
        .ok_or_else(|| TensorError::Overflow { dtype, shape: shape.to_vec() })
}

fn pod_vec<T: AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_shapes_are_errors() {
        let err = byte_len(DType::F32, &[1 << 32, 1 << 32]).unwrap_err();
        assert!(matches!(err, TensorError::Overflow { .. }));
        let err = byte_len(DType::F32, &[(1 << 63) + 2, 2]).unwrap_err();
        assert!(matches!(err, TensorError::Overflow { .. }));
        let err = byte_len(DType::Q4_K, &[2, 896 / 2]).unwrap_err();
        assert!(matches!(err, TensorError::PartialBlock { inner: 448, .. }));
    }

    #[test]
    fn elements_round_trip() {
        let t = Tensor::from_f32(vec![2, 2], &[1.0, -2.0, 3.5, 0.0]).unwrap();
        assert_eq!(t.to_f32_vec().unwrap(), [1.0, -2.0, 3.5, 0.0]);
        assert!(t.to_vec::<i32>(DType::I32).is_err());
        assert_eq!(t.bytes().as_slice().as_ptr().align_offset(64), 0);
    }
}
