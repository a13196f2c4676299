//! Elementwise operations on `f32`, and softmax.

use cyb_exec::{Call, ExecError};
use cyb_ir::{Atom, Op};
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp, math};

use super::{all_f32, attrs_of};
use crate::io::{Io, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[
    Row { op: "add", name: "add_f32", supports: broadcasts, build: |b| binary(b, Binary::Add) },
    Row { op: "sub", name: "sub_f32", supports: broadcasts, build: |b| binary(b, Binary::Sub) },
    Row { op: "mul", name: "mul_f32", supports: broadcasts, build: |b| binary(b, Binary::Mul) },
    Row { op: "swiglu", name: "swiglu_f32", supports: same, build: |b| binary(b, Binary::Swiglu) },
    Row { op: "geglu", name: "geglu_f32", supports: same, build: build_geglu },
    Row { op: "silu", name: "silu_f32", supports: all_f32, build: |b| unary(b, Unary::Silu) },
    Row { op: "relu", name: "relu_f32", supports: all_f32, build: |b| unary(b, Unary::Relu) },
    Row { op: "tanh", name: "tanh_f32", supports: all_f32, build: |b| unary(b, Unary::Tanh) },
    Row {
        op: "sigmoid",
        name: "sigmoid_f32",
        supports: all_f32,
        build: |b| unary(b, Unary::Sigmoid),
    },
    Row { op: "gelu", name: "gelu_f32", supports: all_f32, build: build_gelu },
    Row { op: "softmax", name: "softmax_f32", supports: over_last, build: build_softmax },
];

/// Elements a worker takes at a time.
const UNIT: usize = 4096;

#[derive(Clone, Copy, Debug)]
enum Binary {
    Add,
    Sub,
    Mul,
    Swiglu,
    Geglu(Gelu),
}

#[derive(Clone, Copy, Debug)]
enum Unary {
    Silu,
    Relu,
    Tanh,
    Sigmoid,
    Gelu(Gelu),
}

#[derive(Clone, Copy, Debug)]
enum Gelu {
    Erf,
    Tanh,
    Quick,
}

fn gelu_form(b: &Build<'_>) -> Result<Gelu, ExecError> {
    Ok(match attrs_of(&b.node.op).text("approximate")? {
        "tanh" => Gelu::Tanh,
        "quick" => Gelu::Quick,
        _ => Gelu::Erf,
    })
}

fn build_gelu(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let form = gelu_form(b)?;
    unary(b, Unary::Gelu(form))
}

fn build_geglu(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let form = gelu_form(b)?;
    binary(b, Binary::Geglu(form))
}

fn same(call: &Call<'_>) -> bool {
    all_f32(call) && call.inputs[0].shape == call.inputs[1].shape
}

/// The left operand has the output's shape and the right one is the same, a scalar, or trails it.
fn broadcasts(call: &Call<'_>) -> bool {
    if matches!(call.op, Op::Atom(atom) if !matches!(atom, Atom::Add | Atom::Mul)) {
        return false;
    }
    let (a, b, out) = (call.inputs[0], call.inputs[1], call.outputs[0]);
    all_f32(call) && a.shape == out.shape && out.shape.ends_with(&b.shape)
}

fn binary(b: &Build<'_>, op: Binary) -> Result<Box<dyn Kernel>, ExecError> {
    Ok(Box::new(BinaryKernel { op, isa: b.isa }))
}

#[derive(Debug)]
struct BinaryKernel {
    op: Binary,
    isa: AnyIsa,
}

impl Kernel for BinaryKernel {
    fn light(&self, _inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        Some(outputs[0].elements())
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let (a, b) = (io.slice::<f32>(0), io.slice::<f32>(1));
        let out = io.output::<f32>(0);
        if b.is_empty() {
            return Ok(());
        }
        // Rows of the right operand's length; several to a unit where they are short.
        let rows = a.len() / b.len();
        let whole = b.len() == a.len();
        let unit = if whole { UNIT } else { b.len() * UNIT.div_ceil(b.len()) };
        debug_assert!(rows > 0 || a.is_empty());
        io.each(a.len().div_ceil(unit), |i| {
            let start = i * unit;
            let len = unit.min(a.len() - start);
            // SAFETY: units do not overlap and each goes to one worker.
            let out = unsafe { out.range(start, len) };
            let a = &a[start..][..len];
            if whole {
                self.isa.run(BinaryRow { op: self.op, a, b: &b[start..][..len], out });
            } else {
                for (a, out) in a.chunks(b.len()).zip(out.chunks_mut(b.len())) {
                    self.isa.run(BinaryRow { op: self.op, a, b, out });
                }
            }
        });
        Ok(())
    }
}

struct BinaryRow<'a> {
    op: Binary,
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
}

impl SimdOp for BinaryRow<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Self { op, a, b, out } = self;
        match op {
            Binary::Add => zip(s, a, b, out, |a, b| s.add(a, b)),
            Binary::Sub => zip(s, a, b, out, |a, b| s.sub(a, b)),
            Binary::Mul => zip(s, a, b, out, |a, b| s.mul(a, b)),
            Binary::Swiglu => zip(s, a, b, out, |a, b| s.mul(math::silu(s, a), b)),
            Binary::Geglu(form) => zip(s, a, b, out, |a, b| s.mul(gelu(s, a, form), b)),
        }
    }
}

#[inline(always)]
fn zip<S: Isa>(s: S, a: &[f32], b: &[f32], out: &mut [f32], f: impl Fn(S::F, S::F) -> S::F) {
    for ((a, b), out) in a.chunks(LANES).zip(b.chunks(LANES)).zip(out.chunks_mut(LANES)) {
        s.store_partial(out, f(s.load_partial(a), s.load_partial(b)));
    }
}

fn unary(b: &Build<'_>, op: Unary) -> Result<Box<dyn Kernel>, ExecError> {
    Ok(Box::new(UnaryKernel { op, isa: b.isa }))
}

#[derive(Debug)]
struct UnaryKernel {
    op: Unary,
    isa: AnyIsa,
}

impl Kernel for UnaryKernel {
    fn light(&self, _inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        Some(outputs[0].elements())
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let x = io.slice::<f32>(0);
        let out = io.output::<f32>(0);
        io.each(x.len().div_ceil(UNIT), |i| {
            let len = UNIT.min(x.len() - i * UNIT);
            // SAFETY: units do not overlap and each goes to one worker.
            let out = unsafe { out.range(i * UNIT, len) };
            self.isa.run(UnaryRow { op: self.op, x: &x[i * UNIT..][..len], out });
        });
        Ok(())
    }
}

struct UnaryRow<'a> {
    op: Unary,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl SimdOp for UnaryRow<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        for (x, out) in self.x.chunks(LANES).zip(self.out.chunks_mut(LANES)) {
            let v = s.load_partial(x);
            let y = match self.op {
                Unary::Silu => math::silu(s, v),
                // NaN stays: `max` gives its second operand where either is NaN.
                Unary::Relu => s.max(s.splat(0.0), v),
                Unary::Tanh => math::tanh(s, v),
                Unary::Sigmoid => math::sigmoid(s, v),
                Unary::Gelu(form) => gelu(s, v, form),
            };
            s.store_partial(out, y);
        }
    }
}

#[inline(always)]
fn gelu<S: Isa>(s: S, x: S::F, form: Gelu) -> S::F {
    match form {
        Gelu::Erf => math::gelu_erf(s, x),
        Gelu::Tanh => math::gelu_tanh(s, x),
        Gelu::Quick => math::gelu_quick(s, x),
    }
}

fn over_last(call: &Call<'_>) -> bool {
    let rank = call.inputs[0].rank();
    all_f32(call) && attrs_of(call.op).size("axis").is_ok_and(|axis| axis + 1 == rank)
}

fn build_softmax(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    Ok(Box::new(Softmax { isa: b.isa }))
}

#[derive(Debug)]
struct Softmax {
    isa: AnyIsa,
}

impl Kernel for Softmax {
    fn light(&self, _inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        Some(outputs[0].elements())
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let x = io.slice::<f32>(0);
        let width = io.dims(0).last().copied().unwrap_or(1);
        io.rows::<f32>(0, width, |row, out| {
            self.isa.run(SoftmaxRow { x: &x[row * width..][..width], out });
        });
        Ok(())
    }
}

struct SoftmaxRow<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
}

impl SimdOp for SoftmaxRow<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let mut top = s.splat(f32::NEG_INFINITY);
        for x in self.x.chunks(LANES) {
            top = s.max(top, s.load_padded(x, f32::NEG_INFINITY));
        }
        let top = s.splat(s.reduce_max(top));
        let mut sum = s.splat(0.0);
        for (x, out) in self.x.chunks(LANES).zip(self.out.chunks_mut(LANES)) {
            let e = math::exp(s, s.sub(s.load_padded(x, f32::NEG_INFINITY), top));
            sum = s.add(sum, e);
            s.store_partial(out, e);
        }
        let sum = s.splat(s.reduce_sum(sum));
        for out in self.out.chunks_mut(LANES) {
            let v = s.div(s.load_partial(out), sum);
            s.store_partial(out, v);
        }
    }
}
