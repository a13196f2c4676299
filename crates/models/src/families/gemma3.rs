//! Gemma 3, text part: norms before and after each block, five layers of local attention to one of
//! global attention, and a rotary base for each kind. EmbeddingGemma is one that looks both ways.
//!
//! Paper: <https://arxiv.org/abs/2503.19786>. Reference: `Gemma3ForCausalLM` of Hugging Face
//! transformers. GGUF files store norm weights with the reference's `1 +` added.

use cyb_formats::{Array, Value};
use cyb_ir::ValueId;

use crate::config::Config as Sizes;
use crate::config_json::{self, Defaults};
use crate::decoder::{Attention, Decoder, Gate};
use crate::registry::{Sampling, Source};
use crate::rope::{Rope, Scaling, Style};
use crate::{Family, ModelError, Template};

pub(crate) static FAMILY: Family = Family {
    name: "gemma3",
    names: &["gemma3", "gemma3_text"],
    template: Template::TextDecoder,
    // generation_config.json of Gemma 3 instruct.
    sampling: Sampling { temperature: 1.0, top_k: 64, top_p: 0.95, ..Sampling::PLAIN },
    build: |mut source| {
        let config = match source.keys.is_config_json() {
            true => Config::from_json(&mut source)?,
            false => Config::from_gguf(&source)?,
        };
        source.decoder(&config.sizes, |m| graph(&config, m))
    },
};

/// What a Gemma 3 is made of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    /// The rotary embedding in it is that of the global layers.
    sizes: Sizes,
    rope_local: Rope,
    sliding_window: usize,
    /// Which layers see all earlier positions; the others see `sliding_window`.
    global: Vec<bool>,
    /// The queries are scaled by its inverse square root.
    query_pre_attn_scalar: f64,
}

impl Config {
    fn from_gguf(source: &Source) -> Result<Config, ModelError> {
        let keys = &source.keys;
        let sizes = Sizes::from_gguf(keys, &source.weights, Style::Half, 1_000_000.0)?;
        let theta = keys.opt_positive("rope.freq_base_swa")?.unwrap_or(10_000.0);
        let rope_local = Rope { theta, scaling: Scaling::None, ..sizes.rope.clone() };
        // The 27B model, the one with 62 layers, scales by the width of a head as it would be
        // without a head_dim of its own; no key of the file says so.
        let query_pre_attn_scalar = match sizes.num_hidden_layers {
            62 => sizes.hidden_size as f64 / sizes.num_attention_heads as f64,
            _ => sizes.head_dim as f64,
        };
        Ok(Config {
            rope_local,
            sliding_window: keys.size("attention.sliding_window")?,
            global: global_layers(source, sizes.num_hidden_layers)?,
            query_pre_attn_scalar,
            sizes,
        })
    }

    fn from_json(source: &mut Source) -> Result<Config, ModelError> {
        source.weights.checkpoint(true);
        source.weights.norms_less_one();
        let keys = &source.keys;
        let defaults = Defaults {
            theta: 1_000_000.0,
            rms_norm_eps: 1e-6,
            activation: &["gelu_pytorch_tanh"],
            bidirectional: true,
        };
        let mut sizes = Sizes::from_json(keys, &source.weights, defaults)?;
        let [rope_local, rope] = config_json::ropes_by_kind(
            keys,
            [sizes.head_dim, sizes.max_position_embeddings],
            10_000.0,
            defaults.theta,
        )?;
        sizes.rope = rope;
        let period = match keys.opt_size("sliding_window_pattern")? {
            Some(period) => period,
            None => keys.opt_size("_sliding_window_pattern")?.unwrap_or(6),
        };
        for name in ["attn_logit_softcapping", "final_logit_softcapping"] {
            if keys.value(name).is_some() {
                return Err(keys.wrong(name, "this family has none".into()));
            }
        }
        keys.harmless(&["cache_implementation"]);
        // What a token sees on each side, itself included.
        let seen = |window: usize| if sizes.bidirectional { window / 2 + 1 } else { window };
        let windows = config_json::windows(keys, sizes.num_hidden_layers, |layer| {
            !(layer + 1).is_multiple_of(period)
        })?;
        Ok(Config {
            rope_local,
            sliding_window: seen(keys.size("sliding_window")?),
            global: windows.iter().map(Option::is_none).collect(),
            query_pre_attn_scalar: keys
                .opt_positive("query_pre_attn_scalar")?
                .map_or(sizes.head_dim as f64, f64::from),
            sizes,
        })
    }
}

/// `attention.sliding_window_pattern` is the period of the global layers, or says of each layer
/// whether it is local; without it the period is 6.
fn global_layers(source: &Source, layers: usize) -> Result<Vec<bool>, ModelError> {
    const KEY: &str = "attention.sliding_window_pattern";
    let period = match source.keys.value(KEY) {
        Some(Value::Array(Array::Bool(local))) if local.len() == layers => {
            return Ok(local.iter().map(|l| !l).collect());
        }
        Some(Value::Array(_)) => {
            return Err(source.keys.wrong(KEY, format!("it must have {layers} booleans")));
        }
        Some(_) => source.keys.size(KEY)?,
        None => 6,
    };
    Ok((0..layers).map(|layer| (layer + 1).is_multiple_of(period)).collect())
}

fn graph(config: &Config, m: &mut Decoder) -> Result<ValueId, ModelError> {
    let &Sizes { hidden_size, num_attention_heads, num_key_value_heads, .. } = &config.sizes;
    let scale = 1.0 / config.query_pre_attn_scalar.sqrt();
    let rope_global = m.rope_table(&config.sizes.rope)?;
    let rope_local = m.rope_table(&config.rope_local)?;

    let x = m.embed()?; // [T, hidden]
    let mut x = m.scale(x, (hidden_size as f64).sqrt())?;
    for (layer, &global) in config.global.iter().enumerate() {
        m.start_layer(layer);
        let (rope, window) =
            if global { (rope_global, None) } else { (rope_local, Some(config.sliding_window)) };
        let h = m.norm(x, "attn_norm")?;
        let q = m.heads(h, "attn_q", num_attention_heads)?; // [T, heads, head_dim]
        let k = m.heads(h, "attn_k", num_key_value_heads)?; // [T, kv_heads, head_dim]
        let v = m.heads(h, "attn_v", num_key_value_heads)?;
        let q = m.norm(q, "attn_q_norm")?;
        let k = m.norm(k, "attn_k_norm")?;
        let q = m.rope(q, &rope)?;
        let k = m.rope(k, &rope)?;
        let a = m.attention(q, k, v, &Attention { scale, window, softcap: 0.0 })?; // [T, heads * head_dim]
        let [residual, a] = m.narrow([x, a])?;
        let o = m.linear(a, "attn_output", hidden_size)?;
        let o = m.norm(o, "post_attention_norm")?;
        x = m.add(residual, o)?;

        let h = m.norm(x, "ffn_norm")?;
        let f = m.feed_forward(h, Gate::GeluTanh)?; // [T, hidden]
        let f = m.norm(f, "post_ffw_norm")?;
        x = m.add(x, f)?;
    }
    Ok(x)
}
