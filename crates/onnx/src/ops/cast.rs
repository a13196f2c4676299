//! Casts, to types that have no dtype of their own too.

use cyb_formats::onnx::{Attribute, Elem};
use cyb_ir::{Cmp, Reduce, ValueId};
use cyb_tensor::{Class, DType, Tensor};

use super::Rows;
use crate::context::{Context, Made, Outputs};
use crate::error::{OpError, bad};
use crate::value::{Val, X};

pub(super) static ROWS: Rows = &[
    ("Cast", |c| {
        let Some(to) = target(c)? else { return bad("attribute to is missing") };
        cast_to(c, to)
    }),
    ("CastLike", |c| {
        let to = match c.inputs.get(1) {
            Some(Val::Known { elem, .. } | Val::Value(X { elem, .. })) => *elem,
            Some(Val::Codes(_)) => Elem::F32,
            _ => return bad("input 1 must be a tensor of numbers"),
        };
        cast_to(c, to)
    }),
    ("BitCast", |c| {
        let Some(to) = target(c)? else { return bad("attribute to is missing") };
        let Some(dtype) = to.storage().filter(|_| to.is_plain()) else {
            return bad(format!("{to} has no bits here"));
        };
        c.host(&[0], move |t| {
            let bytes = t[0].bytes().clone();
            let made = Tensor::new(dtype, t[0].shape().to_vec(), bytes);
            Ok(vec![(to, made.map_err(|e| e.to_string())?)])
        })
    }),
];

fn target(c: &Context<'_>) -> Result<Option<Elem>, OpError> {
    match c.attr("to")? {
        None => Ok(None),
        Some(Attribute::Int(id)) => match Elem::from_id(*id) {
            Some(elem) => Ok(Some(elem)),
            None => bad(format!("type {id} is unknown")),
        },
        // Opset 5 and below name the type.
        Some(Attribute::Str(name)) => {
            let name = String::from_utf8_lossy(name).to_lowercase();
            Ok(Elem::ALL.iter().copied().find(|e| e.name() == name))
        }
        Some(_) => bad("attribute to must be a type"),
    }
}

fn cast_to(c: &mut Context<'_>, to: Elem) -> Outputs {
    let saturate = c.flag("saturate", true)?;
    let rounding = c.text("round_mode", "up")?;
    let x = c.x(0)?;
    // What an operator narrowed for its type was not rounded yet.
    let x = if to == Elem::F32 { c.wide(x.id)? } else { x.id };
    let y = convert(c, x, to, saturate, &rounding)?;
    c.placed.cast.insert(y);
    c.one(y, to)
}

/// Numbers as those of another type.
pub(super) fn convert(
    c: &mut Context<'_>,
    x: ValueId,
    to: Elem,
    saturate: bool,
    rounding: &str,
) -> Made {
    let Some(dtype) = to.storage() else {
        return bad(format!("{to} is not computed with; export the model with real numbers"));
    };
    match to {
        Elem::I4 | Elem::U4 | Elem::I2 | Elem::U2 => narrow_int(c, x, to, dtype),
        Elem::F8E8M0 => power_of_two(c, x, rounding),
        _ if to.narrow_float().is_some() => narrow_float(c, x, to, saturate),
        Elem::F8E4M3 | Elem::F8E5M2 => {
            let x = c.cast(x, DType::F32)?;
            let most = if to == Elem::F8E4M3 { 448.0 } else { 57344.0 };
            if !saturate {
                return c.cast(x, dtype);
            }
            let (low, high) = (c.scalar(x, -most)?, c.scalar(x, most)?);
            let x = c.b.max(x, low)?;
            let x = c.b.min(x, high)?;
            c.cast(x, dtype)
        }
        _ => c.cast(x, dtype),
    }
}

/// The low bits of whole numbers.
fn narrow_int(c: &mut Context<'_>, x: ValueId, to: Elem, dtype: DType) -> Made {
    let Some((low, high)) = to.int_range() else { return bad("is no integer type") };
    let x = if c.dtype(x).class() == Class::Float { c.cast(x, DType::I32)? } else { x };
    let x = c.cast(x, DType::I64)?;
    // From the bottom of the range, modulo its size.
    let size = (high - low + 1) as f64;
    let up = c.b.offset(x, -(low as f64))?;
    let float = c.cast(up, DType::F64)?;
    let turns = c.b.scale(float, 1.0 / size)?;
    let turns = c.floor(turns)?;
    let turns = c.cast(turns, DType::I64)?;
    let whole = c.b.scale(turns, size)?;
    let rest = c.sub(up, whole)?;
    let y = c.b.offset(rest, low as f64)?;
    c.cast(y, dtype)
}

/// Numbers of a narrow float type that are not negative, ascending by their bits.
fn magnitudes(to: Elem) -> Vec<f64> {
    let Some(format) = to.narrow_float() else { return Vec::new() };
    let codes = 1u32 << (format.exponent_bits + format.mantissa_bits);
    (0..codes).filter_map(|code| to.decode_narrow(code as u8)).map(f64::from).collect()
}

/// To the nearest number of the type, halves to the even code: the number of midpoints below.
fn narrow_float(c: &mut Context<'_>, x: ValueId, to: Elem, saturate: bool) -> Made {
    let table = magnitudes(to);
    let Some(format) = to.narrow_float() else { return bad("is no narrow float") };
    let wide = c.cast(x, DType::F64)?;
    let size = c.abs(wide)?;
    let n = table.len();
    let step = table[n - 1] - table[n - 2];
    let mut middles: Vec<f64> = table.windows(2).map(|w| (w[0] + w[1]) / 2.0).collect();
    let can_overflow = format.fnuz && !saturate;
    if can_overflow {
        middles.push(table[n - 1] + step / 2.0);
    }
    let index = count_below(c, size, &middles, |i| i % 2 == 1)?;
    let mut values = table;
    if can_overflow {
        values.push(f64::NAN);
    }
    let values_id = c.numbers(DType::F64, vec![values.len()], &values)?;
    let magnitude = c.b.gather(values_id, 0, index)?;
    let zero = c.scalar(wide, 0.0)?;
    let negative = c.b.lt(wide, zero)?;
    let minus = c.neg(magnitude)?;
    // Zero keeps its sign where the type has one.
    let zero_magnitude = c.b.cmp(Cmp::Eq, magnitude, zero)?;
    let signed = c.b.select(negative, minus, magnitude)?;
    let zeros = if format.fnuz { c.abs(signed)? } else { signed };
    let y = c.b.select(zero_magnitude, zeros, signed)?;
    let same = c.b.cmp(Cmp::Eq, wide, wide)?;
    // A type without NaN has its negative zero for it.
    let nan = c.scalar(wide, if format.fnuz { f64::NAN } else { -0.0 })?;
    let y = c.b.select(same, y, nan)?;
    c.cast(y, DType::F32)
}

/// How many thresholds are below each number; at a tie those are below for which `ties_up`.
fn count_below(
    c: &mut Context<'_>,
    x: ValueId,
    thresholds: &[f64],
    ties_up: impl Fn(usize) -> bool,
) -> Made {
    let axis = c.rank(x);
    let x = c.b.unsqueeze(x, axis)?;
    let up: Vec<f64> = (0..thresholds.len()).map(|i| f64::from(u8::from(ties_up(i)))).collect();
    let all = c.numbers(DType::F64, vec![thresholds.len()], thresholds)?;
    let up = c.numbers(DType::Bool, vec![thresholds.len()], &up)?;
    let below = c.b.lt(all, x)?;
    let tie = c.b.cmp(Cmp::Eq, all, x)?;
    let counted = c.b.mul(tie, up)?;
    let below = c.b.add(below, counted)?;
    let below = c.cast(below, DType::I64)?;
    Ok(c.b.reduce(Reduce::Sum, below, &[axis])?)
}

/// Powers of two from 2^-127 to 2^127.
fn power_of_two(c: &mut Context<'_>, x: ValueId, rounding: &str) -> Made {
    let wide = c.cast(x, DType::F64)?;
    let size = c.abs(wide)?;
    let powers: Vec<f64> = (-127..=127).map(|e| 2f64.powi(e)).collect();
    let index = match rounding {
        "down" => count_below(c, size, &powers[1..], |_| true)?,
        "nearest" => {
            let middles: Vec<f64> = powers.windows(2).map(|w| (w[0] + w[1]) / 2.0).collect();
            count_below(c, size, &middles, |_| true)?
        }
        "up" => count_below(c, size, &powers[..powers.len() - 1], |_| false)?,
        other => return bad(format!("round_mode {other:?} is unknown")),
    };
    let table = c.numbers(DType::F64, vec![powers.len()], &powers)?;
    let y = c.b.gather(table, 0, index)?;
    let same = c.b.cmp(Cmp::Eq, wide, wide)?;
    let y = c.b.select(same, y, wide)?;
    c.cast(y, DType::F32)
}
