//! Block formats: how numbers are stored in a tensor's bytes, one file per quantised format.
//!
//! The one idea: a quantised block is small integer *codes* in groups, and every group has a scale
//! and an offset; element = scale × code + offset. A format's file states the layout of its block
//! and unpacks it to that form ([`Codes`]); [`decode`] is the form written out in `f32`, and
//! integer kernels take the form as it is. The roundings are those of the `gguf` Python package,
//! so that decoding agrees with it bit for bit (the payload of a NaN aside).
//!
//! A new format is one file with a `Block` and one line in [`FORMATS`].

mod block;
mod float;
mod grids;
mod kscale;
mod search;

mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod nvfp4;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod q8_1;
mod q8_k;
mod tq1_0;
mod tq2_0;

#[cfg(test)]
mod tests;

use crate::DType;
use block::Format;

pub use block::Codes;

/// Every quantised format, in the order of [`DType`].
static FORMATS: &[Format] = &[
    Format::of::<q4_0::Block>().encoded_by(q4_0::pack),
    Format::of::<q4_1::Block>().encoded_by(q4_1::pack),
    Format::of::<q5_0::Block>().encoded_by(q5_0::pack),
    Format::of::<q5_1::Block>().encoded_by(q5_1::pack),
    Format::of::<q8_0::Block>().encoded_by(q8_0::pack),
    Format::of::<q8_1::Block>(),
    Format::of::<q2_k::Block>(),
    Format::of::<q3_k::Block>(),
    Format::of::<q4_k::Block>().encoded_by(q4_k::pack),
    Format::of::<q5_k::Block>().encoded_by(q5_k::pack),
    Format::of::<q6_k::Block>().encoded_by(q6_k::pack),
    Format::of::<q8_k::Block>(),
    Format::of::<iq2_xxs::Block>(),
    Format::of::<iq2_xs::Block>(),
    Format::of::<iq3_xxs::Block>(),
    Format::of::<iq1_s::Block>(),
    Format::of::<iq4_nl::Block>(),
    Format::of::<iq3_s::Block>(),
    Format::of::<iq2_s::Block>(),
    Format::of::<iq4_xs::Block>(),
    Format::of::<iq1_m::Block>(),
    Format::of::<tq1_0::Block>(),
    Format::of::<tq2_0::Block>().encoded_by(tq2_0::pack),
    Format::of::<mxfp4::Block>(),
    Format::of::<nvfp4::Block>(),
    Format::of::<q1_0::Block>(),
    Format::of::<q2_0::Block>(),
];

/// Why numbers cannot be decoded from or encoded to a dtype.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    #[error(
        "{elems} values are not whole {dtype} blocks of {block}: \
         choose a dtype whose block divides the row"
    )]
    PartialBlock { dtype: DType, elems: usize, block: usize },
    #[error("{elems} {dtype} values take {want} bytes, but {got} are given")]
    Length { dtype: DType, elems: usize, want: usize, got: usize },
    #[error("{dtype} is no floating-point or quantised dtype")]
    NotFloat { dtype: DType },
    #[error("{dtype} is not quantised: it has no codes")]
    NotQuantized { dtype: DType },
    #[error("cannot encode to {dtype}: choose one of {}", encodable())]
    NoEncoder { dtype: DType },
    #[error("value {idx} is {value}: {dtype} blocks hold finite numbers only")]
    NotFinite { dtype: DType, idx: usize, value: f32 },
    #[error(
        "the {dtype} block of values {first}..{end} needs a scale above the range of f16: \
         choose f32 or bf16"
    )]
    TooLarge { dtype: DType, first: usize, end: usize },
}

/// Decodes `out.len()` values of a floating-point or quantised dtype.
///
/// Narrow floats widen exactly, `F64` rounds to nearest.
///
/// # Errors
/// `bytes` that are not exactly the blocks of `out.len()` values, and integer dtypes.
pub fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    check_len(dtype, out.len(), bytes.len())?;
    match format(dtype) {
        Some(format) => {
            (format.decode)(bytes, out);
            Ok(())
        }
        None => float::decode(dtype, bytes, out),
    }
}

/// Appends the encoded `values` (whole rows, a whole number of blocks) to `out`, which an error
/// leaves as it was.
///
/// `F32` keeps every bit; `F16` and `BF16` round to nearest even, keep infinities and NaN, and
/// overflow to infinity. `Q8_0`, `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1` and `TQ2_0` give the bytes of the
/// `gguf` Python package. `Q4_K`, `Q5_K` and `Q6_K` search scales that minimise a weighted squared
/// error.
///
/// # Errors
/// A partial block, a dtype that cannot be encoded, and for quantised dtypes NaN, infinities, and
/// values so large that a block's `f16` scale overflows.
pub fn encode(dtype: DType, values: &[f32], out: &mut Vec<u8>) -> Result<(), QuantError> {
    let want = encoded_len(dtype, values.len())?;
    let Some(format) = format(dtype) else {
        return float::encode(dtype, values, out);
    };
    let pack = format.pack.ok_or(QuantError::NoEncoder { dtype })?;
    if let Some(idx) = values.iter().position(|v| !v.is_finite()) {
        return Err(QuantError::NotFinite { dtype, idx, value: values[idx] });
    }

    let start = out.len();
    out.resize(start + want, 0);
    let layout = dtype.layout();
    let rows = values.chunks_exact(layout.block).zip(out[start..].chunks_exact_mut(layout.bytes));
    let too_large = rows.enumerate().find_map(|(i, (values, block))| {
        pack(values, block);
        (!block::scales_fit(format, values, block)).then_some(i * layout.block)
    });
    if let Some(first) = too_large {
        out.truncate(start);
        return Err(QuantError::TooLarge { dtype, first, end: first + layout.block });
    }
    Ok(())
}

/// The integer view of one block of a quantised dtype.
///
/// # Errors
/// `block` is not one block's bytes, or `dtype` is not quantised.
pub fn codes(dtype: DType, block: &[u8], out: &mut Codes) -> Result<(), QuantError> {
    let format = format(dtype).ok_or(QuantError::NotQuantized { dtype })?;
    check_len(dtype, dtype.layout().block, block.len())?;
    (format.codes)(block, out);
    Ok(())
}

/// Elements that share a scale and an offset: 16 or 32 for quantised dtypes; 1 for plain ones.
pub fn group_size(dtype: DType) -> usize {
    format(dtype).map_or(1, |f| f.group)
}

/// Whether the groups of `dtype` have offsets; where they have none, [`Codes::offsets`] is zero.
pub fn has_offsets(dtype: DType) -> bool {
    format(dtype).is_some_and(|f| f.offsets)
}

/// Whether [`encode`] knows `dtype`.
pub fn can_encode(dtype: DType) -> bool {
    match format(dtype) {
        Some(format) => format.pack.is_some(),
        None => float::ENCODABLE.contains(&dtype),
    }
}

fn format(dtype: DType) -> Option<&'static Format> {
    let row = (dtype as usize).checked_sub(DType::Q4_0 as usize)?;
    FORMATS.get(row).filter(|f| f.dtype == dtype)
}

fn encoded_len(dtype: DType, elems: usize) -> Result<usize, QuantError> {
    let block = dtype.layout().block;
    dtype.bytes_for(elems).ok_or(QuantError::PartialBlock { dtype, elems, block })
}

fn check_len(dtype: DType, elems: usize, got: usize) -> Result<(), QuantError> {
    let want = encoded_len(dtype, elems)?;
    if got != want {
        return Err(QuantError::Length { dtype, elems, want, got });
    }
    Ok(())
}

fn encodable() -> String {
    let names: Vec<_> = DType::ALL.iter().filter(|&&d| can_encode(d)).map(|d| d.name()).collect();
    names.join(", ")
}
