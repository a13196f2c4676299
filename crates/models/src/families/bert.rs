//! BERT and the encoders of its shape: RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, ELECTRA, MPNet.
//!
//! BERT: <https://arxiv.org/abs/1810.04805>, RoBERTa: <https://arxiv.org/abs/1907.11692>,
//! XLM-RoBERTa: <https://arxiv.org/abs/1911.02116>, DistilBERT: <https://arxiv.org/abs/1910.01108>,
//! ELECTRA: <https://arxiv.org/abs/2003.10555>, MPNet: <https://arxiv.org/abs/2004.09297>.
//! Reference: `BertModel`, `RobertaModel`, `DistilBertModel`, `ElectraModel`, `MPNetModel` and their
//! heads in Hugging Face transformers.
//!
//! They differ in the names of tensors, in where positions begin, in whether token types exist, in
//! their heads, and MPNet in a bias on the scores of attention by distance.

use cyb_tensor::Tensor;

use crate::encoder::{self, Activation, Built, Encoder, EncoderInfo, Head, Positions, Sizes};
use crate::registry::{Sampling, Source};
use crate::relative::Buckets;
use crate::{Family, ModelError, Template, inputs};

pub(crate) static FAMILY: Family = Family {
    name: "bert",
    names: &["bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "mpnet"],
    template: Template::TextEncoder,
    sampling: Sampling::PLAIN,
    build: |source| {
        let config = Config::read(&source)?;
        let bias = config.bias(&source)?;
        let info = config.info();
        source.encoder(&config.sizes.clone(), info, is_part, |m| graph(&config, bias, m))
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bert,
    Roberta,
    DistilBert,
    Electra,
    Mpnet,
}

/// Names of a layer's tensors.
struct Names {
    layers: &'static str,
    query: &'static str,
    key: &'static str,
    value: &'static str,
    attention_out: &'static str,
    attention_norm: &'static str,
    up: &'static str,
    down: &'static str,
    out_norm: &'static str,
}

const BERT: Names = Names {
    layers: "encoder.layer",
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    attention_out: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    out_norm: "output.LayerNorm",
};

const DISTILBERT: Names = Names {
    layers: "transformer.layer",
    query: "attention.q_lin",
    key: "attention.k_lin",
    value: "attention.v_lin",
    attention_out: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: "ffn.lin1",
    down: "ffn.lin2",
    out_norm: "output_layer_norm",
};

const MPNET: Names = Names {
    query: "attention.attn.q",
    key: "attention.attn.k",
    value: "attention.attn.v",
    attention_out: "attention.attn.o",
    attention_norm: "attention.LayerNorm",
    ..BERT
};

/// MPNet's table of biases.
const BIAS: &str = "encoder.relative_attention_bias.weight";

/// What a BERT is made of.
#[derive(Clone, Debug, PartialEq)]
struct Config {
    kind: Kind,
    sizes: Sizes,
    intermediate_size: usize,
    /// Rows of the table of positions.
    max_position_embeddings: usize,
    positions: Positions,
    /// 0 where there is no such table.
    type_vocab_size: usize,
    /// Buckets of the bias by distance, where there is one.
    buckets: Option<Buckets>,
    /// Width of the embeddings; ELECTRA's may be narrower than its layers.
    embedding_size: usize,
    activation: Activation,
    layer_norm_eps: f32,
    head: Head,
    labels: Vec<String>,
    scores: encoder::Scores,
    tie_word_embeddings: bool,
    /// What the tensors of the encoder itself begin with.
    prefix: &'static str,
}

impl Config {
    fn read(source: &Source) -> Result<Config, ModelError> {
        source.needs_config_json()?;
        let keys = &source.keys;
        let kind = match keys.get::<&str>("model_type")? {
            "distilbert" => Kind::DistilBert,
            "electra" => Kind::Electra,
            "mpnet" => Kind::Mpnet,
            "bert" => Kind::Bert,
            _ => Kind::Roberta,
        };
        let distil = kind == Kind::DistilBert;
        let name = |plain: &'static str, distilbert: &'static str| {
            if distil { distilbert } else { plain }
        };
        let hidden_size = keys.size(name("hidden_size", "dim"))?;
        let num_attention_heads = keys.size(name("num_attention_heads", "n_heads"))?;
        if !hidden_size.is_multiple_of(num_attention_heads) {
            let want = format!("it must divide the width {hidden_size}");
            return Err(keys.wrong(name("num_attention_heads", "n_heads"), want));
        }
        let max_position_embeddings = keys.size("max_position_embeddings")?;
        let padding = match kind {
            Kind::Roberta => Some(keys.opt::<u32>("pad_token_id")?.unwrap_or(1)),
            // Whatever the configuration calls padding.
            Kind::Mpnet => Some(1),
            Kind::Bert | Kind::DistilBert | Kind::Electra => None,
        };
        let first = padding.map_or(0, |pad| pad as usize + 1);
        let Some(context_length) = max_position_embeddings.checked_sub(first).filter(|n| *n > 0)
        else {
            let want = format!("positions begin at {first}");
            return Err(keys.wrong("max_position_embeddings", want));
        };
        keys.only("position_embedding_type", "absolute")?;
        keys.only("is_decoder", false)?;
        keys.only("add_cross_attention", false)?;
        keys.harmless(&[
            "sinusoidal_pos_embds", // how the table of positions was first filled
            "qa_dropout",
            "seq_classif_dropout",
            "summary_activation",
            "summary_last_dropout",
            "summary_type",
            "summary_use_proj",
            "generator_hidden_size",
            "generator_num_attention_heads",
            "generator_num_layers",
            "gradient_checkpointing",
        ]);
        let head = encoder::head(keys)?;
        let labels = encoder::labels(keys)?;
        let prefixes = ["", "bert.", "roberta.", "distilbert.", "electra.", "mpnet."];
        let has = |p: &&str| source.weights.has(&format!("{p}embeddings.word_embeddings.weight"));
        Ok(Config {
            kind,
            sizes: Sizes {
                vocab_size: keys.size("vocab_size")?,
                hidden_size,
                num_hidden_layers: keys.size(name("num_hidden_layers", "n_layers"))?,
                num_attention_heads,
                head_dim: hidden_size / num_attention_heads,
                context_length,
            },
            intermediate_size: keys.size(name("intermediate_size", "hidden_dim"))?,
            max_position_embeddings,
            positions: padding.map_or(Positions::Counted, Positions::PastPadding),
            type_vocab_size: match kind {
                Kind::DistilBert | Kind::Mpnet => 0,
                Kind::Bert | Kind::Roberta | Kind::Electra => keys.size("type_vocab_size")?,
            },
            buckets: match kind {
                Kind::Mpnet => {
                    // The library computes 32 buckets whatever is written.
                    keys.only("relative_attention_num_buckets", 32usize)?;
                    Some(Buckets { count: 32, max_distance: 128 })
                }
                Kind::Bert | Kind::Roberta | Kind::DistilBert | Kind::Electra => None,
            },
            embedding_size: keys.opt_size("embedding_size")?.unwrap_or(hidden_size),
            activation: Activation::read(
                keys,
                name("hidden_act", "activation"),
                Activation::GeluErf,
            )?,
            layer_norm_eps: keys.opt_positive("layer_norm_eps")?.unwrap_or(1e-12),
            head,
            scores: encoder::scores(keys, labels.len())?,
            labels,
            tie_word_embeddings: keys.opt("tie_word_embeddings")?.unwrap_or(true),
            prefix: prefixes.into_iter().find(has).unwrap_or_default(),
        })
    }

    /// What each head adds to scores by distance, where there is such a bias: `[heads, W]`.
    fn bias(&self, source: &Source) -> Result<Option<Tensor>, ModelError> {
        let heads = self.sizes.num_attention_heads;
        let Some(buckets) = self.buckets else { return Ok(None) };
        let table =
            source.weights.numbers(&format!("{}{BIAS}", self.prefix), &[buckets.count, heads])?;
        buckets.bias(&table, heads).map(Some)
    }

    fn info(&self) -> EncoderInfo {
        EncoderInfo {
            positions: self.positions,
            token_types: self.type_vocab_size,
            ..EncoderInfo::with_head(self.head, &self.labels, self.scores)
        }
    }
}

fn is_part(name: &str) -> bool {
    let layer = [BERT.layers, DISTILBERT.layers].iter().any(|l| name.contains(l));
    (layer || name.contains("embeddings")) && !name.ends_with("position_ids")
}

fn graph(config: &Config, bias: Option<Tensor>, m: &mut Encoder) -> Result<(), ModelError> {
    let &Sizes {
        vocab_size, hidden_size, num_hidden_layers, num_attention_heads, head_dim, ..
    } = &config.sizes;
    let eps = config.layer_norm_eps;
    let scale = 1.0 / (head_dim as f64).sqrt();
    let names = match config.kind {
        Kind::DistilBert => &DISTILBERT,
        Kind::Mpnet => &MPNET,
        Kind::Bert | Kind::Roberta | Kind::Electra => &BERT,
    };
    let bias = bias.map(|bias| m.b.constant(bias));
    let named = |name: &str| format!("{}{name}", config.prefix);
    let table = |name: &str| named(&format!("embeddings.{name}.weight"));

    let width = config.embedding_size;
    let mut x = m.embed_tokens(&table("word_embeddings"), [vocab_size, width])?; // [T, width]
    let positions = [config.max_position_embeddings, width];
    let p = m.embed_positions(&table("position_embeddings"), positions)?;
    x = m.add(x, p)?;
    if config.type_vocab_size > 0 {
        let shape = [config.type_vocab_size, width];
        let t = m.embed_token_types(&table("token_type_embeddings"), shape)?;
        x = m.add(x, t)?;
    }
    x = m.layer_norm(x, &named("embeddings.LayerNorm"), eps)?;
    if width != hidden_size {
        x = m.linear(x, &named("embeddings_project"), hidden_size)?; // [T, hidden]
    }
    for layer in 0..num_hidden_layers {
        let own = |name: &str| named(&format!("{}.{layer}.{name}", names.layers));
        let part = |m: &mut Encoder, name| -> Built {
            let y = m.linear(x, &own(name), hidden_size)?;
            m.heads(y, num_attention_heads) // [T, heads, head_dim]
        };
        let qkv = [part(m, names.query)?, part(m, names.key)?, part(m, names.value)?];
        let a = match bias {
            None => m.attention(qkv, scale, None)?, // [T, hidden]
            Some(bias) => m.attention_with_bias(qkv, scale, bias)?,
        };
        let o = m.linear(a, &own(names.attention_out), hidden_size)?;
        let h = m.add(x, o)?;
        let h = m.layer_norm(h, &own(names.attention_norm), eps)?;

        let f = m.linear(h, &own(names.up), config.intermediate_size)?;
        let f = m.activate(f, config.activation)?;
        let f = m.linear(f, &own(names.down), hidden_size)?;
        let f = m.add(h, f)?;
        x = m.layer_norm(f, &own(names.out_norm), eps)?;
    }
    m.output(inputs::LAST_HIDDEN_STATE, x);

    let pooler = named("pooler.dense");
    if m.weights.has(&format!("{pooler}.weight")) {
        let first = m.pooled(x)?; // [R, hidden]
        let pooled = m.linear(first, &pooler, hidden_size)?;
        let pooled = m.activate(pooled, Activation::Tanh)?;
        m.output(inputs::POOLER_OUTPUT, pooled);
        if config.head == Head::Sequence && config.kind == Kind::Bert {
            let logits = m.linear(pooled, "classifier", config.labels.len())?;
            m.output(inputs::LOGITS, logits);
            return Ok(());
        }
    }
    let logits = match config.head {
        Head::None => return Ok(()),
        Head::Token => m.linear(x, "classifier", config.labels.len())?, // [T, labels]
        Head::Sequence => sequence_head(config, m, x)?,                 // [R, labels]
        Head::Words => masked_head(config, m, x, &table("word_embeddings"))?, // [T, vocab]
    };
    m.output(inputs::LOGITS, logits);
    Ok(())
}

fn sequence_head(config: &Config, m: &mut Encoder, x: cyb_ir::ValueId) -> Built {
    let width = config.sizes.hidden_size;
    let labels = config.labels.len();
    let (dense, activation, out) = match config.kind {
        // The pooler is part of BERT's head.
        Kind::Bert => ("bert.pooler.dense", Activation::Tanh, "classifier"),
        Kind::Roberta | Kind::Mpnet => {
            ("classifier.dense", Activation::Tanh, "classifier.out_proj")
        }
        Kind::Electra => ("classifier.dense", Activation::GeluErf, "classifier.out_proj"),
        Kind::DistilBert => ("pre_classifier", Activation::Relu, "classifier"),
    };
    let first = m.pooled(x)?; // [R, hidden]
    let h = m.linear(first, dense, width)?;
    let h = m.activate(h, activation)?;
    m.linear(h, out, labels)
}

fn masked_head(config: &Config, m: &mut Encoder, x: cyb_ir::ValueId, table: &str) -> Built {
    let Sizes { vocab_size, hidden_size, .. } = config.sizes;
    let eps = config.layer_norm_eps;
    let (dense, activation, norm, decoder, bias, width) = match config.kind {
        Kind::Bert => (
            "cls.predictions.transform.dense",
            config.activation,
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.decoder",
            "cls.predictions.bias",
            hidden_size,
        ),
        Kind::Roberta | Kind::Mpnet => (
            "lm_head.dense",
            Activation::GeluErf,
            "lm_head.layer_norm",
            "lm_head.decoder",
            "lm_head.bias",
            hidden_size,
        ),
        Kind::DistilBert => (
            "vocab_transform",
            config.activation,
            "vocab_layer_norm",
            "vocab_projector",
            "vocab_projector.bias",
            hidden_size,
        ),
        Kind::Electra => (
            "generator_predictions.dense",
            Activation::GeluErf,
            "generator_predictions.LayerNorm",
            "generator_lm_head",
            "generator_lm_head.bias",
            config.embedding_size,
        ),
    };
    let h = m.linear(x, dense, width)?; // [T, width]
    let h = m.activate(h, activation)?;
    let h = m.layer_norm(h, norm, eps)?;
    // The file's own matrix where it has one; a model whose matrices are not tied must.
    let own = format!("{decoder}.weight");
    let untied = m.weights.has(&own) || !config.tie_word_embeddings;
    let table = if untied { own.as_str() } else { table };
    let decoder_bias = format!("{decoder}.bias");
    let bias = m.words_bias(config.tie_word_embeddings, bias, &decoder_bias);
    m.unembed(h, table, vocab_size, Some(bias))
}
