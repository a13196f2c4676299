//! RNN, GRU and LSTM, a step at a time.

use cyb_formats::onnx::Elem;
use cyb_ir::{Attrs, Exp, ValueId};
use cyb_jets::LINEAR;
use cyb_tensor::DType;

use super::Rows;
use super::integer::product_of_codes;
use super::quantized::dynamic;
use super::shape::sizes;
use crate::context::{Context, Made, Outputs};
use crate::error::{OpError, bad};
use crate::value::X;

pub(super) static ROWS: Rows = &[
    ("RNN", |c| recurrent(c, Kind::Rnn)),
    ("GRU", |c| recurrent(c, Kind::Gru)),
    ("LSTM", |c| recurrent(c, Kind::Lstm)),
];

pub(super) static MICROSOFT: Rows = &[("DynamicQuantizeLSTM", lstm_of_codes)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Rnn,
    Gru,
    Lstm,
}

impl Kind {
    fn gates(self) -> usize {
        match self {
            Kind::Rnn => 1,
            Kind::Gru => 3,
            Kind::Lstm => 4,
        }
    }

    fn activations(self) -> &'static [&'static str] {
        match self {
            Kind::Rnn => &["Tanh"],
            Kind::Gru => &["Sigmoid", "Tanh"],
            Kind::Lstm => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

#[derive(Clone, Debug)]
struct Activation {
    name: String,
    alpha: Option<f64>,
    beta: Option<f64>,
}

impl Activation {
    fn apply(&self, c: &mut Context<'_>, x: ValueId) -> Made {
        let alpha = |default: f64| self.alpha.unwrap_or(default);
        let beta = |default: f64| self.beta.unwrap_or(default);
        match self.name.to_lowercase().as_str() {
            "sigmoid" => c.sigmoid(x),
            "tanh" => c.tanh(x),
            "relu" => c.relu(x),
            "affine" => {
                let y = c.b.scale(x, alpha(1.0))?;
                Ok(c.b.offset(y, beta(0.0))?)
            }
            "leakyrelu" | "thresholdedrelu" => {
                let leaky = self.name.eq_ignore_ascii_case("leakyrelu");
                let zero = c.scalar(x, 0.0)?;
                let edge = if leaky { zero } else { c.scalar(x, alpha(1.0))? };
                let low = if leaky { c.b.scale(x, alpha(0.01))? } else { zero };
                let above = c.b.lt(edge, x)?;
                Ok(c.b.select(above, x, low)?)
            }
            "scaledtanh" => {
                let y = c.b.scale(x, beta(1.0))?;
                let y = c.tanh(y)?;
                Ok(c.b.scale(y, alpha(1.0))?)
            }
            "hardsigmoid" => {
                let y = c.b.scale(x, alpha(0.2))?;
                let y = c.b.offset(y, beta(0.5))?;
                let (zero, one) = (c.scalar(x, 0.0)?, c.scalar(x, 1.0)?);
                let y = c.b.max(y, zero)?;
                Ok(c.b.min(y, one)?)
            }
            "elu" => {
                let zero = c.scalar(x, 0.0)?;
                let e = c.b.exp(Exp::Exp, x)?;
                let less = c.b.offset(e, -1.0)?;
                let low = c.b.scale(less, alpha(1.0))?;
                let below = c.b.lt(x, zero)?;
                Ok(c.b.select(below, low, x)?)
            }
            "softsign" => {
                let size = c.abs(x)?;
                let below = c.b.offset(size, 1.0)?;
                Ok(c.b.div(x, below)?)
            }
            "softplus" => {
                let e = c.b.exp(Exp::Exp, x)?;
                let above = c.b.offset(e, 1.0)?;
                Ok(c.b.exp(Exp::Ln, above)?)
            }
            other => bad(format!("activation {other:?} is unknown")),
        }
    }
}

/// What gates are multiplied with.
#[derive(Clone, Copy)]
enum Matrix {
    /// [gates, K]
    Plain(ValueId),
    /// Codes [K, gates], their scale and zero point: one, or one for each gate. What they meet is
    /// quantized as it comes.
    Codes { codes: ValueId, scale: ValueId, zero: X },
}

impl Matrix {
    /// That of a direction.
    fn part(&self, c: &mut Context<'_>, d: usize) -> Result<Matrix, OpError> {
        Ok(match self {
            Matrix::Plain(w) => Matrix::Plain(part(c, *w, d)?),
            Matrix::Codes { codes, scale, zero } => Matrix::Codes {
                codes: part(c, *codes, d)?,
                scale: part(c, *scale, d)?,
                zero: X { id: part(c, zero.id, d)?, ..*zero },
            },
        })
    }

    fn times(&self, c: &mut Context<'_>, x: ValueId, bias: Option<ValueId>) -> Made {
        let (codes, scale, zero) = match self {
            Matrix::Plain(w) => return linear(c, x, *w, bias),
            Matrix::Codes { codes, scale, zero } => (*codes, *scale, *zero),
        };
        let (left, left_scale, point) = dynamic(c, x)?;
        let point = X { id: point, elem: Elem::U8 };
        let sums = product_of_codes(c, left, Some(point), codes, Some(zero))?;
        let sums = c.cast(sums, DType::F32)?;
        let factor = c.mul(left_scale, scale)?;
        let y = c.b.mul(sums, factor)?;
        match bias {
            Some(bias) => Ok(c.b.add(y, bias)?),
            None => Ok(y),
        }
    }
}

/// What one direction multiplies with.
struct Cell {
    kind: Kind,
    hidden: usize,
    recurrence: Matrix,
    recurrence_bias: Option<ValueId>,
    peepholes: Option<ValueId>,
    activations: Vec<Activation>,
    clip: Option<f64>,
    linear_before_reset: bool,
    couple: bool,
}

fn linear(c: &mut Context<'_>, x: ValueId, w: ValueId, bias: Option<ValueId>) -> Made {
    if c.dtype(x) == DType::F32 && c.b.graph().tensor(w).is_some() {
        let mut inputs = vec![x, w];
        inputs.extend(bias);
        return Ok(c.b.jet(&LINEAR, Attrs::new(), &inputs)?);
    }
    let turned = c.b.permute(w, &[1, 0])?;
    let y = c.matmul(x, turned)?;
    match bias {
        Some(bias) => Ok(c.b.add(y, bias)?),
        None => Ok(y),
    }
}

/// Index 0 of the first axis `i`, known where `x` is.
fn part(c: &mut Context<'_>, x: ValueId, i: usize) -> Made {
    let mut dims = c.dims(x)?;
    if let Some(tensor) = c.b.graph().tensor(x).cloned() {
        let each = tensor.bytes().len() / dims[0].max(1);
        let Some(bytes) = tensor.bytes().slice(i * each..(i + 1) * each) else {
            return bad(format!("has no part {i}"));
        };
        dims.remove(0);
        let tensor = cyb_tensor::Tensor::new(tensor.dtype(), dims, bytes)?;
        return Ok(c.constant(&tensor));
    }
    let y = c.b.slice(x, 0, i, 1)?;
    dims.remove(0);
    c.reshape(y, &dims)
}

fn slice_last(c: &mut Context<'_>, x: ValueId, start: usize, len: usize) -> Made {
    let axis = c.rank(x) - 1;
    Ok(c.b.slice(x, axis, start, len)?)
}

impl Cell {
    fn clipped(&self, c: &mut Context<'_>, x: ValueId) -> Made {
        let Some(clip) = self.clip else { return Ok(x) };
        let (low, high) = (c.scalar(x, -clip)?, c.scalar(x, clip)?);
        let x = c.b.max(x, low)?;
        Ok(c.b.min(x, high)?)
    }

    fn activate(&self, c: &mut Context<'_>, x: ValueId, number: usize) -> Made {
        let x = self.clipped(c, x)?;
        match self.activations.get(number) {
            Some(f) => f.apply(c, x),
            None => bad("an activation is missing"),
        }
    }

    /// New hidden and cell states from the inputs' part of the gates [B, gates * H].
    fn step(
        &self,
        c: &mut Context<'_>,
        gates: ValueId,
        h: ValueId,
        cell: Option<ValueId>,
    ) -> Result<(ValueId, Option<ValueId>), OpError> {
        let n = self.hidden;
        match (self.kind, cell) {
            (Kind::Gru, _) => Ok((self.gru(c, gates, h)?, None)),
            (Kind::Lstm, Some(cell)) => {
                let recurrent = self.recurrence.times(c, h, self.recurrence_bias)?;
                let all = c.b.add(gates, recurrent)?;
                // Gates in the order input, output, forget, cell.
                let gate = |c: &mut Context<'_>, i: usize| slice_last(c, all, i * n, n);
                let peep = |c: &mut Context<'_>, i: usize, x: ValueId, cell: ValueId| -> Made {
                    let Some(p) = self.peepholes else { return Ok(x) };
                    let p = slice_last(c, p, i * n, n)?;
                    let seen = c.b.mul(cell, p)?;
                    Ok(c.b.add(x, seen)?)
                };
                let i = gate(c, 0)?;
                let i = peep(c, 0, i, cell)?;
                let i = self.activate(c, i, 0)?;
                let f = if self.couple {
                    let minus = c.neg(i)?;
                    c.b.offset(minus, 1.0)?
                } else {
                    let f = gate(c, 2)?;
                    let f = peep(c, 2, f, cell)?;
                    self.activate(c, f, 0)?
                };
                let new = gate(c, 3)?;
                let new = self.activate(c, new, 1)?;
                let (kept, added) = (c.b.mul(f, cell)?, c.b.mul(i, new)?);
                let cell = c.b.add(kept, added)?;
                let o = gate(c, 1)?;
                let o = peep(c, 1, o, cell)?;
                let o = self.activate(c, o, 0)?;
                let seen = self.activate(c, cell, 2)?;
                Ok((c.b.mul(o, seen)?, Some(cell)))
            }
            (Kind::Rnn | Kind::Lstm, _) => {
                let recurrent = self.recurrence.times(c, h, self.recurrence_bias)?;
                let all = c.b.add(gates, recurrent)?;
                Ok((self.activate(c, all, 0)?, None))
            }
        }
    }

    /// Gates in the order update, reset, hidden.
    fn gru(&self, c: &mut Context<'_>, gates: ValueId, h: ValueId) -> Made {
        let n = self.hidden;
        let both = slice_last(c, gates, 0, 2 * n)?;
        let candidate = slice_last(c, gates, 2 * n, n)?;
        let (open, new);
        if self.linear_before_reset {
            let recurrent = self.recurrence.times(c, h, self.recurrence_bias)?;
            let seen = slice_last(c, recurrent, 0, 2 * n)?;
            let sum = c.b.add(both, seen)?;
            open = self.activate(c, sum, 0)?;
            let reset = slice_last(c, open, n, n)?;
            let seen = slice_last(c, recurrent, 2 * n, n)?;
            let kept = c.b.mul(reset, seen)?;
            let sum = c.b.add(candidate, kept)?;
            new = self.activate(c, sum, 1)?;
        } else {
            let Matrix::Plain(w) = self.recurrence else { return bad("has no codes of this form") };
            let (first, last) = (c.b.slice(w, 0, 0, 2 * n)?, c.b.slice(w, 0, 2 * n, n)?);
            let bias = |c: &mut Context<'_>, from: usize, len: usize| -> Result<_, OpError> {
                match self.recurrence_bias {
                    Some(b) => Ok(Some(slice_last(c, b, from, len)?)),
                    None => Ok(None),
                }
            };
            let b = bias(c, 0, 2 * n)?;
            let seen = linear(c, h, first, b)?;
            let sum = c.b.add(both, seen)?;
            open = self.activate(c, sum, 0)?;
            let reset = slice_last(c, open, n, n)?;
            let kept = c.b.mul(reset, h)?;
            let b = bias(c, 2 * n, n)?;
            let seen = linear(c, kept, last, b)?;
            let sum = c.b.add(candidate, seen)?;
            new = self.activate(c, sum, 1)?;
        }
        let update = slice_last(c, open, 0, n)?;
        let minus = c.neg(update)?;
        let rest = c.b.offset(minus, 1.0)?;
        let (kept, added) = (c.b.mul(update, h)?, c.b.mul(rest, new)?);
        Ok(c.b.add(added, kept)?)
    }
}

fn activations(c: &Context<'_>, kind: Kind, direction: usize) -> Result<Vec<Activation>, OpError> {
    let names = c.texts("activations")?;
    let default = kind.activations();
    let (alphas, betas) = (
        c.float_list("activation_alpha")?.unwrap_or_default(),
        c.float_list("activation_beta")?.unwrap_or_default(),
    );
    let n = default.len();
    let each = (0..n).map(|i| {
        let at = direction * n + i;
        let name = names.get(at).cloned().unwrap_or_else(|| default[i].to_owned());
        Activation { name, alpha: alphas.get(at).copied(), beta: betas.get(at).copied() }
    });
    Ok(each.collect())
}

fn recurrent(c: &mut Context<'_>, kind: Kind) -> Outputs {
    let (w, r) = (c.x(1)?, c.x(2)?);
    let (wd, rd) = (c.dims(w.id)?, c.dims(r.id)?);
    let ([directions, gates, _], [_, _, hidden]) = (&wd[..], &rd[..]) else {
        return bad("W and R must have three axes");
    };
    let sizes = Sizes { directions: *directions, gates: *gates, hidden: *hidden };
    let x = c.x(0)?;
    let wide = c.wide(x.id)?;
    let dtype = c.dtype(wide);
    let (w, r) = (c.cast(w.id, dtype)?, c.cast(r.id, dtype)?);
    unrolled(c, kind, sizes, Matrix::Plain(w), Matrix::Plain(r))
}

/// An LSTM whose weights are codes [D, K, 4 * H], with scales and zero points behind the inputs of
/// an LSTM.
fn lstm_of_codes(c: &mut Context<'_>) -> Outputs {
    let (w, r) = (c.x(1)?, c.x(2)?);
    let (wd, rd) = (c.dims(w.id)?, c.dims(r.id)?);
    let ([directions, _, gates], [_, hidden, _]) = (&wd[..], &rd[..]) else {
        return bad("W and R must have three axes");
    };
    let sizes = Sizes { directions: *directions, gates: *gates, hidden: *hidden };
    let codes = |c: &mut Context<'_>, w: X, at: usize| -> Result<Matrix, OpError> {
        let scale = c.x(at)?.id;
        Ok(Matrix::Codes { codes: w.id, scale, zero: c.x(at + 1)? })
    };
    let (w, r) = (codes(c, w, 8)?, codes(c, r, 10)?);
    unrolled(c, Kind::Lstm, sizes, w, r)
}

#[derive(Clone, Copy)]
struct Sizes {
    directions: usize,
    /// Rows of all gates.
    gates: usize,
    hidden: usize,
}

fn unrolled(c: &mut Context<'_>, kind: Kind, all: Sizes, w: Matrix, r: Matrix) -> Outputs {
    let x = c.x(0)?;
    let (bias, lengths, h0) = (c.opt(3)?, c.opt(4)?, c.opt(5)?);
    let (c0, peepholes) = if kind == Kind::Lstm { (c.opt(6)?, c.opt(7)?) } else { (None, None) };
    let batch_first = c.flag("layout", false)?;
    let direction = c.text("direction", "forward")?;
    let mut source = c.wide(x.id)?;
    let dtype = c.dtype(source);
    if batch_first {
        source = c.b.permute(source, &[1, 0, 2])?;
    }
    let dims = c.dims(source)?;
    let [t, batch, width] = dims[..] else { return bad("X must have three axes") };
    let Sizes { directions, gates, hidden } = all;
    if gates != kind.gates() * hidden || (directions == 2) != (direction == "bidirectional") {
        return bad(format!(
            "W and R of {directions} directions, {gates} gates and {hidden} states do not fit the \
             direction {direction:?}"
        ));
    }
    if let Some(n) = c.opt_int("hidden_size")?
        && sizes(&[n])?[0] != hidden
    {
        return bad(format!("attribute hidden_size {n} contradicts R of {hidden}"));
    }
    let wide = |c: &mut Context<'_>, v: Option<X>| -> Result<Option<ValueId>, OpError> {
        match v {
            Some(v) => Ok(Some(c.cast(v.id, dtype)?)),
            None => Ok(None),
        }
    };
    let (bias, peepholes) = (wide(c, bias)?, wide(c, peepholes)?);
    let states = |c: &mut Context<'_>, v: Option<X>| -> Made {
        match v {
            Some(v) => {
                let v = c.cast(v.id, dtype)?;
                if batch_first { Ok(c.b.permute(v, &[1, 0, 2])?) } else { Ok(v) }
            }
            None => {
                let zeros = vec![0.0; directions * batch * hidden];
                c.numbers(dtype, vec![directions, batch, hidden], &zeros)
            }
        }
    };
    let (h0, c0) = (states(c, h0)?, states(c, c0)?);
    let (mut all, mut last_h, mut last_c) = (Vec::new(), Vec::new(), Vec::new());
    let flat = c.reshape(source, &[t * batch, width])?;
    for d in 0..directions {
        let backward = d == 1 || direction == "reverse";
        let (inputs, recurrence) = (w.part(c, d)?, r.part(c, d)?);
        let (mut input_bias, mut recurrence_bias) = (None, None);
        if let Some(bias) = bias {
            let both = part(c, bias, d)?;
            let n = kind.gates() * hidden;
            input_bias = Some(slice_last(c, both, 0, n)?);
            recurrence_bias = Some(slice_last(c, both, n, n)?);
        }
        let cell = Cell {
            kind,
            hidden,
            recurrence,
            recurrence_bias,
            peepholes: match peepholes {
                Some(p) => Some(part(c, p, d)?),
                None => None,
            },
            activations: activations(c, kind, d)?,
            clip: c.opt_float("clip")?,
            linear_before_reset: c.flag("linear_before_reset", false)?,
            couple: c.flag("input_forget", false)?,
        };
        // The inputs' part of all steps is one product.
        let gates = inputs.times(c, flat, input_bias)?;
        let gates = c.reshape(gates, &[t, batch, kind.gates() * hidden])?;
        let mut h = part(c, h0, d)?;
        let mut state = if kind == Kind::Lstm { Some(part(c, c0, d)?) } else { None };
        let mut outputs = vec![h; t];
        for i in 0..t {
            let at = if backward { t - 1 - i } else { i };
            let now = part(c, gates, at)?;
            let (new_h, new_state) = cell.step(c, now, h, state)?;
            match lengths {
                None => {
                    (h, state) = (new_h, new_state);
                    outputs[at] = h;
                }
                Some(lengths) => {
                    let lengths = c.cast(lengths.id, DType::I64)?;
                    let lengths = c.reshape(lengths, &[batch, 1])?;
                    let now = c.indices(vec![], &[at as i64])?;
                    let inside = c.b.lt(now, lengths)?;
                    let zero = c.scalar(new_h, 0.0)?;
                    outputs[at] = c.b.select(inside, new_h, zero)?;
                    h = c.b.select(inside, new_h, h)?;
                    state = match (state, new_state) {
                        (Some(old), Some(new)) => Some(c.b.select(inside, new, old)?),
                        _ => None,
                    };
                }
            }
        }
        let mut rows = Vec::new();
        for y in outputs {
            rows.push(c.reshape(y, &[1, 1, batch, hidden])?);
        }
        all.push(match rows.as_slice() {
            [] => c.numbers(dtype, vec![0, 1, batch, hidden], &[])?,
            [one] => *one,
            many => c.b.concat(many, 0)?,
        });
        last_h.push(c.b.unsqueeze(h, 0)?);
        if let Some(state) = state {
            last_c.push(c.b.unsqueeze(state, 0)?);
        }
    }
    let join = |c: &mut Context<'_>, parts: &[ValueId], axis: usize| -> Made {
        if let [one] = parts { Ok(*one) } else { Ok(c.b.concat(parts, axis)?) }
    };
    let mut y = join(c, &all, 1)?; // [T, D, B, H]
    let mut h = join(c, &last_h, 0)?; // [D, B, H]
    if batch_first {
        (y, h) = (c.b.permute(y, &[2, 0, 1, 3])?, c.b.permute(h, &[1, 0, 2])?);
    }
    let mut outputs = vec![y, h];
    if kind == Kind::Lstm {
        let state = join(c, &last_c, 0)?;
        outputs.push(if batch_first { c.b.permute(state, &[1, 0, 2])? } else { state });
    }
    let mut cast = Vec::new();
    for y in outputs {
        cast.push(c.cast(y, c.dtype(x.id))?);
    }
    c.several(&cast)
}
