//! Convolutions whose taps are moved by an input: each tap reads between four elements.

use cyb_ir::{Cmp, ValueId};
use cyb_tensor::DType;

use super::Rows;
use super::conv::{Windows, check_groups, with_bias};
use super::shape::sizes;
use crate::context::{Context, Made, Outputs};
use crate::error::bad;

pub(super) static ROWS: Rows = &[("DeformConv", deform_conv)];

/// The sizes of a deformable convolution of an image.
struct Shape {
    n: usize,
    /// Groups of channels that share their offsets.
    offset_groups: usize,
    /// Channels of such a group.
    channels: usize,
    input: [usize; 2],
    output: [usize; 2],
    kernel: [usize; 2],
}

impl Shape {
    fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    fn places(&self) -> usize {
        self.output[0] * self.output[1]
    }
}

fn deform_conv(c: &mut Context<'_>) -> Outputs {
    let (x, weight, offset) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let (bias, mask) = (c.opt(3)?, c.opt(4)?);
    let (dims, wd) = (c.dims(x.id)?, c.dims(weight.id)?);
    let ([n, in_channels, h, w], [out, _, kh, kw]) = (&dims[..], &wd[..]) else {
        return bad(format!("an input of {dims:?} is no picture; two spatial axes are supported"));
    };
    let (n, in_channels, input, kernel) = (*n, *in_channels, [*h, *w], [*kh, *kw]);
    if let Some(given) = c.opt_int_list("kernel_shape")?
        && sizes(&given)? != kernel
    {
        return bad(format!("attribute kernel_shape {given:?} contradicts the kernel {wd:?}"));
    }
    let win = Windows::of(c, &input, kernel.to_vec())?;
    let [groups, offset_groups] =
        [c.int("group", 1)?, c.int("offset_group", 1)?].map(|g| usize::try_from(g).unwrap_or(0));
    check_groups(&dims, &wd, groups)?;
    if offset_groups == 0 || in_channels % offset_groups != 0 {
        return bad(format!("{in_channels} channels do not make {offset_groups} offset groups"));
    }
    let output = [win.count(0, input[0], false)?, win.count(1, input[1], false)?];
    let channels = in_channels / offset_groups;
    let s = Shape { n, offset_groups, channels, input, output, kernel };
    let (taps, places) = (s.taps(), s.places());
    if c.dims(offset.id)? != [n, offset_groups * taps * 2, output[0], output[1]] {
        return bad(format!(
            "an offset of {:?} does not fit {n} outputs of {output:?}",
            c.dims(offset.id)?
        ));
    }
    let (wide, kernel) = (c.wide(x.id)?, c.wide(weight.id)?);
    let kernel = c.cast(kernel, c.dtype(wide))?;
    let at = positions(c, offset.id, &s, &win)?;
    let mut read = between(c, wide, at, &s)?; // [N, OG, taps, places, C/OG]
    if let Some(mask) = mask {
        let mask = c.cast(mask.id, c.dtype(read))?;
        let mask = c.reshape(mask, &[n, offset_groups, taps, places, 1])?;
        read = c.b.mul(read, mask)?;
    }
    let columns = c.b.permute(read, &[0, 1, 4, 2, 3])?;
    let inner = in_channels / groups * taps;
    let columns = c.reshape(columns, &[n, groups, inner, places])?;
    let matrix = c.reshape(kernel, &[groups, out / groups, inner])?;
    let y = c.matmul(matrix, columns)?;
    let y = c.reshape(y, &[n, *out, output[0], output[1]])?;
    let bias = match bias {
        Some(bias) => Some(c.cast(bias.id, c.dtype(y))?),
        None => None,
    };
    let y = with_bias(c, y, bias)?;
    let y = c.cast(y, c.dtype(x.id))?;
    c.one(y, x.elem)
}

/// Where each tap reads, by axis: [N, OG, taps, places] in `F64`.
fn positions(
    c: &mut Context<'_>,
    offset: ValueId,
    s: &Shape,
    win: &Windows,
) -> Result<[ValueId; 2], crate::error::OpError> {
    let (taps, places) = (s.taps(), s.places());
    let wide = c.cast(offset, DType::F64)?;
    let by_axis = c.reshape(wide, &[s.n, s.offset_groups, taps, 2, places])?;
    let mut at = [offset; 2];
    for (axis, slot) in at.iter_mut().enumerate() {
        let moved = c.b.slice(by_axis, 3, axis, 1)?;
        let moved = c.reshape(moved, &[s.n, s.offset_groups, taps, places])?;
        let mut still = Vec::with_capacity(taps * places);
        for tap in 0..taps {
            let k = if axis == 0 { tap / s.kernel[1] } else { tap % s.kernel[1] };
            for place in 0..places {
                let o = if axis == 0 { place / s.output[1] } else { place % s.output[1] };
                let start = (o * win.strides[axis]) as f64 - win.before[axis] as f64;
                still.push(start + (k * win.dilations[axis]) as f64);
            }
        }
        let still = c.numbers(DType::F64, vec![taps, places], &still)?;
        *slot = c.b.add(moved, still)?;
    }
    Ok(at)
}

/// What lies between the elements of `x` [N, C, H, W] at `at`, which is 0 outside:
/// [N, OG, taps, places, C/OG].
fn between(c: &mut Context<'_>, x: ValueId, at: [ValueId; 2], s: &Shape) -> Made {
    let (dtype, [h, w]) = (c.dtype(x), s.input);
    let rows = c.reshape(x, &[s.n, s.offset_groups, s.channels, h * w])?;
    let rows = c.b.permute(rows, &[0, 1, 3, 2])?;
    let rows = c.reshape(rows, &[s.n * s.offset_groups * h * w, s.channels])?;
    let image = c.b.iota((s.n * s.offset_groups).into());
    let image = c.b.scale(image, (h * w) as f64)?;
    let image = c.reshape(image, &[s.n, s.offset_groups, 1, 1])?;
    // For each axis the element before and the one after, with their shares.
    let mut ends = Vec::new();
    for position in at {
        let low = c.floor(position)?;
        let part = c.sub(position, low)?;
        let minus = c.neg(part)?;
        let rest = c.b.offset(minus, 1.0)?;
        let high = c.b.offset(low, 1.0)?;
        ends.push([(low, rest), (high, part)]);
    }
    let mut sum = None;
    for (row, row_share) in ends[0] {
        for (column, column_share) in ends[1] {
            let mut share = c.b.mul(row_share, column_share)?;
            let mut index = image;
            for (place, n, stride) in [(row, h, w), (column, w, 1)] {
                let (zero, last) = (c.scalar(place, 0.0)?, c.scalar(place, n as f64 - 1.0)?);
                let inner = c.b.max(place, zero)?;
                let inner = c.b.min(inner, last)?;
                let inside = c.b.cmp(Cmp::Eq, inner, place)?;
                share = c.b.select(inside, share, zero)?;
                let inner = c.cast(inner, DType::I64)?;
                let inner = c.b.scale(inner, stride as f64)?;
                index = c.b.add(index, inner)?;
            }
            let value = c.b.gather(rows, 0, index)?;
            let share = c.cast(share, dtype)?;
            let share = c.b.unsqueeze(share, 4)?;
            let value = c.b.mul(value, share)?;
            sum = Some(match sum {
                Some(sum) => c.b.add(sum, value)?,
                None => value,
            });
        }
    }
    sum.map_or_else(|| bad("reads nothing"), Ok)
}
