//! The tower for texts.

use super::tower::{Object, Tower};
use super::{Kind, Part};
use crate::encoder::{Encoder, Pooled};
use crate::registry::Source;
use crate::{ModelError, inputs};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Text {
    pub(super) tower: Tower,
    pub(super) vocab_size: usize,
    pub(super) max_position_embeddings: usize,
    pub(super) pooled: Pooled,
    pub(super) pad: u32,
}

impl Text {
    pub(super) fn graph(&self, m: &mut Encoder) -> Result<(), ModelError> {
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

pub(super) fn text(source: &Source, kind: Kind, part: Part) -> Result<Text, ModelError> {
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
