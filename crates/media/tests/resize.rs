//! Resampling and decoding against OpenCV and Pillow.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use cyb_media::{Image, resize_linear};

fn golden(name: &str) -> Image {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/detect").join(name);
    Image::decode(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn every_pixel_is_opencvs() {
    let cat = golden("cat.webp");
    for (width, height) in [(320, 213), (101, 67), (64, 64), (203, 50), (41, 27)] {
        let want = golden(&format!("resized/{width}x{height}.png"));
        let got = resize_linear(&cat, width, height).unwrap();
        let worst = want.rgb().iter().zip(got.rgb()).map(|(a, b)| a.abs_diff(*b)).max();
        assert_eq!(worst, Some(0), "{width} x {height}");
    }
}

#[test]
fn half_the_size_is_the_mean_of_four() {
    let got = resize_linear(&golden("resized/even.png"), 101, 67).unwrap();
    assert_eq!(got, golden("resized/even-101x67.png"));
}

#[test]
fn a_turned_photo_is_upright() {
    let turned = golden("turned.jpg");
    assert_eq!((turned.width(), turned.height()), (389, 437));
}
