//! Qwen2 and Qwen2.5: a Llama with biases on query, key and value.
//!
//! Qwen2: <https://arxiv.org/abs/2407.10671>, Qwen2.5: <https://arxiv.org/abs/2412.15115>.
//! Reference: `Qwen2ForCausalLM` of Hugging Face transformers.

use cyb_ir::ValueId;

use crate::config::Config;
use crate::config_json::{self, Defaults};
use crate::decoder::{Attention, Decoder, Gate};
use crate::registry::{Sampling, Source};
use crate::rope::Style;
use crate::{Family, ModelError, Template};

pub(crate) static FAMILY: Family = Family {
    name: "qwen2",
    names: &["qwen2"],
    template: Template::TextDecoder,
    // generation_config.json of Qwen2.5-Instruct.
    sampling: Sampling {
        temperature: 0.7,
        top_k: 20,
        top_p: 0.8,
        repetition_penalty: 1.05,
        ..Sampling::PLAIN
    },
    build: |mut source| {
        let (config, windows) = match source.keys.is_config_json() {
            true => from_json(&mut source)?,
            false => from_gguf(&source)?,
        };
        source.decoder(&config, |m| graph(&config, &windows, m))
    },
};

/// The window of each layer; files of GGUF have none.
type Windows = Vec<Option<usize>>;

fn from_gguf(source: &Source) -> Result<(Config, Windows), ModelError> {
    let config = Config::from_gguf(&source.keys, &source.weights, Style::Half, 10_000.0)?;
    let windows = vec![None; config.num_hidden_layers];
    Ok((config, windows))
}

fn from_json(source: &mut Source) -> Result<(Config, Windows), ModelError> {
    source.weights.checkpoint(false);
    let keys = &source.keys;
    let defaults =
        Defaults { theta: 10_000.0, rms_norm_eps: 1e-6, activation: &["silu"], ..Defaults::NONE };
    let config = Config::from_json(keys, &source.weights, defaults)?;
    let sliding = keys.opt::<bool>("use_sliding_window")?.unwrap_or(false);
    let first = keys.opt::<usize>("max_window_layers")?.unwrap_or(0);
    let windows =
        config_json::windows(keys, config.num_hidden_layers, |layer| sliding && layer >= first)?;
    Ok((config, windows))
}

fn graph(
    config: &Config,
    windows: &[Option<usize>],
    m: &mut Decoder,
) -> Result<ValueId, ModelError> {
    let &Config { hidden_size, num_attention_heads, num_key_value_heads, head_dim, .. } = config;
    let scale = 1.0 / (head_dim as f64).sqrt();
    let rope = m.rope_table(&config.rope)?;

    let mut x = m.embed()?; // [T, hidden]
    for (layer, &window) in windows.iter().enumerate() {
        m.start_layer(layer);
        let h = m.norm(x, "attn_norm")?;
        m.require(["attn_q.bias", "attn_k.bias", "attn_v.bias"])?;
        let q = m.heads(h, "attn_q", num_attention_heads)?; // [T, heads, head_dim]
        let k = m.heads(h, "attn_k", num_key_value_heads)?; // [T, kv_heads, head_dim]
        let v = m.heads(h, "attn_v", num_key_value_heads)?;
        let q = m.rope(q, &rope)?;
        let k = m.rope(k, &rope)?;
        let a = m.attention(q, k, v, &Attention { scale, window, softcap: 0.0 })?;
        // [T, hidden], [T, heads * head_dim]
        let [residual, a] = m.narrow([x, a])?;
        let o = m.linear(a, "attn_output", hidden_size)?;
        x = m.add(residual, o)?;

        let h = m.norm(x, "ffn_norm")?;
        let f = m.feed_forward(h, Gate::Silu)?; // [T, hidden]
        x = m.add(x, f)?;
    }
    Ok(x)
}
