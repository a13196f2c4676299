//! Resampling, axis by axis: each output is a weighted sum of a few inputs along the axis, or the
//! nearest input on all axes.

use cyb_exec::{Call, ExecError};
use cyb_ir::{Attr, Attrs};
use cyb_simd::{AnyIsa, Isa, SimdOp};
use cyb_tensor::DType;

use super::{all_f32, attrs_of};
use crate::io::{Io, MAX_RANK, PHASES, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[
    Row { op: "resize", name: "resize_nearest", supports: nearest_fits, build },
    Row { op: "resize", name: "resize_f32", supports: fits, build },
];

/// Most inputs of an output along one axis.
const MAX_TAPS: usize = 4;
/// Elements a worker takes at a time.
const UNIT: usize = 4096;

/// The tables take one phase, each axis one more.
fn fits(call: &Call<'_>) -> bool {
    let axes = attrs_of(call.op).sizes("axes").map_or(0, |axes| axes.len());
    all_f32(call) && (1..PHASES).contains(&axes)
}

fn nearest_fits(call: &Call<'_>) -> bool {
    let mode = attrs_of(call.op).text("mode").is_ok_and(|mode| mode == "nearest");
    mode && matches!(call.inputs[0].dtype, DType::F32 | DType::U8 | DType::I8)
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Nearest(Rounding),
    Linear,
    Cubic(f64),
}

#[derive(Clone, Copy, Debug)]
enum Rounding {
    Floor,
    Ceil,
    PreferFloor,
    PreferCeil,
}

#[derive(Clone, Copy, Debug)]
enum Coordinates {
    HalfPixel,
    PytorchHalfPixel,
    HalfPixelSymmetric,
    Asymmetric,
    AlignCorners,
}

#[derive(Debug)]
struct Resize {
    mode: Mode,
    coordinates: Coordinates,
    axes: Vec<usize>,
    /// Where they are given; else the ratio of the lengths.
    scales: Option<Vec<f64>>,
    isa: AnyIsa,
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let attrs: Attrs = attrs_of(&b.node.op);
    let mode = match attrs.text("mode")? {
        "nearest" => Mode::Nearest(match attrs.text("rounding")? {
            "floor" => Rounding::Floor,
            "ceil" => Rounding::Ceil,
            "prefer_ceil" => Rounding::PreferCeil,
            _ => Rounding::PreferFloor,
        }),
        "linear" => Mode::Linear,
        _ => Mode::Cubic(attrs.float("cubic")?),
    };
    let coordinates = match attrs.text("coordinates")? {
        "half_pixel" => Coordinates::HalfPixel,
        "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
        "half_pixel_symmetric" => Coordinates::HalfPixelSymmetric,
        "asymmetric" => Coordinates::Asymmetric,
        _ => Coordinates::AlignCorners,
    };
    let scales = match attrs.get("scales") {
        Some(Attr::Floats(scales)) => Some(scales.iter().map(|s| s.get()).collect()),
        _ => None,
    };
    let resize = Resize { mode, coordinates, axes: attrs.sizes("axes")?, scales, isa: b.isa };
    Ok(match resize.mode {
        Mode::Nearest(_) => Box::new(Nearest(resize)),
        Mode::Linear | Mode::Cubic(_) => Box::new(resize),
    })
}

/// One pass: an axis of `from` elements becomes one of `to`, with `outer` rows of them before and
/// `inner` elements after it.
#[derive(Clone, Copy, Debug)]
struct Pass {
    from: usize,
    to: usize,
    outer: usize,
    inner: usize,
    scale: f64,
    /// Where in the scratch its indices and weights lie, in elements.
    table: usize,
}

impl Resize {
    fn taps(&self) -> usize {
        match self.mode {
            Mode::Nearest(_) => 1,
            Mode::Linear => 2,
            Mode::Cubic(_) => MAX_TAPS,
        }
    }

    fn passes<'a>(&'a self, x: &'a [usize], y: &'a [usize]) -> impl Iterator<Item = Pass> + 'a {
        let mut table = 0;
        self.axes.iter().enumerate().map(move |(number, &axis)| {
            // Axes before this one in the list have their new length already.
            let len = |a: usize| if self.axes[..number].contains(&a) { y[a] } else { x[a] };
            let start = table;
            table += y[axis] * self.taps();
            let scale = match &self.scales {
                Some(scales) => scales[number],
                None => y[axis] as f64 / x[axis] as f64,
            };
            Pass {
                from: x[axis],
                to: y[axis],
                outer: (0..axis).map(len).product(),
                inner: (axis + 1..x.len()).map(len).product(),
                scale,
                table: start,
            }
        })
    }

    /// Elements of a table of indices (and of one of weights), and of the largest intermediate.
    fn sizes(&self, x: &[usize], y: &[usize]) -> (usize, usize) {
        let tables = self.axes.iter().map(|&a| y[a] * self.taps()).sum::<usize>();
        let largest = self.passes(x, y).map(|p| p.outer * p.to * p.inner).max().unwrap_or(0);
        (tables.next_multiple_of(16), largest.next_multiple_of(16))
    }

    /// The position of output `o` in the input.
    fn position(&self, pass: &Pass, o: usize) -> f64 {
        let (o, scale) = (o as f64, pass.scale);
        let (from, to) = (pass.from as f64, pass.to as f64);
        let half_pixel = (o + 0.5) / scale - 0.5;
        match self.coordinates {
            Coordinates::HalfPixel => half_pixel,
            Coordinates::PytorchHalfPixel if pass.to == 1 => 0.0,
            Coordinates::PytorchHalfPixel => half_pixel,
            Coordinates::HalfPixelSymmetric => {
                half_pixel + from / 2.0 * (1.0 - to / (scale * from))
            }
            Coordinates::Asymmetric => o / scale,
            Coordinates::AlignCorners if pass.to == 1 => 0.0,
            Coordinates::AlignCorners => o * (from - 1.0) / (to - 1.0),
        }
    }

    /// The inputs of output `o`, and their weights.
    fn entry(&self, pass: &Pass, o: usize) -> [(i32, f32); MAX_TAPS] {
        let at = self.position(pass, o);
        let low = at.floor();
        let t = at - low;
        let clamped = |i: f64| (i as i64).clamp(0, pass.from as i64 - 1) as i32;
        let near = |d: f64, a: f64| (((a + 2.0) * d - (a + 3.0)) * d) * d + 1.0;
        let far = |d: f64, a: f64| ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a;
        match self.mode {
            Mode::Nearest(rounding) => {
                let i = match rounding {
                    Rounding::Floor => low,
                    Rounding::Ceil => at.ceil(),
                    Rounding::PreferFloor => (at - 0.5).ceil(),
                    Rounding::PreferCeil => (at + 0.5).floor(),
                };
                [(clamped(i), 1.0); MAX_TAPS]
            }
            Mode::Linear => {
                let (a, b) = ((clamped(low), (1.0 - t) as f32), (clamped(low + 1.0), t as f32));
                [a, b, b, b]
            }
            Mode::Cubic(a) => [
                (clamped(low - 1.0), far(t + 1.0, a) as f32),
                (clamped(low), near(t, a) as f32),
                (clamped(low + 1.0), near(1.0 - t, a) as f32),
                (clamped(low + 2.0), far(2.0 - t, a) as f32),
            ],
        }
    }
}

impl Kernel for Resize {
    fn scratch(&self, limits: &[RawTensor]) -> usize {
        let (x, y) = (&limits[0], &limits[1]);
        let (tables, largest) = self.sizes(&x.dims[..x.rank], &y.dims[..y.rank]);
        (2 * tables + 2 * largest) * size_of::<f32>()
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let (from, to) = (io.dims(0), io.out_dims(0));
        if to.contains(&0) {
            return Ok(());
        }
        if from.contains(&0) {
            return Err("nothing cannot be resized to something".to_owned());
        }
        let (tables, largest) = self.sizes(from, to);
        let (indices, floats) = (io.scratch::<i32>(), io.scratch::<f32>());
        let taps = self.taps();
        for pass in self.passes(from, to) {
            let share = io.worker.share(pass.to);
            let (start, len) = (pass.table + share.start * taps, share.len() * taps);
            // SAFETY: shares are disjoint, and each pass has its own tables.
            let (index, weight) =
                unsafe { (indices.range(start, len), floats.range(tables + start, len)) };
            let entries = share.flat_map(|o| self.entry(&pass, o).into_iter().take(taps));
            for ((i, w), entry) in index.iter_mut().zip(weight).zip(entries) {
                (*i, *w) = entry;
            }
        }
        io.next_phase();
        let last = self.axes.len() - 1;
        let buffers = [2 * tables, 2 * tables + largest];
        for (number, pass) in self.passes(from, to).enumerate() {
            // SAFETY: the tables were written before the barrier; a pass reads what the one before
            // wrote, with a barrier between, and the two buffers alternate.
            let (index, weight, source) = unsafe {
                let len = pass.to * taps;
                let source = match number {
                    0 => io.slice::<f32>(0),
                    _ => std::slice::from_raw_parts(
                        floats.start().add(buffers[number % 2]),
                        pass.outer * pass.from * pass.inner,
                    ),
                };
                let index = std::slice::from_raw_parts(indices.start().add(pass.table), len);
                let weight = floats.start().add(tables + pass.table);
                (index, std::slice::from_raw_parts(weight.cast_const(), len), source)
            };
            let (target, base) = match number == last {
                true => (io.output::<f32>(0), 0),
                false => (floats, buffers[(number + 1) % 2]),
            };
            let block = (UNIT / pass.inner.max(1)).clamp(1, pass.to);
            let blocks = pass.to.div_ceil(block);
            io.each(pass.outer * blocks, |unit| {
                let (row, first) = (unit / blocks, unit % blocks * block);
                let n = block.min(pass.to - first);
                let start = base + (row * pass.to + first) * pass.inner;
                // SAFETY: units do not overlap and each goes to one worker.
                let out = unsafe { target.range(start, n * pass.inner) };
                self.isa.run(Block {
                    inner: pass.inner,
                    taps,
                    index: &index[first * taps..][..n * taps],
                    weight: &weight[first * taps..][..n * taps],
                    x: &source[row * pass.from * pass.inner..][..pass.from * pass.inner],
                    out,
                });
            });
            if number < last {
                io.next_phase();
            }
        }
        Ok(())
    }
}

/// Elements that are picked, whatever they are.
#[derive(Debug)]
struct Nearest(Resize);

impl Kernel for Nearest {
    fn reads_bytes(&self, _input: usize) -> bool {
        true
    }

    fn scratch(&self, limits: &[RawTensor]) -> usize {
        let y = &limits[1];
        self.0.axes.iter().map(|&axis| y.dims[axis]).sum::<usize>() * size_of::<i32>()
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let (from, to) = (io.dims(0), io.out_dims(0));
        if to.contains(&0) {
            return Ok(());
        }
        if from.contains(&0) {
            return Err("nothing cannot be resized to something".to_owned());
        }
        let indices = io.scratch::<i32>();
        let mut tables = [None; MAX_RANK];
        for pass in self.0.passes(from, to) {
            let share = io.worker.share(pass.to);
            // SAFETY: shares are disjoint, and each pass has its own table.
            let table = unsafe { indices.range(pass.table + share.start, share.len()) };
            for (slot, o) in table.iter_mut().zip(share) {
                *slot = self.0.entry(&pass, o)[0].0;
            }
        }
        io.next_phase();
        for (pass, &axis) in self.0.passes(from, to).zip(&self.0.axes) {
            // SAFETY: the tables were written before the barrier, and nobody writes them now.
            tables[axis] = Some(unsafe {
                let start = indices.start().add(pass.table).cast_const();
                std::slice::from_raw_parts(start, pass.to)
            });
        }
        let pick = Pick { from, to, tables };
        match io.inputs[0].dtype.layout().bytes {
            1 => pick.rows::<1>(io),
            _ => pick.rows::<4>(io),
        }
        Ok(())
    }
}

struct Pick<'a> {
    from: &'a [usize],
    to: &'a [usize],
    /// For each axis that changes, the place in the input of each place in the output.
    tables: [Option<&'a [i32]>; MAX_RANK],
}

impl Pick<'_> {
    /// Every row of the last axis, with elements of `N` bytes.
    fn rows<const N: usize>(&self, io: &Io<'_>) {
        let (x, out) = (io.bytes(0), io.output_bytes(0));
        let last = self.to.len() - 1;
        let (width, length) = (self.to[last], self.from[last]);
        let rows: usize = self.to[..last].iter().product();
        let unit = (UNIT / width).max(1);
        io.each(rows.div_ceil(unit), |u| {
            for row in u * unit..rows.min((u + 1) * unit) {
                let (mut rest, mut line, mut stride) = (row, 0, 1);
                for axis in (0..last).rev() {
                    let place = rest % self.to[axis];
                    rest /= self.to[axis];
                    line += stride * self.tables[axis].map_or(place, |table| table[place] as usize);
                    stride *= self.from[axis];
                }
                let line = &x[line * length * N..][..length * N];
                // SAFETY: rows do not overlap and each goes to one worker.
                let out = unsafe { out.range(row * width * N, width * N) };
                let Some(table) = self.tables[last] else {
                    out.copy_from_slice(line);
                    continue;
                };
                let line = line.as_chunks::<N>().0;
                for (slot, &place) in out.as_chunks_mut::<N>().0.iter_mut().zip(table) {
                    *slot = line[place as usize];
                }
            }
        });
    }
}

/// Some outputs of one row of a pass.
struct Block<'a> {
    inner: usize,
    taps: usize,
    index: &'a [i32],
    weight: &'a [f32],
    x: &'a [f32],
    out: &'a mut [f32],
}

impl SimdOp for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Self { inner, taps, index, weight, x, out } = self;
        let entries = index.chunks_exact(taps).zip(weight.chunks_exact(taps));
        for (out, (index, weight)) in out.chunks_exact_mut(inner.max(1)).zip(entries) {
            let line = |tap: usize| &x[index[tap] as usize * inner..][..inner];
            let chunks = out.chunks_mut(cyb_simd::LANES).enumerate();
            for (number, out) in chunks {
                let at = number * cyb_simd::LANES;
                let mut sum = s.splat(0.0);
                for (tap, &w) in weight.iter().enumerate() {
                    sum = s.fma(s.load_partial(&line(tap)[at..]), s.splat(w), sum);
                }
                s.store_partial(out, sum);
            }
        }
    }
}
