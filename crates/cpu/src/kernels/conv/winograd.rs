//! Winograd's convolution F(2x2, 3x3): four outputs of a 3x3 kernel with stride 1 from 16 products
//! instead of 36 (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2015).
//!
//! Tiles of 4x4 inputs lie 2 apart, which is how a convolution with a 4x4 kernel and stride 2 sees
//! its input, so planes and offsets are that convolution's. Lanes are tiles. A unit transforms its
//! tiles, channels by the dozen, multiplies 16 matrices, and transforms back.

use std::sync::Arc;

use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};

use super::super::geometry::{Geometry, Layout};
use super::product::{COLUMNS, Fill, ROWS_OF_BLOCK, Residuals, Tile};
use super::{Deal, ENOUGH_UNITS, SLACK};
use crate::activation::Activation;
use crate::io::{Io, RawTensor};
use crate::kernel::Kernel;

/// Elements of a tile, and so matrices.
const POINTS: usize = 16;
/// Blocks of output channels of a unit.
const MAX_BLOCKS: usize = 8;
/// Input channels that are transformed at a time; their products fit the second-level cache.
const CHANNELS: usize = 64;

/// Whether the transform pays: a 3x3 kernel with stride 1, and products enough to outweigh it.
pub(super) fn pays(w: &[usize], strides: &[usize], dilations: &[usize], groups: usize) -> bool {
    let plain = strides == [1, 1] && dilations == [1, 1] && w[2..] == [3, 3];
    plain && w[1] >= 12 && w[0] / groups >= ROWS_OF_BLOCK
}

#[derive(Debug)]
pub(super) struct Winograd {
    layout: Layout,
    /// For each group and block of rows: 16 matrices of `channels` by [`ROWS_OF_BLOCK`].
    weights: Arc<Vec<f32>>,
    activation: Activation,
    slope: f32,
    isa: AnyIsa,
    threads: usize,
}

impl Winograd {
    /// `weights` are what [`pack`] makes of the weight `w` = [M, C/groups, 3, 3].
    pub(super) fn new(
        w: &[usize],
        weights: Arc<Vec<f32>>,
        pads: &[usize],
        groups: usize,
        (activation, slope): (Activation, f32),
        isa: AnyIsa,
        threads: usize,
    ) -> Winograd {
        let layout = tiles(w, pads, groups);
        Winograd { layout, weights, activation, slope, isa, threads }
    }

    /// The geometry of the convolution of tiles.
    fn geometry(&self, x: &[usize], y: &[usize]) -> Geometry {
        let tiles = [y[0], y[1], y[2].div_ceil(2), y[3].div_ceil(2)];
        self.layout.geometry(x, &tiles)
    }

    fn blocks(&self) -> usize {
        self.layout.rows.div_ceil(ROWS_OF_BLOCK)
    }

    /// Floats of a worker: transformed inputs, and products of every block.
    fn own_floats(&self) -> usize {
        let inputs = POINTS * CHANNELS.min(self.layout.channels) * COLUMNS;
        inputs + MAX_BLOCKS.min(self.blocks()) * POINTS * ROWS_OF_BLOCK * COLUMNS
    }

    fn planes_floats(&self, g: &Geometry) -> usize {
        let channels = g.images * self.layout.groups * self.layout.channels;
        (channels * g.channel_len + SLACK).next_multiple_of(16)
    }
}

/// The convolution of tiles that a weight `w` = [M, C/groups, 3, 3] becomes.
fn tiles(w: &[usize], pads: &[usize], groups: usize) -> Layout {
    Layout::plain(&[w[0], w[1], 4, 4], &[2, 2], pads, &[1, 1], groups)
}

/// The transformed values of a weight `w` = [M, C/groups, 3, 3].
pub(super) fn pack(w: &[usize], values: &[f32], groups: usize) -> Vec<f32> {
    let (rows, channels) = (w[0] / groups, w[1]);
    let blocks = rows.div_ceil(ROWS_OF_BLOCK);
    let block_len = POINTS * channels * ROWS_OF_BLOCK;
    let mut weights = vec![0f32; groups * blocks * block_len];
    for group in 0..groups {
        for row in 0..rows {
            let block = (group * blocks + row / ROWS_OF_BLOCK) * block_len;
            for channel in 0..channels {
                let matrix = (group * rows + row) * channels + channel;
                let points = transformed(&values[matrix * 9..][..9]);
                for (point, value) in points.into_iter().enumerate() {
                    let k = point * channels + channel;
                    weights[block + k * ROWS_OF_BLOCK + row % ROWS_OF_BLOCK] = value;
                }
            }
        }
    }
    weights
}

/// `G g Gᵀ` of a 3x3 kernel.
fn transformed(kernel: &[f32]) -> [f32; POINTS] {
    let line = |[a, b, c]: [f64; 3]| [a, (a + b + c) / 2.0, (a - b + c) / 2.0, c];
    let k = |row: usize, column: usize| f64::from(kernel[row * 3 + column]);
    // [column of the kernel][row of the result]
    let columns = [0, 1, 2].map(|c| line([k(0, c), k(1, c), k(2, c)]));
    let mut points = [0f32; POINTS];
    for row in 0..4 {
        let across = line([columns[0][row], columns[1][row], columns[2][row]]);
        for (column, value) in across.into_iter().enumerate() {
            points[row * 4 + column] = value as f32;
        }
    }
    points
}

impl Kernel for Winograd {
    fn reads(&self, input: usize) -> bool {
        input != 1
    }

    fn overwrites(&self, input: usize) -> bool {
        input > 2
    }

    fn scratch(&self, limits: &[RawTensor]) -> usize {
        let (x, y) = (&limits[0], &limits[limits.len() - 1]);
        let g = self.geometry(&x.dims[..x.rank], &y.dims[..y.rank]);
        (self.planes_floats(&g) + self.threads * self.own_floats()) * size_of::<f32>()
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let layout = &self.layout;
        let shape = io.out_dims(0);
        let g = self.geometry(io.dims(0), shape);
        let out_len = shape[2] * shape[3];
        if g.images * out_len == 0 {
            return Ok(());
        }
        let x = io.slice::<f32>(0);
        let bias = (io.inputs.len() > 2).then(|| io.slice::<f32>(2));
        let residuals = Residuals::of(io);
        let scratch = io.scratch::<f32>();
        let own = self.planes_floats(&g);
        assert!(own + self.threads * self.own_floats() <= scratch.len(), "scratch of other shapes");
        io.each(g.images * layout.groups * layout.channels, |c| {
            let from = &x[c * g.in_len..][..g.in_len];
            // SAFETY: channels are disjoint.
            let to = unsafe { scratch.range(c * g.channel_len, g.channel_len) };
            self.isa.run(Fill { layout, geometry: &g, from, slope: self.slope, to });
        });
        io.next_phase();

        let blocks = self.blocks();
        let tiles = layout.positions(&g, 0).div_ceil(COLUMNS);
        let products = g.images * layout.groups * tiles;
        let mut chunk = MAX_BLOCKS.min(blocks);
        // Every chunk transforms its input again, so not into more chunks than there must be.
        while chunk > 2 && products * blocks.div_ceil(chunk) < ENOUGH_UNITS / 4 {
            chunk = chunk.div_ceil(2);
        }
        let deal = Deal::new(products, blocks, chunk, self.threads);
        let block_len = POINTS * layout.channels * ROWS_OF_BLOCK;
        let out = io.output::<f32>(0);
        let own = scratch.start().wrapping_add(own + io.worker.index * self.own_floats());
        io.each(deal.units(), |unit| {
            let (rest, block, count) = deal.unit(unit);
            if count == 0 {
                return;
            }
            let (product, tile) = (rest / tiles, rest % tiles);
            let group = product % layout.groups;
            let row = block * ROWS_OF_BLOCK;
            let at = (product * layout.rows + row) * out_len;
            let planes = product * layout.channels * g.channel_len;
            self.isa.run(Unit {
                winograd: self,
                geometry: &g,
                shape: [shape[2], shape[3]],
                position: tile * COLUMNS,
                planes: scratch.start().wrapping_add(planes),
                weights: &self.weights[(group * blocks + block) * block_len..][..count * block_len],
                rows: (layout.rows - row).min(count * ROWS_OF_BLOCK),
                bias: bias.map(|b| &b[group * layout.rows + row..]),
                residuals: residuals.from(at),
                own,
                out: out.start().wrapping_add(at),
                out_floats: out.len() - at,
            });
        });
        Ok(())
    }
}

/// The outputs of 48 tiles for a chunk of output channels.
struct Unit<'a> {
    winograd: &'a Winograd,
    geometry: &'a Geometry,
    /// Rows and columns of an output channel.
    shape: [usize; 2],
    /// The first tile.
    position: usize,
    /// The planes of the group's first channel.
    planes: *const f32,
    weights: &'a [f32],
    rows: usize,
    bias: Option<&'a [f32]>,
    /// Added before the activation.
    residuals: Residuals,
    /// The worker's own floats.
    own: *mut f32,
    /// The chunk's first output channel, and the floats from there to the end.
    out: *mut f32,
    out_floats: usize,
}

/// Tiles of a vector that lie side by side in the output.
#[derive(Clone, Copy, Default)]
struct Run {
    lane: usize,
    /// Where its first output lies in a channel, and how many follow in that row.
    place: usize,
    outputs: usize,
    /// Whether there is a second row.
    both: bool,
}

impl SimdOp for Unit<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let (layout, g) = (&self.winograd.layout, self.geometry);
        let left = layout.positions(g, 0) - self.position;
        let vectors = left.min(COLUMNS).div_ceil(LANES);
        let step = CHANNELS.min(layout.channels);
        let products = self.own.wrapping_add(POINTS * step * COLUMNS);
        let blocks = self.rows.div_ceil(ROWS_OF_BLOCK);
        let block_len = POINTS * layout.channels * ROWS_OF_BLOCK;
        let mut offsets = [0usize; POINTS];
        for (offset, tap) in offsets.iter_mut().zip(&layout.parts[0].taps) {
            *offset = layout.place(g, tap) + self.position;
        }
        let mut from = 0;
        while from < layout.channels {
            let count = step.min(layout.channels - from);
            for channel in 0..count {
                let planes = self.planes.wrapping_add((from + channel) * g.channel_len);
                let to = self.own.wrapping_add(channel * COLUMNS);
                for vector in 0..vectors {
                    // SAFETY: tiles lie in the planes, with `SLACK` floats behind them; the
                    // worker's floats hold `step` channels of each point.
                    unsafe { self.transform(s, planes, &offsets, to, step, vector) };
                }
            }
            for block in 0..blocks {
                for point in 0..POINTS {
                    let first =
                        block * block_len + (point * layout.channels + from) * ROWS_OF_BLOCK;
                    let w = &self.weights[first..][..count * ROWS_OF_BLOCK];
                    let tile = Tile {
                        w: w.as_ptr(),
                        x: self.own.wrapping_add(point * step * COLUMNS),
                        offsets: std::ptr::null(),
                        apart: Some(COLUMNS),
                        len: count,
                        resume: from > 0,
                        sums: products
                            .wrapping_add((block * POINTS + point) * ROWS_OF_BLOCK * COLUMNS),
                    };
                    // SAFETY: `count` rows of weights and of transformed inputs; the products are
                    // this worker's.
                    unsafe { tile.rows::<S, ROWS_OF_BLOCK>(s, vectors) };
                }
            }
            from += count;
        }
        self.store(s, products, left.min(COLUMNS));
    }
}

/// `Bᵀ d`: four elements of a tile.
#[inline(always)]
fn forward<S: Isa>(s: S, d: [S::F; 4]) -> [S::F; 4] {
    [s.sub(d[0], d[2]), s.add(d[1], d[2]), s.sub(d[2], d[1]), s.sub(d[1], d[3])]
}

/// `Aᵀ m`: four products to two outputs.
#[inline(always)]
fn backward<S: Isa>(s: S, m: [S::F; 4]) -> [S::F; 2] {
    let (sum, difference) = (s.add(m[1], m[2]), s.sub(m[1], m[2]));
    [s.add(m[0], sum), s.sub(difference, m[3])]
}

impl Unit<'_> {
    /// `Bᵀ d B` of 16 tiles of a channel.
    ///
    /// # Safety
    /// The tiles are readable; `to` is writable for every point.
    #[inline(always)]
    unsafe fn transform<S: Isa>(
        &self,
        s: S,
        planes: *const f32,
        offsets: &[usize; POINTS],
        to: *mut f32,
        step: usize,
        vector: usize,
    ) {
        let mut d = [[s.splat(0.0); 4]; 4];
        for (i, row) in d.iter_mut().enumerate() {
            for (j, value) in row.iter_mut().enumerate() {
                // SAFETY: the caller's contract.
                *value = unsafe { s.load(planes.add(offsets[i * 4 + j] + vector * LANES)) };
            }
            *row = forward(s, *row);
        }
        for j in [0, 1, 2, 3] {
            let column = forward(s, [d[0][j], d[1][j], d[2][j], d[3][j]]);
            for (i, value) in column.into_iter().enumerate() {
                let at = (i * 4 + j) * step * COLUMNS + vector * LANES;
                // SAFETY: the caller's contract.
                unsafe { s.store(to.add(at), value) };
            }
        }
    }

    /// Transforms the products back, adds the bias, activates, and stores.
    #[inline(always)]
    fn store<S: Isa>(&self, s: S, products: *const f32, tiles: usize) {
        let [height, width] = self.shape;
        assert!(self.rows * height * width <= self.out_floats);
        for vector in 0..tiles.div_ceil(LANES) {
            let (runs, n_runs) = self.runs(vector, tiles);
            for row in 0..self.rows {
                let (block, in_block) = (row / ROWS_OF_BLOCK, row % ROWS_OF_BLOCK);
                let first = (block * POINTS * ROWS_OF_BLOCK + in_block) * COLUMNS + vector * LANES;
                let mut m = [[s.splat(0.0); 4]; 4];
                for (i, line) in m.iter_mut().enumerate() {
                    for (j, value) in line.iter_mut().enumerate() {
                        let at = first + (i * 4 + j) * ROWS_OF_BLOCK * COLUMNS;
                        // SAFETY: the products hold every point of the chunk's rows.
                        *value = unsafe { s.load(products.add(at)) };
                    }
                }
                // [row of the output][column of the products]
                let mut turned = [[s.splat(0.0); 4]; 2];
                for j in [0, 1, 2, 3] {
                    let [upper, lower] = backward(s, [m[0][j], m[1][j], m[2][j], m[3][j]]);
                    (turned[0][j], turned[1][j]) = (upper, lower);
                }
                let bias = s.splat(self.bias.map_or(0.0, |b| b[row]));
                for (i, points) in turned.into_iter().enumerate() {
                    let [even, odd] = backward(s, points);
                    let (mut even, mut odd) = (s.add(even, bias), s.add(odd, bias));
                    for residual in self.residuals.each() {
                        let runs = &runs[..n_runs];
                        // SAFETY: the chunk's channels lie there as in the output.
                        let [more_even, more_odd] =
                            unsafe { self.residual_of(residual, row, i, runs) };
                        even = s.add(even, s.load_partial(&more_even));
                        odd = s.add(odd, s.load_partial(&more_odd));
                    }
                    let even = self.winograd.activation.apply(s, even);
                    let odd = self.winograd.activation.apply(s, odd);
                    let (even, odd) = (s.to_array(even), s.to_array(odd));
                    let mut line = [0f32; 2 * LANES];
                    for lane in 0..LANES {
                        line[2 * lane] = even[lane];
                        line[2 * lane + 1] = odd[lane];
                    }
                    for run in &runs[..n_runs] {
                        if i == 1 && !run.both {
                            continue;
                        }
                        let at = row * height * width + run.place + i * width;
                        // SAFETY: a run lies inside its channel; the assertion above keeps
                        // channels inside the output.
                        unsafe {
                            let to = self.out.add(at);
                            let from = line.as_ptr().add(2 * run.lane);
                            std::ptr::copy_nonoverlapping(from, to, run.outputs);
                        }
                    }
                }
            }
        }
    }

    /// What is added to the even and to the odd outputs of a row of the tiles in `runs`.
    ///
    /// # Safety
    /// The chunk's channels are readable at `residual`.
    #[inline(always)]
    unsafe fn residual_of(
        &self,
        residual: *const f32,
        row: usize,
        line: usize,
        runs: &[Run],
    ) -> [[f32; LANES]; 2] {
        let [height, width] = self.shape;
        let mut both = [[0f32; LANES]; 2];
        for run in runs.iter().filter(|run| line == 0 || run.both) {
            let at = row * height * width + run.place + line * width;
            for i in 0..run.outputs {
                // SAFETY: a run lies inside its channel.
                both[i % 2][run.lane + i / 2] = unsafe { *residual.add(at + i) };
            }
        }
        both
    }

    /// The runs of a vector of tiles.
    #[inline(always)]
    fn runs(&self, vector: usize, tiles: usize) -> ([Run; LANES], usize) {
        let [height, width] = self.shape;
        let (pitch, across) = (self.geometry.pitch(), width.div_ceil(2));
        let (mut runs, mut count) = ([Run::default(); LANES], 0);
        let mut lane = 0;
        let end = LANES.min(tiles - vector * LANES);
        while lane < end {
            let position = self.position + vector * LANES + lane;
            let (down, right) = (position / pitch, position % pitch);
            if right >= across {
                lane += pitch - right;
                continue;
            }
            let n = (across - right).min(end - lane);
            runs[count] = Run {
                lane,
                place: 2 * down * width + 2 * right,
                outputs: (2 * n).min(width - 2 * right),
                both: 2 * down + 1 < height,
            };
            count += 1;
            lane += n;
        }
        (runs, count)
    }
}
