//! The tower for pictures.

use cyb_ir::ValueId;
use cyb_tensor::Tensor;

use super::tower::{Object, Tower};
use super::{Kind, Part};
use crate::encoder::{Built, Encoder};
use crate::registry::Source;
use crate::weights::Weights;
use crate::{ModelError, inputs};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Vision {
    pub(super) tower: Tower,
    pub(super) num_channels: usize,
    pub(super) patch_size: usize,
    /// Patches along each side of the pictures that it was made for.
    pub(super) side: usize,
    /// Whether there is a vector for the whole picture.
    pub(super) use_head: bool,
    /// The labels of a classifier of pictures.
    pub(super) labels: Vec<String>,
}

impl Vision {
    /// Numbers of a patch.
    fn patch(&self) -> usize {
        self.num_channels.saturating_mul(self.patch_size.saturating_mul(self.patch_size))
    }

    pub(super) fn positions(&self) -> [usize; 2] {
        [self.side.saturating_mul(self.side), self.tower.hidden_size]
    }

    /// Vectors that are added to patches, row by row, that of the picture's own token first.
    pub(super) fn places(&self, weights: &Weights<'_>) -> Result<Vec<f32>, ModelError> {
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

    pub(super) fn graph(&self, m: &mut Encoder, places: Option<Tensor>) -> Result<(), ModelError> {
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

pub(super) fn vision(
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
