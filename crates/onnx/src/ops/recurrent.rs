//! RNN, GRU and LSTM: the inputs' part of all gates as one product, and the steps as one jet.

use cyb_ir::{Attrs, Jet, ValueId};
use cyb_jets::{GRU, LINEAR, LSTM, RNN};
use cyb_tensor::{Class, DType, Tensor};

use super::Rows;
use super::shape::sizes;
use crate::context::{Context, Made, Outputs};
use crate::error::{OpError, bad};
use crate::value::X;

pub(super) static ROWS: Rows = &[
    ("RNN", |c| recurrent(c, Kind::Rnn)),
    ("GRU", |c| recurrent(c, Kind::Gru)),
    ("LSTM", |c| recurrent(c, Kind::Lstm)),
];

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

    fn jet(self) -> &'static Jet {
        match self {
            Kind::Rnn => &RNN,
            Kind::Gru => &GRU,
            Kind::Lstm => &LSTM,
        }
    }

    /// The functions of a direction where the file names none.
    fn functions(self) -> &'static [&'static str] {
        match self {
            Kind::Rnn => &["tanh"],
            Kind::Gru => &["sigmoid", "tanh"],
            Kind::Lstm => &["sigmoid", "tanh", "tanh"],
        }
    }
}

/// The functions of all directions, and their parameters.
pub(super) struct Functions {
    pub(super) names: Vec<String>,
    pub(super) alpha: Vec<f64>,
    pub(super) beta: Vec<f64>,
}

/// The functions that attributes name, or `default` for each direction. A parameter is for the next
/// function that has one.
pub(super) fn functions(
    c: &Context<'_>,
    default: &[&str],
    directions: usize,
) -> Result<Functions, OpError> {
    let mut names: Vec<String> =
        c.texts("activations")?.into_iter().map(|name| name.to_lowercase()).collect();
    let all = directions * default.len();
    if names.is_empty() {
        names = default.iter().cycle().take(all).map(|&name| name.to_owned()).collect();
    }
    if names.len() != all {
        return bad(format!("attribute activations has {} names, not {all}", names.len()));
    }
    let mut given = [c.float_list("activation_alpha")?, c.float_list("activation_beta")?]
        .map(|list| list.unwrap_or_default().into_iter());
    let (mut alpha, mut beta) = (Vec::with_capacity(all), Vec::with_capacity(all));
    for name in &names {
        let (a, b) = match name.as_str() {
            "sigmoid" | "tanh" | "relu" | "softsign" | "softplus" => (None, None),
            "affine" => (Some(1.0), Some(0.0)),
            "leakyrelu" => (Some(0.01), None),
            "thresholdedrelu" | "elu" => (Some(1.0), None),
            "scaledtanh" => (Some(1.0), Some(1.0)),
            "hardsigmoid" => (Some(0.2), Some(0.5)),
            other => return bad(format!("activation {other:?} is unknown")),
        };
        let mut next = |i: usize, default: Option<f64>| {
            default.map_or(0.0, |default| given[i].next().unwrap_or(default))
        };
        alpha.push(next(0, a));
        beta.push(next(1, b));
    }
    Ok(Functions { names, alpha, beta })
}

/// `x · wᵀ + bias`
pub(super) fn linear(c: &mut Context<'_>, x: ValueId, w: ValueId, bias: Option<ValueId>) -> Made {
    if c.dtype(x) == DType::F32 && c.b.graph().tensor(w).is_some() {
        let mut inputs = vec![x, w];
        inputs.extend(bias);
        return Ok(c.b.jet(&LINEAR, Attrs::new(), &inputs)?);
    }
    let w = c.cast(w, c.dtype(x))?;
    let turned = c.b.permute(w, &[1, 0])?;
    let y = c.matmul(x, turned)?;
    match bias {
        Some(bias) => Ok(c.b.add(y, bias)?),
        None => Ok(y),
    }
}

/// Index `i` of the first axis, known where `x` is.
pub(super) fn part(c: &mut Context<'_>, x: ValueId, i: usize) -> Made {
    let mut dims = c.dims(x)?;
    if let Some(tensor) = c.b.graph().tensor(x).cloned() {
        let each = tensor.bytes().len() / dims[0].max(1);
        let Some(bytes) = tensor.bytes().slice(i * each..(i + 1) * each) else {
            return bad(format!("has no part {i}"));
        };
        dims.remove(0);
        let tensor = Tensor::new(tensor.dtype(), dims, bytes)?;
        return Ok(c.constant(&tensor));
    }
    let y = c.b.slice(x, 0, i, 1)?;
    dims.remove(0);
    c.reshape(y, &dims)
}

/// Other dimensions, known where `x` is.
fn reshaped(c: &mut Context<'_>, x: ValueId, dims: &[usize]) -> Made {
    match c.b.graph().tensor(x).cloned() {
        Some(tensor) => {
            let tensor = Tensor::new(tensor.dtype(), dims.to_vec(), tensor.bytes().clone())?;
            Ok(c.constant(&tensor))
        }
        None => c.reshape(x, dims),
    }
}

/// Sizes of a recurrent layer.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) directions: usize,
    /// Rows of all gates.
    pub(super) gates: usize,
    pub(super) hidden: usize,
}

impl Sizes {
    /// Fails where attributes contradict the weights.
    pub(super) fn check(&self, c: &Context<'_>, of_kind: usize) -> Result<(), OpError> {
        let Sizes { directions, gates, hidden } = *self;
        let direction = c.text("direction", "forward")?;
        let both = direction == "bidirectional";
        if !both && direction != "forward" && direction != "reverse" {
            return bad(format!("attribute direction {direction:?} is unknown"));
        }
        if Some(gates) != hidden.checked_mul(of_kind) || directions != 1 + usize::from(both) {
            return bad(format!(
                "W and R of {directions} directions, {gates} gates and {hidden} states do not fit \
                 the direction {direction:?}"
            ));
        }
        if let Some(n) = c.opt_int("hidden_size")?
            && sizes(&[n])?[0] != hidden
        {
            return bad(format!("attribute hidden_size {n} contradicts R of {hidden}"));
        }
        Ok(())
    }
}

fn zeros(c: &mut Context<'_>, dtype: DType, dims: &[usize]) -> Made {
    let zero = c.b.scalar(dtype, 0.0)?;
    c.broadcast(zero, dims)
}

/// Fails unless a value has these dimensions.
fn expect(c: &Context<'_>, v: ValueId, what: &str, dims: &[usize]) -> Result<(), OpError> {
    let got = c.dims(v)?;
    if got == dims { Ok(()) } else { bad(format!("{what} must be {dims:?}, not {got:?}")) }
}

fn recurrent(c: &mut Context<'_>, kind: Kind) -> Outputs {
    let (x, w, r) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let (bias, lengths, h0) = (c.opt(3)?, c.opt(4)?, c.opt(5)?);
    let (c0, peepholes) = if kind == Kind::Lstm { (c.opt(6)?, c.opt(7)?) } else { (None, None) };
    let batch_first = c.flag("layout", false)?;
    let mut source = c.wide(x.id)?;
    let dtype = c.dtype(source);
    if batch_first {
        source = c.b.permute(source, &[1, 0, 2])?;
    }
    let [steps, batch, width] = c.dims(source)?[..] else { return bad("X must have three axes") };
    let (wd, rd) = (c.dims(w.id)?, c.dims(r.id)?);
    let (&[directions, gates, _], &[_, _, hidden]) = (&wd[..], &rd[..]) else {
        return bad("W and R must have three axes");
    };
    Sizes { directions, gates, hidden }.check(c, kind.gates())?;
    expect(c, w.id, "W", &[directions, gates, width])?;
    expect(c, r.id, "R", &[directions, gates, hidden])?;
    // Weights of 16 bits stay what they are where they meet f32.
    let weight = |c: &mut Context<'_>, w: X| -> Made {
        let known = c.b.graph().tensor(w.id).is_some();
        let as_it_is = known && dtype == DType::F32 && c.dtype(w.id).class() == Class::Float;
        if as_it_is { Ok(w.id) } else { c.cast(w.id, dtype) }
    };
    let (w, r) = (weight(c, w)?, weight(c, r)?);
    let wide = |c: &mut Context<'_>, v: Option<X>, what: &str, dims: &[usize]| {
        let Some(v) = v else { return Ok(None) };
        expect(c, v.id, what, dims)?;
        c.cast(v.id, dtype).map(Some)
    };
    let bias = wide(c, bias, "B", &[directions, 2 * gates])?;
    let peepholes = wide(c, peepholes, "P", &[directions, 3 * hidden])?;

    // Both biases are the inputs' part, but for what a GRU resets.
    let reset_late = kind == Kind::Gru && c.flag("linear_before_reset", false)?;
    let (mut input_bias, mut hidden_bias) = (None, None);
    if let Some(bias) = bias {
        let first = c.b.slice(bias, 1, 0, gates)?;
        let mut second = c.b.slice(bias, 1, gates, gates)?;
        if reset_late {
            hidden_bias = Some(c.b.slice(second, 1, 2 * hidden, hidden)?);
            let open = c.b.slice(second, 1, 0, 2 * hidden)?;
            let none = zeros(c, dtype, &[directions, hidden])?;
            second = c.b.concat(&[open, none], 1)?;
        }
        let sum = c.b.add(first, second)?;
        input_bias = Some(c.reshape(sum, &[directions * gates])?);
    }
    let Some(lines) = steps.checked_mul(batch) else {
        return bad(format!("{steps} steps of {batch} sequences are too many"));
    };
    let flat = c.reshape(source, &[lines, width])?;
    let w = reshaped(c, w, &[directions * gates, width])?;
    let all = linear(c, flat, w, input_bias)?;
    let all = c.reshape(all, &[steps, batch, directions, gates])?;

    let state = |c: &mut Context<'_>, v: Option<X>, what: &str| -> Made {
        let Some(v) = v else {
            return zeros(c, dtype, &[directions, batch, hidden]);
        };
        let mut v = c.cast(v.id, dtype)?;
        if batch_first && c.rank(v) == 3 {
            v = c.b.permute(v, &[1, 0, 2])?;
        }
        expect(c, v, what, &[directions, batch, hidden])?;
        Ok(v)
    };
    let mut inputs = vec![all, state(c, h0, "initial_h")?];
    if kind == Kind::Lstm {
        inputs.push(state(c, c0, "initial_c")?);
    }
    for d in 0..directions {
        inputs.push(part(c, r, d)?);
    }
    let functions = functions(c, kind.functions(), directions)?;
    let mut attrs = Attrs::new()
        .with("direction", c.text("direction", "forward")?.as_str())
        .with("activations", functions.names.join(" ").as_str())
        .with("alpha", functions.alpha.as_slice())
        .with("beta", functions.beta.as_slice());
    if let Some(clip) = c.opt_float("clip")? {
        attrs = attrs.with("clip", clip);
    }
    if kind == Kind::Lstm && c.flag("input_forget", false)? {
        attrs = attrs.with("input_forget", true);
    }
    if let Some(peepholes) = peepholes {
        attrs = attrs.with("peepholes", true);
        inputs.push(peepholes);
    }
    if reset_late {
        attrs = attrs.with("linear_before_reset", true);
        inputs.push(match hidden_bias {
            Some(bias) => bias,
            None => zeros(c, dtype, &[directions, hidden])?,
        });
    }
    if let Some(lengths) = lengths {
        expect(c, lengths.id, "sequence_lens", &[batch])?;
        attrs = attrs.with("lengths", true);
        inputs.push(c.cast(lengths.id, DType::I64)?);
    }
    let made = c.b.jet_outputs(kind.jet(), attrs, &inputs)?;
    c.found(kind.jet().name);
    let mut outputs = Vec::with_capacity(made.len());
    for (i, y) in made.into_iter().enumerate() {
        let y = match (batch_first, i) {
            (false, _) => y,
            (true, 0) => c.b.permute(y, &[2, 0, 1, 3])?,
            (true, _) => c.b.permute(y, &[1, 0, 2])?,
        };
        outputs.push(c.cast(y, c.dtype(x.id))?);
    }
    c.several(&outputs)
}
