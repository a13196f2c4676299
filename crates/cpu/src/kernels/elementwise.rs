//! Gated activations of two tensors, and softmax over the last axis.

use cyb_exec::{Call, ExecError};
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp, math};

use super::{all_f32, attrs_of};
use crate::io::{Io, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[
    Row { op: "swiglu", name: "swiglu_f32", supports: same, build: |b| binary(b, Binary::Swiglu) },
    Row { op: "geglu", name: "geglu_f32", supports: same, build: build_geglu },
    Row { op: "softmax", name: "softmax_f32", supports: over_last, build: build_softmax },
];

/// Elements a worker takes at a time.
const UNIT: usize = 4096;

#[derive(Clone, Copy, Debug)]
enum Binary {
    Swiglu,
    Geglu(Gelu),
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

fn build_geglu(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let form = gelu_form(b)?;
    binary(b, Binary::Geglu(form))
}

fn same(call: &Call<'_>) -> bool {
    all_f32(call) && call.inputs[0].shape == call.inputs[1].shape
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
        io.each(a.len().div_ceil(UNIT), |i| {
            let (start, len) = (i * UNIT, UNIT.min(a.len() - i * UNIT));
            // SAFETY: units do not overlap and each goes to one worker.
            let out = unsafe { out.range(start, len) };
            let (a, b) = (&a[start..][..len], &b[start..][..len]);
            self.isa.run(BinaryRow { op: self.op, a, b, out });
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
