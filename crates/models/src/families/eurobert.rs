//! EuroBERT: a Llama that looks in both directions.
//!
//! Paper: <https://arxiv.org/abs/2503.05500>. Reference: `EuroBertModel` and its heads in Hugging Face
//! transformers.

use cyb_ir::ValueId;

use crate::config_json;
use crate::encoder::{self, Activation, Encoder, EncoderInfo, Head, Sizes};
use crate::registry::{Sampling, Source};
use crate::rope::Rope;
use crate::{Family, ModelError, Template, inputs};

pub(crate) static FAMILY: Family = Family {
    name: "eurobert",
    names: &["eurobert"],
    template: Template::TextEncoder,
    sampling: Sampling::PLAIN,
    build: |source| {
        let config = Config::read(&source)?;
        let info = EncoderInfo::with_head(config.head, &config.labels, config.scores);
        source.encoder(&config.sizes.clone(), info, is_part, |m| graph(&config, m))
    },
};

/// What a EuroBERT is made of.
#[derive(Clone, Debug, PartialEq)]
struct Config {
    sizes: Sizes,
    num_key_value_heads: usize,
    intermediate_size: usize,
    activation: Activation,
    rms_norm_eps: f32,
    rope: Rope,
    head: Head,
    labels: Vec<String>,
    scores: encoder::Scores,
    pooling: Pooling,
    prefix: &'static str,
}

/// What of the tokens of a text is classified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pooling {
    First,
    Mean,
    /// Every token; the mean of the logits.
    Late,
}

impl Config {
    fn read(source: &Source) -> Result<Config, ModelError> {
        source.needs_config_json()?;
        let keys = &source.keys;
        let hidden_size = keys.size("hidden_size")?;
        let heads = keys.size("num_attention_heads")?;
        let kv_heads = keys.opt_size("num_key_value_heads")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let want = format!("it must divide the {heads} query heads");
            return Err(keys.wrong("num_key_value_heads", want));
        }
        let head_dim = match keys.opt_size("head_dim")? {
            Some(n) => n,
            None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
            None => {
                let want = format!("it must divide the width {hidden_size}");
                return Err(keys.wrong("num_attention_heads", want));
            }
        };
        let context_length = keys.size("max_position_embeddings")?;
        let head = encoder::head(keys)?;
        // transformers and the published code name it differently.
        let pooling = keys.opt::<&str>("classifier_pooling")?.or(keys.opt("clf_pooling")?);
        let pooling = match pooling {
            None | Some("late") => Pooling::Late,
            Some("mean") => Pooling::Mean,
            Some("bos") => Pooling::First,
            Some(_) => {
                let want = "late, mean and bos are known".to_owned();
                return Err(keys.wrong("classifier_pooling", want));
            }
        };
        let labels = encoder::labels(keys)?;
        // A bias is used wherever the file has one.
        keys.harmless(&["attention_bias", "mlp_bias", "tie_word_embeddings"]);
        let based = source.weights.has("model.embed_tokens.weight");
        Ok(Config {
            sizes: Sizes {
                vocab_size: keys.size("vocab_size")?,
                hidden_size,
                num_hidden_layers: keys.size("num_hidden_layers")?,
                num_attention_heads: heads,
                head_dim,
                context_length,
            },
            num_key_value_heads: kv_heads,
            intermediate_size: keys.size("intermediate_size")?,
            activation: Activation::read(keys, "hidden_act", Activation::Silu)?,
            rms_norm_eps: keys.opt_positive("rms_norm_eps")?.unwrap_or(1e-5),
            rope: config_json::rope(keys, head_dim, context_length, None, 250_000.0)?,
            head,
            pooling,
            scores: encoder::scores(keys, labels.len())?,
            labels,
            prefix: if based { "model." } else { "" },
        })
    }
}

fn is_part(name: &str) -> bool {
    let part = ["layers.", "embed_tokens", "norm."].iter().any(|part| name.contains(part));
    part && !name.ends_with("inv_freq")
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
    let eps = config.rms_norm_eps;
    let scale = 1.0 / (head_dim as f64).sqrt();
    let named = |name: &str| format!("{}{name}", config.prefix);
    let rope = m.rope_table(&config.rope, context_length)?;
    let table = named("embed_tokens.weight");

    let mut x = m.embed_tokens(&table, [vocab_size, hidden_size])?; // [T, hidden]
    for layer in 0..num_hidden_layers {
        let own = |name: &str| named(&format!("layers.{layer}.{name}"));
        let h = m.rms_norm(x, &own("input_layernorm"), eps)?;
        let project = |m: &mut Encoder, name: &str, heads: usize| -> Result<ValueId, ModelError> {
            let name = own(&format!("self_attn.{name}"));
            let y = m.linear(h, &name, heads.saturating_mul(head_dim))?;
            m.heads(y, heads) // [T, heads, head_dim]
        };
        let q = project(m, "q_proj", num_attention_heads)?;
        let k = project(m, "k_proj", config.num_key_value_heads)?;
        let v = project(m, "v_proj", config.num_key_value_heads)?;
        let (q, k) = (m.rope(q, &rope)?, m.rope(k, &rope)?);
        let a = m.attention([q, k, v], scale, None)?; // [T, heads * head_dim]
        let o = m.linear(a, &own("self_attn.o_proj"), hidden_size)?;
        x = m.add(x, o)?;

        let h = m.rms_norm(x, &own("post_attention_layernorm"), eps)?;
        let gate = m.linear(h, &own("mlp.gate_proj"), config.intermediate_size)?;
        let gate = m.activate(gate, config.activation)?;
        let up = m.linear(h, &own("mlp.up_proj"), config.intermediate_size)?;
        let f = m.mul(gate, up)?;
        let f = m.linear(f, &own("mlp.down_proj"), hidden_size)?;
        x = m.add(x, f)?;
    }
    let x = m.rms_norm(x, &named("norm"), eps)?;
    m.output(inputs::LAST_HIDDEN_STATE, x);
    let logits = match config.head {
        Head::None => return Ok(()),
        Head::Sequence => {
            let one = match config.pooling {
                Pooling::First => m.pooled(x)?, // [R, hidden]
                Pooling::Mean => m.mean(x)?,
                Pooling::Late => x, // [T, hidden]
            };
            let h = m.linear(one, "dense", hidden_size)?;
            let h = m.activate(h, Activation::GeluErf)?;
            let logits = m.linear(h, "classifier", config.labels.len())?;
            if config.pooling == Pooling::Late { m.mean(logits)? } else { logits } // [R, labels]
        }
        Head::Token => m.linear(x, "classifier", config.labels.len())?, // [T, labels]
        Head::Words => {
            let own = "lm_head.weight";
            let words = if m.weights.has(own) { own } else { &table };
            let bias = Some("lm_head.bias").filter(|bias| m.weights.has(bias));
            m.unembed(x, words, vocab_size, bias)? // [T, vocab]
        }
    };
    m.output(inputs::LOGITS, logits);
    Ok(())
}
