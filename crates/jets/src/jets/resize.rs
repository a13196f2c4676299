//! Resampling along axes, as ONNX's `Resize` defines it.

use cyb_ir::{Attr, Attrs, Builder, Case, Exp, Fill, Float, IrError, Jet, Signature, ValueId};
use cyb_tensor::{DType, Dim};

use crate::sugar::{Defined, SUMMED, arity, f32_of_rank};

/// `resize{mode, coordinates, rounding, cubic, axes, scales | sizes}(x)`: each of `axes` is
/// resampled on its own. The new length is a size, or floor(length * scale); positions are computed
/// in f64.
///
/// - `mode`: `nearest`, `linear` or `cubic` (with the coefficient `cubic`, often -0.75). Beyond the
///   ends the last element repeats.
/// - `coordinates`, from an output position o to one in the input, L and O being the lengths and s
///   the scale: `half_pixel` (o + 0.5) / s - 0.5, `pytorch_half_pixel` the same but 0 where O is 1,
///   `half_pixel_symmetric` around the center, `asymmetric` o / s, `align_corners`
///   o (L - 1) / (O - 1).
/// - `rounding` of `nearest`: `floor`, `ceil`, `prefer_floor` or `prefer_ceil` (halves).
pub static RESIZE: Jet = Jet {
    name: "resize",
    summary: "resampling along axes: nearest, linear, cubic",
    define,
    signatures: || {
        let attrs = attributes("linear", "half_pixel", &[2, 3]).with("scales", floats(&[2.0, 2.0]));
        vec![Signature { inputs: vec![f32_of_rank(4)], attrs }]
    },
    cases,
    tolerance: SUMMED,
    in_place: &[],
};

fn floats(values: &[f64]) -> Attr {
    Attr::Floats(values.iter().map(|&v| Float::new(v)).collect())
}

fn attributes(mode: &str, coordinates: &str, axes: &[usize]) -> Attrs {
    Attrs::new()
        .with("mode", mode)
        .with("coordinates", coordinates)
        .with("rounding", "prefer_floor")
        .with("cubic", -0.75)
        .with("axes", axes)
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for mode in ["nearest", "linear", "cubic"] {
        for coordinates in [
            "half_pixel",
            "pytorch_half_pixel",
            "half_pixel_symmetric",
            "asymmetric",
            "align_corners",
        ] {
            let attrs = attributes(mode, coordinates, &[2, 3]);
            let up = attrs.clone().with("scales", floats(&[2.0, 1.6]));
            cases.push(Case::new(format!("{mode} {coordinates} up"), up).normal(&[1, 3, 5, 17]));
            let down = attrs.with("sizes", vec![1, 5]);
            cases.push(Case::new(format!("{mode} {coordinates} to"), down).normal(&[2, 2, 7, 13]));
        }
    }
    for dtype in [DType::U8, DType::I8] {
        let attrs = attributes("nearest", "asymmetric", &[0, 2, 3]);
        let attrs = attrs.with("rounding", "floor").with("scales", floats(&[2.0, 2.0, 1.5]));
        let codes = Fill::Ints((0..97).collect());
        cases.push(Case::new(format!("codes {dtype}"), attrs).input(dtype, &[1, 3, 5, 17], codes));
    }
    for rounding in ["floor", "ceil", "prefer_floor", "prefer_ceil"] {
        let attrs = attributes("nearest", "asymmetric", &[1]).with("rounding", rounding);
        let attrs = attrs.with("scales", floats(&[1.25]));
        cases.push(Case::new(format!("{rounding} inner"), attrs).normal(&[3, 8, 33]));
    }
    cases
}

/// What happens on one axis.
struct Axis {
    axis: usize,
    length: Dim,
    new_length: Dim,
    /// New length over length.
    scale: f64,
}

fn define(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Defined {
    arity("resize", inputs, 1..=1)?;
    let mut x = inputs[0];
    for axis in axes(b, x, attrs)? {
        let at = positions(b, &axis, attrs)?;
        x = match attrs.text("mode")? {
            "nearest" => {
                let at = rounded(b, at, attrs.text("rounding")?)?;
                pick(b, x, &axis, at, 0.0)?
            }
            "linear" => linear(b, x, &axis, at)?,
            "cubic" => cubic(b, x, &axis, at, attrs.float("cubic")?)?,
            other => return Err(wrong("mode", "nearest, linear or cubic", other)),
        };
    }
    Ok(vec![x])
}

fn wrong(name: &str, want: &'static str, got: &str) -> IrError {
    IrError::Attr { name: name.to_owned(), want, got: got.to_owned() }
}

fn axes(b: &Builder, x: ValueId, attrs: &Attrs) -> Result<Vec<Axis>, IrError> {
    let numbers = attrs.sizes("axes")?;
    let unfit = |name: &str| {
        let got = attrs.get(name).map_or_else(|| "nothing".to_owned(), ToString::to_string);
        wrong(name, "a positive number for each axis", &got)
    };
    let mut found = Vec::new();
    for (i, &axis) in numbers.iter().enumerate() {
        let length = b.dim(x, axis)?;
        let (new_length, scale) = match attrs.get("scales") {
            Some(Attr::Floats(scales)) if scales.len() == numbers.len() => {
                let scale = scales[i].get();
                if !(scale > 0.0 && scale < 1e9) {
                    return Err(unfit("scales"));
                }
                (scaled(&length, scale).ok_or_else(|| unfit("scales"))?, scale)
            }
            Some(_) => return Err(unfit("scales")),
            None => {
                let sizes = attrs.sizes("sizes")?;
                let size = *sizes.get(i).ok_or_else(|| unfit("sizes"))?;
                let known = length.known().filter(|&n| n > 0).ok_or_else(|| unfit("sizes"))?;
                (size.into(), size as f64 / known as f64)
            }
        };
        found.push(Axis { axis, length, new_length, scale });
    }
    Ok(found)
}

/// floor(length * scale). Of a length that is not known, only whole multiples and fractions.
fn scaled(length: &Dim, scale: f64) -> Option<Dim> {
    if let Some(n) = length.known() {
        return Some(Dim::from((n as f64 * scale).floor() as usize));
    }
    if scale.fract() == 0.0 {
        return Some(length.clone() * Dim::from(scale as usize));
    }
    let inverse = 1.0 / scale;
    (inverse.fract() == 0.0).then(|| length.floor_div(&Dim::from(inverse as usize)))
}

/// Positions in the input of each output, `[O]` in f64.
fn positions(b: &mut Builder, axis: &Axis, attrs: &Attrs) -> Result<ValueId, IrError> {
    let o = b.iota(axis.new_length.clone());
    let o = b.cast(o, DType::F64)?;
    let half_pixel = |b: &mut Builder, o| {
        let center = b.offset(o, 0.5)?;
        let at = divided(b, center, axis.scale)?;
        b.offset(at, -0.5)
    };
    let lengths = match (axis.length.known(), axis.new_length.known()) {
        (Some(from), Some(to)) => Some((from as f64, to as f64)),
        _ => None,
    };
    let known =
        || lengths.ok_or_else(|| wrong("coordinates", "known lengths", &axis.length.to_string()));
    match attrs.text("coordinates")? {
        "half_pixel" => half_pixel(b, o),
        "pytorch_half_pixel" => match axis.new_length.known() {
            Some(1) => b.scale(o, 0.0),
            _ => half_pixel(b, o),
        },
        "half_pixel_symmetric" => {
            let (from, to) = known()?;
            let adjustment = to / (axis.scale * from);
            let at = half_pixel(b, o)?;
            b.offset(at, from / 2.0 * (1.0 - adjustment))
        }
        "asymmetric" => divided(b, o, axis.scale),
        "align_corners" => {
            let (from, to) = known()?;
            if to <= 1.0 {
                return b.scale(o, 0.0);
            }
            let far = b.scale(o, from - 1.0)?;
            divided(b, far, to - 1.0)
        }
        other => Err(wrong("coordinates", "a coordinate transformation", other)),
    }
}

/// `x / by`. A reciprocal would round twice, and could move a position over an edge; whole
/// multiples are the common case and exact either way.
fn divided(b: &mut Builder, x: ValueId, by: f64) -> Result<ValueId, IrError> {
    let by_value = b.scalar(DType::F64, by)?;
    let quotient = b.div(x, by_value)?;
    // One Newton step: q + (x - q by) / by is within half a unit of the quotient nearly always.
    let product = b.mul(quotient, by_value)?;
    let rest = b.sub(x, product)?;
    let small = b.div(rest, by_value)?;
    b.add(quotient, small)
}

fn rounded(b: &mut Builder, at: ValueId, rounding: &str) -> Result<ValueId, IrError> {
    let ceil = |b: &mut Builder, v| {
        let minus = b.neg(v)?;
        let floor = b.exp(Exp::Floor, minus)?;
        b.neg(floor)
    };
    match rounding {
        "floor" => b.exp(Exp::Floor, at),
        "ceil" => ceil(b, at),
        "prefer_floor" => {
            let at = b.offset(at, -0.5)?;
            ceil(b, at)
        }
        "prefer_ceil" => {
            let at = b.offset(at, 0.5)?;
            b.exp(Exp::Floor, at)
        }
        other => Err(wrong("rounding", "floor, ceil, prefer_floor or prefer_ceil", other)),
    }
}

/// Elements at whole positions `at + shift` of an axis, the ends repeated.
fn pick(
    b: &mut Builder,
    x: ValueId,
    axis: &Axis,
    at: ValueId,
    shift: f64,
) -> Result<ValueId, IrError> {
    let at = b.offset(at, shift)?;
    let index = b.cast(at, DType::I64)?;
    let zero = b.scalar(DType::I64, 0.0)?;
    let index = b.max(index, zero)?;
    let last = match axis.length.known() {
        Some(n) => b.scalar(DType::I64, n as f64 - 1.0)?,
        None => {
            let all = b.iota(axis.length.clone());
            b.reduce(cyb_ir::Reduce::Max, all, &[0])?
        }
    };
    let index = b.min(index, last)?;
    b.gather(x, axis.axis, index)
}

/// A weight for each output position, in the shape that multiplies `x`.
fn along(b: &mut Builder, x: ValueId, axis: &Axis, w: ValueId) -> Result<ValueId, IrError> {
    let w = b.cast(w, DType::F32)?;
    let mut shape = vec![Dim::from(1); b.fact(x).rank() - axis.axis];
    shape[0] = axis.new_length.clone();
    b.reshape(w, shape)
}

fn linear(b: &mut Builder, x: ValueId, axis: &Axis, at: ValueId) -> Result<ValueId, IrError> {
    let low = b.exp(Exp::Floor, at)?;
    let part = b.sub(at, low)?;
    let minus = b.neg(part)?;
    let rest = b.offset(minus, 1.0)?;
    let (first, second) = (pick(b, x, axis, low, 0.0)?, pick(b, x, axis, low, 1.0)?);
    let (rest, part) = (along(b, x, axis, rest)?, along(b, x, axis, part)?);
    let (first, second) = (b.mul(first, rest)?, b.mul(second, part)?);
    b.add(first, second)
}

/// Keys' cubic kernel with coefficient `a`.
fn cubic(
    b: &mut Builder,
    x: ValueId,
    axis: &Axis,
    at: ValueId,
    a: f64,
) -> Result<ValueId, IrError> {
    let low = b.exp(Exp::Floor, at)?;
    let t = b.sub(at, low)?;
    let polynomial = |b: &mut Builder, v: ValueId, c: [f64; 4]| -> Result<ValueId, IrError> {
        let mut p = b.scale(v, c[0])?;
        for c in &c[1..3] {
            p = b.offset(p, *c)?;
            p = b.mul(p, v)?;
        }
        b.offset(p, c[3])
    };
    let near = [a + 2.0, -(a + 3.0), 0.0, 1.0];
    let far = [a, -5.0 * a, 8.0 * a, -4.0 * a];
    let mut sum = None;
    for (shift, form) in [(-1.0, far), (0.0, near), (1.0, near), (2.0, far)] {
        // The distance from the position to this tap.
        let distance = if shift <= 0.0 {
            b.offset(t, -shift)?
        } else {
            let minus = b.neg(t)?;
            b.offset(minus, shift)?
        };
        let w = polynomial(b, distance, form)?;
        let w = along(b, x, axis, w)?;
        let tap = pick(b, x, axis, low, shift)?;
        let term = b.mul(tap, w)?;
        sum = Some(match sum {
            None => term,
            Some(sum) => b.add(sum, term)?,
        });
    }
    sum.ok_or_else(|| wrong("mode", "taps", "none"))
}
