//! Plain floating-point dtypes to and from `f32`.

use half::slice::HalfFloatSliceExt;

use super::QuantError;
use crate::DType;

/// The plain dtypes that [`encode`] writes.
pub(super) const ENCODABLE: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// Decodes `bytes`, whose length is that of `out.len()` elements.
pub(super) fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    match dtype {
        DType::F32 => each(bytes, out, f32::from_le_bytes),
        DType::F64 => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
        DType::F16 => f16(bytes, out),
        DType::BF16 => each(bytes, out, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)),
        DType::F8E4M3 => each(bytes, out, |[b]| f8e4m3(b)),
        // The five exponent bits are those of f16.
        DType::F8E5M2 => each(bytes, out, |[b]| half::f16::from_bits(u16::from(b) << 8).to_f32()),
        _ => return Err(QuantError::NotFloat { dtype }),
    }
    Ok(())
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (&b, x) in bytes.as_chunks().0.iter().zip(out) {
        *x = value(b);
    }
}

/// Converts in runs, so that the widening instructions of the processor are used.
fn f16(bytes: &[u8], out: &mut [f32]) {
    const RUN: usize = 64;
    let mut run = [half::f16::ZERO; RUN];
    for (bytes, out) in bytes.chunks(2 * RUN).zip(out.chunks_mut(RUN)) {
        let run = &mut run[..out.len()];
        for (&b, h) in bytes.as_chunks().0.iter().zip(run.iter_mut()) {
            *h = half::f16::from_le_bytes(b);
        }
        run.convert_to_f32_slice(out);
    }
}

/// The `fn` variant: bias 7, no infinities, NaN where all bits but the sign are set.
fn f8e4m3(b: u8) -> f32 {
    let (exponent, mantissa) = (b >> 3 & 15, b & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, m) => f32::from(m) * f32::from_bits((127 - 9) << 23),
        (e, m) => f32::from_bits((u32::from(e) + 127 - 7) << 23 | u32::from(m) << 20),
    };
    if b & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Appends `values`.
pub(super) fn encode(dtype: DType, values: &[f32], out: &mut Vec<u8>) -> Result<(), QuantError> {
    match dtype {
        DType::F32 => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        DType::F16 => {
            out.extend(values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()));
        }
        DType::BF16 => {
            out.extend(values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()));
        }
        _ => return Err(QuantError::NoEncoder { dtype }),
    }
    Ok(())
}
