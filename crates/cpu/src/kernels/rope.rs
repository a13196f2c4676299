//! `rope`: angles are computed once per token, then turn every head.

use cyb_exec::{Call, ExecError};
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp, math};
use cyb_tensor::DType;

use super::attrs_of;
use crate::io::{Io, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[Row { op: "rope", name: "rope_f32", supports, build }];

fn supports(call: &Call<'_>) -> bool {
    call.inputs[0].dtype == DType::F32
        && call.inputs[1].dtype == DType::I32
        && call.inputs[2].dtype == DType::F32
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let attrs = attrs_of(&b.node.op);
    let scale = attrs.float("scale")? as f32;
    Ok(Box::new(Rope { pairs: attrs.text("style")? == "pairs", scale, isa: b.isa }))
}

#[derive(Debug)]
struct Rope {
    /// Whether pairs are neighbours rather than half the turned width apart.
    pairs: bool,
    scale: f32,
    isa: AnyIsa,
}

impl Kernel for Rope {
    fn light(&self, _inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        Some(outputs[0].elements())
    }

    fn scratch(&self, limits: &[RawTensor]) -> usize {
        let (tokens, turned) = (limits[1].dims[0], limits[2].dims[0]);
        tokens * 2 * turned * size_of::<f32>()
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let (x, positions, frequencies) =
            (io.slice::<f32>(0), io.slice::<i32>(1), io.slice::<f32>(2));
        let [tokens, heads, width] = [io.dims(0)[0], io.dims(0)[1], io.dims(0)[2]];
        let turned = frequencies.len();
        let out = io.output::<f32>(0);
        let scratch = io.scratch::<f32>();
        io.each(tokens, |t| {
            // SAFETY: a token's scratch and output go to the worker that has the token.
            let (units, out) = unsafe {
                (
                    scratch.range(t * 2 * turned, 2 * turned),
                    out.range(t * heads * width, heads * width),
                )
            };
            let (cos, sin) = units.split_at_mut(turned);
            let x = &x[t * heads * width..][..heads * width];
            let (rope, position) = (self, positions[t] as f32);
            self.isa.run(Token { rope, position, frequencies, cos, sin, x, width, out });
        });
        Ok(())
    }
}

/// All heads of a token.
struct Token<'a> {
    rope: &'a Rope,
    position: f32,
    frequencies: &'a [f32],
    cos: &'a mut [f32],
    sin: &'a mut [f32],
    x: &'a [f32],
    width: usize,
    out: &'a mut [f32],
}

impl SimdOp for Token<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Token { rope, position, frequencies, cos, sin, x, width, out } = self;
        let turned = frequencies.len();
        let scale = s.splat(rope.scale);
        let units = cos.chunks_mut(LANES).zip(sin.chunks_mut(LANES));
        for ((cos, sin), frequencies) in units.zip(frequencies.chunks(LANES)) {
            let angles = s.mul(s.splat(position), s.load_partial(frequencies));
            let (c, n) = if s.reduce_max(s.abs(angles)) <= math::LARGEST_ANGLE {
                (math::cos(s, angles), math::sin(s, angles))
            } else {
                far_units(s, angles)
            };
            s.store_partial(cos, s.mul(c, scale));
            s.store_partial(sin, s.mul(n, scale));
        }
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            if rope.pairs {
                for (i, (c, n)) in cos.iter().zip(sin.iter()).enumerate() {
                    let (a, b) = (x[2 * i], x[2 * i + 1]);
                    out[2 * i] = a * c - b * n;
                    out[2 * i + 1] = b * c + a * n;
                }
            } else {
                let (first, second) = x[..2 * turned].split_at(turned);
                let (low, high) = out[..2 * turned].split_at_mut(turned);
                let units = cos.chunks(LANES).zip(sin.chunks(LANES));
                let x = first.chunks(LANES).zip(second.chunks(LANES));
                let out = low.chunks_mut(LANES).zip(high.chunks_mut(LANES));
                for (((c, n), (a, b)), (low, high)) in units.zip(x).zip(out) {
                    let (c, n) = (s.load_partial(c), s.load_partial(n));
                    let (a, b) = (s.load_partial(a), s.load_partial(b));
                    s.store_partial(low, s.sub(s.mul(a, c), s.mul(b, n)));
                    s.store_partial(high, s.add(s.mul(b, c), s.mul(a, n)));
                }
            }
            out[2 * turned..].copy_from_slice(&x[2 * turned..]);
        }
    }
}

/// Cosine and sine of angles beyond what vectors are accurate for.
#[inline(always)]
fn far_units<S: Isa>(s: S, angles: S::F) -> (S::F, S::F) {
    let (mut cos, mut sin) = ([0.0; LANES], [0.0; LANES]);
    let angles = s.to_array(angles);
    for ((cos, sin), angle) in cos.iter_mut().zip(&mut sin).zip(angles) {
        let (n, c) = f64::from(angle).sin_cos();
        (*cos, *sin) = (c as f32, n as f32);
    }
    (s.load_partial(&cos), s.load_partial(&sin))
}
