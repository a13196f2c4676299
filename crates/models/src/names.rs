//! Names of tensors: families say those of GGUF files; a checkpoint of transformers has others.

/// A part of a layer, or of the model, under both names.
type Names = &'static [(&'static str, &'static str)];

const MODEL: Names = &[("token_embd", "embed_tokens"), ("output_norm", "norm")];

const LAYER: Names = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_gate_up", "mlp.gate_up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Norms of a layer, which differ in what their names mean.
const PRE_NORM: Names = &[("ffn_norm", "post_attention_layernorm")];
const SANDWICH: Names = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// The names of a checkpoint of transformers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoint {
    /// What the tensors of the model without its head begin with.
    pub(crate) prefix: &'static str,
    /// Whether blocks have a norm behind them as well as before.
    pub(crate) sandwich: bool,
}

impl Checkpoint {
    /// The checkpoint's name for a GGUF name; a name that is neither's stays what it is.
    pub(crate) fn name(&self, gguf: &str) -> String {
        let find = |names: Names, name: &str| {
            names.iter().find(|(ours, _)| *ours == name).map(|(_, theirs)| *theirs)
        };
        let Some((stem, kind)) = gguf.rsplit_once('.') else { return gguf.to_owned() };
        if stem == "output" {
            return format!("lm_head.{kind}");
        }
        if let Some(part) = find(MODEL, stem) {
            return format!("{}{part}.{kind}", self.prefix);
        }
        let layer = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let Some((layer, part)) = layer else { return gguf.to_owned() };
        let norms = if self.sandwich { SANDWICH } else { PRE_NORM };
        match find(LAYER, part).or_else(|| find(norms, part)) {
            Some(part) => format!("{}layers.{layer}.{part}.{kind}", self.prefix),
            None => gguf.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_checkpoints() {
        let llama = Checkpoint { prefix: "model.", sandwich: false };
        assert_eq!(llama.name("token_embd.weight"), "model.embed_tokens.weight");
        assert_eq!(llama.name("blk.12.attn_q.bias"), "model.layers.12.self_attn.q_proj.bias");
        assert_eq!(
            llama.name("blk.0.ffn_norm.weight"),
            "model.layers.0.post_attention_layernorm.weight"
        );
        assert_eq!(llama.name("output.weight"), "lm_head.weight");
        assert_eq!(llama.name("rope_freqs.weight"), "rope_freqs.weight");
        let gemma = Checkpoint { prefix: "", sandwich: true };
        assert_eq!(
            gemma.name("blk.3.ffn_norm.weight"),
            "layers.3.pre_feedforward_layernorm.weight"
        );
    }
}
