//! `matmul`: batched products of two activations in `f32`, and of integers.
//!
//! A unit is a few dozen rows against a panel of columns. Each output is one chain of fused
//! multiply-adds in the order of the inner axis, whatever the unit and the register tile.

use cyb_exec::{Call, ExecError};
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};

use super::all_f32;
use crate::io::{Io, MAX_RANK, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[Row { op: "matmul", name: "matmul_f32", supports, build }];

/// Vectors of a panel's width.
const VECTORS: usize = 4;
/// Columns of a panel.
pub(crate) const PANEL: usize = VECTORS * LANES;
/// Rows of a unit.
const ROWS_AT_ONCE: usize = 48;
/// Rows of a register tile.
const TILE: usize = 6;
/// Rows from which copying a panel into a dense block pays.
const COPY_FROM: usize = 2 * TILE;

fn supports(call: &Call<'_>) -> bool {
    all_f32(call) && call.inputs.iter().all(|f| f.rank() >= 2)
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    Ok(Box::new(Matmul { isa: b.isa, workers: b.team.count() }))
}

#[derive(Debug)]
struct Matmul {
    isa: AnyIsa,
    workers: usize,
}

impl Kernel for Matmul {
    fn scratch(&self, limits: &[RawTensor]) -> usize {
        let b = &limits[1];
        self.workers * b.dims[b.rank - 2] * PANEL * size_of::<f32>()
    }

    fn light(&self, inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        let k = inputs[0].dims[inputs[0].rank - 1];
        Some(outputs[0].elements() * k.div_ceil(8))
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let (a, b) = (io.slice::<f32>(0), io.slice::<f32>(1));
        let (da, db, to) = (io.dims(0), io.dims(1), io.out_dims(0));
        let [.., m, n] = *to else { return Ok(()) };
        let k = da[da.len() - 1];
        let out = io.output::<f32>(0);
        if out.len() == 0 {
            return Ok(());
        }
        if k == 0 {
            io.rows::<f32>(0, 1, |_, out| out.fill(0.0));
            return Ok(());
        }
        let (step_a, step_b) = (batch_strides(da, to), batch_strides(db, to));
        let batches: usize = to[..to.len() - 2].iter().product();
        let (row_units, panels) = (m.div_ceil(ROWS_AT_ONCE), n.div_ceil(PANEL));
        let scratch = io.scratch::<f32>();
        // SAFETY: every worker has a part of its own.
        let scratch = unsafe { scratch.range(io.worker.index * k * PANEL, k * PANEL) };
        let mut held = usize::MAX;
        // Units with the same panel follow each other, so that it is copied once.
        io.each(batches * panels * row_units, |unit| {
            let (panel_number, rows) = (unit / row_units, unit % row_units * ROWS_AT_ONCE);
            let (batch, column) = (panel_number / panels, panel_number % panels * PANEL);
            let (mut at_a, mut at_b, mut rest) = (0, 0, batch);
            for axis in (0..to.len() - 2).rev() {
                let i = rest % to[axis];
                rest /= to[axis];
                at_a += i * step_a[axis];
                at_b += i * step_b[axis];
            }
            let (columns, count) = (PANEL.min(n - column), ROWS_AT_ONCE.min(m - rows));
            let source = Panel { values: &b[at_b + column..], stride: n };
            let copied = columns < PANEL || m >= COPY_FROM;
            if copied && held != panel_number {
                copy_panel(source, k, columns, scratch);
                held = panel_number;
            }
            let panel = if copied { Panel { values: scratch, stride: PANEL } } else { source };
            // SAFETY: rows and columns are this unit's alone, and lie inside the output.
            let to = unsafe { out.start().add((batch * m + rows) * n + column) };
            let a = &a[at_a + rows * k..];
            self.isa.run(Rows { a, a_stride: k, panel, k, rows: count, columns, to, stride: n });
        });
        Ok(())
    }
}

/// For each leading axis of the output, how far an operand moves along it.
fn batch_strides(dims: &[usize], to: &[usize]) -> [usize; MAX_RANK] {
    let mut strides = [0; MAX_RANK];
    let lead = to.len() - dims.len();
    let mut stride: usize = dims[dims.len() - 2..].iter().product();
    for axis in (0..dims.len() - 2).rev() {
        strides[lead + axis] = if dims[axis] == 1 { 0 } else { stride };
        stride *= dims[axis];
    }
    strides
}

/// `k` rows of columns; row `i` begins at `i * stride`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panel<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) stride: usize,
}

/// Copies a panel densely, with zeros beyond its columns.
fn copy_panel(from: Panel<'_>, k: usize, columns: usize, to: &mut [f32]) {
    for (i, row) in to.chunks_exact_mut(PANEL).take(k).enumerate() {
        let (used, rest) = row.split_at_mut(columns);
        used.copy_from_slice(&from.values[i * from.stride..][..columns]);
        rest.fill(0.0);
    }
}

/// Rows of `a` against a panel of which all vectors are readable.
pub(crate) struct Rows<'a> {
    pub(crate) a: &'a [f32],
    pub(crate) a_stride: usize,
    pub(crate) panel: Panel<'a>,
    pub(crate) k: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Where row 0 goes; the caller owns `columns` of each row.
    pub(crate) to: *mut f32,
    pub(crate) stride: usize,
}

impl SimdOp for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let vectors = self.columns.div_ceil(LANES);
        let mut row = 0;
        // Narrow registers hold fewer accumulators.
        if const { S::WIDE } && vectors == VECTORS {
            while self.rows - row >= TILE {
                self.tile::<S, TILE, VECTORS>(s, row, 0);
                row += TILE;
            }
            while row < self.rows {
                self.tile::<S, 1, VECTORS>(s, row, 0);
                row += 1;
            }
            return;
        }
        for v in 0..vectors {
            row = 0;
            while self.rows - row >= TILE {
                self.tile::<S, TILE, 1>(s, row, v);
                row += TILE;
            }
            while row < self.rows {
                self.tile::<S, 1, 1>(s, row, v);
                row += 1;
            }
        }
    }
}

impl Rows<'_> {
    #[inline(always)]
    fn tile<S: Isa, const T: usize, const V: usize>(&self, s: S, row: usize, vector: usize) {
        let mut acc = [[s.splat(0.0); V]; T];
        let (b, step) = (self.panel.values, self.panel.stride);
        let first = vector * LANES;
        if self.k > 0 {
            assert!(b.len() >= (self.k - 1) * step + first + V * LANES, "the panel is readable");
            assert!(self.a.len() >= (row + T - 1) * self.a_stride + self.k, "so are the rows");
        }
        for i in 0..self.k {
            // SAFETY: the lengths were just checked.
            unsafe {
                let mut line = [s.splat(0.0); V];
                for (v, slot) in line.iter_mut().enumerate() {
                    *slot = s.load(b.as_ptr().add(i * step + first + v * LANES));
                }
                for (t, acc) in acc.iter_mut().enumerate() {
                    let x = s.splat(*self.a.as_ptr().add((row + t) * self.a_stride + i));
                    for (acc, b) in acc.iter_mut().zip(&line) {
                        *acc = s.fma(x, *b, *acc);
                    }
                }
            }
        }
        for (t, acc) in acc.iter().enumerate() {
            for (v, acc) in acc.iter().enumerate() {
                let at = first + v * LANES;
                let lanes = LANES.min(self.columns - at);
                // SAFETY: the caller owns `columns` of this row.
                let out = unsafe {
                    std::slice::from_raw_parts_mut(self.to.add((row + t) * self.stride + at), lanes)
                };
                s.store_partial(out, *acc);
            }
        }
    }
}
