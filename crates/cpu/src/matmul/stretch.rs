//! Products of many rows: a stretch of a tile is unpacked to bytes and floats, in the first-level
//! cache, and multiplied with all rows before the next one is.

use std::mem::MaybeUninit;

use cyb_simd::{Isa, LANES, SimdOp};

use super::activations::{ActivationRows, BLOCK, INTERLEAVE};
use super::codec::{Codec, ROWS, STEP, Unpacked};
use super::kernel::{Ask, CACHE_LINE, Shape, WIDE_ROWS, ask_ahead, product, unroll, unrolled};
use super::output::Sink;

/// 32-blocks that are unpacked at a time; with 8 KiB of codes a tile they stay in the
/// first-level cache.
const STRETCH: usize = 16;
/// Activation rows that are multiplied with an unpacked stretch before the next one.
pub(super) const TOKENS: usize = 256;

/// Unpacks `blocks` 32-blocks from `first` (a multiple of the span).
///
/// # Safety
/// The tile holds the blocks, and the target has room: `8 * STEP` codes a block, `ROWS` scales
/// and minima a group.
#[inline(always)]
unsafe fn unpack<S: Isa, C: Codec>(s: S, w: C, first: usize, blocks: usize, to: Target) {
    let groups = BLOCK / C::GROUP;
    for span in 0..blocks.div_ceil(C::SPAN) {
        let w = w.span(first / C::SPAN + span);
        // SAFETY: the caller's contract.
        let head = unsafe { w.head(s) };
        for base in (0..C::SPAN.min(blocks - span * C::SPAN)).step_by(C::UNROLL) {
            unroll!(S: j in 0..C::UNROLL; {
                let block = base + j;
                let at = span * C::SPAN + block;
                ask_ahead(s, w, block);
                // SAFETY: the caller's contract.
                unsafe {
                    unroll!(S: g in 0..8; {
                        s.store_b(to.codes.add((at * 8 + g) * STEP), w.codes(s, block, j, g));
                    });
                    for half in 0..groups {
                        let group = (at * groups + half) * ROWS;
                        s.store(to.scales.add(group), w.scale(s, head, block, half));
                        if C::MINS {
                            s.store(to.mins.add(group), w.min(s, head, block, half));
                        }
                    }
                }
            });
        }
    }
}

/// Puts the unpacked steps of `blocks` 32-blocks into pairs, for
/// [`Isa::dot_rows`].
///
/// # Safety
/// `codes` holds them.
#[inline(always)]
unsafe fn pair_steps<S: Isa>(s: S, codes: *mut u8, blocks: usize) {
    for pair in 0..blocks * 4 {
        // SAFETY: the caller's contract: eight steps a block.
        unsafe {
            let first = codes.add(pair * 2 * STEP);
            let steps = s.pair_steps([s.load_b(first), s.load_b(first.add(STEP))]);
            s.store_b(first, steps[0]);
            s.store_b(first.add(STEP), steps[1]);
        }
    }
}

/// Where a stretch of weights is unpacked to.
#[derive(Clone, Copy)]
struct Target {
    codes: *mut u8,
    scales: *mut f32,
    mins: *mut f32,
}

/// A place for unpacked weights and partial sums, on the stack of a worker.
#[repr(align(64))]
pub(super) struct Scratch {
    codes: [MaybeUninit<[u8; STEP]>; STRETCH * 8],
    scales: [MaybeUninit<[f32; ROWS]>; STRETCH * 2],
    mins: [MaybeUninit<[f32; ROWS]>; STRETCH * 2],
    acc: [MaybeUninit<[f32; ROWS]>; TOKENS],
}

impl Scratch {
    pub(super) fn new() -> Scratch {
        Scratch {
            codes: [const { MaybeUninit::uninit() }; _],
            scales: [const { MaybeUninit::uninit() }; _],
            mins: [const { MaybeUninit::uninit() }; _],
            acc: [const { MaybeUninit::uninit() }; _],
        }
    }

    fn target(&mut self) -> Target {
        Target {
            codes: self.codes.as_mut_ptr().cast(),
            scales: self.scales.as_mut_ptr().cast(),
            mins: self.mins.as_mut_ptr().cast(),
        }
    }
}

/// Puts the products of the tile `w` with the rows `first_row..first_row + rows` (at most
/// [`TOKENS`]; `first_row` a multiple of [`INTERLEAVE`], by which they are interleaved) into
/// `sink`. Each stretch of weights is unpacked once and multiplied with all rows, partial sums in
/// `scratch`.
///
/// # Safety
/// `w` holds `x.blocks()` blocks; the rows are rows of `x`; `tile` of their output is the caller's.
#[inline(always)]
pub(super) unsafe fn many<S: Isa, C: Codec>(
    s: S,
    w: C,
    x: &ActivationRows<'_>,
    (first_row, rows): (usize, usize),
    scratch: &mut Scratch,
    sink: &Sink<'_>,
    tile: usize,
) {
    let sums = scratch.acc.as_mut_ptr().cast::<f32>();
    let weights = scratch.target();
    let shape = const { Shape::of::<S, C>() };
    for first in (0..x.blocks()).step_by(STRETCH) {
        let blocks = STRETCH.min(x.blocks() - first);
        let rest = STRETCH.min(x.blocks() - first - blocks);
        let next_start = w.span((first + blocks) / C::SPAN).start();
        let next = (next_start, rest.div_ceil(C::SPAN) * C::SPAN_BYTES);
        // Results are asked for while the last products are computed.
        let results = (first + blocks == x.blocks()).then_some((sink, tile));
        let stretch =
            Stretch { x: *x, shape, first, blocks, first_row, rows, weights, sums, next, results };
        // SAFETY: the scratch has room for a stretch and for the padded rows; the rest is the
        // caller's contract.
        unsafe {
            unpack(s, w, first, blocks, weights);
            if const { S::PAIRED } {
                pair_steps(s, weights.codes, blocks);
            }
            stretch.multiply(s);
        }
    }
    for row in 0..rows {
        // SAFETY: the sums of all rows are written; the rest is the caller's contract.
        unsafe {
            let sum = s.load(sums.add(row * LANES));
            sink.put(s, tile, first_row + row, sum);
        }
    }
}

/// An unpacked stretch of weights and the rows to multiply with it.
#[derive(Clone, Copy)]
struct Stretch<'a> {
    x: ActivationRows<'a>,
    shape: Shape,
    first: usize,
    blocks: usize,
    first_row: usize,
    rows: usize,
    weights: Target,
    /// [`TOKENS`] rows of sums.
    sums: *mut f32,
    /// What will be unpacked next, and its bytes.
    next: (*const u8, usize),
    /// Where results go after the last stretch.
    results: Option<(&'a Sink<'a>, usize)>,
}

impl Stretch<'_> {
    /// Asks for a share of what will be unpacked next or of results, one of as many as there are
    /// groups of rows, so that they arrive while this stretch is multiplied.
    #[inline(always)]
    fn ask_next<S: Isa>(&self, s: S, group: usize) {
        if let Some((sink, tile)) = self.results {
            let first = group * INTERLEAVE;
            for row in first..(first + INTERLEAVE).min(self.rows) {
                sink.ask(s, tile, self.first_row + row);
            }
        }
        let groups = self.rows.div_ceil(INTERLEAVE);
        let (start, bytes) = self.next;
        let lines = bytes / CACHE_LINE;
        for line in lines * group / groups..lines * (group + 1) / groups {
            s.prefetch(start.wrapping_add(line * CACHE_LINE));
        }
    }

    /// # Safety
    /// See [`many`].
    #[inline(always)]
    unsafe fn multiply<S: Isa>(self, s: S) {
        let Shape { group, fold, signed, mins, .. } = self.shape;
        macro_rules! shapes {
            ($($group:literal $fold:literal $signed:literal $mins:literal),*) => {
                match (group, fold, signed, mins) {
                    $(($group, $fold, $signed, $mins) => {
                        s.run(Multiply::<$group, $fold, $signed, $mins>(self));
                    })*
                    _ => unreachable!("no kernel for {:?}", self.shape),
                }
            };
        }
        shapes!(
            32 8 false false, 32 8 false true, 32 4 false false, 32 4 false true,
            32 1 false false, 32 8 true false, 16 8 false false, 16 8 false true,
            16 4 false false, 16 2 false false, 16 1 false false
        );
    }
}

/// A function of its own for each shape, shared by the formats.
struct Multiply<'a, const GROUP: usize, const FOLD: usize, const SIGNED: bool, const MINS: bool>(
    Stretch<'a>,
);

impl<const GROUP: usize, const FOLD: usize, const SIGNED: bool, const MINS: bool> SimdOp
    for Multiply<'_, GROUP, FOLD, SIGNED, MINS>
{
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Stretch { x, shape, first, blocks, first_row, rows, weights, sums, .. } = self.0;
        let w = Unpacked::<GROUP, FOLD, SIGNED, MINS> {
            codes: weights.codes,
            scales: weights.scales,
            mins: weights.mins,
        };
        macro_rules! columns {
            ($row:expr, $t:expr) => {{
                let row = $row;
                // SAFETY: rows are padded to whole groups, and `sums` holds them after the first
                // stretch.
                unsafe {
                    let at = x.tile(first_row + row, first, GROUP, shape.table);
                    let both = if const { $t > INTERLEAVE } {
                        [at, x.tile(first_row + row + INTERLEAVE, first, GROUP, shape.table)]
                    } else {
                        [at; 2]
                    };
                    let mut acc = [s.splat(0.0); $t];
                    if first > 0 {
                        for (t, acc) in acc.iter_mut().enumerate() {
                            *acc = s.load(sums.add((row + t) * LANES));
                        }
                    }
                    product::<S, _, { $t }, INTERLEAVE>(s, w, both, blocks, Ask::All, &mut acc);
                    for (t, acc) in acc.into_iter().enumerate() {
                        s.store(sums.add((row + t) * LANES), acc);
                    }
                }
            }};
        }
        let mut row = 0;
        while row < rows {
            self.0.ask_next(s, row / INTERLEAVE);
            if const { S::WIDE } && rows - row > INTERLEAVE {
                self.0.ask_next(s, row / INTERLEAVE + 1);
                columns!(row, WIDE_ROWS);
                row += WIDE_ROWS;
            } else {
                columns!(row, INTERLEAVE);
                row += INTERLEAVE;
            }
        }
    }
}
