//! ModernBERT: a BERT with rotary positions, gated feed-forwards, norms before each block, and
//! windows in most layers.
//!
//! Paper: <https://arxiv.org/abs/2412.13663>. Reference: `ModernBertModel` and its heads in Hugging
//! Face transformers.

use cyb_ir::ValueId;

use crate::config_json;
use crate::encoder::{self, Activation, Built, Encoder, EncoderInfo, Head, Sizes};
use crate::registry::{Sampling, Source};
use crate::rope::Rope;
use crate::{Family, ModelError, Template, inputs};

pub(crate) static FAMILY: Family = Family {
    name: "modernbert",
    names: &["modernbert"],
    template: Template::TextEncoder,
    sampling: Sampling::PLAIN,
    build: |source| {
        let config = Config::read(&source)?;
        let info = EncoderInfo::with_head(config.head, &config.labels, config.scores);
        source.encoder(&config.sizes.clone(), info, is_part, |m| graph(&config, m))
    },
};

/// What a ModernBERT is made of.
#[derive(Clone, Debug, PartialEq)]
struct Config {
    sizes: Sizes,
    intermediate_size: usize,
    hidden_activation: Activation,
    classifier_activation: Activation,
    norm_eps: f32,
    /// How far the tokens of each layer see; `None` for all of the sequence.
    windows: Vec<Option<usize>>,
    rope_local: Rope,
    rope_global: Rope,
    /// Whether a text is classified by the mean of its tokens, not by the first.
    mean_pooling: bool,
    head: Head,
    labels: Vec<String>,
    scores: encoder::Scores,
    prefix: &'static str,
}

impl Config {
    fn read(source: &Source) -> Result<Config, ModelError> {
        source.needs_config_json()?;
        let keys = &source.keys;
        let hidden_size = keys.size("hidden_size")?;
        let num_attention_heads = keys.size("num_attention_heads")?;
        if !hidden_size.is_multiple_of(num_attention_heads) {
            let want = format!("it must divide the width {hidden_size}");
            return Err(keys.wrong("num_attention_heads", want));
        }
        let head_dim = hidden_size / num_attention_heads;
        let context_length = keys.size("max_position_embeddings")?;
        let num_hidden_layers = keys.size("num_hidden_layers")?;
        let local_theta = keys.opt_positive("local_rope_theta")?.unwrap_or(10_000.0);
        let global_theta = keys.opt_positive("global_rope_theta")?.unwrap_or(160_000.0);
        let [rope_local, rope_global] = config_json::ropes_by_kind(
            keys,
            [head_dim, context_length],
            local_theta,
            global_theta,
        )?;
        let window = keys.opt_size("local_attention")?.unwrap_or(128) / 2;
        let period = keys.opt_size("global_attn_every_n_layers")?.unwrap_or(3);
        let windows = config_json::windows_of(keys, num_hidden_layers, Some(window), |layer| {
            !layer.is_multiple_of(period)
        })?;
        let head = encoder::head(keys)?;
        let mean_pooling = match keys.opt::<&str>("classifier_pooling")? {
            Some("mean") => true,
            None | Some("cls") => false,
            Some(_) if head != Head::Sequence => false,
            Some(_) => {
                return Err(keys.wrong("classifier_pooling", "cls and mean are known".into()));
            }
        };
        keys.harmless(&[
            // A bias is used wherever the file has one.
            "attention_bias",
            "classifier_bias",
            "decoder_bias",
            "mlp_bias",
            "norm_bias",
            "deterministic_flash_attn",
            "embedding_dropout",
            "initializer_cutoff_factor",
            "layer_norm_eps", // of another class
            "mlp_dropout",
            "position_embedding_type",
            "reference_compile",
            "repad_logits_with_grad",
            "sparse_pred_ignore_index",
            "sparse_prediction",
            "tie_word_embeddings",
        ]);
        let labels = encoder::labels(keys)?;
        let prefixed = source.weights.has("model.embeddings.tok_embeddings.weight");
        Ok(Config {
            sizes: Sizes {
                vocab_size: keys.size("vocab_size")?,
                hidden_size,
                num_hidden_layers,
                num_attention_heads,
                head_dim,
                context_length,
            },
            intermediate_size: keys.size("intermediate_size")?,
            hidden_activation: Activation::read(keys, "hidden_activation", Activation::GeluErf)?,
            classifier_activation: Activation::read(
                keys,
                "classifier_activation",
                Activation::GeluErf,
            )?,
            norm_eps: keys.opt_positive("norm_eps")?.unwrap_or(1e-5),
            windows,
            rope_local,
            rope_global,
            mean_pooling,
            head,
            scores: encoder::scores(keys, labels.len())?,
            labels,
            prefix: if prefixed { "model." } else { "" },
        })
    }
}

fn is_part(name: &str) -> bool {
    ["layers.", "embeddings.", "final_norm"].iter().any(|part| name.contains(part))
}

fn graph(config: &Config, m: &mut Encoder) -> Result<(), ModelError> {
    let &Sizes { vocab_size, hidden_size, num_attention_heads, head_dim, context_length, .. } =
        &config.sizes;
    let eps = config.norm_eps;
    let scale = 1.0 / (head_dim as f64).sqrt();
    let named = |name: &str| format!("{}{name}", config.prefix);
    let local = m.rope_table(&config.rope_local, context_length)?;
    let global = m.rope_table(&config.rope_global, context_length)?;
    let table = named("embeddings.tok_embeddings.weight");

    let x = m.embed_tokens(&table, [vocab_size, hidden_size])?; // [T, hidden]
    let mut x = m.layer_norm(x, &named("embeddings.norm"), eps)?;
    for (layer, &window) in config.windows.iter().enumerate() {
        let own = |name: &str| named(&format!("layers.{layer}.{name}"));
        // The first layer's input is normed already.
        let h = if layer == 0 { x } else { m.layer_norm(x, &own("attn_norm"), eps)? };
        let qkv = m.linear(h, &own("attn.Wqkv"), hidden_size.saturating_mul(3))?;
        let [q, k, v] = m.split_heads(qkv, num_attention_heads)?; // [T, heads, head_dim] each
        let rope = if window.is_some() { &local } else { &global };
        let (q, k) = (m.rope(q, rope)?, m.rope(k, rope)?);
        let a = m.attention([q, k, v], scale, window)?; // [T, hidden]
        let o = m.linear(a, &own("attn.Wo"), hidden_size)?;
        x = m.add(x, o)?;

        let h = m.layer_norm(x, &own("mlp_norm"), eps)?;
        let both = m.linear(h, &own("mlp.Wi"), config.intermediate_size.saturating_mul(2))?;
        let f = m.gated(both, config.hidden_activation)?; // [T, intermediate]
        let f = m.linear(f, &own("mlp.Wo"), hidden_size)?;
        x = m.add(x, f)?;
    }
    let x = m.layer_norm(x, &named("final_norm"), eps)?;
    m.output(inputs::LAST_HIDDEN_STATE, x);

    let logits = match config.head {
        Head::None => return Ok(()),
        Head::Sequence => {
            let one = if config.mean_pooling { m.mean(x)? } else { m.pooled(x)? }; // [R, hidden]
            let h = prediction(config, m, one)?;
            m.linear(h, "classifier", config.labels.len())? // [R, labels]
        }
        Head::Token => {
            let h = prediction(config, m, x)?;
            m.linear(h, "classifier", config.labels.len())? // [T, labels]
        }
        Head::Words => {
            let h = prediction(config, m, x)?;
            let own = "decoder.weight";
            let table = if m.weights.has(own) { own } else { &table };
            let bias = Some("decoder.bias").filter(|bias| m.weights.has(bias));
            m.unembed(h, table, vocab_size, bias)? // [T, vocab]
        }
    };
    m.output(inputs::LOGITS, logits);
    Ok(())
}

/// What all heads begin with.
fn prediction(config: &Config, m: &mut Encoder, x: ValueId) -> Built {
    let h = m.linear(x, "head.dense", config.sizes.hidden_size)?;
    let h = m.activate(h, config.classifier_activation)?;
    m.layer_norm(h, "head.norm", config.norm_eps)
}
