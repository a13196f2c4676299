//! `sdpa_paged`: flash attention over pool blocks.
//!
//! The unit of work is a *tile* of neighbouring tokens of one sequence, times the query heads that
//! share a key head: its queries. Keys and values are walked block by block; a block is decoded to
//! `f32` once for all queries of the tile, keys transposed so that 16 positions are the lanes of a
//! vector. Each query keeps a running maximum, sum and weighted value (online softmax).
//!
//! What is computed for a query never depends on the other queries of its tile: positions come in
//! order, in splits of [`SPLIT`] that each start afresh and are merged in order. So splits can run
//! on different workers when there are few tiles, and a token gives the same bits alone, in a
//! batch, and in any chunk of a prompt.

mod softmax;

use cyb_exec::{Call, ExecError};
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};
use cyb_tensor::DType;

use softmax::{Block, clear, merge, normalize, step};

use super::{attrs_of, decode_row, decodes};
use crate::io::{Io, RawTensor, Shared};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[Row { op: "sdpa_paged", name: "flash_paged", supports, build }];

/// Tokens of a tile.
const TILE: usize = 16;
/// Positions after which a query's softmax starts afresh, to be merged.
const SPLIT: usize = 256;
/// Widest key.
const MAX_KEY: usize = 512;
/// Positions of a pool block that are handled together.
const POSITIONS: usize = 32;
const CACHE_LINE: usize = 64;
/// Queries that are handled together where they see the same positions of a block.
const QUERIES: usize = 4;

fn supports(call: &Call<'_>) -> bool {
    let attrs = attrs_of(call.op);
    let known = |i: usize, axis: usize| call.inputs[i].shape[axis].known();
    attrs.size("block").is_ok_and(|b| b.is_multiple_of(POSITIONS))
        && call.inputs[0].dtype == DType::F32
        && decodes(call.inputs[1].dtype)
        && decodes(call.inputs[2].dtype)
        && known(0, 1).is_some()
        && known(0, 2).is_some_and(|d| d.is_multiple_of(LANES) && d <= MAX_KEY)
        && known(1, 1).is_some()
        && known(2, 2).is_some_and(|e| e.is_multiple_of(LANES))
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let attrs = attrs_of(&b.node.op);
    Ok(Box::new(Attention {
        scale: attrs.float("scale")? as f32,
        window: attrs.size("window")?,
        softcap: attrs.float("softcap")? as f32,
        block: attrs.size("block")?,
        workers: b.team.count(),
        isa: b.isa,
    }))
}

#[derive(Debug)]
struct Attention {
    scale: f32,
    /// Positions a token sees, itself included; 0 is all.
    window: usize,
    softcap: f32,
    /// Positions of a pool block.
    block: usize,
    workers: usize,
    isa: AnyIsa,
}

/// Sizes of one call.
#[derive(Clone, Copy)]
struct Sizes {
    tokens: usize,
    heads: usize,
    groups: usize,
    /// Width of a key and of a value.
    key: usize,
    value: usize,
}

impl Sizes {
    fn of(t: &[RawTensor]) -> Sizes {
        Sizes {
            tokens: t[0].dims[0],
            heads: t[0].dims[1],
            groups: t[1].dims[1].max(1),
            key: t[0].dims[2],
            value: t[2].dims[2],
        }
    }

    fn per_group(&self) -> usize {
        self.heads / self.groups
    }

    /// Floats of a query's running result: weighted value, maximum, sum.
    fn partial(&self) -> usize {
        self.value + LANES
    }

    /// Floats a worker needs: scaled queries, running and merged results, weights and a block of
    /// keys and of values.
    fn workspace(&self) -> usize {
        let queries = TILE * self.per_group();
        queries * (self.key + 2 * self.partial() + POSITIONS) + POSITIONS * (self.key + self.value)
    }

    /// Whether splits go to different workers: when there are few tokens.
    fn shares_splits(&self, workers: usize) -> bool {
        workers > 1 && self.tokens <= TILE
    }
}

/// Tokens that follow each other in one sequence.
#[derive(Clone, Copy)]
struct Tile {
    first: usize,
    len: usize,
}

impl Kernel for Attention {
    fn scratch(&self, limits: &[RawTensor]) -> usize {
        let mut sizes = Sizes::of(limits);
        let positions = limits[3].dims[1] * self.block;
        let splits = positions.div_ceil(SPLIT);
        sizes.tokens = sizes.tokens.min(TILE);
        let partials = sizes.tokens * sizes.heads * splits * sizes.partial();
        (self.workers * sizes.workspace() + partials) * size_of::<f32>()
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let sizes = Sizes::of(io.inputs);
        let call = PagedCall::new(self, io, sizes)?;
        let scratch = io.scratch::<f32>();
        let size = sizes.workspace();
        // SAFETY: every worker has a workspace of its own.
        let workspace = unsafe { scratch.range(io.worker.index * size, size) };
        let partials_at = self.workers * size;
        let tiles = call.tiles();

        let most = tiles.iter().map(|t| call.splits(t).end).max().unwrap_or(0);
        if most == 1 || !sizes.shares_splits(self.workers) {
            io.each(tiles.count() * sizes.groups, |unit| {
                let tile = tiles.get(unit / sizes.groups);
                let group = unit % sizes.groups;
                let splits = call.splits(tile);
                self.isa.run(Attend {
                    call: &call,
                    tile,
                    group,
                    splits,
                    workspace: &mut *workspace,
                    finish: Finish::Output(io.output(0)),
                });
            });
            return Ok(());
        }
        let partial = sizes.partial();
        // Partials lie by token, head, split.
        io.each(tiles.count() * sizes.groups * most, |unit| {
            let (rest, split) = (unit / most, unit % most);
            let tile = tiles.get(rest / sizes.groups);
            if call.splits(tile).contains(&split) {
                self.isa.run(Attend {
                    call: &call,
                    tile,
                    group: rest % sizes.groups,
                    splits: split..split + 1,
                    workspace: &mut *workspace,
                    finish: Finish::Partial { to: scratch, at: partials_at, most, split },
                });
            }
        });
        io.next_phase();
        let out = io.output::<f32>(0);
        io.each(sizes.tokens * sizes.heads, |query| {
            let tile = tiles.of_token(query / sizes.heads);
            let at = partials_at + query * most * partial;
            // SAFETY: all partials are written; the output row belongs to this unit.
            let (partials, out) = unsafe {
                (scratch.range(at, most * partial), out.range(query * sizes.value, sizes.value))
            };
            let splits = call.splits(tile);
            let sink = call.sink(query % sizes.heads);
            let merged = &mut workspace[..partial];
            self.isa.run(MergeAll { partials, splits, merged, sink, out });
        });
        Ok(())
    }
}

/// The operands of a call, checked.
struct PagedCall<'a> {
    kernel: &'a Attention,
    sizes: Sizes,
    queries: &'a [f32],
    keys: Pool<'a>,
    values: Pool<'a>,
    tables: &'a [i32],
    /// Blocks in a row of `tables`.
    blocks: usize,
    rows: &'a [i32],
    positions: &'a [i32],
    sinks: Option<&'a [f32]>,
}

/// Keys or values: rows of `width` elements per slot and group.
struct Pool<'a> {
    bytes: &'a [u8],
    dtype: DType,
    groups: usize,
    width: usize,
    /// Bytes of a row.
    stride: usize,
}

impl Pool<'_> {
    fn row(&self, slot: usize, group: usize) -> &[u8] {
        &self.bytes[(slot * self.groups + group) * self.stride..][..self.stride]
    }
}

impl<'a> PagedCall<'a> {
    fn new(kernel: &'a Attention, io: &Io<'a>, sizes: Sizes) -> Result<PagedCall<'a>, String> {
        let pool = |i: usize| {
            let (dtype, width) = (io.inputs[i].dtype, io.dims(i)[2]);
            let layout = dtype.layout();
            let stride = width / layout.block * layout.bytes;
            Pool { bytes: io.bytes(i), dtype, groups: sizes.groups, width, stride }
        };
        let (tables, rows, positions) =
            (io.slice::<i32>(3), io.slice::<i32>(4), io.slice::<i32>(5));
        let (table_rows, blocks) = (io.dims(3)[0], io.dims(3)[1]);
        super::views::check_index(rows, table_rows)?;
        super::views::check_index(positions, blocks * kernel.block)?;
        super::views::check_index(tables, io.dims(1)[0] / kernel.block)?;
        Ok(PagedCall {
            kernel,
            sizes,
            queries: io.slice(0),
            keys: pool(1),
            values: pool(2),
            tables,
            blocks,
            rows,
            positions,
            sinks: (io.inputs.len() > 6).then(|| io.slice(6)),
        })
    }

    fn tiles(&self) -> Tiles<'_> {
        Tiles { rows: self.rows, positions: self.positions }
    }

    fn position(&self, token: usize) -> usize {
        self.positions[token] as usize
    }

    /// The first position a token sees.
    fn begin(&self, token: usize) -> usize {
        match self.kernel.window {
            0 => 0,
            window => (self.position(token) + 1).saturating_sub(window),
        }
    }

    /// Asks for the keys and values of a group in the pool block at `start`.
    #[inline(always)]
    fn ask<S: Isa>(&self, s: S, token: usize, group: usize, start: usize, end: usize) {
        if start >= end {
            return;
        }
        let slot = self.slot(token, start);
        for j in 0..POSITIONS.min(end - start) {
            for pool in [&self.values, &self.keys] {
                for line in pool.row(slot + j, group).chunks(CACHE_LINE) {
                    s.prefetch(line.as_ptr());
                }
            }
        }
    }

    /// The positions of the block at `start` that a token sees, counted from there.
    fn seen(&self, token: usize, start: usize) -> std::ops::Range<usize> {
        let end = (self.position(token) + 1).saturating_sub(start).min(POSITIONS);
        self.begin(token).saturating_sub(start).min(end)..end
    }

    /// The splits that any token of a tile sees.
    fn splits(&self, tile: Tile) -> std::ops::Range<usize> {
        let last = self.position(tile.first + tile.len - 1);
        self.begin(tile.first) / SPLIT..last / SPLIT + 1
    }

    fn slot(&self, token: usize, position: usize) -> usize {
        let table = &self.tables[self.rows[token] as usize * self.blocks..];
        table[position / self.kernel.block] as usize * self.kernel.block
            + position % self.kernel.block
    }

    fn sink(&self, head: usize) -> Option<f32> {
        self.sinks.map(|s| s[head])
    }
}

/// The tiles of a call: runs of tokens with one row and rising positions, cut every [`TILE`]
/// positions. Cutting by position keeps the count independent of where a chunk begins.
#[derive(Clone, Copy)]
struct Tiles<'a> {
    rows: &'a [i32],
    positions: &'a [i32],
}

impl Tiles<'_> {
    fn starts(&self, token: usize) -> bool {
        token == 0
            || self.rows[token] != self.rows[token - 1]
            || self.positions[token] != self.positions[token - 1].wrapping_add(1)
            || (self.positions[token] as usize).is_multiple_of(TILE)
    }

    fn iter(&self) -> impl Iterator<Item = Tile> + '_ {
        let mut next = 0;
        std::iter::from_fn(move || {
            let first = next;
            if first >= self.rows.len() {
                return None;
            }
            next += 1;
            while next < self.rows.len() && !self.starts(next) {
                next += 1;
            }
            Some(Tile { first, len: next - first })
        })
    }

    fn count(&self) -> usize {
        self.iter().count()
    }

    fn get(&self, index: usize) -> Tile {
        self.iter().nth(index).unwrap_or(Tile { first: 0, len: 0 })
    }

    fn of_token(&self, token: usize) -> Tile {
        self.iter().find(|t| token < t.first + t.len).unwrap_or(Tile { first: 0, len: 0 })
    }
}

/// Where a query's result goes.
enum Finish<'a> {
    Output(Shared<'a, f32>),
    /// By token, head and split, each query with room for `most` splits.
    Partial {
        to: Shared<'a, f32>,
        at: usize,
        most: usize,
        split: usize,
    },
}

/// The queries of one tile and group over some splits.
struct Attend<'a> {
    call: &'a PagedCall<'a>,
    tile: Tile,
    group: usize,
    splits: std::ops::Range<usize>,
    workspace: &'a mut [f32],
    finish: Finish<'a>,
}

impl SimdOp for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Attend { call, tile, group, splits, workspace, finish } = self;
        let sizes = call.sizes;
        let per_group = sizes.per_group();
        let n = tile.len * per_group;
        let partial = sizes.partial();
        let (queries, rest) = workspace.split_at_mut(n * sizes.key);
        let (running, rest) = rest.split_at_mut(n * partial);
        let (merged, rest) = rest.split_at_mut(n * partial);
        let (weights, rest) = rest.split_at_mut(n * POSITIONS);
        let (keys, rest) = rest.split_at_mut(POSITIONS * sizes.key);
        let values = &mut rest[..POSITIONS * sizes.value];
        let head = |q: usize| group * per_group + q % per_group;
        let token = |q: usize| tile.first + q / per_group;

        for q in 0..n {
            let from = &call.queries[(token(q) * sizes.heads + head(q)) * sizes.key..][..sizes.key];
            let to = &mut queries[q * sizes.key..][..sizes.key];
            to.iter_mut().zip(from).for_each(|(t, f)| *t = f * call.kernel.scale);
            clear(&mut merged[q * partial..][..partial]);
        }
        let last = call.position(tile.first + tile.len - 1);
        let cap = call.kernel.softcap;
        for split in splits {
            for q in 0..n {
                clear(&mut running[q * partial..][..partial]);
            }
            let begin = call.begin(tile.first).max(split * SPLIT) / POSITIONS * POSITIONS;
            let end = (last + 1).min((split + 1) * SPLIT);
            call.ask(s, tile.first, group, begin, end);
            for start in (begin..end).step_by(POSITIONS) {
                // The next block arrives while this one is computed with.
                call.ask(s, tile.first, group, start + POSITIONS, end);
                load_block(s, call, tile.first, group, start, end, keys, values);
                let block = Block { keys, values };
                let mut q = 0;
                while q < n {
                    // Queries that see the same positions of the block go together.
                    let seen = call.seen(token(q), start);
                    let mut count = 1;
                    while count < QUERIES
                        && q + count < n
                        && call.seen(token(q + count), start) == seen
                    {
                        count += 1;
                    }
                    if !seen.is_empty() {
                        let queries = &queries[q * sizes.key..][..count * sizes.key];
                        let weights = &mut weights[q * POSITIONS..][..count * POSITIONS];
                        let running = &mut running[q * partial..][..count * partial];
                        match count {
                            4 => step::<S, 4>(s, cap, queries, &block, seen, weights, running),
                            3 => step::<S, 3>(s, cap, queries, &block, seen, weights, running),
                            2 => step::<S, 2>(s, cap, queries, &block, seen, weights, running),
                            _ => step::<S, 1>(s, cap, queries, &block, seen, weights, running),
                        }
                    }
                    q += count;
                }
            }
            for q in 0..n {
                merge(s, &mut merged[q * partial..][..partial], &running[q * partial..][..partial]);
            }
        }
        for q in 0..n {
            let merged = &mut merged[q * partial..][..partial];
            let query = token(q) * sizes.heads + head(q);
            match &finish {
                Finish::Output(out) => {
                    // SAFETY: the queries of this unit are no other unit's.
                    let out = unsafe { out.range(query * sizes.value, sizes.value) };
                    normalize(s, merged, call.sink(head(q)), out);
                }
                Finish::Partial { to, at, most, split } => {
                    let at = at + (query * most + split) * partial;
                    // SAFETY: as above, for this split.
                    unsafe { to.range(at, partial) }.copy_from_slice(merged);
                }
            }
        }
    }
}

/// Decodes positions `start..end` (at most [`POSITIONS`]); the rest becomes zeros.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "one call site; a struct would only rename them")]
fn load_block<S: Isa>(
    s: S,
    call: &PagedCall<'_>,
    token: usize,
    group: usize,
    start: usize,
    end: usize,
    keys: &mut [f32],
    values: &mut [f32],
) {
    let (key, value) = (call.sizes.key, call.sizes.value);
    let count = POSITIONS.min(end - start);
    if count < POSITIONS {
        keys.fill(0.0);
        values[count * value..].fill(0.0);
    }
    let slot = call.slot(token, start);
    for j in 0..count {
        load_row(s, &call.values, slot + j, group, &mut values[j * value..][..value]);
    }
    let mut rows = [s.splat(0.0); LANES];
    for first in (0..count).step_by(LANES) {
        for d in (0..key).step_by(LANES) {
            for (j, row) in rows.iter_mut().enumerate() {
                *row = if first + j < count {
                    load_lanes(s, &call.keys, slot + first + j, group, d)
                } else {
                    s.splat(0.0)
                };
            }
            let to = &mut keys[d * POSITIONS + first..][..(LANES - 1) * POSITIONS + LANES];
            // SAFETY: `to` holds 16 floats at 16 strides.
            unsafe { s.store_transposed(&rows, to.as_mut_ptr(), POSITIONS) };
        }
    }
}

/// Elements `d..d + 16` of a row of a pool.
#[inline(always)]
fn load_lanes<S: Isa>(s: S, pool: &Pool<'_>, slot: usize, group: usize, d: usize) -> S::F {
    let bytes = pool.row(slot, group);
    match pool.dtype {
        DType::F16 | DType::BF16 => {
            let from = &bytes[2 * d..][..2 * LANES];
            // SAFETY: 16 values of 2 bytes are readable.
            unsafe {
                let p = from.as_ptr().cast();
                if pool.dtype == DType::F16 { s.load_f16(p) } else { s.load_bf16(p) }
            }
        }
        _ => {
            let mut row = [0f32; MAX_KEY];
            let row = &mut row[..pool.width];
            // Rows are whole blocks of a dtype that `supports` admitted, so decoding cannot fail.
            if decode_row(pool.dtype, bytes, row).is_err() {
                row.fill(f32::NAN);
            }
            s.load_partial(&row[d..])
        }
    }
}

#[inline(always)]
fn load_row<S: Isa>(s: S, pool: &Pool<'_>, slot: usize, group: usize, out: &mut [f32]) {
    let bytes = pool.row(slot, group);
    debug_assert_eq!(out.len(), pool.width);
    match pool.dtype {
        DType::F16 | DType::BF16 => {
            for (from, to) in bytes.chunks_exact(2 * LANES).zip(out.chunks_exact_mut(LANES)) {
                // SAFETY: 16 values of 2 bytes are readable, 16 floats writable.
                unsafe {
                    let p = from.as_ptr().cast();
                    let v = if pool.dtype == DType::F16 { s.load_f16(p) } else { s.load_bf16(p) };
                    s.store(to.as_mut_ptr(), v);
                }
            }
        }
        _ => {
            // Rows are whole blocks of a dtype that `supports` admitted, so decoding cannot fail.
            if decode_row(pool.dtype, bytes, out).is_err() {
                out.fill(f32::NAN);
            }
        }
    }
}

/// Merges a query's splits and writes its output.
struct MergeAll<'a> {
    partials: &'a [f32],
    splits: std::ops::Range<usize>,
    merged: &'a mut [f32],
    sink: Option<f32>,
    out: &'a mut [f32],
}

impl SimdOp for MergeAll<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let size = self.merged.len();
        clear(self.merged);
        for split in self.splits {
            merge(s, self.merged, &self.partials[split * size..][..size]);
        }
        normalize(s, self.merged, self.sink, self.out);
    }
}
