//! Kernels, one file per family of operations.

pub(crate) mod affine;
pub(crate) mod attention;
pub(crate) mod attention_disentangled;
pub(crate) mod attention_packed;
pub(crate) mod chain;
pub(crate) mod conv;
pub(crate) mod elementwise;
pub(crate) mod embedding;
mod geometry;
pub(crate) mod integer;
pub(crate) mod integer_conv;
pub(crate) mod kv_cache;
pub(crate) mod linear;
pub(crate) mod lookup;
pub(crate) mod normalization;
pub(crate) mod pool;
pub(crate) mod product;
pub(crate) mod recurrent;
pub(crate) mod reduce;
pub(crate) mod resize;
pub(crate) mod rope;
pub(crate) mod rotary;
pub(crate) mod sdpa;
pub(crate) mod softmax;
pub(crate) mod views;

#[cfg(test)]
mod tests;

use cyb_exec::Call;
use cyb_ir::{Attrs, Op};
use cyb_tensor::{Class, DType};

/// The attributes of a jet call; atoms have none.
pub(crate) fn attrs_of(op: &Op) -> Attrs {
    match op {
        Op::Jet(_, attrs) => attrs.clone(),
        Op::Atom(_) => Attrs::new(),
    }
}

/// Whether every operand of a call is `F32`.
pub(crate) fn all_f32(call: &Call<'_>) -> bool {
    call.inputs.iter().chain(&call.outputs).all(|f| f.dtype == DType::F32)
}

/// Elements as `f32`, from any float or quantised storage.
pub(crate) fn decode_row(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), String> {
    cyb_tensor::quant::decode(dtype, bytes, out).map_err(|e| e.to_string())
}

/// Whether [`decode_row`] takes a dtype.
pub(crate) fn decodes(dtype: DType) -> bool {
    matches!(dtype.class(), Class::Float | Class::Quantized)
}
