//! Running an encoder, or a decoder of whole sequences, over many texts at once, without padding.
//!
//! Sequences are packed one after the other into runs of about [`PACK`] tokens, so that short and
//! long texts share a run and no work is done for padding. What is computed for a sequence depends
//! on it alone, so packing changes no bit of a result.

use std::sync::Arc;

use cyb_exec::{Executor, MemoryUse, Running, StepTime};
use cyb_models::{EncoderInfo, Head, inputs};

use crate::{Cancel, Error};

/// Tokens of a run: enough that reading the weights costs little, few enough that activations stay
/// in the cache. A longer sequence has a run of its own.
const PACK: usize = 1024;

/// Bytes of logits of a run of several sequences: those of a vocabulary are many for each token.
const LOGIT_BYTES: usize = 256 << 20;

/// A tokenized text or pair of texts, or a picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sequence {
    pub(crate) ids: Vec<u32>,
    pub(crate) types: Vec<u32>,
    /// The position of each token; empty for those that the model counts.
    pub(crate) positions: Vec<u32>,
    /// Which tokens others see; empty for all.
    pub(crate) shown: Vec<bool>,
    /// The patches of a picture, one a token.
    pub(crate) patches: Vec<f32>,
    /// What is added to each patch for its place.
    pub(crate) places: Vec<f32>,
}

impl Sequence {
    /// How many of its tokens others see.
    fn seen(&self) -> usize {
        match self.shown.is_empty() {
            true => self.ids.len(),
            false => self.shown.iter().filter(|&&shown| shown).count(),
        }
    }
}

/// What a graph gives for one sequence. Outputs that were not asked for, or that the model does not
/// have, are empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outputs<'a> {
    /// `[tokens, hidden]`
    pub(crate) hidden: &'a [f32],
    /// `[hidden]`
    pub(crate) pooled: &'a [f32],
    /// `[labels]` or `[tokens, labels]`
    pub(crate) logits: &'a [f32],
    /// `[width]`
    pub(crate) embeds: &'a [f32],
}

/// Which outputs are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) hidden: bool,
    pub(crate) pooled: bool,
    pub(crate) logits: bool,
    pub(crate) embeds: bool,
}

/// An encoder's started executor.
#[derive(Debug)]
pub(crate) struct EncoderRunner {
    running: Running,
    inputs: Vec<(usize, Port)>,
    outputs: [Option<usize>; 4],
    symbols: [Option<usize>; SYMBOLS.len()],
    bound: Vec<usize>,
    /// Tokens of a run where logits are wanted.
    pack_with_logits: usize,
    /// The largest sizes that there is memory for.
    limits: [usize; SYMBOLS.len()],
    copied: [Vec<f32>; 4],
}

#[derive(Clone, Copy, Debug)]
enum Port {
    Tokens,
    Positions,
    TokenTypes,
    Bounds,
    Shown,
    Pooled,
    Relatives,
    RelativeIndex,
    Neighbors,
    QueryScales,
    LogitRows,
    Patches,
    PlaceRows,
}

const PORTS: [(&str, Port); 13] = [
    (inputs::TOKENS, Port::Tokens),
    (inputs::POSITIONS, Port::Positions),
    (inputs::TOKEN_TYPES, Port::TokenTypes),
    (inputs::BOUNDS, Port::Bounds),
    (inputs::SHOWN, Port::Shown),
    (inputs::POOLED, Port::Pooled),
    (inputs::RELATIVES, Port::Relatives),
    (inputs::RELATIVE_INDEX, Port::RelativeIndex),
    (inputs::NEIGHBORS, Port::Neighbors),
    (inputs::QUERY_SCALES, Port::QueryScales),
    (inputs::LOGIT_ROWS, Port::LogitRows),
    (inputs::PATCHES, Port::Patches),
    (inputs::PLACE_ROWS, Port::PlaceRows),
];
const OUTPUTS: [&str; 4] =
    [inputs::LAST_HIDDEN_STATE, inputs::POOLER_OUTPUT, inputs::LOGITS, inputs::EMBEDS];
/// Tokens, bounds, sequences, relative positions, distances, tokens with logits.
const SYMBOLS: [&str; 6] = ["T", "B", "R", "P", "W", "L"];

impl EncoderRunner {
    pub(crate) fn new(executor: &Arc<Executor>) -> Result<EncoderRunner, Error> {
        let ports = executor.inputs().enumerate().filter_map(|(i, (name, _))| {
            let port = PORTS.iter().find(|(known, _)| *known == name)?;
            Some((i, port.1))
        });
        let ports = ports.collect();
        let outputs = OUTPUTS.map(|name| executor.outputs().position(|(n, _)| n == name));
        let symbols = SYMBOLS.map(|name| executor.symbols().index(name));
        let logits = executor.outputs().find(|(name, _)| *name == inputs::LOGITS);
        let width = logits.and_then(|(_, fact)| fact.shape.last()?.known()).unwrap_or(1).max(1);
        let pack_with_logits = (LOGIT_BYTES / size_of::<f32>() / width).clamp(1, PACK);
        let limits = [1, 2, 1, 1, 1, 1];
        let mut bound = vec![1; executor.symbols().len()];
        set(&mut bound, symbols, limits);
        let running = executor.start(&bound)?;
        Ok(EncoderRunner {
            running,
            inputs: ports,
            outputs,
            symbols,
            bound,
            pack_with_logits,
            limits,
            copied: Default::default(),
        })
    }

    /// Whether the graph asks for positions, which a user may then give.
    pub(crate) fn takes_positions(&self) -> bool {
        self.inputs.iter().any(|(_, port)| matches!(port, Port::Positions))
    }

    pub(crate) fn memory(&self) -> MemoryUse {
        self.running.memory()
    }

    pub(crate) fn times(&self) -> Vec<(&'static str, StepTime)> {
        self.running.times()
    }

    /// Computes sequences and hands each one's outputs to `sink` with its number. None is empty.
    pub(crate) fn run(
        &mut self,
        sequences: &[Sequence],
        info: &EncoderInfo,
        wanted: Wanted,
        cancel: &Cancel,
        sink: &mut dyn FnMut(usize, Outputs<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let most = if wanted.logits { self.pack_with_logits } else { PACK };
        let mut first = 0;
        while first < sequences.len() {
            if cancel.is_set() {
                return Err(Error::Interrupted);
            }
            let mut tokens = 0;
            let fits = |s: &&Sequence| {
                tokens += s.ids.len();
                tokens <= most
            };
            let count = sequences[first..].iter().take_while(fits).count().max(1);
            let pack = &sequences[first..first + count];
            self.compute(pack, info, wanted)?;
            let total: usize = pack.iter().map(|s| s.ids.len()).sum();
            let mut at = 0;
            for (i, sequence) in pack.iter().enumerate() {
                let tokens = at..at + sequence.ids.len();
                let rows = |values: &'_ [f32]| -> std::ops::Range<usize> {
                    // An output has a row for each token or for each sequence.
                    let per_token = values.len() / total.max(1);
                    tokens.start * per_token..tokens.end * per_token
                };
                let one = |values: &'_ [f32]| -> std::ops::Range<usize> {
                    let width = values.len() / count;
                    i * width..(i + 1) * width
                };
                let [hidden, pooled, logits, embeds] = &self.copied;
                let logits_of = match info.head {
                    Head::Token | Head::Words => rows(logits),
                    Head::Sequence | Head::None => one(logits),
                };
                sink(
                    first + i,
                    Outputs {
                        hidden: &hidden[rows(hidden)],
                        pooled: &pooled[one(pooled)],
                        logits: &logits[logits_of],
                        embeds: &embeds[one(embeds)],
                    },
                )?;
                at = tokens.end;
            }
            first += count;
        }
        // They may be large, and are wanted rarely.
        self.copied[2] = Vec::new();
        Ok(())
    }

    fn compute(
        &mut self,
        pack: &[Sequence],
        info: &EncoderInfo,
        wanted: Wanted,
    ) -> Result<(), Error> {
        let tokens: usize = pack.iter().map(|s| s.ids.len()).sum();
        let longest = pack.iter().map(|s| s.ids.len()).max().unwrap_or(1).max(1) as i64 - 1;
        // Numbers do not fall as a key lies further back.
        let numbers = info.relative.map_or(0..=0, |r| r.number(-longest)..=r.number(longest));
        let n_numbers = (numbers.end() - numbers.start()) as usize + 1;
        // Of a decoder's logits one row is computed even where none is wanted.
        let n_logits = if wanted.logits { tokens } else { 1 };
        let distances = 2 * longest as usize + 1;
        let sizes = [tokens, pack.len() + 1, pack.len(), n_numbers, distances, n_logits];
        let limits = std::array::from_fn(|i| self.limits[i].max(sizes[i]));
        if limits != self.limits {
            set(&mut self.bound, self.symbols, limits);
            self.running.resize(&self.bound)?;
            self.limits = limits;
        }
        set(&mut self.bound, self.symbols, sizes);
        self.running.bind(&self.bound)?;
        let starts = || {
            pack.iter().scan(0u32, |at, s| {
                let start = *at;
                *at += s.ids.len() as u32;
                Some(start)
            })
        };
        for &(index, port) in &self.inputs {
            self.running.input(index, &mut |bytes| match port {
                Port::Tokens => fill(bytes, pack.iter().flat_map(|s| s.ids.iter().copied())),
                Port::TokenTypes => fill(bytes, pack.iter().flat_map(|s| s.types.iter().copied())),
                Port::Positions => {
                    let counted = |s: &'_ Sequence| -> Vec<u32> {
                        match s.positions.is_empty() {
                            true => info.positions.of(&s.ids).collect(),
                            false => s.positions.clone(),
                        }
                    };
                    fill(bytes, pack.iter().flat_map(counted));
                }
                Port::Bounds => fill(bytes, starts().chain([tokens as u32])),
                Port::Shown => fill(
                    bytes,
                    pack.iter().flat_map(|s| {
                        let shown = |i| s.shown.get(i).is_none_or(|&shown| shown);
                        (0..s.ids.len()).map(move |i| u32::from(shown(i)))
                    }),
                ),
                Port::Pooled => fill(
                    bytes,
                    starts().zip(pack).map(|(start, s)| start + info.pooled.of(&s.ids) as u32),
                ),
                Port::Neighbors => {
                    let all = pack.iter().zip(starts());
                    let width = info.convolved;
                    fill(bytes, all.flat_map(|(s, at)| neighbors(s, at, width, tokens as u32)));
                }
                Port::QueryScales => {
                    let scale = |s: &Sequence| info.log_scale.map_or(1.0, |l| l.of(s.seen()));
                    let each = |s| std::iter::repeat_n(f32::to_bits(scale(s)), s.ids.len());
                    fill(bytes, pack.iter().flat_map(each));
                }
                Port::LogitRows => fill(bytes, 0..n_logits as u32),
                Port::Patches => floats(bytes, pack.iter().map(|s| s.patches.as_slice())),
                Port::PlaceRows => floats(bytes, pack.iter().map(|s| s.places.as_slice())),
                Port::Relatives => fill(bytes, numbers.clone()),
                Port::RelativeIndex => {
                    // By key less query, so back is the other way round.
                    let number = |back| info.relative.map_or(0, |r| r.number(back));
                    let backs = (-longest..=longest).rev();
                    fill(bytes, backs.map(|back| number(back) - numbers.start()));
                }
            });
        }
        self.running.run()?;
        let wanted = [wanted.hidden, wanted.pooled, wanted.logits, wanted.embeds];
        for ((output, copied), wanted) in self.outputs.iter().zip(&mut self.copied).zip(wanted) {
            copied.clear();
            if let (Some(index), true) = (output, wanted) {
                let bytes = self.running.output(*index)?;
                copied.extend(
                    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])),
                );
            }
        }
        Ok(())
    }
}

/// The tokens `width` wide around each token of a sequence that begins at `start`; `none` beyond
/// its ends and for hidden ones.
fn neighbors(
    sequence: &Sequence,
    start: u32,
    width: usize,
    none: u32,
) -> impl Iterator<Item = u32> {
    let n = sequence.ids.len();
    let shown = |i: usize| sequence.shown.get(i).is_none_or(|&shown| shown);
    (0..n * width).map(move |i| {
        let near = (i / width + i % width).checked_sub(width / 2);
        near.filter(|&at| at < n && shown(at)).map_or(none, |at| start + at as u32)
    })
}

fn set<const N: usize>(bound: &mut [usize], symbols: [Option<usize>; N], sizes: [usize; N]) {
    for (symbol, size) in symbols.into_iter().zip(sizes) {
        if let Some(place) = symbol.and_then(|index| bound.get_mut(index)) {
            *place = size;
        }
    }
}

/// Writes 32-bit integers.
fn fill(bytes: &mut [u8], values: impl Iterator<Item = u32>) {
    for (place, value) in bytes.chunks_exact_mut(4).zip(values) {
        place.copy_from_slice(&value.to_ne_bytes());
    }
}

/// Writes floats.
fn floats<'a>(bytes: &mut [u8], parts: impl Iterator<Item = &'a [f32]>) {
    let values = parts.flat_map(|part| part.iter().map(|v| v.to_bits()));
    fill(bytes, values);
}
