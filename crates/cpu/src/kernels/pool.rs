//! Pooling. Windows are boxes, so that rows are merged first, whole, and then the columns of the
//! merged row.

use cyb_exec::{Call, ExecError};
use cyb_simd::{AnyIsa, Isa, SimdOp};
use cyb_tensor::DType;

use super::{all_f32, attrs_of};
use crate::io::{Element, Io, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[
    Row { op: "max_pool", name: "max_pool", supports: maximum_fits, build: |b| build(b, None) },
    Row { op: "average_pool", name: "average_pool_f32", supports: all_f32, build: average },
];

/// Spatial axes; shorter shapes have leading axes of length 1.
const AXES: usize = 3;

fn maximum_fits(call: &Call<'_>) -> bool {
    matches!(call.inputs[0].dtype, DType::F32 | DType::U8 | DType::I8)
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
        match (self.counted, io.inputs[0].dtype) {
            (Some(_), _) => self.planes::<Mean>(io),
            (None, DType::U8) => self.planes::<Greatest<u8>>(io),
            (None, DType::I8) => self.planes::<Greatest<i8>>(io),
            (None, _) => self.planes::<Greatest<f32>>(io),
        }
        Ok(())
    }
}

impl Pool {
    fn planes<M: Merge>(&self, io: &Io<'_>) {
        let x = io.slice::<M::Elem>(0);
        let (lens, outs) = (spatial(io.dims(0)), spatial(io.out_dims(0)));
        let (in_len, out_len) = (lens.iter().product::<usize>(), outs.iter().product::<usize>());
        let row_len = self.row_len(lens[2], outs[2]);
        let start = io.worker.index * row_len.next_multiple_of(16);
        // SAFETY: each worker has a row of its own.
        let row = unsafe { io.scratch::<M::Elem>().range(start, row_len) };
        io.rows::<M::Elem>(0, out_len, |plane, out| {
            let x = &x[plane * in_len..][..in_len];
            self.isa.run(Plane::<M> { pool: self, lens, outs, x, row: &mut *row, out });
        });
    }
}

/// How the elements of a window become one.
trait Merge {
    type Elem: Element;
    /// What changes no result.
    const NEUTRAL: Self::Elem;

    fn merge(a: Self::Elem, b: Self::Elem) -> Self::Elem;

    /// Completes the row of outputs at `place` on the leading axes.
    fn finish(_pool: &Pool, _lens: [usize; AXES], _place: [usize; 2], _line: &mut [Self::Elem]) {}
}

/// The greatest; NaN if any is.
struct Greatest<T>(std::marker::PhantomData<T>);

macro_rules! greatest {
    ($ty:ty, $least:expr, |$a:ident, $b:ident| $is_greater:expr) => {
        impl Merge for Greatest<$ty> {
            type Elem = $ty;
            const NEUTRAL: $ty = $least;

            #[inline(always)]
            fn merge($a: $ty, $b: $ty) -> $ty {
                if $is_greater { $b } else { $a }
            }
        }
    };
}

greatest!(f32, f32::NEG_INFINITY, |a, b| b > a || b.is_nan());
greatest!(u8, u8::MIN, |a, b| b > a);
greatest!(i8, i8::MIN, |a, b| b > a);

struct Mean;

impl Merge for Mean {
    type Elem = f32;
    const NEUTRAL: f32 = 0.0;

    #[inline(always)]
    fn merge(a: f32, b: f32) -> f32 {
        a + b
    }

    #[inline(always)]
    fn finish(pool: &Pool, lens: [usize; AXES], place: [usize; 2], line: &mut [f32]) {
        let Some(Counted { include_pad }) = pool.counted else { return };
        let count = |axis: usize, o: usize| pool.axes[axis].count(o, lens[axis], include_pad);
        let outer = count(0, place[0]) * count(1, place[1]);
        for (o, slot) in line.iter_mut().enumerate() {
            *slot /= (outer * count(2, o)) as f32;
        }
    }
}

struct Plane<'a, M: Merge> {
    pool: &'a Pool,
    lens: [usize; AXES],
    outs: [usize; AXES],
    x: &'a [M::Elem],
    row: &'a mut [M::Elem],
    out: &'a mut [M::Elem],
}

impl<M: Merge> SimdOp for Plane<'_, M> {
    type Output = ();

    // The loops are plain ones: compiled for the instruction set they become vectors.
    #[inline(always)]
    fn eval<S: Isa>(self, _: S) {
        let [d, h, w] = self.pool.axes;
        let [_, n_rows, width] = self.lens;
        let (row, mut out) = (self.row, self.out);
        for o0 in 0..self.outs[0] {
            for o1 in 0..self.outs[1] {
                row.fill(M::NEUTRAL);
                let middle = &mut row[w.before..][..width];
                for i0 in d.inputs(o0, self.lens[0]) {
                    for i1 in h.inputs(o1, n_rows) {
                        let line = &self.x[(i0 * n_rows + i1) * width..][..width];
                        for (a, &b) in middle.iter_mut().zip(line) {
                            *a = M::merge(*a, b);
                        }
                    }
                }
                let (line, rest) = out.split_at_mut(self.outs[2]);
                out = rest;
                line.fill(M::NEUTRAL);
                for k in 0..w.size {
                    let from = &row[k * w.dilation..];
                    if w.stride == 1 {
                        for (a, &b) in line.iter_mut().zip(from) {
                            *a = M::merge(*a, b);
                        }
                    } else {
                        for (a, &b) in line.iter_mut().zip(from.iter().step_by(w.stride)) {
                            *a = M::merge(*a, b);
                        }
                    }
                }
                M::finish(self.pool, self.lens, [o0, o1], line);
            }
        }
    }
}
