//! The configuration of decoders from config.json, in the spellings of transformers 4
//! (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`).

use cyb_formats::{Array, Value};

use crate::ModelError;
use crate::config::Config;
use crate::keys::Keys;
use crate::rope::{Rope, Scaling, Style, Yarn};
use crate::weights::Weights;

/// How a layer attends, in `layer_types`.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// What families assume where config.json is silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    pub(crate) theta: f32,
    pub(crate) rms_norm_eps: f32,
    /// The value of `hidden_act` (or `hidden_activation`) that the family computes.
    pub(crate) activation: &'static [&'static str],
    /// Whether the family may look both ways.
    pub(crate) bidirectional: bool,
}

impl Defaults {
    /// Nothing assumed.
    pub(crate) const NONE: Defaults =
        Defaults { theta: 0.0, rms_norm_eps: 0.0, activation: &[], bidirectional: false };
}

impl Config {
    /// Reads what the config.json of all decoders have in common.
    pub(crate) fn from_json(
        keys: &Keys,
        weights: &Weights,
        defaults: Defaults,
    ) -> Result<Config, ModelError> {
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
        if head_dim > crate::config::MAX_HEAD_DIM {
            let want = format!("at most {}", crate::config::MAX_HEAD_DIM);
            return Err(keys.wrong("head_dim", want));
        }
        for name in ["hidden_act", "hidden_activation"] {
            if let Some(named) = keys.opt::<&str>(name)?
                && !defaults.activation.contains(&named)
            {
                let want = format!("this family computes {}", defaults.activation.join(" or "));
                return Err(keys.wrong(name, want));
            }
        }
        // A bias is used wherever the file has one; what the configuration says must be there.
        for (key, tensor) in
            [("attention_bias", "blk.0.attn_q.bias"), ("mlp_bias", "blk.0.ffn_up.bias")]
        {
            if keys.opt::<bool>(key)? == Some(true) && !weights.has(tensor) {
                return Err(keys.wrong(key, "the file has no biases".into()));
            }
        }
        keys.only("rope_interleaved", false)?;
        keys.only("use_mrope", false)?;
        // What it is anyway, and where a rotary scaling would begin.
        keys.harmless(&["is_decoder", "is_llama_config", "original_max_position_embeddings"]);
        keys.only("add_cross_attention", false)?;
        const BOTH_WAYS: &str = "use_bidirectional_attention";
        let bidirectional = keys.opt::<bool>(BOTH_WAYS)?.unwrap_or(false);
        if bidirectional && !defaults.bidirectional {
            return Err(keys.wrong(BOTH_WAYS, "this family does not look ahead".into()));
        }
        let max_position_embeddings = keys.size("max_position_embeddings")?;
        Ok(Config {
            vocab_size: keys.size("vocab_size")?,
            hidden_size,
            intermediate_size: keys.size("intermediate_size")?,
            num_hidden_layers: keys.size("num_hidden_layers")?,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            max_position_embeddings,
            rms_norm_eps: keys.opt_positive("rms_norm_eps")?.unwrap_or(defaults.rms_norm_eps),
            tie_word_embeddings: keys.opt("tie_word_embeddings")?,
            bidirectional,
            rope: rope(keys, head_dim, max_position_embeddings, None, defaults.theta)?,
        })
    }
}

/// The rotary embedding, of the layers of one kind where there are several.
pub(crate) fn rope(
    keys: &Keys,
    head_dim: usize,
    max_position_embeddings: usize,
    kind: Option<&str>,
    theta: f32,
) -> Result<Rope, ModelError> {
    // transformers 5 keeps one object for all layers, or one for each kind of layer.
    let places = [
        kind.map(|kind| format!("rope_parameters.{kind}")),
        Some("rope_parameters".to_owned()),
        // transformers 4 says the base outside; its scaling is that of the full layers.
        (kind != Some(SLIDING)).then(|| "rope_scaling".to_owned()),
    ];
    let place = |key: &str| {
        places
            .iter()
            .flatten()
            .map(|place| format!("{place}.{key}"))
            .find(|name| keys.value(name).is_some())
    };
    let number = |key: &str| match place(key) {
        Some(name) => keys.opt_positive(&name),
        None => Ok(None),
    };
    let outer = match kind {
        Some(SLIDING) => "rope_local_base_freq",
        _ => "rope_theta",
    };
    let theta = match number("rope_theta")? {
        Some(theta) => theta,
        None => keys.opt_positive(outer)?.unwrap_or(theta),
    };
    let partial = match number("partial_rotary_factor")? {
        Some(part) => part,
        None => keys.opt_positive("partial_rotary_factor")?.unwrap_or(1.0),
    };
    let dims = (head_dim as f32 * partial) as usize;
    if partial > 1.0 || dims < 2 || !dims.is_multiple_of(2) {
        let want = format!("it must leave an even part of a head's {head_dim}");
        return Err(keys.wrong("partial_rotary_factor", want));
    }
    let type_key = place("rope_type").or_else(|| place("type"));
    // Both may be there, and say the same.
    if let Some(older) = place("type") {
        keys.harmless(&[&older]);
    }
    let named = match &type_key {
        Some(name) => keys.get::<&str>(name)?,
        None => "default",
    };
    let missing = |key: &str| {
        let place = places.iter().flatten().next().cloned().unwrap_or_default();
        keys.wrong(&format!("{place}.{key}"), "this scaling needs it".into())
    };
    let factor = || number("factor")?.ok_or_else(|| missing("factor"));
    let original = || -> Result<Option<usize>, ModelError> {
        match place("original_max_position_embeddings") {
            Some(name) => keys.opt_size(&name),
            None => keys.opt_size("original_max_position_embeddings"),
        }
    };
    let scaling = match named {
        "default" => Scaling::None,
        "linear" => Scaling::Linear { factor: factor()? },
        "dynamic" => Scaling::Ntk {
            factor: factor()?,
            original_context_length: original()?.unwrap_or(max_position_embeddings),
        },
        // Of the code that GTE was published with.
        "ntk" => Scaling::FixedNtk { factor: factor()?, mixed: number("mixed_b")? },
        "llama3" => Scaling::Llama3 {
            factor: factor()?,
            low_freq_factor: number("low_freq_factor")?
                .ok_or_else(|| missing("low_freq_factor"))?,
            high_freq_factor: number("high_freq_factor")?
                .ok_or_else(|| missing("high_freq_factor"))?,
            original_context_length: original()?
                .ok_or_else(|| missing("original_max_position_embeddings"))?,
        },
        "yarn" => {
            let original = original()?.unwrap_or(max_position_embeddings);
            let mut yarn = Yarn::new(f64::from(factor()?), original);
            let wide = |key: &str| Ok::<_, ModelError>(number(key)?.map(f64::from));
            yarn.beta_fast = wide("beta_fast")?.unwrap_or(yarn.beta_fast);
            yarn.beta_slow = wide("beta_slow")?.unwrap_or(yarn.beta_slow);
            yarn.attention_factor = wide("attention_factor")?;
            yarn.mscale = wide("mscale")?;
            yarn.mscale_all_dim = wide("mscale_all_dim")?;
            if let Some(name) = place("truncate") {
                yarn.truncate = keys.get(&name)?;
            }
            Scaling::Yarn(yarn)
        }
        "longrope" | "su" => {
            let divisors = |key: &str| {
                let name = place(key).ok_or_else(|| missing(key))?;
                let list: Vec<f32> = keys.get(&name)?;
                match list.len() == dims / 2 && list.iter().all(|d| d.is_finite() && *d > 0.0) {
                    true => Ok(list),
                    false => Err(keys.wrong(&name, format!("it must have {} numbers", dims / 2))),
                }
            };
            let original =
                original()?.ok_or_else(|| missing("original_max_position_embeddings"))?;
            let stated = number("factor")?.map(f64::from);
            Scaling::LongRope {
                short: divisors("short_factor")?,
                long: divisors("long_factor")?,
                original_context_length: original,
                factor: stated.unwrap_or(max_position_embeddings as f64 / original as f64),
                attention_factor: number("attention_factor")?.map(f64::from),
            }
        }
        _ => {
            let want =
                "default, linear, dynamic, ntk, llama3, yarn and longrope are known".to_owned();
            return Err(keys.wrong(type_key.as_deref().unwrap_or("rope_type"), want));
        }
    };
    Ok(Rope { theta, dims, style: Style::Half, scaling })
}

/// How many positions the tokens of each layer see; `None` for all. `sliding` says of a layer
/// whether it has the window where config.json does not list `layer_types`.
pub(crate) fn windows(
    keys: &Keys,
    layers: usize,
    sliding: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>, ModelError> {
    let window = keys.opt_size("sliding_window")?;
    windows_of(keys, layers, window, sliding)
}

/// As [`windows`], with a window that has been read.
pub(crate) fn windows_of(
    keys: &Keys,
    layers: usize,
    window: Option<usize>,
    sliding: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>, ModelError> {
    let needs = |key: &str| keys.wrong(key, "it needs a sliding_window".into());
    match keys.value("layer_types") {
        None => (0..layers)
            .map(|layer| match (sliding(layer), window) {
                (false, _) => Ok(None),
                (true, Some(window)) => Ok(Some(window)),
                (true, None) => Err(needs("sliding_window")),
            })
            .collect(),
        Some(Value::Array(Array::String(types))) if types.len() == layers => types
            .iter()
            .map(|kind| match (kind, window) {
                (FULL, _) => Ok(None),
                (SLIDING, Some(window)) => Ok(Some(window)),
                (SLIDING, None) => Err(needs("layer_types")),
                _ => Err(keys.wrong("layer_types", format!("{FULL} and {SLIDING} are known"))),
            })
            .collect(),
        Some(_) => Err(keys.wrong("layer_types", format!("it must have {layers} names"))),
    }
}

/// The rotary embeddings of the layers with a window and of those without.
pub(crate) fn ropes_by_kind(
    keys: &Keys,
    [head_dim, max_position_embeddings]: [usize; 2],
    local_theta: f32,
    theta: f32,
) -> Result<[Rope; 2], ModelError> {
    let of = |kind, theta| rope(keys, head_dim, max_position_embeddings, Some(kind), theta);
    Ok([of(SLIDING, local_theta)?, of(FULL, theta)?])
}
