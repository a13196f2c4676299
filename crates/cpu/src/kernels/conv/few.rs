//! Convolutions with a few outputs a channel, such as those of a model that hears one chunk of sound
//! after another: lanes are output channels, and what the windows see is written out, so that the
//! convolution is a product of a few rows. The sum of an output has the order that it has elsewhere.

use std::sync::Arc;

use cyb_exec::ExecError;
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};
use cyb_tensor::DType;

use super::{MAX_AXES, attrs_of};
use crate::activation::Activation;
use crate::io::{Io, RawTensor};
use crate::kernel::{Build, Kernel};
use crate::matmul::{Compute, Epilogue, FloatRows, Input, Output, PackedMatrix, matmul};

/// Outputs of a channel up to which positions would leave most lanes idle.
const FEW: usize = 6;
/// Channels from which products are worth a row of them.
const MANY: usize = 32;
/// Input channels that a worker writes at a time, and output channels that it moves.
const UNIT: usize = 32;

#[derive(Debug)]
pub(super) struct Few {
    weights: Arc<PackedMatrix>,
    kernel: [usize; MAX_AXES],
    strides: [usize; MAX_AXES],
    dilations: [usize; MAX_AXES],
    lead: [usize; MAX_AXES],
    channels: usize,
    activation: Activation,
    isa: AnyIsa,
}

fn widened(v: &[usize], fill: usize) -> [usize; MAX_AXES] {
    let lead = MAX_AXES - v.len();
    std::array::from_fn(|i| if i < lead { fill } else { v[i - lead] })
}

impl Few {
    /// The kernel for a call with a weight of this shape, if it is such a convolution.
    pub(super) fn build(
        b: &mut Build<'_>,
        w: &[usize],
        activation: Activation,
        slope: f32,
    ) -> Result<Option<Few>, ExecError> {
        let attrs = attrs_of(&b.node.op);
        let plain = matches!(b.node.op.name(), "conv" | "conv_activation");
        let output = &b.graph.fact(b.node.outputs[0]).shape;
        let images_and_places = output.iter().enumerate().filter(|(axis, _)| *axis != 1);
        let rows: Option<usize> = images_and_places.map(|(_, d)| d.known()).product();
        let fits = plain
            && slope == 1.0
            && attrs.size("groups")? == 1
            && w[0] >= MANY
            && rows.is_some_and(|n| n <= FEW)
            && b.compute == Compute::F32
            && b.graph.fact(b.node.inputs[1]).dtype == DType::F32;
        if !fits {
            return Ok(None);
        }
        let pads = attrs.sizes("pads")?;
        Ok(Some(Few {
            weights: b.pack(b.node.inputs[1], false)?,
            kernel: widened(&w[2..], 1),
            strides: widened(&attrs.sizes("strides")?, 1),
            dilations: widened(&attrs.sizes("dilations")?, 1),
            lead: widened(&pads[..pads.len() / 2], 0),
            channels: w[1],
            activation,
            isa: b.isa,
        }))
    }

    /// Writes what the window of the output at `place` sees of a channel.
    fn window(&self, x: &[f32], lens: [usize; MAX_AXES], place: [usize; MAX_AXES], to: &mut [f32]) {
        let at = |axis: usize, tap: usize| {
            (place[axis] * self.strides[axis] + tap * self.dilations[axis])
                .wrapping_sub(self.lead[axis])
        };
        let mut lines = to.chunks_exact_mut(self.kernel[2]);
        for kz in 0..self.kernel[0] {
            for ky in 0..self.kernel[1] {
                let Some(line) = lines.next() else { return };
                let (z, y) = (at(0, kz), at(1, ky));
                if z >= lens[0] || y >= lens[1] {
                    line.fill(0.0);
                    continue;
                }
                let row = &x[(z * lens[1] + y) * lens[2]..][..lens[2]];
                let first = at(2, 0);
                if self.dilations[2] == 1
                    && let Some(seen) = row.get(first..first.wrapping_add(line.len()))
                {
                    line.copy_from_slice(seen);
                    continue;
                }
                for (tap, slot) in line.iter_mut().enumerate() {
                    *slot = row.get(at(2, tap)).copied().unwrap_or(0.0);
                }
            }
        }
    }
}

impl Kernel for Few {
    fn reads(&self, input: usize) -> bool {
        input != 1
    }

    fn scratch(&self, limits: &[RawTensor]) -> usize {
        let y = &limits[limits.len() - 1];
        let rows = y.elements() / y.dims[1].max(1);
        rows * (self.weights.k() + self.weights.n()) * size_of::<f32>()
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let (dims, to) = (io.dims(0), io.out_dims(0));
        let (lens, outs) = (widened(&dims[2..], 1), widened(&to[2..], 1));
        let (in_len, out_len) = (lens.iter().product::<usize>(), outs.iter().product::<usize>());
        let (k, n, rows) = (self.weights.k(), self.weights.n(), to[0] * out_len);
        if rows == 0 {
            return Ok(());
        }
        let x = io.slice::<f32>(0);
        let scratch = io.scratch::<f32>();
        let chunks = self.channels.div_ceil(UNIT);
        let taps = k / self.channels;
        io.each(rows * chunks, |unit| {
            let (row, first) = (unit / chunks, unit % chunks * UNIT);
            let count = UNIT.min(self.channels - first);
            let (image, place) = (row / out_len, row % out_len);
            let place = [place / (outs[1] * outs[2]), place / outs[2] % outs[1], place % outs[2]];
            // SAFETY: units do not overlap and each goes to one worker.
            let windows = unsafe { scratch.range(row * k + first * taps, count * taps) };
            for (c, window) in windows.chunks_exact_mut(taps).enumerate() {
                let channel = image * self.channels + first + c;
                self.window(&x[channel * in_len..][..in_len], lens, place, window);
            }
        });
        io.next_phase();
        // SAFETY: the windows were written before the barrier, and nobody writes them now.
        let values = unsafe { std::slice::from_raw_parts(scratch.start().cast_const(), rows * k) };
        let input = Input::Float(FloatRows { values, stride: k, rows });
        let bias = (io.inputs.len() > 2).then(|| io.slice::<f32>(2));
        let epilogue = Epilogue { bias, ..Epilogue::default() };
        let made = scratch.start().wrapping_add(rows * k);
        // SAFETY: the rows lie behind the windows, in scratch that is this step's; every worker
        // calls this with the same arguments and a counter of its own.
        unsafe {
            let out = Output::from_raw(made, rows * n, n);
            matmul(self.isa, &self.weights, input, out, epilogue, io.worker, io.counter(1));
        }
        io.next_phase();
        // SAFETY: the product was complete at the barrier, and nobody writes it now.
        let made = unsafe { std::slice::from_raw_parts(made.cast_const(), rows * n) };
        let out = io.output::<f32>(0);
        io.each(to[0] * n.div_ceil(UNIT), |unit| {
            let (image, first) = (unit / n.div_ceil(UNIT), unit % n.div_ceil(UNIT) * UNIT);
            let count = UNIT.min(n - first);
            // SAFETY: units do not overlap and each goes to one worker.
            let to = unsafe { out.range((image * n + first) * out_len, count * out_len) };
            let from = &made[image * out_len * n + first..];
            self.isa.run(Turn { from, apart: n, activation: self.activation, out_len, count, to });
        });
        Ok(())
    }
}

/// Moves channels that lie side by side, row by row, to where they lie one after another.
struct Turn<'a> {
    from: &'a [f32],
    /// From one row to the next.
    apart: usize,
    activation: Activation,
    out_len: usize,
    count: usize,
    to: &'a mut [f32],
}

impl SimdOp for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        for place in 0..self.out_len {
            let row = &self.from[place * self.apart..][..self.count];
            for (number, part) in row.chunks(LANES).enumerate() {
                let v = self.activation.apply(s, s.load_partial(part));
                let lanes = s.to_array(v);
                for (i, lane) in lanes.iter().enumerate().take(part.len()) {
                    self.to[(number * LANES + i) * self.out_len + place] = *lane;
                }
            }
        }
    }
}
