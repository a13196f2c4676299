//! A model as a function of named tensors, with the names of the reference implementation.

use cyb_models::{Head, Positions};
use cyb_tensor::{DType, Tensor};
use indexmap::IndexMap;

use crate::encoder::{Outputs, Sequence, Wanted};
use crate::stepper::StepLimits;
use crate::{Error, LoadOptions, Model, Purpose, Runtime, SamplingParams, score};

/// What [`Model::forward`] takes of a model that was loaded to write text, for people.
pub const TENSOR_INPUTS: &str = "input_ids [batch, tokens] and attention_mask [batch, tokens] \
                                 (optional, default all 1), integers; loaded for whole sequences \
                                 position_ids too";

/// What [`Model::forward`] gives of it, for people.
pub const TENSOR_OUTPUTS: &str = "logits [batch, tokens, vocabulary], float32";

/// What [`Model::forward`] takes of whole sequences, for people.
pub const ENCODER_INPUTS: &str = "input_ids [batch, tokens], attention_mask [batch, tokens] \
                                  (optional, default all 1), token_type_ids [batch, tokens] \
                                  (optional, default all 0) and position_ids [batch, tokens] or \
                                  [1, tokens] (optional, default as the model counts), integers";

/// What [`Model::forward`] gives of whole sequences, for people.
pub const ENCODER_OUTPUTS: &str = "last_hidden_state [batch, tokens, hidden], pooler_output \
                                   [batch, hidden] where the model has a pooler, and logits of its \
                                   head: [batch, labels], [batch, tokens, labels] or [batch, \
                                   tokens, vocabulary], float32";

/// The batch that named tensors describe.
struct Batch {
    shape: [usize; 2],
    ids: Vec<u32>,
    /// Token types, where they are given.
    types: Vec<u32>,
    /// Whether each token counts.
    shown: Vec<bool>,
    /// The position of each token, where they are given.
    positions: Vec<u32>,
}

/// What an encoder gives for a batch, row by row.
#[derive(Clone, Debug, Default)]
pub(crate) struct TowerOutputs {
    pub(crate) rows: usize,
    pub(crate) tokens: usize,
    pub(crate) hidden_size: usize,
    /// Numbers of a vector in the space that towers share; 0 without one.
    pub(crate) width: usize,
    pub(crate) labels: usize,
    /// Whether logits are those of tokens.
    pub(crate) per_token: bool,
    /// Whether vectors are a further output of the model, not its pooled one.
    pub(crate) projected: bool,
    pub(crate) hidden: Vec<f32>,
    pub(crate) pooled: Vec<f32>,
    pub(crate) logits: Vec<f32>,
    pub(crate) embeds: Vec<f32>,
}

impl TowerOutputs {
    /// Adds a row.
    pub(crate) fn push(&mut self, out: &Outputs<'_>) {
        self.rows += 1;
        self.hidden.extend(out.hidden);
        if !out.pooled.is_empty() {
            // Rows without tokens may have come before.
            self.pooled.resize((self.rows - 1) * out.pooled.len(), 0.0);
            self.pooled.extend(out.pooled);
        }
        self.logits.extend(out.logits);
        self.embeds.extend(out.embeds);
    }

    /// Adds a row of zeros.
    fn push_nothing(&mut self) {
        self.rows += 1;
        let logits = self.labels * if self.per_token { self.tokens } else { 1 };
        let grow = |values: &mut Vec<f32>, by: usize| values.resize(values.len() + by, 0.0);
        grow(&mut self.hidden, self.tokens * self.hidden_size);
        grow(&mut self.logits, logits);
        grow(&mut self.embeds, self.width);
    }

    /// The outputs of a model that is this encoder alone, which calls its vectors `embeds`.
    pub(crate) fn alone(
        mut self,
        embeds: &str,
        outputs: &mut IndexMap<String, Tensor>,
    ) -> Result<(), Error> {
        let TowerOutputs { rows, tokens, hidden_size, width, labels, .. } = self;
        let mut put = |name: &str, shape: Vec<usize>, values: &[f32]| {
            outputs.insert(name.to_owned(), tensor(shape, values)?);
            Ok::<_, Error>(())
        };
        if labels > 0 {
            let shape =
                if self.per_token { vec![rows, tokens, labels] } else { vec![rows, labels] };
            put("logits", shape, &self.logits)?;
            // They may be as large as a model.
            self.logits = Vec::new();
        }
        if self.projected {
            put(embeds, vec![rows, width], &self.embeds)?;
        }
        put("last_hidden_state", vec![rows, tokens, hidden_size], &self.hidden)?;
        if !self.pooled.is_empty() && !self.projected {
            let mut pooled = self.pooled;
            let width = pooled.len() / self.rows.max(1);
            pooled.resize(rows * width, 0.0);
            put("pooler_output", vec![rows, width], &pooled)?;
        }
        Ok(())
    }
}

/// A tensor of floats.
pub(crate) fn tensor(shape: Vec<usize>, values: &[f32]) -> Result<Tensor, Error> {
    Tensor::from_f32(shape, values)
        .map_err(|problem| Error::Value { what: "output", why: problem.to_string() })
}

/// The numbers of a tensor of floats.
pub(crate) fn numbers(tensor: &Tensor) -> Option<Vec<f32>> {
    match tensor.dtype() {
        DType::F64 => {
            let wide = tensor.to_vec::<f64>(DType::F64).ok()?;
            Some(wide.into_iter().map(|v| v as f32).collect())
        }
        DType::F32 | DType::F16 | DType::BF16 => {
            let mut values = vec![0.0; tensor.elems()];
            let bytes = tensor.bytes().as_slice();
            cyb_tensor::quant::decode(tensor.dtype(), bytes, &mut values).ok()?;
            Some(values)
        }
        _ => None,
    }
}

impl Model {
    /// Runs whole sequences through the model once: [`ENCODER_INPUTS`] to [`ENCODER_OUTPUTS`]. A
    /// decoder that was loaded to write text takes [`TENSOR_INPUTS`] to [`TENSOR_OUTPUTS`]. What is
    /// given where `attention_mask` is 0 means nothing.
    ///
    /// # Errors
    /// A tensor is missing, unknown, or of the wrong type, rank or size; the error lists what is
    /// expected.
    pub fn forward(
        &self,
        inputs: &IndexMap<String, Tensor>,
    ) -> Result<IndexMap<String, Tensor>, Error> {
        if let Some(tower) = self.pictures() {
            return self.forward_towers(tower, inputs);
        }
        let batch = self.read_batch(inputs)?;
        if self.encoder().is_some() {
            return self.forward_encoder(&batch);
        }
        self.forward_steps(&batch)
    }

    /// Through the steps that text is written with, row by row.
    fn forward_steps(&self, batch: &Batch) -> Result<IndexMap<String, Tensor>, Error> {
        let [n_rows, n_tokens] = batch.shape;
        let vocab = self.vocab_size();
        let mut logits = vec![0.0; batch.ids.len() * vocab];
        let (chunk, block) = (self.config().chunk(), self.kv_block());
        let blocks = n_tokens.div_ceil(block).max(1);
        let mut stepper = self.stepper(StepLimits {
            tokens: n_tokens.clamp(1, chunk),
            sequences: 1,
            blocks,
            logits: 1,
            slots: blocks * block,
        })?;
        for row in 0..n_rows {
            let first = row * n_tokens;
            // Tokens that do not count are left out.
            let there: Vec<usize> = (0..n_tokens).filter(|i| batch.shown[first + i]).collect();
            if there.windows(2).any(|two| two[0] + 1 != two[1]) {
                let why = format!(
                    "row {row} has a gap between ones; load the model for whole sequences \
                     (LoadOptions.purpose)"
                );
                return Err(input_error("attention_mask", why));
            }
            let ids: Vec<u32> = there.iter().map(|&i| batch.ids[first + i]).collect();
            let cancel = &self.config().cancel;
            score::run(&mut stepper, &ids, 0, chunk, block, cancel, &mut |s, at, n| {
                for i in 0..n {
                    let place = first + there[at + i];
                    logits[place * vocab..][..vocab].copy_from_slice(score::logits(s, i)?);
                }
                Ok(())
            })?;
        }
        let logits = tensor(vec![n_rows, n_tokens, vocab], &logits)?;
        Ok(IndexMap::from_iter([("logits".to_owned(), logits)]))
    }

    fn forward_encoder(&self, batch: &Batch) -> Result<IndexMap<String, Tensor>, Error> {
        let mut outputs = IndexMap::new();
        self.run_batch(batch)?.alone("text_embeds", &mut outputs)?;
        Ok(outputs)
    }

    /// What a tower for texts gives.
    pub(crate) fn text_outputs(
        &self,
        inputs: &IndexMap<String, Tensor>,
    ) -> Result<TowerOutputs, Error> {
        self.run_batch(&self.read_batch(inputs)?)
    }

    fn run_batch(&self, batch: &Batch) -> Result<TowerOutputs, Error> {
        let (info, runner) = self.encoder().ok_or(Error::Poisoned)?;
        let [n_rows, n_tokens] = batch.shape;
        let of = |row: usize| row * n_tokens..(row + 1) * n_tokens;
        // A row without tokens has no result.
        let rows: Vec<usize> =
            (0..n_rows).filter(|&r| batch.shown[of(r)].contains(&true)).collect();
        let sequences: Vec<Sequence> = rows
            .iter()
            .map(|&row| Sequence {
                ids: batch.ids[of(row)].to_vec(),
                types: batch.types.get(of(row)).map_or(vec![0; n_tokens], <[u32]>::to_vec),
                shown: batch.shown[of(row)].to_vec(),
                positions: batch.positions.get(of(row)).map_or(Vec::new(), <[u32]>::to_vec),
                ..Sequence::default()
            })
            .collect();
        let labels = match info.head {
            Head::Words => self.vocab_size(),
            Head::None => 0,
            Head::Sequence | Head::Token => info.labels.len(),
        };
        let mut outputs = TowerOutputs {
            tokens: n_tokens,
            hidden_size: self.summary().hidden_size,
            width: info.embeds,
            labels,
            per_token: matches!(info.head, Head::Token | Head::Words),
            projected: info.embeds > 0 && info.fill.is_none(),
            ..TowerOutputs::default()
        };
        let wanted =
            Wanted { hidden: true, pooled: true, logits: labels > 0, embeds: info.embeds > 0 };
        let mut runner = runner.lock().map_err(|_| Error::Poisoned)?;
        runner.run(&sequences, info, wanted, &self.config().cancel, &mut |i, out| {
            while outputs.rows < rows[i] {
                outputs.push_nothing();
            }
            outputs.push(&out);
            Ok(())
        })?;
        while outputs.rows < n_rows {
            outputs.push_nothing();
        }
        Ok(outputs)
    }

    /// Continues every row of `input_ids` by `n` tokens, each the most probable one; nothing stops
    /// it earlier. Gives `[batch, n]` ids.
    ///
    /// # Errors
    /// As [`Model::forward`], or the tokens do not fit the context.
    pub fn generate_greedy(
        &self,
        inputs: &IndexMap<String, Tensor>,
        n: usize,
    ) -> Result<Tensor, Error> {
        let batch = self.read_batch(inputs)?;
        let [n_rows, n_tokens] = batch.shape;
        let mut made: Vec<i64> = Vec::with_capacity(n_rows * n);
        for row in 0..n_rows {
            // Positions count the tokens that are there, so the others may as well not be.
            let own = row * n_tokens..(row + 1) * n_tokens;
            let there = batch.ids[own.clone()].iter().zip(&batch.shown[own]);
            let ids: Vec<u32> = there.filter(|(_, shown)| **shown).map(|(&id, _)| id).collect();
            made.extend(self.continue_greedily(&ids, n)?.into_iter().map(i64::from));
        }
        Tensor::from_elems(DType::I64, vec![n_rows, n], &made)
            .map_err(|problem| Error::Value { what: "output", why: problem.to_string() })
    }

    fn continue_greedily(&self, ids: &[u32], n: usize) -> Result<Vec<u32>, Error> {
        if ids.is_empty() {
            return Err(input_error("input_ids", "a row has no tokens".to_owned()));
        }
        let max_tokens = u32::try_from(n).ok();
        let params = SamplingParams { temperature: 0.0, max_tokens, ..SamplingParams::neutral() };
        // The last token is made and not read, so it needs no place.
        let read = ids.len().saturating_add(n.saturating_sub(1));
        let context = self.context_for(read, Some(0))?.max(read + usize::from(n > 0));
        if n == 0 {
            return Ok(Vec::new());
        }
        let seq = self.submit_endless(ids.to_vec(), params, context)?;
        let mut made = Vec::with_capacity(n);
        let result = loop {
            match self.next_event(seq) {
                Ok(Some(cyb_engine::Event::Token { token, .. })) => made.push(token),
                Ok(Some(cyb_engine::Event::Finished {
                    reason: cyb_engine::FinishReason::Failed(error),
                    ..
                })) => break Err(error.into()),
                Ok(_) => break Ok(made),
                Err(error) => break Err(error),
            }
        };
        self.end(seq, None);
        result
    }

    /// Logits of every position of a sequence: `[tokens, vocabulary]`, row by row.
    ///
    /// # Errors
    /// The sequence has no tokens, does not fit the context, or has unknown tokens.
    pub fn logits(&self, ids: &[u32]) -> Result<Vec<f32>, Error> {
        let ids: Vec<i64> = ids.iter().map(|&id| i64::from(id)).collect();
        let tensor = Tensor::from_elems(DType::I64, vec![1, ids.len()], &ids)
            .map_err(|problem| Error::Value { what: "ids", why: problem.to_string() })?;
        let outputs = self.forward(&IndexMap::from_iter([("input_ids".to_owned(), tensor)]))?;
        let logits = outputs.get("logits").map(Tensor::to_f32_vec);
        logits
            .unwrap_or(Ok(Vec::new()))
            .map_err(|problem| Error::Value { what: "logits", why: problem.to_string() })
    }

    fn read_batch(&self, inputs: &IndexMap<String, Tensor>) -> Result<Batch, Error> {
        let types = self.encoder().map(|(info, _)| info.token_types);
        let positioned = match self.encoder() {
            Some((_, runner)) => runner.lock().map_err(|_| Error::Poisoned)?.takes_positions(),
            None => false,
        };
        let expected = if types.is_some() { ENCODER_INPUTS } else { TENSOR_INPUTS };
        let input_error =
            |name: &str, why: String| Error::Input { name: name.to_owned(), why, expected };
        let known = |name: &str| {
            matches!(name, "input_ids" | "attention_mask")
                || (name == "position_ids" && positioned)
                || (name == "token_type_ids" && types.is_some())
        };
        if let Some(name) = inputs.keys().find(|name| !known(name)) {
            return Err(input_error(name, "the model takes no such input".to_owned()));
        }
        let tensor = inputs
            .get("input_ids")
            .ok_or_else(|| input_error("input_ids", "it is missing".to_owned()))?;
        let [n_rows, n_tokens] = tensor.shape() else {
            return Err(input_error("input_ids", format!("its shape is {:?}", tensor.shape())));
        };
        let shape = [*n_rows, *n_tokens];
        if shape.contains(&0) {
            return Err(input_error(
                "input_ids",
                format!("its shape is {shape:?}: there are no tokens"),
            ));
        }
        if shape[1] > self.context_length() {
            let remedy = String::new();
            return Err(Error::ContextTooSmall {
                prompt: shape[1],
                context: self.context_length(),
                remedy,
            });
        }
        let vocab = self.vocab_size();
        let ids = integers("input_ids", tensor)?
            .into_iter()
            .map(|id| match u32::try_from(id) {
                Ok(id) if (id as usize) < vocab => Ok(id),
                _ => Err(input_error(
                    "input_ids",
                    format!("{id} is no token of a vocabulary of {vocab}"),
                )),
            })
            .collect::<Result<Vec<u32>, Error>>()?;
        let shown = match inputs.get("attention_mask") {
            None => vec![true; ids.len()],
            Some(mask) if mask.shape() != shape => {
                let why = format!("its shape is {:?}, but input_ids has {shape:?}", mask.shape());
                return Err(input_error("attention_mask", why));
            }
            Some(mask) => integers("attention_mask", mask)?.into_iter().map(|m| m != 0).collect(),
        };
        let types = match (inputs.get("token_type_ids"), types) {
            (Some(given), Some(kinds)) => {
                const NAME: &str = "token_type_ids";
                if given.shape() != shape {
                    let why =
                        format!("its shape is {:?}, but input_ids has {shape:?}", given.shape());
                    return Err(input_error(NAME, why));
                }
                let kind = |id: i64| match u32::try_from(id) {
                    Ok(id) if (id as usize) < kinds.max(1) => Ok(id),
                    _ => Err(input_error(NAME, format!("{id} is not below {}", kinds.max(1)))),
                };
                integers(NAME, given)?.into_iter().map(kind).collect::<Result<_, _>>()?
            }
            _ => Vec::new(),
        };
        let positions = match inputs.get("position_ids") {
            None => Vec::new(),
            Some(given) => self.read_positions(given, shape, &input_error)?,
        };
        Ok(Batch { shape, ids, types, shown, positions })
    }
}

impl Runtime {
    /// Loads a model by path or name and continues as [`Model::generate_greedy`]. A model with two
    /// sets of rotary frequencies (long rope) changes to the second where a text outgrows the first,
    /// as the reference does.
    ///
    /// # Errors
    /// As there, or the model cannot be loaded.
    pub fn generate_greedy(
        &self,
        name: &str,
        inputs: &IndexMap<String, Tensor>,
        n: usize,
    ) -> Result<Tensor, Error> {
        let load = |context| {
            let (without_template, purpose) = (true, Purpose::Text);
            self.load_with(name, LoadOptions { purpose, context, without_template })
        };
        let configured = self.config().context;
        let model = load(configured)?;
        let tokens = inputs.get("input_ids").and_then(|ids| ids.shape().last().copied());
        let tokens = tokens.unwrap_or(0);
        let (all, short) = (tokens.saturating_add(n).saturating_sub(1), model.context_length());
        if all <= short || configured.is_some() {
            return model.generate_greedy(inputs, n);
        }
        // Where this is no such model there is nothing longer, and the error says so.
        let long = match load(Some(all)) {
            Ok(long) => long,
            Err(_) => return model.generate_greedy(inputs, n),
        };
        // The token behind a text of `short` tokens is still the first set's.
        let first = (short + 1).saturating_sub(tokens).min(n);
        if first == 0 {
            return long.generate_greedy(inputs, n);
        }
        let begun = model.generate_greedy(inputs, first)?;
        let rest = long.generate_greedy(&model.appended(inputs, &begun)?, n - first)?;
        joined(&begun, &rest)
    }
}

/// Rows of integers side by side.
fn joined(left: &Tensor, right: &Tensor) -> Result<Tensor, Error> {
    let (a, b) = (integers("input_ids", left)?, integers("input_ids", right)?);
    let (&[rows, n], &[_, m]) = (left.shape(), right.shape()) else { return Ok(left.clone()) };
    let row = |i: usize| a[i * n..][..n].iter().chain(&b[i * m..][..m]).copied();
    let all: Vec<i64> = (0..rows).flat_map(row).collect();
    Tensor::from_elems(DType::I64, vec![rows, n + m], &all)
        .map_err(|problem| Error::Value { what: "output", why: problem.to_string() })
}

impl Model {
    /// The inputs with tokens behind each row.
    fn appended(
        &self,
        inputs: &IndexMap<String, Tensor>,
        more: &Tensor,
    ) -> Result<IndexMap<String, Tensor>, Error> {
        let Batch { shape, ids, shown, .. } = self.read_batch(inputs)?;
        let as_tensor = |values: Vec<i64>| {
            Tensor::from_elems(DType::I64, shape.to_vec(), &values)
                .map_err(|problem| Error::Value { what: "input", why: problem.to_string() })
        };
        let ids = as_tensor(ids.into_iter().map(i64::from).collect())?;
        let mask = as_tensor(shown.into_iter().map(i64::from).collect())?;
        let ones = Tensor::from_elems(DType::I64, more.shape().to_vec(), &vec![1i64; more.elems()])
            .map_err(|problem| Error::Value { what: "input", why: problem.to_string() })?;
        Ok(IndexMap::from_iter([
            ("input_ids".to_owned(), joined(&ids, more)?),
            ("attention_mask".to_owned(), joined(&mask, &ones)?),
        ]))
    }

    /// Positions of tokens, one row for all or one for each.
    fn read_positions(
        &self,
        given: &Tensor,
        [n_rows, n_tokens]: [usize; 2],
        input_error: &dyn Fn(&str, String) -> Error,
    ) -> Result<Vec<u32>, Error> {
        const NAME: &str = "position_ids";
        let rows = match given.shape() {
            &[rows, tokens] if tokens == n_tokens && (rows == 1 || rows == n_rows) => rows,
            shape => {
                let why =
                    format!("its shape is {shape:?}, but input_ids has {n_rows} x {n_tokens}");
                return Err(input_error(NAME, why));
            }
        };
        // Positions of some models begin behind their padding.
        let limit = match self.encoder().map(|(info, _)| info.positions) {
            Some(Positions::PastPadding(pad)) => self.context_length() + pad as usize + 1,
            Some(Positions::Counted) | None => self.context_length(),
        };
        let position = |id: i64| match u32::try_from(id) {
            Ok(id) if (id as usize) < limit => Ok(id),
            _ => Err(input_error(NAME, format!("{id} is not below {limit}"))),
        };
        let one = integers(NAME, given)?.into_iter().map(position);
        let one = one.collect::<Result<Vec<u32>, Error>>()?;
        Ok(one.repeat(if rows == 1 { n_rows } else { 1 }))
    }
}

pub(crate) fn integers(name: &str, tensor: &Tensor) -> Result<Vec<i64>, Error> {
    let wrong = || input_error(name, format!("its type is {}", tensor.dtype()));
    let wide = match tensor.dtype() {
        DType::I64 => tensor.to_vec::<i64>(DType::I64),
        DType::I32 => tensor.to_vec::<i32>(DType::I32).map(widen),
        DType::U32 => tensor.to_vec::<u32>(DType::U32).map(widen),
        DType::I16 => tensor.to_vec::<i16>(DType::I16).map(widen),
        DType::U8 => tensor.to_vec::<u8>(DType::U8).map(widen),
        DType::I8 => tensor.to_vec::<i8>(DType::I8).map(widen),
        DType::Bool => tensor.to_vec::<u8>(DType::Bool).map(widen),
        _ => return Err(wrong()),
    };
    wide.map_err(|_| wrong())
}

fn widen<T: Into<i64>>(values: Vec<T>) -> Vec<i64> {
    values.into_iter().map(Into::into).collect()
}

fn input_error(name: &str, why: String) -> Error {
    Error::Input { name: name.to_owned(), why, expected: TENSOR_INPUTS }
}
