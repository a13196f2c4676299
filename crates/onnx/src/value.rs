//! What a name of an ONNX graph stands for while the graph is imported.

use std::sync::Arc;

use cyb_formats::onnx::{Constant, Elem};
use cyb_ir::ValueId;
use cyb_tensor::{AlignedBytes, Bytes, Class, DType, Tensor};

use crate::error::{OpError, bad};

/// A value of the graph that is being built, with its ONNX type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct X {
    pub(crate) id: ValueId,
    pub(crate) elem: Elem,
}

/// The meaning of a name.
#[derive(Clone, Debug)]
pub(crate) enum Val {
    /// An optional input that is left out, or an optional without an element.
    None,
    /// A tensor that is known before the run.
    Known {
        elem: Elem,
        tensor: Tensor,
    },
    /// Floats that are known as codes, made only where an operator needs them.
    Codes(Arc<Codes>),
    /// A tensor that the run computes.
    Value(X),
    /// Strings, of which only the shape is of use here.
    Strings {
        shape: Vec<usize>,
    },
    Sequence(Vec<Val>),
}

impl Val {
    pub(crate) fn of(constant: &Constant) -> Val {
        match constant {
            Constant::Tensor { elem, tensor } => Val::Known { elem: *elem, tensor: tensor.clone() },
            Constant::Strings { shape, .. } => Val::Strings { shape: shape.clone() },
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Val::None)
    }

    /// Shows every run-time value inside to `visit`, which may replace it.
    pub(crate) fn visit(&mut self, visit: &mut dyn FnMut(&mut Val)) {
        match self {
            Val::Value(_) => visit(self),
            Val::Sequence(vals) => vals.iter_mut().for_each(|v| v.visit(visit)),
            Val::None | Val::Known { .. } | Val::Codes(_) | Val::Strings { .. } => {}
        }
    }
}

/// 8-bit codes that are known before the run: `F32` numbers `(code - zero) * scale`, with one scale and
/// zero point or one for each index of `axis`.
#[derive(Clone, Debug)]
pub(crate) struct Codes {
    pub(crate) codes: Tensor,
    pub(crate) scale: Vec<f32>,
    /// Of the codes' type, one number or a vector.
    pub(crate) zero: Option<Tensor>,
    pub(crate) axis: usize,
}

impl Codes {
    pub(crate) fn of(
        codes: &Tensor,
        scale: &[f32],
        zero: Option<&Tensor>,
        axis: usize,
    ) -> Result<Codes, OpError> {
        if !matches!(codes.dtype(), DType::U8 | DType::I8) {
            return bad(format!("codes of {}", codes.dtype()));
        }
        let len = codes.shape().get(axis).copied().unwrap_or(1);
        let fits = |n: usize| n == 1 || n == len;
        let zeros = zero.map_or(1, Tensor::elems);
        if !fits(scale.len()) || !fits(zeros) {
            return bad(format!(
                "{} scales and {zeros} zero points for {:?}",
                scale.len(),
                codes.shape()
            ));
        }
        Ok(Codes { codes: codes.clone(), scale: scale.to_vec(), zero: zero.cloned(), axis })
    }

    /// The numbers.
    pub(crate) fn decoded(&self) -> Result<Tensor, OpError> {
        let signed = self.codes.dtype() == DType::I8;
        let number = |b: u8| if signed { i32::from(b.cast_signed()) } else { i32::from(b) };
        let zeros: Vec<i32> = match &self.zero {
            Some(zero) => zero.bytes().as_slice().iter().map(|&b| number(b)).collect(),
            None => vec![0],
        };
        let shape = self.codes.shape();
        let inner: usize = shape.iter().skip(self.axis + 1).product();
        let len = shape.get(self.axis).copied().unwrap_or(1);
        let each = |values: usize, i: usize| if values == 1 { 0 } else { i };
        let codes = self.codes.bytes().as_slice();
        let mut numbers = Vec::with_capacity(codes.len());
        for (i, line) in codes.chunks(inner.max(1)).enumerate() {
            let (scale, zero) =
                (self.scale[each(self.scale.len(), i % len)], zeros[each(zeros.len(), i % len)]);
            numbers.extend(line.iter().map(|&b| (number(b) - zero) as f32 * scale));
        }
        Ok(Tensor::from_f32(shape.to_vec(), &numbers)?)
    }
}

/// The integers of a tensor of any integer type.
pub(crate) fn to_ints(t: &Tensor) -> Result<Vec<i64>, OpError> {
    fn wide<T: Into<i64>>(v: Vec<T>) -> Vec<i64> {
        v.into_iter().map(Into::into).collect()
    }
    Ok(match t.dtype() {
        DType::I64 => t.to_vec::<i64>(DType::I64)?,
        DType::I32 => wide(t.to_vec::<i32>(DType::I32)?),
        DType::I16 => wide(t.to_vec::<i16>(DType::I16)?),
        DType::I8 => wide(t.to_vec::<i8>(DType::I8)?),
        DType::U8 => wide(t.to_vec::<u8>(DType::U8)?),
        DType::Bool => wide(t.to_vec::<u8>(DType::Bool)?),
        DType::U16 => wide(t.to_vec::<u16>(DType::U16)?),
        DType::U32 => wide(t.to_vec::<u32>(DType::U32)?),
        DType::U64 => t.to_vec::<u64>(DType::U64)?.into_iter().map(|x| x as i64).collect(),
        other => return bad(format!("integers are needed, not {other}")),
    })
}

/// The numbers of a plain tensor as `f64`.
pub(crate) fn to_floats(t: &Tensor) -> Result<Vec<f64>, OpError> {
    Ok(match t.dtype() {
        DType::F64 => t.to_vec::<f64>(DType::F64)?,
        DType::F32 => t.to_vec::<f32>(DType::F32)?.into_iter().map(f64::from).collect(),
        DType::F16 => {
            let bits = t.to_vec::<u16>(DType::F16)?;
            bits.into_iter().map(|x| half::f16::from_bits(x).to_f64()).collect()
        }
        DType::BF16 => {
            let bits = t.to_vec::<u16>(DType::BF16)?;
            bits.into_iter().map(|x| half::bf16::from_bits(x).to_f64()).collect()
        }
        DType::U64 => t.to_vec::<u64>(DType::U64)?.into_iter().map(|x| x as f64).collect(),
        d if matches!(d.class(), Class::Int | Class::Bool) => {
            to_ints(t)?.into_iter().map(|x| x as f64).collect()
        }
        other => return bad(format!("plain numbers are needed, not {other}")),
    })
}

pub(crate) fn ints_tensor(shape: Vec<usize>, ints: &[i64]) -> Result<Tensor, OpError> {
    Ok(Tensor::from_elems(DType::I64, shape, ints)?)
}

pub(crate) fn ints_val(ints: &[i64]) -> Result<Val, OpError> {
    Ok(Val::Known { elem: Elem::I64, tensor: ints_tensor(vec![ints.len()], ints)? })
}

/// Plain numbers as a tensor of `dtype`; numbers are rounded to nearest, integers truncated.
pub(crate) fn floats_tensor(
    dtype: DType,
    shape: Vec<usize>,
    numbers: &[f64],
) -> Result<Tensor, OpError> {
    let f = |x: &f64| *x;
    let bytes: Vec<u8> = match dtype {
        DType::F64 => numbers.iter().flat_map(|x| f(x).to_le_bytes()).collect(),
        DType::F32 => numbers.iter().flat_map(|x| (f(x) as f32).to_le_bytes()).collect(),
        DType::F16 => {
            numbers.iter().flat_map(|x| half::f16::from_f64(f(x)).to_le_bytes()).collect()
        }
        DType::BF16 => {
            numbers.iter().flat_map(|x| half::bf16::from_f64(f(x)).to_le_bytes()).collect()
        }
        DType::I64 => numbers.iter().flat_map(|x| (f(x) as i64).to_le_bytes()).collect(),
        DType::I32 => numbers.iter().flat_map(|x| (f(x) as i32).to_le_bytes()).collect(),
        DType::I16 => numbers.iter().flat_map(|x| (f(x) as i16).to_le_bytes()).collect(),
        DType::U16 => numbers.iter().flat_map(|x| (f(x) as u16).to_le_bytes()).collect(),
        DType::U32 => numbers.iter().flat_map(|x| (f(x) as u32).to_le_bytes()).collect(),
        DType::U64 => numbers.iter().flat_map(|x| (f(x) as u64).to_le_bytes()).collect(),
        DType::I8 => numbers.iter().flat_map(|x| (f(x) as i8).to_le_bytes()).collect(),
        DType::U8 => numbers.iter().map(|x| f(x) as u8).collect(),
        DType::Bool => numbers.iter().map(|x| u8::from(*x != 0.0)).collect(),
        other => return bad(format!("a constant of {other} cannot be made")),
    };
    Ok(Tensor::new(dtype, shape, Bytes::owned(AlignedBytes::from_slice(&bytes)))?)
}
