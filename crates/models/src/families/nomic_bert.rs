//! Nomic BERT and GTE: a BERT with rotary positions and gated feed-forwards, norms after each block.
//!
//! Papers: <https://arxiv.org/abs/2402.01613>, <https://arxiv.org/abs/2407.19669>. Reference:
//! `NomicBertModel`, `GteModel` and their heads in Hugging Face transformers. The published
//! config.json of Nomic BERT has the names of GPT-2; transformers 5 writes BERT's. GTE was published
//! as `new`, with code of its own (`modeling.py` of Alibaba-NLP/new-impl), which can do more: norms by
//! the root mean square, positions looked up, queries that grow with the length of the text.

use cyb_ir::ValueId;

use crate::config_json;
use crate::encoder::{self, Activation, Encoder, EncoderInfo, Head, LogScale, Sizes};
use crate::keys::Keys;
use crate::registry::{Sampling, Source};
use crate::rope::Rope;
use crate::{Family, ModelError, Template, inputs};

pub(crate) static FAMILY: Family = Family {
    name: "nomic_bert",
    names: &["nomic_bert", "gte", "new"],
    template: Template::TextEncoder,
    sampling: Sampling::PLAIN,
    build: |source| {
        let config = Config::read(&source)?;
        let info = EncoderInfo {
            token_types: config.type_vocab_size,
            log_scale: config.log_scale,
            ..EncoderInfo::with_head(config.head, &config.labels, config.scores)
        };
        source.encoder(&config.sizes.clone(), info, is_part, |m| graph(&config, m))
    },
};

/// Names of tensors: those of the published checkpoints, which transformers keeps when it saves, or
/// those of its own modules.
struct Names {
    embeddings_norm: &'static str,
    layers: &'static str,
    qkv: Projections<3>,
    attention_out: &'static str,
    attention_norm: &'static str,
    /// What is multiplied with the gate, and the gate.
    up: Projections<2>,
    down: &'static str,
    out_norm: &'static str,
    /// Of the head for masked words: dense, norm, the output's weight and both names of its bias.
    masked: [&'static str; 5],
}

/// Projections of one input.
#[derive(Clone, Copy)]
enum Projections<const N: usize> {
    /// One matrix, part after part.
    Joined(&'static str),
    Apart([&'static str; N]),
}

const NOMIC: Names = Names {
    embeddings_norm: "emb_ln",
    layers: "encoder.layers",
    qkv: Projections::Joined("attn.Wqkv"),
    attention_out: "attn.out_proj",
    attention_norm: "norm1",
    up: Projections::Apart(["mlp.fc11", "mlp.fc12"]),
    down: "mlp.fc2",
    out_norm: "norm2",
    masked: [
        "cls.predictions.transform.dense",
        "cls.predictions.transform.layer_norm",
        "cls.predictions.decoder.weight",
        "cls.predictions.bias",
        "cls.predictions.decoder.bias",
    ],
};

const GTE: Names = Names {
    embeddings_norm: "embeddings.LayerNorm",
    layers: "encoder.layer",
    qkv: Projections::Joined("attention.qkv_proj"),
    attention_out: "attention.o_proj",
    attention_norm: "attn_ln",
    up: Projections::Joined("mlp.up_gate_proj"),
    down: "mlp.down_proj",
    out_norm: "mlp_ln",
    masked: [
        "lm_head.dense",
        "lm_head.norm",
        "lm_head.decoder.weight",
        "lm_head.decoder.bias",
        "lm_head.decoder.bias",
    ],
};

/// As [`GTE`], where `pack_qkv` is false.
const GTE_APART: Names = Names {
    qkv: Projections::Apart(["attention.q_proj", "attention.k_proj", "attention.v_proj"]),
    ..GTE
};

/// Of the modules of transformers 5, as `state_dict` has them.
const MODULES: Names = Names {
    embeddings_norm: "embeddings.LayerNorm",
    layers: "layers",
    qkv: Projections::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    attention_out: "self_attn.o_proj",
    attention_norm: "post_attention_layernorm",
    up: Projections::Apart(["mlp.up_proj", "mlp.gate_proj"]),
    down: "mlp.down_proj",
    out_norm: "post_mlp_layernorm",
    masked: NOMIC.masked,
};

const GTE_MODULES: Names = Names {
    masked: [
        "lm_head.dense",
        "lm_head.layer_norm",
        "lm_head.decoder.weight",
        "lm_head.decoder.bias",
        "lm_head.decoder.bias",
    ],
    ..MODULES
};

/// Whose code the configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Nomic,
    Gte,
    /// The published code of GTE.
    New,
}

/// What a model of this family is made of.
#[derive(Clone, Debug, PartialEq)]
struct Config {
    code: Code,
    sizes: Sizes,
    intermediate_size: usize,
    type_vocab_size: usize,
    tie_word_embeddings: bool,
    activation: Activation,
    layer_norm_eps: f32,
    /// Whether layers have norms by the root mean square.
    rms_norm: bool,
    /// Positions are looked up without.
    rope: Option<Rope>,
    log_scale: Option<LogScale>,
    head: Head,
    labels: Vec<String>,
    scores: encoder::Scores,
    prefix: &'static str,
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
        let code = match keys.get::<&str>("model_type")? {
            "nomic_bert" => Code::Nomic,
            "gte" => Code::Gte,
            _ => Code::New,
        };
        let context_length = size("max_position_embeddings", "n_positions")?;
        let own = own(keys, code, context_length)?;
        let head = encoder::head(keys)?;
        let labels = encoder::labels(keys)?;
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
            "unpad_inputs",
            "use_flash_attn",
            "use_memory_efficient_attention",
            "use_xentropy",
        ]);
        let usual = if code == Code::Gte { 160_000.0 } else { 10_000.0 };
        let theta = keys.opt_positive("rotary_emb_base")?.unwrap_or(usual);
        // A configuration has its keys whatever the positions are.
        let rope = config_json::rope(keys, head_dim, context_length, None, theta)?;
        let prefixes = ["", "nomic_bert.", "gte.", "new."];
        let has = |p: &&str| source.weights.has(&format!("{p}embeddings.word_embeddings.weight"));
        let activation = match code {
            Code::Nomic => Activation::Silu,
            Code::Gte | Code::New => Activation::GeluErf,
        };
        let eps = keys.opt_positive("layer_norm_epsilon")?.unwrap_or(1e-12);
        Ok(Config {
            code,
            sizes: Sizes {
                vocab_size: keys.size("vocab_size")?,
                hidden_size,
                num_hidden_layers: size("num_hidden_layers", "n_layer")?,
                num_attention_heads: heads,
                head_dim,
                context_length,
            },
            intermediate_size: size("intermediate_size", "n_inner")?,
            type_vocab_size: keys.get("type_vocab_size")?,
            tie_word_embeddings: keys.opt("tie_word_embeddings")?.unwrap_or(true),
            activation: Activation::read(keys, "hidden_act", activation)?,
            layer_norm_eps: keys.opt_positive("layer_norm_eps")?.unwrap_or(eps),
            rms_norm: own.rms_norm,
            rope: (!own.looked_up).then_some(rope),
            log_scale: own.log_scale,
            head,
            scores: encoder::scores(keys, labels.len())?,
            labels,
            prefix: prefixes.into_iter().find(has).unwrap_or_default(),
        })
    }
}

/// What only the published code of GTE can do.
struct Own {
    rms_norm: bool,
    looked_up: bool,
    log_scale: Option<LogScale>,
}

fn own(keys: &Keys, code: Code, length: usize) -> Result<Own, ModelError> {
    let mut own = Own { rms_norm: false, looked_up: false, log_scale: None };
    if code != Code::New {
        keys.only("pack_qkv", true)?;
        keys.only("layer_norm_type", "layer_norm")?;
        keys.only("logn_attention_scale", false)?;
        keys.only("position_embedding_type", "rope")?;
        keys.harmless(&["logn_attention_clip1"]);
        return Ok(own);
    }
    let one_of =
        |name: &str, usual: &'static str, other: &'static str| match keys.opt::<&str>(name)? {
            None => Ok(false),
            Some(got) if got == usual => Ok(false),
            Some(got) if got == other => Ok(true),
            Some(_) => Err(keys.wrong(name, format!("{usual} and {other} are known"))),
        };
    // Which tensors there are says it too.
    keys.harmless(&["pack_qkv"]);
    own.rms_norm = one_of("layer_norm_type", "layer_norm", "rms_norm")?;
    own.looked_up = one_of("position_embedding_type", "rope", "absolute")?;
    let at_least_one = keys.opt::<bool>("logn_attention_clip1")?.unwrap_or(false);
    if keys.opt::<bool>("logn_attention_scale")?.unwrap_or(false) {
        if length < 2 {
            let want = "queries that grow with the length need 2 or more".to_owned();
            return Err(keys.wrong("max_position_embeddings", want));
        }
        own.log_scale = Some(LogScale { length, at_least_one });
    }
    Ok(own)
}

fn is_part(name: &str) -> bool {
    ["layers.", "encoder.layer.", "embeddings.", "emb_ln"].iter().any(|part| name.contains(part))
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
    let rope = match &config.rope {
        Some(rope) => Some(m.rope_table(rope, context_length)?),
        None => None,
    };

    let named = |name: &str| format!("{}{name}", config.prefix);
    let modules = m.weights.has(&named("layers.0.self_attn.q_proj.weight"));
    let apart = m.weights.has(&named("encoder.layer.0.attention.q_proj.weight"));
    let names = match config.code {
        Code::Nomic if modules => &MODULES,
        Code::Nomic => &NOMIC,
        Code::Gte | Code::New if modules => &GTE_MODULES,
        Code::Gte | Code::New if apart => &GTE_APART,
        Code::Gte | Code::New => &GTE,
    };
    let norm = |m: &mut Encoder, x: ValueId, name: &str| match config.rms_norm {
        true => m.rms_norm(x, name, eps),
        false => m.layer_norm(x, name, eps),
    };
    let words = named("embeddings.word_embeddings.weight");

    let mut x = m.embed_tokens(&words, [vocab_size, hidden_size])?; // [T, hidden]
    if config.type_vocab_size > 0 {
        let types = [config.type_vocab_size, hidden_size];
        let t = m.embed_token_types(&named("embeddings.token_type_embeddings.weight"), types)?;
        x = m.add(x, t)?;
    }
    if rope.is_none() {
        let shape = [context_length, hidden_size];
        let p = m.embed_positions(&named("embeddings.position_embeddings.weight"), shape)?;
        x = m.add(x, p)?;
    }
    x = m.layer_norm(x, &named(names.embeddings_norm), eps)?;
    for layer in 0..num_hidden_layers {
        let own = |name: &str| named(&format!("{}.{layer}.{name}", names.layers));
        let [q, k, v] = projected(m, x, names.qkv, &own, width)?; // [T, heads * head_dim] each
        let mut heads = |x| m.heads(x, num_attention_heads);
        let (q, k, v) = (heads(q)?, heads(k)?, heads(v)?); // [T, heads, head_dim] each
        let (mut q, k) = match &rope {
            Some(rope) => (m.rope(q, rope)?, m.rope(k, rope)?),
            None => (q, k),
        };
        if config.log_scale.is_some() {
            q = m.scale_by_length(q)?;
        }
        let a = m.attention([q, k, v], scale, None)?; // [T, heads * head_dim]
        let o = m.linear(a, &own(names.attention_out), hidden_size)?;
        let h = m.add(x, o)?;
        let h = norm(m, h, &own(names.attention_norm))?;

        let inner = config.intermediate_size;
        let [up, gate] = projected(m, h, names.up, &own, inner)?; // [T, intermediate] each
        let gate = m.activate(gate, config.activation)?;
        let f = m.mul(gate, up)?; // [T, intermediate]
        let f = m.linear(f, &own(names.down), hidden_size)?;
        let f = m.add(h, f)?;
        x = norm(m, f, &own(names.out_norm))?;
    }
    m.output(inputs::LAST_HIDDEN_STATE, x);

    let pooler = named("pooler.dense");
    let mut pooled = None;
    if m.weights.has(&format!("{pooler}.weight")) || config.head == Head::Sequence {
        let first = m.pooled(x)?; // [R, hidden]
        let p = m.linear(first, &pooler, hidden_size)?;
        let p = m.activate(p, Activation::Tanh)?;
        m.output(inputs::POOLER_OUTPUT, p);
        pooled = Some(p);
    }
    let logits = match config.head {
        Head::None => return Ok(()),
        Head::Token => m.linear(x, "classifier", config.labels.len())?, // [T, labels]
        Head::Sequence => m.linear(pooled.unwrap_or(x), "classifier", config.labels.len())?,
        Head::Words => {
            let [dense, norm, own, bias, decoder_bias] = names.masked;
            let bias = m.words_bias(config.tie_word_embeddings, bias, decoder_bias);
            // The library's GTE has this one whatever its feed-forward has.
            let gte = config.code == Code::Gte;
            let activation = if gte { Activation::GeluErf } else { config.activation };
            let h = m.linear(x, dense, hidden_size)?;
            let h = m.activate(h, activation)?;
            let h = m.layer_norm(h, norm, eps)?;
            let table = if m.weights.has(own) { own } else { &words };
            m.unembed(h, table, vocab_size, Some(bias))? // [T, vocab]
        }
    };
    m.output(inputs::LOGITS, logits);
    Ok(())
}

/// Projections of `x`, each `[T, width]`.
fn projected<const N: usize>(
    m: &mut Encoder,
    x: ValueId,
    names: Projections<N>,
    own: &dyn Fn(&str) -> String,
    width: usize,
) -> Result<[ValueId; N], ModelError> {
    let mut parts = [x; N];
    match names {
        Projections::Joined(name) => {
            let all = m.linear(x, &own(name), width.saturating_mul(N))?;
            for (i, part) in parts.iter_mut().enumerate() {
                *part = m.b.slice(all, 1, i * width, width)?;
            }
        }
        Projections::Apart(names) => {
            for (part, name) in parts.iter_mut().zip(names) {
                *part = m.linear(x, &own(name), width)?;
            }
        }
    }
    Ok(parts)
}
