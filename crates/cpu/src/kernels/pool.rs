//! Pooling. Windows are boxes, so that rows are merged first, whole, and then the columns of the
//! merged row. A small plane under windows that move by one is merged as one long row: what lies
//! between its rows is computed too and dropped.

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

/// Elements of a plane up to which it is merged as one row; three such stay in the first-level cache.
const SMALL: usize = 2048;
/// Steps of windows up to which every column is merged and the wanted ones are picked.
const SHORT: usize = 3;

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
    fn extents(&self, lens: [usize; AXES], outs: [usize; AXES]) -> Extents {
        let [_, h, w] = self.axes;
        let (pitch, rows) = (w.extent(lens[2], outs[2]), h.extent(lens[1], outs[1]));
        let all = rows * pitch;
        let flat = lens[0] == 1 && outs[0] == 1 && self.axes[0].size == 1;
        Extents { pitch, rows, as_one: flat && h.stride == 1 && w.stride == 1 && all <= SMALL }
    }
}

/// What the windows see of a plane, the border included.
#[derive(Clone, Copy, Debug)]
struct Extents {
    pitch: usize,
    rows: usize,
    /// Whether the plane is merged as one row.
    as_one: bool,
}

impl Extents {
    /// Elements that a worker needs: the plane, its merged rows and its merged columns, or a row
    /// and its merged columns.
    fn scratch(&self) -> usize {
        match self.as_one {
            true => (3 * self.rows * self.pitch).next_multiple_of(16),
            false => (2 * self.pitch).next_multiple_of(16),
        }
    }
}

impl Axis {
    /// Elements as far as windows reach.
    fn extent(&self, input: usize, output: usize) -> usize {
        let reach = output.saturating_sub(1) * self.stride + (self.size - 1) * self.dilation + 1;
        reach.max(self.before + input)
    }

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
        let [lens, outs] = [0, 1].map(|i| spatial(&limits[i].dims[..limits[i].rank]));
        self.threads * self.extents(lens, outs).scratch() * size_of::<f32>()
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
        let extents = self.extents(lens, outs);
        let own = extents.scratch();
        // SAFETY: each worker has a part of its own.
        let scratch = unsafe { io.scratch::<M::Elem>().range(io.worker.index * own, own) };
        scratch.fill(M::NEUTRAL);
        io.rows::<M::Elem>(0, out_len, |plane, out| {
            let x = &x[plane * in_len..][..in_len];
            let scratch = &mut *scratch;
            self.isa.run(Plane::<M> { pool: self, lens, outs, extents, x, scratch, out });
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
    extents: Extents,
    x: &'a [M::Elem],
    /// Neutral wherever the border of a plane that is merged as one row lies.
    scratch: &'a mut [M::Elem],
    out: &'a mut [M::Elem],
}

/// Merges into each element of `to` those of `from` that are `apart`, `size` in all.
#[inline(always)]
fn merge_all<M: Merge>(to: &mut [M::Elem], from: &[M::Elem], size: usize, apart: usize) {
    to.fill(M::NEUTRAL);
    for k in 0..size {
        for (a, &b) in to.iter_mut().zip(&from[k * apart..]) {
            *a = M::merge(*a, b);
        }
    }
}

impl<M: Merge> SimdOp for Plane<'_, M> {
    type Output = ();

    // The loops are plain ones: compiled for the instruction set they become vectors.
    #[inline(always)]
    fn eval<S: Isa>(self, _: S) {
        match self.extents.as_one {
            true => self.in_one_row(),
            false => self.by_rows(),
        }
    }
}

impl<M: Merge> Plane<'_, M> {
    #[inline(always)]
    fn in_one_row(self) {
        let [_, h, w] = self.pool.axes;
        let ([_, _, width], [_, height, columns]) = (self.lens, self.outs);
        let Extents { pitch, rows, .. } = self.extents;
        if width == 0 || height * columns == 0 {
            return self.out.fill(M::NEUTRAL);
        }
        let (plane, rest) = self.scratch.split_at_mut(rows * pitch);
        let (tall, rest) = rest.split_at_mut(height * pitch);
        let wide = &mut rest[..(height - 1) * pitch + columns];
        let inner = plane.chunks_exact_mut(pitch).skip(h.before);
        for (row, line) in inner.zip(self.x.chunks_exact(width)) {
            row[w.before..][..width].copy_from_slice(line);
        }
        merge_all::<M>(tall, plane, h.size, h.dilation * pitch);
        merge_all::<M>(wide, tall, w.size, w.dilation);
        for (o, line) in self.out.chunks_exact_mut(columns).enumerate() {
            line.copy_from_slice(&wide[o * pitch..][..columns]);
            M::finish(self.pool, self.lens, [0, o], line);
        }
    }

    #[inline(always)]
    fn by_rows(self) {
        let [d, h, w] = self.pool.axes;
        let [_, n_rows, width] = self.lens;
        let (row, wide) = self.scratch.split_at_mut(self.extents.pitch);
        let mut out = self.out;
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
                if w.stride == 1 {
                    merge_all::<M>(line, row, w.size, w.dilation);
                } else if w.stride <= SHORT {
                    let wide = &mut wide[..line.len().saturating_sub(1) * w.stride + 1];
                    merge_all::<M>(wide, row, w.size, w.dilation);
                    for (slot, &v) in line.iter_mut().zip(wide.iter().step_by(w.stride)) {
                        *slot = v;
                    }
                } else {
                    line.fill(M::NEUTRAL);
                    for k in 0..w.size {
                        let from = row[k * w.dilation..].iter().step_by(w.stride);
                        for (a, &b) in line.iter_mut().zip(from) {
                            *a = M::merge(*a, b);
                        }
                    }
                }
                M::finish(self.pool, self.lens, [o0, o1], line);
            }
        }
    }
}
