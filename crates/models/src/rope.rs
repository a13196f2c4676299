//! Rotary position embedding: the frequencies of every scaling of long contexts.
//!
//! The `rope` jet turns pair i of a head by `position * frequencies[i]`. All variants published for
//! longer contexts are another choice of the frequencies, and of a factor on cosine and sine, so
//! they are settled here, once, when the graph is built. Arithmetic is in `f32` in the order of
//! Hugging Face's `modeling_rope_utils.py`, so that angles agree at large positions.

use std::f32::consts::TAU;

/// Which elements of a head make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Elements i and i + R: Hugging Face checkpoints, GGUF files of most families.
    Half,
    /// Elements 2i and 2i + 1: GGUF files of the llama family, whose converter permutes the rows of
    /// the query and key projections.
    Pairs,
}

impl Style {
    /// The attribute of the `rope` jet.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Style::Half => "half",
            Style::Pairs => "pairs",
        }
    }
}

/// How frequencies are changed for contexts longer than the one trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    None,
    /// Positions divided by a factor (<https://arxiv.org/abs/2306.15595>).
    Linear {
        factor: f32,
    },
    /// A larger base, so that the slow pairs stretch and the fast ones hardly do ("dynamic" in
    /// config.json). Published as a function of the current length; here the length is the longest
    /// one that the graph is to serve, so that results do not depend on how a prompt is split.
    Ntk {
        factor: f32,
        original_context_length: usize,
    },
    /// As `Ntk` whatever the length, so that the slowest pair is stretched by the factor itself
    /// (<https://kexue.fm/archives/9706>): evenly on a logarithmic scale, or by the power `mixed` of
    /// a pair's number.
    FixedNtk {
        factor: f32,
        mixed: Option<f32>,
    },
    /// Interpolated between linear and none by wavelength (<https://arxiv.org/abs/2309.00071>).
    Yarn(Yarn),
    /// As Llama 3.1 in config.json: slow pairs divided by a factor, fast ones kept.
    Llama3 {
        factor: f32,
        low_freq_factor: f32,
        high_freq_factor: f32,
        original_context_length: usize,
    },
    /// One divisor a pair, as GGUF files carry Llama 3.1 scaling (`rope_freqs.weight`).
    Divisors(Vec<f32>),
    /// One divisor a pair, a set for short and one for long contexts
    /// (<https://arxiv.org/abs/2402.13753>).
    LongRope {
        short: Vec<f32>,
        long: Vec<f32>,
        original_context_length: usize,
        /// The model's context length over the original one.
        factor: f64,
        /// Factor on cosine and sine; by default it follows from `factor`.
        attention_factor: Option<f64>,
    },
}

/// Parameters of YaRN; the names are those of config.json.
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    pub factor: f64,
    pub original_context_length: usize,
    pub beta_fast: f64,
    pub beta_slow: f64,
    /// Whether the borders between fast and slow pairs are rounded to whole pairs.
    pub truncate: bool,
    /// Factor on cosine and sine; by default it follows from `factor` and the mscales.
    pub attention_factor: Option<f64>,
    pub mscale: Option<f64>,
    pub mscale_all_dim: Option<f64>,
}

impl Yarn {
    /// The paper's parameters for a factor and a trained context length.
    pub fn new(factor: f64, original_context_length: usize) -> Yarn {
        Yarn {
            factor,
            original_context_length,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            attention_factor: None,
            mscale: None,
            mscale_all_dim: None,
        }
    }

    /// Factor on cosine and sine.
    fn attention_factor(&self) -> f64 {
        match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(given), _, _) => given,
            (None, Some(mscale), Some(all)) if mscale != 0.0 && all != 0.0 => {
                yarn_mscale(self.factor, mscale) / yarn_mscale(self.factor, all)
            }
            (None, _, _) => yarn_mscale(self.factor, 1.0),
        }
    }

    /// Factor on the softmax scale in families that take `mscale_all_dim` there (DeepSeek V2 and
    /// V3); the llama and qwen families do not.
    pub fn softmax_factor(&self) -> f64 {
        match self.mscale_all_dim {
            Some(all) if all != 0.0 => yarn_mscale(self.factor, all).powi(2),
            _ => 1.0,
        }
    }

    /// 0 for pairs that keep their frequency, 1 for pairs that are interpolated, between in
    /// between.
    fn ramp(&self, theta: f32, dims: usize) -> Vec<f32> {
        let border = |rotations: f64| {
            let turns = self.original_context_length as f64 / (rotations * std::f64::consts::TAU);
            dims as f64 * turns.ln() / (2.0 * f64::from(theta).ln())
        };
        let (mut low, mut high) = (border(self.beta_fast), border(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(dims as f64 - 1.0));
        if low == high {
            high += 0.001;
        }
        let (low, width) = (low as f32, (high - low) as f32);
        (0..dims / 2).map(|i| ((i as f32 - low) / width).clamp(0.0, 1.0)).collect()
    }
}

fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// The rotary embedding of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the frequencies.
    pub theta: f32,
    /// Elements of a head that are turned; even.
    pub dims: usize,
    pub style: Style,
    pub scaling: Scaling,
}

/// What the `rope` jet is given.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Radians a position, one a pair: `dims / 2` of them.
    pub frequencies: Vec<f32>,
    /// Factor on cosine and sine.
    pub scale: f64,
}

impl Rope {
    /// The frequencies for sequences of up to `length` tokens. Only `Ntk` and `LongRope` depend on
    /// it.
    pub fn turn(&self, length: usize) -> Turn {
        let plain = frequencies(self.theta, self.dims);
        let divided = |divisors: &[f32]| {
            plain.iter().zip(divisors).map(|(f, d)| 1.0 / (d * (1.0 / f))).collect::<Vec<f32>>()
        };
        let (frequencies, scale) = match &self.scaling {
            Scaling::None => (plain, 1.0),
            Scaling::Linear { factor } => (plain.iter().map(|f| f / factor).collect(), 1.0),
            Scaling::Ntk { factor, original_context_length } => {
                let (original, dims) = (*original_context_length as f32, self.dims as f32);
                let longer = length.max(*original_context_length) as f32 / original;
                let stretch = (factor * longer - (factor - 1.0)).powf(dims / (dims - 2.0));
                (frequencies(self.theta * stretch, self.dims), 1.0)
            }
            Scaling::FixedNtk { factor, mixed: None } => {
                let slower = factor.powf(2.0 / self.dims as f32);
                let stretched = frequencies(self.theta * factor, self.dims);
                (stretched.iter().map(|f| f / slower).collect(), 1.0)
            }
            Scaling::FixedNtk { factor, mixed: Some(power) } => {
                let step = factor.ln() / ((self.dims / 2) as f32).powf(*power);
                let slower = |i: usize| (step * ((i + 1) as f32).powf(*power)).exp();
                (plain.iter().enumerate().map(|(i, f)| f / slower(i)).collect(), 1.0)
            }
            Scaling::Yarn(yarn) => {
                let factor = yarn.factor as f32;
                let mix = |(f, ramp): (&f32, f32)| {
                    let kept = 1.0 - ramp;
                    (1.0 / (factor * (1.0 / f))) * (1.0 - kept) + f * kept
                };
                let ramp = yarn.ramp(self.theta, self.dims);
                (plain.iter().zip(ramp).map(mix).collect(), yarn.attention_factor())
            }
            Scaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_context_length,
            } => {
                let original = *original_context_length as f32;
                let scaled = |&f: &f32| {
                    let wavelength = TAU / f;
                    if wavelength > original / low {
                        f / factor
                    } else if wavelength < original / high {
                        f
                    } else {
                        let smooth = (original / wavelength - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                };
                (plain.iter().map(scaled).collect(), 1.0)
            }
            Scaling::Divisors(divisors) => {
                (plain.iter().zip(divisors).map(|(f, d)| f / d).collect(), 1.0)
            }
            Scaling::LongRope {
                short,
                long,
                original_context_length: original,
                factor,
                attention_factor,
            } => {
                let default = if *factor <= 1.0 {
                    1.0
                } else {
                    (1.0 + factor.ln() / (*original as f64).ln()).sqrt()
                };
                let divisors = if length > *original { long } else { short };
                (divided(divisors), attention_factor.unwrap_or(default))
            }
        };
        Turn { frequencies, scale }
    }
}

/// `theta ^ (-2i / dims)`.
fn frequencies(theta: f32, dims: usize) -> Vec<f32> {
    (0..dims / 2).map(|i| 1.0 / theta.powf((2 * i) as f32 / dims as f32)).collect()
}

#[cfg(test)]
mod tests;
