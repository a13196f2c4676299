//! `rotary`: pairs of elements turned by cosines and sines from tables.

use cyb_exec::{Call, ExecError};
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};

use super::{all_f32, attrs_of};
use crate::io::{Io, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[Row { op: "rotary", name: "rotary_f32", supports, build }];

/// Rows a worker takes at a time.
const UNIT: usize = 64;

fn supports(call: &Call<'_>) -> bool {
    all_f32(call) && call.inputs[0].shape == call.outputs[0].shape
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let pairs = attrs_of(&b.node.op).text("style")? == "pairs";
    Ok(Box::new(Rotary { pairs, isa: b.isa }))
}

#[derive(Debug)]
struct Rotary {
    /// Whether pairs are neighbors rather than half the width apart.
    pairs: bool,
    isa: AnyIsa,
}

/// Where the row of a table lies that belongs to row `i` of a plane of `x`.
#[derive(Clone, Copy)]
struct Table<'a> {
    values: &'a [f32],
    start: usize,
    step: usize,
}

impl<'a> Table<'a> {
    /// For plane number `plane` of `x`, whose leading axes are `lead`; the last of them are its rows.
    fn new(values: &'a [f32], dims: &[usize], lead: &[usize], plane: usize) -> Table<'a> {
        let width = dims.last().copied().unwrap_or(1);
        let (mut start, mut step, mut distance, mut rest) = (0, 0, width, plane);
        for (i, &n) in lead.iter().enumerate().rev() {
            let own = (i + dims.len()).checked_sub(lead.len() + 1).map_or(1, |axis| dims[axis]);
            let along = if own == 1 { 0 } else { distance };
            if i + 1 == lead.len() {
                step = along;
            } else {
                start += rest % n * along;
                rest /= n;
            }
            distance *= own;
        }
        Table { values, start, step }
    }
}

impl Kernel for Rotary {
    fn light(&self, _inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        Some(outputs[0].elements())
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let x = io.slice::<f32>(0);
        let Some((&width, lead)) = io.dims(0).split_last() else { return Ok(()) };
        if x.is_empty() {
            return Ok(());
        }
        let rows = lead.last().copied().unwrap_or(1);
        let units = rows.div_ceil(UNIT);
        let out = io.output::<f32>(0);
        io.each(x.len() / (rows * width) * units, |unit| {
            let (plane, first) = (unit / units, unit % units * UNIT);
            let count = UNIT.min(rows - first);
            let [cos, sin] = [1, 2].map(|input| {
                let mut table = Table::new(io.slice(input), io.dims(input), lead, plane);
                table.start += first * table.step;
                table
            });
            let at = (plane * rows + first) * width;
            // SAFETY: units do not overlap and each goes to one worker.
            let out = unsafe { out.range(at, count * width) };
            let columns = io.dims(1).last().copied().unwrap_or(1);
            let x = &x[at..at + count * width];
            self.isa.run(Rows { pairs: self.pairs, x, cos, sin, width, columns, out });
        });
        Ok(())
    }
}

struct Rows<'a> {
    pairs: bool,
    x: &'a [f32],
    cos: Table<'a>,
    sin: Table<'a>,
    width: usize,
    /// Of the tables: as many as pairs, or as elements.
    columns: usize,
    out: &'a mut [f32],
}

impl SimdOp for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Rows { pairs, x, cos, sin, width, columns, out } = self;
        let half = width / 2;
        let each = columns == width;
        for (row, (x, out)) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)).enumerate() {
            let cos = &cos.values[cos.start + row * cos.step..][..columns];
            let sin = &sin.values[sin.start + row * sin.step..][..columns];
            if pairs {
                let step = if each { 2 } else { 1 };
                for (i, (x, out)) in x.chunks_exact(2).zip(out.chunks_exact_mut(2)).enumerate() {
                    let (first, second) = (step * i, step * i + usize::from(each));
                    out[0] = x[0] * cos[first] - x[1] * sin[first];
                    out[1] = x[1] * cos[second] + x[0] * sin[second];
                }
                continue;
            }
            let apart = if each { half } else { 0 };
            let (first, second) = x.split_at(half);
            let (low, high) = out.split_at_mut(half);
            let x = first.chunks(LANES).zip(second.chunks(LANES));
            let out = low.chunks_mut(LANES).zip(high.chunks_mut(LANES));
            for (i, ((a, b), (low, high))) in x.zip(out).enumerate() {
                let (from, n) = (i * LANES, a.len());
                let (a, b) = (s.load_partial(a), s.load_partial(b));
                let (c, n1) = (&cos[from..from + n], &sin[from..from + n]);
                let (c, n1) = (s.load_partial(c), s.load_partial(n1));
                s.store_partial(low, s.sub(s.mul(a, c), s.mul(b, n1)));
                let from = from + apart;
                let (c, n1) = (&cos[from..from + n], &sin[from..from + n]);
                let (c, n1) = (s.load_partial(c), s.load_partial(n1));
                s.store_partial(high, s.add(s.mul(b, c), s.mul(a, n1)));
            }
        }
    }
}
