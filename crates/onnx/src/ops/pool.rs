//! Pooling.

use cyb_ir::{Reduce, Scatter, ValueId};
use cyb_jets::{AVERAGE_POOL, MAX_POOL};
use cyb_tensor::{Class, DType};

use super::Rows;
use super::conv::{Windows, windows};
use super::shape::sizes;
use crate::context::{Context, Outputs};
use crate::error::{OpError, bad};
use crate::value::{Val, X};

pub(super) static ROWS: Rows = &[
    ("MaxPool", max_pool),
    ("AveragePool", average_pool),
    ("LpPool", lp_pool),
    ("MaxUnpool", max_unpool),
];

#[derive(Clone, Debug)]
struct Pool {
    windows: Windows,
    counts: Vec<usize>,
    spatial: Vec<usize>,
}

impl Pool {
    fn of(c: &Context<'_>, x: ValueId) -> Result<Pool, OpError> {
        let dims = c.dims(x)?;
        let Some(kernel) = c.opt_int_list("kernel_shape")? else {
            return bad("attribute kernel_shape is missing");
        };
        if dims.len() < 3 {
            return bad(format!("an input of {dims:?} has nothing to pool"));
        }
        let spatial = dims[2..].to_vec();
        let windows = Windows::of(c, &spatial, sizes(&kernel)?)?;
        let ceil = c.flag("ceil_mode", false)?;
        let each = spatial.iter().enumerate().map(|(i, &n)| windows.count(i, n, ceil));
        let counts = each.collect::<Result<_, _>>()?;
        Ok(Pool { windows, counts, spatial })
    }

    /// Cells behind the padding that the last windows reach, for each axis.
    fn extra(&self) -> Vec<i64> {
        let w = &self.windows;
        let reach = |i: usize| {
            let covered = (self.counts[i] as i64 - 1) * w.strides[i] as i64 + w.span(i) as i64;
            (covered - self.spatial[i] as i64 - w.before[i] - w.after[i]).max(0)
        };
        (0..self.counts.len()).map(reach).collect()
    }

    /// With more padding behind each axis.
    fn padded(&self, extra: Vec<i64>) -> Pool {
        let mut pool = self.clone();
        pool.windows.after.iter_mut().zip(extra).for_each(|(after, n)| *after += n);
        pool
    }

    /// Attributes of a jet, for what it computes.
    fn jet_attrs(&self, c: &Context<'_>, x: ValueId) -> Option<cyb_ir::Attrs> {
        let attrs = self.windows.attrs()?.with("kernel", self.windows.kernel.as_slice());
        let known = matches!(c.dtype(x), DType::F32 | DType::U8 | DType::I8);
        (known && self.counts.len() <= 3).then_some(attrs)
    }

    /// The windows [N, C, o..., taps], and the output's shape.
    fn rows(
        &self,
        c: &mut Context<'_>,
        x: ValueId,
        value: f64,
    ) -> Result<(ValueId, Vec<usize>), OpError> {
        let seen = windows(c, x, &self.windows, &self.counts, value)?;
        let mut shape = c.dims(x)?;
        shape.truncate(2);
        shape.extend_from_slice(&self.counts);
        let mut rows = shape.clone();
        rows.push(self.windows.kernel.iter().product());
        Ok((c.reshape(seen, &rows)?, shape))
    }

    /// Row-major positions in the input of each tap of each window.
    fn positions(&self, column_major: bool) -> Vec<i64> {
        let w = &self.windows;
        let places: usize = self.counts.iter().product();
        let taps: usize = w.kernel.iter().product();
        let axes = self.spatial.len();
        let mut strides = vec![1i64; axes];
        if column_major {
            for i in 1..axes {
                strides[i] = strides[i - 1] * self.spatial[i - 1] as i64;
            }
        } else {
            for i in (0..axes.saturating_sub(1)).rev() {
                strides[i] = strides[i + 1] * self.spatial[i + 1] as i64;
            }
        }
        let mut out = Vec::with_capacity(places * taps);
        for place in 0..places {
            for tap in 0..taps {
                let (mut p, mut t, mut flat) = (place, tap, 0);
                for i in (0..axes).rev() {
                    let (o, k) = (p % self.counts[i], t % w.kernel[i]);
                    (p, t) = (p / self.counts[i], t / w.kernel[i]);
                    let at = (o * w.strides[i] + k * w.dilations[i]) as i64 - w.before[i];
                    flat += at * strides[i];
                }
                out.push(flat);
            }
        }
        out
    }
}

fn max_pool(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let pool = Pool::of(c, x.id)?;
    let lowest = match c.dtype(x.id).class() {
        Class::Float => f64::NEG_INFINITY,
        // A pad is rounded into the range of the dtype.
        Class::Int | Class::Bool | Class::Quantized => -1e30,
    };
    if !c.wanted(1)
        && let Some(attrs) = pool.padded(pool.extra()).jet_attrs(c, x.id)
    {
        let y = c.b.jet(&MAX_POOL, attrs, &[x.id])?;
        return c.one(y, x.elem);
    }
    let (rows, shape) = pool.rows(c, x.id, lowest)?;
    let last = shape.len();
    let y = c.b.reduce(Reduce::Max, rows, &[last])?;
    let mut outputs = vec![Val::Value(X { id: y, elem: x.elem })];
    if c.wanted(1) {
        let column_major = c.flag("storage_order", false)?;
        let taps: usize = pool.windows.kernel.iter().product();
        let places: usize = pool.counts.iter().product();
        let [n, channels] = [shape[0], shape[1]];
        let best = c.b.reduce(Reduce::Argmax, rows, &[last])?;
        let best = c.reshape(best, &[n * channels, places])?;
        let row = c.b.iota(places.into());
        let row = c.b.scale(row, taps as f64)?;
        let row = c.b.add(best, row)?;
        let table = pool.positions(column_major);
        let table = c.indices(vec![table.len()], &table)?;
        let place = c.b.gather(table, 0, row)?;
        let total: usize = pool.spatial.iter().product();
        let image = c.b.iota((n * channels).into());
        let image = c.b.scale(image, total as f64)?;
        let image = c.reshape(image, &[n * channels, 1])?;
        let place = c.b.add(place, image)?;
        let place = c.reshape(place, &shape)?;
        outputs.extend(c.plain(place)?);
    }
    Ok(outputs)
}

fn average_pool(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let pool = Pool::of(c, x.id)?;
    let count_padding = c.flag("count_include_pad", false)?;
    let wide = c.wide(x.id)?;
    if let Some(attrs) = pool.jet_attrs(c, wide) {
        let attrs = attrs.with("extra", pool.extra()).with("include_pad", count_padding);
        let y = c.b.jet(&AVERAGE_POOL, attrs, &[wide])?;
        let y = c.cast(y, c.dtype(x.id))?;
        return c.one(y, x.elem);
    }
    let (rows, shape) = pool.rows(c, wide, 0.0)?;
    let sum = c.b.reduce(Reduce::Sum, rows, &[shape.len()])?;
    // Taps of each window that count, as a product over the axes.
    let mut shares = vec![1.0f64];
    let w = &pool.windows;
    for i in 0..pool.counts.len() {
        let n = pool.spatial[i] as i64;
        let range = match count_padding {
            true => -w.before[i]..n + w.after[i],
            false => 0..n,
        };
        let inside: Vec<f64> = (0..pool.counts[i])
            .map(|o| {
                let at = |k: usize| (o * w.strides[i] + k * w.dilations[i]) as i64 - w.before[i];
                (0..w.kernel[i]).filter(|&k| range.contains(&at(k))).count() as f64
            })
            .collect();
        shares = shares.iter().flat_map(|s| inside.iter().map(move |n| s * n)).collect();
    }
    let dtype = c.dtype(wide);
    let y = if shares.iter().all(|s| *s == shares[0]) {
        c.b.scale(sum, 1.0 / shares[0])?
    } else {
        let factors: Vec<f64> = shares.iter().map(|s| 1.0 / s).collect();
        let factors = c.numbers(dtype, pool.counts.clone(), &factors)?;
        c.b.mul(sum, factors)?
    };
    let y = c.cast(y, c.dtype(x.id))?;
    c.one(y, x.elem)
}

fn lp_pool(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let p = c.float("p", 2.0)?;
    let pool = Pool::of(c, x.id)?;
    let wide = c.wide(x.id)?;
    let (rows, shape) = pool.rows(c, wide, 0.0)?;
    let y = super::reduce::norm(c, rows, &[shape.len()], p)?;
    let y = c.reshape(y, &shape)?;
    let y = c.cast(y, c.dtype(x.id))?;
    c.one(y, x.elem)
}

fn max_unpool(c: &mut Context<'_>) -> Outputs {
    let (x, index) = (c.x(0)?, c.x(1)?);
    let dims = c.dims(x.id)?;
    let axes = dims.len().saturating_sub(2);
    let kernel = sizes(&c.opt_int_list("kernel_shape")?.unwrap_or_default())?;
    let strides = match c.opt_int_list("strides")? {
        Some(strides) => sizes(&strides)?,
        None => vec![1; axes],
    };
    let pads = c.opt_int_list("pads")?.unwrap_or_else(|| vec![0; 2 * axes]);
    if kernel.len() != axes || strides.len() != axes || pads.len() != 2 * axes {
        return bad("kernel_shape, strides and pads do not fit the axes");
    }
    let mut pooled = dims[..2].to_vec();
    for i in 0..axes {
        let n = (dims[i + 2] as i64 - 1) * strides[i] as i64 - pads[i] - pads[axes + i]
            + kernel[i] as i64;
        pooled.push(sizes(&[n])?[0]);
    }
    let shape = if c.has(2) { sizes(&c.ints(2)?)? } else { pooled.clone() };
    let (n, total): (usize, usize) = (dims.iter().product(), shape.iter().product());
    let mut place = c.cast(index.id, DType::I64)?;
    if shape != pooled && shape.len() == pooled.len() {
        // Indices are those of the shape without an explicit one: one axis after another.
        let mut flat = None;
        let mut rest = place;
        let (mut from, mut to) = (1usize, 1usize);
        for i in (0..shape.len()).rev() {
            let size = c.scalar(rest, pooled[i] as f64)?;
            let (q, r) = c.int_div(rest, size)?;
            let part = c.b.scale(r, to as f64)?;
            flat = Some(match flat {
                Some(sum) => c.b.add(sum, part)?,
                None => part,
            });
            rest = q;
            from *= pooled[i];
            to *= shape[i];
        }
        let _ = from;
        place = flat.unwrap_or(place);
    }
    let zero = c.scalar(x.id, 0.0)?;
    let base = c.broadcast(zero, &[total])?;
    let (place, values) = (c.reshape(place, &[n])?, c.reshape(x.id, &[n])?);
    let y = c.b.scatter(base, 0, Scatter::Set, place, values)?;
    let y = c.reshape(y, &shape)?;
    c.one(y, x.elem)
}
