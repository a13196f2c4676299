//! Products of one tile of 16 weight rows with a tile of quantised activation rows.
//!
//! For every group of values that share a scale: an exact integer dot product, one conversion, one
//! fused multiply-add with `weight scale * activation scale`, then for formats with minima one
//! with `min * (scale * sum)`; groups in order. The order is the same for every number of
//! activation rows, instruction set and way of unpacking, so the result of a row of activations
//! depends on nothing but that row.

use cyb_simd::{Isa, IsaKind, fold_every};

use super::activations::{ActivationRows, BLOCK, INTERLEAVE, TilePtr, offset_table};
use super::codec::Codec;
use super::output::Sink;

/// Rows that the streaming product [`few`] takes.
pub(super) const FEW: usize = 2;
/// Rows that [`streamed`] multiplies at once.
pub(super) const WIDE_ROWS: usize = 2 * INTERLEAVE;

/// Which lines of a tile a product with a single row asks for. A format whose blocks the CPU's own
/// prefetching does not keep up with asks for all whatever this says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Nothing,
    /// One line of each block.
    Some,
    All,
}

/// How far ahead of its use a stream of weights is asked for.
const AHEAD: usize = 8 << 10;
/// How far ahead it is brought on to the first-level cache, where the CPU wants to be asked.
const NEAR: usize = 2 << 10;
pub(super) const CACHE_LINE: usize = 64;

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
    /// Bytes that a product reads of a block of activations.
    pub(super) fn block_bytes(&self) -> usize {
        let of_groups = BLOCK / self.group * size_of::<f32>();
        let minima = if self.mins { of_groups } else { 0 };
        let table = if self.table.is_some() { of_groups } else { 0 };
        BLOCK + size_of::<f32>() + minima + table
    }
}

/// Whether dot products start from something other than 0.
const fn has_init<S: Isa, C: Codec>() -> bool {
    C::OFFSET != 0 || C::SIGNED && S::SIGNED_BIAS != 0
}

/// Whether loops over steps are written out, for immediate shifts and registers that stay put.
/// Without vector registers it would only make more code.
pub(super) const fn unrolled<S: Isa>() -> bool {
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

pub(super) use unroll;

/// Activation rows, interleaved by a number `I` of them: row `t` is row `t % I` of group `t / I`.
pub(super) type Groups = [TilePtr; 2];

/// What the dot product of row `t` with the `half`th group of a block starts from.
///
/// # Safety
/// The row and the block are inside the activations.
#[inline(always)]
unsafe fn init<S: Isa, C: Codec, const I: usize>(
    x: Groups,
    t: usize,
    block: usize,
    half: usize,
) -> i32 {
    if !const { has_init::<S, C>() } {
        return 0;
    }
    let groups = BLOCK / C::GROUP;
    // SAFETY: the caller's contract.
    unsafe { *x[t / I].table.add((block * groups + half) * I + t % I) }
}

/// Adds the products of one 32-block of a tile with `T` rows, interleaved by `I`, to `acc`.
///
/// # Safety
/// The block is inside the tile and the activations.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "rows index several arrays at once")]
unsafe fn block_product<S: Isa, C: Codec, const T: usize, const I: usize>(
    s: S,
    w: C,
    head: C::Head<S>,
    x: Groups,
    (span, here, j): (usize, usize, usize),
    ask: Ask,
    acc: &mut [S::F; T],
) {
    // The block in the row; `here` in its span.
    let block = span * C::SPAN + here;
    if const { S::PAIRED && C::PAIRED && T > 1 } {
        // SAFETY: the caller's contract.
        unsafe { block_by_pairs::<S, C, T, I>(s, w, head, x, (block, here, j), acc) };
        return;
    }
    let steps = C::GROUP / 4;
    let fold = const { if C::SIGNED { 8 } else { fold_every(C::MAX_CODE) } };
    match ask {
        _ if const { T > 1 || !C::EVEN } => ask_ahead(s, w, here),
        Ask::All => {
            ask_ahead(s, w, here);
            let near = block_start(w, here).wrapping_add(NEAR);
            for line in 0..const { block_lines::<C>() } {
                s.prefetch_near(near.wrapping_add(line * CACHE_LINE));
            }
        }
        Ask::Some => s.prefetch(block_start(w, here).wrapping_add(AHEAD)),
        Ask::Nothing => {}
    }
    let mut dots = [s.dot_start(0); T];
    unroll!(S: g in 0..8; {
        let half = g / steps;
        // No closures here: what one of them calls is not inlined for the instruction set.
        // SAFETY: the caller's contract.
        unsafe {
            if g.is_multiple_of(steps) {
                for t in 0..T {
                    dots[t] = s.dot_start(init::<S, C, I>(x, t, block, half));
                }
            }
            let codes = w.codes(s, here, j, g);
            for t in 0..T {
                let at = (block * I + t % I) * BLOCK + 4 * g;
                let xs = s.load_x(x[t / I].codes.add(at));
                dots[t] = if C::SIGNED {
                    s.dot_signed(dots[t], codes, xs)
                } else {
                    s.dot_unsigned(dots[t], codes, xs)
                };
            }
            if (g + 1).is_multiple_of(steps) {
                let scale = w.scale(s, head, here, half);
                for t in 0..T {
                    let sum = s.dot_finish(dots[t], init::<S, C, I>(x, t, block, half));
                    acc[t] = add_scaled::<S, I>(s, scale, sum, x, (t, block), acc[t]);
                }
                if C::MINS {
                    let min = w.min(s, head, here, half);
                    for t in 0..T {
                        acc[t] = add_min::<S, C, I>(s, min, x, (t, block, half), acc[t]);
                    }
                }
            } else if (g + 1).is_multiple_of(fold) {
                for dot in &mut dots {
                    *dot = s.dot_fold(*dot);
                }
            }
        }
    });
}

/// As [`block_product`] where steps lie in pairs and rows of activations are multiplied by twos.
///
/// # Safety
/// The block is inside the tile and the activations.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "rows index several arrays at once")]
unsafe fn block_by_pairs<S: Isa, C: Codec, const T: usize, const I: usize>(
    s: S,
    w: C,
    head: C::Head<S>,
    x: Groups,
    (block, here, j): (usize, usize, usize),
    acc: &mut [S::F; T],
) {
    let pairs = C::GROUP / 8;
    // Of rows `2p` and `2p + 1`, for `p` in the first half.
    let mut dots = [s.dot_rows_start([0; 2]); T];
    unroll!(S: g in 0..4; {
        let half = g / pairs;
        // SAFETY: the caller's contract.
        unsafe {
            if g.is_multiple_of(pairs) {
                for p in 0..T / 2 {
                    dots[p] = s.dot_rows_start(inits::<S, C, I>(x, 2 * p, block, half));
                }
            }
            let steps = [w.codes(s, here, j, 2 * g), w.codes(s, here, j, 2 * g + 1)];
            for p in 0..T / 2 {
                let first = (block * I + 2 * p % I) * BLOCK + 8 * g;
                let row = x[2 * p / I].codes.add(first);
                dots[p] = s.dot_rows(dots[p], steps, [row, row.add(BLOCK)]);
            }
            if (g + 1).is_multiple_of(pairs) {
                let scale = w.scale(s, head, here, half);
                for p in 0..T / 2 {
                    let sums =
                        s.dot_rows_finish(dots[p], inits::<S, C, I>(x, 2 * p, block, half));
                    for (r, sum) in sums.into_iter().enumerate() {
                        let t = 2 * p + r;
                        acc[t] = add_scaled::<S, I>(s, scale, sum, x, (t, block), acc[t]);
                    }
                }
                if C::MINS {
                    let min = w.min(s, head, here, half);
                    for t in 0..T {
                        acc[t] = add_min::<S, C, I>(s, min, x, (t, block, half), acc[t]);
                    }
                }
            }
        }
    });
}

/// [`init`] of rows `t` and `t + 1`.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn inits<S: Isa, C: Codec, const I: usize>(
    x: Groups,
    t: usize,
    block: usize,
    half: usize,
) -> [i32; 2] {
    // SAFETY: the caller's contract.
    unsafe { [init::<S, C, I>(x, t, block, half), init::<S, C, I>(x, t + 1, block, half)] }
}

/// `acc` and a group's integer sum for row `t`, scaled.
///
/// # Safety
/// The row and the block are inside the activations.
#[inline(always)]
unsafe fn add_scaled<S: Isa, const I: usize>(
    s: S,
    scale: S::F,
    sum: S::I,
    x: Groups,
    (t, block): (usize, usize),
    acc: S::F,
) -> S::F {
    // SAFETY: the caller's contract.
    let xs = s.splat(unsafe { *x[t / I].scales.add(block * I + t % I) });
    s.fma(s.to_float(sum), s.mul(scale, xs), acc)
}

/// `acc` and a group's minimum times the sum of row `t` there.
///
/// # Safety
/// The row and the block are inside the activations.
#[inline(always)]
unsafe fn add_min<S: Isa, C: Codec, const I: usize>(
    s: S,
    min: S::F,
    x: Groups,
    (t, block, half): (usize, usize, usize),
    acc: S::F,
) -> S::F {
    let x = x[t / I];
    // SAFETY: the caller's contract.
    let sum = unsafe {
        if C::GROUP == BLOCK {
            *x.sums32.add(block * I + t % I)
        } else {
            *x.sums16.add((block * 2 + half) * I + t % I)
        }
    };
    s.fma(min, s.splat(sum), acc)
}

/// About where a block begins.
#[inline(always)]
fn block_start<C: Codec>(w: C, here: usize) -> *const u8 {
    w.start().wrapping_add(here * const { C::SPAN_BYTES / C::SPAN })
}

/// Cache lines of a block.
const fn block_lines<C: Codec>() -> usize {
    (C::SPAN_BYTES / C::SPAN).div_ceil(CACHE_LINE)
}

/// Asks for what lies [`AHEAD`] bytes further on than a block, as much as a block.
#[inline(always)]
pub(super) fn ask_ahead<S: Isa, C: Codec>(s: S, w: C, here: usize) {
    let ahead = block_start(w, here).wrapping_add(AHEAD);
    for line in 0..const { block_lines::<C>() } {
        s.prefetch(ahead.wrapping_add(line * CACHE_LINE));
    }
}

/// Adds the products of `blocks` 32-blocks to `acc`.
///
/// # Safety
/// The tile and the activations hold so many blocks.
#[inline(always)]
pub(super) unsafe fn product<S: Isa, C: Codec, const T: usize, const I: usize>(
    s: S,
    w: C,
    x: Groups,
    blocks: usize,
    ask: Ask,
    acc: &mut [S::F; T],
) {
    for span in 0..blocks.div_ceil(C::SPAN) {
        let w = w.span(span);
        // SAFETY: the caller's contract.
        let head = unsafe { w.head(s) };
        for first in (0..C::SPAN.min(blocks - span * C::SPAN)).step_by(C::UNROLL) {
            unroll!(S: j in 0..C::UNROLL; {
                let at = (span, first + j, j);
                // SAFETY: the caller's contract.
                unsafe { block_product::<S, C, T, I>(s, w, head, x, at, ask, acc) };
            });
        }
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
    ask: Ask,
) {
    for row in 0..x.rows() {
        // A second row finds the tile in the cache.
        let ask = if row == 0 { ask } else { Ask::Nothing };
        let mut acc = [s.splat(0.0)];
        // SAFETY: `row` is a row of `x`, which has blocks; the rest is the caller's contract.
        unsafe {
            let at = x.tile(row, 0, C::GROUP, const { Shape::of::<S, C>().table });
            product::<S, C, 1, 1>(s, w, [at; 2], x.blocks(), ask, &mut acc);
            sink.put(s, tile, row, acc[0]);
        }
    }
}

/// Puts the products of one tile of weights with `rows` rows from `first_row` on into `sink`,
/// unpacking on the way, once for [`WIDE_ROWS`] rows. For instruction sets with many registers.
///
/// # Safety
/// `w` holds `x.blocks()` blocks; the rows are rows of `x`, `first_row` a multiple of
/// [`INTERLEAVE`], by which they are interleaved; `tile` of their output is the caller's.
#[inline(always)]
pub(super) unsafe fn streamed<S: Isa, C: Codec>(
    s: S,
    w: C,
    x: &ActivationRows<'_>,
    (first_row, rows): (usize, usize),
    sink: &Sink<'_>,
    tile: usize,
) {
    let end = first_row + rows;
    for first in (first_row..end).step_by(WIDE_ROWS) {
        for row in first..(first + WIDE_ROWS).min(end) {
            sink.ask(s, tile, row);
        }
        let mut acc = [s.splat(0.0); WIDE_ROWS];
        // SAFETY: rows are padded to whole groups; a second group is read where there is one; the
        // rest is the caller's contract.
        unsafe {
            let table = const { Shape::of::<S, C>().table };
            let at = x.tile(first, 0, C::GROUP, table);
            if end - first > INTERLEAVE {
                let both = [at, x.tile(first + INTERLEAVE, 0, C::GROUP, table)];
                product::<S, C, WIDE_ROWS, INTERLEAVE>(s, w, both, x.blocks(), Ask::All, &mut acc);
            } else {
                let mut half = [s.splat(0.0); INTERLEAVE];
                product::<S, C, INTERLEAVE, INTERLEAVE>(
                    s,
                    w,
                    [at; 2],
                    x.blocks(),
                    Ask::All,
                    &mut half,
                );
                acc[..INTERLEAVE].copy_from_slice(&half);
            }
            for (row, sum) in (first..end).zip(acc) {
                sink.put(s, tile, row, sum);
            }
        }
    }
}
