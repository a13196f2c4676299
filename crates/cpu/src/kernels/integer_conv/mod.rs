//! Convolutions of 8-bit codes, exact: `conv_integer`, and `conv_quantized` that gives codes again.
//!
//! As for floats, every tap of a window is a constant offset into padded planes; here an element of a
//! plane is four channels' codes side by side, which is what one dot product takes. Lanes are
//! positions, so results leave in the order in which they lie. With `x` and `w` the codes so shifted
//! that one is unsigned and the other signed, the sum over `(x - z)(w - y)` is
//! `sum(x w) - z sum(w) - y sum(x) + K z y`: sums of weights are known when they are packed, those over
//! windows are needed only where some `y` is not 0. Padding holds `z`. Everything is modulo 2^32, so
//! that order means nothing.

mod product;

use std::sync::Arc;

use cyb_exec::{Call, ExecError};
use cyb_ir::ValueId;
use cyb_simd::AnyIsa;
use cyb_tensor::{DType, Tensor};

use self::product::{COLUMNS, Epilogue, Fill, ROWS_OF_BLOCK, Rescale, Store, Unit};
use super::attrs_of;
use super::geometry::{Geometry, Layout, MAX_AXES};
use super::integer::{STEP, codes, form};
use crate::io::{Io, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[
    Row { op: "conv_integer", name: "conv_i8", supports: fits, build },
    Row { op: "conv_quantized", name: "conv_i8", supports: quantized_fits, build },
];

/// Blocks of output channels of a unit.
const MAX_BLOCKS: usize = 8;
/// Units that a step should have, so that the threads end together.
const ENOUGH_UNITS: usize = 24;
/// Words behind the planes that the last tile may read.
const SLACK: usize = 2 * COLUMNS;

fn fits(call: &Call<'_>) -> bool {
    let [x, w, x_zero, w_zero, ..] = call.inputs[..] else { return false };
    codes(x.dtype)
        && codes(w.dtype)
        && (3..=2 + MAX_AXES).contains(&x.rank())
        && x_zero.rank() == 0
        && w_zero.rank() <= 1
        && call.fixed[1]
        && call.fixed[3]
        && w.shape.iter().all(|d| d.known().is_some())
}

fn quantized_fits(call: &Call<'_>) -> bool {
    fits(call) && call.fixed[4..].iter().all(|&fixed| fixed)
}

/// Weights of codes, packed.
#[derive(Debug)]
struct Packed {
    /// For each group and block of output channels: 4 signed bytes of each channel for each quad of
    /// input channels and tap.
    tiles: Vec<i8>,
    /// For each quad and tap 1 where there is an input channel.
    ones: Vec<i8>,
    /// For each output channel its sum and its zero point.
    sums: Vec<i32>,
    zeros: Vec<i32>,
    /// Whether any zero point is not 0.
    shifted: bool,
}

#[derive(Debug)]
struct IntegerConv {
    /// Its input channels are quads.
    layout: Layout,
    weights: Arc<Packed>,
    rows_of_block: usize,
    /// Input channels of a group.
    channels: usize,
    /// How sums become codes, if they do.
    rescale: Option<Rescale>,
    isa: AnyIsa,
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let attrs = attrs_of(&b.node.op);
    let (strides, dilations) = (attrs.sizes("strides")?, attrs.sizes("dilations")?);
    let (pads, groups) = (attrs.sizes("pads")?, attrs.size("groups")?.max(1));
    let mut shape: Vec<usize> =
        b.graph.fact(b.node.inputs[1]).shape.iter().filter_map(|d| d.known()).collect();
    let channels = shape[1];
    shape[1] = channels.div_ceil(STEP);
    let layout = Layout::plain(&shape, &strides, &pads, &dilations, groups);
    let rows_of_block = if layout.rows < 4 { 1 } else { ROWS_OF_BLOCK };
    let zero = b.graph.tensor(b.node.inputs[3]).cloned();
    let kind = form(&format!("conv codes of {groups}"), zero.as_ref());
    let weights = b.pack_as(b.node.inputs[1], &kind, |w| {
        let Some(zero) = &zero else { return Err("it has no zero point".to_owned()) };
        Ok(pack(&layout, channels, rows_of_block, w, zero))
    })?;
    let rescale = match b.node.inputs[4..] {
        [] => None,
        ref rest => Some(rescale(b, rest, attrs.dtype("dtype")?)?),
    };
    let isa = b.isa;
    Ok(Box::new(IntegerConv { layout, weights, rows_of_block, channels, rescale, isa }))
}

/// From offsets, factors, bias, scale, zero point, and a table.
fn rescale(b: &Build<'_>, inputs: &[ValueId], to: DType) -> Result<Rescale, ExecError> {
    let fail = |why: &str| ExecError::Step {
        step: format!("conv_quantized {}", b.node.label),
        why: why.to_owned(),
    };
    let tensor = |i: usize| -> Result<&Tensor, ExecError> {
        let id = inputs.get(i).ok_or_else(|| fail("an input is missing"))?;
        b.graph.tensor(*id).ok_or_else(|| fail("only its input may be computed"))
    };
    let floats = |i: usize| tensor(i).and_then(|t| Ok(t.to_f32_vec()?));
    let (scale, zero) = (floats(3)?, tensor(4)?.bytes().as_slice().to_vec());
    let (&[scale], &[zero]) = (&scale[..], &zero[..]) else {
        return Err(fail("a scale and a zero point are one number"));
    };
    let signed = to == DType::I8;
    let zero = if signed { i32::from(zero.cast_signed()) } else { i32::from(zero) };
    let table = match inputs.get(5) {
        None => None,
        Some(_) => {
            let table = tensor(5)?.bytes().as_slice().first_chunk::<256>().copied();
            Some(table.ok_or_else(|| fail("a table has 256 codes"))?)
        }
    };
    let bias = floats(2)?;
    Ok(Rescale {
        offsets: tensor(0)?.to_vec::<i32>(DType::I32)?,
        factors: floats(1)?,
        bias: bias.iter().any(|&b| b != 0.0).then_some(bias),
        scale,
        zero,
        low: if signed { -128 } else { 0 },
        high: if signed { 127 } else { 255 },
        table,
    })
}

fn pack(
    layout: &Layout,
    channels: usize,
    rows_of_block: usize,
    w: &Tensor,
    zero: &Tensor,
) -> Packed {
    let signed = w.dtype() == DType::I8;
    // Unsigned codes less 128 are signed ones.
    let code = |b: u8| if signed { b.cast_signed() } else { (b ^ 0x80).cast_signed() };
    let taps = layout.kernel_len;
    let (rows, steps) = (layout.rows, layout.channels * taps);
    let blocks = rows.div_ceil(rows_of_block);
    let bytes = w.bytes().as_slice();
    let mut tiles = vec![0i8; layout.groups * blocks * steps * rows_of_block * STEP];
    let mut sums = vec![0i32; layout.groups * rows];
    for (row, sum) in sums.iter_mut().enumerate() {
        let (group, in_group) = (row / rows, row % rows);
        let block = group * blocks + in_group / rows_of_block;
        for channel in 0..channels {
            let codes = &bytes[(row * channels + channel) * taps..][..taps];
            for (tap, &byte) in codes.iter().enumerate() {
                let step = block * steps + channel / STEP * taps + tap;
                let place = step * rows_of_block + in_group % rows_of_block;
                tiles[place * STEP + channel % STEP] = code(byte);
                *sum += i32::from(code(byte));
            }
        }
    }
    let mut ones = vec![0i8; steps * STEP];
    for (i, one) in ones.iter_mut().enumerate() {
        *one = i8::from(i / (taps * STEP) * STEP + i % STEP < channels);
    }
    let given = zero.bytes().as_slice();
    let zeros: Vec<i32> = (0..sums.len())
        .map(|row| given.get(if given.len() == 1 { 0 } else { row }).copied())
        .map(|byte| byte.map_or(0, |b| i32::from(code(b))))
        .collect();
    let shifted = zeros.iter().any(|&z| z != 0);
    Packed { tiles, ones, sums, zeros, shifted }
}

/// Where things lie in the scratch, in words from its start.
struct Regions {
    /// Offsets of each quad and tap.
    offsets: usize,
    planes: usize,
    end: usize,
}

impl IntegerConv {
    fn steps(&self) -> usize {
        self.layout.channels * self.layout.kernel_len
    }

    fn regions(&self, g: &Geometry) -> Regions {
        let planes = self.steps().next_multiple_of(16);
        let quads = g.images * self.layout.groups * self.layout.channels;
        Regions { offsets: 0, planes, end: planes + quads * g.channel_len + SLACK }
    }
}

impl Kernel for IntegerConv {
    fn reads(&self, input: usize) -> bool {
        input == 0 || input == 2
    }

    fn reads_bytes(&self, _input: usize) -> bool {
        true
    }

    fn scratch(&self, limits: &[RawTensor]) -> usize {
        let (x, y) = (&limits[0], &limits[limits.len() - 1]);
        let g = self.layout.geometry(&x.dims[..x.rank], &y.dims[..y.rank]);
        self.regions(&g).end * size_of::<u32>()
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let layout = &self.layout;
        let g = layout.geometry(io.dims(0), io.out_dims(0));
        if g.images * g.out_len * layout.rows == 0 {
            return Ok(());
        }
        let x = io.bytes(0);
        let shift = if io.inputs[0].dtype == DType::I8 { 0x80 } else { 0 };
        let zero = io.bytes(2)[0];
        let regions = self.regions(&g);
        let words = io.scratch::<i32>();
        assert!(regions.end <= words.len(), "the scratch was made for smaller shapes");
        if layout.channels * g.channel_len > i32::MAX as usize || g.out_len > i32::MAX as usize {
            return Err("a group of channels has more than 2^31 elements".to_owned());
        }

        // Phase 1: offsets, and the planes.
        let part = &layout.parts[0];
        let taps = part.taps.len();
        let share = io.worker.share(layout.channels);
        // SAFETY: shares are disjoint.
        let mine = unsafe { words.range(regions.offsets + share.start * taps, share.len() * taps) };
        let places = share.flat_map(|quad| part.taps.iter().map(move |tap| (quad, tap)));
        for (slot, (quad, tap)) in mine.iter_mut().zip(places) {
            *slot = (quad * g.channel_len + layout.place(&g, tap)) as i32;
        }
        io.each(g.images * layout.groups * layout.channels, |i| {
            let (product, quad) = (i / layout.channels, i % layout.channels);
            let first = product * self.channels + quad * STEP;
            let count = STEP.min(self.channels - quad * STEP);
            let mut from: [&[u8]; STEP] = [&x[first * g.in_len..][..g.in_len]; STEP];
            // Weights of channels that are not there are 0.
            for (c, from) in from.iter_mut().enumerate().take(count) {
                *from = &x[(first + c) * g.in_len..][..g.in_len];
            }
            // SAFETY: quads are disjoint.
            let to = unsafe { words.range(regions.planes + i * g.channel_len, g.channel_len) };
            self.isa.run(Fill { layout, geometry: &g, from, to, zero, shift });
        });
        io.next_phase();

        // Phase 2: products.
        let blocks = layout.rows.div_ceil(self.rows_of_block);
        let tiles = layout.positions(&g, 0).div_ceil(COLUMNS);
        let products = g.images * layout.groups * tiles;
        let mut chunk = MAX_BLOCKS.min(blocks);
        while chunk > 1 && products * blocks.div_ceil(chunk) < ENOUGH_UNITS {
            chunk = chunk.div_ceil(2);
        }
        let chunks = blocks.div_ceil(chunk);
        let steps = self.steps();
        let block_len = steps * self.rows_of_block * STEP;
        // SAFETY: phase 1 wrote the offsets, and nobody writes them now.
        let offsets = unsafe {
            std::slice::from_raw_parts(words.start().add(regions.offsets).cast_const(), steps)
        };
        let w = &*self.weights;
        let x_zero = i32::from(zero ^ shift);
        io.each(products * chunks, |unit| {
            let (rest, chunk_idx) = (unit / chunks, unit % chunks);
            let (product, tile) = (rest / tiles, rest % tiles);
            let group = product % layout.groups;
            let block = chunk_idx * chunk;
            let row = block * self.rows_of_block;
            // Of all groups, and of all images.
            let first_row = group * layout.rows + row;
            let at = (product * layout.rows + row) * g.out_len;
            let rows = (layout.rows - row).min(chunk * self.rows_of_block);
            let len = rows * g.out_len;
            let planes = regions.planes + product * layout.channels * g.channel_len;
            let store = match &self.rescale {
                None => Store::Sums(io.output::<i32>(0).part(at, len)),
                Some(rescale) => Store::Codes(rescale, io.output_bytes(0).part(at, len)),
            };
            self.isa.run(Unit {
                layout,
                geometry: &g,
                position: tile * COLUMNS,
                planes: words.start().wrapping_add(planes).cast_const(),
                offsets,
                weights: &w.tiles[(group * blocks + block) * block_len..],
                rows_of_block: self.rows_of_block,
                rows,
                epilogue: Epilogue {
                    ones: w.shifted.then_some(&w.ones),
                    sums: &w.sums[first_row..],
                    zeros: &w.zeros[first_row..],
                    first_row,
                    x_zero,
                    window: (self.channels * layout.kernel_len) as i32,
                },
                store,
            });
        });
        Ok(())
    }
}
