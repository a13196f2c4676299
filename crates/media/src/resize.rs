//! Bilinear resampling as OpenCV does it for 8-bit pictures (`INTER_LINEAR`): positions in f32,
//! weights of 11 bits, sums in integers. Models are trained on pictures that went through it, so
//! its rounding is part of what they expect.

use crate::Image;

/// Bits of a weight.
const BITS: i32 = 11;
const ONE: i32 = 1 << BITS;

/// Two neighbors along an axis, and their weights.
#[derive(Clone, Copy)]
struct Tap {
    first: usize,
    second: usize,
    weights: [i32; 2],
}

fn rounded(v: f32) -> i32 {
    v.round_ties_even() as i32
}

/// Columns: outside the picture the outermost column counts alone.
fn columns(from: u32, to: u32) -> Vec<Tap> {
    let last = from as usize - 1;
    taps(from, to, |low, t| {
        if low < 0 {
            Tap { first: 0, second: 0, weights: [ONE, 0] }
        } else if low as usize >= last {
            Tap { first: last, second: last, weights: [ONE, 0] }
        } else {
            let weights = [rounded((1.0 - t) * ONE as f32), rounded(t * ONE as f32)];
            Tap { first: low as usize, second: low as usize + 1, weights }
        }
    })
}

/// Rows: outside the picture the outermost row stands for its neighbor.
fn rows(from: u32, to: u32) -> Vec<Tap> {
    let last = i64::from(from) - 1;
    taps(from, to, |low, t| Tap {
        first: low.clamp(0, last) as usize,
        second: (low + 1).clamp(0, last) as usize,
        weights: [rounded((1.0 - t) * ONE as f32), rounded(t * ONE as f32)],
    })
}

fn taps(from: u32, to: u32, tap: impl Fn(i64, f32) -> Tap) -> Vec<Tap> {
    let scale = 1.0 / (f64::from(to) / f64::from(from));
    let one = |i: u32| {
        let at = ((f64::from(i) + 0.5) * scale - 0.5) as f32;
        let low = at.floor();
        tap(low as i64, at - low)
    };
    (0..to).map(one).collect()
}

/// The picture at another size.
///
/// # Errors
/// The new size is empty or too large.
pub fn resize_linear(image: &Image, width: u32, height: u32) -> Result<Image, crate::MediaError> {
    let mut out = Image::filled(width, height, [0; 3])?;
    if (width, height) == (image.width(), image.height()) {
        out.rgb_mut().copy_from_slice(image.rgb());
        return Ok(out);
    }
    if (width * 2, height * 2) == (image.width(), image.height()) {
        halve(image, &mut out);
        return Ok(out);
    }
    let columns = columns(image.width(), width);
    let rows = rows(image.height(), height);
    let len = width as usize * 3;
    // The last two source rows, resampled along x, and their numbers.
    let mut lines = [(usize::MAX, vec![0i32; len]), (usize::MAX, vec![0i32; len])];
    for (tap, out) in rows.iter().zip(out.rgb_mut().chunks_exact_mut(len)) {
        if lines[1].0 == tap.first {
            lines.swap(0, 1);
        }
        for (slot, wanted) in [tap.first, tap.second].into_iter().enumerate() {
            if lines[slot].0 != wanted {
                stretch(image.row(wanted as u32), &columns, &mut lines[slot].1);
                lines[slot].0 = wanted;
            }
        }
        let [a, b] = tap.weights;
        for ((out, &upper), &lower) in out.iter_mut().zip(&lines[0].1).zip(&lines[1].1) {
            let sum = ((a * (upper >> 4)) >> 16) + ((b * (lower >> 4)) >> 16);
            *out = ((sum + 2) >> 2).clamp(0, 255) as u8;
        }
    }
    Ok(out)
}

fn stretch(row: &[u8], columns: &[Tap], out: &mut [i32]) {
    for (tap, out) in columns.iter().zip(out.chunks_exact_mut(3)) {
        let (first, second) = (&row[tap.first * 3..][..3], &row[tap.second * 3..][..3]);
        let [a, b] = tap.weights;
        for ((out, &x), &y) in out.iter_mut().zip(first).zip(second) {
            *out = i32::from(x) * a + i32::from(y) * b;
        }
    }
}

/// At exactly half the size OpenCV takes the mean of four pixels.
fn halve(image: &Image, out: &mut Image) {
    let len = out.width() as usize * 3;
    for (y, out) in out.rgb_mut().chunks_exact_mut(len).enumerate() {
        let (upper, lower) = (image.row(2 * y as u32), image.row(2 * y as u32 + 1));
        let pairs = upper.chunks_exact(6).zip(lower.chunks_exact(6));
        for (out, (upper, lower)) in out.chunks_exact_mut(3).zip(pairs) {
            for c in 0..3 {
                let sum = [upper[c], upper[c + 3], lower[c], lower[c + 3]].map(u32::from);
                out[c] = ((sum.iter().sum::<u32>() + 2) / 4) as u8;
            }
        }
    }
}
