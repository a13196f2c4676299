//! The encoder of T5: relative positions as a bias on the scores of attention, norms before each
//! block, no scaling of scores.
//!
//! Paper: <https://arxiv.org/abs/1910.10683>, the gated form: <https://arxiv.org/abs/2002.05202>.
//! Reference: `T5EncoderModel` of Hugging Face transformers.

use cyb_ir::ValueId;
use cyb_tensor::Tensor;

use crate::encoder::{Activation, Encoder, EncoderInfo, Sizes};
use crate::registry::{Sampling, Source};
use crate::relative::{self, Buckets};
use crate::{Family, ModelError, Template, inputs};

pub(crate) static FAMILY: Family = Family {
    name: "t5",
    names: &["t5"],
    template: Template::TextEncoder,
    sampling: Sampling::PLAIN,
    build: |source| {
        let config = Config::read(&source)?;
        let bias = config.bias(&source)?;
        let info = EncoderInfo::default();
        // Nothing but the encoder is in the file.
        source.encoder(&config.sizes.clone(), info, |_| true, |m| graph(&config, bias, m))
    },
};

/// Sequences may be as long as memory allows; the tokenizer says what the model was trained on.
const CONTEXT: usize = 1 << 16;

/// What the encoder of a T5 is made of.
#[derive(Clone, Debug, PartialEq)]
struct Config {
    sizes: Sizes,
    d_ff: usize,
    buckets: Buckets,
    layer_norm_epsilon: f32,
    activation: Activation,
    gated: bool,
}

const BIAS: &str = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";

impl Config {
    fn read(source: &Source) -> Result<Config, ModelError> {
        source.needs_config_json()?;
        let keys = &source.keys;
        let names = keys.value("architectures").and_then(|v| match v {
            cyb_formats::Value::Array(list) => list.get(0),
            _ => None,
        });
        if names.is_some_and(|n| n != cyb_formats::Value::String("T5EncoderModel".into())) {
            let want = "only the encoder, T5EncoderModel, is supported".to_owned();
            return Err(keys.wrong("architectures", want));
        }
        let (activation, gated) = match keys.opt::<&str>("feed_forward_proj")? {
            None | Some("relu") => (Activation::Relu, false),
            Some("gelu") => (Activation::GeluErf, false),
            // The library's name for it is the exact GELU, and it computes the tanh form.
            Some("gated-gelu") => (Activation::GeluTanh, true),
            Some("gated-silu") => (Activation::Silu, true),
            Some("gated-relu") => (Activation::Relu, true),
            Some(_) => {
                let want =
                    "relu, gelu and both with gated- before, and gated-silu are known".to_owned();
                return Err(keys.wrong("feed_forward_proj", want));
            }
        };
        keys.only("is_decoder", false)?;
        keys.harmless(&[
            "classifier_dropout",
            "dense_act_fn", // repeats feed_forward_proj
            "dropout_rate",
            "is_encoder_decoder",
            "is_gated_act",
            "n_positions",
            "num_decoder_layers",
            "scale_decoder_outputs",
            "tie_word_embeddings",
        ]);
        let hidden_size = keys.size("d_model")?;
        let heads = keys.size("num_heads")?;
        Ok(Config {
            sizes: Sizes {
                vocab_size: keys.size("vocab_size")?,
                hidden_size,
                num_hidden_layers: keys.size("num_layers")?,
                num_attention_heads: heads,
                head_dim: keys.size("d_kv")?,
                context_length: CONTEXT,
            },
            d_ff: keys.size("d_ff")?,
            buckets: Buckets {
                count: keys.opt_size("relative_attention_num_buckets")?.unwrap_or(32),
                max_distance: match keys.opt_size("relative_attention_max_distance")?.unwrap_or(128)
                {
                    n if n <= relative::MAX_DISTANCE => n,
                    _ => {
                        let want = format!("at most {} is supported", relative::MAX_DISTANCE);
                        return Err(keys.wrong("relative_attention_max_distance", want));
                    }
                },
            },
            layer_norm_epsilon: keys.opt_positive("layer_norm_epsilon")?.unwrap_or(1e-6),
            activation,
            gated,
        })
    }

    /// What each head adds to scores by distance: `[heads, W]`.
    fn bias(&self, source: &Source) -> Result<Tensor, ModelError> {
        let heads = self.sizes.num_attention_heads;
        self.buckets.bias(&source.weights.numbers(BIAS, &[self.buckets.count, heads])?, heads)
    }
}

fn graph(config: &Config, bias: Tensor, m: &mut Encoder) -> Result<(), ModelError> {
    let &Sizes {
        vocab_size, hidden_size, num_hidden_layers, num_attention_heads, head_dim, ..
    } = &config.sizes;
    let eps = config.layer_norm_epsilon;
    let width = num_attention_heads.saturating_mul(head_dim);
    let bias = m.b.constant(bias);
    let table = ["shared.weight", "encoder.embed_tokens.weight"];
    let [first, second] = table.map(|name| m.weights.has(name));
    if first && second {
        m.weights.leave(table[1]); // the same
    }
    let table = if first { table[0] } else { table[1] };

    let mut x = m.embed_tokens(table, [vocab_size, hidden_size])?; // [T, hidden]
    for layer in 0..num_hidden_layers {
        let own = |part: usize, name: &str| format!("encoder.block.{layer}.layer.{part}.{name}");
        let h = m.rms_norm(x, &own(0, "layer_norm"), eps)?;
        let heads = |m: &mut Encoder, name: &str| -> Result<ValueId, ModelError> {
            let y = m.linear(h, &own(0, &format!("SelfAttention.{name}")), width)?;
            m.heads(y, num_attention_heads) // [T, heads, head_dim]
        };
        let qkv = [heads(m, "q")?, heads(m, "k")?, heads(m, "v")?];
        let a = m.attention_with_bias(qkv, 1.0, bias)?; // [T, heads * head_dim]
        let o = m.linear(a, &own(0, "SelfAttention.o"), hidden_size)?;
        x = m.add(x, o)?;

        let h = m.rms_norm(x, &own(1, "layer_norm"), eps)?;
        let dense = |name: &str| own(1, &format!("DenseReluDense.{name}"));
        let f = if config.gated {
            let gate = m.linear(h, &dense("wi_0"), config.d_ff)?;
            let gate = m.activate(gate, config.activation)?;
            let up = m.linear(h, &dense("wi_1"), config.d_ff)?;
            m.mul(gate, up)?
        } else {
            let up = m.linear(h, &dense("wi"), config.d_ff)?;
            m.activate(up, config.activation)?
        };
        let f = m.linear(f, &dense("wo"), hidden_size)?;
        x = m.add(x, f)?;
    }
    let x = m.rms_norm(x, "encoder.final_layer_norm", eps)?;
    m.output(inputs::LAST_HIDDEN_STATE, x);
    Ok(())
}
