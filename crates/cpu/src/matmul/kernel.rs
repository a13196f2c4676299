//! Products of one tile of 16 weight rows with a tile of quantised activation rows.
//!
//! For every group of values that share a scale: an exact integer dot product, one conversion, one
//! fused multiply-add with `weight scale * activation scale`, then for formats with minima one
//! with `min * (scale * sum)`; groups in order. The order is the same for every number of
//! activation rows, instruction set and way of unpacking, so the result of a row of activations
//! depends on nothing but that row.

use std::mem::MaybeUninit;

use cyb_simd::{Isa, IsaKind, LANES, SimdOp, fold_every};
use cyb_tensor::{DType, quant};

use super::activations::{ActivationRows, BLOCK, INTERLEAVE, TilePtr, offset_table};
use super::codec::{Codec, ROWS, STEP, Unpacked};
use super::output::Sink;

/// 32-blocks that are unpacked at a time; with 8 KiB of codes a tile they stay in the
/// first-level cache.
pub(super) const STRETCH: usize = 16;
/// Activation rows that are multiplied with an unpacked stretch before the next one.
pub(super) const TOKENS: usize = 256;
/// Tiles that are multiplied at once, where there are enough registers.
pub(super) const TILES: usize = 2;
/// Rows that the streaming product [`few`] takes.
pub(super) const FEW: usize = 2;

/// How far ahead of its use a stream of weights is asked for. A tile is several short streams, for
/// which a CPU's own prefetching starts too late.
const AHEAD: usize = 4 << 10;
const CACHE_LINE: usize = 64;

/// The part of a format that the product depends on once codes are unpacked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) group: usize,
    pub(super) fold: usize,
    pub(super) signed: bool,
    pub(super) mins: bool,
    /// Table of [`ActivationRows`] with what dot products start from.
    pub(super) table: Option<usize>,
}

impl Shape {
    pub(super) const fn of<S: Isa, C: Codec>() -> Shape {
        Shape {
            group: C::GROUP,
            fold: if C::SIGNED { 8 } else { fold_every(C::MAX_CODE) },
            signed: C::SIGNED,
            mins: C::MINS,
            table: offset_table(C::OFFSET + if C::SIGNED { S::SIGNED_BIAS } else { 0 }, C::GROUP),
        }
    }
}

impl Shape {
    /// Of formats that stay in the file's blocks: codes are signed bytes.
    pub(super) fn native<S: Isa>(dtype: DType) -> Shape {
        let group = quant::group_size(dtype);
        Shape {
            group,
            fold: 8,
            signed: true,
            mins: quant::has_offsets(dtype),
            table: offset_table(S::SIGNED_BIAS, group),
        }
    }
}

/// Whether dot products start from something other than 0.
const fn has_init<S: Isa, C: Codec>() -> bool {
    C::OFFSET != 0 || C::SIGNED && S::SIGNED_BIAS != 0
}

/// Whether loops over steps are written out, for immediate shifts and registers that stay put.
/// Without vector registers it would only make more code.
const fn unrolled<S: Isa>() -> bool {
    !matches!(S::KIND, IsaKind::Portable)
}

/// Executes a block with literals in place of the loop variable, where that pays.
macro_rules! unroll {
    ($s:ident: $i:ident in 0..$n:expr; $body:block) => {
        if const { unrolled::<$s>() } {
            unroll!(@ $i $n; $body 0 1 2 3 4 5 6 7);
        } else {
            for $i in 0..$n $body
        }
    };
    (@ $i:ident $n:expr; $body:block $($l:literal)*) => {
        $(if const { $l < $n } { let $i: usize = $l; $body })*
    };
}

/// What the dot product of row `t` with the `half`th group of a block starts from.
///
/// # Safety
/// The row and the block are inside the activations.
#[inline(always)]
unsafe fn init<S: Isa, C: Codec, const I: usize>(
    x: TilePtr,
    t: usize,
    block: usize,
    half: usize,
) -> i32 {
    if !const { has_init::<S, C>() } {
        return 0;
    }
    let groups = BLOCK / C::GROUP;
    // SAFETY: the caller's contract.
    unsafe { *x.table.add((block * groups + half) * I + t) }
}

/// Adds the products of one 32-block of `N` tiles with `T` rows, interleaved by `I`, to `acc`.
///
/// # Safety
/// The block is inside the tiles and the activations.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "tiles and rows index several arrays at once")]
unsafe fn block_product<S: Isa, C: Codec, const N: usize, const T: usize, const I: usize>(
    s: S,
    tiles: &[C; N],
    heads: &[C::Head<S>; N],
    x: TilePtr,
    block: usize,
    j: usize,
    acc: &mut [[S::F; T]; N],
) {
    let steps = C::GROUP / 4;
    let fold = const { if C::SIGNED { 8 } else { fold_every(C::MAX_CODE) } };
    for w in tiles {
        ask_ahead(s, *w, block);
    }
    let mut dots = [[s.dot_start(0); T]; N];
    unroll!(S: g in 0..8; {
        let half = g / steps;
        // SAFETY: the caller's contract.
        unsafe {
            if g.is_multiple_of(steps) {
                for t in 0..T {
                    let start = s.dot_start(init::<S, C, I>(x, t, block, half));
                    for dots in &mut dots {
                        dots[t] = start;
                    }
                }
            }
            // No closures here: what one of them calls is not inlined for the instruction set.
            let mut codes = [s.splat_b(0); N];
            for (codes, w) in codes.iter_mut().zip(tiles) {
                *codes = w.codes(s, block, j, g);
            }
            for t in 0..T {
                let xs = s.load_x(x.codes.add((block * I + t) * BLOCK + 4 * g));
                for (dots, codes) in dots.iter_mut().zip(codes) {
                    dots[t] = if C::SIGNED {
                        s.dot_signed(dots[t], codes, xs)
                    } else {
                        s.dot_unsigned(dots[t], codes, xs)
                    };
                }
            }
            if (g + 1).is_multiple_of(steps) {
                for n in 0..N {
                    let (w, head, dots, acc) = (tiles[n], heads[n], &dots[n], &mut acc[n]);
                    let scale = w.scale(s, head, block, half);
                    for t in 0..T {
                        let sum = s.dot_finish(dots[t], init::<S, C, I>(x, t, block, half));
                        let xs = s.splat(*x.scales.add(block * I + t));
                        acc[t] = s.fma(s.to_float(sum), s.mul(scale, xs), acc[t]);
                    }
                    if C::MINS {
                        let min = w.min(s, head, block, half);
                        for t in 0..T {
                            let sum = if C::GROUP == BLOCK {
                                *x.sums32.add(block * I + t)
                            } else {
                                *x.sums16.add((block * 2 + half) * I + t)
                            };
                            acc[t] = s.fma(min, s.splat(sum), acc[t]);
                        }
                    }
                }
            } else if (g + 1).is_multiple_of(fold) {
                for dot in dots.as_flattened_mut() {
                    *dot = s.dot_fold(*dot);
                }
            }
        }
    });
}

/// Asks for what a block will need [`AHEAD`] bytes further on, of weights that are a stream.
#[inline(always)]
fn ask_ahead<S: Isa, C: Codec>(s: S, w: C, block: usize) {
    let ahead = w.start().wrapping_add(block * C::STREAM / 8 + AHEAD);
    for line in 0..const { (C::STREAM / 8).div_ceil(CACHE_LINE) } {
        s.prefetch(ahead.wrapping_add(line * CACHE_LINE));
    }
}

/// Adds the products of `blocks` 32-blocks to `acc`.
///
/// # Safety
/// The tiles and the activations hold so many blocks.
#[inline(always)]
unsafe fn product<S: Isa, C: Codec, const N: usize, const T: usize, const I: usize>(
    s: S,
    tiles: [C; N],
    x: TilePtr,
    blocks: usize,
    acc: &mut [[S::F; T]; N],
) {
    for sb in 0..blocks / C::SUPER {
        // SAFETY: the caller's contract.
        let mut heads = [unsafe { tiles[0].head(s, sb) }; N];
        for (head, w) in heads.iter_mut().zip(&tiles).skip(1) {
            // SAFETY: the caller's contract.
            *head = unsafe { w.head(s, sb) };
        }
        for first in (sb * C::SUPER..(sb + 1) * C::SUPER).step_by(C::UNROLL) {
            unroll!(S: j in 0..C::UNROLL; {
                // SAFETY: the caller's contract.
                unsafe { block_product::<S, C, N, T, I>(s, &tiles, &heads, x, first + j, j, acc) };
            });
        }
    }
}

/// Unpacks `blocks` 32-blocks from `first` (a multiple of the superblock).
///
/// # Safety
/// The tile holds the blocks, and the target has room: `8 * STEP` codes a block, `ROWS` scales
/// and minima a group.
#[inline(always)]
pub(super) unsafe fn unpack<S: Isa, C: Codec>(s: S, w: C, first: usize, blocks: usize, to: Target) {
    let groups = BLOCK / C::GROUP;
    for sb in first / C::SUPER..(first + blocks) / C::SUPER {
        // SAFETY: the caller's contract.
        let head = unsafe { w.head(s, sb) };
        for base in (sb * C::SUPER..(sb + 1) * C::SUPER).step_by(C::UNROLL) {
            unroll!(S: j in 0..C::UNROLL; {
                let block = base + j;
                let at = block - first;
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

/// Where a stretch of weights is unpacked to.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) codes: *mut u8,
    pub(super) scales: *mut f32,
    pub(super) mins: *mut f32,
}

/// A place for unpacked weights and partial sums, on the stack of a worker.
#[repr(align(64))]
pub(super) struct Scratch {
    codes: [[MaybeUninit<[u8; STEP]>; STRETCH * 8]; TILES],
    scales: [[MaybeUninit<[f32; ROWS]>; STRETCH * 2]; TILES],
    mins: [[MaybeUninit<[f32; ROWS]>; STRETCH * 2]; TILES],
    acc: [[MaybeUninit<[f32; ROWS]>; TOKENS]; TILES],
}

impl Scratch {
    pub(super) fn new() -> Scratch {
        Scratch {
            codes: [[const { MaybeUninit::uninit() }; _]; _],
            scales: [[const { MaybeUninit::uninit() }; _]; _],
            mins: [[const { MaybeUninit::uninit() }; _]; _],
            acc: [[const { MaybeUninit::uninit() }; _]; _],
        }
    }
}

impl Scratch {
    fn targets(&mut self) -> [Target; TILES] {
        std::array::from_fn(|i| Target {
            codes: self.codes[i].as_mut_ptr().cast(),
            scales: self.scales[i].as_mut_ptr().cast(),
            mins: self.mins[i].as_mut_ptr().cast(),
        })
    }
}

/// Puts the products of one tile of weights with up to [`FEW`] rows into `sink`, unpacking on the
/// way.
///
/// # Safety
/// `w` holds `x.blocks()` blocks; the rows of `x` are not interleaved; `tile` of the output is the
/// caller's.
#[inline(always)]
pub(super) unsafe fn few<S: Isa, C: Codec>(
    s: S,
    w: C,
    x: &ActivationRows<'_>,
    sink: &Sink<'_>,
    tile: usize,
) {
    for row in 0..x.rows() {
        let mut acc = [[s.splat(0.0)]];
        // SAFETY: `row` is a row of `x`, which has blocks; the rest is the caller's contract.
        unsafe {
            let at = x.tile(row, 0, C::GROUP, const { Shape::of::<S, C>().table });
            product::<S, C, 1, 1, 1>(s, [w], at, x.blocks(), &mut acc);
            sink.put(s, tile, row, acc[0][0]);
        }
    }
}

/// Weights of a tile that can be unpacked.
pub(super) trait Weights<S: Isa> {
    fn shape(&self) -> Shape;
    /// Unpacks `blocks` 32-blocks from `first`, a multiple of [`STRETCH`].
    ///
    /// # Safety
    /// The tile holds the blocks, and `to` has room for them.
    unsafe fn unpack(&self, s: S, first: usize, blocks: usize, to: Target);
    /// Where the codes of the blocks from `first` on lie, and their bytes a block; 0 if unknown.
    fn codes_at(&self, first: usize) -> (*const u8, usize);
}

/// Puts the products of the tiles `w` (at most [`TILES`], the first one number `tile`) with the rows
/// `first_row..first_row + rows` (at most [`TOKENS`]; `first_row` a multiple of the interleave) into
/// `sink`. Each stretch of weights is unpacked once and multiplied with all rows, partial sums in
/// `scratch`.
///
/// # Safety
/// `w` hold `x.blocks()` blocks; the rows are rows of `x`; the tiles of their output are the
/// caller's.
#[inline(always)]
pub(super) unsafe fn many<S: Isa, W: Weights<S>>(
    s: S,
    w: &[W],
    x: &ActivationRows<'_>,
    (first_row, rows): (usize, usize),
    scratch: &mut Scratch,
    sink: &Sink<'_>,
    tile: usize,
) {
    let sums = scratch.acc.as_mut_ptr().cast::<f32>();
    let weights = scratch.targets();
    let shape = w[0].shape();
    let tiles = w.len();
    for first in (0..x.blocks()).step_by(STRETCH) {
        let blocks = STRETCH.min(x.blocks() - first);
        let mut next = [(std::ptr::null(), 0); TILES];
        for (next, w) in next.iter_mut().zip(w) {
            let (codes, bytes) = w.codes_at(first + blocks);
            *next = (codes, bytes * STRETCH.min(x.blocks() - first - blocks));
        }
        let stretch =
            Stretch { x: *x, shape, first, blocks, first_row, rows, weights, tiles, sums, next };
        // SAFETY: the scratch has room for a stretch and for the padded rows; the rest is the
        // caller's contract.
        unsafe {
            for (w, to) in w.iter().zip(weights) {
                w.unpack(s, first, blocks, to);
            }
            stretch.multiply(s);
        }
    }
    for i in 0..tiles {
        for row in 0..rows {
            // SAFETY: the sums of all rows are written; the rest is the caller's contract.
            unsafe {
                let sum = s.load(sums.add((i * TOKENS + row) * LANES));
                sink.put(s, tile + i, first_row + row, sum);
            }
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
    weights: [Target; TILES],
    tiles: usize,
    /// [`TOKENS`] rows of sums a tile.
    sums: *mut f32,
    /// The codes that will be unpacked next, and their bytes.
    next: [(*const u8, usize); TILES],
}

impl Stretch<'_> {
    /// Asks for a share of the codes that will be unpacked next, one of as many as there are groups
    /// of rows, so that they arrive while this stretch is multiplied.
    #[inline(always)]
    fn ask_next<S: Isa>(&self, s: S, group: usize) {
        let groups = self.rows.div_ceil(INTERLEAVE);
        for (codes, bytes) in self.next {
            let lines = bytes / CACHE_LINE;
            for line in lines * group / groups..lines * (group + 1) / groups {
                s.prefetch(codes.wrapping_add(line * CACHE_LINE));
            }
        }
    }
}

impl Stretch<'_> {
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
            32 8 true false, 32 8 true true, 16 8 false false, 16 8 false true,
            16 2 false false, 16 8 true false, 16 8 true true
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
        let Stretch { x, shape, first, blocks, first_row, rows, weights, tiles, sums, .. } = self.0;
        let unpacked = weights.map(|w| Unpacked::<GROUP, FOLD, SIGNED, MINS> {
            codes: w.codes,
            scales: w.scales,
            mins: w.mins,
        });
        let mut row = 0;
        macro_rules! columns {
            ($n:literal, $first:expr, $t:literal, $interleave:expr) => {{
                // SAFETY: rows are padded to whole groups, and `sums` holds them after the first
                // stretch.
                unsafe {
                    let at = x.tile(first_row + row, first, GROUP, shape.table);
                    let sum =
                        |i: usize, t: usize| sums.add((($first + i) * TOKENS + row + t) * LANES);
                    let mut acc = [[s.splat(0.0); $t]; $n];
                    if first > 0 {
                        for (i, acc) in acc.iter_mut().enumerate() {
                            for (t, acc) in acc.iter_mut().enumerate() {
                                *acc = s.load(sum(i, t));
                            }
                        }
                    }
                    let tiles: [_; $n] = std::array::from_fn(|i| unpacked[$first + i]);
                    product::<S, _, $n, $t, { $interleave }>(s, tiles, at, blocks, &mut acc);
                    for (i, acc) in acc.into_iter().enumerate() {
                        for (t, acc) in acc.into_iter().enumerate() {
                            s.store(sum(i, t), acc);
                        }
                    }
                }
            }};
        }
        if x.interleave() == 1 {
            // Only formats without tiles come here with few rows, and their codes are signed.
            if const { SIGNED } {
                for tile in 0..tiles {
                    for r in 0..rows {
                        row = r;
                        columns!(1, tile, 1, 1);
                    }
                }
            }
            return;
        }
        while row < rows {
            self.0.ask_next(s, row / INTERLEAVE);
            if const { S::WIDE } && tiles == TILES {
                columns!(2, 0, 4, INTERLEAVE);
            } else {
                for tile in 0..tiles {
                    columns!(1, tile, 4, INTERLEAVE);
                }
            }
            row += INTERLEAVE;
        }
    }
}
