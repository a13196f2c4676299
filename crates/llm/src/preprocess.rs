//! From a picture to the numbers that a model of pictures takes, as its `preprocessor_config.json`
//! says.
//!
//! Reference: the image processors of Hugging Face transformers, on Pillow.

use cyb_formats::{Array, Metadata, MetadataError, Value};
use cyb_media::{Filter, Image, resample};
use cyb_models::PictureInfo;

use crate::Error;

/// Where the configuration may be: a file of its own, or a part of the processor's.
const PLACES: [&str; 2] = ["preprocessor_config", "processor_config.image_processor"];

/// How a picture's size changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resize {
    /// The shorter side becomes so long.
    ShortestEdge(u32),
    Exact {
        width: u32,
        height: u32,
    },
    /// As large as it may be with at most so many patches.
    Patches(usize),
}

/// The steps before the model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Preprocess {
    resize: Option<Resize>,
    filter: Filter,
    /// Width and height of the middle that is kept.
    crop: Option<[u32; 2]>,
    scale: Option<f64>,
    /// Mean and deviation of each channel.
    normalize: Option<[[f32; 3]; 2]>,
    patch_size: usize,
    /// Patches that a picture is filled up to.
    pub(crate) max_patches: Option<usize>,
}

struct Keys<'m> {
    metadata: &'m Metadata,
    place: &'static str,
}

impl<'m> Keys<'m> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.place)
    }

    fn flag(&self, key: &str, otherwise: bool) -> Result<bool, MetadataError> {
        Ok(self.metadata.opt(&self.name(key))?.unwrap_or(otherwise))
    }

    fn number(&self, key: &str) -> Result<Option<u32>, MetadataError> {
        self.metadata.opt(&self.name(key))
    }

    /// Height and width of a size: one number for both, or an object.
    fn size(&self, key: &str) -> Result<Option<[u32; 2]>, MetadataError> {
        if let Some(Value::I64(_)) = self.metadata.value(&self.name(key)) {
            return Ok(self.number(key)?.map(|n| [n; 2]));
        }
        let part = |part: &str| self.number(&format!("{key}.{part}"));
        Ok(part("height")?.zip(part("width")?).map(|(height, width)| [height, width]))
    }

    fn channels(&self, key: &str, otherwise: [f32; 3]) -> Result<[f32; 3], Error> {
        match self.metadata.value(&self.name(key)) {
            None => Ok(otherwise),
            Some(Value::Array(Array::F64(_) | Array::I64(_))) => {
                let list: Vec<f32> = self.metadata.get(&self.name(key))?;
                let wrong = |_| self.wrong(key, "it must have three numbers");
                <[f32; 3]>::try_from(list).map_err(wrong)
            }
            Some(_) => Ok([self.metadata.get::<f32>(&self.name(key))?; 3]),
        }
    }

    fn wrong(&self, key: &str, why: &str) -> Error {
        Error::Value { what: "preprocessor_config.json", why: format!("{key}: {why}") }
    }
}

impl Preprocess {
    /// Reads the configuration, with the defaults of the family's own processor.
    pub(crate) fn read(metadata: &Metadata, info: &PictureInfo) -> Result<Preprocess, Error> {
        let there = |place: &&str| {
            let prefix = format!("{place}.");
            metadata.iter().any(|(key, _)| key.starts_with(&prefix))
        };
        let place = PLACES.into_iter().find(there).unwrap_or(PLACES[0]);
        let keys = Keys { metadata, place };
        let clip = info.own_token;
        let any_shape = info.side().is_none();
        let resize = if !keys.flag("do_resize", true)? {
            None
        } else if any_shape {
            Some(Resize::Patches(keys.number("max_num_patches")?.unwrap_or(256) as usize))
        } else if let Some(edge) = keys.number("size.shortest_edge")? {
            if keys.number("size.longest_edge")?.is_some() {
                return Err(keys.wrong("size", "longest_edge is not supported"));
            }
            Some(Resize::ShortestEdge(edge))
        } else {
            match keys.size("size")? {
                // One number is the shorter side for CLIP, as old files have it.
                Some([edge, _])
                    if clip
                        && matches!(metadata.value(&keys.name("size")), Some(Value::I64(_))) =>
                {
                    Some(Resize::ShortestEdge(edge))
                }
                Some([height, width]) => Some(Resize::Exact { width, height }),
                None if clip => Some(Resize::ShortestEdge(224)),
                None => Some(Resize::Exact { width: 224, height: 224 }),
            }
        };
        let number = keys.number("resample")?.unwrap_or(if any_shape { 2 } else { 3 });
        let filter = Filter::from_number(number)
            .ok_or_else(|| keys.wrong("resample", "0 to 5 are known"))?;
        let crop = match keys.flag("do_center_crop", clip)? {
            true => {
                let [height, width] = keys.size("crop_size")?.unwrap_or([224; 2]);
                Some([width, height])
            }
            false => None,
        };
        let scale = match keys.flag("do_rescale", true)? {
            true => Some(metadata.opt(&keys.name("rescale_factor"))?.unwrap_or(1.0 / 255.0)),
            false => None,
        };
        let normalize = match keys.flag("do_normalize", true)? {
            true => {
                let (mean, deviation) = match clip {
                    true => (
                        [0.481_454_66, 0.457_827_5, 0.408_210_73],
                        [0.268_629_54, 0.261_302_6, 0.275_777_1],
                    ),
                    false => ([0.5; 3], [0.5; 3]),
                };
                let deviation = keys.channels("image_std", deviation)?;
                if deviation.iter().any(|d| !d.is_normal()) {
                    return Err(keys.wrong("image_std", "0 cannot be divided by"));
                }
                Some([keys.channels("image_mean", mean)?, deviation])
            }
            false => None,
        };
        let max_patches = match resize {
            Some(Resize::Patches(n)) => Some(n.max(1)),
            _ => None,
        };
        Ok(Preprocess {
            resize,
            filter,
            crop,
            scale,
            normalize,
            patch_size: info.patch_size,
            max_patches,
        })
    }

    /// The numbers `[channel, row, column]` of a picture, with its height and width.
    pub(crate) fn apply(&self, image: &Image) -> Result<(Vec<f32>, [usize; 2]), Error> {
        let fail =
            |error: cyb_media::MediaError| Error::Value { what: "image", why: error.to_string() };
        let resized;
        let mut image = image;
        if let Some([width, height]) = self.target(image) {
            resized = resample(image, width, height, self.filter).map_err(fail)?;
            image = &resized;
        }
        let (width, height) = (image.width() as usize, image.height() as usize);
        let [out_width, out_height] =
            self.crop.map_or([width, height], |crop| crop.map(|n| n as usize));
        // Where the picture is smaller than what is kept, the rest is black.
        let offset = |all: usize, kept: usize| match all >= kept {
            true => ((all - kept) / 2) as i64,
            false => -(((kept - all).div_ceil(2)) as i64),
        };
        let (left, top) = (offset(width, out_width), offset(height, out_height));
        let pixel = |c: usize, y: usize, x: usize| -> u8 {
            let (y, x) = (y as i64 + top, x as i64 + left);
            match (usize::try_from(y), usize::try_from(x)) {
                (Ok(y), Ok(x)) if y < height && x < width => image.rgb()[(y * width + x) * 3 + c],
                _ => 0,
            }
        };
        let mut out = Vec::with_capacity(3 * out_width * out_height);
        for c in 0..3 {
            // One of 256 values each.
            let values: Vec<f32> = (0..=255u8).map(|v| self.value(c, v)).collect();
            for y in 0..out_height {
                out.extend((0..out_width).map(|x| values[usize::from(pixel(c, y, x))]));
            }
        }
        Ok((out, [out_height, out_width]))
    }

    fn value(&self, channel: usize, value: u8) -> f32 {
        let value = self.scale.map_or(f32::from(value), |s| (f64::from(value) * s) as f32);
        match self.normalize {
            Some([mean, deviation]) => (value - mean[channel]) / deviation[channel],
            None => value,
        }
    }

    /// Width and height that the picture is brought to.
    fn target(&self, image: &Image) -> Option<[u32; 2]> {
        let (width, height) = (image.width(), image.height());
        match self.resize? {
            Resize::Exact { width, height } => Some([width, height]),
            Resize::ShortestEdge(edge) => {
                let long = |long: u32, short: u32| {
                    (u64::from(edge) * u64::from(long) / u64::from(short.max(1))) as u32
                };
                match width <= height {
                    true => Some([edge, long(height, width)]),
                    false => Some([long(width, height), edge]),
                }
            }
            Resize::Patches(most) => Some(self.fitted(width, height, most)),
        }
    }

    /// The largest size of whole patches, in the picture's proportions, by halving an interval of
    /// scales as the reference does.
    fn fitted(&self, width: u32, height: u32, most: usize) -> [u32; 2] {
        const EPS: f64 = 1e-5;
        let patch = self.patch_size as f64;
        let scaled =
            |scale: f64, side: u32| ((f64::from(side) * scale / patch).ceil() * patch).max(patch);
        let (mut low, mut high) = (EPS / 10.0, 100.0);
        while high - low >= EPS {
            let middle = (low + high) / 2.0;
            let patches = (scaled(middle, height) / patch) * (scaled(middle, width) / patch);
            match patches <= most as f64 {
                true => low = middle,
                false => high = middle,
            }
        }
        [scaled(low, width) as u32, scaled(low, height) as u32]
    }
}
