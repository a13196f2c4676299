//! Gemma 2: norms before and after each block, windows in every other layer, and bounds on the
//! scores of attention and on the logits.
//!
//! Paper: <https://arxiv.org/abs/2408.00118>. Reference: `Gemma2ForCausalLM` of Hugging Face
//! transformers.

use cyb_ir::ValueId;

use crate::config::Config as Sizes;
use crate::config_json::{self, Defaults};
use crate::decoder::{Attention, Decoder, Gate};
use crate::registry::{Sampling, Source};
use crate::{Family, ModelError, Template};

pub(crate) static FAMILY: Family = Family {
    name: "gemma2",
    names: &["gemma2"],
    template: Template::TextDecoder,
    // generation_config.json of Gemma 2 instruct.
    sampling: Sampling { temperature: 1.0, top_k: 64, top_p: 0.95, ..Sampling::PLAIN },
    build: |mut source| {
        let config = Config::from_json(&mut source)?;
        source.decoder(&config.sizes, |m| graph(&config, m))
    },
};

/// What a Gemma 2 is made of.
#[derive(Clone, Debug, PartialEq)]
struct Config {
    sizes: Sizes,
    windows: Vec<Option<usize>>,
    query_pre_attn_scalar: f64,
    attn_logit_softcapping: f64,
    final_logit_softcapping: f64,
}

impl Config {
    fn from_json(source: &mut Source) -> Result<Config, ModelError> {
        source.needs_config_json()?;
        source.weights.checkpoint(true);
        source.weights.norms_less_one();
        let keys = &source.keys;
        let sizes = Sizes::from_json(
            keys,
            &source.weights,
            Defaults {
                theta: 10_000.0,
                rms_norm_eps: 1e-6,
                activation: &["gelu_pytorch_tanh", "gelu"],
                ..Defaults::NONE
            },
        )?;
        // The library computes the tanh form whatever `hidden_act` says; `hidden_activation` is it.
        keys.harmless(&["cache_implementation"]);
        let cap = |name: &str| Ok::<_, ModelError>(keys.opt_positive(name)?.map_or(0.0, f64::from));
        Ok(Config {
            windows: config_json::windows(keys, sizes.num_hidden_layers, |layer| {
                layer.is_multiple_of(2)
            })?,
            query_pre_attn_scalar: keys
                .opt_positive("query_pre_attn_scalar")?
                .map_or(sizes.head_dim as f64, f64::from),
            attn_logit_softcapping: cap("attn_logit_softcapping")?,
            final_logit_softcapping: cap("final_logit_softcapping")?,
            sizes,
        })
    }
}

fn graph(config: &Config, m: &mut Decoder) -> Result<ValueId, ModelError> {
    let &Sizes { hidden_size, num_attention_heads, num_key_value_heads, .. } = &config.sizes;
    let scale = 1.0 / config.query_pre_attn_scalar.sqrt();
    let softcap = config.attn_logit_softcapping;
    let rope = m.rope_table(&config.sizes.rope)?;
    m.cap_logits(config.final_logit_softcapping);

    let x = m.embed()?; // [T, hidden]
    let mut x = m.scale(x, (hidden_size as f64).sqrt())?;
    for (layer, &window) in config.windows.iter().enumerate() {
        m.start_layer(layer);
        let h = m.norm(x, "attn_norm")?;
        let q = m.heads(h, "attn_q", num_attention_heads)?; // [T, heads, head_dim]
        let k = m.heads(h, "attn_k", num_key_value_heads)?; // [T, kv_heads, head_dim]
        let v = m.heads(h, "attn_v", num_key_value_heads)?;
        let q = m.rope(q, &rope)?;
        let k = m.rope(k, &rope)?;
        let a = m.attention(q, k, v, &Attention { scale, window, softcap })?;
        let [residual, a] = m.narrow([x, a])?; // [T, hidden], [T, heads * head_dim]
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
