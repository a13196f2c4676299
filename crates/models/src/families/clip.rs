//! CLIP, SigLIP and SigLIP 2: a tower for texts and one for pictures that meet in one space.
//!
//! Papers: <https://arxiv.org/abs/2103.00020>, <https://arxiv.org/abs/2303.15343>,
//! <https://arxiv.org/abs/2502.14786>. Reference: `CLIPModel`, `SiglipModel`, `Siglip2Model` and their
//! towers in Hugging Face transformers.
//!
//! Both towers are encoders with norms before each block. CLIP's texts are read from left to right
//! and stand for themselves by their last token, its pictures by a token of their own; SigLIP asks
//! all patches of a picture by a learned query. Patches are cut outside of the graph.

mod text;
mod tower;
mod vision;

use cyb_formats::Value;
use cyb_tensor::Tensor;

use self::text::{Text, text};
use self::vision::{Vision, vision};
use crate::encoder::{self, Encoder, EncoderInfo, Scores};
use crate::picture::{Contrast, Cut, PictureInfo, PictureTower, Places};
use crate::registry::{Sampling, Source, TextModel};
use crate::{Family, ModelError, Summary, Template};

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
