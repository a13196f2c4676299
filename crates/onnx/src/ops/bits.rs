//! Operators on the bits of integers.

use cyb_ir::{Cmp, ValueId};
use cyb_tensor::DType;

use super::Rows;
use super::elementwise::{binary, unary};
use crate::context::{Context, Made, Outputs};
use crate::error::bad;

pub(super) static ROWS: Rows = &[
    ("BitwiseAnd", |c| binary(c, |c, a, b| bitwise(c, a, b, |c, a, b| Ok(c.b.mul(a, b)?)))),
    ("BitwiseOr", |c| binary(c, |c, a, b| bitwise(c, a, b, |c, a, b| Ok(c.b.max(a, b)?)))),
    ("BitwiseXor", |c| {
        binary(c, |c, a, b| {
            bitwise(c, a, b, |c, a, b| {
                let d = c.sub(a, b)?;
                c.abs(d)
            })
        })
    }),
    ("BitwiseNot", |c| {
        unary(c, |c, x| {
            // -x - 1, also modulo 2^bits.
            let minus = c.neg(x)?;
            let one = c.scalar(x, 1.0)?;
            c.sub(minus, one)
        })
    }),
    ("BitShift", bit_shift),
];

/// Bits of integers combined one by one: `combine` sees them as `f64` of 0 and 1.
fn bitwise(
    c: &mut Context<'_>,
    a: ValueId,
    b: ValueId,
    combine: impl Fn(&mut Context<'_>, ValueId, ValueId) -> Made,
) -> Made {
    let dtype = c.dtype(a);
    let mut halves = Vec::new();
    let wide = dtype.layout().bytes == 8;
    for half in 0..if wide { 2 } else { 1 } {
        let (a, b) = (half_bits(c, a, half)?, half_bits(c, b, half)?);
        let (a, b) = (bits(c, a)?, bits(c, b)?);
        let both = combine(c, a, b)?;
        let powers: Vec<f64> = (0..32).map(|i| 2f64.powi(i)).collect();
        let powers = c.numbers(DType::F64, vec![32], &powers)?;
        let weighted = c.b.mul(both, powers)?;
        let axis = c.rank(weighted) - 1;
        let sum = c.b.sum(weighted, &[axis])?;
        let word = c.cast(sum, DType::U32)?;
        halves.push(c.cast(word, dtype)?);
    }
    match halves.as_slice() {
        [low] => Ok(*low),
        [low, high] => {
            let step = c.scalar(a, 65536.0)?;
            let high = c.b.mul(*high, step)?;
            let high = c.b.mul(high, step)?;
            Ok(c.b.add(*low, high)?)
        }
        _ => bad("has no bits"),
    }
}

/// 32 bits of an integer as a whole `f64`.
fn half_bits(c: &mut Context<'_>, x: ValueId, half: usize) -> Made {
    let low = c.cast(x, DType::U32)?;
    if half == 0 {
        return c.cast(low, DType::F64);
    }
    let (x, low) = (c.cast(x, DType::U64)?, c.cast(low, DType::U64)?);
    let minus = c.neg(low)?;
    let high = c.b.add(x, minus)?;
    let high = c.cast(high, DType::F64)?;
    Ok(c.b.scale(high, 2f64.powi(-32))?)
}

/// Whole numbers below 2^32 as 32 bits along a new last axis, the lowest first.
fn bits(c: &mut Context<'_>, x: ValueId) -> Made {
    let axis = c.rank(x);
    let x = c.b.unsqueeze(x, axis)?;
    let down: Vec<f64> = (0..32).map(|i| 2f64.powi(-i)).collect();
    let down = c.numbers(DType::F64, vec![32], &down)?;
    let shifted = c.b.mul(x, down)?;
    let shifted = c.floor(shifted)?;
    let half = c.b.scale(shifted, 0.5)?;
    let half = c.floor(half)?;
    let even = c.b.scale(half, 2.0)?;
    c.sub(shifted, even)
}

fn bit_shift(c: &mut Context<'_>) -> Outputs {
    let left = match c.text("direction", "")?.as_str() {
        "LEFT" => true,
        "RIGHT" => false,
        other => return bad(format!("attribute direction must be LEFT or RIGHT, not {other:?}")),
    };
    let (x, by) = (c.x(0)?, c.x(1)?);
    let dtype = c.dtype(x.id);
    let width = dtype.layout().bytes * 8;
    // 2^n for every n; 0 for all that shift everything out.
    let mut powers: Vec<u64> = (0..width).map(|i| 1u64 << i).collect();
    powers.push(0);
    let table = cyb_tensor::Tensor::from_elems(DType::U64, vec![width + 1], &powers)?;
    let table = c.constant(&table);
    let most = c.b.scalar(c.dtype(by.id), width as f64)?;
    let by = c.b.min(by.id, most)?;
    let factor = c.b.gather(table, 0, by)?;
    let factor = c.cast(factor, dtype)?;
    let y = if left {
        c.mul(x.id, factor)?
    } else {
        let quotient = c.int_div(x.id, factor)?.0;
        let zero = c.scalar(x.id, 0.0)?;
        let none = c.b.cmp(Cmp::Eq, factor, zero)?;
        c.b.select(none, zero, quotient)?
    };
    c.one(y, x.elem)
}
