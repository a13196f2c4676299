//! How an encoder is driven: its head, and what of a sequence's tokens goes into its inputs.

/// What an encoder is asked for beyond its hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Nothing: hidden states, and the pooler's output where the model has one.
    None,
    /// `logits [R, labels]`.
    Sequence,
    /// `logits [T, labels]`.
    Token,
    /// `logits [T, vocabulary]`: words for gaps; of a decoder `[L, vocabulary]`, what comes after
    /// the tokens that are asked for.
    Words,
}

/// How logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// One label holds.
    Softmax,
    /// Each label holds or not.
    Sigmoid,
    /// The logits are the scores.
    Plain,
}

/// How an encoder is driven.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderInfo {
    pub head: Head,
    /// Names of the head's labels, in the order of its logits; none without such a head.
    pub labels: Vec<String>,
    pub scores: Scores,
    pub positions: Positions,
    /// Kinds of token types; 0 where the model has no such input.
    pub token_types: usize,
    /// Which token's state stands for its sequence.
    pub pooled: Pooled,
    /// How relative positions are numbered, where the graph asks for them.
    pub relative: Option<Relative>,
    /// The token that texts are filled up with to the longest length; `None` where they are not.
    pub fill: Option<u32>,
    /// Width of the vector of a text that the graph itself makes; 0 without one.
    pub embeds: usize,
    /// Tokens under a convolution, an odd number; 0 without one.
    pub convolved: usize,
    /// How queries grow with the length of their sequence, where they do.
    pub log_scale: Option<LogScale>,
}

impl EncoderInfo {
    /// A model with a head, with everything else as most have it.
    pub(crate) fn with_head(head: Head, labels: &[String], scores: Scores) -> EncoderInfo {
        let labels = match head {
            Head::Sequence | Head::Token => labels.to_vec(),
            Head::None | Head::Words => Vec::new(),
        };
        EncoderInfo { head, labels, scores, ..EncoderInfo::default() }
    }
}

/// A model of hidden states alone, with everything else as most have it.
impl Default for EncoderInfo {
    fn default() -> EncoderInfo {
        EncoderInfo {
            head: Head::None,
            labels: Vec::new(),
            scores: Scores::Plain,
            positions: Positions::Counted,
            token_types: 0,
            pooled: Pooled::First,
            relative: None,
            fill: None,
            embeds: 0,
            convolved: 0,
            log_scale: None,
        }
    }
}

/// How the tokens of a sequence get their positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// From 0 on.
    Counted,
    /// From one behind this id of padding on; padding itself has its id as position and does not
    /// count, as in RoBERTa.
    PastPadding(u32),
}

impl Positions {
    /// The position of each token.
    pub fn of(self, ids: &[u32]) -> impl Iterator<Item = u32> {
        let mut next = 0;
        ids.iter().map(move |&id| match self {
            Positions::Counted => {
                next += 1;
                next - 1
            }
            Positions::PastPadding(pad) if id == pad => pad,
            Positions::PastPadding(pad) => {
                next += 1;
                next + pad
            }
        })
    }
}

/// Which token's state stands for its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooled {
    First,
    Last,
    /// The last whose id is not this one of padding; the first of all where all are.
    LastNot(u32),
    /// The first with this id; the first of all without one.
    Id(u32),
    /// The first with the largest id.
    LargestId,
}

impl Pooled {
    /// Its index in the sequence.
    pub fn of(self, ids: &[u32]) -> usize {
        let largest = || ids.iter().copied().max().unwrap_or(0);
        let place = |wanted: u32| ids.iter().position(|&id| id == wanted).unwrap_or(0);
        match self {
            Pooled::First => 0,
            Pooled::Last => ids.len().saturating_sub(1),
            Pooled::LastNot(pad) => ids.iter().rposition(|&id| id != pad).unwrap_or(0),
            Pooled::Id(id) => place(id),
            Pooled::LargestId => place(largest()),
        }
    }
}

/// A factor on queries: the logarithm of the number of tokens that are seen, to the base of the
/// length that the model was trained for.
///
/// Source: <https://kexue.fm/archives/8823>.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogScale {
    /// The length for which it is 1.
    pub length: usize,
    /// Whether it is at least 1, for texts that are shorter.
    pub at_least_one: bool,
}

impl LogScale {
    /// The factor for a sequence of which `seen` tokens are seen.
    pub fn of(self, seen: usize) -> f32 {
        // In f32, as the reference.
        let factor = (seen as f32).ln() / (self.length as f32).ln();
        if self.at_least_one { factor.max(1.0) } else { factor }
    }
}

/// Relative positions as DeBERTa numbers them: by single steps near a token, by the logarithm of
/// the distance further away.
///
/// Reference: `make_log_bucket_position` of Hugging Face transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relative {
    /// Positions to each side; numbers are below twice that.
    pub span: usize,
    /// Buckets and the longest distance they are for, where distances are put into buckets. There
    /// are at least 2, and half of them are less than the distance less 1.
    pub buckets: Option<[usize; 2]>,
}

impl Relative {
    /// The number of a key that lies `back` tokens before its query; it does not fall as `back`
    /// rises.
    pub fn number(&self, back: i64) -> u32 {
        let span = self.span as i64;
        (self.bucket(back) + span).clamp(0, 2 * span - 1) as u32
    }

    fn bucket(&self, back: i64) -> i64 {
        let Some([count, longest]) = self.buckets else { return back };
        let middle = (count / 2) as i64;
        let apart = back.abs();
        if apart <= middle {
            return back;
        }
        // In f32, as the reference.
        let (steps, unit) = (middle as f32, (longest - 1) as f64 / middle as f64);
        let log = (apart as f32 / steps).ln() / (unit as f32).ln() * (steps - 1.0);
        (log.ceil() as i64 + middle) * back.signum()
    }
}
