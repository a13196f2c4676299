//! Sums of products over named axes.

use cyb_ir::{Reduce, ValueId};

use super::Rows;
use crate::context::{Context, Made, Outputs};
use crate::error::{OpError, bad};

pub(super) static ROWS: Rows = &[("Einsum", einsum)];

/// Axes that `...` stands for are named by numbers from here on, the last one first.
const DOTS: u32 = 0x11_0000;

fn names(term: &str, rank: Option<usize>) -> Result<Vec<u32>, OpError> {
    let mut out = Vec::new();
    let letters = term.replace("...", "").chars().count();
    let mut rest = term;
    while let Some(first) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            let n = rank.unwrap_or(letters).checked_sub(letters);
            let Some(n) = n else { return bad(format!("{term:?} names too many axes")) };
            out.extend((0..n as u32).rev().map(|i| DOTS + i));
            rest = after;
        } else if first.is_ascii_alphabetic() {
            out.push(u32::from(first));
            rest = &rest[1..];
        } else {
            return bad(format!("{term:?} is no list of axes"));
        }
    }
    Ok(out)
}

fn einsum(c: &mut Context<'_>) -> Outputs {
    let equation = c.text("equation", "")?.replace(' ', "");
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left.to_owned(), Some(right.to_owned())),
        None => (equation.clone(), None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != c.inputs.len() {
        return bad(format!("{equation:?} is not for {} inputs", c.inputs.len()));
    }
    let first = c.x(0)?;
    let mut operands: Vec<(ValueId, Vec<u32>)> = Vec::new();
    let mut dots = 0;
    for (i, term) in terms.iter().enumerate() {
        let x = c.x(i)?;
        let wide = c.wide(x.id)?;
        let axes = names(term, Some(c.rank(wide)))?;
        if axes.len() != c.rank(wide) {
            return bad(format!("{term:?} does not fit a tensor of {} axes", c.rank(wide)));
        }
        dots = dots.max(axes.iter().filter(|&&a| a >= DOTS).count());
        operands.push(diagonal(c, wide, axes)?);
    }
    let out = match right {
        Some(right) => {
            let letters = right.replace("...", "").chars().count();
            names(&right, Some(letters + dots))?
        }
        None => {
            // Axes of dots, then letters that occur once, in order.
            let all: Vec<u32> =
                left.chars().filter(char::is_ascii_alphabetic).map(u32::from).collect();
            let mut once: Vec<u32> = all
                .iter()
                .copied()
                .filter(|a| all.iter().filter(|b| *b == a).count() == 1)
                .collect();
            once.sort_unstable();
            (0..dots as u32).rev().map(|i| DOTS + i).chain(once).collect()
        }
    };
    let (mut y, mut axes) = operands.remove(0);
    while !operands.is_empty() {
        let (next, next_axes) = operands.remove(0);
        let needed: Vec<u32> =
            out.iter().chain(operands.iter().flat_map(|(_, a)| a)).copied().collect();
        (y, axes) = contract(c, (y, axes), (next, next_axes), &needed)?;
    }
    // Axes that the output does not name are summed.
    let gone: Vec<usize> = (0..axes.len()).filter(|&i| !out.contains(&axes[i])).collect();
    if !gone.is_empty() {
        y = c.b.reduce(Reduce::Sum, y, &gone)?;
        axes.retain(|a| out.contains(a));
    }
    let perm: Option<Vec<usize>> = out.iter().map(|a| axes.iter().position(|b| a == b)).collect();
    let Some(perm) = perm.filter(|p| p.len() == axes.len()) else {
        return bad(format!("{equation:?} names an axis that no input has"));
    };
    let y = c.b.permute(y, &perm)?;
    let y = c.cast(y, c.dtype(first.id))?;
    c.one(y, first.elem)
}

/// Axes named twice become their diagonal.
fn diagonal(
    c: &mut Context<'_>,
    x: ValueId,
    mut axes: Vec<u32>,
) -> Result<(ValueId, Vec<u32>), OpError> {
    let mut y = x;
    while let Some((i, j)) = (0..axes.len())
        .flat_map(|i| (i + 1..axes.len()).map(move |j| (i, j)))
        .find(|&(i, j)| axes[i] == axes[j])
    {
        let mut perm: Vec<usize> = (0..axes.len()).filter(|&a| a != i && a != j).collect();
        let kept: Vec<u32> = perm.iter().map(|&a| axes[a]).collect();
        perm.extend([i, j]);
        y = c.b.permute(y, &perm)?;
        let mut dims = c.dims(y)?;
        let (Some(n), Some(m)) = (dims.pop(), dims.pop()) else { return bad("has no axes") };
        if n != m {
            return bad(format!("a diagonal of {m} by {n} does not exist"));
        }
        let last = dims.len();
        dims.push(n * n);
        y = c.reshape(y, &dims)?;
        y = c.b.strided(y, last, 0, n, n as i64 + 1)?;
        let name = axes[i];
        axes = kept;
        axes.push(name);
    }
    Ok((y, axes))
}

/// The product of two operands, without the axes that only they have: a batched matrix product.
fn contract(
    c: &mut Context<'_>,
    (a, a_axes): (ValueId, Vec<u32>),
    (b, b_axes): (ValueId, Vec<u32>),
    needed: &[u32],
) -> Result<(ValueId, Vec<u32>), OpError> {
    let shared: Vec<u32> = a_axes.iter().copied().filter(|x| b_axes.contains(x)).collect();
    let (kept, summed): (Vec<u32>, Vec<u32>) = shared.iter().partition(|x| needed.contains(x));
    let only = |axes: &[u32]| -> Vec<u32> {
        axes.iter().copied().filter(|x| !shared.contains(x)).collect()
    };
    let (rows, columns) = (only(&a_axes), only(&b_axes));
    let (ad, bd) = (c.dims(a)?, c.dims(b)?);
    let size = |axis: &u32| {
        let of = |axes: &[u32], dims: &[usize]| {
            axes.iter().position(|x| x == axis).map_or(1, |i| dims[i])
        };
        of(&a_axes, &ad).max(of(&b_axes, &bd))
    };
    let sizes = |axes: &[u32]| axes.iter().map(size).collect::<Vec<usize>>();
    let ordered = |c: &mut Context<'_>, x: ValueId, from: &[u32], to: &[u32]| -> Made {
        let perm: Vec<usize> = to.iter().filter_map(|a| from.iter().position(|b| a == b)).collect();
        let y = c.b.permute(x, &perm)?;
        // Axes of length 1 stretch to the other operand's.
        let dims: Vec<usize> = to.iter().map(size).collect();
        c.broadcast(y, &dims)
    };
    let total = |axes: &[u32]| sizes(axes).iter().product::<usize>();
    let left: Vec<u32> = kept.iter().chain(&rows).chain(&summed).copied().collect();
    let right: Vec<u32> = kept.iter().chain(&summed).chain(&columns).copied().collect();
    let a = ordered(c, a, &a_axes, &left)?;
    let b = ordered(c, b, &b_axes, &right)?;
    let a = c.reshape(a, &[total(&kept), total(&rows), total(&summed)])?;
    let b = c.reshape(b, &[total(&kept), total(&summed), total(&columns)])?;
    let y = c.matmul(a, b)?;
    let axes: Vec<u32> = kept.iter().chain(&rows).chain(&columns).copied().collect();
    let y = c.reshape(y, &sizes(&axes))?;
    Ok((y, axes))
}
