//! Matrix products and what is spelled with them.

use cyb_ir::{Attrs, ValueId};
use cyb_jets::LINEAR;
use cyb_tensor::DType;

use super::Rows;
use crate::context::{Context, Made, Outputs};
use crate::error::bad;
use crate::value::X;

pub(super) static ROWS: Rows = &[("MatMul", matmul), ("Gemm", gemm)];

/// A product as NumPy's `matmul`: of `f32` where the type is narrower or of integers exact.
pub(super) fn product(c: &mut Context<'_>, a: ValueId, b: ValueId) -> Made {
    let (da, db) = (c.dims(a)?, c.dims(b)?);
    let (Some(&inner), true) = (da.last(), !db.is_empty()) else {
        return bad("a product needs an axis on both sides");
    };
    let left = if da.len() == 1 { c.reshape(a, &[1, inner])? } else { a };
    let right = if db.len() == 1 { c.reshape(b, &[db[0], 1])? } else { b };
    let (dl, dr) = (c.dims(left)?, c.dims(right)?);
    let [.., k, _] = dr[..] else { return bad("a product needs an axis on both sides") };
    if dl[dl.len() - 1] != k {
        return bad(format!("{da:?} and {db:?} have different inner sizes"));
    }
    let known = c.b.graph().tensor(right).is_some();
    match (known, dr.len()) {
        (true, 3..) => c.missed(LINEAR.name, "its weight has more than two axes"),
        (false, 2) => c.missed(LINEAR.name, "its right side is computed in each run"),
        _ => {}
    }
    let mut y = if known && dr.len() == 2 && c.dtype(left) == DType::F32 {
        c.b.jet(&LINEAR, Attrs::new().with("turned", true), &[left, right])?
    } else {
        let right = c.cast(right, c.dtype(left))?;
        c.matmul(left, right)?
    };
    let mut dims = c.dims(y)?;
    if da.len() == 1 || db.len() == 1 {
        if db.len() == 1 {
            dims.pop();
        }
        if da.len() == 1 {
            dims.remove(dims.len() - if db.len() == 1 { 1 } else { 2 });
        }
        y = c.reshape(y, &dims)?;
    }
    Ok(y)
}

/// A weight as products take it: floats of 16 bits stay as they are where the other side is made
/// wide.
fn weight(c: &mut Context<'_>, w: X, other: ValueId) -> Made {
    let half = matches!(c.dtype(w.id), DType::F16 | DType::BF16);
    let known = c.b.graph().tensor(w.id).is_some();
    if half && known && c.rank(w.id) == 2 && c.dtype(other) == DType::F32 {
        return Ok(w.id);
    }
    c.wide(w.id)
}

fn matmul(c: &mut Context<'_>) -> Outputs {
    if let Some(y) = super::integer::matmul_between(c, true)? {
        return c.plain(y);
    }
    let (a, b) = (c.x(0)?, c.x(1)?);
    let wa = c.wide(a.id)?;
    let wb = weight(c, b, wa)?;
    let y = match super::fused::attention(c, wa, wb)? {
        Some(y) => y,
        None => product(c, wa, wb)?,
    };
    let y = c.cast(y, c.dtype(a.id))?;
    c.one(y, a.elem)
}

pub(super) fn gemm(c: &mut Context<'_>) -> Outputs {
    let (a, b) = (c.x(0)?, c.x(1)?);
    let (alpha, beta) = (c.float("alpha", 1.0)?, c.float("beta", 1.0)?);
    let (turn_a, turn_b) = (c.flag("transA", false)?, c.flag("transB", false)?);
    if alpha == 1.0
        && beta == 1.0
        && !turn_a
        && let Some(mut y) = super::integer::matmul_between(c, !turn_b)?
    {
        if let Some(bias) = c.opt(2)? {
            y = c.add(y, bias.id)?;
        }
        return c.plain(y);
    }
    let mut left = c.wide(a.id)?;
    let right = weight(c, b, left)?;
    if c.rank(left) != 2 || c.rank(right) != 2 {
        return bad("A and B must be matrices");
    }
    if turn_a {
        left = c.b.permute(left, &[1, 0])?;
    }
    let bias = match c.opt(2)? {
        Some(bias) => {
            let wide = c.wide(bias.id)?;
            Some(if beta == 1.0 || !c.is_float(wide) { wide } else { c.b.scale(wide, beta)? })
        }
        None => None,
    };
    let f32_weight = c.dtype(left) == DType::F32 && c.b.graph().tensor(right).is_some();
    let mut y;
    if f32_weight {
        let n = c.dims(right)?[if turn_b { 0 } else { 1 }];
        let attrs = if turn_b { Attrs::new() } else { Attrs::new().with("turned", true) };
        match bias {
            Some(bias) if alpha == 1.0 && c.dims(bias)? == [n] => {
                y = c.b.jet(&LINEAR, attrs, &[left, right, bias])?;
                let y = c.cast(y, c.dtype(a.id))?;
                return c.one(y, a.elem);
            }
            _ => y = c.b.jet(&LINEAR, attrs, &[left, right])?,
        }
    } else {
        let right = if turn_b { c.b.permute(right, &[1, 0])? } else { right };
        y = c.matmul(left, right)?;
    }
    if alpha != 1.0 {
        y = c.b.scale(y, alpha)?;
    }
    if let Some(bias) = bias {
        y = c.b.add(y, bias)?;
    }
    let y = c.cast(y, c.dtype(a.id))?;
    c.one(y, a.elem)
}
