//! `sdpa_packed`: attention within sequences that lie one after the other.
//!
//! First every sequence's keys are turned so that 16 of its positions are the lanes of a vector, and
//! its values padded to whole vectors. Then a unit of work is a few neighboring queries of one
//! sequence and head: all their scores, the softmax, the weighted values.
//!
//! Blocks of keys and tiles of queries are cut from the start of each sequence, and what is computed
//! for a query never depends on the other queries of its tile, so a token gives the same bits
//! whatever shares the call.

use std::ops::Range;

use cyb_exec::{Call, ExecError};
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};
use cyb_tensor::DType;

use super::attrs_of;
use super::softmax::{cap, exponentials, keep};
use crate::io::{Io, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] =
    &[Row { op: "sdpa_packed", name: "attention_packed", supports, build }];

/// Queries of a tile.
pub(super) const QUERIES: usize = 6;
/// Blocks of keys, or vectors of values, that a tile is multiplied with at a time.
pub(super) const WIDE: usize = 2;

fn supports(call: &Call<'_>) -> bool {
    let known = |i: usize, axis: usize| call.inputs[i].shape[axis].known().is_some();
    typed(call, 3..5) && known(0, 1) && known(1, 1)
}

/// Whether the inputs of a call are floats but those in `ints`.
pub(super) fn typed(call: &Call<'_>, ints: Range<usize>) -> bool {
    let right = |i: usize| if ints.contains(&i) { DType::I32 } else { DType::F32 };
    call.inputs.iter().enumerate().all(|(i, f)| f.dtype == right(i))
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let attrs = attrs_of(&b.node.op);
    Ok(Box::new(Attention {
        scale: attrs.float("scale")? as f32,
        window: attrs.size("window")?,
        causal: attrs.flag("causal")?,
        softcap: attrs.float("softcap")? as f32,
        workers: b.team.count(),
        isa: b.isa,
    }))
}

#[derive(Debug)]
struct Attention {
    scale: f32,
    /// Positions a token sees on each side; 0 is all.
    window: usize,
    /// Whether a token sees none after it.
    causal: bool,
    /// Bound of scores; 0 for none.
    softcap: f32,
    workers: usize,
    isa: AnyIsa,
}

/// Sizes of one call.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) tokens: usize,
    pub(super) heads: usize,
    pub(super) groups: usize,
    /// Width of a key and of a value.
    pub(super) key: usize,
    pub(super) value: usize,
    pub(super) sequences: usize,
}

impl Sizes {
    pub(super) fn of(t: &[RawTensor]) -> Sizes {
        Sizes {
            tokens: t[0].dims[0],
            heads: t[0].dims[1],
            groups: t[1].dims[1].max(1),
            key: t[0].dims[2],
            value: t[2].dims[2],
            sequences: t[3].dims[0].saturating_sub(1),
        }
    }

    pub(super) fn padded_value(&self) -> usize {
        self.value.next_multiple_of(LANES)
    }

    /// Blocks of 16 positions: sequence r begins at block `bounds[r] / 16 + r`, which leaves room
    /// for the incomplete block at the end of each.
    pub(super) fn blocks(&self) -> usize {
        self.tokens / LANES + self.sequences
    }

    pub(super) fn key_floats(&self) -> usize {
        self.groups * self.blocks() * self.key * LANES
    }

    pub(super) fn value_floats(&self) -> usize {
        self.groups * self.blocks() * LANES * self.padded_value()
    }

    /// Floats of the scores of one query.
    pub(super) fn score_stride(&self) -> usize {
        self.tokens.next_multiple_of(LANES)
    }

    /// Floats that a worker needs: the queries of a tile and their scores.
    pub(super) fn workspace(&self) -> usize {
        QUERIES * (self.key + self.score_stride())
    }
}

/// A sequence of the call.
#[derive(Clone, Copy)]
pub(super) struct Sequence {
    /// Its first token.
    pub(super) start: usize,
    pub(super) len: usize,
    /// Its first block of positions.
    pub(super) block: usize,
}

impl Sequence {
    pub(super) fn blocks(&self) -> usize {
        self.len.div_ceil(LANES)
    }

    pub(super) fn tiles(&self) -> usize {
        self.len.div_ceil(QUERIES)
    }
}

/// Bounds, checked.
pub(super) struct Sequences<'a>(&'a [i32]);

impl Sequences<'_> {
    pub(super) fn new(bounds: &[i32], tokens: usize) -> Result<Sequences<'_>, String> {
        let ends = [bounds.first().copied(), bounds.last().copied()];
        if ends != [Some(0), i32::try_from(tokens).ok()] || !bounds.is_sorted() {
            return Err(format!("bounds {bounds:?} do not rise from 0 to {tokens}"));
        }
        Ok(Sequences(bounds))
    }

    pub(super) fn get(&self, index: usize) -> Sequence {
        let (start, end) = (self.0[index] as usize, self.0[index + 1] as usize);
        Sequence { start, len: end - start, block: start / LANES + index }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Sequence> + '_ {
        (0..self.0.len() - 1).map(|i| self.get(i))
    }
}

impl Kernel for Attention {
    fn scratch(&self, limits: &[RawTensor]) -> usize {
        let sizes = Sizes::of(limits);
        let shared = sizes.key_floats() + sizes.value_floats();
        (shared + self.workers * sizes.workspace()) * size_of::<f32>()
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let sizes = Sizes::of(io.inputs);
        let sequences = Sequences::new(io.slice::<i32>(3), sizes.tokens)?;
        let (queries, keys, values) = (io.slice::<f32>(0), io.slice::<f32>(1), io.slice::<f32>(2));
        let shown = io.slice::<i32>(4);
        let bias = (io.inputs.len() > 5).then(|| (io.slice::<f32>(5), io.dims(5)[1]));
        let scratch = io.scratch::<f32>();
        let padded = sizes.padded_value();
        let (key_block, value_block) = (sizes.key * LANES, LANES * padded);
        let values_at = sizes.key_floats();

        io.each(sizes.sequences * sizes.groups, |unit| {
            let (sequence, group) = (sequences.get(unit / sizes.groups), unit % sizes.groups);
            let first = group * sizes.blocks() + sequence.block;
            // SAFETY: blocks of different sequences and groups do not overlap.
            let (k, v) = unsafe {
                let n = sequence.blocks();
                (
                    scratch.range(first * key_block, n * key_block),
                    scratch.range(values_at + first * value_block, n * value_block),
                )
            };
            let from = |x: &'_ [f32], width: usize| -> Range<usize> {
                let at = (sequence.start * sizes.groups + group) * width;
                at.min(x.len())..x.len()
            };
            let turned = Rows { stride: sizes.groups * sizes.key, width: sizes.key };
            turn(self.isa, &keys[from(keys, sizes.key)], turned, sequence.len, k);
            let plain = Rows { stride: sizes.groups * sizes.value, width: sizes.value };
            pad(&values[from(values, sizes.value)], plain, sequence.len, padded, v);
        });
        io.next_phase();

        let workspace_at = values_at + sizes.value_floats() + io.worker.index * sizes.workspace();
        // SAFETY: every worker has a workspace of its own; keys and values are complete and only
        // read from here on.
        let (workspace, keys, values) = unsafe {
            (
                scratch.range(workspace_at, sizes.workspace()),
                &*scratch.range(0, values_at),
                &*scratch.range(values_at, sizes.value_floats()),
            )
        };
        let out = io.output::<f32>(0);
        let units: usize = sequences.iter().map(|s| s.tiles() * sizes.heads).sum();
        // A worker gets rising units, so the sequence of one is found from that of the last.
        let (mut index, mut before) = (0, 0);
        io.each(units, |unit| {
            let mut sequence = sequences.get(index);
            while unit - before >= sequence.tiles() * sizes.heads {
                before += sequence.tiles() * sizes.heads;
                index += 1;
                sequence = sequences.get(index);
            }
            let (head, tile) =
                ((unit - before) / sequence.tiles(), (unit - before) % sequence.tiles());
            let group = head / (sizes.heads / sizes.groups);
            let first = group * sizes.blocks() + sequence.block;
            let n = sequence.blocks();
            let begin = tile * QUERIES;
            let queries = Queries {
                first: begin,
                count: QUERIES.min(sequence.len - begin),
                rows: &queries[((sequence.start + begin) * sizes.heads + head) * sizes.key..],
                stride: sizes.heads * sizes.key,
            };
            let bias = bias.map(|(table, width)| &table[head * width..][..width]);
            self.isa.run(Attend {
                kernel: self,
                sizes,
                len: sequence.len,
                shown: &shown[sequence.start..][..sequence.len],
                queries,
                keys: &keys[first * key_block..][..n * key_block],
                values: &values[first * value_block..][..n * value_block],
                bias,
                workspace: &mut *workspace,
                out: |query: usize| {
                    let row = (sequence.start + begin + query) * sizes.heads + head;
                    // SAFETY: a token's head is one unit's.
                    unsafe { out.range(row * sizes.value, sizes.value) }
                },
            });
        });
        Ok(())
    }
}

/// Rows that lie `stride` floats apart.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) stride: usize,
    pub(super) width: usize,
}

/// `len` rows as blocks `[width, 16]`, the last one filled up with zeros.
pub(super) fn turn(isa: AnyIsa, x: &[f32], rows: Rows, len: usize, out: &mut [f32]) {
    isa.run(Turn { x, rows, len, out });
}

struct Turn<'a> {
    x: &'a [f32],
    rows: Rows,
    len: usize,
    out: &'a mut [f32],
}

impl SimdOp for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Turn { x, rows: Rows { stride, width }, len, out } = self;
        for (b, block) in out.chunks_exact_mut((width * LANES).max(1)).enumerate() {
            let n = LANES.min(len - b * LANES);
            for (i, part) in block.chunks_mut(LANES * LANES).enumerate() {
                let columns = part.len() / LANES;
                let mut lines = [s.splat(0.0); LANES];
                for (lane, line) in lines.iter_mut().enumerate().take(n) {
                    let at = (b * LANES + lane) * stride + i * LANES;
                    *line = s.load_partial(&x[at..at + columns]);
                }
                if columns == LANES {
                    // SAFETY: the part is 16 times 16 floats.
                    unsafe { s.store_transposed(&lines, part.as_mut_ptr(), LANES) };
                } else {
                    let mut whole = [0.0; LANES * LANES];
                    // SAFETY: as above.
                    unsafe { s.store_transposed(&lines, whole.as_mut_ptr(), LANES) };
                    part.copy_from_slice(&whole[..part.len()]);
                }
            }
        }
    }
}

/// `len` rows, each filled up to `padded` floats, then rows of zeros.
pub(super) fn pad(x: &[f32], rows: Rows, len: usize, padded: usize, out: &mut [f32]) {
    for (i, row) in out.chunks_exact_mut(padded.max(1)).enumerate() {
        let (head, tail) = row.split_at_mut(rows.width);
        match i < len {
            true => head.copy_from_slice(&x[i * rows.stride..][..rows.width]),
            false => head.fill(0.0),
        }
        tail.fill(0.0);
    }
}

/// The queries of a tile.
#[derive(Clone, Copy)]
pub(super) struct Queries<'a> {
    /// Position of the first in its sequence.
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) rows: &'a [f32],
    pub(super) stride: usize,
}

/// One tile of queries over its sequence's keys and values.
struct Attend<'a, F> {
    kernel: &'a Attention,
    sizes: Sizes,
    /// Tokens of the sequence.
    len: usize,
    /// 0 for tokens that no other sees.
    shown: &'a [i32],
    queries: Queries<'a>,
    /// Blocks `[key width, 16]`.
    keys: &'a [f32],
    /// Rows of the padded value width.
    values: &'a [f32],
    /// Added to scores by distance, the middle for none.
    bias: Option<&'a [f32]>,
    workspace: &'a mut [f32],
    /// Where the result of a query goes.
    out: F,
}

impl<'o, F: Fn(usize) -> &'o mut [f32]> SimdOp for Attend<'_, F> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Attend { kernel, sizes, len, shown, queries, keys, values, bias, workspace, out } =
            self;
        let stride = sizes.score_stride();
        let (scaled, scores) = workspace.split_at_mut(QUERIES * sizes.key);
        // [key width, QUERIES]; missing queries are zeros and their results are not used.
        for (d, column) in scaled.chunks_exact_mut(QUERIES).enumerate() {
            for (i, v) in column.iter_mut().enumerate() {
                let used = i < queries.count;
                *v = if used { queries.rows[i * queries.stride + d] * kernel.scale } else { 0.0 };
            }
        }
        // Positions that any query of the tile sees, in whole blocks.
        let seen = |query: usize| {
            let at = queries.first + query;
            let end = if kernel.causal { at + 1 } else { len };
            match kernel.window {
                0 => 0..end,
                w => at.saturating_sub(w)..end.min(at + w + 1),
            }
        };
        let hides = shown.contains(&0);
        let begin = seen(0).start / LANES;
        let end = seen(queries.count - 1).end.div_ceil(LANES);

        let mut block = begin;
        while block < end {
            let keys = &keys[block * sizes.key * LANES..];
            let at = block * LANES;
            if end - block >= WIDE {
                score::<S, WIDE>(s, scaled, keys, sizes.key, &mut scores[at..], stride);
                block += WIDE;
            } else {
                score::<S, 1>(s, scaled, keys, sizes.key, &mut scores[at..], stride);
                block += 1;
            }
        }
        let mut sums = [0.0; QUERIES];
        for (i, sum) in sums.iter_mut().enumerate() {
            let row = &mut scores[i * stride..][begin * LANES..end * LANES];
            if i >= queries.count {
                row.fill(0.0);
                continue;
            }
            cap(s, row, kernel.softcap);
            if let Some(bias) = bias {
                gain(s, row, bias, begin * LANES, queries.first + i);
            }
            let seen = seen(i);
            keep(row, seen.start - begin * LANES..seen.end - begin * LANES);
            if hides {
                hide(row, &shown[begin * LANES..]);
            }
            (_, *sum) = exponentials(s, row);
        }
        let padded = sizes.padded_value();
        let mut column = 0;
        while column < padded {
            let rows = begin * LANES..end * LANES;
            let wide = padded - column >= WIDE * LANES;
            let place = Place { column, padded, rows };
            if wide {
                weigh::<S, WIDE, _>(s, scores, stride, values, place, &queries, &sums, &out);
                column += WIDE * LANES;
            } else {
                weigh::<S, 1, _>(s, scores, stride, values, place, &queries, &sums, &out);
                column += LANES;
            }
        }
    }
}

/// Products of a tile's queries with `B` blocks of keys.
#[inline(always)]
pub(super) fn score<S: Isa, const B: usize>(
    s: S,
    queries: &[f32],
    keys: &[f32],
    width: usize,
    out: &mut [f32],
    stride: usize,
) {
    let block = width * LANES;
    let keys = &keys[..B * block];
    let mut acc = [[s.splat(0.0); B]; QUERIES];
    for (d, query) in queries.chunks_exact(QUERIES).enumerate() {
        let mut key = [s.splat(0.0); B];
        for (b, key) in key.iter_mut().enumerate() {
            // SAFETY: `d` is below the width, so the 16 floats are inside block `b` of `keys`.
            *key = unsafe { s.load(keys.as_ptr().add(b * block + d * LANES)) };
        }
        for (acc, &q) in acc.iter_mut().zip(query) {
            let q = s.splat(q);
            for (acc, &key) in acc.iter_mut().zip(&key) {
                *acc = s.fma(key, q, *acc);
            }
        }
    }
    for (i, acc) in acc.into_iter().enumerate() {
        for (out, acc) in out[i * stride..].chunks_mut(LANES).zip(acc) {
            s.store_partial(out, acc);
        }
    }
}

/// Adds to scores of positions from `first` what `bias` has for their distance from `query`.
#[inline(always)]
fn gain<S: Isa>(s: S, row: &mut [f32], bias: &[f32], first: usize, query: usize) {
    let reach = (bias.len() / 2) as isize;
    for (b, lanes) in row.chunks_exact_mut(LANES).enumerate() {
        let distance = (first + b * LANES) as isize - query as isize;
        let inside = distance >= -reach && distance + LANES as isize - 1 <= reach;
        let gained = if inside {
            s.load_partial(&bias[(distance + reach) as usize..])
        } else {
            let mut each = [0.0; LANES];
            for (lane, v) in each.iter_mut().enumerate() {
                let clamped = (distance + lane as isize).clamp(-reach, reach);
                *v = bias[(clamped + reach) as usize];
            }
            s.load_partial(&each)
        };
        let sum = s.add(s.load_partial(lanes), gained);
        s.store_partial(lanes, sum);
    }
}

/// Takes tokens that are not shown out of scores; those past the end are out.
pub(super) fn hide(scores: &mut [f32], shown: &[i32]) {
    for (score, &shown) in scores.iter_mut().zip(shown) {
        if shown == 0 {
            *score = f32::NEG_INFINITY;
        }
    }
}

/// A part of the values: columns from `column`, some rows.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) column: usize,
    pub(super) padded: usize,
    pub(super) rows: Range<usize>,
}

/// `B` vectors of the results of a tile.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "one call site; it is inlined")]
pub(super) fn weigh<'o, S: Isa, const B: usize, F: Fn(usize) -> &'o mut [f32]>(
    s: S,
    weights: &[f32],
    stride: usize,
    values: &[f32],
    place: Place,
    queries: &Queries<'_>,
    sums: &[f32; QUERIES],
    out: &F,
) {
    let Place { column, padded, rows } = place;
    let rows_of: [&[f32]; QUERIES] = std::array::from_fn(|i| &weights[i * stride..][rows.clone()]);
    let values = &values[rows.start * padded..rows.end * padded];
    let mut acc = [[s.splat(0.0); B]; QUERIES];
    for (j, value) in values.chunks_exact(padded).enumerate() {
        let value = &value[column..column + B * LANES];
        let mut v = [s.splat(0.0); B];
        for (v, lanes) in v.iter_mut().zip(value.chunks_exact(LANES)) {
            *v = s.load_partial(lanes);
        }
        for (acc, row) in acc.iter_mut().zip(&rows_of) {
            // SAFETY: every row has as many weights as there are rows of values.
            let weight = s.splat(unsafe { *row.get_unchecked(j) });
            for (acc, &v) in acc.iter_mut().zip(&v) {
                *acc = s.fma(v, weight, *acc);
            }
        }
    }
    for (i, acc) in acc.into_iter().enumerate().take(queries.count) {
        // The largest score adds 1, so that less is the sum of nothing at all.
        let scale = s.splat(1.0 / sums[i].max(1.0));
        let row = out(i);
        let width = row.len();
        for (b, acc) in acc.into_iter().enumerate() {
            let at = column + b * LANES;
            if at < width {
                s.store_partial(&mut row[at..], s.mul(acc, scale));
            }
        }
    }
}
