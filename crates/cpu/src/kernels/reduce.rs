//! Sums, products and extremes over any axes, and positions of extremes.
//!
//! Each result is one worker's, and its elements are taken in the order of the definition, so that
//! the split into units changes nothing. Floats add up in `f64`, as the definition says.

use cyb_exec::{Call, ExecError};
use cyb_ir::{Atom, Op, Reduce};
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};
use cyb_tensor::DType;

use crate::io::{Element, Io, MAX_RANK, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[
    Row { op: "reduce", name: "reduce", supports, build },
    Row { op: "reduce", name: "position", supports: is_position, build: build_position },
];

/// Elements that a worker reads at a time, about.
const UNIT: usize = 8192;
/// Results side by side that are computed together.
const COLUMNS: usize = 256;

fn supports(call: &Call<'_>) -> bool {
    let kind = match call.op {
        Op::Atom(Atom::Reduce { kind, .. }) => *kind,
        Op::Atom(_) | Op::Jet(..) => return false,
    };
    let dtype = call.inputs[0].dtype;
    let known = matches!(dtype, DType::F32 | DType::F64 | DType::I64 | DType::I32);
    match kind {
        Reduce::Sum | Reduce::Prod | Reduce::Max | Reduce::Min => known,
        Reduce::Argmax | Reduce::Argmin => false,
    }
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let Op::Atom(Atom::Reduce { kind, axes }) = &b.node.op else {
        return Err(ExecError::Unsupported { op: "reduce".into(), facts: String::new() });
    };
    let mut reduced = [false; MAX_RANK];
    for &axis in axes {
        if let Some(slot) = reduced.get_mut(axis) {
            *slot = true;
        }
    }
    Ok(Box::new(ReduceKernel { kind: *kind, reduced, isa: b.isa }))
}

#[derive(Debug)]
struct ReduceKernel {
    kind: Reduce,
    reduced: [bool; MAX_RANK],
    isa: AnyIsa,
}

/// Axes of one sort, in order: how long they are and how far apart their elements lie.
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    dims: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
    rank: usize,
}

impl Walk {
    fn push(&mut self, dim: usize, stride: usize) {
        // An axis that is walked together with the one before it is the same axis.
        if let Some(last) = self.rank.checked_sub(1)
            && self.strides[last] == dim * stride
        {
            self.dims[last] *= dim;
            self.strides[last] = stride;
            return;
        }
        (self.dims[self.rank], self.strides[self.rank]) = (dim, stride);
        self.rank += 1;
    }

    fn count(&self) -> usize {
        self.dims[..self.rank].iter().product()
    }

    /// Where element `index` lies.
    #[inline(always)]
    fn at(&self, mut index: usize) -> usize {
        let mut at = 0;
        for axis in (0..self.rank).rev() {
            at += index % self.dims[axis] * self.strides[axis];
            index /= self.dims[axis];
        }
        at
    }
}

/// The kept and the reduced axes of a shape.
fn walks(dims: &[usize], reduced: &[bool; MAX_RANK]) -> (Walk, Walk) {
    let (mut kept, mut gone) = (Walk::default(), Walk::default());
    let mut stride = dims.iter().product::<usize>();
    for (&dim, &reduced) in dims.iter().zip(reduced) {
        stride = stride.checked_div(dim).unwrap_or(0);
        if dim != 1 {
            if reduced { gone.push(dim, stride) } else { kept.push(dim, stride) }
        }
    }
    (kept, gone)
}

/// A number that is reduced: its sums have the type `Sum`.
trait Number: Element {
    type Sum: Copy;
    fn start(kind: Reduce) -> Self::Sum;
    fn join(kind: Reduce, sum: Self::Sum, x: Self) -> Self::Sum;
    fn end(sum: Self::Sum) -> Self;

    /// `sum` and a row of elements.
    #[inline(always)]
    fn join_row<S: Isa>(_s: S, kind: Reduce, sum: Self::Sum, row: &[Self]) -> Self::Sum {
        let mut sum = sum;
        for &x in row {
            sum = Self::join(kind, sum, x);
        }
        sum
    }
}

/// The greatest of a row, or the least: NaN if any is, +0 above -0. These do not depend on the order,
/// so that lanes may be taken together.
#[inline(always)]
fn extreme<S: Isa>(s: S, row: &[f32], greatest: bool) -> f32 {
    // As integers floats have the same order where the bits of negative ones are turned around; the
    // least is the greatest of what is turned around as a whole.
    let Some(&first) = row.first() else { return f32::NAN };
    let (low_bits, ones) = (s.splat_i(i32::MAX), s.splat_i(-1));
    let (mut best, mut size) = (s.splat_i(i32::MIN), s.splat_i(0));
    for part in row.chunks(LANES) {
        let bits = s.bits(s.load_padded(part, first));
        let turned = s.and_i(s.sar_i(bits, 31), low_bits);
        // An exclusive or.
        let mut ordered = s.sub_i(s.or_i(bits, turned), s.and_i(bits, turned));
        if !greatest {
            ordered = s.sub_i(ones, ordered);
        }
        best = s.max_i(best, ordered);
        size = s.max_i(size, s.and_i(bits, low_bits));
    }
    if s.reduce_max_i(size) > f32::INFINITY.to_bits().cast_signed() {
        return f32::NAN;
    }
    let best = s.reduce_max_i(best);
    let ordered = if greatest { best } else { !best };
    f32::from_bits((ordered ^ ((ordered >> 31) & i32::MAX)).cast_unsigned())
}

macro_rules! float_number {
    ($ty:ty $(, $more:item)?) => {
        impl Number for $ty {
            type Sum = f64;
            fn start(kind: Reduce) -> f64 {
                match kind {
                    Reduce::Sum | Reduce::Argmax | Reduce::Argmin => 0.0,
                    Reduce::Prod => 1.0,
                    Reduce::Max => f64::NEG_INFINITY,
                    Reduce::Min => f64::INFINITY,
                }
            }
            #[inline(always)]
            fn join(kind: Reduce, sum: f64, x: $ty) -> f64 {
                let x = f64::from(x);
                match kind {
                    Reduce::Sum | Reduce::Argmax | Reduce::Argmin => sum + x,
                    Reduce::Prod => sum * x,
                    // NaN if either is; +0 above -0.
                    Reduce::Max => {
                        let keeps = sum > x || sum.is_nan() || (sum == x && sum.is_sign_positive());
                        if keeps { sum } else { x }
                    }
                    Reduce::Min => {
                        let keeps = sum < x || sum.is_nan() || (sum == x && sum.is_sign_negative());
                        if keeps { sum } else { x }
                    }
                }
            }
            #[inline(always)]
            fn end(sum: f64) -> $ty {
                sum as $ty
            }
            $($more)?
        }
    };
}

macro_rules! int_number {
    ($ty:ty) => {
        impl Number for $ty {
            type Sum = $ty;
            fn start(kind: Reduce) -> $ty {
                match kind {
                    Reduce::Sum | Reduce::Argmax | Reduce::Argmin => 0,
                    Reduce::Prod => 1,
                    Reduce::Max => <$ty>::MIN,
                    Reduce::Min => <$ty>::MAX,
                }
            }
            #[inline(always)]
            fn join(kind: Reduce, sum: $ty, x: $ty) -> $ty {
                match kind {
                    Reduce::Sum | Reduce::Argmax | Reduce::Argmin => sum.wrapping_add(x),
                    Reduce::Prod => sum.wrapping_mul(x),
                    Reduce::Max => sum.max(x),
                    Reduce::Min => sum.min(x),
                }
            }
            #[inline(always)]
            fn end(sum: $ty) -> $ty {
                sum
            }
        }
    };
}

float_number!(
    f32,
    #[inline(always)]
    fn join_row<S: Isa>(s: S, kind: Reduce, sum: f64, row: &[f32]) -> f64 {
        match kind {
            Reduce::Max | Reduce::Min if !row.is_empty() => {
                Self::join(kind, sum, extreme(s, row, kind == Reduce::Max))
            }
            _ => row.iter().fold(sum, |sum, &x| Self::join(kind, sum, x)),
        }
    }
);
float_number!(f64);
int_number!(i32);
int_number!(i64);

impl Kernel for ReduceKernel {
    fn light(&self, inputs: &[RawTensor], _outputs: &[RawTensor]) -> Option<usize> {
        Some(inputs[0].elements())
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        match io.inputs[0].dtype {
            DType::F32 => self.reduce::<f32>(io),
            DType::F64 => self.reduce::<f64>(io),
            DType::I32 => self.reduce::<i32>(io),
            _ => self.reduce::<i64>(io),
        }
        Ok(())
    }
}

impl ReduceKernel {
    fn reduce<T: Number>(&self, io: &Io<'_>) {
        let x = io.slice::<T>(0);
        let (kept, gone) = walks(io.dims(0), &self.reduced);
        let (results, each) = (kept.count(), gone.count());
        let out = io.output::<T>(0);
        if x.is_empty() {
            // Sums of nothing, where there are results at all.
            io.rows::<T>(0, 1, |_, out| out.fill(T::end(T::start(self.kind))));
            return;
        }
        // Neighbors of a result: those along the last kept axis, where that is the innermost.
        let last = kept.rank.checked_sub(1);
        let across = last.filter(|&l| kept.strides[l] == 1 && each > 1).map_or(1, |l| kept.dims[l]);
        let width = if across > 1 { across.min(COLUMNS) } else { 1 };
        let groups = across.div_ceil(width);
        let rows = results / across;
        let unit = UNIT.div_ceil((each * width).max(1)).max(1);
        io.each((rows * groups).div_ceil(unit), |u| {
            for item in u * unit..((u + 1) * unit).min(rows * groups) {
                let (row, first) = (item / groups, item % groups * width);
                let len = width.min(across - first);
                // SAFETY: results do not overlap and each goes to one worker.
                let out = unsafe { out.range(row * across + first, len) };
                let from = &x[kept.at(row * across) + first..];
                self.isa.run(Reduced { kind: self.kind, from, gone: &gone, out });
            }
        });
    }
}

/// Some results, which lie side by side.
struct Reduced<'a, T> {
    kind: Reduce,
    from: &'a [T],
    gone: &'a Walk,
    out: &'a mut [T],
}

impl<T: Number> SimdOp for Reduced<'_, T> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        // The kind is settled outside the loops.
        match self.kind {
            Reduce::Sum | Reduce::Argmax | Reduce::Argmin => self.walk::<S, 0>(s),
            Reduce::Prod => self.walk::<S, 1>(s),
            Reduce::Max => self.walk::<S, 2>(s),
            Reduce::Min => self.walk::<S, 3>(s),
        }
    }
}

const fn kind(number: usize) -> Reduce {
    match number {
        0 => Reduce::Sum,
        1 => Reduce::Prod,
        2 => Reduce::Max,
        _ => Reduce::Min,
    }
}

impl<T: Number> Reduced<'_, T> {
    #[inline(always)]
    fn walk<S: Isa, const KIND: usize>(self, s: S) {
        let kind = const { kind(KIND) };
        let Self { from, gone, out, .. } = self;
        let inner = gone.rank.checked_sub(1).map_or(1, |last| gone.dims[last]);
        let step = gone.rank.checked_sub(1).map_or(1, |last| gone.strides[last]);
        let outer = gone.count() / inner.max(1);
        let rows = Walk { rank: gone.rank.saturating_sub(1), ..*gone };
        if let [one] = out {
            let mut sum = T::start(kind);
            for row in 0..outer {
                let row = &from[rows.at(row)..];
                if step == 1 {
                    sum = T::join_row(s, kind, sum, &row[..inner]);
                } else {
                    for i in 0..inner {
                        sum = T::join(kind, sum, row[i * step]);
                    }
                }
            }
            *one = T::end(sum);
            return;
        }
        let mut sums = [T::start(kind); COLUMNS];
        let sums = &mut sums[..out.len()];
        for row in 0..outer {
            let row = &from[rows.at(row)..];
            for i in 0..inner {
                let line = &row[i * step..][..sums.len()];
                for (sum, &x) in sums.iter_mut().zip(line) {
                    *sum = T::join(kind, *sum, x);
                }
            }
        }
        for (out, &sum) in out.iter_mut().zip(&*sums) {
            *out = T::end(sum);
        }
    }
}

fn is_position(call: &Call<'_>) -> bool {
    let extreme = match call.op {
        Op::Atom(Atom::Reduce { kind, axes }) => {
            axes.len() == 1 && matches!(kind, Reduce::Argmax | Reduce::Argmin)
        }
        Op::Atom(_) | Op::Jet(..) => false,
    };
    extreme && matches!(call.inputs[0].dtype, DType::F32 | DType::I64 | DType::I32)
}

fn build_position(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let (axis, largest) = match &b.node.op {
        Op::Atom(Atom::Reduce { kind, axes }) => (axes[0], *kind == Reduce::Argmax),
        Op::Atom(_) | Op::Jet(..) => (0, true),
    };
    Ok(Box::new(Position { axis, largest }))
}

/// Where the first extreme of an axis is.
#[derive(Debug)]
struct Position {
    axis: usize,
    largest: bool,
}

impl Kernel for Position {
    fn light(&self, inputs: &[RawTensor], _outputs: &[RawTensor]) -> Option<usize> {
        Some(inputs[0].elements())
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let len = io.dims(0)[self.axis];
        if len == 0 {
            return Err(format!("axis {} is empty, so nothing is its extreme", self.axis));
        }
        match io.inputs[0].dtype {
            // The first NaN counts as the extreme.
            DType::F32 => self.find(io, |x: f32, best: f32, largest| {
                let beats = if largest { x > best } else { x < best };
                beats || (x.is_nan() && !best.is_nan())
            }),
            DType::I32 => {
                self.find(io, |x: i32, best, largest| if largest { x > best } else { x < best });
            }
            _ => self.find(io, |x: i64, best, largest| if largest { x > best } else { x < best }),
        }
        Ok(())
    }
}

impl Position {
    fn find<T: Element>(&self, io: &Io<'_>, beats: impl Fn(T, T, bool) -> bool) {
        let dims = io.dims(0);
        let (len, inner): (usize, usize) =
            (dims[self.axis], dims[self.axis + 1..].iter().product());
        let x = io.slice::<T>(0);
        io.rows::<i64>(0, 1, |result, out| {
            let first = result / inner * len * inner + result % inner;
            let mut best = 0;
            for i in 1..len {
                if beats(x[first + i * inner], x[first + best * inner], self.largest) {
                    best = i;
                }
            }
            out[0] = best as i64;
        });
    }
}
