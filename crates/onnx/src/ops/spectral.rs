//! Fourier transforms as products with fixed matrices, and windows.

use std::f64::consts::TAU;

use cyb_formats::onnx::Elem;
use cyb_ir::ValueId;

use super::Rows;
use super::shape::sizes;
use crate::context::{Context, Made, Outputs};
use crate::error::{OpError, bad};
use crate::value::{Val, floats_tensor};

pub(super) static ROWS: Rows = &[
    ("DFT", dft),
    ("STFT", stft),
    ("HannWindow", |c| window(c, &[0.5, -0.5])),
    ("HammingWindow", |c| window(c, &[25.0 / 46.0, -21.0 / 46.0])),
    ("BlackmanWindow", |c| window(c, &[0.42, -0.5, 0.08])),
    ("MelWeightMatrix", mel),
];

/// A sum of cosines of multiples of the phase.
fn window(c: &mut Context<'_>, terms: &[f64]) -> Outputs {
    let n = sizes(&[c.int_input(0)?])?[0];
    let periodic = c.flag("periodic", true)?;
    let elem = Elem::from_id(c.int("output_datatype", 1)?);
    let Some(elem) = elem else { return bad("output_datatype is unknown") };
    let Some(dtype) = elem.storage() else { return bad(format!("{elem} has no dtype here")) };
    let period = if periodic { n } else { n.saturating_sub(1).max(1) } as f64;
    let value = |i: usize| -> f64 {
        let phase = TAU * i as f64 / period;
        terms.iter().enumerate().map(|(k, a)| a * (k as f64 * phase).cos()).sum()
    };
    let numbers: Vec<f64> = (0..n).map(value).collect();
    let tensor = floats_tensor(dtype, vec![n], &numbers)?;
    Ok(vec![Val::Known { elem, tensor }])
}

fn mel(c: &mut Context<'_>) -> Outputs {
    let number = |c: &Context<'_>, i: usize| -> Result<f64, OpError> {
        match c.floats(i)?.as_slice() {
            [x] => Ok(*x),
            _ => bad(format!("input {i} must be one number")),
        }
    };
    let (bins, length, rate) = (number(c, 0)?, number(c, 1)?, number(c, 2)?);
    let (low, high) = (number(c, 3)?, number(c, 4)?);
    let elem = Elem::from_id(c.int("output_datatype", 1)?);
    let Some(elem) = elem else { return bad("output_datatype is unknown") };
    let Some(dtype) = elem.storage() else { return bad(format!("{elem} has no dtype here")) };
    let to_mel = |hz: f64| 2595.0 * (1.0 + hz / 700.0).log10();
    let to_hz = |mel: f64| 700.0 * (10f64.powf(mel / 2595.0) - 1.0);
    let n = bins as usize;
    let rows = (length / 2.0).floor() as usize + 1;
    let (from, to) = (to_mel(low), to_mel(high));
    let step = (to - from) / (bins + 2.0);
    let edges: Vec<usize> = (0..n + 2)
        .map(|i| ((length + 1.0) * to_hz(from + step * i as f64) / rate).floor() as usize)
        .collect();
    let mut out = vec![0.0; rows * n];
    for bin in 0..n {
        let (lower, center, upper) = (edges[bin], edges[bin + 1], edges[bin + 2]);
        for row in lower..=center.min(rows.saturating_sub(1)) {
            let rise = center - lower;
            out[row * n + bin] = if rise == 0 { 1.0 } else { (row - lower) as f64 / rise as f64 };
        }
        for row in center..upper.min(rows) {
            let fall = upper - center;
            if fall > 0 {
                out[row * n + bin] = (upper - row) as f64 / fall as f64;
            }
        }
    }
    let tensor = floats_tensor(dtype, vec![rows, n], &out)?;
    Ok(vec![Val::Known { elem, tensor }])
}

/// Cosines and sines [n, m] of the transform of n elements to m frequencies.
fn waves(n: usize, m: usize, length: usize, sign: f64, scale: f64) -> (Vec<f64>, Vec<f64>) {
    let mut cos = Vec::with_capacity(n * m);
    let mut sin = Vec::with_capacity(n * m);
    for i in 0..n {
        for k in 0..m {
            // The product is reduced first, so that large ones lose no digits.
            let phase = TAU * ((i * k) % length.max(1)) as f64 / length as f64;
            cos.push(phase.cos() * scale);
            sin.push(phase.sin() * sign * scale);
        }
    }
    (cos, sin)
}

/// `axis` of `x` times a matrix [n, m].
fn along(c: &mut Context<'_>, x: ValueId, axis: usize, m: usize, matrix: &[f64]) -> Made {
    let rank = c.rank(x);
    let n = c.dims(x)?[axis];
    let mut perm: Vec<usize> = (0..rank).filter(|&i| i != axis).collect();
    perm.push(axis);
    let turned = c.b.permute(x, &perm)?;
    let matrix = c.numbers(c.dtype(x), vec![n, m], matrix)?;
    let y = super::matmul::product(c, turned, matrix)?;
    let mut back: Vec<usize> = (0..rank - 1).collect();
    back.insert(axis, rank - 1);
    Ok(c.b.permute(y, &back)?)
}

fn dft(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let rank = dims.len();
    let axis =
        if c.opset >= 20 { if c.has(2) { c.int_input(2)? } else { -2 } } else { c.int("axis", 1)? };
    let axis = c.axis(axis, rank)?;
    if axis + 1 == rank {
        return bad("the last axis holds real and imaginary parts");
    }
    let (inverse, half) = (c.flag("inverse", false)?, c.flag("onesided", false)?);
    let n = dims[axis];
    let to_real = inverse && half;
    let length = match c.opt_ints(1)? {
        Some(length) => sizes(&length)?.first().copied().unwrap_or(n),
        None if to_real => 2 * n.saturating_sub(1),
        None => n,
    };
    let mut y = c.wide(x.id)?;
    let expected = if to_real { length / 2 + 1 } else { length };
    if n > expected {
        y = c.b.slice(y, axis, 0, expected)?;
    } else if n < expected {
        y = c.b.pad(y, axis, 0, expected - n, 0.0)?;
    }
    let last = rank - 1;
    let complex = dims[last] == 2;
    let part = |c: &mut Context<'_>, i: usize| -> Made { Ok(c.b.slice(y, last, i, 1)?) };
    let real = part(c, 0)?;
    let imaginary = if complex { Some(part(c, 1)?) } else { None };
    if to_real {
        // Frequencies other than the first and, for even lengths, the middle one stand for two.
        let (mut cos, mut sin) = waves(expected, length, length, -1.0, 1.0 / length as f64);
        for k in 0..expected {
            let twice = k > 0 && !(length.is_multiple_of(2) && k == expected - 1);
            let weight = if twice { 2.0 } else { 1.0 };
            for i in 0..length {
                cos[k * length + i] *= weight;
                sin[k * length + i] *= weight;
            }
        }
        let mut out = along(c, real, axis, length, &cos)?;
        if let Some(imaginary) = imaginary {
            let more = along(c, imaginary, axis, length, &sin)?;
            out = c.b.add(out, more)?;
        }
        let out = c.cast(out, c.dtype(x.id))?;
        return c.one(out, x.elem);
    }
    let m = if half { length / 2 + 1 } else { length };
    let (sign, scale) = if inverse { (1.0, 1.0 / length as f64) } else { (-1.0, 1.0) };
    let (cos, sin) = waves(length, m, length, sign, scale);
    let mut re = along(c, real, axis, m, &cos)?;
    let mut im = along(c, real, axis, m, &sin)?;
    if let Some(imaginary) = imaginary {
        let a = along(c, imaginary, axis, m, &sin)?;
        re = c.sub(re, a)?;
        let b = along(c, imaginary, axis, m, &cos)?;
        im = c.b.add(im, b)?;
    }
    let out = c.b.concat(&[re, im], last)?;
    let out = c.cast(out, c.dtype(x.id))?;
    c.one(out, x.elem)
}

fn stft(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let step = sizes(&[c.int_input(1)?])?[0];
    let window = c.opt(2)?;
    let half = c.flag("onesided", true)?;
    let dims = c.dims(x.id)?;
    let (batch, n, parts) = match dims[..] {
        [batch, n] => (batch, n, 1),
        [batch, n, parts] => (batch, n, parts),
        _ => return bad("the signal must be [batch, length, 1 or 2]"),
    };
    let length = if c.has(3) {
        sizes(&[c.int_input(3)?])?[0]
    } else {
        match window {
            Some(w) => c.dims(w.id)?[0],
            None => return bad("a window or a frame length is needed"),
        }
    };
    if step == 0 || length == 0 || length > n {
        return bad(format!("frames of {length} every {step} do not fit {n} samples"));
    }
    let wide = c.wide(x.id)?;
    let signal = c.reshape(wide, &[batch, n, parts])?;
    let m = if half { length / 2 + 1 } else { length };
    let (cos, sin) = waves(length, m, length, -1.0, 1.0);
    let mut sums: [Option<ValueId>; 2] = [None, None];
    for part in 0..parts.min(2) {
        let one = c.b.slice(signal, 2, part, 1)?;
        let one = c.reshape(one, &[batch, n])?;
        let mut frames = c.b.window(one, 1, length, step, 1)?; // [B, F, L]
        if let Some(w) = window {
            let w = c.cast(w.id, c.dtype(frames))?;
            frames = c.b.mul(frames, w)?;
        }
        let (a, b) = (along(c, frames, 2, m, &cos)?, along(c, frames, 2, m, &sin)?);
        sums = match (part, sums) {
            (0, _) => [Some(a), Some(b)],
            (_, [Some(re), Some(im)]) => {
                let re = c.sub(re, b)?;
                [Some(re), Some(c.b.add(im, a)?)]
            }
            (_, other) => other,
        };
    }
    let [Some(re), Some(im)] = sums else { return bad("the signal has no samples") };
    let (re, im) = (c.b.unsqueeze(re, 3)?, c.b.unsqueeze(im, 3)?);
    let y = c.b.concat(&[re, im], 3)?;
    let y = c.cast(y, c.dtype(x.id))?;
    c.one(y, x.elem)
}
