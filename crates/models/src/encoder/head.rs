//! What config.json says of a head: its kind, its labels, how its logits become scores; and the names
//! of activations.

use cyb_formats::Value;

use super::{Head, Scores};
use crate::ModelError;
use crate::keys::Keys;

/// Activation of a feed-forward or a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    GeluErf,
    GeluTanh,
    GeluQuick,
    Relu,
    Silu,
    Tanh,
}

impl Activation {
    /// The activation that a key names; `otherwise` where it is absent.
    pub(crate) fn read(
        keys: &Keys,
        name: &str,
        otherwise: Activation,
    ) -> Result<Activation, ModelError> {
        Ok(match keys.opt::<&str>(name)? {
            None => otherwise,
            Some("gelu" | "gelu_python") => Activation::GeluErf,
            Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_python_tanh") => {
                Activation::GeluTanh
            }
            Some("quick_gelu") => Activation::GeluQuick,
            Some("relu") => Activation::Relu,
            Some("silu" | "swish") => Activation::Silu,
            Some("tanh") => Activation::Tanh,
            Some(_) => {
                let want = "gelu, gelu_new, quick_gelu, relu, silu and tanh are known".to_owned();
                return Err(keys.wrong(name, want));
            }
        })
    }
}

const ARCHITECTURES: &str = "architectures";

/// The class of transformers that the weights are those of.
fn class(keys: &Keys) -> Result<Option<String>, ModelError> {
    match keys.value(ARCHITECTURES) {
        None => Ok(None),
        Some(Value::Array(list)) => match list.get(0) {
            Some(Value::String(name)) => Ok(Some(name)),
            _ => Ok(None),
        },
        Some(_) => Err(keys.wrong(ARCHITECTURES, "it must be a list of names".into())),
    }
}

/// The head of an encoder: what follows `For` in its class.
pub(crate) fn head(keys: &Keys) -> Result<Head, ModelError> {
    let Some(name) = class(keys)? else { return Ok(Head::None) };
    match name.split_once("For").map(|(_, head)| head) {
        // The heads of pre-training are of no use afterwards.
        None | Some("PreTraining") => Ok(Head::None),
        Some("SequenceClassification") => Ok(Head::Sequence),
        Some("TokenClassification") => Ok(Head::Token),
        Some("MaskedLM") => Ok(Head::Words),
        Some(other) => {
            let want = format!(
                "{:?} names a head {:?}, which is not supported; SequenceClassification, \
                 TokenClassification, MaskedLM and models without a head are",
                name.chars().take(64).collect::<String>(),
                other.chars().take(64).collect::<String>()
            );
            Err(keys.wrong(ARCHITECTURES, want))
        }
    }
}

/// As [`head`], of a decoder; without a class it is one that writes text.
pub(crate) fn decoder_head(keys: &Keys) -> Result<Head, ModelError> {
    let Some(name) = class(keys)? else { return Ok(Head::Words) };
    match name.split_once("For").map(|(_, head)| head) {
        None => Ok(Head::None),
        Some("CausalLM") => Ok(Head::Words),
        Some("SequenceClassification") => Ok(Head::Sequence),
        Some("TokenClassification") => Ok(Head::Token),
        Some(_) => {
            let want = "heads of decoders are CausalLM, SequenceClassification and \
                        TokenClassification"
                .to_owned();
            Err(keys.wrong(ARCHITECTURES, want))
        }
    }
}

/// Names of the labels: `id2label`, else as many as `num_labels` says, else two.
pub(crate) fn labels(keys: &Keys) -> Result<Vec<String>, ModelError> {
    let stated = keys.opt_size("num_labels")?;
    keys.harmless(&["_num_labels", "num_choices"]);
    keys.harmless_under("id2label");
    keys.harmless_under("label2id");
    let mut labels = Vec::new();
    while let Some(label) = keys.opt::<&str>(&format!("id2label.{}", labels.len()))? {
        labels.push(label.to_owned());
    }
    if labels.is_empty() {
        const MOST: usize = 1 << 16;
        let n = stated.unwrap_or(2);
        if n > MOST {
            return Err(keys.wrong("num_labels", format!("at most {MOST} are supported")));
        }
        labels.extend((0..n).map(|i| format!("LABEL_{i}")));
    }
    Ok(labels)
}

/// How the scores of `labels` labels are made, as the pipelines of transformers and the
/// cross-encoders of sentence-transformers do.
pub(crate) fn scores(keys: &Keys, labels: usize) -> Result<Scores, ModelError> {
    let problem = keys.opt::<&str>("problem_type")?;
    // transformers, sentence-transformers 4 and 5, and sentence-transformers before.
    let named = [
        keys.opt::<&str>("function_to_apply")?,
        keys.opt::<&str>("sentence_transformers.activation_fn")?,
        keys.opt::<&str>("sbert_ce_default_activation_function")?,
    ];
    keys.harmless(&["sentence_transformers.version"]);
    if let Some(name) = named.into_iter().flatten().next() {
        return match name.rsplit('.').next().unwrap_or(name) {
            "Sigmoid" | "sigmoid" => Ok(Scores::Sigmoid),
            "Softmax" | "softmax" => Ok(Scores::Softmax),
            "Identity" | "none" => Ok(Scores::Plain),
            _ => {
                let want = format!("the activation {name:?} of scores is not known");
                Err(keys.wrong("function_to_apply", want))
            }
        };
    }
    match (problem, labels) {
        (Some("multi_label_classification"), _) | (None, 1) => Ok(Scores::Sigmoid),
        (Some("single_label_classification") | None, _) => Ok(Scores::Softmax),
        (Some("regression"), _) => Ok(Scores::Plain),
        (Some(_), _) => {
            let want = "regression, single_label_classification and multi_label_classification \
                        are known"
                .to_owned();
            Err(keys.wrong("problem_type", want))
        }
    }
}
