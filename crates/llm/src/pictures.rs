//! Models that see: vectors of pictures, and how texts fit them.

use std::sync::{Arc, Mutex};

use cyb_exec::{Backend, Executor, PrepareOptions};
use cyb_media::Image;
use cyb_models::{Contrast, EncoderInfo, PictureInfo, PictureTower};
use cyb_tensor::Tensor;
use indexmap::IndexMap;

use crate::embed::{Scored, TextOptions, ZeroShot, scores};
use crate::encoder::{EncoderRunner, Sequence, Wanted};
use crate::forward::{TowerOutputs, integers, numbers};
use crate::preprocess::Preprocess;
use crate::{Error, Model};

/// What [`Model::forward`] takes of a model of pictures, for people.
pub const PICTURE_INPUTS: &str = "pixel_values [batch, channels, height, width] (for SigLIP 2 \
                                  [batch, patches, numbers] with spatial_shapes [batch, 2] and \
                                  pixel_attention_mask [batch, patches], optional, default all \
                                  1), float32, and what the model's tower for texts takes: \
                                  input_ids and attention_mask [batch, tokens], integers";

/// What [`Model::forward`] gives of a model of pictures, for people.
pub const PICTURE_OUTPUTS: &str = "of a single tower last_hidden_state [batch, tokens, hidden], \
                                   pooler_output [batch, hidden] or image_embeds and text_embeds \
                                   [batch, width]; of two towers image_embeds and text_embeds of \
                                   length 1, logits_per_image [images, texts] and \
                                   logits_per_text [texts, images], float32";

/// The prepared tower for pictures of a model.
#[derive(Debug)]
pub(crate) struct PictureRunner {
    pub(crate) info: PictureInfo,
    pub(crate) contrast: Option<Contrast>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) runner: Mutex<EncoderRunner>,
}

impl PictureRunner {
    pub(crate) fn new(
        tower: PictureTower,
        contrast: Option<Contrast>,
        backends: &[Arc<dyn Backend>],
    ) -> Result<PictureRunner, Error> {
        let PictureTower { graph, info } = tower;
        let executor = Arc::new(Executor::prepare(graph, backends, PrepareOptions::default())?);
        let runner = Mutex::new(EncoderRunner::new(&executor)?);
        Ok(PictureRunner { info, contrast, executor, runner })
    }

    /// A picture whose numbers `[channel, row, column]` are given as the tower takes it, filled up
    /// to `length` patches.
    fn sequence(&self, pixels: &[f32], size: [usize; 2], length: Option<usize>) -> Sequence {
        let PictureInfo { patch_size, own_token, .. } = self.info;
        let grid = size.map(|n| n / patch_size);
        let mut patches = Vec::new();
        self.info.patches(pixels, size, &mut patches);
        let there = grid[0] * grid[1] + usize::from(own_token);
        let length = length.unwrap_or(there).max(there);
        patches.resize(length * self.info.patch(), 0.0);
        let mut places = Vec::new();
        self.info.place_rows(grid, length, &mut places);
        let shown = (0..length).map(|i| i < there).collect();
        Sequence { ids: vec![0; length], shown, patches, places, ..Sequence::default() }
    }
}

impl Model {
    fn seeing(&self) -> Result<&PictureRunner, Error> {
        self.pictures().ok_or_else(|| Error::NoHead {
            model: self.package().name().to_owned(),
            has: "a model of texts",
            want: "a model that sees (CLIP, SigLIP)",
        })
    }

    /// The vectors of pictures in the space that texts share: what `get_image_features` of
    /// transformers gives. A tower without such a space gives its pooled output.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use cyb_llm::media::Image;
    /// let runtime = cyb_llm::Runtime::new(cyb_llm::Config::auto())?;
    /// let model = runtime.load("clip-vit-base-patch32")?;
    /// let picture = Image::decode(&std::fs::read("cat.jpg")?)?;
    /// let pictures = model.embed_images(&[picture])?;
    /// let texts = model.embed(&["a photo of a cat"], Default::default())?;
    /// assert_eq!(pictures[0].len(), texts[0].len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The model sees no pictures, or its preprocessing does not fit it.
    pub fn embed_images(&self, images: &[Image]) -> Result<Vec<Vec<f32>>, Error> {
        let tower = self.seeing()?;
        if !tower.info.labels.is_empty() {
            return Err(Error::NoHead {
                model: self.package().name().to_owned(),
                has: "a classifier of pictures",
                want: "one that makes vectors of them",
            });
        }
        let mut vectors = Vec::with_capacity(images.len());
        for image in images {
            let sequence = self.read_image(tower, image)?;
            let mut vector = Vec::new();
            self.run_pictures(tower, &[sequence], &mut |out| {
                let found = if out.embeds.is_empty() { out.pooled } else { out.embeds };
                vector = found.to_vec();
            })?;
            vectors.push(vector);
        }
        Ok(vectors)
    }

    /// A picture as the model's own preprocessing makes it.
    fn read_image(&self, tower: &PictureRunner, image: &Image) -> Result<Sequence, Error> {
        let preprocess = Preprocess::read(&self.package().file.metadata, &tower.info)?;
        let (pixels, size) = preprocess.apply(image)?;
        let patch = tower.info.patch_size;
        if let Some(side) = tower.info.side()
            && size != [side * patch; 2]
            && size.map(|n| n / patch) != [side; 2]
        {
            let why = format!(
                "its preprocessing makes pictures of {} x {} pixels, but the model takes {} x {}",
                size[1],
                size[0],
                side * patch,
                side * patch
            );
            return Err(Error::Value { what: "preprocessor_config.json", why });
        }
        Ok(tower.sequence(&pixels, size, preprocess.max_patches))
    }

    /// How well texts that are made of labels fit a picture: by softmax for CLIP, each by itself
    /// for SigLIP. The best first. `how.hypothesis` has `{}` where the label goes.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use cyb_llm::{ZeroShot, media::Image};
    /// let runtime = cyb_llm::Runtime::new(cyb_llm::Config::auto())?;
    /// let model = runtime.load("clip-vit-base-patch32")?;
    /// let picture = Image::decode(&std::fs::read("cat.jpg")?)?;
    /// let how = ZeroShot { hypothesis: "This is a photo of {}.".into(), multi_label: false };
    /// for scored in model.classify_image(&picture, &["a cat", "a dog"], &how, Default::default())? {
    ///     println!("{} {}", scored.label, scored.score);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The model does not read and see both, there are no labels, or the text has no `{}`.
    pub fn classify_image(
        &self,
        image: &Image,
        labels: &[&str],
        how: &ZeroShot,
        options: TextOptions,
    ) -> Result<Vec<Scored>, Error> {
        let tower = self.seeing()?;
        let contrast = tower.contrast.ok_or_else(|| Error::NoHead {
            model: self.package().name().to_owned(),
            has: "a tower for pictures alone",
            want: "one that reads labels too",
        })?;
        let value = |what, why: &str| Error::Value { what, why: why.to_owned() };
        if labels.is_empty() {
            return Err(value("labels", "there are none; give at least one"));
        }
        if !how.hypothesis.contains("{}") {
            return Err(value("hypothesis", "it has no {} for the label"));
        }
        let texts: Vec<String> =
            labels.iter().map(|label| how.hypothesis.replace("{}", label)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let texts = self.embed(&texts, options)?;
        let images = self.embed_images(std::slice::from_ref(image))?;
        let logits: Vec<f32> = texts
            .iter()
            .map(|text| contrast.scale * cosine(text, &images[0]) + contrast.bias)
            .collect();
        let kind = match contrast.sigmoid || how.multi_label {
            true => cyb_models::Scores::Sigmoid,
            false => cyb_models::Scores::Softmax,
        };
        let scored = labels.iter().zip(scores(kind, &logits));
        let mut scored: Vec<Scored> =
            scored.map(|(label, score)| Scored { label: (*label).to_owned(), score }).collect();
        scored.sort_by(|a, b| b.score.total_cmp(&a.score));
        Ok(scored)
    }

    /// The scores of the labels that a classifier of pictures was made for, the best first.
    ///
    /// # Errors
    /// The model is no such classifier, or its preprocessing does not fit it.
    pub fn label_image(&self, image: &Image) -> Result<Vec<Scored>, Error> {
        let tower = self.seeing()?;
        let PictureInfo { labels, scores: how, .. } = &tower.info;
        if labels.is_empty() {
            return Err(Error::NoHead {
                model: self.package().name().to_owned(),
                has: "no classifier of pictures",
                want: "labels to choose among",
            });
        }
        let sequence = self.read_image(tower, image)?;
        let mut logits = Vec::new();
        self.run_pictures(tower, &[sequence], &mut |out| logits = out.logits.to_vec())?;
        let scored = labels.iter().zip(scores(*how, &logits));
        let mut scored: Vec<Scored> =
            scored.map(|(label, score)| Scored { label: label.clone(), score }).collect();
        scored.sort_by(|a, b| b.score.total_cmp(&a.score));
        Ok(scored)
    }

    fn run_pictures(
        &self,
        tower: &PictureRunner,
        sequences: &[Sequence],
        sink: &mut dyn FnMut(crate::encoder::Outputs<'_>),
    ) -> Result<(), Error> {
        let logits = !tower.info.labels.is_empty();
        let wanted = Wanted { hidden: !logits, pooled: !logits, embeds: !logits, logits };
        let mut runner = tower.runner.lock().map_err(|_| Error::Poisoned)?;
        let info = EncoderInfo::default();
        runner.run(sequences, &info, wanted, &self.config().cancel, &mut |_, out| {
            sink(out);
            Ok(())
        })
    }

    /// [`Model::forward`] of a model with a tower for pictures.
    pub(crate) fn forward_towers(
        &self,
        tower: &PictureRunner,
        inputs: &IndexMap<String, Tensor>,
    ) -> Result<IndexMap<String, Tensor>, Error> {
        const SEEN: [&str; 3] = ["pixel_values", "pixel_attention_mask", "spatial_shapes"];
        let error = |name: &str, why: String| Error::Input {
            name: name.to_owned(),
            why,
            expected: PICTURE_INPUTS,
        };
        let (seen, read): (IndexMap<_, _>, IndexMap<_, _>) =
            inputs.clone().into_iter().partition(|(name, _)| SEEN.contains(&name.as_str()));
        let reads = self.encoder().is_some();
        if !reads && let Some((name, _)) = read.first() {
            return Err(error(name, "the model takes no such input".to_owned()));
        }
        if inputs.is_empty() {
            let name = if reads { "input_ids" } else { SEEN[0] };
            return Err(error(name, "it is missing".to_owned()));
        }
        let texts = if read.is_empty() { None } else { Some(self.text_outputs(&read)?) };
        let images = match seen.is_empty() {
            true => None,
            false => Some(self.picture_outputs(tower, &seen)?),
        };
        let mut outputs = IndexMap::new();
        let Some(contrast) = tower.contrast else {
            if let Some(images) = images {
                match tower.info.labels.len() {
                    0 => images.alone("image_embeds", &mut outputs)?,
                    n => {
                        let logits = crate::forward::tensor(vec![images.rows, n], &images.logits);
                        outputs.insert("logits".to_owned(), logits?);
                    }
                }
            }
            return Ok(outputs);
        };
        let unit = |found: &Option<TowerOutputs>| {
            found.as_ref().map(|found| {
                let mut rows = found.embeds.clone();
                for row in rows.chunks_exact_mut(found.width.max(1)) {
                    let length = dot(row, row).sqrt();
                    row.iter_mut().for_each(|v| *v /= length);
                }
                (rows, found.width, found.rows)
            })
        };
        let (texts, images) = (unit(&texts), unit(&images));
        if let (Some((texts, width, n_texts)), Some((images, _, n_images))) = (&texts, &images) {
            let logit = |t: usize, i: usize| {
                let (text, image) = (&texts[t * width..][..*width], &images[i * width..][..*width]);
                contrast.scale * dot(text, image) + contrast.bias
            };
            let by = |rows: usize, columns: usize, at: &dyn Fn(usize, usize) -> f32| {
                let all = (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c)));
                let values: Vec<f32> = all.map(|(r, c)| at(r, c)).collect();
                crate::forward::tensor(vec![rows, columns], &values)
            };
            let per_image = by(*n_images, *n_texts, &|i, t| logit(t, i))?;
            outputs.insert("logits_per_image".to_owned(), per_image);
            outputs.insert("logits_per_text".to_owned(), by(*n_texts, *n_images, &logit)?);
        }
        for (name, found) in [("text_embeds", texts), ("image_embeds", images)] {
            if let Some((values, width, rows)) = found {
                outputs
                    .insert(name.to_owned(), crate::forward::tensor(vec![rows, width], &values)?);
            }
        }
        Ok(outputs)
    }

    fn picture_outputs(
        &self,
        tower: &PictureRunner,
        inputs: &IndexMap<String, Tensor>,
    ) -> Result<TowerOutputs, Error> {
        let error = |name: &str, why: String| Error::Input {
            name: name.to_owned(),
            why,
            expected: PICTURE_INPUTS,
        };
        let info = &tower.info;
        let pixels = inputs
            .get("pixel_values")
            .ok_or_else(|| error("pixel_values", "it is missing".to_owned()))?;
        let shape = pixels.shape().to_vec();
        let wrong = || error("pixel_values", format!("its shape is {shape:?}"));
        let values = numbers(pixels)
            .ok_or_else(|| error("pixel_values", format!("its type is {}", pixels.dtype())))?;
        let sequences: Vec<Sequence> = match (info.side(), shape.as_slice()) {
            (Some(side), &[_, channels, height, width]) => {
                if let Some(name) = inputs.keys().find(|name| *name != "pixel_values") {
                    return Err(error(name, "the model takes no such input".to_owned()));
                }
                let fits = |n: usize| n / info.patch_size == side;
                if channels != info.channels || !fits(height) || !fits(width) || height != width {
                    let n = side * info.patch_size;
                    let why = format!(
                        "its shape is {shape:?}, but the model takes {} channels of {n} x {n}",
                        info.channels
                    );
                    return Err(error("pixel_values", why));
                }
                let one = channels * height * width;
                values
                    .chunks_exact(one.max(1))
                    .map(|picture| tower.sequence(picture, [height, width], None))
                    .collect()
            }
            (None, &[n, patches, width]) if width == info.patch() => {
                self.cut_pictures(tower, inputs, &values, [n, patches])?
            }
            _ => return Err(wrong()),
        };
        if sequences.is_empty() {
            return Err(wrong());
        }
        let tokens = sequences[0].ids.len();
        let mut outputs = TowerOutputs {
            tokens,
            hidden_size: info.hidden_size,
            width: info.embeds,
            ..TowerOutputs::default()
        };
        self.run_pictures(tower, &sequences, &mut |out| outputs.push(&out))?;
        outputs.projected = info.own_token && info.embeds > 0;
        Ok(outputs)
    }

    /// Pictures that were cut into patches before.
    fn cut_pictures(
        &self,
        tower: &PictureRunner,
        inputs: &IndexMap<String, Tensor>,
        values: &[f32],
        [n, patches]: [usize; 2],
    ) -> Result<Vec<Sequence>, Error> {
        let error = |name: &str, why: String| Error::Input {
            name: name.to_owned(),
            why,
            expected: PICTURE_INPUTS,
        };
        let (shapes, masks) = ("spatial_shapes", "pixel_attention_mask");
        let given = |name: &str, shape: [usize; 2]| -> Result<Option<Vec<i64>>, Error> {
            let Some(tensor) = inputs.get(name) else { return Ok(None) };
            if tensor.shape() != shape {
                let why = format!("its shape is {:?}, but {shape:?} is wanted", tensor.shape());
                return Err(error(name, why));
            }
            integers(name, tensor).map(Some)
        };
        let grids =
            given(shapes, [n, 2])?.ok_or_else(|| error(shapes, "it is missing".to_owned()))?;
        let mask = given(masks, [n, patches])?;
        (0..n)
            .map(|i| {
                let side = |k: usize| usize::try_from(grids[2 * i + k]).ok().filter(|&n| n > 0);
                let grid = side(0).zip(side(1));
                let Some((rows, columns)) =
                    grid.filter(|(r, c)| r.checked_mul(*c).is_some_and(|all| all <= patches))
                else {
                    let why = format!("picture {i} is not 1 to {patches} patches");
                    return Err(error(shapes, why));
                };
                let width = tower.info.patch();
                let mut places = Vec::new();
                tower.info.place_rows([rows, columns], patches, &mut places);
                let shown = match &mask {
                    Some(mask) => {
                        mask[i * patches..][..patches].iter().map(|&shown| shown != 0).collect()
                    }
                    None => Vec::new(),
                };
                Ok(Sequence {
                    ids: vec![0; patches],
                    shown,
                    patches: values[i * patches * width..][..patches * width].to_vec(),
                    places,
                    ..Sequence::default()
                })
            })
            .collect()
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() as f32
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    dot(a, b) / (dot(a, a).sqrt() * dot(b, b).sqrt())
}
