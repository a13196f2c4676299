//! Boxes and their labels in a picture.

use crate::font::{self, GLYPH_HEIGHT, GLYPH_WIDTH};
use crate::{Box2, Image};

/// Red, green, blue.
pub type Color = [u8; 3];

/// A box to draw, with what is written at it.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    pub bbox: Box2,
    pub text: String,
    pub color: Color,
}

/// Colors of classes: hues a golden angle apart, so that neighboring classes differ most.
pub fn class_color(class: usize) -> Color {
    let hue = (class as f64 * 0.618_033_988_75 + 0.02).fract() * 6.0;
    // Every third turn is darker, for classes whose hues come close.
    let value = if (class / 12).is_multiple_of(2) { 230.0 } else { 165.0 };
    let (low, part) = (value * 0.15, hue.fract());
    let (down, up) = (value + (low - value) * part, low + (value - low) * part);
    let [r, g, b] = match hue as u32 {
        0 => [value, up, low],
        1 => [down, value, low],
        2 => [low, value, up],
        3 => [low, down, value],
        4 => [up, low, value],
        _ => [value, low, down],
    };
    [r, g, b].map(|v| v.round() as u8)
}

/// Draws boxes, the first on top. Lines and letters grow with the picture.
pub fn draw_labels(image: &mut Image, labels: &[Label]) {
    let side = i64::from(image.width()) + i64::from(image.height());
    let line = (side as f64 / 2.0 * 0.003).round().max(1.0) as i64;
    let scale = (side as f64 / 2.0 / 450.0).round().max(1.0) as i64;
    for label in labels.iter().rev() {
        frame(image, label, line);
    }
    // After all frames, so that no frame crosses a text.
    for label in labels.iter().rev() {
        caption(image, label, line, scale);
    }
}

fn corners(label: &Label) -> [i64; 4] {
    let b = label.bbox.ordered();
    // Far outside any picture is as good as anywhere; NaN becomes 0.
    let far = f32::from(u16::MAX);
    [b.x1, b.y1, b.x2, b.y2].map(|v| v.clamp(-far, far).round() as i64)
}

fn frame(image: &mut Image, label: &Label, line: i64) {
    let [x1, y1, x2, y2] = corners(label);
    let half = line / 2;
    let (left, top) = (x1 - half, y1 - half);
    let (right, bottom) = (x2 - half + line, y2 - half + line);
    fill(image, [left, top, right, top + line], label.color);
    fill(image, [left, bottom - line, right, bottom], label.color);
    fill(image, [left, top, left + line, bottom], label.color);
    fill(image, [right - line, top, right, bottom], label.color);
}

/// The text on the class's color: above the box where there is room, else inside it.
fn caption(image: &mut Image, label: &Label, line: i64, scale: i64) {
    let [x1, y1, ..] = corners(label);
    let count = label.text.chars().count() as i64;
    if count == 0 {
        return;
    }
    let (width, height) = (GLYPH_WIDTH as i64 * scale, GLYPH_HEIGHT as i64 * scale);
    let (wide, high) = ((count * (width + scale)) + 3 * scale, height + 4 * scale);
    let half = line / 2;
    let most_left = (i64::from(image.width()) - wide).max(0);
    let left = (x1 - half).clamp(0, most_left);
    let top = match y1 - half - high {
        above if above >= 0 => above,
        _ => (y1 - half).clamp(0, (i64::from(image.height()) - high).max(0)),
    };
    fill(image, [left, top, left + wide, top + high], label.color);
    let ink = ink_on(label.color);
    for (number, letter) in (0i64..).zip(label.text.chars()) {
        let x = left + 2 * scale + number * (width + scale);
        for (row, bits) in (0i64..).zip(font::glyph(letter)) {
            for column in 0..GLYPH_WIDTH as i64 {
                if bits >> (GLYPH_WIDTH as i64 - 1 - column) & 1 == 1 {
                    let (x, y) = (x + column * scale, top + (2 + row) * scale);
                    fill(image, [x, y, x + scale, y + scale], ink);
                }
            }
        }
    }
}

/// Black or white, whichever stands out.
fn ink_on([r, g, b]: Color) -> Color {
    let light = 299 * u32::from(r) + 587 * u32::from(g) + 114 * u32::from(b);
    if light > 140_000 { [0; 3] } else { [255; 3] }
}

/// Fills [left, top, right, bottom), as far as it is in the picture.
fn fill(image: &mut Image, [left, top, right, bottom]: [i64; 4], color: Color) {
    let (width, height) = (i64::from(image.width()), i64::from(image.height()));
    let (left, right) = (left.clamp(0, width) as usize, right.clamp(0, width) as usize);
    let (top, bottom) = (top.clamp(0, height) as usize, bottom.clamp(0, height) as usize);
    if left >= right {
        return;
    }
    let stride = width as usize * 3;
    for y in top..bottom {
        for pixel in image.rgb_mut()[y * stride..][left * 3..right * 3].chunks_exact_mut(3) {
            pixel.copy_from_slice(&color);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(x1: f32, y1: f32, x2: f32, y2: f32) -> Label {
        let bbox = Box2 { x1, y1, x2, y2 };
        Label { bbox, text: "CAT 0.87".to_owned(), color: [200, 0, 0] }
    }

    fn at(image: &Image, x: usize, y: usize) -> &[u8] {
        &image.row(y as u32)[x * 3..][..3]
    }

    #[test]
    fn a_box_has_its_frame_and_its_label_above() {
        let mut picture = Image::filled(300, 200, [10; 3]).unwrap();
        draw_labels(&mut picture, &[label(40.0, 60.0, 120.0, 150.0)]);
        for (x, y) in [(40, 100), (120, 100), (80, 60), (80, 150)] {
            assert_eq!(at(&picture, x, y), [200, 0, 0], "{x}, {y}");
        }
        assert_eq!(at(&picture, 80, 100), [10; 3]);
        let above: Vec<_> = (45..59).flat_map(|y| (40..90).map(move |x| (x, y))).collect();
        let ink = above.iter().filter(|&&(x, y)| at(&picture, x, y) == [255; 3]).count();
        assert!(ink > 60, "{ink} pixels of ink");
    }

    #[test]
    fn boxes_over_the_edge_and_odd_numbers_do_no_harm() {
        for (width, height) in [(1, 1), (5, 300), (300, 5), (64, 64)] {
            let mut picture = Image::filled(width, height, [10; 3]).unwrap();
            let all = [
                label(-50.0, -50.0, 500.0, 500.0),
                label(3.0, 3.0, 3.0, 3.0),
                label(f32::NAN, 0.0, 1e30, -1e30),
                label(60.0, 0.0, 64.0, 2.0),
            ];
            draw_labels(&mut picture, &all);
        }
    }

    #[test]
    fn classes_have_colors_of_their_own() {
        let colors: Vec<Color> = (0..80).map(class_color).collect();
        for (i, a) in colors.iter().enumerate() {
            assert!(!colors[i + 1..].contains(a), "{i}");
        }
    }
}
