//! An LSTM whose weights are codes, a step at a time: what it multiplies is quantized as it comes.

use cyb_formats::onnx::Elem;
use cyb_ir::{Exp, ValueId};
use cyb_tensor::DType;

use super::Rows;
use super::integer::product_of_codes;
use super::quantized::dynamic;
use super::recurrent::{Functions, Sizes, functions, part};
use crate::context::{Context, Made, Outputs};
use crate::error::{OpError, bad};
use crate::value::X;

pub(super) static MICROSOFT: Rows = &[("DynamicQuantizeLSTM", lstm_of_codes)];

/// Codes [K, gates], their scale and zero point: one, or one for each gate.
#[derive(Clone, Copy)]
struct Codes {
    codes: ValueId,
    scale: ValueId,
    zero: X,
}

impl Codes {
    fn of(c: &mut Context<'_>, w: X, at: usize) -> Result<Codes, OpError> {
        Ok(Codes { codes: w.id, scale: c.x(at)?.id, zero: c.x(at + 1)? })
    }

    /// Those of a direction.
    fn part(&self, c: &mut Context<'_>, d: usize) -> Result<Codes, OpError> {
        Ok(Codes {
            codes: part(c, self.codes, d)?,
            scale: part(c, self.scale, d)?,
            zero: X { id: part(c, self.zero.id, d)?, ..self.zero },
        })
    }

    fn times(&self, c: &mut Context<'_>, x: ValueId, bias: Option<ValueId>) -> Made {
        let (left, left_scale, point) = dynamic(c, x)?;
        let point = X { id: point, elem: Elem::U8 };
        let sums = product_of_codes(c, left, Some(point), self.codes, Some(self.zero))?;
        let sums = c.cast(sums, DType::F32)?;
        let factor = c.mul(left_scale, self.scale)?;
        let y = c.b.mul(sums, factor)?;
        match bias {
            Some(bias) => Ok(c.b.add(y, bias)?),
            None => Ok(y),
        }
    }
}

/// What a direction multiplies with.
struct Cell<'a> {
    hidden: usize,
    recurrence: Codes,
    recurrence_bias: Option<ValueId>,
    peepholes: Option<ValueId>,
    functions: &'a Functions,
    /// The first of the direction's functions.
    first: usize,
    clip: Option<f64>,
    couple: bool,
}

fn slice_last(c: &mut Context<'_>, x: ValueId, start: usize, len: usize) -> Made {
    let axis = c.rank(x) - 1;
    Ok(c.b.slice(x, axis, start, len)?)
}

fn apply(c: &mut Context<'_>, all: &Functions, number: usize, x: ValueId) -> Made {
    let (alpha, beta) = (all.alpha[number], all.beta[number]);
    match all.names[number].as_str() {
        "sigmoid" => c.sigmoid(x),
        "tanh" => c.tanh(x),
        "relu" => c.relu(x),
        "affine" => {
            let y = c.b.scale(x, alpha)?;
            Ok(c.b.offset(y, beta)?)
        }
        "leakyrelu" | "thresholdedrelu" => {
            let leaky = all.names[number] == "leakyrelu";
            let zero = c.scalar(x, 0.0)?;
            let edge = if leaky { zero } else { c.scalar(x, alpha)? };
            let low = if leaky { c.b.scale(x, alpha)? } else { zero };
            let above = c.b.lt(edge, x)?;
            Ok(c.b.select(above, x, low)?)
        }
        "scaledtanh" => {
            let y = c.b.scale(x, beta)?;
            let y = c.tanh(y)?;
            Ok(c.b.scale(y, alpha)?)
        }
        "hardsigmoid" => {
            let y = c.b.scale(x, alpha)?;
            let y = c.b.offset(y, beta)?;
            let (zero, one) = (c.scalar(x, 0.0)?, c.scalar(x, 1.0)?);
            let y = c.b.max(y, zero)?;
            Ok(c.b.min(y, one)?)
        }
        "elu" => {
            let zero = c.scalar(x, 0.0)?;
            let e = c.b.exp(Exp::Exp, x)?;
            let less = c.b.offset(e, -1.0)?;
            let low = c.b.scale(less, alpha)?;
            let below = c.b.lt(x, zero)?;
            Ok(c.b.select(below, low, x)?)
        }
        "softsign" => {
            let size = c.abs(x)?;
            let below = c.b.offset(size, 1.0)?;
            Ok(c.b.div(x, below)?)
        }
        _ => {
            let e = c.b.exp(Exp::Exp, x)?;
            let above = c.b.offset(e, 1.0)?;
            Ok(c.b.exp(Exp::Ln, above)?)
        }
    }
}

impl Cell<'_> {
    fn activate(&self, c: &mut Context<'_>, x: ValueId, number: usize) -> Made {
        let mut x = x;
        if let Some(clip) = self.clip {
            let (low, high) = (c.scalar(x, -clip)?, c.scalar(x, clip)?);
            let above = c.b.max(x, low)?;
            x = c.b.min(above, high)?;
        }
        apply(c, self.functions, self.first + number, x)
    }

    /// New hidden and cell states from the inputs' part of the gates [B, 4 * H].
    fn step(
        &self,
        c: &mut Context<'_>,
        gates: ValueId,
        h: ValueId,
        cell: ValueId,
    ) -> Result<(ValueId, ValueId), OpError> {
        let n = self.hidden;
        let recurrent = self.recurrence.times(c, h, self.recurrence_bias)?;
        let all = c.b.add(gates, recurrent)?;
        // Gates in the order input, output, forget, cell.
        let gate = |c: &mut Context<'_>, i: usize, cell: ValueId| -> Made {
            let x = slice_last(c, all, i * n, n)?;
            let Some(p) = self.peepholes else { return Ok(x) };
            let p = slice_last(c, p, i * n, n)?;
            let seen = c.b.mul(cell, p)?;
            Ok(c.b.add(x, seen)?)
        };
        let i = gate(c, 0, cell)?;
        let i = self.activate(c, i, 0)?;
        let f = if self.couple {
            let minus = c.neg(i)?;
            c.b.offset(minus, 1.0)?
        } else {
            let f = gate(c, 2, cell)?;
            self.activate(c, f, 0)?
        };
        let new = slice_last(c, all, 3 * n, n)?;
        let new = self.activate(c, new, 1)?;
        let (kept, added) = (c.b.mul(f, cell)?, c.b.mul(i, new)?);
        let cell = c.b.add(kept, added)?;
        let o = gate(c, 1, cell)?;
        let o = self.activate(c, o, 0)?;
        let seen = apply(c, self.functions, self.first + 2, cell)?;
        Ok((c.b.mul(o, seen)?, cell))
    }
}

/// An LSTM whose weights are codes [D, K, 4 * H], with scales and zero points behind the inputs of an
/// LSTM.
fn lstm_of_codes(c: &mut Context<'_>) -> Outputs {
    let (x, w, r) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let (bias, lengths, h0) = (c.opt(3)?, c.opt(4)?, c.opt(5)?);
    let (c0, peepholes) = (c.opt(6)?, c.opt(7)?);
    let (wd, rd) = (c.dims(w.id)?, c.dims(r.id)?);
    let (&[directions, _, gates], &[_, hidden, _]) = (&wd[..], &rd[..]) else {
        return bad("W and R must have three axes");
    };
    Sizes { directions, gates, hidden }.check(c, 4)?;
    let direction = c.text("direction", "forward")?;
    let source = c.wide(x.id)?;
    let dtype = c.dtype(source);
    let [t, batch, width] = c.dims(source)?[..] else { return bad("X must have three axes") };
    let wide = |c: &mut Context<'_>, v: Option<X>| -> Result<Option<ValueId>, OpError> {
        v.map(|v| c.cast(v.id, dtype)).transpose()
    };
    let (bias, peepholes) = (wide(c, bias)?, wide(c, peepholes)?);
    let states = |c: &mut Context<'_>, v: Option<X>| -> Made {
        match v {
            Some(v) => c.cast(v.id, dtype),
            None => {
                let zeros = vec![0.0; directions * batch * hidden];
                c.numbers(dtype, vec![directions, batch, hidden], &zeros)
            }
        }
    };
    let (h0, c0) = (states(c, h0)?, states(c, c0)?);
    let (w, r) = (Codes::of(c, w, 8)?, Codes::of(c, r, 10)?);
    let functions = functions(c, &["sigmoid", "tanh", "tanh"], directions)?;
    let (mut all, mut last_h, mut last_c) = (Vec::new(), Vec::new(), Vec::new());
    let flat = c.reshape(source, &[t * batch, width])?;
    for d in 0..directions {
        let backward = d == 1 || direction == "reverse";
        let (inputs, recurrence) = (w.part(c, d)?, r.part(c, d)?);
        let (mut input_bias, mut recurrence_bias) = (None, None);
        if let Some(bias) = bias {
            let both = part(c, bias, d)?;
            input_bias = Some(slice_last(c, both, 0, gates)?);
            recurrence_bias = Some(slice_last(c, both, gates, gates)?);
        }
        let cell = Cell {
            hidden,
            recurrence,
            recurrence_bias,
            peepholes: peepholes.map(|p| part(c, p, d)).transpose()?,
            functions: &functions,
            first: 3 * d,
            clip: c.opt_float("clip")?,
            couple: c.flag("input_forget", false)?,
        };
        // The inputs' part of all steps is one product.
        let gated = inputs.times(c, flat, input_bias)?;
        let gated = c.reshape(gated, &[t, batch, gates])?;
        let (mut h, mut state) = (part(c, h0, d)?, part(c, c0, d)?);
        let mut outputs = vec![h; t];
        for i in 0..t {
            let at = if backward { t - 1 - i } else { i };
            let now = part(c, gated, at)?;
            let (new_h, new_state) = cell.step(c, now, h, state)?;
            let Some(lengths) = lengths else {
                (h, state) = (new_h, new_state);
                outputs[at] = h;
                continue;
            };
            let lengths = c.cast(lengths.id, DType::I64)?;
            let lengths = c.reshape(lengths, &[batch, 1])?;
            let now = c.indices(vec![], &[at as i64])?;
            let inside = c.b.lt(now, lengths)?;
            let zero = c.scalar(new_h, 0.0)?;
            outputs[at] = c.b.select(inside, new_h, zero)?;
            h = c.b.select(inside, new_h, h)?;
            state = c.b.select(inside, new_state, state)?;
        }
        let mut rows = Vec::new();
        for y in outputs {
            rows.push(c.reshape(y, &[1, 1, batch, hidden])?);
        }
        all.push(match rows.as_slice() {
            [] => c.numbers(dtype, vec![0, 1, batch, hidden], &[])?,
            rows => join(c, rows, 0)?,
        });
        last_h.push(c.b.unsqueeze(h, 0)?);
        last_c.push(c.b.unsqueeze(state, 0)?);
    }
    let (y, h, state) = (join(c, &all, 1)?, join(c, &last_h, 0)?, join(c, &last_c, 0)?);
    let mut cast = Vec::new();
    for y in [y, h, state] {
        cast.push(c.cast(y, c.dtype(x.id))?);
    }
    c.several(&cast)
}

fn join(c: &mut Context<'_>, parts: &[ValueId], axis: usize) -> Made {
    if let [one] = parts { Ok(*one) } else { Ok(c.b.concat(parts, axis)?) }
}
