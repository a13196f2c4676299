//! `rope`: angles are computed once per token, then turn every head.

use cyb_exec::{Call, ExecError};
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
    Ok(Box::new(Rope { pairs: attrs.text("style")? == "pairs", scale }))
}

#[derive(Debug)]
struct Rope {
    /// Whether pairs are neighbours rather than half the turned width apart.
    pairs: bool,
    scale: f32,
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
            let units = unsafe { scratch.range(t * 2 * turned, 2 * turned) };
            let (cos, sin) = units.split_at_mut(turned);
            for ((c, s), f) in cos.iter_mut().zip(sin.iter_mut()).zip(frequencies) {
                let (sine, cosine) = (f64::from(positions[t] as f32 * f)).sin_cos();
                (*s, *c) = (sine as f32 * self.scale, cosine as f32 * self.scale);
            }
            for head in 0..heads {
                let at = (t * heads + head) * width;
                // SAFETY: as above.
                let out = unsafe { out.range(at, width) };
                let x = &x[at..at + width];
                if self.pairs {
                    for (i, (c, s)) in cos.iter().zip(sin.iter()).enumerate() {
                        let (a, b) = (x[2 * i], x[2 * i + 1]);
                        out[2 * i] = a * c - b * s;
                        out[2 * i + 1] = b * c + a * s;
                    }
                } else {
                    for (i, (c, s)) in cos.iter().zip(sin.iter()).enumerate() {
                        let (a, b) = (x[i], x[i + turned]);
                        out[i] = a * c - b * s;
                        out[i + turned] = b * c + a * s;
                    }
                }
                out[2 * turned..].copy_from_slice(&x[2 * turned..]);
            }
        });
        Ok(())
    }
}
