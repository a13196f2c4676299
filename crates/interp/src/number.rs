//! Numbers: how elements of each dtype are loaded, computed with and stored.
//!
//! The one idea: floats of every width are computed in `f64` and rounded to their dtype once per
//! atom. `f64` has more than twice the precision of the other dtypes, so a sum, product,
//! reciprocal or square root rounded this way is the exact result rounded once. Integers and
//! `Bool` are computed in `i64`, a `U64` by its bits, and wrapped to their dtype.

use bytemuck::AnyBitPattern;
use cyb_ir::Exp;
use cyb_tensor::{Class, DType};
use half::{bf16, f16};

/// Elements evaluated at a time.
pub(crate) const CHUNK: usize = 256;

/// Elementwise operations whose result has the dtype of its two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arith {
    Mul,
    Add,
    Max,
    Min,
}

/// Elementwise comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    Lt,
    Eq,
}

/// Whether elements are computed in `f64`; the others are computed in `i64`.
pub(crate) fn is_float(dtype: DType) -> bool {
    match dtype.class() {
        Class::Float => true,
        Class::Bool | Class::Int | Class::Quantized => false,
    }
}

/// `values` become the nearest numbers of `dtype`, ties to even.
pub(crate) fn round(dtype: DType, values: &mut [f64]) {
    let mut narrow = |precision, min_exponent, max, overflow| {
        for x in values.iter_mut() {
            *x = narrow(*x, precision, min_exponent, max, overflow);
        }
    };
    match dtype {
        DType::F16 => narrow(11, -14, 65504.0, f64::INFINITY),
        DType::BF16 => narrow(8, -126, bf16::MAX.to_f64(), f64::INFINITY),
        DType::F8E4M3 => narrow(4, -6, 448.0, f64::NAN),
        DType::F8E5M2 => narrow(3, -14, 57344.0, f64::INFINITY),
        DType::F32 => values.iter_mut().for_each(|x| *x = f64::from(*x as f32)),
        // Every `f64` is one already, and other classes hold no floats.
        _ => {}
    }
}

pub(crate) fn round_one(dtype: DType, value: f64) -> f64 {
    let mut one = [value];
    round(dtype, &mut one);
    one[0]
}

/// The nearest number with `precision` significant bits and exponents from `min_exponent` (below
/// it, numbers lose precision gradually); beyond `max` it is `overflow`.
fn narrow(x: f64, precision: i32, min_exponent: i32, max: f64, overflow: f64) -> f64 {
    if x == 0.0 || x.is_nan() {
        return x;
    }
    if x.is_infinite() {
        return overflow.copysign(x);
    }
    let quantum = power_of_two(exponent(x).max(min_exponent) - (precision - 1));
    let nearest = (x / quantum).round_ties_even() * quantum;
    if nearest.abs() > max { overflow.copysign(x) } else { nearest }
}

/// The exponent of the leading bit of a normal number.
fn exponent(x: f64) -> i32 {
    ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// The integer modulo 2^bits of `dtype`; for `Bool`, whether it is not zero.
pub(crate) fn wrap(dtype: DType, value: i64) -> i64 {
    match dtype {
        DType::Bool => i64::from(value != 0),
        DType::U8 => i64::from(value as u8),
        DType::I8 => i64::from(value as i8),
        DType::U16 => i64::from(value as u16),
        DType::I16 => i64::from(value as i16),
        DType::U32 => i64::from(value as u32),
        DType::I32 => i64::from(value as i32),
        _ => value,
    }
}

/// A key that orders the integers of `dtype`: `U64` by its bits has the wrong sign.
pub(crate) fn order(dtype: DType, value: i64) -> i64 {
    if dtype == DType::U64 { value ^ i64::MIN } else { value }
}

/// The mathematical value of an integer.
pub(crate) fn integer(dtype: DType, value: i64) -> i128 {
    if dtype == DType::U64 { i128::from(value as u64) } else { i128::from(value) }
}

/// Truncated toward zero, saturated; NaN is 0. As a `Bool`, whether it is not zero.
pub(crate) fn float_to_integer(dtype: DType, x: f64) -> i64 {
    match dtype {
        DType::Bool => i64::from(x != 0.0),
        DType::U8 => i64::from(x as u8),
        DType::I8 => i64::from(x as i8),
        DType::U16 => i64::from(x as u16),
        DType::I16 => i64::from(x as i16),
        DType::U32 => i64::from(x as u32),
        DType::I32 => i64::from(x as i32),
        DType::U64 => (x as u64) as i64,
        _ => x as i64,
    }
}

/// The nearest float of `to`, ties to even.
pub(crate) fn integer_to_float(from: DType, to: DType, value: i64) -> f64 {
    let value = integer(from, value);
    if to == DType::F64 {
        return value as f64;
    }
    // Rounding twice could round a tie the wrong way, so the first rounding, to 53 bits, is to
    // odd: it keeps the knowledge that bits were lost.
    let magnitude = value.unsigned_abs();
    let lost_bits = (u128::BITS - magnitude.leading_zeros()).saturating_sub(53);
    let kept = magnitude >> lost_bits << lost_bits;
    let odd = if kept == magnitude { kept } else { kept | 1 << lost_bits };
    let exact = if value < 0 { -(odd as f64) } else { odd as f64 };
    round_one(to, exact)
}

/// IEEE 754 `maximum`: NaN if either is NaN, and +0 above -0.
pub(crate) fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if a > b || (a == b && a.is_sign_positive()) {
        a
    } else {
        b
    }
}

/// IEEE 754 `minimum`.
pub(crate) fn minimum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if a < b || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    }
}

/// `a op b` into `a`, for floats of `dtype`.
pub(crate) fn arith_floats(op: Arith, dtype: DType, a: &mut [f64], b: &[f64]) {
    match op {
        Arith::Mul => a.iter_mut().zip(b).for_each(|(a, b)| *a *= b),
        Arith::Add => a.iter_mut().zip(b).for_each(|(a, b)| *a += b),
        Arith::Max => a.iter_mut().zip(b).for_each(|(a, &b)| *a = maximum(*a, b)),
        Arith::Min => a.iter_mut().zip(b).for_each(|(a, &b)| *a = minimum(*a, b)),
    }
    round(dtype, a);
}

/// `a op b` into `a`, for integers and `Bool`. `Bool` needs no case of its own: a product of 0 and
/// 1 is *and*, and a sum that is not 0 is *or*.
pub(crate) fn arith_ints(op: Arith, dtype: DType, a: &mut [i64], b: &[i64]) {
    for (a, &b) in a.iter_mut().zip(b) {
        *a = arith_int(op, dtype, *a, b);
    }
}

pub(crate) fn arith_int(op: Arith, dtype: DType, a: i64, b: i64) -> i64 {
    match op {
        Arith::Mul => wrap(dtype, a.wrapping_mul(b)),
        Arith::Add => wrap(dtype, a.wrapping_add(b)),
        Arith::Max => {
            if order(dtype, a) < order(dtype, b) {
                b
            } else {
                a
            }
        }
        Arith::Min => {
            if order(dtype, b) < order(dtype, a) {
                b
            } else {
                a
            }
        }
    }
}

pub(crate) fn compare<T: PartialOrd>(op: Compare, a: T, b: T) -> bool {
    match op {
        Compare::Lt => a < b,
        Compare::Eq => a == b,
    }
}

/// A transcendental function in `f64`. `libm` is the same code on every platform.
pub(crate) fn transcendental(kind: Exp) -> fn(f64) -> f64 {
    match kind {
        Exp::Exp => libm::exp,
        Exp::Ln => libm::log,
        Exp::Sqrt => f64::sqrt,
        Exp::Rsqrt => |x| 1.0 / x.sqrt(),
        Exp::Recip => f64::recip,
        Exp::Sin => libm::sin,
        Exp::Cos => libm::cos,
        Exp::Erf => libm::erf,
        Exp::Floor => f64::floor,
    }
}

/// Loads `out.len()` elements from element `at` of `bytes`, `step` elements apart.
pub(crate) fn load_floats(dtype: DType, bytes: &[u8], at: isize, step: isize, out: &mut [f64]) {
    match dtype {
        DType::F64 => strided(bytes, at, step, out, |x: f64| x),
        DType::F32 => strided(bytes, at, step, out, |x: f32| f64::from(x)),
        DType::F16 => strided(bytes, at, step, out, |x: u16| f16::from_bits(x).to_f64()),
        DType::BF16 => strided(bytes, at, step, out, |x: u16| bf16::from_bits(x).to_f64()),
        DType::F8E4M3 => strided(bytes, at, step, out, decode_e4m3),
        // The upper byte of an `f16`.
        DType::F8E5M2 => {
            strided(bytes, at, step, out, |x: u8| f16::from_bits(u16::from(x) << 8).to_f64());
        }
        _ => unreachable!("the facts say that the operand is of floats, not {dtype}"),
    }
}

/// Like [`load_floats`], for integers and `Bool`.
pub(crate) fn load_ints(dtype: DType, bytes: &[u8], at: isize, step: isize, out: &mut [i64]) {
    match dtype {
        DType::Bool => strided(bytes, at, step, out, |x: u8| i64::from(x != 0)),
        DType::U8 => strided(bytes, at, step, out, |x: u8| i64::from(x)),
        DType::I8 => strided(bytes, at, step, out, |x: i8| i64::from(x)),
        DType::U16 => strided(bytes, at, step, out, |x: u16| i64::from(x)),
        DType::I16 => strided(bytes, at, step, out, |x: i16| i64::from(x)),
        DType::U32 => strided(bytes, at, step, out, |x: u32| i64::from(x)),
        DType::I32 => strided(bytes, at, step, out, |x: i32| i64::from(x)),
        DType::U64 => strided(bytes, at, step, out, |x: u64| x as i64),
        DType::I64 => strided(bytes, at, step, out, |x: i64| x),
        _ => unreachable!("the facts say that the operand is of integers, not {dtype}"),
    }
}

fn strided<T: AnyBitPattern, O: Copy>(
    bytes: &[u8],
    at: isize,
    step: isize,
    out: &mut [O],
    value: impl Fn(T) -> O,
) {
    let size = size_of::<T>();
    let read = |from: &[u8]| value(bytemuck::pod_read_unaligned(from));
    let start = at as usize * size;
    match step {
        0 => out.fill(read(&bytes[start..start + size])),
        1 => {
            let run = &bytes[start..start + size * out.len()];
            run.chunks_exact(size).zip(out).for_each(|(from, o)| *o = read(from));
        }
        _ => {
            for (i, o) in out.iter_mut().enumerate() {
                let from = (at + i as isize * step) as usize * size;
                *o = read(&bytes[from..from + size]);
            }
        }
    }
}

/// Stores numbers of `dtype` from element `at` of `bytes`.
pub(crate) fn store_floats(dtype: DType, values: &[f64], at: usize, bytes: &mut [u8]) {
    match dtype {
        DType::F64 => store(bytes, at, values, |x: f64| x.to_le_bytes()),
        DType::F32 => store(bytes, at, values, |x| (x as f32).to_le_bytes()),
        DType::F16 => store(bytes, at, values, |x| f16::from_f64(x).to_le_bytes()),
        DType::BF16 => store(bytes, at, values, |x| bf16::from_f64(x).to_le_bytes()),
        DType::F8E4M3 => store(bytes, at, values, |x| [encode_e4m3(x)]),
        DType::F8E5M2 => store(bytes, at, values, |x| [(f16::from_f64(x).to_bits() >> 8) as u8]),
        _ => unreachable!("floats are not stored as {dtype}"),
    }
}

/// Like [`store_floats`], for integers and `Bool`.
pub(crate) fn store_ints(dtype: DType, values: &[i64], at: usize, bytes: &mut [u8]) {
    match dtype.layout().bytes {
        1 => store(bytes, at, values, |x| (x as u8).to_le_bytes()),
        2 => store(bytes, at, values, |x| (x as u16).to_le_bytes()),
        4 => store(bytes, at, values, |x| (x as u32).to_le_bytes()),
        _ => store(bytes, at, values, i64::to_le_bytes),
    }
}

fn store<T: Copy, const N: usize>(
    bytes: &mut [u8],
    at: usize,
    values: &[T],
    to_bytes: impl Fn(T) -> [u8; N],
) {
    let out = &mut bytes[at * N..(at + values.len()) * N];
    out.chunks_exact_mut(N).zip(values).for_each(|(o, &x)| o.copy_from_slice(&to_bytes(x)));
}

/// Sign, four bits of exponent with bias 7, three of mantissa; no infinities, and all ones is NaN.
fn decode_e4m3(bits: u8) -> f64 {
    let mantissa = f64::from(bits & 7);
    let magnitude = match (bits >> 3) & 15 {
        15 if bits & 7 == 7 => f64::NAN,
        0 => mantissa * power_of_two(-9),
        e => (8.0 + mantissa) * power_of_two(i32::from(e) - 10),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The bits of a number that the format holds exactly.
fn encode_e4m3(x: f64) -> u8 {
    let sign = u8::from(x.is_sign_negative()) << 7;
    let magnitude = x.abs();
    let bits = if magnitude.is_nan() {
        0x7f
    } else if magnitude < power_of_two(-6) {
        (magnitude * power_of_two(9)) as u8
    } else {
        let e = exponent(magnitude);
        let mantissa = (magnitude * power_of_two(3 - e)) as u8 - 8;
        (((e + 7) as u8) << 3) | mantissa
    };
    sign | bits
}
