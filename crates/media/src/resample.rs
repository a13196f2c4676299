//! Resampling as Pillow does it for 8-bit pictures: every output pixel is a weighted mean of the
//! input under it, filters grow wider as pictures shrink, weights have 22 bits. Models are trained
//! on pictures that went through it.
//!
//! Reference: `Resample.c` of <https://github.com/python-pillow/Pillow>.

use std::f64::consts::PI;

use crate::{Image, MediaError};

/// Bits of a weight: 8 are for the pixel and 2 for sums above it.
const BITS: u32 = 32 - 8 - 2;

/// How far, and with what weight, a pixel reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    Nearest,
    Lanczos,
    Bilinear,
    Bicubic,
    Box,
    Hamming,
}

impl Filter {
    /// The filter that Pillow, and so a preprocessor's configuration, numbers so.
    pub fn from_number(number: u32) -> Option<Filter> {
        const FILTERS: [Filter; 6] = [
            Filter::Nearest,
            Filter::Lanczos,
            Filter::Bilinear,
            Filter::Bicubic,
            Filter::Box,
            Filter::Hamming,
        ];
        FILTERS.get(number as usize).copied()
    }

    fn support(self) -> f64 {
        match self {
            Filter::Nearest | Filter::Box => 0.5,
            Filter::Bilinear | Filter::Hamming => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) };
        match self {
            Filter::Nearest | Filter::Box => f64::from(x > -0.5 && x <= 0.5),
            Filter::Bilinear => (1.0 - x.abs()).max(0.0),
            Filter::Hamming => match x.abs() {
                0.0 => 1.0,
                1.0.. => 0.0,
                x => sinc(x) * (0.54 + 0.46 * (x * PI).cos()),
            },
            Filter::Bicubic => {
                const A: f64 = -0.5;
                let x = x.abs();
                if x < 1.0 {
                    ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
                } else if x < 2.0 {
                    (((x - 5.0) * x + 8.0) * x - 4.0) * A
                } else {
                    0.0
                }
            }
            Filter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Filter::Lanczos => 0.0,
        }
    }
}

/// Input pixels of one output pixel along an axis.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

fn taps(from: u32, to: u32, filter: Filter) -> Vec<Taps> {
    let scale = f64::from(from) / f64::from(to);
    let wide = scale.max(1.0);
    let (support, narrow) = (filter.support() * wide, 1.0 / wide);
    let one = |i: u32| {
        let center = (f64::from(i) + 0.5) * scale;
        // Truncation, as in C.
        let first = ((center - support + 0.5) as i64).max(0);
        let end = ((center + support + 0.5) as i64).min(i64::from(from));
        let weight = |at: i64| filter.weight((at as f64 - center + 0.5) * narrow);
        let weights: Vec<f64> = (first..end).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        let whole = |w: f64| {
            let w = if sum == 0.0 { w } else { w / sum };
            let scaled = w * f64::from(1 << BITS);
            (if w < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i32
        };
        Taps { first: first as usize, weights: weights.into_iter().map(whole).collect() }
    };
    (0..to).map(one).collect()
}

fn clipped(sum: i64) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

/// The picture at another size.
///
/// # Errors
/// The new size is empty or too large.
pub fn resample(
    image: &Image,
    width: u32,
    height: u32,
    filter: Filter,
) -> Result<Image, MediaError> {
    if filter == Filter::Nearest {
        let mut out = Image::filled(width, height, [0; 3])?;
        let place = |i: usize, from: u32, to: u32| {
            let at = (i as f64 + 0.5) * (f64::from(from) / f64::from(to));
            (at as usize).min(from as usize - 1)
        };
        let row = width as usize * 3;
        for (y, line) in out.rgb_mut().chunks_exact_mut(row).enumerate() {
            let from = image.row(place(y, image.height(), height) as u32);
            for (x, pixel) in line.chunks_exact_mut(3).enumerate() {
                pixel.copy_from_slice(&from[place(x, image.width(), width) * 3..][..3]);
            }
        }
        return Ok(out);
    }
    // Pillow 13 begins with the axis that loses the most pixels, columns counted twice.
    let lost = |from: u32, to: u32| i64::from(from) - i64::from(to);
    let (rows, columns) = (lost(image.height(), height), lost(image.width(), width));
    match rows > 0 && rows > 2 * columns {
        true => across(&down(image, height, filter)?, width, filter),
        false => down(&across(image, width, filter)?, height, filter),
    }
}

/// What is added to a sum so that it is rounded.
const HALF: i64 = 1 << (BITS - 1);

/// The picture at another width.
fn across(image: &Image, width: u32, filter: Filter) -> Result<Image, MediaError> {
    if width == image.width() {
        return Ok(image.clone());
    }
    let columns = taps(image.width(), width, filter);
    let mut out = Image::filled(width, image.height(), [0; 3])?;
    let row = width as usize * 3;
    for (y, line) in out.rgb_mut().chunks_exact_mut(row).enumerate() {
        let from = image.row(y as u32);
        for (pixel, taps) in line.chunks_exact_mut(3).zip(&columns) {
            let mut sums = [HALF; 3];
            for (rgb, &w) in from[taps.first * 3..].chunks_exact(3).zip(&taps.weights) {
                for (sum, &v) in sums.iter_mut().zip(rgb) {
                    *sum += i64::from(v) * i64::from(w);
                }
            }
            pixel.iter_mut().zip(sums).for_each(|(v, sum)| *v = clipped(sum));
        }
    }
    Ok(out)
}

/// The picture at another height.
fn down(image: &Image, height: u32, filter: Filter) -> Result<Image, MediaError> {
    if height == image.height() {
        return Ok(image.clone());
    }
    let rows = taps(image.height(), height, filter);
    let mut out = Image::filled(image.width(), height, [0; 3])?;
    let mut sums = vec![0i64; image.width() as usize * 3];
    for (line, taps) in out.rgb_mut().chunks_exact_mut(sums.len()).zip(&rows) {
        sums.fill(HALF);
        for (i, &w) in taps.weights.iter().enumerate() {
            let from = image.row((taps.first + i) as u32);
            sums.iter_mut().zip(from).for_each(|(sum, &v)| *sum += i64::from(v) * i64::from(w));
        }
        line.iter_mut().zip(&sums).for_each(|(v, &sum)| *v = clipped(sum));
    }
    Ok(out)
}
