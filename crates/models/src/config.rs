//! What every plain decoder's configuration has: the sizes, the norm and the rotary embedding.
//! Fields are named as in config.json; `from_gguf` reads the same from GGUF metadata, `from_json` from config.json.

use cyb_formats::Value;

use crate::keys::Keys;
use crate::rope::{Rope, Scaling, Style, Yarn};
use crate::{GraphOptions, ModelError, weights::Weights};

/// Sizes of a decoder. Every field is greater than zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    /// Divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f32,
    /// What the configuration says about sharing the embedding with the output head. The tensors
    /// that are there decide; a contradiction is reported.
    pub tie_word_embeddings: Option<bool>,
    /// Whether a token sees those after it too; such a model writes no text.
    pub bidirectional: bool,
    pub rope: Rope,
}

impl Config {
    /// Reads the keys that the GGUF files of all decoders share. `theta` is the base of the rotary
    /// frequencies where the file names none.
    pub(crate) fn from_gguf(
        keys: &Keys,
        weights: &Weights,
        style: Style,
        theta: f32,
    ) -> Result<Config, ModelError> {
        let hidden_size = keys.size("embedding_length")?;
        let heads = keys.size("attention.head_count")?;
        let kv_heads = keys.opt_size("attention.head_count_kv")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let want = format!("it must divide the {heads} query heads");
            return Err(keys.wrong("attention.head_count_kv", want));
        }
        let head_dim = match keys.opt_size("attention.key_length")? {
            Some(n) => n,
            None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
            None => {
                let want = format!(
                    "it must divide the width {hidden_size} or the file must give \
                                    attention.key_length"
                );
                return Err(keys.wrong("attention.head_count", want));
            }
        };
        if head_dim > MAX_HEAD_DIM {
            return Err(keys.wrong("attention.key_length", format!("at most {MAX_HEAD_DIM}")));
        }
        keys.only("attention.value_length", head_dim)?;
        keys.only("attention.causal", true)?;
        keys.only("expert_count", 0usize)?;
        keys.only("expert_used_count", 0usize)?;
        // How the converter's source laid out the file, and how embeddings would be pooled.
        keys.harmless(&["tensor_data_layout", "pooling_type"]);

        Ok(Config {
            vocab_size: vocab_size(keys, weights)?,
            hidden_size,
            intermediate_size: keys.size("feed_forward_length")?,
            num_hidden_layers: keys.size("block_count")?,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            max_position_embeddings: keys.size("context_length")?,
            rms_norm_eps: keys.opt_positive("attention.layer_norm_rms_epsilon")?.ok_or_else(
                || keys.wrong("attention.layer_norm_rms_epsilon", "it must be there".into()),
            )?,
            tie_word_embeddings: None,
            bidirectional: false,
            rope: rope(keys, weights, head_dim, style, theta)?,
        })
    }
}

impl Config {
    /// Tokens of the longest sequence that the graph with these options is for.
    pub(crate) fn served(&self, options: &GraphOptions) -> usize {
        match self.rope.scaling {
            Scaling::LongRope { original_context_length: original, .. }
                if options.context.is_none_or(|asked| asked <= original) =>
            {
                original.min(self.max_position_embeddings)
            }
            _ => self.max_position_embeddings,
        }
    }
}

/// More than any published model has; bounds what is allocated before tensors are checked.
pub(crate) const MAX_HEAD_DIM: usize = 1 << 14;

/// The number of token ids: of the vocabulary in the file where it has one. The embedding's rows
/// are checked against it.
fn vocab_size(keys: &Keys, weights: &Weights) -> Result<usize, ModelError> {
    let stated = keys.opt_size("vocab_size")?;
    match keys.metadata.value("tokenizer.ggml.tokens") {
        Some(Value::Array(tokens)) => Ok(tokens.len()),
        _ => match stated {
            Some(n) => Ok(n),
            None => Ok(weights.rows("token_embd.weight")?),
        },
    }
}

fn rope(
    keys: &Keys,
    weights: &Weights,
    head_dim: usize,
    style: Style,
    theta: f32,
) -> Result<Rope, ModelError> {
    let dims = keys.opt_size("rope.dimension_count")?.unwrap_or(head_dim);
    if dims > head_dim || !dims.is_multiple_of(2) {
        let want = format!("it must be even and at most the head's {head_dim}");
        return Err(keys.wrong("rope.dimension_count", want));
    }
    let theta = keys.opt_positive("rope.freq_base")?.unwrap_or(theta);
    // Whether the longer context was trained or only asked for changes nothing.
    keys.harmless(&["rope.scaling.finetuned"]);
    let factor = keys.opt_positive("rope.scaling.factor")?;
    let older = keys.opt_positive("rope.scale_linear")?;
    let original = keys.opt_size("rope.scaling.original_context_length")?;
    let kind = keys.opt::<&str>("rope.scaling.type")?;
    let missing = |name: &str| keys.wrong(name, "this scaling needs it".into());
    let scaling = match (kind, factor.or(older)) {
        (None | Some("linear"), Some(factor)) => Scaling::Linear { factor },
        (None | Some("none"), _) => Scaling::None,
        (Some("yarn"), factor) => {
            let factor = factor.ok_or_else(|| missing("rope.scaling.factor"))?;
            let original =
                original.ok_or_else(|| missing("rope.scaling.original_context_length"))?;
            let mut yarn = Yarn::new(f64::from(factor), original);
            let opt = |name: &str| Ok::<_, ModelError>(keys.opt_positive(name)?.map(f64::from));
            yarn.beta_fast = opt("rope.scaling.yarn_beta_fast")?.unwrap_or(yarn.beta_fast);
            yarn.beta_slow = opt("rope.scaling.yarn_beta_slow")?.unwrap_or(yarn.beta_slow);
            keys.only("rope.scaling.yarn_ext_factor", 1.0f32)?;
            keys.only("rope.scaling.yarn_attn_factor", 1.0f32)?;
            keys.only("rope.scaling.attn_factor", 1.0f32)?;
            Scaling::Yarn(yarn)
        }
        (Some("linear"), None) => return Err(missing("rope.scaling.factor")),
        (Some(_), _) => {
            let want = "only none, linear and yarn are known".to_owned();
            return Err(keys.wrong("rope.scaling.type", want));
        }
    };
    let scaling = match (scaling, weights.floats("rope_freqs.weight", &[dims / 2])?) {
        (scaling, None) => scaling,
        (Scaling::None, Some(divisors)) => Scaling::Divisors(divisors),
        (_, Some(_)) => {
            let want = "the file also has rope_freqs.weight; only one of them can hold".to_owned();
            return Err(keys.wrong("rope.scaling.type", want));
        }
    };
    Ok(Rope { theta, dims, style, scaling })
}
