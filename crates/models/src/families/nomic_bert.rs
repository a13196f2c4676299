//! Nomic BERT: a BERT with rotary positions and gated feed-forwards, norms after each block.
//!
//! Paper: <https://arxiv.org/abs/2402.01613>. Reference: `NomicBertModel` of Hugging Face
//! transformers. The published config.json has the names of GPT-2; transformers 5 writes BERT's.

use crate::config_json;
use crate::encoder::{self, Activation, Encoder, EncoderInfo, Head, Sizes};
use crate::registry::{Sampling, Source};
use crate::rope::Rope;
use crate::{Family, ModelError, Template, inputs};

pub(crate) static FAMILY: Family = Family {
    name: "nomic_bert",
    names: &["nomic_bert"],
    template: Template::TextEncoder,
    sampling: Sampling::PLAIN,
    build: |source| {
        let config = Config::read(&source)?;
        let info = EncoderInfo { token_types: config.type_vocab_size, ..EncoderInfo::default() };
        source.encoder(&config.sizes.clone(), info, is_part, |m| graph(&config, m))
    },
};

/// What a Nomic BERT is made of.
#[derive(Clone, Debug, PartialEq)]
struct Config {
    sizes: Sizes,
    intermediate_size: usize,
    type_vocab_size: usize,
    activation: Activation,
    layer_norm_eps: f32,
    rope: Rope,
}

impl Config {
    fn read(source: &Source) -> Result<Config, ModelError> {
        source.needs_config_json()?;
        let keys = &source.keys;
        // A size under the name of transformers 5, or the published one.
        let size = |new: &str, old: &str| match keys.opt_size(new)? {
            Some(n) => Ok(n),
            None => keys.opt_size(old)?.map_or_else(|| keys.size(new), Ok),
        };
        let hidden_size = size("hidden_size", "n_embd")?;
        let heads = size("num_attention_heads", "n_head")?;
        let head_dim = match keys.opt_size("head_dim")? {
            Some(n) => n,
            None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
            None => {
                let want = format!("it must divide the width {hidden_size}");
                return Err(keys.wrong("num_attention_heads", want));
            }
        };
        if encoder::head(keys)? != Head::None {
            let want = "only the model without a head is supported in this family".to_owned();
            return Err(keys.wrong("architectures", want));
        }
        keys.only("activation_function", "swiglu")?;
        keys.only("rotary_emb_fraction", 1.0f32)?;
        for name in [
            "causal",
            "mlp_fc1_bias",
            "mlp_fc2_bias",
            "parallel_block",
            "prenorm",
            "qkv_proj_bias",
            "rotary_emb_interleaved",
            "use_rms_norm",
        ] {
            keys.only(name, false)?;
        }
        for name in ["rotary_scaling_factor", "rotary_emb_scale_base"] {
            if keys.value(name).is_some() {
                return Err(keys.wrong(name, "it is not supported".into()));
            }
        }
        // How the published code runs, and what its heads did in training.
        keys.harmless(&[
            "attn_pdrop",
            "dense_seq_output",
            "fused_bias_fc",
            "fused_dropout_add_ln",
            "last_layer_subset",
            "max_trained_positions",
            "pad_vocab_size_multiple",
            "reorder_and_upcast_attn",
            "scale_attn_by_inverse_layer_idx",
            "scale_attn_weights",
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
            "tie_word_embeddings",
            "use_flash_attn",
            "use_xentropy",
        ]);
        let context_length = size("max_position_embeddings", "n_positions")?;
        let theta = keys.opt_positive("rotary_emb_base")?.unwrap_or(10_000.0);
        let eps = keys.opt_positive("layer_norm_epsilon")?.unwrap_or(1e-12);
        Ok(Config {
            sizes: Sizes {
                vocab_size: keys.size("vocab_size")?,
                hidden_size,
                num_hidden_layers: size("num_hidden_layers", "n_layer")?,
                num_attention_heads: heads,
                head_dim,
                context_length,
            },
            intermediate_size: size("intermediate_size", "n_inner")?,
            type_vocab_size: keys.size("type_vocab_size")?,
            activation: Activation::read(keys, "hidden_act", Activation::Silu)?,
            layer_norm_eps: keys.opt_positive("layer_norm_eps")?.unwrap_or(eps),
            rope: config_json::rope(keys, head_dim, context_length, None, theta)?,
        })
    }
}

fn is_part(name: &str) -> bool {
    ["layers.", "embeddings.", "emb_ln"].iter().any(|part| name.contains(part))
}

fn graph(config: &Config, m: &mut Encoder) -> Result<(), ModelError> {
    let &Sizes {
        vocab_size,
        hidden_size,
        num_hidden_layers,
        num_attention_heads,
        head_dim,
        context_length,
    } = &config.sizes;
    let eps = config.layer_norm_eps;
    let scale = 1.0 / (head_dim as f64).sqrt();
    let width = num_attention_heads.saturating_mul(head_dim);
    let rope = m.rope_table(&config.rope, context_length)?;

    let x = m.embed_tokens("embeddings.word_embeddings.weight", [vocab_size, hidden_size])?;
    let types = [config.type_vocab_size, hidden_size];
    let t = m.embed_token_types("embeddings.token_type_embeddings.weight", types)?;
    let x = m.add(x, t)?; // [T, hidden]
    let mut x = m.layer_norm(x, "emb_ln", eps)?;
    for layer in 0..num_hidden_layers {
        let own = |name: &str| format!("encoder.layers.{layer}.{name}");
        let qkv = m.linear(x, &own("attn.Wqkv"), width.saturating_mul(3))?;
        let [q, k, v] = m.split_heads(qkv, num_attention_heads)?; // [T, heads, head_dim] each
        let (q, k) = (m.rope(q, &rope)?, m.rope(k, &rope)?);
        let a = m.attention([q, k, v], scale, None)?; // [T, heads * head_dim]
        let o = m.linear(a, &own("attn.out_proj"), hidden_size)?;
        let h = m.add(x, o)?;
        let h = m.layer_norm(h, &own("norm1"), eps)?;

        let gate = m.linear(h, &own("mlp.fc12"), config.intermediate_size)?;
        let gate = m.activate(gate, config.activation)?;
        let up = m.linear(h, &own("mlp.fc11"), config.intermediate_size)?;
        let f = m.mul(gate, up)?;
        let f = m.linear(f, &own("mlp.fc2"), hidden_size)?;
        let f = m.add(h, f)?;
        x = m.layer_norm(f, &own("norm2"), eps)?;
    }
    m.output(inputs::LAST_HIDDEN_STATE, x);
    Ok(())
}
