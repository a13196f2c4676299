//! Reads between the elements of an image.

use cyb_formats::onnx::Elem;
use cyb_ir::{Exp, ValueId};
use cyb_tensor::DType;

use super::Rows;
use super::shape::sizes;
use crate::context::{Context, Made, Outputs};
use crate::error::{OpError, bad};
use crate::value::{floats_tensor, to_floats, to_ints};

pub(super) static ROWS: Rows =
    &[("GridSample", grid_sample), ("AffineGrid", affine_grid), ("RoiAlign", roi_align)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beyond {
    Zeros,
    Border,
    Reflection,
}

/// A coordinate folded back at `low` and `high` until it lies between them.
fn reflect(c: &mut Context<'_>, x: ValueId, low: f64, high: f64) -> Made {
    let range = high - low;
    if range <= 0.0 {
        let zero = c.b.scale(x, 0.0)?;
        return Ok(c.b.offset(zero, low)?);
    }
    let from = c.b.offset(x, -low)?;
    let turns = c.b.scale(from, 0.5 / range)?;
    let turns = c.b.exp(Exp::Floor, turns)?;
    let whole = c.b.scale(turns, 2.0 * range)?;
    let rest = c.sub(from, whole)?;
    // A triangle wave: range - |rest - range|.
    let middle = c.b.offset(rest, -range)?;
    let size = c.abs(middle)?;
    let minus = c.neg(size)?;
    Ok(c.b.offset(minus, range + low)?)
}

fn grid_sample(c: &mut Context<'_>) -> Outputs {
    let (x, grid) = (c.x(0)?, c.x(1)?);
    let mode = c.text("mode", "linear")?;
    let beyond = match c.text("padding_mode", "zeros")?.as_str() {
        "zeros" => Beyond::Zeros,
        "border" => Beyond::Border,
        "reflection" => Beyond::Reflection,
        other => return bad(format!("padding_mode {other:?} is unknown")),
    };
    let align = c.flag("align_corners", false)?;
    let (dims, gd) = (c.dims(x.id)?, c.dims(grid.id)?);
    let axes = dims.len().saturating_sub(2);
    if axes == 0 || gd.len() != dims.len() || gd[gd.len() - 1] != axes || gd[0] != dims[0] {
        return bad(format!("a grid of {gd:?} does not fit an input of {dims:?}"));
    }
    let dtype = c.dtype(x.id);
    let wide = c.cast(grid.id, DType::F64)?;
    let out = &gd[..gd.len() - 1];
    // For each axis its taps: positions and weights.
    let mut taps: Vec<Vec<(ValueId, Option<ValueId>)>> = Vec::new();
    let bounds: Vec<(f64, f64)> = dims[2..]
        .iter()
        .map(|&n| if align { (0.0, n as f64 - 1.0) } else { (-0.5, n as f64 - 0.5) })
        .collect();
    for axis in 0..axes {
        let n = dims[axis + 2] as f64;
        let at = c.b.slice(wide, gd.len() - 1, axes - 1 - axis, 1)?;
        let at = c.reshape(at, out)?;
        let up = c.b.offset(at, 1.0)?;
        let mut place = if align {
            c.b.scale(up, (n - 1.0) / 2.0)?
        } else {
            let wide = c.b.scale(up, n / 2.0)?;
            c.b.offset(wide, -0.5)?
        };
        place = match beyond {
            Beyond::Zeros => place,
            Beyond::Border => clamp(c, place, 0.0, n - 1.0)?,
            Beyond::Reflection => reflect(c, place, bounds[axis].0, bounds[axis].1)?,
        };
        taps.push(match mode.as_str() {
            "nearest" => vec![(c.round(place)?, None)],
            "linear" | "bilinear" => {
                let low = c.floor(place)?;
                let part = c.sub(place, low)?;
                let minus = c.neg(part)?;
                let rest = c.b.offset(minus, 1.0)?;
                let high = c.b.offset(low, 1.0)?;
                vec![(low, Some(rest)), (high, Some(part))]
            }
            "cubic" | "bicubic" => cubic_taps(c, place)?,
            other => return bad(format!("mode {other:?} is unknown")),
        });
    }
    // Rows [N * places, C] of the image.
    let total: usize = dims[2..].iter().product();
    let mut perm: Vec<usize> = (0..dims.len()).filter(|&i| i != 1).collect();
    perm.push(1);
    let rows = c.b.permute(x.id, &perm)?;
    let rows = c.cast(rows, DType::F64)?;
    let rows = c.reshape(rows, &[dims[0] * total, dims[1]])?;
    let image = c.b.iota(dims[0].into());
    let image = c.b.scale(image, total as f64)?;
    let mut own = vec![1; out.len()];
    own[0] = dims[0];
    let image = c.reshape(image, &own)?;
    let combinations: usize = taps.iter().map(Vec::len).product();
    let mut sum = None;
    for combination in 0..combinations {
        let mut rest = combination;
        let (mut index, mut weight, mut inside) = (image, None, None);
        let mut stride = 1usize;
        for axis in (0..axes).rev() {
            let n = dims[axis + 2];
            let (place, share) = taps[axis][rest % taps[axis].len()];
            rest /= taps[axis].len();
            let mut place = place;
            if beyond == Beyond::Reflection {
                place = reflect(c, place, bounds[axis].0, bounds[axis].1)?;
                place = c.round(place)?;
            }
            let inner = clamp(c, place, 0.0, n as f64 - 1.0)?;
            if beyond == Beyond::Zeros {
                let same = c.b.cmp(cyb_ir::Cmp::Eq, inner, place)?;
                inside = Some(match inside {
                    Some(all) => c.b.mul(all, same)?,
                    None => same,
                });
            }
            let at = c.cast(inner, DType::I64)?;
            let at = c.b.scale(at, stride as f64)?;
            index = c.add(at, index)?;
            stride *= n;
            if let Some(share) = share {
                weight = Some(match weight {
                    Some(all) => c.b.mul(all, share)?,
                    None => share,
                });
            }
        }
        let mut value = c.b.gather(rows, 0, index)?; // [N, o..., C]
        let last = out.len();
        if let Some(weight) = weight {
            let weight = c.b.unsqueeze(weight, last)?;
            value = c.b.mul(value, weight)?;
        }
        if let Some(inside) = inside {
            let inside = c.b.unsqueeze(inside, last)?;
            let zero = c.scalar(value, 0.0)?;
            value = c.b.select(inside, value, zero)?;
        }
        sum = Some(match sum {
            Some(sum) => c.b.add(sum, value)?,
            None => value,
        });
    }
    let Some(sum) = sum else { return bad("reads nothing") };
    let mut back = vec![0, out.len()];
    back.extend(1..out.len());
    let y = c.b.permute(sum, &back)?;
    let y = c.cast(y, dtype)?;
    c.one(y, x.elem)
}

fn clamp(c: &mut Context<'_>, x: ValueId, low: f64, high: f64) -> Made {
    let (low, high) = (c.scalar(x, low)?, c.scalar(x, high)?);
    let x = c.b.max(x, low)?;
    Ok(c.b.min(x, high)?)
}

/// Four taps of cubic convolution with factor -0.75.
fn cubic_taps(
    c: &mut Context<'_>,
    place: ValueId,
) -> Result<Vec<(ValueId, Option<ValueId>)>, OpError> {
    const A: f64 = -0.75;
    let low = c.floor(place)?;
    let part = c.sub(place, low)?;
    // A polynomial in the distance, highest power first.
    let polynomial = |c: &mut Context<'_>, x: ValueId, terms: [f64; 4]| -> Made {
        let mut sum = c.scalar(x, terms[0])?;
        for &term in &terms[1..] {
            let product = c.mul(x, sum)?;
            sum = c.b.offset(product, term)?;
        }
        Ok(sum)
    };
    let far = [A, -5.0 * A, 8.0 * A, -4.0 * A];
    let near = [A + 2.0, -(A + 3.0), 0.0, 1.0];
    let mut taps = Vec::new();
    for (offset, terms) in [(-1.0, far), (0.0, near), (1.0, near), (2.0, far)] {
        let moved = c.b.offset(part, -offset)?;
        let distance = c.abs(moved)?;
        let weight = polynomial(c, distance, terms)?;
        taps.push((c.b.offset(low, offset)?, Some(weight)));
    }
    Ok(taps)
}

fn affine_grid(c: &mut Context<'_>) -> Outputs {
    let theta = c.x(0)?;
    let size = sizes(&c.ints(1)?)?;
    let align = c.flag("align_corners", false)?;
    let Some((&[n, _], spatial)) = size.split_first_chunk::<2>() else {
        return bad("size must name the batch, the channels and the image");
    };
    let axes = spatial.len();
    let places: usize = spatial.iter().product();
    let mut base = Vec::with_capacity(places * (axes + 1));
    for place in 0..places {
        let mut rest = place;
        let mut point = Vec::with_capacity(axes);
        for &len in spatial.iter().rev() {
            let (i, len) = ((rest % len) as f64, len as f64);
            rest /= len as usize;
            point.push(if align {
                if len > 1.0 { 2.0 * i / (len - 1.0) - 1.0 } else { 0.0 }
            } else {
                (2.0 * i + 1.0) / len - 1.0
            });
        }
        base.extend(point);
        base.push(1.0);
    }
    let wide = c.cast(theta.id, DType::F64)?;
    let base = c.numbers(DType::F64, vec![places, axes + 1], &base)?;
    let turned = c.b.permute(wide, &[0, 2, 1])?;
    let y = c.matmul(base, turned)?;
    let mut shape = vec![n];
    shape.extend_from_slice(spatial);
    shape.push(axes);
    let y = c.reshape(y, &shape)?;
    let y = c.cast(y, c.dtype(theta.id))?;
    c.one(y, theta.elem)
}

/// The number of samples of a region depends on its size, so the sum is not one of atoms.
fn roi_align(c: &mut Context<'_>) -> Outputs {
    let by_max = c.text("mode", "avg")? == "max";
    let (rows, columns) = (c.int("output_height", 1)?, c.int("output_width", 1)?);
    let [rows, columns] = sizes(&[rows, columns])?[..] else { return bad("no size") };
    let ratio = sizes(&[c.int("sampling_ratio", 0)?])?[0];
    let scale = c.float("spatial_scale", 1.0)?;
    let default = if c.opset >= 16 { "half_pixel" } else { "output_half_pixel" };
    let half = c.text("coordinate_transformation_mode", default)? == "half_pixel";
    c.host(&[0, 1, 2], move |t| {
        let text = |e: OpError| format!("{e:?}");
        let (x, rois) = (to_floats(&t[0]).map_err(text)?, to_floats(&t[1]).map_err(text)?);
        let batch = to_ints(&t[2]).map_err(text)?;
        let &[n, channels, h, w] = t[0].shape() else {
            return Err("the input must have four axes".to_owned());
        };
        if rois.len() != batch.len() * 4 || h == 0 || w == 0 {
            return Err("the regions do not fit the batch indices".to_owned());
        }
        let shift = if half { 0.5 } else { 0.0 };
        let mut out = Vec::with_capacity(batch.len() * channels * rows * columns);
        for (roi, &image) in rois.chunks_exact(4).zip(&batch) {
            let Some(image) = usize::try_from(image).ok().filter(|&i| i < n) else {
                return Err(format!("batch index {image} is outside {n} images"));
            };
            let at = |i: usize| roi[i] * scale - shift;
            let (x0, y0) = (at(0), at(1));
            let (mut width, mut height) = (at(2) - x0, at(3) - y0);
            if !half {
                (width, height) = (width.max(1.0), height.max(1.0));
            }
            let (bin_h, bin_w) = (height / rows as f64, width / columns as f64);
            let samples = |bin: f64| if ratio > 0 { ratio } else { bin.ceil().max(0.0) as usize };
            let (ny, nx) = (samples(bin_h), samples(bin_w));
            for channel in 0..channels {
                let plane = &x[(image * channels + channel) * h * w..][..h * w];
                for row in 0..rows {
                    for column in 0..columns {
                        let (mut sum, mut top) = (0.0, f64::NEG_INFINITY);
                        for iy in 0..ny {
                            for ix in 0..nx {
                                let y = y0 + (row as f64 + (iy as f64 + 0.5) / ny as f64) * bin_h;
                                let x =
                                    x0 + (column as f64 + (ix as f64 + 0.5) / nx as f64) * bin_w;
                                let terms = bilinear(plane, h, w, y, x);
                                sum += terms.iter().sum::<f64>();
                                top = terms.iter().copied().fold(top, f64::max);
                            }
                        }
                        let count = (ny * nx).max(1) as f64;
                        out.push(if by_max { top } else { sum / count });
                    }
                }
            }
        }
        let shape = vec![batch.len(), channels, rows, columns];
        let tensor = floats_tensor(t[0].dtype(), shape, &out).map_err(text)?;
        Ok(vec![(Elem::of(t[0].dtype()).unwrap_or(Elem::F32), tensor)])
    })
}

/// The four weighted neighbours of a point; all zero when it lies outside.
fn bilinear(plane: &[f64], h: usize, w: usize, y: f64, x: f64) -> [f64; 4] {
    if y < -1.0 || y > h as f64 || x < -1.0 || x > w as f64 {
        return [0.0; 4];
    }
    let split = |v: f64, n: usize| {
        let v = v.max(0.0);
        let low = (v as usize).min(n - 1);
        let high = (low + 1).min(n - 1);
        let part = if low + 1 >= n { 0.0 } else { v - low as f64 };
        (low, high, part)
    };
    let ((y0, y1, fy), (x0, x1, fx)) = (split(y, h), split(x, w));
    let at = |y: usize, x: usize| plane[y * w + x];
    [
        (1.0 - fy) * (1.0 - fx) * at(y0, x0),
        (1.0 - fy) * fx * at(y0, x1),
        fy * (1.0 - fx) * at(y1, x0),
        fy * fx * at(y1, x1),
    ]
}
