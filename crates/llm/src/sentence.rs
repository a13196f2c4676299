//! From token vectors to the vector of a text: the stages that sentence-transformers lists in
//! `modules.json`.
//!
//! Reference: `Pooling`, `Dense` and `Normalize` of <https://www.sbert.net>. A model without
//! `modules.json` is pooled by the mean, as sentence-transformers does with one.

use cyb_formats::{Metadata, ModelFile};

use crate::Error;

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pooling {
    First,
    Max,
    Mean,
    /// The sum over the square root of the number of tokens.
    MeanSqrt,
    /// The mean with weights 1, 2, 3 ...
    WeightedMean,
    Last,
}

/// Names in the pooling stage's configuration: a flag each until sentence-transformers 5, one name
/// from 6 on. Several are put one after the other, in this order.
const POOLINGS: [(&str, &str, Pooling); 6] = [
    ("pooling_mode_cls_token", "cls", Pooling::First),
    ("pooling_mode_max_tokens", "max", Pooling::Max),
    ("pooling_mode_mean_tokens", "mean", Pooling::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Pooling::MeanSqrt),
    ("pooling_mode_weightedmean_tokens", "weightedmean", Pooling::WeightedMean),
    ("pooling_mode_lasttoken", "lasttoken", Pooling::Last),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activation {
    Identity,
    Tanh,
    Relu,
    Sigmoid,
    Gelu,
}

#[derive(Clone, Debug, PartialEq)]
enum Stage {
    /// `activation(weight · x + bias)`, the weight by rows.
    Dense {
        weight: Vec<f32>,
        bias: Vec<f32>,
        inputs: usize,
        activation: Activation,
    },
    Normalize,
}

/// What makes a text's vector out of those of its tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stages {
    poolings: Vec<Pooling>,
    stages: Vec<Stage>,
    /// Numbers of a text's vector.
    pub(crate) dimensions: usize,
    /// The longest text that the model was made for, where it says so.
    pub(crate) max_tokens: Option<usize>,
    /// Whether texts are lower-cased before they are tokenized.
    pub(crate) lowercase: bool,
    /// What is put before every text.
    pub(crate) prompt: String,
}

/// Whether a model has stages of its own.
pub(crate) fn has_stages(metadata: &Metadata) -> bool {
    metadata.contains("modules.0.type")
}

impl Stages {
    /// The stages of a model whose token vectors have `hidden` numbers, or, when `pooled`, whose
    /// texts have one vector already.
    pub(crate) fn read(file: &ModelFile, hidden: usize, pooled: bool) -> Result<Stages, Error> {
        let m = &file.metadata;
        let fail = |key: &str, why: String| Error::Stage {
            model: m.file().display().to_string(),
            key: key.to_owned(),
            why,
        };
        let mut stages = Stages {
            poolings: vec![Pooling::Mean],
            stages: Vec::new(),
            dimensions: hidden,
            max_tokens: m.opt("sentence_bert_config.max_seq_length")?,
            lowercase: m.opt("sentence_bert_config.do_lower_case")?.unwrap_or(false),
            prompt: prompt(m)?,
        };
        let mut pooled = pooled;
        for i in 0.. {
            let Some(name) = m.opt::<&str>(&format!("modules.{i}.type"))? else { break };
            let key = |what: &str| format!("modules.{i}.config.{what}");
            match name.rsplit('.').next().unwrap_or(name) {
                "Transformer" | "CLIPModel" if i == 0 => {}
                "Pooling" if !pooled => {
                    pooled = true;
                    stages.poolings = poolings(m, i)?;
                    if stages.poolings.is_empty() {
                        let why = "it names no pooling that is known".to_owned();
                        return Err(fail(&key("pooling_mode"), why));
                    }
                    if m.opt::<bool>(&key("include_prompt"))? == Some(false)
                        && !stages.prompt.is_empty()
                    {
                        let why = "leaving the prompt out of the pooling is not supported";
                        return Err(fail(&key("include_prompt"), why.to_owned()));
                    }
                    stages.dimensions = hidden * stages.poolings.len();
                }
                "Dense" if pooled => {
                    let (stage, outputs) = dense(file, i, stages.dimensions)?;
                    stages.stages.push(stage);
                    stages.dimensions = outputs;
                }
                "Normalize" if pooled => stages.stages.push(Stage::Normalize),
                _ => {
                    let why = format!(
                        "stage {name:?} is not supported here; Transformer, Pooling, Dense and \
                         Normalize in this order are"
                    );
                    return Err(fail(&format!("modules.{i}.type"), why));
                }
            }
        }
        Ok(stages)
    }

    /// The vector of a text from its token vectors `[tokens, hidden]`.
    pub(crate) fn apply(&self, tokens: &[f32], hidden: usize) -> Vec<f32> {
        let mut x = Vec::with_capacity(self.dimensions);
        for &pooling in &self.poolings {
            x.extend(pool(pooling, tokens, hidden));
        }
        for stage in &self.stages {
            match stage {
                Stage::Dense { weight, bias, inputs, activation } => {
                    let rows = weight.chunks_exact((*inputs).max(1)).zip(bias);
                    x = rows.map(|(row, b)| activate(*activation, dot(row, &x) + b)).collect();
                }
                Stage::Normalize => {
                    // The smallest norm that sentence-transformers divides by.
                    let norm = dot(&x, &x).sqrt().max(1e-12);
                    x.iter_mut().for_each(|v| *v /= norm);
                }
            }
        }
        x
    }
}

/// What `config_sentence_transformers.json` puts before every text.
fn prompt(m: &Metadata) -> Result<String, Error> {
    const OF: &str = "config_sentence_transformers";
    let Some(name) = m.opt::<&str>(&format!("{OF}.default_prompt_name"))? else {
        return Ok(String::new());
    };
    Ok(m.get::<&str>(&format!("{OF}.prompts.{name}"))?.to_owned())
}

fn poolings(m: &Metadata, stage: usize) -> Result<Vec<Pooling>, Error> {
    let mut found = Vec::new();
    // One name, or several joined or listed.
    let key = format!("modules.{stage}.config.pooling_mode");
    let names: Vec<String> = match m.value(&key) {
        Some(cyb_formats::Value::Array(list)) => (0..list.len())
            .filter_map(|i| match list.get(i) {
                Some(cyb_formats::Value::String(name)) => Some(name),
                _ => None,
            })
            .collect(),
        _ => m
            .opt::<&str>(&key)?
            .map(|s| s.split('+').map(str::to_owned).collect())
            .unwrap_or_default(),
    };
    for (flag, name, pooling) in POOLINGS {
        let flagged = m.opt::<bool>(&format!("modules.{stage}.config.{flag}"))?.unwrap_or(false);
        if flagged || names.iter().any(|n| n.trim() == name) {
            found.push(pooling);
        }
    }
    if names.iter().any(|n| POOLINGS.iter().all(|(_, name, _)| n.trim() != *name)) {
        found.clear();
    }
    Ok(found)
}

fn dense(file: &ModelFile, stage: usize, width: usize) -> Result<(Stage, usize), Error> {
    let m = &file.metadata;
    let key = |what: &str| format!("modules.{stage}.config.{what}");
    let fail = |what: String, why: String| Error::Stage {
        model: m.file().display().to_string(),
        key: what,
        why,
    };
    let (inputs, outputs): (usize, usize) =
        (m.get(&key("in_features"))?, m.get(&key("out_features"))?);
    if inputs != width {
        return Err(fail(key("in_features"), format!("{inputs}, but {width} numbers come in")));
    }
    let named = m.opt::<&str>(&key("activation_function"))?.unwrap_or("Tanh");
    let activation = match named.rsplit('.').next().unwrap_or(named) {
        "Identity" => Activation::Identity,
        "Tanh" => Activation::Tanh,
        "ReLU" => Activation::Relu,
        "Sigmoid" => Activation::Sigmoid,
        "GELU" => Activation::Gelu,
        _ => {
            let why = format!("{named:?} is not known; Identity, Tanh, ReLU, Sigmoid, GELU are");
            return Err(fail(key("activation_function"), why));
        }
    };
    let floats = |name: &str, shape: &[usize]| {
        let name = format!("modules.{stage}.linear.{name}");
        let tensor = file.tensor(&name)?;
        if tensor.shape() != shape {
            let why = format!("its shape is {:?}, but {shape:?} is wanted", tensor.shape());
            return Err(fail(name, why));
        }
        let mut values = vec![0.0; tensor.elems()];
        cyb_tensor::quant::decode(tensor.dtype(), tensor.bytes().as_slice(), &mut values)
            .map_err(|error| fail(name, error.to_string()))?;
        Ok::<_, Error>(values)
    };
    let weight = floats("weight", &[outputs, inputs])?;
    let bias = match m.opt::<bool>(&key("bias"))?.unwrap_or(true) {
        true => floats("bias", &[outputs])?,
        false => vec![0.0; outputs],
    };
    Ok((Stage::Dense { weight, bias, inputs, activation }, outputs))
}

/// Sums run in `f64`: over thousands of tokens an `f32` sum in order loses four digits.
fn pool(pooling: Pooling, tokens: &[f32], hidden: usize) -> Vec<f32> {
    let rows = || tokens.chunks_exact(hidden.max(1));
    let n = rows().len();
    let sum = |weight: &dyn Fn(usize) -> f64| {
        let mut sum = vec![0.0f64; hidden];
        for (i, row) in rows().enumerate() {
            let w = weight(i);
            sum.iter_mut().zip(row).for_each(|(s, &v)| *s += w * f64::from(v));
        }
        sum
    };
    let over = |sum: Vec<f64>, by: f64| sum.into_iter().map(|s| (s / by) as f32).collect();
    match pooling {
        Pooling::First => tokens[..hidden].to_vec(),
        Pooling::Last => tokens[tokens.len() - hidden..].to_vec(),
        Pooling::Max => rows().fold(vec![f32::NEG_INFINITY; hidden], |mut top, row| {
            top.iter_mut().zip(row).for_each(|(t, &v)| *t = t.max(v));
            top
        }),
        Pooling::Mean => over(sum(&|_| 1.0), n as f64),
        Pooling::MeanSqrt => over(sum(&|_| 1.0), (n as f64).sqrt()),
        Pooling::WeightedMean => over(sum(&|i| (i + 1) as f64), (n * (n + 1)) as f64 / 2.0),
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    // As in `pool`.
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() as f32
}

fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Identity => x,
        Activation::Tanh => x.tanh(),
        Activation::Relu => x.max(0.0),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Gelu => {
            let wide = f64::from(x);
            (0.5 * wide * (1.0 + libm::erf(wide * std::f64::consts::FRAC_1_SQRT_2))) as f32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poolings_of_three_tokens() {
        let tokens = [1.0, -2.0, 3.0, 4.0, 5.0, 6.0];
        let pooled = |p| pool(p, &tokens, 2);
        assert_eq!(pooled(Pooling::First), [1.0, -2.0]);
        assert_eq!(pooled(Pooling::Last), [5.0, 6.0]);
        assert_eq!(pooled(Pooling::Max), [5.0, 6.0]);
        assert_eq!(pooled(Pooling::Mean), [3.0, 8.0 / 3.0]);
        assert!((pooled(Pooling::MeanSqrt)[0] - 9.0 / 3f32.sqrt()).abs() < 1e-6);
        assert_eq!(pooled(Pooling::WeightedMean), [22.0 / 6.0, 4.0]);
    }
}
