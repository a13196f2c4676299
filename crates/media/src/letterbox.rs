//! Fitting a picture into the square a detector takes: scaled to fit, centered, gray around it, as
//! ultralytics does, and the way back for boxes.

use crate::{Box2, Image, MediaError, resize_linear};

/// The gray around a picture.
const GRAY: u8 = 114;

/// How a picture lies in the model's input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Letterbox {
    /// Size of the picture.
    pub from: [u32; 2],
    /// Width and height of the model's input.
    pub to: [u32; 2],
    /// Width and height of the scaled picture.
    pub scaled: [u32; 2],
    /// Columns left of it and rows above it.
    pub offset: [u32; 2],
    /// Scaled length over length.
    pub gain: f64,
}

impl Letterbox {
    /// The place of a picture of `from` = [width, height] in an input of `to`.
    pub fn fit(from: [u32; 2], to: [u32; 2]) -> Letterbox {
        let ratio = |axis: usize| f64::from(to[axis]) / f64::from(from[axis].max(1));
        let gain = ratio(0).min(ratio(1));
        // Python's `round`: ties to even. A sliver keeps one pixel.
        let scaled = [0, 1].map(|axis| {
            let length = (f64::from(from[axis]) * gain).round_ties_even() as u32;
            length.clamp(1, to[axis].max(1))
        });
        let offset = [0, 1].map(|axis| {
            let around = f64::from(to[axis].saturating_sub(scaled[axis])) / 2.0;
            (around - 0.1).round_ties_even().max(0.0) as u32
        });
        Letterbox { from, to, scaled, offset, gain }
    }

    /// The input as `[3, height, width]`, values from 0 to 1, red first.
    ///
    /// # Errors
    /// The input is empty or too large.
    pub fn tensor(&self, image: &Image) -> Result<Vec<f32>, MediaError> {
        let scaled = resize_linear(image, self.scaled[0], self.scaled[1])?;
        let [width, height] = self.to.map(|n| n as usize);
        let mut out = vec![f32::from(GRAY) / 255.0; 3 * width * height];
        let [left, top] = self.offset.map(|n| n as usize);
        for (channel, plane) in out.chunks_exact_mut(width * height).enumerate() {
            let rows = plane.chunks_exact_mut(width).skip(top);
            let lines = scaled.rgb().chunks_exact(self.scaled[0] as usize * 3);
            for (row, line) in rows.zip(lines) {
                let pixels = line.chunks_exact(3);
                for (slot, pixel) in row[left..].iter_mut().zip(pixels) {
                    *slot = f32::from(pixel[channel]) / 255.0;
                }
            }
        }
        Ok(out)
    }

    /// A box of the input in pixels of the picture, cut at its edges.
    pub fn back(&self, b: Box2) -> Box2 {
        let axis = |v: f32, axis: usize| {
            let at = (f64::from(v) - f64::from(self.offset[axis])) / self.gain;
            (at as f32).clamp(0.0, self.from[axis] as f32)
        };
        Box2 { x1: axis(b.x1, 0), y1: axis(b.y1, 1), x2: axis(b.x2, 0), y2: axis(b.y2, 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The case of ultralytics' pull request 23967.
    #[test]
    fn rounding_is_the_same_in_both_directions() {
        let fit = Letterbox::fit([3775, 1571], [1280, 1280]);
        assert_eq!(fit.scaled, [1280, 533]);
        assert_eq!(fit.offset, [0, 373]);
        let whole = Box2 { x1: 0.0, y1: 373.0, x2: 1280.0, y2: 373.0 + 1571.0 * fit.gain as f32 };
        let back = fit.back(whole);
        assert!(back.y1.abs() < 1e-3 && (back.y2 - 1571.0).abs() < 1e-2, "{back:?}");
        assert!(back.x1.abs() < 1e-3 && (back.x2 - 3775.0).abs() < 1e-2, "{back:?}");
    }

    #[test]
    fn slivers_and_single_pixels_fit() {
        for from in [[1, 1], [20_000, 1], [1, 20_000], [320, 320], [641, 479]] {
            let fit = Letterbox::fit(from, [320, 320]);
            assert!(fit.scaled.iter().all(|&n| (1..=320).contains(&n)), "{from:?}: {fit:?}");
            assert!((0..2).all(|a| fit.offset[a] + fit.scaled[a] <= 320), "{from:?}: {fit:?}");
            let picture = Image::filled(from[0], from[1], [255, 0, 51]).unwrap();
            let tensor = fit.tensor(&picture).unwrap();
            let at = fit.offset[1] as usize * 320 + fit.offset[0] as usize;
            let pixel = [0, 1, 2].map(|c| tensor[c * 320 * 320 + at]);
            assert_eq!(pixel, [1.0, 0.0, 0.2], "{from:?}");
        }
    }

    #[test]
    fn gray_lies_around() {
        let fit = Letterbox::fit([100, 50], [64, 64]);
        assert_eq!((fit.scaled, fit.offset), ([64, 32], [0, 16]));
        let tensor = fit.tensor(&Image::filled(100, 50, [0; 3]).unwrap()).unwrap();
        let gray = tensor.iter().filter(|&&v| v == 114.0 / 255.0).count();
        assert_eq!(gray, 3 * 64 * 32);
        assert_eq!(tensor[0], 114.0 / 255.0);
        assert_eq!(tensor[16 * 64], 0.0);
    }
}
