//! CLIP, SigLIP and SigLIP 2: a tower for texts and one for pictures that meet in one space.
//!
//! Papers: <https://arxiv.org/abs/2103.00020>, <https://arxiv.org/abs/2303.15343>,
//! <https://arxiv.org/abs/2502.14786>. Reference: `CLIPModel`, `SiglipModel`, `Siglip2Model` and their
//! towers in Hugging Face transformers.
//!
//! Both towers are encoders with norms before each block. CLIP's texts are read from left to right
//! and stand for themselves by their last token, its pictures by a token of their own; SigLIP asks
//! all patches of a picture by a learned query. Patches are cut outside of the graph.

use cyb_formats::Value;
use cyb_ir::ValueId;
use cyb_tensor::Tensor;

use crate::encoder::{self, Activation, Built, Encoder, EncoderInfo, Pooled, Scores};
use crate::keys::Keys;
use crate::picture::{Contrast, Cut, PictureInfo, PictureTower, Places};
use crate::registry::{Sampling, Source, TextModel};
use crate::weights::Weights;
use crate::{Family, ModelError, Summary, Template, inputs};

pub(crate) static FAMILY: Family = Family {
    name: "clip",
    names: &[
        "clip",
        "clip_text_model",
        "clip_vision_model",
        "siglip",
        "siglip_text_model",
        "siglip_vision_model",
        "siglip2",
        "siglip2_text_model",
        "siglip2_vision_model",
    ],
    template: Template::Towers,
    sampling: Sampling::PLAIN,
    build,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Clip,
    Siglip,
    /// With pictures of any shape.
    Siglip2,
}

/// Which towers a directory has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Both,
    Text,
    Vision,
}

/// What both kinds of tower have.
#[derive(Clone, Debug, PartialEq)]
struct Tower {
    kind: Kind,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    activation: Activation,
    layer_norm_eps: f32,
    /// Width of the space where the towers meet.
    projection: usize,
    /// What the tower's tensors begin with.
    prefix: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
struct Text {
    tower: Tower,
    vocab_size: usize,
    max_position_embeddings: usize,
    pooled: Pooled,
    pad: u32,
}

#[derive(Clone, Debug, PartialEq)]
struct Vision {
    tower: Tower,
    num_channels: usize,
    patch_size: usize,
    /// Patches along each side of the pictures that it was made for.
    side: usize,
    /// Whether there is a vector for the whole picture.
    use_head: bool,
    /// The labels of a classifier of pictures.
    labels: Vec<String>,
}

/// Objects of config.json with a tower's keys, the one that counts first.
struct Object<'k, 'f> {
    keys: &'k Keys<'f>,
    places: Vec<&'static str>,
}

impl Object<'_, '_> {
    /// The full name of a key.
    fn name(&self, name: &str) -> String {
        let mut all = self.places.iter().map(|place| format!("{place}{name}"));
        let there = all.clone().find(|full| self.keys.value(full).is_some());
        there.or_else(|| all.next_back()).unwrap_or_default()
    }

    fn size(&self, name: &str, otherwise: usize) -> Result<usize, ModelError> {
        Ok(self.keys.opt_size(&self.name(name))?.unwrap_or(otherwise))
    }
}

/// What the library wrote into the object of every tower in its early versions.
const LIBRARY: [&str; 58] = [
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dropout",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "initializer_factor",
    "initializer_range",
    "is_encoder_decoder",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "projection_dim",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tie_word_embeddings",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "use_bfloat16",
];

impl Tower {
    fn read(
        object: &Object<'_, '_>,
        kind: Kind,
        [hidden, intermediate, heads]: [usize; 3],
        prefix: &'static str,
    ) -> Result<Tower, ModelError> {
        let keys = object.keys;
        for place in &object.places {
            let named: Vec<String> = LIBRARY.iter().map(|key| format!("{place}{key}")).collect();
            keys.harmless(&named.iter().map(String::as_str).collect::<Vec<_>>());
            for list in ["id2label", "label2id", "pruned_heads", "task_specific_params"] {
                keys.harmless_under(&format!("{place}{list}"));
            }
        }
        for key in ["is_decoder", "add_cross_attention"] {
            keys.only(&object.name(key), false)?;
        }
        let hidden_size = object.size("hidden_size", hidden)?;
        let num_attention_heads = object.size("num_attention_heads", heads)?;
        if !hidden_size.is_multiple_of(num_attention_heads) {
            let want = format!("it must divide the width {hidden_size}");
            return Err(keys.wrong(&object.name("num_attention_heads"), want));
        }
        let (activation, eps) = match kind {
            Kind::Clip => (Activation::GeluQuick, 1e-5),
            Kind::Siglip | Kind::Siglip2 => (Activation::GeluTanh, 1e-6),
        };
        Ok(Tower {
            kind,
            hidden_size,
            intermediate_size: object.size("intermediate_size", intermediate)?,
            num_hidden_layers: object.size("num_hidden_layers", 12)?,
            num_attention_heads,
            activation: Activation::read(keys, &object.name("hidden_act"), activation)?,
            layer_norm_eps: keys.opt_positive(&object.name("layer_norm_eps"))?.unwrap_or(eps),
            projection: 0,
            prefix,
        })
    }

    fn named(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn norm(&self, m: &mut Encoder, x: ValueId, name: &str) -> Built {
        m.layer_norm(x, &self.named(name), self.layer_norm_eps)
    }

    /// The layers, from embeddings `[T, hidden]` to the last one's output.
    fn layers(&self, m: &mut Encoder, mut x: ValueId, causal: bool) -> Built {
        let heads = self.num_attention_heads;
        let scale = 1.0 / ((self.hidden_size / heads) as f64).sqrt();
        for layer in 0..self.num_hidden_layers {
            let own = |name: &str| format!("encoder.layers.{layer}.{name}");
            let h = self.norm(m, x, &own("layer_norm1"))?;
            let part = |m: &mut Encoder, name: &str| -> Built {
                let name = self.named(&own(&format!("self_attn.{name}_proj")));
                let y = m.linear(h, &name, self.hidden_size)?;
                m.heads(y, heads) // [T, heads, head_dim]
            };
            let qkv = [part(m, "q")?, part(m, "k")?, part(m, "v")?];
            let a = match causal {
                true => m.causal_attention(qkv, scale)?, // [T, hidden]
                false => m.attention(qkv, scale, None)?,
            };
            let o = m.linear(a, &self.named(&own("self_attn.out_proj")), self.hidden_size)?;
            x = m.add(x, o)?;
            let h = self.norm(m, x, &own("layer_norm2"))?;
            let f = self.feed_forward(m, h, &own("mlp"))?;
            x = m.add(x, f)?;
        }
        Ok(x)
    }

    fn feed_forward(&self, m: &mut Encoder, x: ValueId, name: &str) -> Built {
        let f = m.linear(x, &self.named(&format!("{name}.fc1")), self.intermediate_size)?;
        let f = m.activate(f, self.activation)?;
        m.linear(f, &self.named(&format!("{name}.fc2")), self.hidden_size)
    }
}

impl Text {
    fn graph(&self, m: &mut Encoder) -> Result<(), ModelError> {
        let tower = &self.tower;
        let named = |name: &str| tower.named(&format!("embeddings.{name}.weight"));
        let width = tower.hidden_size;
        let x = m.embed_tokens(&named("token_embedding"), [self.vocab_size, width])?; // [T, hidden]
        let positions = [self.max_position_embeddings, width];
        let p = m.embed_positions(&named("position_embedding"), positions)?;
        let x = m.add(x, p)?;
        let x = tower.layers(m, x, tower.kind == Kind::Clip)?;
        let x = tower.norm(m, x, "final_layer_norm")?;
        m.output(inputs::LAST_HIDDEN_STATE, x);
        let one = m.pooled(x)?; // [R, hidden]
        if tower.kind == Kind::Clip {
            m.output(inputs::POOLER_OUTPUT, one);
            if m.weights.has("text_projection.weight") {
                let e = m.linear(one, "text_projection", tower.projection)?; // [R, projection]
                m.output(inputs::EMBEDS, e);
            }
            return Ok(());
        }
        let one = m.linear(one, &tower.named("head"), tower.projection)?; // [R, projection]
        m.output(inputs::POOLER_OUTPUT, one);
        m.output(inputs::EMBEDS, one);
        Ok(())
    }
}

impl Vision {
    /// Numbers of a patch.
    fn patch(&self) -> usize {
        self.num_channels.saturating_mul(self.patch_size.saturating_mul(self.patch_size))
    }

    fn positions(&self) -> [usize; 2] {
        [self.side.saturating_mul(self.side), self.tower.hidden_size]
    }

    /// Vectors that are added to patches, row by row, that of the picture's own token first.
    fn places(&self, weights: &Weights<'_>) -> Result<Vec<f32>, ModelError> {
        let tower = &self.tower;
        let [rows, width] = self.positions();
        let own = usize::from(tower.kind == Kind::Clip);
        let table = tower.named("embeddings.position_embedding.weight");
        let mut table = weights.numbers(&table, &[rows.saturating_add(own), width])?;
        if tower.kind == Kind::Clip {
            let class = weights.numbers(&tower.named("embeddings.class_embedding"), &[width])?;
            table.iter_mut().zip(class).for_each(|(at, class)| *at += class);
        }
        Ok(table)
    }

    fn graph(&self, m: &mut Encoder, places: Option<Tensor>) -> Result<(), ModelError> {
        let tower = &self.tower;
        let (width, patch) = (tower.hidden_size, self.patch());
        let name = tower.named("embeddings.patch_embedding");
        let mut x = match tower.kind {
            Kind::Siglip2 => {
                let patches = m.patches(patch); // [T, patch]
                m.linear(patches, &name, width)?
            }
            Kind::Clip | Kind::Siglip => {
                let side = self.patch_size;
                m.convolve(&name, [width, self.num_channels, side, side])?
            }
        };
        let p = match places {
            Some(table) => m.constant_by_position(table)?,
            None => m.place_rows(width),
        };
        x = m.add(x, p)?; // [T, hidden]
        if tower.kind == Kind::Clip {
            x = tower.norm(m, x, "pre_layrnorm")?;
        }
        x = tower.layers(m, x, false)?;
        if tower.kind == Kind::Clip {
            m.output(inputs::LAST_HIDDEN_STATE, x);
            let one = m.pooled(x)?; // [R, hidden]
            let one = tower.norm(m, one, "post_layernorm")?;
            m.output(inputs::POOLER_OUTPUT, one);
            if m.weights.has("visual_projection.weight") {
                let e = m.linear(one, "visual_projection", tower.projection)?; // [R, projection]
                m.output(inputs::EMBEDS, e);
            }
            return self.classifier(m, x);
        }
        x = tower.norm(m, x, "post_layernorm")?;
        m.output(inputs::LAST_HIDDEN_STATE, x);
        if !self.labels.is_empty() {
            return self.classifier(m, x);
        }
        if self.use_head {
            let one = self.ask(m, x)?;
            m.output(inputs::POOLER_OUTPUT, one);
            m.output(inputs::EMBEDS, one);
        }
        Ok(())
    }

    /// `logits [R, labels]` of the mean of a picture's patches, where the model has such a head.
    fn classifier(&self, m: &mut Encoder, x: ValueId) -> Result<(), ModelError> {
        if self.labels.is_empty() {
            return Ok(());
        }
        let mut mean = m.mean(x)?; // [R, hidden]
        if self.tower.kind == Kind::Clip {
            // Less the picture's own token, which is one of n + 1: (mean * (n + 1) - own) / n.
            let n = (self.side * self.side) as f64;
            let own = m.pooled(x)?;
            let all = m.scale(mean, (n + 1.0) / n)?;
            let own = m.scale(own, -1.0 / n)?;
            mean = m.add(all, own)?;
        }
        let logits = m.linear(mean, "classifier", self.labels.len())?; // [R, labels]
        m.output(inputs::LOGITS, logits);
        Ok(())
    }

    /// What all patches answer to a learned query: `[R, hidden]`.
    fn ask(&self, m: &mut Encoder, x: ValueId) -> Built {
        let tower = &self.tower;
        let (width, heads) = (tower.hidden_size, tower.num_attention_heads);
        let scale = 1.0 / ((width / heads) as f64).sqrt();
        let own = |name: &str| tower.named(&format!("head.{name}"));
        let probe = m.weights.numbers(&own("probe"), &[1, 1, width])?;
        let (weight, bias) = (own("attention.in_proj_weight"), own("attention.in_proj_bias"));
        let three = width.saturating_mul(3);
        let to_query = m.weights.numbers(&weight, &[three, width])?;
        let offset = m.weights.numbers(&bias, &[three])?;
        // Queries come first of the three; the one there is never changes.
        let query = to_query.chunks_exact(width).zip(&offset).take(width).map(|(row, offset)| {
            let sum: f64 = row.iter().zip(&probe).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            (sum + f64::from(*offset)) as f32
        });
        let query: Vec<f32> = query.collect();
        let query = Tensor::from_f32(vec![1, width], &query).map_err(ModelError::tensor)?;
        let all = m.linear_of(x, &weight, &bias, three)?; // [T, 3 * hidden]
        let [_, k, v] = m.split_heads(all, heads)?; // [T, heads, head_dim] each
        let q = m.constant_rows(query, x)?; // [T, hidden]
        let q = m.heads(q, heads)?;
        let a = m.attention([q, k, v], scale, None)?; // [T, hidden], all of a picture the same
        let one = m.pooled(a)?; // [R, hidden]
        let one = m.linear(one, &own("attention.out_proj"), width)?;
        let h = tower.norm(m, one, "head.layernorm")?;
        let f = tower.feed_forward(m, h, "head.mlp")?;
        m.add(one, f)
    }
}

fn text(source: &Source, kind: Kind, part: Part) -> Result<Text, ModelError> {
    let keys = &source.keys;
    let places = match part {
        Part::Both => vec!["text_config_dict.", "text_config."],
        Part::Text | Part::Vision => vec![""],
    };
    let object = Object { keys, places };
    let sizes = match kind {
        Kind::Clip => [512, 2048, 8],
        Kind::Siglip | Kind::Siglip2 => [768, 3072, 12],
    };
    let nested = source.weights.has("text_model.embeddings.token_embedding.weight");
    let prefix = if nested { "text_model." } else { "" };
    let mut tower = Tower::read(&object, kind, sizes, prefix)?;
    let (vocab, positions) = match kind {
        Kind::Clip => (49408, 77),
        Kind::Siglip | Kind::Siglip2 => (32000, 64),
    };
    tower.projection = match (kind, part) {
        (Kind::Clip, Part::Both) => keys.opt_size("projection_dim")?.unwrap_or(512),
        (Kind::Clip, _) => object.size("projection_dim", 512)?,
        (Kind::Siglip | Kind::Siglip2, _) => object.size("projection_size", tower.hidden_size)?,
    };
    let id = |name: &str, otherwise: u32| -> Result<u32, ModelError> {
        Ok(keys.opt::<u32>(&object.name(name))?.unwrap_or(otherwise))
    };
    let end = id("eos_token_id", 49407)?;
    let pooled = match (kind, end) {
        (Kind::Siglip | Kind::Siglip2, _) => Pooled::Last,
        // What early versions wrote, whatever the end token was.
        (Kind::Clip, 2) => Pooled::LargestId,
        (Kind::Clip, end) => Pooled::Id(end),
    };
    Ok(Text {
        vocab_size: object.size("vocab_size", vocab)?,
        max_position_embeddings: object.size("max_position_embeddings", positions)?,
        pooled,
        pad: id("pad_token_id", 1)?,
        tower,
    })
}

fn vision(
    source: &Source,
    kind: Kind,
    part: Part,
    labels: Vec<String>,
) -> Result<Vision, ModelError> {
    let keys = &source.keys;
    let places = match part {
        Part::Both => vec!["vision_config_dict.", "vision_config."],
        // A classifier keeps the configuration of the model that its tower was taken from.
        Part::Vision if !labels.is_empty() => vec!["vision_config_dict.", "vision_config."],
        Part::Text | Part::Vision => vec![""],
    };
    let object = Object { keys, places };
    let nested = source.weights.has("vision_model.embeddings.patch_embedding.weight");
    let prefix = if nested { "vision_model." } else { "" };
    let mut tower = Tower::read(&object, kind, [768, 3072, 12], prefix)?;
    tower.projection = match (kind, part) {
        (Kind::Clip, Part::Both) => keys.opt_size("projection_dim")?.unwrap_or(512),
        (Kind::Clip, _) => object.size("projection_dim", 512)?,
        (Kind::Siglip | Kind::Siglip2, _) => tower.hidden_size,
    };
    let patch_size = object.size("patch_size", if kind == Kind::Clip { 32 } else { 16 })?;
    let side = match kind {
        Kind::Siglip2 => object.size("num_patches", 256)?.isqrt(),
        Kind::Clip | Kind::Siglip => object.size("image_size", 224)? / patch_size,
    };
    if side == 0 {
        let want = format!("it must hold a patch of {patch_size}");
        return Err(keys.wrong(&object.name("image_size"), want));
    }
    Ok(Vision {
        num_channels: object.size("num_channels", 3)?,
        patch_size,
        side,
        use_head: keys.opt(&object.name("vision_use_head"))?.unwrap_or(true),
        labels,
        tower,
    })
}

fn build(source: Source) -> Result<TextModel, ModelError> {
    source.needs_config_json()?;
    let name: &str = source.keys.get("model_type")?;
    let kind = match name.split('_').next() {
        Some("siglip") => Kind::Siglip,
        Some("siglip2") => Kind::Siglip2,
        _ => Kind::Clip,
    };
    let keys = &source.keys;
    let class = match keys.value("architectures") {
        Some(Value::Array(list)) => match list.get(0) {
            Some(Value::String(class)) => class,
            _ => String::new(),
        },
        _ => String::new(),
    };
    let classifier = match class.split_once("For").map(|(_, head)| head) {
        None => false,
        Some("ImageClassification") => true,
        Some(_) => {
            let want = "towers without a further head and ImageClassification are supported";
            return Err(keys.wrong("architectures", want.to_owned()));
        }
    };
    let part = match name.split_once('_') {
        _ if classifier => Part::Vision,
        Some((_, "text_model")) => Part::Text,
        Some((_, "vision_model")) => Part::Vision,
        _ => Part::Both,
    };
    let mut labels = Vec::new();
    let mut scores = Scores::Plain;
    if classifier {
        labels = encoder::labels(keys)?;
        scores = encoder::scores(keys, labels.len())?;
        for object in ["text_config", "text_config_dict"] {
            keys.harmless_under(object);
        }
    }
    // How the scale of logits begins before training, and sizes that the towers say too.
    keys.harmless(&["logit_scale_init_value", "projection_dim"]);
    let text = (part != Part::Vision).then(|| text(&source, kind, part)).transpose()?;
    let vision = (part != Part::Text).then(|| vision(&source, kind, part, labels)).transpose()?;

    let Source { family, keys, mut weights, .. } = source;
    let mut warnings = keys.finish(family.name)?;
    let parameters = weights.parameters();
    let summary = summary(text.as_ref(), vision.as_ref(), parameters);
    let mut model = TextModel {
        family,
        summary,
        graph: cyb_ir::Graph::default(),
        warnings: Vec::new(),
        encoder: None,
        pictures: None,
        contrast: None,
    };
    if let Some(text) = &text {
        let mut m = Encoder::new(weights);
        text.graph(&mut m)?;
        (model.graph, weights) = m.finish();
        let fill = (kind != Kind::Clip).then_some(text.pad);
        let embeds = match weights.has("text_projection.weight") || kind != Kind::Clip {
            true => text.tower.projection,
            false => 0,
        };
        model.encoder =
            Some(EncoderInfo { pooled: text.pooled, fill, embeds, ..EncoderInfo::default() });
    }
    if let Some(vision) = &vision {
        let table = vision.places(&weights)?;
        let [rows, width] = vision.positions();
        let (places, table) = match kind {
            Kind::Siglip2 => (Places::Scaled { side: vision.side, table }, None),
            Kind::Clip | Kind::Siglip => {
                let rows = rows + usize::from(kind == Kind::Clip);
                let table = Tensor::from_f32(vec![rows, width], &table);
                (Places::Fixed { side: vision.side }, Some(table.map_err(ModelError::tensor)?))
            }
        };
        let mut m = Encoder::new(weights);
        vision.graph(&mut m, table)?;
        let graph;
        (graph, weights) = m.finish();
        let embeds = match weights.has("visual_projection.weight") || kind != Kind::Clip {
            true if !classifier => vision.tower.projection,
            _ => 0,
        };
        model.pictures = Some(Box::new(PictureTower {
            graph,
            info: PictureInfo {
                channels: vision.num_channels,
                patch_size: vision.patch_size,
                own_token: kind == Kind::Clip,
                cut: if kind == Kind::Siglip2 { Cut::ByPixel } else { Cut::ByChannel },
                places,
                hidden_size: width,
                embeds,
                labels: vision.labels.clone(),
                scores,
            },
        }));
    }
    if part == Part::Both {
        let number = |name: &str, shape: &[usize]| -> Result<f32, ModelError> {
            Ok(weights.numbers(name, shape)?.first().copied().unwrap_or(0.0))
        };
        model.contrast = Some(match kind {
            Kind::Clip => {
                Contrast { scale: number("logit_scale", &[])?.exp(), bias: 0.0, sigmoid: false }
            }
            Kind::Siglip | Kind::Siglip2 => Contrast {
                scale: number("logit_scale", &[1])?.exp(),
                bias: number("logit_bias", &[1])?,
                sigmoid: true,
            },
        });
    }
    let ids = |name: &str| !name.ends_with("position_ids");
    warnings.extend(weights.finish(family.name, |name| ids(name) && part_of(part, name))?);
    model.warnings = warnings;
    Ok(model)
}

/// Whether a tensor is one of the towers' that are built: a file may have both for one.
fn part_of(part: Part, name: &str) -> bool {
    let (text, vision) = (name.starts_with("text_"), name.starts_with("vi"));
    match part {
        Part::Both => true,
        Part::Text => !vision && !name.starts_with("logit_"),
        Part::Vision => !text && !name.starts_with("logit_") && !name.contains("head."),
    }
}

fn summary(text: Option<&Text>, vision: Option<&Vision>, parameters: u64) -> Summary {
    let tower = text.map(|t| &t.tower).or(vision.map(|v| &v.tower));
    let (hidden_size, heads, layers) =
        tower.map_or((0, 1, 0), |t| (t.hidden_size, t.num_attention_heads, t.num_hidden_layers));
    Summary {
        vocab_size: text.map_or(0, |t| t.vocab_size),
        hidden_size,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: heads,
        head_dim: hidden_size / heads,
        context_length: match (text, vision) {
            (Some(text), _) => text.max_position_embeddings,
            (None, Some(vision)) => vision.positions()[0],
            (None, None) => 0,
        },
        parameters,
    }
}
