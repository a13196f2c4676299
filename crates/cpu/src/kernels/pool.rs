//! Pooling. Windows are boxes, so that rows are merged first, whole, and then the columns of the
//! merged row.

use cyb_exec::{Call, ExecError};
use cyb_simd::{AnyIsa, Isa, SimdOp};

use super::{all_f32, attrs_of};
use crate::io::{Io, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[
    Row { op: "max_pool", name: "max_pool_f32", supports: all_floats, build: |b| build(b, None) },
    Row { op: "average_pool", name: "average_pool_f32", supports: all_floats, build: average },
];

/// Spatial axes; shorter shapes have leading axes of length 1.
const AXES: usize = 3;

fn all_floats(call: &Call<'_>) -> bool {
    all_f32(call)
}

/// What an average counts.
#[derive(Clone, Copy, Debug)]
struct Counted {
    include_pad: bool,
}

#[derive(Clone, Copy, Debug)]
struct Axis {
    size: usize,
    stride: usize,
    dilation: usize,
    before: usize,
    after: usize,
}

#[derive(Debug)]
struct Pool {
    axes: [Axis; AXES],
    /// For averages.
    counted: Option<Counted>,
    isa: AnyIsa,
    threads: usize,
}

fn average(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let include_pad = attrs_of(&b.node.op).flag("include_pad")?;
    build(b, Some(Counted { include_pad }))
}

fn build(b: &mut Build<'_>, counted: Option<Counted>) -> Result<Box<dyn Kernel>, ExecError> {
    let attrs = attrs_of(&b.node.op);
    let [kernel, strides, dilations, pads] =
        ["kernel", "strides", "dilations", "pads"].map(|name| attrs.sizes(name));
    let (kernel, strides, dilations, pads) = (kernel?, strides?, dilations?, pads?);
    let mut axes = [Axis { size: 1, stride: 1, dilation: 1, before: 0, after: 0 }; AXES];
    let lead = AXES - kernel.len();
    for (i, axis) in axes[lead..].iter_mut().enumerate() {
        *axis = Axis {
            size: kernel[i],
            stride: strides[i],
            dilation: dilations[i],
            before: pads[i],
            after: pads[kernel.len() + i],
        };
    }
    Ok(Box::new(Pool { axes, counted, isa: b.isa, threads: b.team.count() }))
}

fn spatial(dims: &[usize]) -> [usize; AXES] {
    let mut wide = [1; AXES];
    let lead = AXES - (dims.len() - 2);
    wide[lead..].copy_from_slice(&dims[2..]);
    wide
}

impl Pool {
    /// Columns of a merged row with the neutral elements around it: as far as windows reach.
    fn row_len(&self, input: usize, output: usize) -> usize {
        let axis = &self.axes[2];
        let reach = output.saturating_sub(1) * axis.stride + (axis.size - 1) * axis.dilation + 1;
        reach.max(axis.before + input)
    }
}

impl Axis {
    /// How many elements of the window of output `o` count.
    fn count(&self, o: usize, len: usize, include_pad: bool) -> usize {
        let inside = |at: usize| match include_pad {
            true => at < self.before + len + self.after,
            false => at >= self.before && at < self.before + len,
        };
        (0..self.size).filter(|k| inside(o * self.stride + k * self.dilation)).count()
    }

    /// The inputs of the window of output `o`.
    fn inputs(self, o: usize, len: usize) -> impl Iterator<Item = usize> {
        (0..self.size)
            .map(move |k| (o * self.stride + k * self.dilation).wrapping_sub(self.before))
            .filter(move |&i| i < len)
    }
}

impl Kernel for Pool {
    fn scratch(&self, limits: &[RawTensor]) -> usize {
        let (x, y) = (&limits[0], &limits[1]);
        let len = self.row_len(x.dims[x.rank - 1], y.dims[y.rank - 1]);
        self.threads * len.next_multiple_of(16) * size_of::<f32>()
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let x = io.slice::<f32>(0);
        let (lens, outs) = (spatial(io.dims(0)), spatial(io.out_dims(0)));
        let (in_len, out_len) = (lens.iter().product::<usize>(), outs.iter().product::<usize>());
        let row_len = self.row_len(lens[2], outs[2]);
        let start = io.worker.index * row_len.next_multiple_of(16);
        // SAFETY: each worker has a row of its own.
        let row = unsafe { io.scratch::<f32>().range(start, row_len) };
        io.rows::<f32>(0, out_len, |plane, out| {
            let x = &x[plane * in_len..][..in_len];
            self.isa.run(Plane { pool: self, lens, outs, x, row: &mut *row, out });
        });
        Ok(())
    }
}

struct Plane<'a> {
    pool: &'a Pool,
    lens: [usize; AXES],
    outs: [usize; AXES],
    x: &'a [f32],
    row: &'a mut [f32],
    out: &'a mut [f32],
}

impl SimdOp for Plane<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, _: S) {
        // The loops below are plain ones: compiled for the instruction set they become vectors.
        match self.pool.counted {
            None => self.merge(f32::NEG_INFINITY, greater),
            Some(_) => self.merge(0.0, |a, b| a + b),
        }
    }
}

/// The greater one; NaN if either is.
#[inline(always)]
fn greater(a: f32, b: f32) -> f32 {
    if b > a || b.is_nan() { b } else { a }
}

impl Plane<'_> {
    #[inline(always)]
    fn merge(self, neutral: f32, merge: impl Fn(f32, f32) -> f32) {
        let [d, h, w] = self.pool.axes;
        let [_, n_rows, width] = self.lens;
        let (row, mut out) = (self.row, self.out);
        for o0 in 0..self.outs[0] {
            for o1 in 0..self.outs[1] {
                row.fill(neutral);
                let middle = &mut row[w.before..][..width];
                for i0 in d.inputs(o0, self.lens[0]) {
                    for i1 in h.inputs(o1, n_rows) {
                        let line = &self.x[(i0 * n_rows + i1) * width..][..width];
                        for (a, &b) in middle.iter_mut().zip(line) {
                            *a = merge(*a, b);
                        }
                    }
                }
                let (line, rest) = out.split_at_mut(self.outs[2]);
                out = rest;
                line.fill(neutral);
                for k in 0..w.size {
                    let from = &row[k * w.dilation..];
                    if w.stride == 1 {
                        for (a, &b) in line.iter_mut().zip(from) {
                            *a = merge(*a, b);
                        }
                    } else {
                        for (a, &b) in line.iter_mut().zip(from.iter().step_by(w.stride)) {
                            *a = merge(*a, b);
                        }
                    }
                }
                if let Some(Counted { include_pad }) = self.pool.counted {
                    let outer =
                        d.count(o0, self.lens[0], include_pad) * h.count(o1, n_rows, include_pad);
                    for (o2, slot) in line.iter_mut().enumerate() {
                        *slot /= (outer * w.count(o2, width, include_pad)) as f32;
                    }
                }
            }
        }
    }
}
