//! Convolutions as implicit products.
//!
//! The one idea: pad the input once, with the elements of each stride phase side by side, and every
//! tap of a window becomes a constant offset into that copy. A row of outputs is then a row of
//! vectors that starts somewhere else for each (channel, tap), and the convolution is a matrix
//! product whose right operand is never made. Outputs are numbered by position in the padded
//! planes, so that a few at the end of each row are computed and dropped. Lanes are positions;
//! the sum of an output goes over channels, then taps, one fused multiply-add each, whatever the
//! tile. A transposed convolution is one such product for each phase of its stride.

mod product;
mod winograd;

use std::sync::Arc;

use cyb_exec::{Call, ExecError};
use cyb_simd::AnyIsa;
use cyb_tensor::Tensor;

use self::product::{Activation, COLUMNS, Fill, ROWS_OF_BLOCK, Unit};
use self::winograd::Winograd;
use super::geometry::{Geometry, Layout, MAX_AXES, Part};
use super::{attrs_of, decode_row, decodes};
use crate::io::{Io, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[
    Row { op: "conv", name: "conv_f32", supports: fits, build },
    Row { op: "conv_activation", name: "conv_f32", supports: fits, build },
    Row { op: "conv_transpose", name: "conv_transpose_f32", supports: fits, build },
];

/// Blocks of output channels that are computed while a tile of the input stays in the first-level
/// cache.
const MAX_BLOCKS: usize = 8;
/// Units that a step should have, so that the threads end together.
const ENOUGH_UNITS: usize = 24;
/// Floats behind the padded planes that the last tile may read.
const SLACK: usize = 2 * COLUMNS;

fn fits(call: &Call<'_>) -> bool {
    let (x, w) = (call.inputs[0], call.inputs[1]);
    let floats = [Some(&x), Some(&call.outputs[0]), call.inputs.get(2)];
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
    isa: AnyIsa,
    threads: usize,
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let attrs = attrs_of(&b.node.op);
    let transposed = b.node.op.name() == "conv_transpose";
    let fail = |why: String| ExecError::Step { step: format!("packing {}", b.node.label), why };
    let weight = b.graph.tensor(b.node.inputs[1]).ok_or_else(|| fail("no weight".into()))?;
    let shape = weight.shape();
    let activation = match attrs.get("activation") {
        None => Activation::None,
        Some(_) => match attrs.text("activation")? {
            "silu" => Activation::Silu,
            "relu" => Activation::Relu,
            "sigmoid" => Activation::Sigmoid,
            "tanh" => Activation::Tanh,
            "gelu" => Activation::Gelu,
            _ => Activation::GeluTanh,
        },
    };
    let (strides, dilations) = (attrs.sizes("strides")?, attrs.sizes("dilations")?);
    let (pads, groups) = (attrs.sizes("pads")?, attrs.size("groups")?);
    let threads = b.team.count();
    if !transposed && winograd::pays(shape, &strides, &dilations, groups) {
        let form = format!("winograd of {groups}");
        let weights = b.pack_as(b.node.inputs[1], &form, |weight| {
            Ok(winograd::pack(shape, &decoded(weight)?, groups))
        })?;
        let kernel = Winograd::new(shape, weights, &pads, groups, activation, b.isa, threads);
        return Ok(Box::new(kernel));
    }
    let layout = match transposed {
        false => Layout::plain(shape, &strides, &pads, &dilations, groups),
        true => Layout::transposed(shape, &strides, &pads, &dilations, groups),
    };
    let rows_of_block = if layout.rows < 4 { 1 } else { ROWS_OF_BLOCK };
    let form = format!("conv {transposed} {strides:?} {dilations:?} {pads:?} {groups}");
    let weights = b.pack_as(b.node.inputs[1], &form, |weight| {
        let values = decoded(weight)?;
        let each = layout.parts.iter();
        Ok(each.map(|part| pack(&layout, part, &values, rows_of_block, transposed)).collect())
    })?;
    Ok(Box::new(Conv { weights, layout, rows_of_block, activation, isa: b.isa, threads }))
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

impl Conv {
    fn regions(&self, g: &Geometry) -> Regions {
        let all_taps: usize = self.layout.parts.iter().map(|p| p.taps.len()).sum();
        let planes = (all_taps * self.layout.channels).next_multiple_of(16);
        let channels = g.images * self.layout.groups * self.layout.channels;
        let copied = if g.direct { 0 } else { channels * g.channel_len + SLACK };
        let tail = planes + copied.next_multiple_of(16);
        let sums = tail + if g.direct { channels * 16 + SLACK } else { 0 };
        let end = sums + self.threads * MAX_BLOCKS * self.rows_of_block * COLUMNS;
        Regions { offsets: 0, planes, tail, sums, end }
    }

    /// Blocks of rows in one unit of work.
    fn chunk(&self, tiles: usize, blocks: usize) -> usize {
        let mut chunk = MAX_BLOCKS.min(blocks).max(1);
        while chunk > 1 && tiles * blocks.div_ceil(chunk) < ENOUGH_UNITS {
            chunk = chunk.div_ceil(2);
        }
        chunk
    }
}

impl Kernel for Conv {
    fn reads(&self, input: usize) -> bool {
        input != 1
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
        let x = io.slice::<f32>(0);
        let bias = (io.inputs.len() > 2).then(|| io.slice::<f32>(2));
        let regions = self.regions(&g);
        let scratch = io.scratch::<f32>();
        assert!(regions.end <= scratch.len(), "the scratch was made for smaller shapes");
        if layout.channels * g.channel_len > i32::MAX as usize || g.out_len > i32::MAX as usize {
            return Err("a group of channels has more than 2^31 elements".to_owned());
        }

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
                *slot = (c * g.channel_len + layout.place(&g, tap)) as i32;
            }
            first += layout.channels * taps;
        }
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
                self.isa.run(Fill { layout, geometry: &g, from, to });
            }
        });
        io.next_phase();

        // Phase 2: products.
        let blocks = layout.rows.div_ceil(self.rows_of_block);
        let tiles_of = |part: usize| layout.positions(&g, part).div_ceil(COLUMNS);
        let tiles: usize = (0..layout.parts.len()).map(tiles_of).sum();
        let products = g.images * layout.groups * tiles;
        let chunk = self.chunk(products, blocks);
        let chunks = blocks.div_ceil(chunk);
        let out = io.output::<f32>(0);
        let sums_len = MAX_BLOCKS * self.rows_of_block * COLUMNS;
        let sums = scratch.start().wrapping_add(regions.sums + io.worker.index * sums_len);
        io.each(products * chunks, |unit| {
            let (rest, chunk_idx) = (unit / chunks, unit % chunks);
            let (product, mut tile) = (rest / tiles, rest % tiles);
            let (mut part, mut first) = (0, regions.offsets);
            while tile >= tiles_of(part) {
                tile -= tiles_of(part);
                first += layout.channels * layout.parts[part].taps.len();
                part += 1;
            }
            let group = product % layout.groups;
            let k = layout.channels * layout.parts[part].taps.len();
            let block = chunk_idx * chunk;
            let position = tile * COLUMNS;
            let first_channel = product * layout.channels;
            // SAFETY: phase 1 wrote offsets and planes, and nobody writes them now.
            let offsets = unsafe { std::slice::from_raw_parts(offset_ints.start().add(first), k) };
            let planes: *const f32 = if g.direct {
                x[first_channel * g.in_len..].as_ptr()
            } else {
                scratch.start().wrapping_add(regions.planes + first_channel * g.channel_len)
            };
            let tail: *const f32 = scratch.start().wrapping_add(regions.tail + first_channel * 16);
            let row = block * self.rows_of_block;
            let at = (product * layout.rows + row) * g.out_len;
            self.isa.run(Unit {
                layout,
                geometry: &g,
                part,
                position,
                planes,
                tail,
                offsets,
                weights: &self.weights[part][(group * blocks + block) * k * self.rows_of_block..],
                rows_of_block: self.rows_of_block,
                rows: (layout.rows - row).min(chunk * self.rows_of_block),
                bias: bias.map(|b| &b[group * layout.rows + row..]),
                activation: self.activation,
                sums,
                out: out.start().wrapping_add(at),
                out_floats: out.len() - at,
            });
        });
        Ok(())
    }
}
