//! Operators whose results have as many elements as their values say, and those that sort: they
//! run between two graphs.

use std::cmp::Ordering;

use cyb_formats::onnx::Elem;
use cyb_tensor::{AlignedBytes, Bytes, DType, Tensor};

use super::Rows;
use crate::context::{Context, Outputs};
use crate::error::bad;
use crate::value::{to_floats, to_ints};

pub(super) static ROWS: Rows = &[
    ("NonZero", |c| c.host(&[0], |t| non_zero(&t[0]))),
    ("Compress", compress),
    ("Unique", unique),
    ("TopK", top_k),
    ("NonMaxSuppression", suppress),
    ("Det", det),
];

type Hosted = Result<Vec<(Elem, Tensor)>, String>;

fn text(e: impl std::fmt::Debug) -> String {
    format!("{e:?}")
}

fn floats(t: &Tensor) -> Result<Vec<f64>, String> {
    to_floats(t).map_err(text)
}

fn ints(shape: Vec<usize>, values: &[i64]) -> Result<(Elem, Tensor), String> {
    let tensor = Tensor::from_elems(DType::I64, shape, values).map_err(|e| e.to_string())?;
    Ok((Elem::I64, tensor))
}

/// The elements at these row-major places of `t`.
fn pick(t: &Tensor, shape: Vec<usize>, places: &[usize]) -> Result<(Elem, Tensor), String> {
    let size = t.dtype().layout().bytes;
    let from = t.bytes().as_slice();
    let mut bytes = AlignedBytes::zeroed(places.len() * size);
    for (slot, &place) in bytes.as_mut_slice().chunks_exact_mut(size).zip(places) {
        let Some(element) = from.get(place * size..(place + 1) * size) else {
            return Err(format!("index {place} is outside {} elements", t.elems()));
        };
        slot.copy_from_slice(element);
    }
    let tensor = Tensor::new(t.dtype(), shape, Bytes::owned(bytes)).map_err(|e| e.to_string())?;
    Ok((Elem::of(t.dtype()).unwrap_or(Elem::F32), tensor))
}

fn non_zero(t: &Tensor) -> Hosted {
    let values = floats(t)?;
    let hits: Vec<usize> = (0..values.len()).filter(|&i| values[i] != 0.0).collect();
    let rank = t.shape().len();
    let mut out = Vec::with_capacity(rank * hits.len());
    for axis in 0..rank {
        let inner: usize = t.shape()[axis + 1..].iter().product();
        out.extend(hits.iter().map(|&i| (i / inner % t.shape()[axis]) as i64));
    }
    Ok(vec![ints(vec![rank, hits.len()], &out)?])
}

/// Row-major places of the slices `kept` of `axis`.
fn slices(shape: &[usize], axis: usize, kept: &[usize]) -> Vec<usize> {
    let inner: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    let mut places = Vec::with_capacity(outer * kept.len() * inner);
    for o in 0..outer {
        for &k in kept {
            let start = (o * shape[axis] + k) * inner;
            places.extend(start..start + inner);
        }
    }
    places
}

fn compress(c: &mut Context<'_>) -> Outputs {
    let axis = c.opt_int("axis")?;
    c.host(&[0, 1], move |t| {
        let keep = to_ints(&t[1]).map_err(text)?;
        let mut shape = t[0].shape().to_vec();
        let axis = match axis {
            None => {
                shape = vec![t[0].elems()];
                0
            }
            Some(axis) => {
                let axis = if axis < 0 { axis + shape.len() as i64 } else { axis };
                match usize::try_from(axis) {
                    Ok(axis) if axis < shape.len() => axis,
                    _ => return Err(format!("axis {axis} is outside {shape:?}")),
                }
            }
        };
        let kept: Vec<usize> = (0..keep.len().min(shape[axis])).filter(|&i| keep[i] != 0).collect();
        let places = slices(&shape, axis, &kept);
        shape[axis] = kept.len();
        Ok(vec![pick(&t[0], shape, &places)?])
    })
}

/// Ascending, NaN last.
fn order(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

fn unique(c: &mut Context<'_>) -> Outputs {
    let axis = c.opt_int("axis")?;
    let sorted = c.flag("sorted", true)?;
    c.host(&[0], move |t| {
        let t = &t[0];
        let values = floats(t)?;
        let mut shape = t.shape().to_vec();
        let axis = match axis {
            None => {
                shape = vec![t.elems()];
                0
            }
            Some(axis) => {
                let axis = if axis < 0 { axis + shape.len() as i64 } else { axis };
                match usize::try_from(axis) {
                    Ok(axis) if axis < shape.len() => axis,
                    _ => return Err(format!("axis {axis} is outside {shape:?}")),
                }
            }
        };
        let n = shape[axis];
        let rows: Vec<Vec<f64>> = (0..n)
            .map(|i| slices(&shape, axis, &[i]).into_iter().map(|p| values[p]).collect())
            .collect();
        let compare = |a: &[f64], b: &[f64]| {
            let different = a.iter().zip(b).map(|(x, y)| order(*x, *y)).find(|o| o.is_ne());
            different.unwrap_or(Ordering::Equal)
        };
        let mut by_value: Vec<usize> = (0..n).collect();
        by_value.sort_by(|&i, &j| compare(&rows[i], &rows[j]).then(i.cmp(&j)));
        // Groups of equal rows, each by its first index.
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for i in by_value {
            match groups.last_mut() {
                Some(group) if compare(&rows[group[0]], &rows[i]).is_eq() => group.push(i),
                _ => groups.push(vec![i]),
            }
        }
        if !sorted {
            groups.sort_by_key(|group| group[0]);
        }
        let first: Vec<usize> = groups.iter().map(|g| g[0]).collect();
        let mut inverse = vec![0i64; n];
        for (number, group) in groups.iter().enumerate() {
            group.iter().for_each(|&i| inverse[i] = number as i64);
        }
        let counts: Vec<i64> = groups.iter().map(|g| g.len() as i64).collect();
        let places = slices(&shape, axis, &first);
        shape[axis] = first.len();
        let indices: Vec<i64> = first.iter().map(|&i| i as i64).collect();
        Ok(vec![
            pick(t, shape, &places)?,
            ints(vec![indices.len()], &indices)?,
            ints(vec![n], &inverse)?,
            ints(vec![counts.len()], &counts)?,
        ])
    })
}

fn top_k(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let axis = c.axis(c.int("axis", -1)?, dims.len())?;
    let k = if c.opset >= 10 { c.int_input(1)? } else { c.int("k", 0)? };
    let Some(k) = usize::try_from(k).ok().filter(|&k| k <= dims[axis]) else {
        return bad(format!("{k} elements are not in an axis of {}", dims[axis]));
    };
    let largest = c.flag("largest", true)?;
    c.host(&[0], move |t| {
        let values = floats(&t[0])?;
        let exact = matches!(t[0].dtype(), DType::I64 | DType::U64);
        let whole = if exact { to_ints(&t[0]).map_err(text)? } else { Vec::new() };
        let inner: usize = dims[axis + 1..].iter().product();
        let outer: usize = dims[..axis].iter().product();
        let mut shape = dims.clone();
        shape[axis] = k;
        let mut places = vec![0usize; outer * k * inner];
        let mut indices = vec![0i64; outer * k * inner];
        for o in 0..outer {
            for i in 0..inner {
                let at = |n: usize| (o * dims[axis] + n) * inner + i;
                let mut order_of: Vec<usize> = (0..dims[axis]).collect();
                let compare = |a: &usize, b: &usize| {
                    let (p, q) = (at(*a), at(*b));
                    let by_value = match exact {
                        true => whole[p].cmp(&whole[q]),
                        false => order(values[p], values[q]),
                    };
                    let by_value = if largest { by_value.reverse() } else { by_value };
                    by_value.then(a.cmp(b))
                };
                if k < order_of.len() && k > 0 {
                    order_of.select_nth_unstable_by(k - 1, compare);
                    order_of.truncate(k);
                }
                order_of.sort_unstable_by(compare);
                for (rank, &n) in order_of.iter().take(k).enumerate() {
                    let slot = (o * k + rank) * inner + i;
                    places[slot] = at(n);
                    indices[slot] = n as i64;
                }
            }
        }
        Ok(vec![pick(&t[0], shape.clone(), &places)?, ints(shape, &indices)?])
    })
}

/// Overlap of two boxes over their union; boxes without area overlap nothing.
fn overlap(a: &[f64], b: &[f64]) -> f64 {
    let side = |i: usize| {
        let (low, high) = (a[i].min(a[i + 2]), a[i].max(a[i + 2]));
        let (low_b, high_b) = (b[i].min(b[i + 2]), b[i].max(b[i + 2]));
        (high.min(high_b) - low.max(low_b)).max(0.0)
    };
    let area = |r: &[f64]| ((r[2] - r[0]) * (r[3] - r[1])).abs();
    let (shared, area_a, area_b) = (side(0) * side(1), area(a), area(b));
    if area_a <= 0.0 || area_b <= 0.0 || shared <= 0.0 {
        return 0.0;
    }
    shared / (area_a + area_b - shared)
}

fn suppress(c: &mut Context<'_>) -> Outputs {
    let by_center = c.flag("center_point_box", false)?;
    let most = if c.has(2) { c.int_input(2)?.max(0) as usize } else { 0 };
    let limit = |c: &Context<'_>, i: usize| -> Result<Option<f64>, crate::error::OpError> {
        if c.has(i) { Ok(c.floats(i)?.first().copied()) } else { Ok(None) }
    };
    let most_overlap = limit(c, 3)?.unwrap_or(0.0);
    let least_score = limit(c, 4)?;
    c.host(&[0, 1], move |t| {
        let (boxes, scores) = (floats(&t[0])?, floats(&t[1])?);
        let (&[batches, n, 4], &[_, classes, m]) = (t[0].shape(), t[1].shape()) else {
            return Err("boxes must be [batch, n, 4] and scores [batch, classes, n]".into());
        };
        if n != m || t[1].shape()[0] != batches {
            return Err(format!("{n} boxes have {m} scores"));
        }
        let corners: Vec<[f64; 4]> = boxes
            .chunks_exact(4)
            .map(|b| match by_center {
                true => {
                    let (x, y, w, h) = (b[0], b[1], b[2] / 2.0, b[3] / 2.0);
                    [x - w, y - h, x + w, y + h]
                }
                false => [b[0], b[1], b[2], b[3]],
            })
            .collect();
        let mut picked = Vec::new();
        for batch in 0..batches {
            for class in 0..classes {
                let score = |i: usize| scores[(batch * classes + class) * n + i];
                let mut all: Vec<usize> =
                    (0..n).filter(|&i| least_score.is_none_or(|s| score(i) > s)).collect();
                all.sort_by(|&i, &j| order(score(j), score(i)).then(i.cmp(&j)));
                let mut kept: Vec<usize> = Vec::new();
                for i in all {
                    if kept.len() >= most {
                        break;
                    }
                    let at = |i: usize| &corners[batch * n + i];
                    if kept.iter().all(|&k| overlap(at(k), at(i)) <= most_overlap) {
                        kept.push(i);
                    }
                }
                for i in kept {
                    picked.extend([batch as i64, class as i64, i as i64]);
                }
            }
        }
        Ok(vec![ints(vec![picked.len() / 3, 3], &picked)?])
    })
}

/// Determinants by elimination with the largest pivot.
fn det(c: &mut Context<'_>) -> Outputs {
    c.host(&[0], |t| {
        let t = &t[0];
        let &[ref batch @ .., n, m] = t.shape() else {
            return Err("the input must have two axes".into());
        };
        if n != m {
            return Err(format!("a matrix of {n} by {m} has no determinant"));
        }
        let mut values = floats(t)?;
        let mut out = Vec::new();
        for a in values.chunks_exact_mut((n * n).max(1)) {
            let mut product = 1.0;
            for i in 0..n {
                let size = |r: &usize| a[r * n + i].abs();
                let pivot = (i..n).max_by(|r, s| order(size(r), size(s))).unwrap_or(i);
                if a[pivot * n + i] == 0.0 {
                    product = 0.0;
                    break;
                }
                if pivot != i {
                    (0..n).for_each(|k| a.swap(i * n + k, pivot * n + k));
                    product = -product;
                }
                product *= a[i * n + i];
                for r in i + 1..n {
                    let factor = a[r * n + i] / a[i * n + i];
                    (i..n).for_each(|k| a[r * n + k] -= factor * a[i * n + k]);
                }
            }
            out.push(product);
        }
        let tensor = crate::value::floats_tensor(t.dtype(), batch.to_vec(), &out).map_err(text)?;
        Ok(vec![(Elem::of(t.dtype()).unwrap_or(Elem::F32), tensor)])
    })
}
