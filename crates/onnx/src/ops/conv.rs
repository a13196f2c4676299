//! Convolutions in one to three dimensions, as windows and a matrix product.

use cyb_ir::{Attrs, Scatter, ValueId};
use cyb_jets::{CONV, CONV_TRANSPOSE};
use cyb_tensor::DType;

use super::Rows;
use super::normalization::by_channel;
use super::shape::sizes;
use crate::context::{Context, Made, Outputs};
use crate::error::{OpError, bad};

pub(super) static ROWS: Rows = &[
    ("Conv", |c| {
        if let Some(y) = super::integer::conv_between(c)? {
            return c.plain(y);
        }
        let (x, w) = (c.x(0)?, c.x(1)?);
        let bias = c.opt(2)?;
        let (wide, weight) = (c.wide(x.id)?, c.wide(w.id)?);
        let bias = match bias {
            Some(bias) => Some(c.cast(bias.id, c.dtype(wide))?),
            None => None,
        };
        let y = match jet_attrs(c, wide, weight)? {
            Some(attrs) => {
                let mut inputs = vec![wide, weight];
                inputs.extend(bias);
                c.b.jet(&CONV, attrs, &inputs)?
            }
            None => {
                let y = conv(c, wide, weight)?;
                with_bias(c, y, bias)?
            }
        };
        let y = c.cast(y, c.dtype(x.id))?;
        c.one(y, x.elem)
    }),
    ("ConvTranspose", conv_transpose),
    ("Col2Im", col2im),
    ("CausalConvWithState", causal_conv),
];

/// `y` [N, M, ...] and a number for each channel.
pub(super) fn with_bias(c: &mut Context<'_>, y: ValueId, bias: Option<ValueId>) -> Made {
    let Some(bias) = bias else { return Ok(y) };
    let rank = c.rank(y);
    let bias = by_channel(c, bias, rank)?;
    Ok(c.b.add(y, bias)?)
}

/// Attributes of the jets, for what they compute: `f32` or codes, and no negative padding.
pub(super) fn jet_attrs(
    c: &Context<'_>,
    x: ValueId,
    weight: ValueId,
) -> Result<Option<Attrs>, OpError> {
    let (dims, wd) = (c.dims(x)?, c.dims(weight)?);
    let known = matches!(c.dtype(x), DType::F32 | DType::U8 | DType::I8);
    let fits = known && (3..=5).contains(&dims.len()) && wd.len() == dims.len();
    if !fits {
        return Ok(None);
    }
    let (w, groups) = windows_of(c, &dims, &wd)?;
    check_groups(&dims, &wd, groups)?;
    for i in 0..w.kernel.len() {
        w.count(i, dims[i + 2], false)?;
    }
    Ok(w.attrs().map(|attrs| attrs.with("groups", groups)))
}

/// Windows over the spatial axes.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    pub(super) kernel: Vec<usize>,
    pub(super) strides: Vec<usize>,
    pub(super) dilations: Vec<usize>,
    /// Explicit padding before and after each axis; negative ones crop.
    pub(super) before: Vec<i64>,
    pub(super) after: Vec<i64>,
}

impl Windows {
    /// From the attributes, for spatial axes of these lengths.
    pub(super) fn of(
        c: &Context<'_>,
        spatial: &[usize],
        kernel: Vec<usize>,
    ) -> Result<Windows, OpError> {
        let n = spatial.len();
        let list = |name: &str| -> Result<Vec<usize>, OpError> {
            let list = match c.opt_int_list(name)? {
                Some(list) => sizes(&list)?,
                None => vec![1; n],
            };
            match list.len() == n && !list.contains(&0) {
                true => Ok(list),
                false => bad(format!("attribute {name} does not fit {n} axes")),
            }
        };
        let (strides, dilations) = (list("strides")?, list("dilations")?);
        if kernel.len() != n || kernel.contains(&0) {
            return bad(format!("a kernel of {kernel:?} does not fit {n} axes"));
        }
        let pads = c.opt_int_list("pads")?.unwrap_or_else(|| vec![0; 2 * n]);
        if pads.len() != 2 * n {
            return bad(format!("{} pads do not fit {n} axes", pads.len()));
        }
        let mut out = Windows {
            before: pads[..n].to_vec(),
            after: pads[n..].to_vec(),
            kernel,
            strides,
            dilations,
        };
        let auto = c.text("auto_pad", "NOTSET")?;
        for (i, &len) in spatial.iter().enumerate() {
            let needed = || {
                let windows = len.div_ceil(out.strides[i]) as i64;
                let covered = (windows - 1) * out.strides[i] as i64 + out.span(i) as i64;
                (covered - len as i64).max(0)
            };
            match auto.as_str() {
                "NOTSET" | "" => {}
                "VALID" => (out.before[i], out.after[i]) = (0, 0),
                "SAME_UPPER" => {
                    let all = needed();
                    (out.before[i], out.after[i]) = (all / 2, all - all / 2);
                }
                "SAME_LOWER" => {
                    let all = needed();
                    (out.before[i], out.after[i]) = (all - all / 2, all / 2);
                }
                other => return bad(format!("auto_pad {other:?} is unknown")),
            }
        }
        Ok(out)
    }

    /// Attributes of a jet over these windows; jets do not crop.
    pub(super) fn attrs(&self) -> Option<Attrs> {
        let pads: Vec<i64> = self.before.iter().chain(&self.after).copied().collect();
        let attrs = Attrs::new()
            .with("strides", self.strides.as_slice())
            .with("dilations", self.dilations.as_slice());
        pads.iter().all(|&p| p >= 0).then(|| attrs.with("pads", pads))
    }

    /// What a window covers of axis `i`.
    pub(super) fn span(&self, i: usize) -> usize {
        (self.kernel[i] - 1).saturating_mul(self.dilations[i]).saturating_add(1)
    }

    /// Windows along axis `i` of length `n`; with `ceil` also those that begin inside the axis or
    /// the padding before it but reach beyond the padding behind it.
    pub(super) fn count(&self, i: usize, n: usize, ceil: bool) -> Result<usize, OpError> {
        let padded = n as i64 + self.before[i] + self.after[i];
        let room = padded - self.span(i) as i64;
        if room < 0 {
            return bad(format!("a window of {} does not fit {padded} elements", self.span(i)));
        }
        let stride = self.strides[i] as i64;
        let mut windows = room / stride + 1;
        if ceil && room % stride != 0 && windows * stride < n as i64 + self.before[i] {
            windows += 1;
        }
        Ok(windows as usize)
    }
}

/// `axis` padded by `value`, or cropped where a pad is negative.
pub(super) fn pad_or_crop(
    c: &mut Context<'_>,
    x: ValueId,
    axis: usize,
    before: i64,
    after: i64,
    value: f64,
) -> Made {
    let n = c.dims(x)?[axis] as i64;
    let mut y = x;
    if before < 0 || after < 0 {
        let (from, to) = ((-before).max(0), (-after).max(0));
        y = c.b.slice(y, axis, from as usize, sizes(&[n - from - to])?[0])?;
    }
    if before > 0 || after > 0 {
        y = c.b.pad(y, axis, before.max(0) as usize, after.max(0) as usize, value)?;
    }
    Ok(y)
}

/// `x` [N, C, d...] as windows [N, C, o..., k...]; beyond its edges it is `value`. `counts` are the
/// windows along each axis.
pub(super) fn windows(
    c: &mut Context<'_>,
    x: ValueId,
    w: &Windows,
    counts: &[usize],
    value: f64,
) -> Made {
    let mut y = x;
    for (i, &count) in counts.iter().enumerate() {
        let axis = i + 2;
        let n = c.dims(y)?[axis] as i64;
        let covered = (count as i64 - 1) * w.strides[i] as i64 + w.span(i) as i64;
        let after = covered - n - w.before[i];
        y = pad_or_crop(c, y, axis, w.before[i], after, value)?;
        y = c.b.window(y, axis, w.kernel[i], w.strides[i], w.dilations[i])?;
    }
    Ok(y)
}

/// A convolution with the node's attributes, without bias: any dtype that multiplies.
pub(super) fn conv(c: &mut Context<'_>, x: ValueId, weight: ValueId) -> Made {
    let (dims, wd) = (c.dims(x)?, c.dims(weight)?);
    if dims.len() < 3 || wd.len() != dims.len() {
        return bad(format!("an input of {dims:?} and a kernel of {wd:?} do not fit"));
    }
    let (w, groups) = windows_of(c, &dims, &wd)?;
    conv_with(c, x, weight, &w, groups)
}

fn windows_of(c: &Context<'_>, dims: &[usize], wd: &[usize]) -> Result<(Windows, usize), OpError> {
    let kernel = match c.opt_int_list("kernel_shape")? {
        Some(kernel) => sizes(&kernel)?,
        None => wd[2..].to_vec(),
    };
    if kernel != wd[2..] {
        return bad(format!("attribute kernel_shape {kernel:?} contradicts the kernel {wd:?}"));
    }
    let w = Windows::of(c, &dims[2..], kernel)?;
    Ok((w, sizes(&[c.int("group", 1)?])?[0]))
}

pub(super) fn check_groups(dims: &[usize], wd: &[usize], groups: usize) -> Result<(), OpError> {
    let channels = dims[1];
    if groups == 0 || !wd[0].is_multiple_of(groups) || wd[1].checked_mul(groups) != Some(channels) {
        return bad(format!("{channels} channels do not fit a kernel {wd:?} of {groups} groups"));
    }
    Ok(())
}

pub(super) fn conv_with(
    c: &mut Context<'_>,
    x: ValueId,
    weight: ValueId,
    w: &Windows,
    groups: usize,
) -> Made {
    let (dims, wd) = (c.dims(x)?, c.dims(weight)?);
    let (n, channels, out) = (dims[0], dims[1], wd[0]);
    check_groups(&dims, &wd, groups)?;
    let axes = dims.len() - 2;
    let counts: Vec<usize> =
        (0..axes).map(|i| w.count(i, dims[i + 2], false)).collect::<Result<_, _>>()?;
    let seen = windows(c, x, w, &counts, 0.0)?;
    let (places, taps): (usize, usize) = (counts.iter().product(), w.kernel.iter().product());
    let inner = channels / groups * taps;
    let mut shape = vec![n, out];
    shape.extend_from_slice(&counts);
    let mut perm = vec![0, 1];
    perm.extend(2 + axes..2 + 2 * axes);
    perm.extend(2..2 + axes);
    let columns = c.b.permute(seen, &perm)?;
    let columns = c.reshape(columns, &[n, groups, inner, places])?;
    let matrix = c.reshape(weight, &[groups, out / groups, inner])?;
    let y = c.matmul(matrix, columns)?;
    c.reshape(y, &shape)
}

/// As a convolution of the input with zeros between its elements.
fn conv_transpose(c: &mut Context<'_>) -> Outputs {
    let (x, weight) = (c.x(0)?, c.x(1)?);
    let bias = c.opt(2)?;
    let (dims, wd) = (c.dims(x.id)?, c.dims(weight.id)?);
    if dims.len() < 3 || wd.len() != dims.len() || wd[0] != dims[1] {
        return bad(format!("an input of {dims:?} and a kernel of {wd:?} do not fit"));
    }
    let axes = dims.len() - 2;
    let groups = sizes(&[c.int("group", 1)?])?[0];
    if groups == 0 || dims[1] % groups != 0 {
        return bad(format!("{} channels do not make {groups} groups", dims[1]));
    }
    let list = |name: &str, default: i64| -> Result<Vec<i64>, OpError> {
        let list = c.opt_int_list(name)?.unwrap_or_else(|| vec![default; axes]);
        if list.len() == axes { Ok(list) } else { bad(format!("attribute {name} is too short")) }
    };
    let (strides, dilations) = (sizes(&list("strides", 1)?)?, sizes(&list("dilations", 1)?)?);
    let extra = list("output_padding", 0)?;
    let wanted = c.opt_int_list("output_shape")?;
    let pads = c.opt_int_list("pads")?.unwrap_or_else(|| vec![0; 2 * axes]);
    let auto = c.text("auto_pad", "NOTSET")?;
    if pads.len() != 2 * axes || strides.contains(&0) || dilations.contains(&0) {
        return bad("pads, strides and dilations do not fit the axes");
    }
    let w = Windows {
        kernel: wd[2..].to_vec(),
        strides: vec![1; axes],
        dilations,
        before: vec![0; axes],
        after: vec![0; axes],
    };
    if w.kernel.contains(&0) {
        return bad("the kernel is empty");
    }
    let wide = c.wide(x.id)?;
    let mut edges = Vec::with_capacity(axes);
    for i in 0..axes {
        let axis = i + 2;
        let (n, stride, span) = (dims[axis] as i64, strides[i] as i64, w.span(i) as i64);
        let full = (n - 1) * stride + span + extra[i];
        let target = match &wanted {
            Some(shape) => shape.get(shape.len().saturating_sub(axes) + i).copied(),
            None if auto.starts_with("SAME") => Some(n * stride),
            None => None,
        };
        let (before, after) = match target {
            Some(target) => {
                let all = full - target;
                let small = all.div_euclid(2);
                if auto == "SAME_UPPER" { (small, all - small) } else { (all - small, small) }
            }
            None if auto == "VALID" => (0, 0),
            None => (pads[i], pads[axes + i]),
        };
        edges.push((before, after));
    }
    let bias = match bias {
        Some(bias) => Some(c.cast(bias.id, c.dtype(wide))?),
        None => None,
    };
    let all: Vec<i64> = edges.iter().map(|e| e.0).chain(edges.iter().map(|e| e.1)).collect();
    if c.dtype(wide) == DType::F32 && axes <= 3 && all.iter().chain(&extra).all(|&p| p >= 0) {
        let attrs = Attrs::new()
            .with("strides", strides.as_slice())
            .with("dilations", w.dilations.as_slice())
            .with("pads", all)
            .with("groups", groups)
            .with("output_padding", extra);
        let mut inputs = vec![wide, c.wide(weight.id)?];
        inputs.extend(bias);
        let y = c.b.jet(&CONV_TRANSPOSE, attrs, &inputs)?;
        let y = c.cast(y, c.dtype(x.id))?;
        return c.one(y, x.elem);
    }
    let mut y = wide;
    for i in 0..axes {
        let axis = i + 2;
        let (n, span) = (dims[axis], w.span(i) as i64);
        let (before, after) = edges[i];
        if strides[i] > 1 && n > 0 {
            let mut now = c.dims(y)?;
            now.insert(axis + 1, 1);
            y = c.reshape(y, &now)?;
            y = c.b.pad(y, axis + 1, 0, strides[i] - 1, 0.0)?;
            now.remove(axis + 1);
            now[axis] *= strides[i];
            y = c.reshape(y, &now)?;
            y = c.b.slice(y, axis, 0, now[axis] - (strides[i] - 1))?;
        }
        y = pad_or_crop(c, y, axis, span - 1 - before, span - 1 - after + extra[i], 0.0)?;
    }
    // [C, M/g, k...] to [M, C/g, k...], each kernel turned around.
    let per_group = wd[1];
    let mut kernel = c.wide(weight.id)?;
    let taps: usize = w.kernel.iter().product();
    for (i, &n) in w.kernel.iter().enumerate() {
        if n > 1 {
            kernel = c.b.strided(kernel, i + 2, n - 1, n, -1)?;
        }
    }
    kernel = c.reshape(kernel, &[groups, dims[1] / groups, per_group, taps])?;
    kernel = c.b.permute(kernel, &[0, 2, 1, 3])?;
    let mut shape = vec![groups * per_group, dims[1] / groups];
    shape.extend_from_slice(&w.kernel);
    kernel = c.reshape(kernel, &shape)?;
    let y = conv_with(c, y, kernel, &w, groups)?;
    let y = with_bias(c, y, bias)?;
    let y = c.cast(y, c.dtype(x.id))?;
    c.one(y, x.elem)
}

/// Columns [N, C*k, L] added up where they came from.
fn col2im(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let (image, block) = (sizes(&c.ints(1)?)?, sizes(&c.ints(2)?)?);
    let dims = c.dims(x.id)?;
    let w = Windows::of(c, &image, block)?;
    let axes = image.len();
    let taps: usize = w.kernel.iter().product();
    let counts: Vec<usize> =
        (0..axes).map(|i| w.count(i, image[i], false)).collect::<Result<_, _>>()?;
    let places: usize = counts.iter().product();
    let [n, columns, len] = dims[..] else { return bad("the input must have three axes") };
    if columns % taps != 0 || len != places {
        return bad(format!("{dims:?} are no columns of blocks {:?} in {image:?}", w.kernel));
    }
    let channels = columns / taps;
    let total: usize = image.iter().product();
    // The place of each tap of each window; those outside the image go behind it.
    let mut index = Vec::with_capacity(taps * places);
    for tap in 0..taps {
        for place in 0..places {
            let (mut t, mut p) = (tap, place);
            let (mut flat, mut step, mut inside) = (0i64, 1i64, true);
            for i in (0..axes).rev() {
                let (k, o) = (t % w.kernel[i], p % counts[i]);
                (t, p) = (t / w.kernel[i], p / counts[i]);
                let at = (o * w.strides[i] + k * w.dilations[i]) as i64 - w.before[i];
                inside &= (0..image[i] as i64).contains(&at);
                flat += at * step;
                step *= image[i] as i64;
            }
            index.push(if inside { flat } else { total as i64 });
        }
    }
    let rows = c.reshape(x.id, &[n * channels, taps * places])?;
    let rows = c.b.permute(rows, &[1, 0])?;
    let zero = c.scalar(x.id, 0.0)?;
    let base = c.broadcast(zero, &[total + 1, n * channels])?;
    let index = c.indices(vec![taps * places], &index)?;
    let y = c.b.scatter(base, 0, Scatter::Add, index, rows)?;
    let y = c.b.slice(y, 0, 0, total)?;
    let y = c.b.permute(y, &[1, 0])?;
    let mut shape = vec![n, channels];
    shape.extend_from_slice(&image);
    let y = c.reshape(y, &shape)?;
    c.one(y, x.elem)
}

/// A depthwise convolution over [B, C, L] that sees the past, which is carried as a state.
fn causal_conv(c: &mut Context<'_>) -> Outputs {
    let (x, weight) = (c.x(0)?, c.x(1)?);
    let (bias, past) = (c.opt(2)?, c.opt(3)?);
    let (dims, wd) = (c.dims(x.id)?, c.dims(weight.id)?);
    let Some(&taps) = wd.last() else { return bad("the kernel needs axes") };
    if dims.len() != 3 || wd.len() != 3 || taps == 0 {
        return bad(format!("an input of {dims:?} and a kernel of {wd:?} do not fit"));
    }
    let wide = c.wide(x.id)?;
    let before = match past {
        Some(past) => {
            let past = c.cast(past.id, c.dtype(wide))?;
            c.b.concat(&[past, wide], 2)?
        }
        None => c.b.pad(wide, 2, taps - 1, 0, 0.0)?,
    };
    let w = Windows {
        kernel: vec![taps],
        strides: vec![1],
        dilations: vec![1],
        before: vec![0],
        after: vec![0],
    };
    let kernel = c.cast(weight.id, c.dtype(wide))?;
    let mut y = conv_with(c, before, kernel, &w, dims[1] / wd[1].max(1))?;
    if let Some(bias) = bias {
        let bias = c.cast(bias.id, c.dtype(y))?;
        let bias = by_channel(c, bias, 3)?;
        y = c.b.add(y, bias)?;
    }
    y = match c.text("activation", "none")?.as_str() {
        "none" => y,
        "silu" | "swish" => {
            let s = c.sigmoid(y)?;
            c.b.mul(y, s)?
        }
        other => return bad(format!("activation {other:?} is unknown")),
    };
    let total = c.dims(before)?[2];
    let state = c.b.slice(before, 2, total - (taps - 1), taps - 1)?;
    let (y, state) = (c.cast(y, c.dtype(x.id))?, c.cast(state, c.dtype(x.id))?);
    c.several(&[y, state])
}
