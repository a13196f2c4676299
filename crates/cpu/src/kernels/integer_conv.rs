//! `conv_integer`: exact convolutions of 8-bit codes.
//!
//! A unit is a few dozen neighbouring outputs of an image and a group. What their windows see is
//! written to a worker's scratch as the rows of a product (4 elements of a window side by side, then
//! position by position), and multiplied with every output channel of the group.

use std::sync::Arc;

use cyb_exec::{Call, ExecError};
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};
use cyb_tensor::DType;

use super::attrs_of;
use super::integer::{COLUMNS, Codes, Rows, STEP, STEP_BYTES, TILES, codes, form, sums};
use crate::io::{Io, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[Row { op: "conv_integer", name: "conv_i8", supports, build }];

/// Outputs of a unit.
const POSITIONS: usize = 48;
/// Spatial axes; shorter shapes have leading axes of length 1.
const AXES: usize = 3;

fn supports(call: &Call<'_>) -> bool {
    let [x, w, x_zero, w_zero] = call.inputs[..] else { return false };
    codes(x.dtype)
        && codes(w.dtype)
        && (3..=2 + AXES).contains(&x.rank())
        && x_zero.rank() == 0
        && w_zero.rank() <= 1
        && call.fixed[1]
        && call.fixed[3]
        && w.shape.iter().all(|d| d.known().is_some())
}

fn widened(v: &[usize], fill: usize) -> [usize; AXES] {
    let lead = AXES - v.len();
    std::array::from_fn(|i| if i < lead { fill } else { v[i - lead] })
}

#[derive(Debug)]
struct ConvInteger {
    /// For each group.
    weights: Arc<Vec<Codes>>,
    kernel: [usize; AXES],
    strides: [usize; AXES],
    dilations: [usize; AXES],
    /// Padding before each axis.
    lead: [usize; AXES],
    /// Input channels of a group.
    channels: usize,
    workers: usize,
    isa: AnyIsa,
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let attrs = attrs_of(&b.node.op);
    let (strides, dilations) = (attrs.sizes("strides")?, attrs.sizes("dilations")?);
    let (pads, groups) = (attrs.sizes("pads")?, attrs.size("groups")?.max(1));
    let zero = b.graph.tensor(b.node.inputs[3]).cloned();
    let shape: Vec<usize> =
        b.graph.fact(b.node.inputs[1]).shape.iter().filter_map(|d| d.known()).collect();
    let inner: usize = shape[1..].iter().product();
    let rows = shape[0] / groups;
    let kind = form(&format!("conv codes of {groups}"), zero.as_ref());
    let weights = b.pack_as(b.node.inputs[1], &kind, |w| {
        let Some(zero) = &zero else { return Err("it has no zero point".to_owned()) };
        let of_group = |group: usize| -> Result<Codes, String> {
            let own = match zero.elems() {
                1 => zero.clone(),
                _ => {
                    let part = zero.bytes().slice(group * rows..(group + 1) * rows);
                    let part = part.ok_or("its zero points do not fit its rows")?;
                    cyb_tensor::Tensor::new(zero.dtype(), vec![rows], part)
                        .map_err(|e| e.to_string())?
                }
            };
            Ok(Codes::pack(w, &own, (inner, rows), |i, n| (group * rows + n) * inner + i))
        };
        (0..groups).map(of_group).collect()
    })?;
    Ok(Box::new(ConvInteger {
        weights,
        kernel: widened(&shape[2..], 1),
        strides: widened(&strides, 1),
        dilations: widened(&dilations, 1),
        lead: widened(&pads[..pads.len() / 2], 0),
        channels: shape[1],
        workers: b.team.count(),
        isa: b.isa,
    }))
}

impl ConvInteger {
    fn steps(&self) -> usize {
        self.weights.first().map_or(0, Codes::steps)
    }
}

impl Kernel for ConvInteger {
    fn reads(&self, input: usize) -> bool {
        input == 0 || input == 2
    }

    fn scratch(&self, _limits: &[RawTensor]) -> usize {
        self.workers * self.steps() * STEP * POSITIONS
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let (x, dims, to) = (io.bytes(0), io.dims(0), io.out_dims(0));
        let out = io.output::<i32>(0);
        let (lens, outs) = (widened(&dims[2..], 1), widened(&to[2..], 1));
        let places: usize = outs.iter().product();
        let in_len: usize = lens.iter().product();
        if out.len() == 0 {
            return Ok(());
        }
        let shift = if io.inputs[0].dtype == DType::I8 { 0x80 } else { 0 };
        let zero = io.bytes(2)[0];
        let groups = self.weights.len();
        let blocks = places.div_ceil(POSITIONS);
        let own = self.steps() * STEP * POSITIONS;
        // SAFETY: every worker has a part of its own.
        let scratch = unsafe { io.scratch::<u8>().range(io.worker.index * own, own) };
        io.each(dims[0] * groups * blocks, |unit| {
            let (product, block) = (unit / blocks, unit % blocks);
            let group = product % groups;
            let w = &self.weights[group];
            let first = block * POSITIONS;
            let count = POSITIONS.min(places - first);
            self.isa.run(Unit {
                conv: self,
                w,
                x: &x[product * self.channels * in_len..][..self.channels * in_len],
                lens,
                outs,
                first,
                count,
                zero,
                shift,
                rows: &mut *scratch,
                out: out.start().wrapping_add(product * w.n * places + first),
                out_len: out.len() - product * w.n * places - first,
                places,
            });
        });
        Ok(())
    }
}

/// Neighbouring outputs of one group of an image; they are the worker's alone.
struct Unit<'a> {
    conv: &'a ConvInteger,
    w: &'a Codes,
    /// The group's channels.
    x: &'a [u8],
    lens: [usize; AXES],
    outs: [usize; AXES],
    /// The first output and their number.
    first: usize,
    count: usize,
    /// What lies outside the input.
    zero: u8,
    /// What makes codes unsigned bytes.
    shift: u8,
    /// [`POSITIONS`] by 4 bytes for each step.
    rows: &'a mut [u8],
    /// The first output of channel 0, and the numbers from there to the end.
    out: *mut i32,
    out_len: usize,
    /// Outputs of a channel.
    places: usize,
}

impl SimdOp for Unit<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(mut self, s: S) {
        let row_sums = self.fill();
        let (w, places) = (self.w, self.places);
        assert!(self.out_len >= (w.n - 1) * places + self.count);
        let start = self.rows.as_ptr();
        let zero = i32::from(self.zero ^ self.shift);
        let tiles = w.tile_count();
        let mut results = [[s.splat_i(0); POSITIONS]; TILES];
        let mut tile = 0;
        while tile < tiles {
            macro_rules! block {
                ($r:literal) => {{
                    // Positions behind the last one are computed and dropped.
                    for at in (0..self.count).step_by(COLUMNS) {
                        let start = start.wrapping_add(at * STEP);
                        let x = Rows { start, row: STEP, step: STEP * POSITIONS };
                        // SAFETY: the scratch holds `steps` steps of every position, the weights
                        // of every tile.
                        let sums = unsafe {
                            sums::<S, $r, COLUMNS>(
                                s,
                                w.tile(tile),
                                w.steps() * STEP_BYTES,
                                x,
                                w.steps(),
                            )
                        };
                        for (t, sums) in sums.into_iter().enumerate() {
                            for (r, sums) in sums.into_iter().enumerate() {
                                results[r][at + t] =
                                    w.corrected(s, tile + r, sums, zero, row_sums[at + t]);
                            }
                        }
                    }
                    for (r, results) in results.iter().enumerate().take($r) {
                        self.store(s, tile + r, results);
                    }
                    tile += $r;
                }};
            }
            if const { S::WIDE } && tiles - tile >= TILES {
                block!(4);
            } else {
                block!(1);
            }
        }
    }
}

const _: () = assert!(POSITIONS.is_multiple_of(COLUMNS) && POSITIONS.is_multiple_of(LANES));

/// Neighbouring outputs along the last axis.
#[derive(Clone, Copy, Default)]
struct Run {
    /// The first one's number in the unit, and how many they are.
    at: usize,
    len: usize,
    /// Its place on each axis.
    place: [usize; AXES],
}

/// A line has room for a copy of fixed length from any position on.
type Line = [u8; 2 * POSITIONS];

impl Unit<'_> {
    /// Stores a tile's results, whose lanes are channels.
    #[inline(always)]
    fn store<S: Isa>(&self, s: S, tile: usize, results: &[S::I; POSITIONS]) {
        let channel = tile * LANES;
        let channels = LANES.min(self.w.n - channel);
        let whole = if channels == LANES { self.count / LANES * LANES } else { 0 };
        for at in (0..whole).step_by(LANES) {
            let mut rows = [s.splat(0.0); LANES];
            for (row, sums) in rows.iter_mut().zip(&results[at..at + LANES]) {
                *row = s.float_bits(*sums);
            }
            // SAFETY: the caller asserted that every channel holds the unit's outputs, which are
            // this worker's; numbers of 32 bits are moved whatever they are.
            unsafe {
                let to = self.out.add(channel * self.places + at);
                s.store_transposed(&rows, to.cast(), self.places);
            }
        }
        for (position, sums) in results.iter().enumerate().take(self.count).skip(whole) {
            let lanes = s.to_array_i(*sums);
            for (i, lane) in lanes.iter().enumerate().take(channels) {
                // SAFETY: as above.
                unsafe { *self.out.add((channel + i) * self.places + position) = *lane };
            }
        }
    }

    /// Writes what the windows see, and gives the sum of each window.
    #[inline(always)]
    fn fill(&mut self) -> [i32; POSITIONS] {
        let conv = self.conv;
        let mut runs = [Run::default(); POSITIONS];
        let mut n_runs = 0;
        let mut done = 0;
        while done < self.count {
            let place = self.first + done;
            let [_, rows, columns] = self.outs;
            let place = [place / (rows * columns), place / columns % rows, place % columns];
            let len = (columns - place[2]).min(self.count - done);
            runs[n_runs] = Run { at: done, len, place };
            n_runs += 1;
            done += len;
        }
        let runs = &runs[..n_runs];
        let mut row_sums = [0i32; POSITIONS];
        let mut lines = [[0u8; 2 * POSITIONS]; STEP];
        let (mut used, mut step) = (0, 0);
        let in_len: usize = self.lens.iter().product();
        for channel in 0..conv.channels {
            for kz in 0..conv.kernel[0] {
                for ky in 0..conv.kernel[1] {
                    for kx in 0..conv.kernel[2] {
                        self.line(channel * in_len, [kz, ky, kx], runs, &mut lines[used]);
                        used += 1;
                        if used == STEP {
                            self.flush(step, &lines, used, &mut row_sums);
                            (used, step) = (0, step + 1);
                        }
                    }
                }
            }
        }
        if used > 0 {
            // Weights behind the last element are 0.
            self.flush(step, &lines, used, &mut row_sums);
        }
        row_sums
    }

    /// Writes a step of every position, as unsigned bytes.
    #[inline(always)]
    fn flush(
        &mut self,
        step: usize,
        lines: &[Line; STEP],
        used: usize,
        row_sums: &mut [i32; POSITIONS],
    ) {
        let to = &mut self.rows[step * STEP * POSITIONS..][..STEP * POSITIONS];
        let shift = u32::from_ne_bytes([self.shift; STEP]);
        let [a, b, c, d] = lines;
        let mut words = [0u32; POSITIONS];
        for (p, word) in words.iter_mut().enumerate() {
            let low = u32::from(a[p]) | u32::from(b[p]) << 8;
            *word = (low | u32::from(c[p]) << 16 | u32::from(d[p]) << 24) ^ shift;
        }
        for (to, word) in to.as_chunks_mut::<STEP>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        if self.w.shifted() {
            for line in &lines[..used] {
                for (sum, &code) in row_sums.iter_mut().zip(line) {
                    *sum += i32::from(code ^ self.shift);
                }
            }
        }
    }

    /// What a tap of the channel at `plane` sees at each position.
    #[inline(always)]
    fn line(&self, plane: usize, tap: [usize; AXES], runs: &[Run], line: &mut Line) {
        let conv = self.conv;
        let [depth, height, width] = self.lens;
        for run in runs {
            // The padding before an axis wraps around, and is outside like that behind it.
            let [z, y] = [0, 1].map(|axis| {
                (run.place[axis] * conv.strides[axis] + tap[axis] * conv.dilations[axis])
                    .wrapping_sub(conv.lead[axis])
            });
            let to = &mut line[run.at..];
            if z >= depth || y >= height {
                to[..run.len].fill(self.zero);
                continue;
            }
            let row = plane + (z * height + y) * width;
            let (stride, lead) = (conv.strides[2], conv.lead[2]);
            let start = run.place[2] * stride + tap[2] * conv.dilations[2];
            // Outputs before the row, then those inside.
            let (skip, from, inside);
            if stride == 1 {
                // Without divisions, which would take longer than all else here.
                skip = lead.saturating_sub(start).min(run.len);
                from = (start + skip).saturating_sub(lead);
                inside = width.saturating_sub(from).min(run.len - skip);
            } else {
                skip = lead.saturating_sub(start).div_ceil(stride).min(run.len);
                from = (start + skip * stride).saturating_sub(lead);
                inside = width.saturating_sub(from).div_ceil(stride).min(run.len - skip);
            }
            if skip > 0 {
                to[..skip].fill(self.zero);
            }
            if stride == 1 {
                // A copy of fixed length is two instructions; what it writes too much is written
                // again.
                match self.x.get(row + from..row + from + POSITIONS) {
                    Some(codes) => to[skip..skip + POSITIONS].copy_from_slice(codes),
                    None => {
                        let codes = &self.x[row..row + width];
                        let codes = codes.get(from..from + inside).unwrap_or_default();
                        to[skip..skip + codes.len()].copy_from_slice(codes);
                    }
                }
            } else {
                let codes = self.x[row..row + width].get(from..).unwrap_or_default();
                let each = codes.iter().step_by(stride);
                to[skip..skip + inside].iter_mut().zip(each).for_each(|(slot, &code)| *slot = code);
            }
            if skip + inside < run.len {
                to[skip + inside..run.len].fill(self.zero);
            }
        }
    }
}
