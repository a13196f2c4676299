//! Tensors as data: element types, shapes whose dimensions may be symbolic, quantised block
//! formats and the bytes themselves. There are no operations here; what operations mean is said in
//! `cyb-ir` and `cyb-interp`.

mod dim;
mod dtype;
mod map;
pub mod quant;
mod storage;

pub use dim::{Bindings, Dim, DimError};
pub use dtype::{Class, DType, Layout, UnknownDType};
pub use map::{MapError, MappedFile, end_on_lost_pages};
pub use storage::{AlignedBytes, Bytes, Tensor, TensorError, WeakBytes, byte_len};
