//! Convolutions as implicit products.
//!
//! The one idea: pad the input once, with the elements of each stride phase side by side, and every
//! tap of a window becomes a constant offset into that copy. A row of outputs is then a row of
//! vectors that starts somewhere else for each (channel, tap), and the convolution is a matrix
//! product whose right operand is never made. Outputs are numbered by position in the padded
//! planes, so that a few at the end of each row are computed and dropped. Lanes are positions;
//! the sum of an output goes over channels, then taps, one fused multiply-add each, whatever the
//! tile. A transposed convolution is one such product for each phase of its stride.
//!
//! Long inputs of one axis have no planes as a whole: each worker copies a band of positions of all
//! channels, which stays in its second-level cache, and computes the band's outputs.

mod few;
mod product;
mod winograd;

use std::sync::Arc;

use cyb_exec::{Call, ExecError};
use cyb_simd::AnyIsa;
use cyb_tensor::Tensor;

use self::few::Few;
use self::product::{COLUMNS, Fill, FillBand, ROWS_OF_BLOCK, Residuals, Unit};
use self::winograd::Winograd;
use super::geometry::{Geometry, Layout, MAX_AXES, Part};
use super::{attrs_of, decode_row, decodes};
use crate::activation::Activation;
use crate::io::{Io, RawTensor, Shared};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[
    Row { op: "conv", name: "conv_f32", supports: fits, build },
    Row { op: "conv_activation", name: "conv_f32", supports: fits, build },
    Row { op: "conv_add", name: "conv_f32", supports: fits, build },
    Row { op: "conv_transpose", name: "conv_transpose_f32", supports: fits, build },
];

/// Blocks of output channels that are computed while a tile of the input stays in the first-level
/// cache.
const MAX_BLOCKS: usize = 8;
/// Units that a step should have, so that the threads end together.
const ENOUGH_UNITS: usize = 24;
/// Floats behind the padded planes that the last tile may read.
const SLACK: usize = 2 * COLUMNS;
/// Floats of planes from which they are made in bands, and of a band.
const LONG: usize = 1 << 17;
const BAND: usize = 1 << 15;
/// Bands that a step should have at least.
const ENOUGH_BANDS: usize = 8;

fn fits(call: &Call<'_>) -> bool {
    let (x, w) = (call.inputs[0], call.inputs[1]);
    let floats = [Some(&x), Some(&call.outputs[0]), call.inputs.get(2), call.inputs.get(3)];
    floats.into_iter().flatten().all(|f| f.dtype == cyb_tensor::DType::F32)
        && (3..=2 + MAX_AXES).contains(&x.rank())
        && call.fixed[1]
        && decodes(w.dtype)
        && w.shape.iter().all(|d| d.known().is_some())
}

#[derive(Debug)]
struct Conv {
    layout: Layout,
    /// For each part, group and block of rows: `k` by [`ROWS_OF_BLOCK`] weights.
    weights: Arc<Vec<Vec<f32>>>,
    rows_of_block: usize,
    activation: Activation,
    /// Of the `leaky_relu` that the input goes through; 1 where it does not.
    slope: f32,
    isa: AnyIsa,
    threads: usize,
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let attrs = attrs_of(&b.node.op);
    let transposed = b.node.op.name() == "conv_transpose";
    let fail = |why: String| ExecError::Step { step: format!("packing {}", b.node.label), why };
    let weight = b.graph.tensor(b.node.inputs[1]).ok_or_else(|| fail("no weight".into()))?;
    let shape = weight.shape();
    let activation = Activation::of(&attrs)?;
    let slope = match attrs.get("input_slope") {
        None => 1.0,
        Some(_) => attrs.float("input_slope")? as f32,
    };
    let (strides, dilations) = (attrs.sizes("strides")?, attrs.sizes("dilations")?);
    let (pads, groups) = (attrs.sizes("pads")?, attrs.size("groups")?);
    let threads = b.team.count();
    let shape = shape.to_vec();
    if let Some(few) = Few::build(b, &shape, activation, slope)? {
        return Ok(Box::new(few));
    }
    let shape = shape.as_slice();
    if !transposed && winograd::pays(shape, &strides, &dilations, groups) {
        let form = format!("winograd of {groups}");
        let weights = b.pack_as(b.node.inputs[1], &form, |weight| {
            Ok(winograd::pack(shape, &decoded(weight)?, groups))
        })?;
        let bends = (activation, slope);
        let kernel = Winograd::new(shape, weights, &pads, groups, bends, b.isa, threads);
        return Ok(Box::new(kernel));
    }
    let layout = match transposed {
        false => Layout::plain(shape, &strides, &pads, &dilations, groups),
        true => Layout::transposed(shape, &strides, &pads, &dilations, groups),
    };
    let layout = if slope == 1.0 { layout } else { layout.with_planes() };
    let rows_of_block = if layout.rows < 4 { 1 } else { ROWS_OF_BLOCK };
    let form = format!("conv {transposed} {strides:?} {dilations:?} {pads:?} {groups}");
    let weights = b.pack_as(b.node.inputs[1], &form, |weight| {
        let values = decoded(weight)?;
        let each = layout.parts.iter();
        Ok(each.map(|part| pack(&layout, part, &values, rows_of_block, transposed)).collect())
    })?;
    Ok(Box::new(Conv { weights, layout, rows_of_block, activation, slope, isa: b.isa, threads }))
}

fn decoded(weight: &Tensor) -> Result<Vec<f32>, String> {
    let mut values = vec![0f32; weight.elems()];
    decode_row(weight.dtype(), weight.bytes().as_slice(), &mut values)?;
    Ok(values)
}

fn pack(
    layout: &Layout,
    part: &Part,
    values: &[f32],
    rows_of_block: usize,
    transposed: bool,
) -> Vec<f32> {
    let (rows, channels, taps) = (layout.rows, layout.channels, part.taps.len());
    let blocks = rows.div_ceil(rows_of_block);
    let block_len = channels * taps * rows_of_block;
    let mut packed = vec![0f32; layout.groups * blocks * block_len];
    let all = layout.kernel_len;
    for group in 0..layout.groups {
        for row in 0..rows {
            let block = group * blocks + row / rows_of_block;
            for channel in 0..channels {
                let matrix = match transposed {
                    false => (group * rows + row) * channels + channel,
                    true => (group * channels + channel) * rows + row,
                };
                for (t, tap) in part.taps.iter().enumerate() {
                    let k = channel * taps + t;
                    let at = block * block_len + k * rows_of_block + row % rows_of_block;
                    packed[at] = values[matrix * all + tap.kernel];
                }
            }
        }
    }
    packed
}

/// Where things lie in the scratch, in floats from its start.
struct Regions {
    /// Offsets of each part's (channel, tap), as `i32`.
    offsets: usize,
    planes: usize,
    /// The last, partial vector of each channel where the input itself serves as the planes.
    tail: usize,
    sums: usize,
    end: usize,
}

/// The positions of a long line that are computed at a time.
#[derive(Clone, Copy, Debug)]
struct Bands {
    positions: usize,
    count: usize,
    /// Floats of a channel: the positions, and what taps reach beyond them.
    len: usize,
}

impl Conv {
    /// How lines are cut, if they are.
    fn bands(&self, g: &Geometry) -> Option<Bands> {
        let layout = &self.layout;
        let all = layout.channels * g.channel_len;
        if !layout.is_line(g) || g.direct || all < LONG {
            return None;
        }
        let reach = layout.reach();
        let positions = (BAND / layout.channels).max(4 * reach) / COLUMNS * COLUMNS;
        let positions = positions.max(COLUMNS);
        let most = (0..layout.parts.len()).map(|part| layout.positions(g, part)).max()?;
        let count = most.div_ceil(positions);
        let bands = Bands { positions, count, len: (positions + reach).next_multiple_of(16) };
        (count * g.images * layout.groups >= ENOUGH_BANDS).then_some(bands)
    }

    fn regions(&self, g: &Geometry) -> Regions {
        let all_taps: usize = self.layout.parts.iter().map(|p| p.taps.len()).sum();
        let planes = (all_taps * self.layout.channels).next_multiple_of(16);
        let channels = g.images * self.layout.groups * self.layout.channels;
        let copied = match self.bands(g) {
            Some(bands) => self.threads * self.band_floats(&bands),
            None if g.direct => 0,
            None => channels * g.channel_len + SLACK,
        };
        let tail = planes + copied.next_multiple_of(16);
        let sums = tail + if g.direct { channels * 16 + SLACK } else { 0 };
        let end = sums + self.threads * MAX_BLOCKS * self.rows_of_block * COLUMNS;
        Regions { offsets: 0, planes, tail, sums, end }
    }

    /// Floats of a worker's band.
    fn band_floats(&self, bands: &Bands) -> usize {
        self.layout.channels * bands.len + SLACK
    }
}

/// How blocks of rows of tiles are dealt out: tile by tile in chunks, and the last few chunks, which
/// some workers would wait for, in pieces.
#[derive(Clone, Copy, Debug)]
struct Deal {
    blocks: usize,
    /// Blocks of a chunk, and chunks of a tile.
    chunk: usize,
    chunks: usize,
    /// Chunks that are not cut, of all tiles.
    whole: usize,
    /// Blocks of a piece of the others, pieces of a chunk, and all pieces.
    piece: usize,
    pieces: usize,
    all_pieces: usize,
}

impl Deal {
    /// Chunks to a worker from which it does not matter that they do not come out even.
    const MANY: usize = 32;

    fn new(tiles: usize, blocks: usize, chunk: usize, workers: usize) -> Deal {
        let chunks = blocks.div_ceil(chunk);
        let all = tiles * chunks;
        let left = if all < Deal::MANY * workers { all % workers } else { 0 };
        let parts = if left == 0 { 1 } else { workers.div_ceil(left).min(chunk) };
        let piece = chunk.div_ceil(parts);
        let pieces = chunk.div_ceil(piece);
        Deal { blocks, chunk, chunks, whole: all - left, piece, pieces, all_pieces: left * pieces }
    }

    fn units(&self) -> usize {
        self.whole + self.all_pieces
    }

    /// The tile of a unit, its first block, and how many blocks it has, none perhaps.
    fn unit(&self, unit: usize) -> (usize, usize, usize) {
        let (number, from, len) = match unit.checked_sub(self.whole) {
            None => (unit, 0, self.chunk),
            Some(piece) => {
                let from = piece % self.pieces * self.piece;
                (self.whole + piece / self.pieces, from, self.piece.min(self.chunk - from))
            }
        };
        let block = number % self.chunks * self.chunk + from;
        (number / self.chunks, block, len.min(self.blocks.saturating_sub(block)))
    }
}

/// Blocks of rows of a chunk, so that there are enough chunks.
fn chunk_of(tiles: usize, blocks: usize) -> usize {
    let mut chunk = MAX_BLOCKS.min(blocks).max(1);
    while chunk > 1 && tiles * blocks.div_ceil(chunk) < ENOUGH_UNITS {
        chunk = chunk.div_ceil(2);
    }
    chunk
}

/// A run of the kernel: its operands, and where things are.
struct Running<'a> {
    conv: &'a Conv,
    g: Geometry,
    regions: Regions,
    x: &'a [f32],
    bias: Option<&'a [f32]>,
    residuals: Residuals,
    out: Shared<'a, f32>,
    /// This worker's running sums.
    sums: *mut f32,
}

impl Kernel for Conv {
    fn reads(&self, input: usize) -> bool {
        input != 1
    }

    fn overwrites(&self, input: usize) -> bool {
        input > 2
    }

    fn scratch(&self, limits: &[RawTensor]) -> usize {
        let (x, y) = (&limits[0], &limits[limits.len() - 1]);
        let g = self.layout.geometry(&x.dims[..x.rank], &y.dims[..y.rank]);
        self.regions(&g).end * size_of::<f32>()
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let layout = &self.layout;
        let g = layout.geometry(io.dims(0), io.out_dims(0));
        if g.images * g.out_len == 0 {
            return Ok(());
        }
        let regions = self.regions(&g);
        let scratch = io.scratch::<f32>();
        assert!(regions.end <= scratch.len(), "the scratch was made for smaller shapes");
        if layout.channels * g.channel_len > i32::MAX as usize || g.out_len > i32::MAX as usize {
            return Err("a group of channels has more than 2^31 elements".to_owned());
        }
        let bands = self.bands(&g);
        let apart = bands.map_or(g.channel_len, |bands| bands.len);

        // Phase 1: offsets, and the padded planes.
        let offset_ints = io.scratch::<i32>();
        let mut first = regions.offsets;
        for part in &layout.parts {
            let taps = part.taps.len();
            let share = io.worker.share(layout.channels);
            // SAFETY: shares are disjoint, and each part has its own range.
            let mine = unsafe { offset_ints.range(first + share.start * taps, share.len() * taps) };
            let places = share.flat_map(|c| part.taps.iter().map(move |t| (c, t)));
            for (slot, (c, tap)) in mine.iter_mut().zip(places) {
                *slot = (c * apart + layout.place(&g, tap)) as i32;
            }
            first += layout.channels * taps;
        }
        let sums_len = MAX_BLOCKS * self.rows_of_block * COLUMNS;
        let running = Running {
            conv: self,
            x: io.slice::<f32>(0),
            bias: (io.inputs.len() > 2).then(|| io.slice::<f32>(2)),
            residuals: Residuals::of(io),
            out: io.output::<f32>(0),
            sums: scratch.start().wrapping_add(regions.sums + io.worker.index * sums_len),
            g,
            regions,
        };
        match bands {
            None => running.with_planes(io),
            Some(bands) => running.in_bands(io, bands),
        }
        Ok(())
    }
}

impl Running<'_> {
    /// Offsets of a part's taps.
    ///
    /// # Safety
    /// They have been written, and nobody writes them now.
    unsafe fn offsets(&self, io: &Io<'_>, part: usize) -> &[i32] {
        let layout = &self.conv.layout;
        let before: usize = layout.parts[..part].iter().map(|p| p.taps.len()).sum();
        let first = self.regions.offsets + layout.channels * before;
        let len = layout.channels * layout.parts[part].taps.len();
        // SAFETY: the caller's contract; they lie inside the scratch.
        unsafe { std::slice::from_raw_parts(io.scratch::<i32>().start().add(first), len) }
    }

    /// The outputs of a tile of a part for some blocks of rows.
    fn unit(
        &self,
        offsets: &[i32],
        product: usize,
        (part, position): (usize, usize),
        (block, count): (usize, usize),
        planes: *const f32,
        tail: *const f32,
    ) {
        let (conv, g) = (self.conv, &self.g);
        let layout = &conv.layout;
        let group = product % layout.groups;
        let blocks = layout.rows.div_ceil(conv.rows_of_block);
        let row = block * conv.rows_of_block;
        let at = (product * layout.rows + row) * g.out_len;
        let block_len = offsets.len() * conv.rows_of_block;
        conv.isa.run(Unit {
            layout,
            geometry: g,
            part,
            position,
            planes,
            tail,
            offsets,
            weights: &conv.weights[part][(group * blocks + block) * block_len..],
            rows_of_block: conv.rows_of_block,
            rows: (layout.rows - row).min(count * conv.rows_of_block),
            bias: self.bias.map(|b| &b[group * layout.rows + row..]),
            residuals: self.residuals.from(at),
            activation: conv.activation,
            sums: self.sums,
            out: self.out.start().wrapping_add(at),
            out_floats: self.out.len() - at,
        });
    }

    /// All planes first, then all products.
    fn with_planes(&self, io: &Io<'_>) {
        let (conv, g, regions, x) = (self.conv, &self.g, &self.regions, self.x);
        let layout = &conv.layout;
        let scratch = io.scratch::<f32>();
        let channels = g.images * layout.groups * layout.channels;
        let whole = g.in_len / 16 * 16;
        io.each(channels, |c| {
            let from = &x[c * g.in_len..][..g.in_len];
            if g.direct {
                // SAFETY: channels are disjoint.
                let to = unsafe { scratch.range(regions.tail + c * 16, 16) };
                to[..g.in_len - whole].copy_from_slice(&from[whole..]);
            } else {
                let at = regions.planes + c * g.channel_len;
                // SAFETY: channels are disjoint.
                let to = unsafe { scratch.range(at, g.channel_len) };
                conv.isa.run(Fill { layout, geometry: g, from, slope: conv.slope, to });
            }
        });
        io.next_phase();

        let blocks = layout.rows.div_ceil(conv.rows_of_block);
        let tiles_of = |part: usize| layout.positions(g, part).div_ceil(COLUMNS);
        let tiles: usize = (0..layout.parts.len()).map(tiles_of).sum();
        let products = g.images * layout.groups * tiles;
        let deal = Deal::new(products, blocks, chunk_of(products, blocks), conv.threads);
        io.each(deal.units(), |unit| {
            let (rest, block, count) = deal.unit(unit);
            if count == 0 {
                return;
            }
            let (product, mut tile) = (rest / tiles, rest % tiles);
            let mut part = 0;
            while tile >= tiles_of(part) {
                tile -= tiles_of(part);
                part += 1;
            }
            // SAFETY: phase 1 wrote offsets and planes, and nobody writes them now.
            let offsets = unsafe { self.offsets(io, part) };
            let first_channel = product * layout.channels;
            let planes: *const f32 = if g.direct {
                x[first_channel * g.in_len..].as_ptr()
            } else {
                scratch.start().wrapping_add(regions.planes + first_channel * g.channel_len)
            };
            let tail: *const f32 = scratch.start().wrapping_add(regions.tail + first_channel * 16);
            self.unit(offsets, product, (part, tile * COLUMNS), (block, count), planes, tail);
        });
    }

    /// Band by band: a worker's planes are its own, and all rows are computed from them.
    fn in_bands(&self, io: &Io<'_>, bands: Bands) {
        io.next_phase();
        let (conv, g) = (self.conv, &self.g);
        let layout = &conv.layout;
        let floats = conv.band_floats(&bands);
        let own = self.regions.planes + io.worker.index * floats;
        // SAFETY: every worker has a part of its own.
        let planes = unsafe { io.scratch::<f32>().range(own, floats) };
        let group_len = layout.channels * g.in_len;
        let blocks = layout.rows.div_ceil(conv.rows_of_block);
        io.each(g.images * layout.groups * bands.count, |unit| {
            let (product, band) = (unit / bands.count, unit % bands.count);
            let position = band * bands.positions;
            conv.isa.run(FillBand {
                layout,
                from: &self.x[product * group_len..][..group_len],
                channel_len: g.in_len,
                slope: conv.slope,
                position,
                to: &mut planes[..layout.channels * bands.len],
                band_len: bands.len,
            });
            // Where position 0 would lie.
            let start = planes.as_ptr().wrapping_sub(position);
            for part in 0..layout.parts.len() {
                // SAFETY: phase 1 wrote offsets, and nobody writes them now.
                let offsets = unsafe { self.offsets(io, part) };
                let end = layout.positions(g, part).min(position + bands.positions);
                for tile in (position..end).step_by(COLUMNS) {
                    for block in (0..blocks).step_by(MAX_BLOCKS) {
                        let count = MAX_BLOCKS.min(blocks - block);
                        let tail = std::ptr::null();
                        self.unit(offsets, product, (part, tile), (block, count), start, tail);
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_of_every_tile_is_dealt_once() {
        for (tiles, blocks, chunk, workers) in
            (1..12).flat_map(|t| (1..12).map(move |b| (t, b))).flat_map(|(t, b)| {
                let chunks = (1..=b).flat_map(|c| [1, 2, 3, 8].map(|w| (c, w)));
                chunks.map(move |(c, w)| (t, b, c, w))
            })
        {
            let deal = Deal::new(tiles, blocks, chunk, workers);
            let mut done = vec![0; tiles * blocks];
            for unit in 0..deal.units() {
                let (tile, block, count) = deal.unit(unit);
                let rows = done[tile * blocks..].iter_mut().skip(block).take(count);
                rows.for_each(|n| *n += 1);
            }
            assert!(done.iter().all(|n| *n == 1), "{deal:?}");
        }
    }
}
