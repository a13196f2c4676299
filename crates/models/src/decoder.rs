//! The vocabulary in which decoder families are written: embedding, norm, projection, rotary
//! embedding, attention, gated feed-forward, heads.
//!
//! A family's layers are built in one of two layouts. For text that is continued, keys and values lie
//! in a paged cache, and the graph serves any mix of sequences at once: T tokens come in, each with
//! its position in its sequence, the pool slot where its key and value are stored, and the row of
//! the block table that lists its sequence's pool blocks; logits come out for L of them. For whole
//! sequences the graph is that of an encoder whose tokens do not look ahead: T tokens come in between
//! the bounds of R sequences, hidden states and what the head makes of them come out, and there is
//! no state. [`crate::inputs`] names the inputs.

use cyb_ir::{Attrs, Builder, Fact, Graph, Jet, ValueId};
use cyb_jets::{
    ADD, EMBEDDING, GEGLU, KV_CACHE, LINEAR, MUL, RMSNORM, ROPE, SDPA_PACKED, SDPA_PAGED, SWIGLU,
    TANH,
};
use cyb_tensor::{DType, Dim, Tensor, TensorError};

use crate::config::Config;
use crate::rope::{Rope, Style};
use crate::weights::Weights;
use crate::{GraphOptions, Head, ModelError, inputs};

type Built = Result<ValueId, ModelError>;

/// The rotary embedding as a constant of the graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeTable {
    frequencies: ValueId,
    scale: f64,
    style: Style,
}

impl RopeTable {
    /// For sequences of up to `length` tokens.
    pub(crate) fn new(
        b: &mut Builder,
        rope: &Rope,
        length: usize,
    ) -> Result<RopeTable, ModelError> {
        let turn = rope.turn(length);
        let frequencies = constant(vec![turn.frequencies.len()], &turn.frequencies)?;
        let frequencies = b.constant(frequencies);
        Ok(RopeTable { frequencies, scale: turn.scale, style: rope.style })
    }

    /// Turns queries or keys `[T, heads, head_dim]` by positions `[T]`.
    pub(crate) fn turn(&self, b: &mut Builder, x: ValueId, positions: ValueId) -> Built {
        let attrs = Attrs::new().with("style", self.style.name()).with("scale", self.scale);
        Ok(b.jet(&ROPE, attrs, &[x, positions, self.frequencies])?)
    }
}

/// How a layer attends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention {
    /// Factor on the products of queries and keys.
    pub(crate) scale: f64,
    /// Positions that a token sees, itself included, on one side; all when `None`.
    pub(crate) window: Option<usize>,
    /// Bounds the scores by `softcap * tanh(score / softcap)`; 0 for none.
    pub(crate) softcap: f64,
}

/// Activation of a gated feed-forward.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gate {
    Silu,
    GeluTanh,
}

/// Where keys and values are.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// In the pools of a cache.
    Paged { slots: ValueId, rows: ValueId, tables: ValueId },
    /// At hand: every sequence is whole.
    Packed { bounds: ValueId, shown: ValueId },
}

/// What a decoder's graph ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) head: Head,
    pub(crate) labels: usize,
    /// Whether sequences are whole, which classifiers ask for.
    pub(crate) packed: bool,
}

/// A decoder's graph while it is built.
pub(crate) struct Decoder<'a> {
    b: Builder,
    config: &'a Config,
    options: &'a GraphOptions,
    weights: Weights<'a>,
    tokens: ValueId,
    positions: ValueId,
    layout: Layout,
    logit_rows: Option<ValueId>,
    ending: Ending,
    layer: usize,
    /// Whether only the rows that logits are asked for are left.
    narrowed: bool,
    /// Bound of the logits; 0 for none.
    logit_cap: f64,
    notes: Vec<String>,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(
        config: &'a Config,
        weights: Weights<'a>,
        options: &'a GraphOptions,
        ending: Ending,
    ) -> Result<Decoder<'a>, ModelError> {
        let mut b = Builder::new();
        let mut input = |name: &str, dims: &[&str]| {
            b.input(name, Fact::new(DType::I32, dims.iter().map(|d| Dim::symbol(d))))
        };
        let tokens = input(inputs::TOKENS, &["T"]);
        let positions = input(inputs::POSITIONS, &["T"]);
        let layout = match ending.packed {
            true => Layout::Packed {
                bounds: input(inputs::BOUNDS, &["B"]),
                shown: input(inputs::SHOWN, &["T"]),
            },
            false => {
                options.check(config.head_dim)?;
                Layout::Paged {
                    slots: input(inputs::SLOTS, &["T"]),
                    rows: input(inputs::ROWS, &["T"]),
                    tables: input(inputs::TABLES, &["R", "M"]),
                }
            }
        };
        Ok(Decoder {
            b,
            config,
            options,
            weights,
            tokens,
            positions,
            layout,
            logit_rows: None,
            ending,
            layer: 0,
            narrowed: false,
            logit_cap: 0.0,
            notes: Vec::new(),
        })
    }

    /// Starts a layer: the names that follow are its own.
    pub(crate) fn start_layer(&mut self, layer: usize) {
        self.layer = layer;
    }

    /// Fails when the layer lacks one of these tensors.
    pub(crate) fn require<const K: usize>(&self, names: [&str; K]) -> Result<(), ModelError> {
        names.iter().try_for_each(|name| self.weights.rows(&self.scoped(name)).map(|_| ()))
    }

    fn scoped(&self, name: &str) -> String {
        format!("blk.{}.{name}", self.layer)
    }

    fn jet(&mut self, jet: &'static Jet, attrs: Attrs, inputs: &[ValueId]) -> Built {
        Ok(self.b.jet(jet, attrs, inputs)?)
    }

    /// The rotary embedding, computed once and shared by the layers.
    pub(crate) fn rope_table(&mut self, rope: &Rope) -> Result<RopeTable, ModelError> {
        RopeTable::new(&mut self.b, rope, self.config.served(self.options))
    }

    /// The embedding of every token: `[T, hidden]`.
    pub(crate) fn embed(&mut self) -> Built {
        self.b.set_label("token_embd");
        let table = self.embedding()?;
        self.jet(&EMBEDDING, Attrs::new(), &[table, self.tokens])
    }

    fn embedding(&mut self) -> Built {
        let shape = [self.config.vocab_size, self.config.hidden_size];
        self.weights.value(&mut self.b, "token_embd.weight", &shape)
    }

    /// `x * value`.
    pub(crate) fn scale(&mut self, x: ValueId, value: f64) -> Built {
        let value = self.b.scalar(DType::F32, value)?;
        self.jet(&MUL, Attrs::new(), &[x, value])
    }

    /// `a + b`.
    pub(crate) fn add(&mut self, a: ValueId, b: ValueId) -> Built {
        self.b.set_label(&self.scoped("residual"));
        self.jet(&ADD, Attrs::new(), &[a, b])
    }

    /// Root-mean-square norm over the last axis, with a weight of the layer.
    pub(crate) fn norm(&mut self, x: ValueId, name: &str) -> Built {
        let name = self.scoped(name);
        self.norm_named(x, &name)
    }

    fn norm_named(&mut self, x: ValueId, name: &str) -> Built {
        self.b.set_label(name);
        let width = self.width(x)?;
        let weight = self.weights.value(&mut self.b, &format!("{name}.weight"), &[width])?;
        let eps = Attrs::new().with("eps", self.config.rms_norm_eps);
        self.jet(&RMSNORM, eps, &[x, weight])
    }

    /// The length of the last axis, which every activation of a decoder knows.
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

    /// A projection of the layer, with its bias where the file has one: `[..., out]`.
    pub(crate) fn linear(&mut self, x: ValueId, name: &str, out: usize) -> Built {
        self.project(x, &self.scoped(name), out)
    }

    fn project(&mut self, x: ValueId, name: &str, out: usize) -> Built {
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

    /// A projection into heads: `[T, heads, head_dim]`.
    pub(crate) fn heads(&mut self, x: ValueId, name: &str, heads: usize) -> Built {
        let head_dim = self.config.head_dim;
        let y = self.linear(x, name, heads.saturating_mul(head_dim))?; // [T, heads * head_dim]
        let tokens = self.b.dim(y, 0)?;
        Ok(self.b.reshape(y, [tokens, heads.into(), head_dim.into()])?)
    }

    /// Turns queries or keys `[T, heads, head_dim]` by their positions.
    pub(crate) fn rope(&mut self, x: ValueId, table: &RopeTable) -> Built {
        self.b.set_label(&self.scoped("rope"));
        table.turn(&mut self.b, x, self.positions)
    }

    /// Several projections into heads from one matrix: `[T, heads[i], head_dim]`.
    pub(crate) fn fused_heads<const K: usize>(
        &mut self,
        x: ValueId,
        name: &str,
        heads: [usize; K],
    ) -> Result<[ValueId; K], ModelError> {
        let head_dim = self.config.head_dim;
        let total = heads.iter().fold(0usize, |n, &h| n.saturating_add(h));
        let y = self.heads(x, name, total)?; // [T, all heads, head_dim]
        let tokens = self.b.dim(y, 0)?;
        let mut start = 0;
        let mut out = [y; K];
        for (out, heads) in out.iter_mut().zip(heads) {
            let part = self.b.slice(y, 1, start, heads)?;
            *out = self.b.reshape(part, [tokens.clone(), heads.into(), head_dim.into()])?;
            start += heads;
        }
        Ok(out)
    }

    /// Attends over the tokens of each token's sequence up to itself, those of earlier steps, whose
    /// keys and values are in the layer's pools, included: `[T, heads * head_dim]`.
    pub(crate) fn attention(
        &mut self,
        q: ValueId, // [T, heads, head_dim]
        k: ValueId, // [T, kv_heads, head_dim]
        v: ValueId, // [T, kv_heads, head_dim]
        how: &Attention,
    ) -> Built {
        let attrs = Attrs::new().with("scale", how.scale).with("softcap", how.softcap);
        let y = match self.layout {
            Layout::Paged { slots, rows, tables } => {
                self.b.set_label(&self.scoped("kv_cache"));
                let keys = self.store("k", slots, k)?; // [N, kv_heads, head_dim]
                let values = self.store("v", slots, v)?;
                self.b.set_label(&self.scoped("attn"));
                let window = how.window.unwrap_or(0);
                let attrs = attrs.with("window", window).with("block", self.options.kv_block);
                self.jet(&SDPA_PAGED, attrs, &[q, keys, values, tables, rows, self.positions])?
            }
            // A token that sees itself alone.
            Layout::Packed { .. } if how.window == Some(1) => self.spread(v)?,
            Layout::Packed { bounds, shown } => {
                self.b.set_label(&self.scoped("attn"));
                // A window counts the token itself here, and not there.
                let window = how.window.map_or(0, |window| window - 1);
                let causal = !self.config.bidirectional;
                let attrs = attrs.with("window", window).with("causal", causal);
                self.jet(&SDPA_PACKED, attrs, &[q, k, v, bounds, shown])?
            }
        }; // [T, heads, head_dim]
        let tokens = self.b.dim(y, 0)?;
        let width = self.config.num_attention_heads.saturating_mul(self.config.head_dim);
        Ok(self.b.reshape(y, [tokens, width.into()])?)
    }

    /// `[T, kv_heads, head_dim]` for each query head.
    fn spread(&mut self, v: ValueId) -> Built {
        let (tokens, width) = (self.b.dim(v, 0)?, self.b.dim(v, 2)?);
        let (heads, groups) = (self.config.num_attention_heads, self.config.num_key_value_heads);
        let v = self.b.unsqueeze(v, 2)?;
        let each = [tokens.clone(), groups.into(), (heads / groups).into(), width.clone()];
        let v = self.b.broadcast(v, each)?;
        Ok(self.b.reshape(v, [tokens, heads.into(), width])?)
    }

    fn store(&mut self, pool: &str, slots: ValueId, new: ValueId) -> Built {
        let shape = [Dim::symbol("N"), self.b.dim(new, 1)?, self.b.dim(new, 2)?];
        let fact = Fact::new(self.options.kv_dtype, shape);
        let pool = self.b.state(&format!("{pool}.{}", self.layer), fact);
        let stored = self.jet(&KV_CACHE, Attrs::new(), &[pool, slots, new])?;
        self.b.update(pool, stored);
        Ok(stored)
    }

    /// In the last layer, past its attention, tokens no longer depend on each other: only the rows
    /// that logits are asked for go on, unless the hidden states are an output.
    pub(crate) fn narrow<const K: usize>(
        &mut self,
        xs: [ValueId; K],
    ) -> Result<[ValueId; K], ModelError> {
        let last = self.layer + 1 == self.config.num_hidden_layers;
        if !last || self.ending.packed {
            return Ok(xs);
        }
        self.narrowed = true;
        let mut out = xs;
        for x in &mut out {
            *x = self.pick(*x)?;
        }
        Ok(out)
    }

    /// The rows that logits are asked for.
    fn pick(&mut self, x: ValueId) -> Built {
        let rows = match self.logit_rows {
            Some(rows) => rows,
            None => {
                let fact = Fact::new(DType::I32, [Dim::symbol("L")]);
                *self.logit_rows.insert(self.b.input(inputs::LOGIT_ROWS, fact))
            }
        };
        self.b.set_label("logit_rows");
        self.jet(&EMBEDDING, Attrs::new(), &[x, rows])
    }

    /// Gated feed-forward: `down(gate(x) * up(x))`.
    pub(crate) fn feed_forward(&mut self, x: ValueId, gate: Gate) -> Built {
        let (inner, outer) = (self.config.intermediate_size, self.config.hidden_size);
        let g = self.linear(x, "ffn_gate", inner)?;
        let up = self.linear(x, "ffn_up", inner)?;
        self.gated(g, up, gate, outer)
    }

    /// As [`Decoder::feed_forward`], with gate and up in one matrix.
    pub(crate) fn fused_feed_forward(&mut self, x: ValueId, gate: Gate) -> Built {
        let (inner, outer) = (self.config.intermediate_size, self.config.hidden_size);
        let both = self.linear(x, "ffn_gate_up", inner.saturating_mul(2))?;
        let g = self.b.slice(both, 1, 0, inner)?;
        let up = self.b.slice(both, 1, inner, inner)?;
        self.gated(g, up, gate, outer)
    }

    fn gated(&mut self, g: ValueId, up: ValueId, gate: Gate, outer: usize) -> Built {
        self.b.set_label(&self.scoped("ffn_act"));
        let h = match gate {
            Gate::Silu => self.jet(&SWIGLU, Attrs::new(), &[g, up])?,
            Gate::GeluTanh => {
                self.jet(&GEGLU, Attrs::new().with("approximate", "tanh"), &[g, up])?
            }
        };
        self.linear(h, "ffn_down", outer)
    }

    /// Bounds the logits by `cap * tanh(logit / cap)`; 0 for none.
    pub(crate) fn cap_logits(&mut self, cap: f64) {
        self.logit_cap = cap;
    }

    /// The final norm and the head.
    pub(crate) fn head(&mut self, x: ValueId) -> Result<(), ModelError> {
        let h = self.norm_named(x, "output_norm")?; // [T, hidden]
        if self.ending.packed {
            self.b.output(inputs::LAST_HIDDEN_STATE, h);
        }
        let logits = match self.ending.head {
            // Text is continued by the embedding where there is no head.
            Head::None if self.ending.packed => return Ok(()),
            Head::None | Head::Words => self.words(h)?, // [L, vocab]
            Head::Token => self.score(h)?,              // [T, labels]
            Head::Sequence => {
                let fact = Fact::new(DType::I32, [Dim::symbol("R")]);
                let pooled = self.b.input(inputs::POOLED, fact);
                let one = self.jet(&EMBEDDING, Attrs::new(), &[h, pooled])?; // [R, hidden]
                self.score(one)? // [R, labels]
            }
        };
        self.b.output(inputs::LOGITS, logits);
        Ok(())
    }

    /// A classifier.
    fn score(&mut self, x: ValueId) -> Built {
        self.project(x, "score", self.ending.labels)
    }

    /// Logits of the vocabulary, for the rows that are asked for.
    ///
    /// The head of a GGUF file is `output.weight` where the file has it and the embedding where not,
    /// whatever the configuration says: converters write the tensors that the model was run with. A
    /// checkpoint's head is the embedding where its configuration says so, as in transformers, even
    /// if there is an `lm_head`.
    fn words(&mut self, mut h: ValueId) -> Built {
        let tied = self.weights.is_checkpoint() && self.config.tie_word_embeddings == Some(true);
        let stored = self.weights.has("output.weight");
        let separate = stored && !tied;
        if tied && stored {
            self.weights.leave("output.weight");
            self.notes.push(
                "the configuration says the output head is the embedding; lm_head is not used"
                    .to_owned(),
            );
        } else if self.config.tie_word_embeddings == Some(separate) {
            let (says, has) = if separate { ("shared", "its own") } else { ("its own", "no own") };
            self.notes.push(format!(
                "the configuration says the output head is {says}, but the file has {has} \
                 output.weight; the file decides"
            ));
        }
        let shape = [self.config.vocab_size, self.config.hidden_size];
        let table = match separate {
            true => self.weights.value(&mut self.b, "output.weight", &shape)?,
            false => self.embedding()?,
        };
        if !self.narrowed {
            h = self.pick(h)?; // [L, hidden]
        }
        self.b.set_label("output");
        let logits = self.jet(&LINEAR, Attrs::new(), &[h, table])?; // [L, vocab]
        if self.logit_cap == 0.0 {
            return Ok(logits);
        }
        let small = self.scale(logits, 1.0 / self.logit_cap)?;
        let bounded = self.jet(&TANH, Attrs::new(), &[small])?;
        self.scale(bounded, self.logit_cap)
    }

    /// The graph, its weights and what was noticed.
    pub(crate) fn finish(self) -> (Graph, Weights<'a>, Vec<String>) {
        (self.b.finish(), self.weights, self.notes)
    }
}

fn constant(shape: Vec<usize>, values: &[f32]) -> Result<Tensor, ModelError> {
    let fail = |e: TensorError| ModelError::Graph(cyb_ir::IrError::Illegal(e.to_string()));
    Tensor::from_f32(shape, values).map_err(fail)
}
