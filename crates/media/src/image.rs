//! Decoding and encoding.

use std::fmt;
use std::io::Cursor;
use std::path::Path;

use image::codecs::jpeg::JpegEncoder;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};

/// Pixels that a side may have.
pub const MAX_SIDE: u32 = 32_768;
/// Pixels that a picture may have: 128 Mi, half a gigabyte once decoded.
pub const MAX_PIXELS: u64 = 1 << 27;
/// Memory that a decoder may take for itself, in bytes.
const DECODER_BYTES: u64 = 2 << 30;
/// Quality of JPEG files that are written.
const JPEG_QUALITY: u8 = 92;

/// An upright picture, three bytes (R, G, B) a pixel, rows from the top.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    width: u32,
    height: u32,
    rgb: Vec<u8>,
}

/// Why a picture cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MediaError {
    #[error("it is no JPEG, PNG, WebP, BMP or GIF file; convert it to one of them")]
    UnknownFormat,
    #[error("the {format} data is damaged or cut short ({why}); give the whole file")]
    Damaged { format: &'static str, why: String },
    #[error("the {format} file uses what is not supported here ({why}); convert it to PNG")]
    Unsupported { format: &'static str, why: String },
    #[error(
        "it is {width} x {height} pixels; at most {MAX_SIDE} a side and {MAX_PIXELS} in all are read: scale it down"
    )]
    TooLarge { width: u32, height: u32 },
    #[error("a picture of {width} x {height} pixels has {width} * {height} * 3 bytes, not {bytes}")]
    Size { width: u32, height: u32, bytes: usize },
    #[error("cannot write a picture named {name:?}: end the name with .png, .jpg, .webp or .bmp")]
    UnknownExtension { name: String },
    #[error("cannot encode the picture: {0}; choose another format")]
    Encode(String),
}

/// A format that pictures are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureFormat {
    Png,
    Jpeg,
    Webp,
    Bmp,
}

impl PictureFormat {
    /// The format that a file name's ending asks for.
    ///
    /// # Errors
    /// No format has this ending.
    pub fn of_path(path: &Path) -> Result<PictureFormat, MediaError> {
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        match ending.to_ascii_lowercase().as_str() {
            "png" => Ok(PictureFormat::Png),
            "jpg" | "jpeg" => Ok(PictureFormat::Jpeg),
            "webp" => Ok(PictureFormat::Webp),
            "bmp" => Ok(PictureFormat::Bmp),
            _ => Err(MediaError::UnknownExtension { name: path.display().to_string() }),
        }
    }
}

impl Image {
    /// A picture of one color.
    ///
    /// # Errors
    /// The picture would be too large.
    pub fn filled(width: u32, height: u32, rgb: [u8; 3]) -> Result<Image, MediaError> {
        check_size(width, height)?;
        let pixels = width as usize * height as usize;
        Ok(Image { width, height, rgb: rgb.repeat(pixels) })
    }

    /// A picture from its bytes, three a pixel.
    ///
    /// # Errors
    /// The number of bytes does not fit, or the picture is too large.
    pub fn from_rgb(width: u32, height: u32, rgb: Vec<u8>) -> Result<Image, MediaError> {
        check_size(width, height)?;
        if rgb.len() != width as usize * height as usize * 3 {
            return Err(MediaError::Size { width, height, bytes: rgb.len() });
        }
        Ok(Image { width, height, rgb })
    }

    /// Decodes a JPEG, PNG, WebP, BMP or GIF file (the first frame of an animation). The format is
    /// told by content. Turned upright as EXIF says; transparent pixels over white; 16-bit values
    /// rounded to 8.
    ///
    /// # Errors
    /// It is no such file, it is damaged, or it is too large.
    pub fn decode(bytes: &[u8]) -> Result<Image, MediaError> {
        let reader = ImageReader::new(Cursor::new(bytes));
        let mut reader = reader.with_guessed_format().map_err(|_| MediaError::UnknownFormat)?;
        let format = reader.format().and_then(name).ok_or(MediaError::UnknownFormat)?;
        if format == "JPEG" && !jpeg_is_whole(bytes) {
            let why = "it has no end".to_owned();
            return Err(MediaError::Damaged { format, why });
        }
        let mut limits = Limits::no_limits();
        limits.max_alloc = Some(DECODER_BYTES);
        reader.limits(limits);
        let fail = |error: ImageError| explain(format, error);
        let mut decoder = reader.into_decoder().map_err(fail)?;
        let (width, height) = decoder.dimensions();
        check_size(width, height)?;
        // A picture without a readable orientation is shown as it is, as everywhere.
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let mut picture = DynamicImage::from_decoder(decoder).map_err(fail)?;
        picture.apply_orientation(orientation);
        Ok(over_white(picture))
    }

    /// The file's bytes in a format.
    ///
    /// # Errors
    /// The format cannot hold the picture: WebP ends at 16,383 pixels a side, JPEG at 65,535.
    pub fn encode(&self, format: PictureFormat) -> Result<Vec<u8>, MediaError> {
        let mut out = Cursor::new(Vec::new());
        let (width, height) = (self.width, self.height);
        let rgb8 = image::ExtendedColorType::Rgb8;
        let result = match format {
            PictureFormat::Jpeg => JpegEncoder::new_with_quality(&mut out, JPEG_QUALITY)
                .encode(&self.rgb, width, height, rgb8),
            PictureFormat::Png => image::write_buffer_with_format(
                &mut out,
                &self.rgb,
                width,
                height,
                rgb8,
                ImageFormat::Png,
            ),
            PictureFormat::Webp => image::write_buffer_with_format(
                &mut out,
                &self.rgb,
                width,
                height,
                rgb8,
                ImageFormat::WebP,
            ),
            PictureFormat::Bmp => image::write_buffer_with_format(
                &mut out,
                &self.rgb,
                width,
                height,
                rgb8,
                ImageFormat::Bmp,
            ),
        };
        result.map_err(|error| MediaError::Encode(one_line(&error.to_string())))?;
        Ok(out.into_inner())
    }

    pub fn width(&self) -> u32 {
        self.width
    }

    pub fn height(&self) -> u32 {
        self.height
    }

    /// All pixels, three bytes each.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    pub(crate) fn rgb_mut(&mut self) -> &mut [u8] {
        &mut self.rgb
    }

    /// Row `y`, three bytes a pixel.
    ///
    /// # Panics
    /// If there is no such row.
    pub(crate) fn row(&self, y: u32) -> &[u8] {
        let stride = self.width as usize * 3;
        &self.rgb[y as usize * stride..][..stride]
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({} x {})", self.width, self.height)
    }
}

fn check_size(width: u32, height: u32) -> Result<(), MediaError> {
    let pixels = u64::from(width) * u64::from(height);
    match width > MAX_SIDE || height > MAX_SIDE || pixels > MAX_PIXELS || pixels == 0 {
        true => Err(MediaError::TooLarge { width, height }),
        false => Ok(()),
    }
}

/// The name of a format that is read here.
fn name(format: ImageFormat) -> Option<&'static str> {
    match format {
        ImageFormat::Jpeg => Some("JPEG"),
        ImageFormat::Png => Some("PNG"),
        ImageFormat::WebP => Some("WebP"),
        ImageFormat::Bmp => Some("BMP"),
        ImageFormat::Gif => Some("GIF"),
        _ => None,
    }
}

/// Whether the markers of a JPEG file lead to its end marker. The decoder fills what is missing of
/// a file that was cut short with gray, where nothing should be seen.
fn jpeg_is_whole(bytes: &[u8]) -> bool {
    const END: u8 = 0xd9;
    let mut at = 2;
    loop {
        // Coded data, fill bytes and restart markers lie between segments.
        let rest = bytes.get(at..).unwrap_or(&[]);
        let marker = rest.windows(2).position(|pair| {
            pair[0] == 0xff && !matches!(pair[1], 0x00 | 0x01 | 0xd0..=0xd7 | 0xff)
        });
        let Some(start) = marker else { return false };
        if rest[start + 1] == END {
            return true;
        }
        let Some(&[high, low]) = rest.get(start + 2..start + 4) else { return false };
        at += start + 2 + usize::from(u16::from_be_bytes([high, low]));
    }
}

fn explain(format: &'static str, error: ImageError) -> MediaError {
    let why = one_line(&error.to_string());
    match error {
        ImageError::Unsupported(_) | ImageError::Limits(_) => {
            MediaError::Unsupported { format, why }
        }
        _ => MediaError::Damaged { format, why },
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn over_white(picture: DynamicImage) -> Image {
    let (width, height) = (picture.width(), picture.height());
    if !picture.color().has_alpha() {
        return Image { width, height, rgb: picture.into_rgb8().into_raw() };
    }
    let rgba = picture.into_rgba8();
    let mut rgb = Vec::with_capacity(width as usize * height as usize * 3);
    for pixel in rgba.pixels() {
        let [r, g, b, a] = pixel.0.map(u32::from);
        rgb.extend([r, g, b].map(|c| ((c * a + 255 * (255 - a) + 127) / 255) as u8));
    }
    Image { width, height, rgb }
}

#[cfg(test)]
mod tests;
