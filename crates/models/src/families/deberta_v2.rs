//! DeBERTa, versions 2 and 3: a BERT whose attention weighs contents and relative positions apart.
//!
//! Papers: <https://arxiv.org/abs/2006.03654>, <https://arxiv.org/abs/2111.09543>. Reference:
//! `DebertaV2Model` and its heads in Hugging Face transformers.

use cyb_formats::{Array, Value};
use cyb_ir::ValueId;

use crate::encoder::{self, Activation, Built, Encoder, EncoderInfo, Head, Relative, Sizes};
use crate::keys::Keys;
use crate::registry::{Sampling, Source};
use crate::{Family, ModelError, Template, inputs};

pub(crate) static FAMILY: Family = Family {
    name: "deberta-v2",
    names: &["deberta-v2"],
    template: Template::TextEncoder,
    sampling: Sampling::PLAIN,
    build: |source| {
        let config = Config::read(&source)?;
        let info = EncoderInfo {
            token_types: config.type_vocab_size,
            relative: config.relative,
            convolved: config.convolution.map_or(0, |c| c.kernel),
            ..EncoderInfo::with_head(config.head, &config.labels, config.scores)
        };
        source.encoder(&config.sizes.clone(), info, is_part, |m| graph(&config, m))
    },
};

/// Sequences may be as long as memory allows where there is no table of positions.
const CONTEXT: usize = 1 << 16;

/// What a DeBERTa is made of.
#[derive(Clone, Debug, PartialEq)]
struct Config {
    sizes: Sizes,
    intermediate_size: usize,
    /// Width of the embeddings.
    embedding_size: usize,
    /// Rows of the table of positions, where positions are added to the input.
    positions: Option<usize>,
    /// 0 where there is no such table.
    type_vocab_size: usize,
    relative: Option<Relative>,
    /// Whether contents meet positions, and positions contents.
    c2p: bool,
    p2c: bool,
    /// Whether positions are projected as contents are.
    share_att_key: bool,
    norm_rel_ebd: bool,
    activation: Activation,
    pooler_activation: Activation,
    pooler_hidden_size: usize,
    /// What the first layer's output is joined by.
    convolution: Option<Convolution>,
    layer_norm_eps: f32,
    head: Head,
    labels: Vec<String>,
    scores: encoder::Scores,
    /// The first form of the head for masked words.
    legacy: bool,
    tie_word_embeddings: bool,
    prefix: &'static str,
}

/// A convolution over the embedded tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Convolution {
    /// Tokens under it, an odd number.
    kernel: usize,
    groups: usize,
    activation: Activation,
}

impl Convolution {
    fn read(keys: &Keys, width: usize) -> Result<Option<Convolution>, ModelError> {
        let activation = Activation::read(keys, "conv_act", Activation::Tanh)?;
        let groups = keys.opt_size("conv_groups")?.unwrap_or(1);
        let kernel = keys.opt::<usize>("conv_kernel_size")?.unwrap_or(0);
        if kernel == 0 {
            return Ok(None);
        }
        if !width.is_multiple_of(groups) {
            return Err(keys.wrong("conv_groups", format!("it must divide the width {width}")));
        }
        if kernel % 2 == 0 || kernel > 255 {
            let want = "it must be odd, so that there are as many tokens after it, and below 256";
            return Err(keys.wrong("conv_kernel_size", want.into()));
        }
        Ok(Some(Convolution { kernel, groups, activation }))
    }
}

impl Config {
    fn read(source: &Source) -> Result<Config, ModelError> {
        source.needs_config_json()?;
        let keys = &source.keys;
        let hidden_size = keys.size("hidden_size")?;
        let num_attention_heads = keys.size("num_attention_heads")?;
        let head_dim = match keys.opt_size("attention_head_size")? {
            Some(n) => n,
            None if hidden_size.is_multiple_of(num_attention_heads) => {
                hidden_size / num_attention_heads
            }
            None => {
                let want = format!("it must divide the width {hidden_size}");
                return Err(keys.wrong("num_attention_heads", want));
            }
        };
        let max_position_embeddings = keys.opt_size("max_position_embeddings")?.unwrap_or(512);
        let biased = keys.opt("position_biased_input")?.unwrap_or(true);
        let kinds = kinds(keys)?;
        keys.harmless(&["pooler_dropout"]);
        let labels = encoder::labels(keys)?;
        let norms = keys.opt::<&str>("norm_rel_ebd")?.unwrap_or("none").to_lowercase();
        let prefixed = source.weights.has("deberta.embeddings.word_embeddings.weight");
        Ok(Config {
            tie_word_embeddings: keys.opt("tie_word_embeddings")?.unwrap_or(true),
            sizes: Sizes {
                vocab_size: keys.size("vocab_size")?,
                hidden_size,
                num_hidden_layers: keys.size("num_hidden_layers")?,
                num_attention_heads,
                head_dim,
                context_length: if biased { max_position_embeddings } else { CONTEXT },
            },
            intermediate_size: keys.size("intermediate_size")?,
            embedding_size: keys.opt_size("embedding_size")?.unwrap_or(hidden_size),
            positions: biased.then_some(max_position_embeddings),
            type_vocab_size: keys.opt("type_vocab_size")?.unwrap_or(0),
            relative: relative(keys, max_position_embeddings)?,
            c2p: kinds.iter().any(|kind| kind == "c2p"),
            p2c: kinds.iter().any(|kind| kind == "p2c"),
            share_att_key: keys.opt("share_att_key")?.unwrap_or(false),
            norm_rel_ebd: norms.split('|').any(|norm| norm.trim() == "layer_norm"),
            activation: Activation::read(keys, "hidden_act", Activation::GeluErf)?,
            pooler_activation: Activation::read(keys, "pooler_hidden_act", Activation::GeluErf)?,
            pooler_hidden_size: keys.opt_size("pooler_hidden_size")?.unwrap_or(hidden_size),
            convolution: Convolution::read(keys, hidden_size)?,
            layer_norm_eps: keys.opt_positive("layer_norm_eps")?.unwrap_or(1e-7),
            head: encoder::head(keys)?,
            scores: encoder::scores(keys, labels.len())?,
            labels,
            legacy: keys.opt("legacy")?.unwrap_or(true),
            prefix: if prefixed { "deberta." } else { "" },
        })
    }
}

/// What meets what: a list, or names joined by `|`.
fn kinds(keys: &Keys) -> Result<Vec<String>, ModelError> {
    const KEY: &str = "pos_att_type";
    let kinds: Vec<String> = match keys.value(KEY) {
        None => Vec::new(),
        Some(Value::Array(Array::String(list))) => list.iter().map(str::to_owned).collect(),
        Some(Value::Array(list)) if list.is_empty() => Vec::new(),
        Some(_) => {
            keys.get::<&str>(KEY)?.split('|').map(|kind| kind.trim().to_lowercase()).collect()
        }
    };
    match kinds.iter().find(|kind| !matches!(kind.as_str(), "c2p" | "p2c" | "")) {
        Some(_) => Err(keys.wrong(KEY, "c2p and p2c are known".into())),
        None => Ok(kinds),
    }
}

/// How relative positions are numbered, where there are any.
fn relative(keys: &Keys, positions: usize) -> Result<Option<Relative>, ModelError> {
    let count = |name: &str| -> Result<Option<usize>, ModelError> {
        // -1 is none.
        let n = keys.opt::<i64>(name)?.and_then(|n| usize::try_from(n).ok());
        match n.filter(|&n| n > 0) {
            Some(n) if n > CONTEXT => Err(keys.wrong(name, format!("at most {CONTEXT}"))),
            n => Ok(n),
        }
    };
    let used = keys.opt("relative_attention")?.unwrap_or(false);
    let longest = count("max_relative_positions")?.unwrap_or(positions);
    let buckets = count("position_buckets")?;
    if !used {
        return Ok(None);
    }
    let Some(n) = buckets else { return Ok(Some(Relative { span: longest, buckets: None })) };
    if n < 2 || longest <= n / 2 + 1 {
        let want = format!("it must be at least 2, and less than double the {longest} positions");
        return Err(keys.wrong("position_buckets", want));
    }
    Ok(Some(Relative { span: n, buckets: Some([n, longest]) }))
}

fn is_part(name: &str) -> bool {
    let part = ["encoder.", "embeddings."].iter().any(|part| name.contains(part));
    part && !name.ends_with("position_ids")
        && !name.ends_with("embeddings.position_embeddings.weight")
}

fn graph(config: &Config, m: &mut Encoder) -> Result<(), ModelError> {
    let &Sizes {
        vocab_size,
        hidden_size,
        num_hidden_layers,
        num_attention_heads: heads,
        head_dim,
        ..
    } = &config.sizes;
    let eps = config.layer_norm_eps;
    let terms = 1 + usize::from(config.c2p) + usize::from(config.p2c);
    let scale = 1.0 / ((head_dim * terms) as f64).sqrt();
    let all_heads = heads.saturating_mul(head_dim);
    let named = |name: &str| format!("{}{name}", config.prefix);
    let table = |name: &str| named(&format!("embeddings.{name}.weight"));

    let width = config.embedding_size;
    let words = table("word_embeddings");
    let mut x = m.embed_tokens(&words, [vocab_size, width])?; // [T, width]
    if let Some(rows) = config.positions {
        let p = m.embed_positions(&table("position_embeddings"), [rows, width])?;
        x = m.add(x, p)?;
    }
    if config.type_vocab_size > 0 {
        let shape = [config.type_vocab_size, width];
        let t = m.embed_token_types(&table("token_type_embeddings"), shape)?;
        x = m.add(x, t)?;
    }
    if width != hidden_size {
        x = m.linear(x, &named("embeddings.embed_proj"), hidden_size)?; // [T, hidden]
    }
    x = m.layer_norm(x, &named("embeddings.LayerNorm"), eps)?;

    let apart = match config.relative {
        Some(Relative { span, .. }) if config.c2p || config.p2c => {
            let shape = [span.saturating_mul(2), hidden_size];
            let mut table = m.embed_relatives(&named("encoder.rel_embeddings.weight"), shape)?;
            if config.norm_rel_ebd {
                table = m.layer_norm(table, &named("encoder.LayerNorm"), eps)?;
            }
            Some(table) // [P, hidden]
        }
        _ => {
            // The library makes them whatever the attention is.
            for name in ["rel_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias"] {
                m.weights.leave(&named(&format!("encoder.{name}")));
            }
            None
        }
    };
    let embedded = x;
    for layer in 0..num_hidden_layers {
        let own = |name: &str| named(&format!("encoder.layer.{layer}.{name}"));
        let part = |m: &mut Encoder, x: ValueId, name: &str| -> Built {
            let y = m.linear(x, &own(&format!("attention.self.{name}_proj")), all_heads)?;
            m.heads(y, heads) // [.., heads, head_dim]
        };
        let qkv = [part(m, x, "query")?, part(m, x, "key")?, part(m, x, "value")?];
        let a = match apart {
            None => m.attention(qkv, scale, None)?, // [T, heads * head_dim]
            Some(apart) => {
                let [key, query] = match config.share_att_key {
                    true => ["key", "query"],
                    false => ["pos_key", "pos_query"],
                };
                let mut of = |wanted: bool, name: &str| {
                    wanted.then(|| part(m, apart, name)).transpose() // [P, heads, head_dim]
                };
                let (keys, queries) = (of(config.c2p, key)?, of(config.p2c, query)?);
                m.disentangled_attention(qkv, scale, keys, queries)?
            }
        };
        let o = m.linear(a, &own("attention.output.dense"), hidden_size)?;
        let h = m.add(x, o)?;
        let h = m.layer_norm(h, &own("attention.output.LayerNorm"), eps)?;

        let f = m.linear(h, &own("intermediate.dense"), config.intermediate_size)?;
        let f = m.activate(f, config.activation)?;
        let f = m.linear(f, &own("output.dense"), hidden_size)?;
        let f = m.add(h, f)?;
        x = m.layer_norm(f, &own("output.LayerNorm"), eps)?;
        if let (0, Some(conv)) = (layer, config.convolution) {
            let shape = [conv.kernel, conv.groups];
            let c = m.convolve_tokens(embedded, &named("encoder.conv.conv"), shape)?; // [T, hidden]
            let c = m.activate(c, conv.activation)?;
            let c = m.add(x, c)?;
            x = m.layer_norm(c, &named("encoder.conv.LayerNorm"), eps)?;
        }
    }
    m.output(inputs::LAST_HIDDEN_STATE, x);

    let logits = match config.head {
        Head::None => return Ok(()),
        Head::Token => m.linear(x, "classifier", config.labels.len())?, // [T, labels]
        Head::Sequence => {
            let first = m.pooled(x)?; // [R, hidden]
            let h = m.linear(first, "pooler.dense", config.pooler_hidden_size)?;
            let h = m.activate(h, config.pooler_activation)?;
            m.linear(h, "classifier", config.labels.len())? // [R, labels]
        }
        Head::Words => masked_head(config, m, x, &words)?, // [T, vocab]
    };
    m.output(inputs::LOGITS, logits);
    Ok(())
}

fn masked_head(config: &Config, m: &mut Encoder, x: ValueId, words: &str) -> Built {
    let (dense, norm, bias, decoder) = match config.legacy {
        true => (
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.bias",
            "cls.predictions.decoder",
        ),
        false => (
            "lm_predictions.lm_head.dense",
            "lm_predictions.lm_head.LayerNorm",
            "lm_predictions.lm_head.bias",
            "lm_predictions.lm_head.decoder",
        ),
    };
    let h = m.linear(x, dense, config.embedding_size)?;
    let h = m.activate(h, config.activation)?;
    let h = m.layer_norm(h, norm, config.layer_norm_eps)?;
    let own = format!("{decoder}.weight");
    let table = if m.weights.has(&own) { own.as_str() } else { words };
    let own = format!("{decoder}.bias");
    let bias = m.words_bias(config.tie_word_embeddings, bias, &own);
    m.unembed(h, table, config.sizes.vocab_size, Some(bias))
}
