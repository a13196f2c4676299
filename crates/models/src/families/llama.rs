//! Llama 2, 3, 3.1 and 3.2, and the models of their shape: Mistral, SmolLM2, TinyLlama, Yi.
//!
//! Llama 2: <https://arxiv.org/abs/2307.09288>, Llama 3: <https://arxiv.org/abs/2407.21783>,
//! Mistral: <https://arxiv.org/abs/2310.06825>. Reference: `LlamaForCausalLM` and
//! `MistralForCausalLM` of Hugging Face transformers.

use cyb_ir::ValueId;

use crate::config::Config as Sizes;
use crate::config_json::Defaults;
use crate::decoder::{Attention, Decoder, Gate};
use crate::registry::{Sampling, Source};
use crate::rope::Style;
use crate::{Family, ModelError, Template};

pub(crate) static FAMILY: Family = Family {
    name: "llama",
    names: &["llama", "mistral"],
    template: Template::TextDecoder,
    // Meta's generation_config.json of Llama 3.
    sampling: Sampling { temperature: 0.6, top_p: 0.9, ..Sampling::PLAIN },
    build: |mut source| {
        let config = match source.keys.is_config_json() {
            true => Config::from_json(&mut source)?,
            false => Config::from_gguf(&source)?,
        };
        source.decoder(&config.sizes, |m| graph(&config, m))
    },
};

/// What a Llama is made of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    sizes: Sizes,
    /// Positions that a token sees, in every layer (Mistral 7B v0.1).
    sliding_window: Option<usize>,
}

impl Config {
    fn from_gguf(source: &Source) -> Result<Config, ModelError> {
        let keys = &source.keys;
        Ok(Config {
            // The converter permutes query and key rows so that pairs lie side by side.
            sizes: Sizes::from_gguf(keys, &source.weights, Style::Pairs, 10_000.0)?,
            sliding_window: keys.opt_size("attention.sliding_window")?,
        })
    }

    fn from_json(source: &mut Source) -> Result<Config, ModelError> {
        source.weights.checkpoint(false);
        let keys = &source.keys;
        let defaults = Defaults {
            theta: 10_000.0,
            rms_norm_eps: 1e-6,
            activation: &["silu"],
            ..Defaults::NONE
        };
        Ok(Config {
            sizes: Sizes::from_json(keys, &source.weights, defaults)?,
            sliding_window: keys.opt_size("sliding_window")?,
        })
    }
}

fn graph(config: &Config, m: &mut Decoder) -> Result<ValueId, ModelError> {
    let &Sizes { hidden_size, num_attention_heads, num_key_value_heads, head_dim, .. } =
        &config.sizes;
    let attention = Attention {
        scale: 1.0 / (head_dim as f64).sqrt(),
        window: config.sliding_window,
        softcap: 0.0,
    };
    let rope = m.rope_table(&config.sizes.rope)?;

    let mut x = m.embed()?; // [T, hidden]
    for layer in 0..config.sizes.num_hidden_layers {
        m.start_layer(layer);
        let h = m.norm(x, "attn_norm")?;
        let q = m.heads(h, "attn_q", num_attention_heads)?; // [T, heads, head_dim]
        let k = m.heads(h, "attn_k", num_key_value_heads)?; // [T, kv_heads, head_dim]
        let v = m.heads(h, "attn_v", num_key_value_heads)?;
        let q = m.rope(q, &rope)?;
        let k = m.rope(k, &rope)?;
        let a = m.attention(q, k, v, &attention)?; // [T, heads * head_dim]
        let [residual, a] = m.narrow([x, a])?;
        let o = m.linear(a, "attn_output", hidden_size)?;
        x = m.add(residual, o)?;

        let h = m.norm(x, "ffn_norm")?;
        let f = m.feed_forward(h, Gate::Silu)?; // [T, hidden]
        x = m.add(x, f)?;
    }
    Ok(x)
}
