use super::*;

/// A picture whose rows and columns all differ.
fn gradient(width: u32, height: u32) -> Image {
    let pixel = |x: u32, y: u32| [(x * 7 % 256) as u8, (y * 11 % 256) as u8, ((x + y) % 256) as u8];
    let rgb = (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(x, y))).collect();
    Image::from_rgb(width, height, rgb).unwrap()
}

#[test]
fn lossless_formats_keep_every_pixel() {
    for (width, height) in [(1, 1), (37, 11), (20_000, 3)] {
        let picture = gradient(width, height);
        for format in [PictureFormat::Png, PictureFormat::Bmp] {
            let bytes = picture.encode(format).unwrap();
            assert_eq!(Image::decode(&bytes).unwrap(), picture, "{format:?} {width} x {height}");
        }
    }
    let picture = gradient(37, 11);
    assert_eq!(Image::decode(&picture.encode(PictureFormat::Webp).unwrap()).unwrap(), picture);
    assert!(picture.encode(PictureFormat::Jpeg).is_ok_and(|b| Image::decode(&b).is_ok()));
}

#[test]
fn files_that_are_cut_short_are_errors() {
    let picture = gradient(64, 64);
    for format in [PictureFormat::Png, PictureFormat::Bmp, PictureFormat::Webp] {
        let bytes = picture.encode(format).unwrap();
        for part in [20, bytes.len() / 2, bytes.len() - 20] {
            let error = Image::decode(&bytes[..part]).unwrap_err().to_string();
            assert!(error.contains("give the whole file"), "{format:?} {part}: {error}");
        }
    }
    let jpeg = picture.encode(PictureFormat::Jpeg).unwrap();
    for part in [20, jpeg.len() / 2, jpeg.len() - 2] {
        let error = Image::decode(&jpeg[..part]).unwrap_err().to_string();
        assert!(error.contains("give the whole file"), "JPEG {part}: {error}");
    }
}

#[test]
fn what_is_no_picture_is_an_error() {
    for bytes in [&b""[..], b"GGUF0000000000000000", b"<svg></svg>", &[0; 100]] {
        let error = Image::decode(bytes).unwrap_err().to_string();
        assert!(error.contains("convert it"), "{error}");
    }
}

/// A PNG whose header promises far more than the file holds.
#[test]
fn sizes_are_checked_before_memory_is_taken() {
    let mut bytes = gradient(4, 4).encode(PictureFormat::Png).unwrap();
    bytes[16..20].copy_from_slice(&1_000_000u32.to_be_bytes());
    bytes[20..24].copy_from_slice(&1_000_000u32.to_be_bytes());
    // The checksum of the header chunk, so that the size itself is what is refused.
    let mut crc = u32::MAX;
    for &byte in &bytes[12..29] {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    bytes[29..33].copy_from_slice(&(!crc).to_be_bytes());
    let error = Image::decode(&bytes).unwrap_err();
    assert!(matches!(error, MediaError::TooLarge { width: 1_000_000, .. }), "{error}");
}

#[test]
fn transparent_pixels_are_over_white() {
    let rgba = image::RgbaImage::from_raw(3, 1, vec![9, 9, 9, 0, 0, 0, 0, 51, 10, 20, 30, 255]);
    let picture = over_white(DynamicImage::from(rgba.unwrap()));
    assert_eq!(picture.rgb(), [255, 255, 255, 204, 204, 204, 10, 20, 30]);
}

#[test]
fn sixteen_bits_are_rounded() {
    let deep = image::ImageBuffer::<image::Luma<u16>, _>::from_raw(3, 1, vec![0u16, 385, 65535]);
    let picture = over_white(DynamicImage::from(deep.unwrap()));
    assert_eq!(picture.rgb(), [0, 0, 0, 1, 1, 1, 255, 255, 255]);
}

#[test]
fn formats_by_name() {
    let format = |name: &str| PictureFormat::of_path(Path::new(name)).ok();
    assert_eq!(format("a.PNG"), Some(PictureFormat::Png));
    assert_eq!(format("dir.png/a.jpeg"), Some(PictureFormat::Jpeg));
    assert_eq!(format("a.tiff"), None);
    assert_eq!(format("png"), None);
}
