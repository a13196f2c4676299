//! Resizing along each axis: a product with a fixed matrix, or a read at fixed places.

use cyb_ir::{Attr, Attrs, Float, ValueId};
use cyb_jets::RESIZE;
use cyb_tensor::DType;

use super::Rows;
use super::shape::sizes;
use crate::context::{Context, Made, Outputs};
use crate::error::{OpError, bad};

/// Bytes of the largest result, if its numbers took 8 bytes.
const LARGEST: usize = 1 << 35;

pub(super) static ROWS: Rows = &[("Resize", resize), ("Upsample", upsample)];

#[derive(Clone, Debug)]
struct Options {
    mode: String,
    coordinates: String,
    nearest: String,
    cubic: f64,
    antialias: bool,
    exclude_outside: bool,
    /// Value beyond the edges, for `tf_crop_and_resize`.
    beyond: f64,
}

fn upsample(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let scales = match c.float_list("scales")? {
        Some(scales) => scales,
        None => c.floats(1)?,
    };
    let dims = c.dims(x.id)?;
    if scales.len() != dims.len() {
        return bad(format!("{} scales do not fit {} axes", scales.len(), dims.len()));
    }
    let options = Options {
        mode: c.text("mode", "nearest")?,
        coordinates: "asymmetric".into(),
        nearest: "floor".into(),
        cubic: -0.75,
        antialias: false,
        exclude_outside: false,
        beyond: 0.0,
    };
    let mut y = c.wide(x.id)?;
    for axis in 0..dims.len() {
        let out = (dims[axis] as f64 * scales[axis]).floor() as usize;
        y = along(c, y, axis, out, scales[axis], None, &options)?;
    }
    let y = c.cast(y, c.dtype(x.id))?;
    c.one(y, x.elem)
}

fn resize(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let old = c.opset < 11;
    let options = Options {
        mode: c.text("mode", "nearest")?,
        coordinates: c.text(
            "coordinate_transformation_mode",
            if old { "asymmetric" } else { "half_pixel" },
        )?,
        nearest: c.text("nearest_mode", if old { "floor" } else { "round_prefer_floor" })?,
        cubic: c.float("cubic_coeff_a", -0.75)?,
        antialias: c.flag("antialias", false)?,
        exclude_outside: c.flag("exclude_outside", false)?,
        beyond: c.float("extrapolation_value", 0.0)?,
    };
    let axes = match c.opt_int_list("axes")? {
        Some(axes) => axes.iter().map(|&a| c.axis(a, dims.len())).collect::<Result<_, _>>()?,
        None => (0..dims.len()).collect::<Vec<usize>>(),
    };
    // An empty tensor of scales stands for none.
    let scales = match if old { 1 } else { 2 } {
        i if c.has(i) => Some(c.floats(i)?).filter(|s| !s.is_empty()),
        _ => None,
    };
    let wanted = if !old && c.has(3) { Some(sizes(&c.ints(3)?)?) } else { None };
    let wanted = wanted.filter(|w| !w.is_empty());
    let roi = if !old && c.has(1) { c.floats(1)? } else { Vec::new() };
    let (out, scales) = match (wanted, scales) {
        (Some(wanted), _) if wanted.len() == axes.len() => {
            let ratio = |i: usize| wanted[i] as f64 / dims[axes[i]] as f64;
            let ratios: Vec<f64> = (0..axes.len()).map(ratio).collect();
            let policy = c.text("keep_aspect_ratio_policy", "stretch")?;
            let common = match policy.as_str() {
                "not_larger" => ratios.iter().copied().reduce(f64::min),
                "not_smaller" => ratios.iter().copied().reduce(f64::max),
                _ => None,
            };
            match common {
                Some(scale) => {
                    let size = |&a: &usize| (scale * dims[a] as f64 + 0.5).floor() as usize;
                    (axes.iter().map(size).collect::<Vec<_>>(), vec![scale; axes.len()])
                }
                None => (wanted, ratios),
            }
        }
        (None, Some(scales)) if scales.len() == axes.len() => {
            let size = |(i, &a): (usize, &usize)| (dims[a] as f64 * scales[i]).floor() as usize;
            (axes.iter().enumerate().map(size).collect(), scales)
        }
        _ => return bad("scales or sizes do not fit the axes"),
    };
    if let Some(scale) = scales.iter().find(|s| !(s.is_finite() && **s > 0.0)) {
        return bad(format!("{scale} is no scale"));
    }
    let mut y = c.wide(x.id)?;
    if let Some(attrs) = jet_attrs(c, y, &options, &axes, &out, &scales) {
        let y = c.b.jet(&RESIZE, attrs, &[y])?;
        let y = c.cast(y, c.dtype(x.id))?;
        return c.one(y, x.elem);
    }
    for (i, &axis) in axes.iter().enumerate() {
        let region = (roi.len() == 2 * axes.len()).then(|| (roi[i], roi[i + axes.len()]));
        y = along(c, y, axis, out[i], scales[i], region, &options)?;
    }
    let y = c.cast(y, c.dtype(x.id))?;
    c.one(y, x.elem)
}

/// Attributes of the jet, for what it computes: scales that give just these lengths.
fn jet_attrs(
    c: &Context<'_>,
    x: ValueId,
    options: &Options,
    axes: &[usize],
    out: &[usize],
    scales: &[f64],
) -> Option<Attrs> {
    const COORDINATES: [&str; 5] =
        ["half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners"];
    let rounding = match options.nearest.as_str() {
        "round_prefer_floor" => "prefer_floor",
        "round_prefer_ceil" => "prefer_ceil",
        "floor" => "floor",
        "ceil" => "ceil",
        _ => return None,
    };
    let dims = c.dims(x).ok()?;
    let fits = |i: usize| {
        let n = dims[axes[i]];
        n > 0 && out[i] > 0 && (n as f64 * scales[i]).floor() as usize == out[i]
    };
    let plain = !options.antialias && !options.exclude_outside;
    let known = COORDINATES.contains(&options.coordinates.as_str());
    let dtype = c.dtype(x);
    let codes = matches!(dtype, DType::U8 | DType::I8) && options.mode == "nearest";
    let computes = dtype == DType::F32 || codes;
    if !computes || !plain || !known || !(0..axes.len()).all(fits) {
        return None;
    }
    // Axes that keep their length are not resized.
    let moved: Vec<usize> =
        (0..axes.len()).filter(|&i| scales[i] != 1.0 || out[i] != dims[axes[i]]).collect();
    let axes: Vec<usize> = moved.iter().map(|&i| axes[i]).collect();
    let scales: Vec<Float> = moved.iter().map(|&i| Float::new(scales[i])).collect();
    (!axes.is_empty()).then(|| {
        Attrs::new()
            .with("mode", options.mode.as_str())
            .with("coordinates", options.coordinates.as_str())
            .with("rounding", rounding)
            .with("cubic", options.cubic)
            .with("axes", axes.as_slice())
            .with("scales", Attr::Floats(scales))
    })
}

/// Where output `i` lies among `n` inputs.
fn place(
    options: &Options,
    i: usize,
    n: usize,
    out: usize,
    scale: f64,
    region: Option<(f64, f64)>,
) -> Result<f64, OpError> {
    let (x, n, out) = (i as f64, n as f64, out as f64);
    Ok(match options.coordinates.as_str() {
        "half_pixel" => (x + 0.5) / scale - 0.5,
        "half_pixel_symmetric" => {
            let adjustment = out / (scale * n);
            let center = n / 2.0;
            center * (1.0 - adjustment) + (x + 0.5) / scale - 0.5
        }
        "pytorch_half_pixel" => {
            if out > 1.0 {
                (x + 0.5) / scale - 0.5
            } else {
                0.0
            }
        }
        "align_corners" => {
            if out > 1.0 {
                x * (n - 1.0) / (out - 1.0)
            } else {
                0.0
            }
        }
        "asymmetric" => x / scale,
        "tf_half_pixel_for_nn" => (x + 0.5) / scale,
        "tf_crop_and_resize" => {
            let (start, end) = region.unwrap_or((0.0, 1.0));
            if out > 1.0 {
                start * (n - 1.0) + x * (end - start) * (n - 1.0) / (out - 1.0)
            } else {
                0.5 * (start + end) * (n - 1.0)
            }
        }
        other => return bad(format!("coordinate_transformation_mode {other:?} is unknown")),
    })
}

fn nearest(options: &Options, x: f64) -> Result<i64, OpError> {
    Ok(match options.nearest.as_str() {
        "floor" | "simple" => x.floor(),
        "ceil" => x.ceil(),
        "round_prefer_floor" => (x - 0.5).ceil(),
        "round_prefer_ceil" => (x + 0.5).floor(),
        other => return bad(format!("nearest_mode {other:?} is unknown")),
    } as i64)
}

/// Cubic convolution with factor `a` at distance `x`.
fn cubic(x: f64, a: f64) -> f64 {
    let x = x.abs();
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}

/// Neighbours and their weights.
fn weights(options: &Options, x: f64, scale: f64) -> Vec<(i64, f64)> {
    let is_cubic = options.mode == "cubic";
    let shrink = if options.antialias { scale.min(1.0) } else { 1.0 };
    let reach = if is_cubic { 2.0 } else { 1.0 } / shrink;
    let first = (x - reach).floor() as i64 + 1;
    let last = (x + reach).ceil() as i64 - 1;
    let weight = |at: i64| {
        let distance = (x - at as f64) * shrink;
        if is_cubic { cubic(distance, options.cubic) } else { (1.0 - distance.abs()).max(0.0) }
    };
    (first..=last).map(|at| (at, weight(at))).collect()
}

fn along(
    c: &mut Context<'_>,
    x: ValueId,
    axis: usize,
    out: usize,
    scale: f64,
    region: Option<(f64, f64)>,
    options: &Options,
) -> Made {
    let mut dims = c.dims(x)?;
    let n = std::mem::replace(&mut dims[axis], out);
    // Before a table of all its places is made.
    if cyb_tensor::byte_len(DType::F64, &dims).map_or(true, |len| len > LARGEST) {
        return bad(format!("its result {dims:?} is too large"));
    }
    let crops = options.coordinates == "tf_crop_and_resize";
    if out == n && scale == 1.0 && !crops {
        return Ok(x);
    }
    if n == 0 {
        return bad("an empty axis cannot be resized");
    }
    let last = n as i64 - 1;
    let places: Vec<f64> =
        (0..out).map(|i| place(options, i, n, out, scale, region)).collect::<Result<_, _>>()?;
    let outside: Vec<bool> =
        places.iter().map(|&p| crops && (p < 0.0 || p > last as f64)).collect();
    let mut y = match options.mode.as_str() {
        "nearest" => {
            let index: Vec<i64> = places
                .iter()
                .map(|&p| Ok(nearest(options, p)?.clamp(0, last)))
                .collect::<Result<_, OpError>>()?;
            let index = c.indices(vec![out], &index)?;
            c.b.gather(x, axis, index)?
        }
        "linear" | "cubic" => {
            let mut matrix = vec![0.0; out * n];
            for (row, &p) in matrix.chunks_exact_mut(n).zip(&places) {
                let mut all = weights(options, p, scale);
                if options.exclude_outside {
                    all.retain(|(at, _)| (0..=last).contains(at));
                }
                let sum: f64 = all.iter().map(|(_, w)| w).sum();
                for (at, w) in all {
                    row[at.clamp(0, last) as usize] += w / sum;
                }
            }
            times(c, x, axis, out, &matrix)?
        }
        other => return bad(format!("mode {other:?} is unknown")),
    };
    if outside.contains(&true) {
        let mut shape = vec![1; c.rank(y)];
        shape[axis] = out;
        let mask: Vec<f64> = outside.iter().map(|&o| f64::from(u8::from(o))).collect();
        let mask = c.numbers(DType::Bool, shape, &mask)?;
        let beyond = c.scalar(y, options.beyond)?;
        y = c.b.select(mask, beyond, y)?;
    }
    Ok(y)
}

/// `axis` of `x` times a matrix [out, n].
fn times(c: &mut Context<'_>, x: ValueId, axis: usize, out: usize, matrix: &[f64]) -> Made {
    let dims = c.dims(x)?;
    let n = dims[axis];
    let dtype = c.dtype(x);
    let float = if c.is_float(x) { x } else { c.cast(x, DType::F32)? };
    let matrix = c.numbers(c.dtype(float), vec![out, n], matrix)?;
    let inner: usize = dims[axis + 1..].iter().product();
    let outer: usize = dims[..axis].iter().product();
    let rows = c.reshape(float, &[outer, n, inner])?;
    let y = c.matmul(matrix, rows)?;
    let mut shape = dims;
    shape[axis] = out;
    let y = c.reshape(y, &shape)?;
    if c.dtype(y) == dtype {
        return Ok(y);
    }
    let y = c.round(y)?;
    c.cast(y, dtype)
}
