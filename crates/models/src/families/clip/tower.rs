//! What the tower for texts and the one for pictures have in common: sizes and layers.

use cyb_ir::ValueId;

use super::Kind;
use crate::ModelError;
use crate::encoder::{Activation, Built, Encoder};
use crate::keys::Keys;

/// What both kinds of tower have.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tower {
    pub(super) kind: Kind,
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    pub(super) activation: Activation,
    pub(super) layer_norm_eps: f32,
    /// Width of the space where the towers meet.
    pub(super) projection: usize,
    /// What the tower's tensors begin with.
    pub(super) prefix: &'static str,
}

/// Objects of config.json with a tower's keys, the one that counts first.
pub(super) struct Object<'k, 'f> {
    pub(super) keys: &'k Keys<'f>,
    pub(super) places: Vec<&'static str>,
}

impl Object<'_, '_> {
    /// The full name of a key.
    pub(super) fn name(&self, name: &str) -> String {
        let mut all = self.places.iter().map(|place| format!("{place}{name}"));
        let there = all.clone().find(|full| self.keys.value(full).is_some());
        there.or_else(|| all.next_back()).unwrap_or_default()
    }

    pub(super) fn size(&self, name: &str, otherwise: usize) -> Result<usize, ModelError> {
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
    pub(super) fn read(
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

    pub(super) fn named(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(super) fn norm(&self, m: &mut Encoder, x: ValueId, name: &str) -> Built {
        m.layer_norm(x, &self.named(name), self.layer_norm_eps)
    }

    /// The layers, from embeddings `[T, hidden]` to the last one's output.
    pub(super) fn layers(&self, m: &mut Encoder, mut x: ValueId, causal: bool) -> Built {
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

    pub(super) fn feed_forward(&self, m: &mut Encoder, x: ValueId, name: &str) -> Built {
        let f = m.linear(x, &self.named(&format!("{name}.fc1")), self.intermediate_size)?;
        let f = m.activate(f, self.activation)?;
        m.linear(f, &self.named(&format!("{name}.fc2")), self.hidden_size)
    }
}
