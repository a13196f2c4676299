//! The vocabulary in which encoder families are written: embeddings, projections, norms, attention
//! in both directions, heads.
//!
//! An encoder's graph serves any number of sequences at once, packed one after the other: T tokens
//! come in with their positions and token types, and the bounds of R sequences; there is no padding.
//! [`crate::inputs`] names the inputs.

use cyb_ir::{Attrs, Builder, Fact, Graph, Jet, ValueId};
use cyb_jets::{
    ADD, CONCAT, EMBEDDING, GELU, LAYERNORM, LINEAR, MUL, RELU, RMSNORM, SDPA_DISENTANGLED,
    SDPA_PACKED, SILU, TANH,
};
use cyb_tensor::{DType, Dim, Tensor};

use crate::decoder::RopeTable;
use crate::registry::Source;
use crate::rope::Rope;
use crate::weights::Weights;
use crate::{Family, ModelError, Summary, TextModel, inputs};

mod head;
mod info;

pub(crate) use head::{Activation, decoder_head, head, labels, scores};
pub use info::{EncoderInfo, Head, LogScale, Pooled, Positions, Relative, Scores};

pub(crate) type Built = Result<ValueId, ModelError>;

/// Sizes that every encoder has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sizes {
    pub(crate) vocab_size: usize,
    pub(crate) hidden_size: usize,
    pub(crate) num_hidden_layers: usize,
    pub(crate) num_attention_heads: usize,
    pub(crate) head_dim: usize,
    /// Tokens of the longest sequence.
    pub(crate) context_length: usize,
}

/// An encoder's graph while it is built.
pub(crate) struct Encoder<'a> {
    pub(crate) b: Builder,
    pub(crate) weights: Weights<'a>,
    tokens: Option<ValueId>,
    bounds: ValueId,
    shown: ValueId,
    positions: Option<ValueId>,
    token_types: Option<ValueId>,
    pooled: Option<ValueId>,
    relatives: Option<ValueId>,
    relative_index: Option<ValueId>,
    scales: Option<ValueId>,
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(weights: Weights<'a>) -> Encoder<'a> {
        let mut b = Builder::new();
        let bounds = input(&mut b, inputs::BOUNDS, "B");
        let shown = input(&mut b, inputs::SHOWN, "T");
        Encoder {
            b,
            weights,
            tokens: None,
            bounds,
            shown,
            positions: None,
            token_types: None,
            pooled: None,
            relatives: None,
            relative_index: None,
            scales: None,
        }
    }

    fn jet(&mut self, jet: &'static Jet, attrs: Attrs, inputs: &[ValueId]) -> Built {
        Ok(self.b.jet(jet, attrs, inputs)?)
    }

    /// The position of each token: `[T]`.
    pub(crate) fn positions(&mut self) -> ValueId {
        let b = &mut self.b;
        *self.positions.get_or_insert_with(|| input(b, inputs::POSITIONS, "T"))
    }

    /// Rows of a table by token id: `[T, width]`.
    pub(crate) fn embed_tokens(&mut self, name: &str, shape: [usize; 2]) -> Built {
        let b = &mut self.b;
        let tokens = *self.tokens.get_or_insert_with(|| input(b, inputs::TOKENS, "T"));
        self.embed(name, shape, tokens)
    }

    /// The patches of pictures: `[T, width]`.
    pub(crate) fn patches(&mut self, width: usize) -> ValueId {
        self.b.input(inputs::PATCHES, Fact::new(DType::F32, [Dim::symbol("T"), width.into()]))
    }

    /// What is added to each patch for its place: `[T, width]`.
    pub(crate) fn place_rows(&mut self, width: usize) -> ValueId {
        self.b.input(inputs::PLACE_ROWS, Fact::new(DType::F32, [Dim::symbol("T"), width.into()]))
    }

    /// Patches under a convolution whose windows they are; `shape` is that of its weight.
    pub(crate) fn convolve(&mut self, name: &str, shape: [usize; 4]) -> Built {
        self.b.set_label(name);
        let width = shape[1..].iter().fold(1usize, |n, d| n.saturating_mul(*d));
        let patches = self.patches(width);
        let weight = format!("{name}.weight");
        let weight = self.weights.reshaped(&mut self.b, &weight, &shape, &[shape[0], width])?;
        let bias = format!("{name}.bias");
        if self.weights.has(&bias) {
            let bias = self.weights.value(&mut self.b, &bias, &[shape[0]])?;
            return self.jet(&LINEAR, Attrs::new(), &[patches, weight, bias]);
        }
        self.jet(&LINEAR, Attrs::new(), &[patches, weight])
    }

    /// A convolution over the tokens of each sequence, zeros beyond its ends and in place of hidden
    /// tokens: `[T, width]` to the same, with a weight `[width, width / groups, kernel]`.
    pub(crate) fn convolve_tokens(
        &mut self,
        x: ValueId,
        name: &str,
        [kernel, groups]: [usize; 2],
    ) -> Built {
        self.b.set_label(name);
        let width = self.width(x)?;
        let (tokens, inner) = (self.b.dim(x, 0)?, width / groups);
        let taps = self.weights.numbers(&format!("{name}.weight"), &[width, inner, kernel])?;
        // As a product with the neighbors of a token side by side.
        let columns = kernel.saturating_mul(width);
        let mut weight = vec![0.0; width.saturating_mul(columns)];
        for (row, out) in weight.chunks_exact_mut(columns.max(1)).enumerate() {
            let first = row / inner * inner; // groups are as wide going out as coming in
            for (i, taps) in taps.chunks_exact(kernel).skip(row * inner).take(inner).enumerate() {
                taps.iter().enumerate().for_each(|(k, &tap)| out[k * width + first + i] = tap);
            }
        }
        let weight = Tensor::from_f32(vec![width, columns], &weight).map_err(ModelError::tensor)?;
        let weight = self.b.weight(&format!("{name}.weight"), weight);
        let bias = self.weights.value(&mut self.b, &format!("{name}.bias"), &[width])?;
        let neighbors = self
            .b
            .input(inputs::NEIGHBORS, Fact::new(DType::I32, [Dim::symbol("T"), kernel.into()]));
        let nothing = Tensor::from_f32(vec![1, width], &vec![0.0; width]);
        let nothing = self.b.constant(nothing.map_err(ModelError::tensor)?);
        let rows = self.jet(&CONCAT, Attrs::new().with("axis", 0usize), &[x, nothing])?; // [T + 1, width]
        let near = self.jet(&EMBEDDING, Attrs::new(), &[rows, neighbors])?; // [T, kernel, width]
        let near = self.b.reshape(near, [tokens, columns.into()])?;
        self.jet(&LINEAR, Attrs::new(), &[near, weight, bias])
    }

    /// Rows of a constant by position: `[T, width]`.
    pub(crate) fn constant_by_position(&mut self, table: Tensor) -> Built {
        let table = self.b.constant(table);
        let positions = self.positions();
        self.b.set_label("places");
        self.jet(&EMBEDDING, Attrs::new(), &[table, positions])
    }

    /// A constant row `[1, width]` for every token of `x`: `[T, width]`.
    pub(crate) fn constant_rows(&mut self, row: Tensor, x: ValueId) -> Built {
        let row = self.b.constant(row);
        let (tokens, width) = (self.b.dim(x, 0)?, self.b.dim(row, 1)?);
        Ok(self.b.broadcast(row, [tokens, width])?)
    }

    /// Rows of a table by position: `[T, width]`.
    pub(crate) fn embed_positions(&mut self, name: &str, shape: [usize; 2]) -> Built {
        let positions = self.positions();
        self.embed(name, shape, positions)
    }

    /// Rows of a table by token type: `[T, width]`.
    pub(crate) fn embed_token_types(&mut self, name: &str, shape: [usize; 2]) -> Built {
        let b = &mut self.b;
        let types = *self.token_types.get_or_insert_with(|| input(b, inputs::TOKEN_TYPES, "T"));
        self.embed(name, shape, types)
    }

    fn embed(&mut self, name: &str, shape: [usize; 2], ids: ValueId) -> Built {
        self.b.set_label(name);
        let table = self.weights.value(&mut self.b, name, &shape)?;
        self.jet(&EMBEDDING, Attrs::new(), &[table, ids])
    }

    /// Rows of a table by relative position, those that the sequences at hand need: `[P, width]`.
    pub(crate) fn embed_relatives(&mut self, name: &str, shape: [usize; 2]) -> Built {
        let b = &mut self.b;
        let ids = *self.relatives.get_or_insert_with(|| input(b, inputs::RELATIVES, "P"));
        self.embed(name, shape, ids)
    }

    /// The token that stands for each sequence: `[R, width]`.
    pub(crate) fn pooled(&mut self, x: ValueId) -> Built {
        let b = &mut self.b;
        let pooled = *self.pooled.get_or_insert_with(|| input(b, inputs::POOLED, "R"));
        self.b.set_label("pooled");
        self.jet(&EMBEDDING, Attrs::new(), &[x, pooled])
    }

    /// The mean over the tokens of each sequence that are not hidden: `[R, width]`.
    pub(crate) fn mean(&mut self, x: ValueId) -> Built {
        // Attention that finds every key equally good.
        self.b.set_label("mean");
        let one = self.b.slice(x, 1, 0usize, 1usize)?;
        let one = self.heads(one, 1)?; // [T, 1, 1]
        let values = self.heads(x, 1)?; // [T, 1, width]
        let means = self.attention([one, one, values], 0.0, None)?; // [T, width]
        self.pooled(means)
    }

    /// `a + b`.
    pub(crate) fn add(&mut self, a: ValueId, b: ValueId) -> Built {
        self.b.set_label("residual");
        self.jet(&ADD, Attrs::new(), &[a, b])
    }

    /// The length of the last axis, which every activation of an encoder knows.
    fn width(&self, x: ValueId) -> Result<usize, ModelError> {
        let axis = self.b.last_axis(x)?;
        self.b.dim(x, axis)?.known().ok_or_else(|| {
            ModelError::Graph(cyb_ir::IrError::Operand {
                op: "width".into(),
                facts: self.b.fact(x).to_string(),
                why: "the width must be known".into(),
            })
        })
    }

    /// `x · wᵀ + bias`, with the bias where the file has one: `[..., out]`.
    pub(crate) fn linear(&mut self, x: ValueId, name: &str, out: usize) -> Built {
        self.b.set_label(name);
        let width = self.width(x)?;
        let weight = self.weights.value(&mut self.b, &format!("{name}.weight"), &[out, width])?;
        let bias = format!("{name}.bias");
        if self.weights.has(&bias) {
            let bias = self.weights.value(&mut self.b, &bias, &[out])?;
            return self.jet(&LINEAR, Attrs::new(), &[x, weight, bias]);
        }
        self.jet(&LINEAR, Attrs::new(), &[x, weight])
    }

    /// As [`Encoder::linear`], with the names of weight and bias.
    pub(crate) fn linear_of(&mut self, x: ValueId, weight: &str, bias: &str, out: usize) -> Built {
        self.unembed(x, weight, out, Some(bias))
    }

    /// The product with a table of embeddings, and a bias where one is named: `[..., rows]`.
    pub(crate) fn unembed(
        &mut self,
        x: ValueId,
        table: &str,
        rows: usize,
        bias: Option<&str>,
    ) -> Built {
        self.b.set_label(table);
        let width = self.width(x)?;
        let weight = self.weights.value(&mut self.b, table, &[rows, width])?;
        let mut given = vec![x, weight];
        if let Some(bias) = bias {
            given.push(self.weights.value(&mut self.b, bias, &[rows])?);
        }
        self.jet(&LINEAR, Attrs::new(), &given)
    }

    /// Which bias a head for words adds: the head's own, or that of its matrix `decoder`, which is the
    /// same one where the matrix is the embedding.
    pub(crate) fn words_bias<'n>(&self, tied: bool, own: &'n str, decoder: &'n str) -> &'n str {
        match self.weights.has(own) && (tied || !self.weights.has(decoder)) {
            true => own,
            false => decoder,
        }
    }

    /// Layer norm over the last axis. Checkpoints of 2019 call its vectors gamma and beta.
    pub(crate) fn layer_norm(&mut self, x: ValueId, name: &str, eps: f32) -> Built {
        self.b.set_label(name);
        let width = self.width(x)?;
        let old = self.weights.has(&format!("{name}.gamma"));
        let (weight, bias) = if old { ("gamma", "beta") } else { ("weight", "bias") };
        let weight = self.weights.value(&mut self.b, &format!("{name}.{weight}"), &[width])?;
        let bias = format!("{name}.{bias}");
        let mut given = vec![x, weight];
        if self.weights.has(&bias) {
            given.push(self.weights.value(&mut self.b, &bias, &[width])?);
        }
        self.jet(&LAYERNORM, Attrs::new().with("eps", eps), &given)
    }

    /// Root-mean-square norm over the last axis.
    pub(crate) fn rms_norm(&mut self, x: ValueId, name: &str, eps: f32) -> Built {
        self.b.set_label(name);
        let width = self.width(x)?;
        let weight = self.weights.value(&mut self.b, &format!("{name}.weight"), &[width])?;
        self.jet(&RMSNORM, Attrs::new().with("eps", eps), &[x, weight])
    }

    /// `a * b`.
    pub(crate) fn mul(&mut self, a: ValueId, b: ValueId) -> Built {
        self.jet(&MUL, Attrs::new(), &[a, b])
    }

    /// `x * value`.
    pub(crate) fn scale(&mut self, x: ValueId, value: f64) -> Built {
        let value = self.b.scalar(DType::F32, value)?;
        self.jet(&MUL, Attrs::new(), &[x, value])
    }

    pub(crate) fn activate(&mut self, x: ValueId, activation: Activation) -> Built {
        let gelu = |form: &str| (&GELU, Attrs::new().with("approximate", form));
        let (jet, attrs) = match activation {
            Activation::GeluErf => gelu("none"),
            Activation::GeluTanh => gelu("tanh"),
            Activation::GeluQuick => gelu("quick"),
            Activation::Relu => (&RELU, Attrs::new()),
            Activation::Silu => (&SILU, Attrs::new()),
            Activation::Tanh => (&TANH, Attrs::new()),
        };
        self.jet(jet, attrs, &[x])
    }

    /// Queries `[T, heads, head_dim]` times the factor of each token's sequence.
    pub(crate) fn scale_by_length(&mut self, x: ValueId) -> Built {
        let scales = match self.scales {
            Some(scales) => scales,
            None => {
                let fact = Fact::new(DType::F32, [Dim::symbol("T"), 1.into(), 1.into()]);
                *self.scales.insert(self.b.input(inputs::QUERY_SCALES, fact))
            }
        };
        self.mul(x, scales)
    }

    /// Splits `[T, heads * head_dim]` into heads: `[T, heads, head_dim]`.
    pub(crate) fn heads(&mut self, x: ValueId, heads: usize) -> Built {
        let width = self.width(x)?;
        let tokens = self.b.dim(x, 0)?;
        Ok(self.b.reshape(x, [tokens, heads.into(), (width / heads).into()])?)
    }

    /// Splits `[T, 3 * heads * head_dim]` into queries, keys and values: `[T, heads, head_dim]`.
    pub(crate) fn split_heads(
        &mut self,
        x: ValueId,
        heads: usize,
    ) -> Result<[ValueId; 3], ModelError> {
        let width = self.width(x)? / 3;
        let mut parts = [x; 3];
        for (i, part) in parts.iter_mut().enumerate() {
            let columns = self.b.slice(x, 1, i * width, width)?;
            *part = self.heads(columns, heads)?;
        }
        Ok(parts)
    }

    /// `activation(x) * gate` of the halves of `[T, 2 * width]`.
    pub(crate) fn gated(&mut self, x: ValueId, activation: Activation) -> Built {
        let width = self.width(x)? / 2;
        let (x, gate) = (self.b.slice(x, 1, 0, width)?, self.b.slice(x, 1, width, width)?);
        let x = self.activate(x, activation)?;
        self.mul(x, gate)
    }

    /// The rotary embedding for sequences of up to `length` tokens, shared by the layers.
    pub(crate) fn rope_table(
        &mut self,
        rope: &Rope,
        length: usize,
    ) -> Result<RopeTable, ModelError> {
        RopeTable::new(&mut self.b, rope, length)
    }

    /// Turns queries or keys `[T, heads, head_dim]` by their positions.
    pub(crate) fn rope(&mut self, x: ValueId, table: &RopeTable) -> Built {
        let positions = self.positions();
        table.turn(&mut self.b, x, positions)
    }

    /// Every token attends to all tokens of its sequence, or to those at most `window` away:
    /// `[T, heads, head_dim]` three times to `[T, heads * head_dim]`.
    pub(crate) fn attention(
        &mut self,
        [q, k, v]: [ValueId; 3],
        scale: f64,
        window: Option<usize>,
    ) -> Built {
        let attrs = packed(scale, window.unwrap_or(0), false);
        self.attend(&SDPA_PACKED, attrs, &[q, k, v, self.bounds, self.shown])
    }

    /// As [`Encoder::attention`] to the tokens up to itself.
    pub(crate) fn causal_attention(&mut self, [q, k, v]: [ValueId; 3], scale: f64) -> Built {
        let attrs = packed(scale, 0, true);
        self.attend(&SDPA_PACKED, attrs, &[q, k, v, self.bounds, self.shown])
    }

    /// As [`Encoder::attention`] without a window, with `bias [heads, W]` added to scores by the
    /// distance of key and query.
    pub(crate) fn attention_with_bias(
        &mut self,
        [q, k, v]: [ValueId; 3],
        scale: f64,
        bias: ValueId,
    ) -> Built {
        let attrs = packed(scale, 0, false);
        self.attend(&SDPA_PACKED, attrs, &[q, k, v, self.bounds, self.shown, bias])
    }

    /// As [`Encoder::attention`], with products of queries with the relative positions
    /// `[P, heads, head_dim]` of keys, and of keys with those of queries, added to scores.
    pub(crate) fn disentangled_attention(
        &mut self,
        [q, k, v]: [ValueId; 3],
        scale: f64,
        pos_k: Option<ValueId>,
        pos_q: Option<ValueId>,
    ) -> Built {
        let b = &mut self.b;
        let index =
            self.relative_index.get_or_insert_with(|| input(b, inputs::RELATIVE_INDEX, "W"));
        let attrs = Attrs::new()
            .with("scale", scale)
            .with("c2p", pos_k.is_some())
            .with("p2c", pos_q.is_some());
        let mut given = vec![q, k, v, self.bounds, self.shown, *index];
        given.extend(pos_k.into_iter().chain(pos_q));
        self.attend(&SDPA_DISENTANGLED, attrs, &given)
    }

    fn attend(&mut self, jet: &'static Jet, attrs: Attrs, given: &[ValueId]) -> Built {
        let y = self.jet(jet, attrs, given)?; // [T, heads, head_dim]
        let [tokens, heads, width] = [0, 1, 2].map(|axis| self.b.dim(y, axis));
        Ok(self.b.reshape(y, [tokens?, heads? * width?])?)
    }

    pub(crate) fn output(&mut self, name: &str, x: ValueId) {
        self.b.output(name, x);
    }

    /// The graph, and the tensors for another one.
    pub(crate) fn finish(mut self) -> (Graph, Weights<'a>) {
        self.weights.forget_values();
        (self.b.finish(), self.weights)
    }
}

fn packed(scale: f64, window: usize, causal: bool) -> Attrs {
    Attrs::new()
        .with("scale", scale)
        .with("window", window)
        .with("causal", causal)
        .with("softcap", 0.0)
}

fn input(b: &mut Builder, name: &str, symbol: &str) -> ValueId {
    b.input(name, Fact::new(DType::I32, [Dim::symbol(symbol)]))
}

impl<'f> Source<'f> {
    /// Builds an encoder. `part` says of a tensor's name whether it belongs to what the hidden
    /// states are computed from; such a tensor without use is an error.
    pub(crate) fn encoder(
        self,
        sizes: &Sizes,
        info: EncoderInfo,
        part: fn(&str) -> bool,
        graph: impl FnOnce(&mut Encoder<'f>) -> Result<(), ModelError>,
    ) -> Result<TextModel, ModelError> {
        let family: &'static Family = self.family;
        let mut warnings = self.keys.finish(family.name)?;
        let parameters = self.weights.parameters();
        let mut encoder = Encoder::new(self.weights);
        graph(&mut encoder)?;
        let (graph, weights) = encoder.finish();
        warnings.extend(weights.finish(family.name, part)?);
        if cfg!(debug_assertions) {
            cyb_ir::verify(&graph)?;
        }
        let summary = Summary {
            vocab_size: sizes.vocab_size,
            hidden_size: sizes.hidden_size,
            num_hidden_layers: sizes.num_hidden_layers,
            num_attention_heads: sizes.num_attention_heads,
            num_key_value_heads: sizes.num_attention_heads,
            head_dim: sizes.head_dim,
            context_length: sizes.context_length,
            parameters,
        };
        Ok(TextModel {
            family,
            summary,
            graph,
            warnings,
            encoder: Some(info),
            pictures: None,
            contrast: None,
        })
    }
}
