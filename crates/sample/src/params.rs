//! The parameters of a generation: one table says what each is called, what it means, which values
//! it takes and how it is read and written. Validation, presets, command-line flags, request fields
//! and documentation all come from [`PARAMETERS`].

use std::collections::BTreeMap;
use std::fmt;

/// How a sequence is sampled and when it ends. [`SamplingParams::default`] is the general setting,
/// [`SamplingParams::neutral`] has every step off.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the most probable token (lowest id on a tie), whatever the seed.
    pub temperature: f32,
    /// Keep the most probable tokens whose probabilities add up to this; 1 keeps all.
    pub top_p: f32,
    /// Keep this many of the most probable tokens; none keeps all.
    pub top_k: Option<u32>,
    /// Drop tokens less probable than this fraction of the most probable; 0 keeps all.
    pub min_p: f32,
    /// Weakens tokens that the prompt or the output holds; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token that the output holds.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once for each time that the output holds it.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens before everything else.
    pub logit_bias: BTreeMap<u32, f32>,
    /// The most tokens to make; none goes on to the end of the context.
    pub max_tokens: Option<u32>,
    /// Texts that end the output when they appear in it.
    pub stop: Vec<String>,
    /// Makes draws repeatable; none takes a fresh one for each sequence.
    pub seed: Option<u64>,
    /// Report the log-probability of each token, and of this many alternatives.
    pub logprobs: Option<u32>,
}

impl SamplingParams {
    /// Every step off: the model's own distribution at temperature 1.
    pub const fn neutral() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            max_tokens: None,
            stop: Vec::new(),
            seed: None,
            logprobs: None,
        }
    }

    /// The parameters of a preset.
    ///
    /// # Errors
    /// When no preset has this name.
    pub fn preset(name: &str) -> Result<Self, ParamError> {
        let preset = PRESETS
            .iter()
            .find(|p| p.name == name)
            .ok_or_else(|| ParamError::UnknownPreset(name.to_owned()))?;
        let mut params = SamplingParams::neutral();
        for (name, value) in preset.values {
            params.set(name, value)?;
        }
        Ok(params)
    }

    /// Sets one parameter from text; `stop` and `logit_bias` (`ID:BIAS`) add one element a call.
    ///
    /// # Errors
    /// When the name is unknown, the text is not such a value, or the value is out of range.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), ParamError> {
        let parameter = Parameter::find(name)?;
        let not_a =
            |wanted| ParamError::NotA { name: parameter.name, text: text.to_owned(), wanted };
        match &parameter.field {
            Field::Real { set, .. } => set(self, text.parse().map_err(|_| not_a("a number"))?),
            Field::Count { set, .. } => {
                let number: i128 = text.parse().map_err(|_| not_a("a whole number"))?;
                let count =
                    u32::try_from(number).map_err(|_| parameter.out_of_range(text.to_owned()))?;
                set(self, Some(count));
            }
            Field::Seed => {
                let seed = text.parse().map_err(|_| not_a("a whole number from 0 to 2^64 - 1"))?;
                self.seed = Some(seed);
            }
            Field::Stop => self.stop.push(text.to_owned()),
            Field::LogitBias => {
                let wanted = "a token id and a bias (ID:BIAS)";
                let (id, bias) = text.split_once(':').ok_or_else(|| not_a(wanted))?;
                let id = id.trim().parse().map_err(|_| not_a(wanted))?;
                let bias = bias.trim().parse().map_err(|_| not_a(wanted))?;
                self.logit_bias.insert(id, bias);
            }
        }
        parameter.check(self)
    }

    /// Checks every value against its range, and against the number of tokens of the model.
    ///
    /// # Errors
    /// The first value that is out of range, in the order of [`PARAMETERS`].
    pub fn validate(&self, vocab: usize) -> Result<(), ParamError> {
        for parameter in PARAMETERS {
            parameter.check(self)?;
        }
        match self.logit_bias.keys().find(|&&token| token as usize >= vocab) {
            Some(&token) => Err(ParamError::UnknownToken { token, vocab }),
            None => Ok(()),
        }
    }

    /// Whether a step needs the tokens seen so far.
    pub(crate) fn needs_history(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

/// The seed document's general settings. Its repetition penalty for conversations (1.1) is left to
/// callers: as a default it would make temperature 0 differ from the model's own greedy choice.
impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 0.7,
            top_p: 0.9,
            top_k: Some(40),
            min_p: 0.05,
            ..SamplingParams::neutral()
        }
    }
}

/// A named set of parameters; what it does not name is off.
#[derive(Debug)]
pub struct Preset {
    /// As given to [`SamplingParams::preset`].
    pub name: &'static str,
    /// What it is for.
    pub summary: &'static str,
    /// Parameter names and values.
    pub values: &'static [(&'static str, &'static str)],
}

/// All presets.
pub static PRESETS: &[Preset] = &[
    Preset {
        name: "router",
        summary: "deterministic, provable",
        values: &[("temperature", "0.0"), ("seed", "42")],
    },
    Preset {
        name: "code",
        summary: "precise, no creativity",
        values: &[("temperature", "0.0"), ("top_p", "0.5"), ("seed", "42")],
    },
    Preset {
        name: "reasoning",
        summary: "balanced",
        values: &[("temperature", "0.7"), ("min_p", "0.05")],
    },
    Preset {
        name: "creative",
        summary: "varied, for open-ended writing",
        values: &[
            ("temperature", "1.0"),
            ("top_p", "0.95"),
            ("min_p", "0.05"),
            ("repetition_penalty", "1.2"),
        ],
    },
];

/// The values that a parameter takes; both ends belong to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Range {
    /// Numbers.
    Real(f32, f32),
    /// Whole numbers; the text says what bounds them from above where the number alone does not.
    Count(u32, u32, Option<&'static str>),
    /// Any 64-bit seed.
    Seed,
    /// Texts that are not empty.
    Text,
    /// Pairs of a token id and a number.
    Bias(f32, f32),
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Range::Real(low, high) => write!(f, "{low:?} to {high:?}"),
            Range::Count(low, _, Some(limit)) => write!(f, "{low} to {limit}"),
            Range::Count(low, high, None) => write!(f, "{low} to {high}"),
            Range::Seed => write!(f, "0 to 2^64 - 1"),
            Range::Text => write!(f, "texts that are not empty"),
            Range::Bias(low, high) => write!(f, "token ids with {low:?} to {high:?}"),
        }
    }
}

/// Where a parameter lives in [`SamplingParams`].
#[derive(Debug)]
pub enum Field {
    /// A number.
    Real {
        /// Reads it.
        get: fn(&SamplingParams) -> f32,
        /// Writes it.
        set: fn(&mut SamplingParams, f32),
    },
    /// A whole number that can be absent.
    Count {
        /// Reads it.
        get: fn(&SamplingParams) -> Option<u32>,
        /// Writes it.
        set: fn(&mut SamplingParams, Option<u32>),
    },
    /// `seed`.
    Seed,
    /// `stop`.
    Stop,
    /// `logit_bias`.
    LogitBias,
}

/// One row of [`PARAMETERS`].
#[derive(Debug)]
pub struct Parameter {
    /// As in a request's JSON; a flag is this with dashes.
    pub name: &'static str,
    /// The values it takes.
    pub range: Range,
    /// One line for help and documentation.
    pub summary: &'static str,
    /// Where it lives.
    pub field: Field,
}

macro_rules! field {
    ($kind:ident $name:ident) => {
        Field::$kind { get: |p| p.$name, set: |p, value| p.$name = value }
    };
}

/// All parameters.
pub static PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "temperature",
        range: Range::Real(0.0, 2.0),
        summary: "randomness: 0 always takes the most probable token, 1 is the model's own, 2 chaos",
        field: field!(Real temperature),
    },
    Parameter {
        name: "top_p",
        range: Range::Real(0.0, 1.0),
        summary: "keep the most probable tokens that make up this much probability; 1 is off",
        field: field!(Real top_p),
    },
    Parameter {
        name: "top_k",
        range: Range::Count(1, u32::MAX, Some("the vocabulary's size")),
        summary: "keep this many of the most probable tokens; off when not given",
        field: field!(Count top_k),
    },
    Parameter {
        name: "min_p",
        range: Range::Real(0.0, 1.0),
        summary: "drop tokens less probable than this fraction of the most probable; 0 is off",
        field: field!(Real min_p),
    },
    Parameter {
        name: "repetition_penalty",
        range: Range::Real(1.0, 2.0),
        summary: "weaken tokens that prompt or output already hold; 1 is off, 1.1 suits conversations",
        field: field!(Real repetition_penalty),
    },
    Parameter {
        name: "presence_penalty",
        range: Range::Real(-2.0, 2.0),
        summary: "subtract this from the logits of tokens that the output already holds; 0 is off",
        field: field!(Real presence_penalty),
    },
    Parameter {
        name: "frequency_penalty",
        range: Range::Real(-2.0, 2.0),
        summary: "subtract this for each time that the output already holds a token; 0 is off",
        field: field!(Real frequency_penalty),
    },
    Parameter {
        name: "logit_bias",
        range: Range::Bias(-100.0, 100.0),
        summary: "add to the logit of a token (ID:BIAS, repeatable)",
        field: Field::LogitBias,
    },
    Parameter {
        name: "max_tokens",
        range: Range::Count(0, u32::MAX, Some("the context's size")),
        summary: "make at most this many tokens; to the end of the context when not given",
        field: field!(Count max_tokens),
    },
    Parameter {
        name: "stop",
        range: Range::Text,
        summary: "end when this text appears in the output (repeatable)",
        field: Field::Stop,
    },
    Parameter {
        name: "seed",
        range: Range::Seed,
        summary: "make the random draws repeatable; fresh for each run when not given",
        field: Field::Seed,
    },
    Parameter {
        name: "logprobs",
        range: Range::Count(0, 20, None),
        summary: "report each token's log-probability and this many alternatives",
        field: field!(Count logprobs),
    },
];

impl Parameter {
    /// The row of a parameter; dashes count as underscores.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn find(name: &str) -> Result<&'static Parameter, ParamError> {
        PARAMETERS
            .iter()
            .find(|p| p.name.len() == name.len() && p.name == name.replace('-', "_"))
            .ok_or_else(|| ParamError::Unknown(name.to_owned()))
    }

    /// The value as text, none when the parameter is absent or empty. With
    /// [`SamplingParams::default`] this is the default.
    pub fn value(&self, params: &SamplingParams) -> Option<String> {
        match &self.field {
            Field::Real { get, .. } => Some(format!("{:?}", get(params))),
            Field::Count { get, .. } => get(params).map(|n| n.to_string()),
            Field::Seed => params.seed.map(|n| n.to_string()),
            Field::Stop => (!params.stop.is_empty()).then(|| format!("{:?}", params.stop)),
            Field::LogitBias => {
                let pairs = params.logit_bias.iter().map(|(id, bias)| format!("{id}:{bias:?}"));
                (!params.logit_bias.is_empty()).then(|| pairs.collect::<Vec<_>>().join(", "))
            }
        }
    }

    fn out_of_range(&self, value: String) -> ParamError {
        ParamError::OutOfRange { name: self.name, value, range: self.range }
    }

    fn check(&self, params: &SamplingParams) -> Result<(), ParamError> {
        let bad = match (&self.field, self.range) {
            (Field::Real { get, .. }, Range::Real(low, high)) => {
                let value = get(params);
                (!(low..=high).contains(&value)).then(|| value.to_string())
            }
            (Field::Count { get, .. }, Range::Count(low, high, _)) => {
                get(params).filter(|n| !(low..=high).contains(n)).map(|n| n.to_string())
            }
            (Field::LogitBias, Range::Bias(low, high)) => params
                .logit_bias
                .iter()
                .find(|(_, bias)| !(low..=high).contains(*bias))
                .map(|(id, bias)| format!("{id}:{bias}")),
            (Field::Stop, _) => params.stop.iter().any(String::is_empty).then(|| "\"\"".to_owned()),
            _ => None,
        };
        bad.map_or(Ok(()), |value| Err(self.out_of_range(value)))
    }
}

/// What is wrong with a parameter.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ParamError {
    /// A value outside its range.
    #[error("{name} = {value} is out of range; it takes {range}")]
    OutOfRange {
        /// The parameter.
        name: &'static str,
        /// The value that was given.
        value: String,
        /// What it takes.
        range: Range,
    },
    /// Text that is no value of this kind.
    #[error("{name} = {text:?} is not {wanted}")]
    NotA {
        /// The parameter.
        name: &'static str,
        /// The text that was given.
        text: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// No parameter of this name.
    #[error("there is no sampling parameter {0:?}; there are {names}", names = names(PARAMETERS.iter().map(|p| p.name)))]
    Unknown(String),
    /// No preset of this name.
    #[error("there is no preset {0:?}; there are {names}", names = names(PRESETS.iter().map(|p| p.name)))]
    UnknownPreset(String),
    /// A bias for a token that the model does not have.
    #[error("logit_bias names token {token}, but the vocabulary has {vocab} tokens (0 to {last})", last = vocab.saturating_sub(1))]
    UnknownToken {
        /// The token.
        token: u32,
        /// How many tokens there are.
        vocab: usize,
    },
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_those_of_the_seed_document() {
        let neutral = SamplingParams::neutral;
        let preset = |name| SamplingParams::preset(name).unwrap();
        assert_eq!(
            preset("router"),
            SamplingParams { temperature: 0.0, seed: Some(42), ..neutral() }
        );
        assert_eq!(
            preset("code"),
            SamplingParams { temperature: 0.0, top_p: 0.5, seed: Some(42), ..neutral() }
        );
        assert_eq!(
            preset("reasoning"),
            SamplingParams { temperature: 0.7, min_p: 0.05, ..neutral() }
        );
        assert_eq!(
            preset("creative"),
            SamplingParams {
                temperature: 1.0,
                top_p: 0.95,
                min_p: 0.05,
                repetition_penalty: 1.2,
                ..neutral()
            }
        );
        let error = SamplingParams::preset("wild").unwrap_err().to_string();
        assert!(error.contains("\"wild\"") && error.contains("router, code, reasoning, creative"));
    }

    #[test]
    fn every_range_is_enforced_and_its_error_names_parameter_value_and_range() {
        for (name, good, bad, range) in [
            (
                "temperature",
                &["0", "2", "0.5"][..],
                &["-0.1", "2.1", "nan", "inf"][..],
                "0.0 to 2.0",
            ),
            ("top_p", &["0", "1"], &["-0.01", "1.01", "NaN"], "0.0 to 1.0"),
            ("top_k", &["1", "99999"], &["0", "-1"], "1 to the vocabulary's size"),
            ("min_p", &["0", "1"], &["-1", "2"], "0.0 to 1.0"),
            ("repetition_penalty", &["1", "2"], &["0.9", "2.5"], "1.0 to 2.0"),
            ("presence_penalty", &["-2", "2"], &["-2.1", "3"], "-2.0 to 2.0"),
            ("frequency_penalty", &["-2", "2"], &["-2.1", "3"], "-2.0 to 2.0"),
            ("max_tokens", &["0", "1"], &["-5"], "0 to the context's size"),
            ("logprobs", &["0", "20"], &["21"], "0 to 20"),
        ] {
            for text in good {
                SamplingParams::neutral().set(name, text).unwrap();
                SamplingParams::neutral().set(&name.replace('_', "-"), text).unwrap();
            }
            for text in bad {
                let error = SamplingParams::neutral().set(name, text).unwrap_err().to_string();
                let value = text.replace("nan", "NaN");
                assert!(
                    error.contains(name) && error.contains(&value) && error.contains(range),
                    "{error}"
                );
            }
        }
    }

    /// Case S7.
    #[test]
    fn hostile_logit_bias_is_an_error() {
        let mut params = SamplingParams::neutral();
        assert!(matches!(params.set("logit_bias", "AI:1"), Err(ParamError::NotA { .. })));
        let error = params.set("logit_bias", "5:1e9").unwrap_err().to_string();
        assert!(error.contains("5:1000000000") && error.contains("-100.0 to 100.0"), "{error}");
        let mut params = SamplingParams::neutral();
        params.set("logit_bias", "99999999:1").unwrap();
        assert_eq!(
            params.validate(32_000),
            Err(ParamError::UnknownToken { token: 99_999_999, vocab: 32_000 })
        );
    }

    #[test]
    fn text_that_is_no_value_is_an_error() {
        for (name, text) in
            [("temperature", "warm"), ("top_k", "1.5"), ("seed", "-1"), ("seed", "x")]
        {
            let error = SamplingParams::neutral().set(name, text).unwrap_err();
            assert!(matches!(error, ParamError::NotA { .. }), "{error}");
        }
        assert!(SamplingParams::neutral().set("stop", "").is_err());
        assert!(matches!(SamplingParams::neutral().set("topk", "1"), Err(ParamError::Unknown(_))));
    }

    #[test]
    fn the_table_reads_what_it_writes() {
        let mut params = SamplingParams::neutral();
        let values =
            ["0.25", "0.5", "7", "0.125", "1.5", "-1.0", "0.75", "3:-2.5", "9", "END", "11", "2"];
        assert_eq!(values.len(), PARAMETERS.len());
        for (parameter, value) in PARAMETERS.iter().zip(values) {
            params.set(parameter.name, value).unwrap();
        }
        params.validate(10).unwrap();
        for (parameter, value) in PARAMETERS.iter().zip(values) {
            let text = parameter.value(&params).unwrap();
            assert!(text == value || text == format!("[{value:?}]"), "{text}");
        }
        SamplingParams::default().validate(1).unwrap();
    }
}
