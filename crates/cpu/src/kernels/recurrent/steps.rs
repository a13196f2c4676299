//! What a step makes of its gates' sums.

use cyb_ir::IrError;
use cyb_simd::{Isa, LANES, SimdOp, math};

use super::{GATES, Recurrent};

/// A function of a gate, with its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) enum Function {
    Sigmoid,
    Tanh,
    Relu,
    Affine(f32, f32),
    LeakyRelu(f32),
    ThresholdedRelu(f32),
    ScaledTanh(f32, f32),
    HardSigmoid(f32, f32),
    Elu(f32),
    Softsign,
    Softplus,
}

impl Function {
    pub(super) fn of(name: &str, alpha: f64, beta: f64) -> Result<Function, IrError> {
        let (alpha, beta) = (alpha as f32, beta as f32);
        Ok(match name {
            "sigmoid" => Function::Sigmoid,
            "tanh" => Function::Tanh,
            "relu" => Function::Relu,
            "affine" => Function::Affine(alpha, beta),
            "leakyrelu" => Function::LeakyRelu(alpha),
            "thresholdedrelu" => Function::ThresholdedRelu(alpha),
            "scaledtanh" => Function::ScaledTanh(alpha, beta),
            "hardsigmoid" => Function::HardSigmoid(alpha, beta),
            "elu" => Function::Elu(alpha),
            "softsign" => Function::Softsign,
            "softplus" => Function::Softplus,
            other => {
                return Err(IrError::Attr {
                    name: "activations".into(),
                    want: "names of activations",
                    got: other.to_owned(),
                });
            }
        })
    }

    #[inline(always)]
    fn apply<S: Isa>(self, s: S, x: S::F) -> S::F {
        let (zero, one) = (s.splat(0.0), s.splat(1.0));
        match self {
            Function::Sigmoid => math::sigmoid(s, x),
            Function::Tanh => math::tanh(s, x),
            Function::Relu => s.max(zero, x),
            Function::Affine(a, b) => s.add(s.mul(x, s.splat(a)), s.splat(b)),
            Function::LeakyRelu(a) => s.select_gt(x, zero, x, s.mul(x, s.splat(a))),
            Function::ThresholdedRelu(a) => s.select_gt(x, s.splat(a), x, zero),
            Function::ScaledTanh(a, b) => s.mul(math::tanh(s, s.mul(x, s.splat(b))), s.splat(a)),
            Function::HardSigmoid(a, b) => {
                s.min(one, s.max(zero, s.add(s.mul(x, s.splat(a)), s.splat(b))))
            }
            Function::Elu(a) => {
                let low = s.mul(s.sub(math::exp(s, x), one), s.splat(a));
                s.select_gt(zero, x, low, x)
            }
            Function::Softsign => s.div(x, s.add(s.abs(x), one)),
            Function::Softplus => {
                let e = math::exp(s, s.neg(s.abs(x)));
                s.add(s.max(zero, x), math::ln(s, s.add(e, one)))
            }
        }
    }
}

/// The gates of one sequence at one step: the inputs' part and the states'.
pub(super) struct One<'a> {
    pub(super) layer: &'a Recurrent,
    pub(super) d: usize,
    pub(super) gates: [&'a [f32]; GATES],
    pub(super) seen: [&'a [f32]; GATES],
}

impl One<'_> {
    /// The sum of gate `gate` at the vector from `i` on.
    #[inline(always)]
    fn sum<S: Isa>(&self, s: S, gate: usize, i: usize) -> S::F {
        s.add(load(s, self.gates[gate], i), load(s, self.seen[gate], i))
    }

    /// Function number `number` of a sum.
    #[inline(always)]
    fn apply<S: Isa>(&self, s: S, x: S::F, number: usize) -> S::F {
        let x = match self.layer.clip {
            // NaN stays: it is the second operand.
            Some(clip) => s.min(s.splat(clip), s.max(s.splat(-clip), x)),
            None => x,
        };
        self.layer.directions[self.d].functions[number].apply(s, x)
    }
}

#[inline(always)]
fn load<S: Isa>(s: S, from: &[f32], i: usize) -> S::F {
    s.load_partial(&from[i..from.len().min(i + LANES)])
}

#[inline(always)]
fn store<S: Isa>(s: S, to: &mut [f32], i: usize, v: S::F) {
    let end = to.len().min(i + LANES);
    s.store_partial(&mut to[i..end], v);
}

pub(super) struct LstmStep<'a> {
    pub(super) one: One<'a>,
    /// Of the gates input, output and forget.
    pub(super) peepholes: Option<[&'a [f32]; 3]>,
    pub(super) cell: &'a mut [f32],
    pub(super) h: &'a mut [f32],
}

impl SimdOp for LstmStep<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let LstmStep { one, peepholes, cell, h } = self;
        for i in (0..h.len()).step_by(LANES) {
            let old = load(s, cell, i);
            let mut input = one.sum(s, 0, i);
            if let Some(p) = peepholes {
                input = s.add(input, s.mul(old, load(s, p[0], i)));
            }
            let input = one.apply(s, input, 0);
            let forget = if one.layer.couple {
                s.sub(s.splat(1.0), input)
            } else {
                let mut forget = one.sum(s, 2, i);
                if let Some(p) = peepholes {
                    forget = s.add(forget, s.mul(old, load(s, p[2], i)));
                }
                one.apply(s, forget, 0)
            };
            let candidate = one.apply(s, one.sum(s, 3, i), 1);
            let new = s.add(s.mul(forget, old), s.mul(input, candidate));
            let mut output = one.sum(s, 1, i);
            if let Some(p) = peepholes {
                output = s.add(output, s.mul(new, load(s, p[1], i)));
            }
            let output = one.apply(s, output, 0);
            let shown = one.layer.directions[one.d].functions[2].apply(s, new);
            store(s, cell, i, new);
            store(s, h, i, s.mul(output, shown));
        }
    }
}

pub(super) struct RnnStep<'a> {
    pub(super) one: One<'a>,
    pub(super) h: &'a mut [f32],
}

impl SimdOp for RnnStep<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        for i in (0..self.h.len()).step_by(LANES) {
            let h = self.one.apply(s, self.one.sum(s, 0, i), 0);
            store(s, self.h, i, h);
        }
    }
}

/// The first part of a GRU's step: its open gates, and its states as reset.
pub(super) struct GruOpen<'a> {
    pub(super) one: One<'a>,
    pub(super) old: &'a [f32],
    pub(super) update: &'a mut [f32],
    pub(super) reset: &'a mut [f32],
}

impl SimdOp for GruOpen<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        for i in (0..self.old.len()).step_by(LANES) {
            let update = self.one.apply(s, self.one.sum(s, 0, i), 0);
            let reset = self.one.apply(s, self.one.sum(s, 1, i), 0);
            store(s, self.update, i, update);
            store(s, self.reset, i, s.mul(reset, load(s, self.old, i)));
        }
    }
}

/// The second part: the hidden gate, and new states.
pub(super) struct GruClose<'a> {
    pub(super) one: One<'a>,
    pub(super) update: &'a [f32],
    pub(super) old: &'a [f32],
    pub(super) h: &'a mut [f32],
}

impl SimdOp for GruClose<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        for i in (0..self.h.len()).step_by(LANES) {
            let candidate = self.one.apply(s, self.one.sum(s, 2, i), 1);
            let update = load(s, self.update, i);
            store(s, self.h, i, blend(s, update, candidate, load(s, self.old, i)));
        }
    }
}

/// A GRU's step where the product of the hidden gate is reset.
pub(super) struct GruStep<'a> {
    pub(super) one: One<'a>,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) old: &'a [f32],
    pub(super) h: &'a mut [f32],
}

impl SimdOp for GruStep<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let one = &self.one;
        for i in (0..self.h.len()).step_by(LANES) {
            let update = one.apply(s, one.sum(s, 0, i), 0);
            let reset = one.apply(s, one.sum(s, 1, i), 0);
            let mut seen = load(s, one.seen[2], i);
            if let Some(bias) = self.bias {
                seen = s.add(seen, load(s, bias, i));
            }
            let sum = s.add(load(s, one.gates[2], i), s.mul(reset, seen));
            let candidate = one.apply(s, sum, 1);
            store(s, self.h, i, blend(s, update, candidate, load(s, self.old, i)));
        }
    }
}

/// `(1 - update) * new + update * old`
#[inline(always)]
fn blend<S: Isa>(s: S, update: S::F, new: S::F, old: S::F) -> S::F {
    let rest = s.sub(s.splat(1.0), update);
    s.add(s.mul(rest, new), s.mul(update, old))
}
