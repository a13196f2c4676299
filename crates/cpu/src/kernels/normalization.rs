//! `rmsnorm` and `layernorm`: one row per unit of work.

use cyb_exec::ExecError;
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};

use super::{all_f32, attrs_of};
use crate::io::{Io, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[
    Row { op: "rmsnorm", name: "rmsnorm_f32", supports: all_f32, build: |b| build(b, false) },
    Row { op: "layernorm", name: "layernorm_f32", supports: all_f32, build: |b| build(b, true) },
];

fn build(b: &mut Build<'_>, centered: bool) -> Result<Box<dyn Kernel>, ExecError> {
    let eps = attrs_of(&b.node.op).float("eps")? as f32;
    Ok(Box::new(Normalize { eps, centered, isa: b.isa }))
}

#[derive(Debug)]
struct Normalize {
    eps: f32,
    /// Whether the mean is taken off first.
    centered: bool,
    isa: AnyIsa,
}

impl Kernel for Normalize {
    fn light(&self, _inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        Some(outputs[0].elements())
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let x = io.slice::<f32>(0);
        let width = io.dims(0).last().copied().unwrap_or(1);
        let vector = |i: usize| (io.inputs.len() > i).then(|| io.slice::<f32>(i));
        let (weight, bias) = (vector(1), vector(2));
        io.rows::<f32>(0, width, |row, out| {
            let x = &x[row * width..][..width];
            let (eps, centered) = (self.eps, self.centered);
            self.isa.run(NormalizeRow { x, weight, bias, out, eps, centered });
        });
        Ok(())
    }
}

/// One row; sums run over four vectors in turn, then in the fixed order of `reduce_sum`.
pub(crate) struct NormalizeRow<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) weight: Option<&'a [f32]>,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) out: &'a mut [f32],
    pub(crate) eps: f32,
    pub(crate) centered: bool,
}

/// The sum of `f` over a row, lane by lane in ascending order.
#[inline(always)]
fn sum<S: Isa>(s: S, x: &[f32], mut f: impl FnMut(S::F, S::F) -> S::F) -> f32 {
    let mut acc = [s.splat(0.0); 4];
    for quad in x.chunks(4 * LANES) {
        for (acc, part) in acc.iter_mut().zip(quad.chunks(LANES)) {
            *acc = f(*acc, s.load_partial(part));
        }
    }
    s.reduce_sum(s.add(s.add(acc[0], acc[1]), s.add(acc[2], acc[3])))
}

impl SimdOp for NormalizeRow<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let n = self.x.len() as f32;
        let mean = if self.centered { sum(s, self.x, |acc, v| s.add(acc, v)) / n } else { 0.0 };
        let squares = if self.centered {
            // Padding lanes must not count as -mean: the tail is summed on its own.
            let whole = self.x.len() / LANES * LANES;
            let m = s.splat(mean);
            let body = sum(s, &self.x[..whole], |acc, v| {
                let d = s.sub(v, m);
                s.fma(d, d, acc)
            });
            self.x[whole..].iter().fold(body, |acc, v| (v - mean).mul_add(v - mean, acc))
        } else {
            sum(s, self.x, |acc, v| s.fma(v, v, acc))
        };
        let scale = s.splat(1.0 / (squares / n + self.eps).sqrt());
        let mean = s.splat(mean);
        for (i, out) in self.out.chunks_mut(LANES).enumerate() {
            let at = i * LANES;
            let mut v = s.mul(s.sub(s.load_partial(&self.x[at..]), mean), scale);
            if let Some(weight) = self.weight {
                v = s.mul(v, s.load_partial(&weight[at..]));
            }
            if let Some(bias) = self.bias {
                v = s.add(v, s.load_partial(&bias[at..]));
            }
            s.store_partial(out, v);
        }
    }
}
