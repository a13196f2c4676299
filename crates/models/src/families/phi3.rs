//! Phi-3 and Phi-3.5: a Llama whose projections of one input lie in one matrix, with a rotary
//! embedding that has two sets of frequencies, for short and for long contexts.
//!
//! Paper: <https://arxiv.org/abs/2404.14219>. Reference: `Phi3ForCausalLM` of Hugging Face
//! transformers.

use cyb_ir::ValueId;

use crate::config::Config as Sizes;
use crate::config_json::{self, Defaults};
use crate::decoder::{Attention, Decoder, Gate};
use crate::registry::Sampling;
use crate::{Family, ModelError, Template};

pub(crate) static FAMILY: Family = Family {
    name: "phi3",
    names: &["phi3"],
    template: Template::TextDecoder,
    sampling: Sampling::PLAIN,
    build: |mut source| {
        source.needs_config_json()?;
        source.weights.checkpoint(false);
        let keys = &source.keys;
        let sizes = Sizes::from_json(
            keys,
            &source.weights,
            Defaults {
                theta: 10_000.0,
                rms_norm_eps: 1e-5,
                activation: &["silu"],
                ..Defaults::NONE
            },
        )?;
        let windowed = keys.opt_size("sliding_window")?.is_some();
        let windows = config_json::windows(keys, sizes.num_hidden_layers, |_| windowed)?;
        source.decoder(&sizes, |m| graph(&sizes, &windows, m))
    },
};

fn graph(
    config: &Sizes,
    windows: &[Option<usize>],
    m: &mut Decoder,
) -> Result<ValueId, ModelError> {
    let &Sizes { hidden_size, num_attention_heads, num_key_value_heads, head_dim, .. } = config;
    let scale = 1.0 / (head_dim as f64).sqrt();
    let rope = m.rope_table(&config.rope)?;
    let heads = [num_attention_heads, num_key_value_heads, num_key_value_heads];

    let mut x = m.embed()?; // [T, hidden]
    for (layer, &window) in windows.iter().enumerate() {
        m.start_layer(layer);
        let h = m.norm(x, "attn_norm")?;
        let [q, k, v] = m.fused_heads(h, "attn_qkv", heads)?; // [T, heads, head_dim] each
        let q = m.rope(q, &rope)?;
        let k = m.rope(k, &rope)?;
        let a = m.attention(q, k, v, &Attention { scale, window, softcap: 0.0 })?;
        let [residual, a] = m.narrow([x, a])?; // [T, hidden], [T, heads * head_dim]
        let o = m.linear(a, "attn_output", hidden_size)?;
        x = m.add(residual, o)?;

        let h = m.norm(x, "ffn_norm")?;
        let f = m.fused_feed_forward(h, Gate::Silu)?; // [T, hidden]
        x = m.add(x, f)?;
    }
    Ok(x)
}
