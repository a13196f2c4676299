//! `sdpa_paged`: flash attention over pool blocks.
//!
//! The unit of work is a *tile* of neighbouring tokens of one sequence, times the query heads that
//! share a key head: its queries. Positions come in splits of [`SPLIT`]. A split is walked twice,
//! block by block: first its keys, which are decoded to `f32` once for all queries of the tile,
//! transposed so that 16 positions are the lanes of a vector, for the scores; then, with the weights
//! of the whole split known, its values. Each query keeps its maximum, sum and weighted value
//! (online softmax), which splits are merged into.
//!
//! What is computed for a query never depends on the other queries of its tile: positions come in
//! order, in splits that each start afresh and are merged in order. So splits can run on different
//! workers when there are few tiles, and a token gives the same bits alone, in a batch, and in any
//! chunk of a prompt.

mod pool;
mod softmax;

use cyb_exec::{Call, ExecError};
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};
use cyb_tensor::DType;

use pool::{Bf16, Decoded, F16, Lines, Pool, Rows, stored};
use softmax::{add_values, clear, merge, normalize, score, weigh, widest};

use super::attrs_of;
use crate::io::{Io, RawTensor, Shared};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[Row { op: "sdpa_paged", name: "flash_paged", supports, build }];

/// Tokens of a tile.
const TILE: usize = 16;
/// Positions after which a query's softmax starts afresh, to be merged.
const SPLIT: usize = 256;
/// Positions of a pool block that are handled together.
const POSITIONS: usize = 32;

fn supports(call: &Call<'_>) -> bool {
    let attrs = attrs_of(call.op);
    let known = |i: usize, axis: usize| call.inputs[i].shape[axis].known();
    attrs.size("block").is_ok_and(|b| b.is_multiple_of(POSITIONS))
        && call.inputs[0].dtype == DType::F32
        && stored(call.inputs[1].dtype)
        && stored(call.inputs[2].dtype)
        && known(0, 1).is_some()
        && known(0, 2).is_some_and(|d| d.is_multiple_of(LANES))
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

    /// Floats a worker needs: scaled queries, running and merged results, scores of a split, and a
    /// block of keys or of values.
    fn workspace(&self) -> usize {
        let queries = TILE * self.per_group();
        queries * (self.key + 2 * self.partial() + SPLIT) + POSITIONS * self.key.max(self.value)
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

impl<'a> PagedCall<'a> {
    fn new(kernel: &'a Attention, io: &Io<'a>, sizes: Sizes) -> Result<PagedCall<'a>, String> {
        let pool =
            |i: usize| Pool::new(io.bytes(i), io.inputs[i].dtype, sizes.groups, io.dims(i)[2]);
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

    /// Which of `len` positions from `start` a token sees, counted from there.
    fn seen(&self, token: usize, start: usize, len: usize) -> std::ops::Range<usize> {
        let end = (self.position(token) + 1).saturating_sub(start).min(len);
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

/// Calls a function for a number of queries up to 8, known when it is compiled.
macro_rules! for_count {
    ($count:expr, $function:ident::<$isa:ident $(, $more:ident)?>($($arg:expr),*)) => {
        match $count {
            1 => $function::<$isa, 1 $(, $more)?>($($arg),*),
            2 => $function::<$isa, 2 $(, $more)?>($($arg),*),
            3 => $function::<$isa, 3 $(, $more)?>($($arg),*),
            4 => $function::<$isa, 4 $(, $more)?>($($arg),*),
            5 => $function::<$isa, 5 $(, $more)?>($($arg),*),
            6 => $function::<$isa, 6 $(, $more)?>($($arg),*),
            7 => $function::<$isa, 7 $(, $more)?>($($arg),*),
            _ => $function::<$isa, 8 $(, $more)?>($($arg),*),
        }
    };
}

impl<'a> SimdOp for Attend<'a> {
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
        let (scores, block) = rest.split_at_mut(n * SPLIT);
        let head = |q: usize| group * per_group + q % per_group;
        let token = |q: usize| tile.first + q / per_group;

        // Queries that are handled together are columns side by side.
        for q in 0..n {
            let from = &call.queries[(token(q) * sizes.heads + head(q)) * sizes.key..][..sizes.key];
            let first = q / widest::<S>() * widest::<S>();
            let together = widest::<S>().min(n - first);
            let to = queries[first * sizes.key + q - first..].iter_mut().step_by(together);
            to.zip(from).for_each(|(t, f)| *t = f * call.kernel.scale);
            clear(&mut merged[q * partial..][..partial]);
        }
        let last = call.position(tile.first + tile.len - 1);
        for split in splits {
            let base = split * SPLIT;
            let begin = call.begin(tile.first).max(base) / POSITIONS * POSITIONS;
            let end = (last + 1).min(base + SPLIT);
            // Positions of the split, a block at a time.
            let of =
                |pool: &Pool<'a>, start: usize| pool.block(group, call.slot(tile.first, start));

            let keys = &mut block[..POSITIONS * sizes.key];
            for start in (begin..end).step_by(POSITIONS) {
                // Values arrive while scores are computed.
                let mut ahead = of(&call.values, start).lines();
                of(&call.keys, start).load_turned(s, keys);
                let mut q = 0;
                while q < n {
                    let together = widest::<S>().min(n - q);
                    let queries = &queries[q * sizes.key..][..together * sizes.key];
                    let scores = &mut scores[q * SPLIT + start - base..];
                    for_count!(together, score::<S>(s, queries, keys, scores, &mut ahead));
                    ahead = Lines::none();
                    q += together;
                }
            }
            for q in 0..n {
                let running = &mut running[q * partial..][..partial];
                clear(running);
                let seen = call.seen(token(q), base, SPLIT);
                if !seen.is_empty() {
                    let scores = &mut scores[q * SPLIT..][..SPLIT];
                    let tail = &mut running[sizes.value..];
                    (tail[0], tail[1]) = weigh(s, call.kernel.softcap, scores, seen);
                }
            }
            let decoded = &mut block[..POSITIONS * sizes.value];
            for start in (begin..end).step_by(POSITIONS) {
                // The next split's keys arrive while values are added up.
                let ahead = match start + SPLIT {
                    next if next <= last => of(&call.keys, next).lines(),
                    _ => Lines::none(),
                };
                let values = of(&call.values, start);
                let weights = &scores[start - base..];
                let place = Place { call, tile, start };
                match values.dtype() {
                    // What is used once is decoded on the way.
                    DType::F16 if n <= widest::<S>() => {
                        place.add(s, values.as_rows::<F16>(), weights, running, ahead);
                    }
                    DType::BF16 if n <= widest::<S>() => {
                        place.add(s, values.as_rows::<Bf16>(), weights, running, ahead);
                    }
                    _ => {
                        values.load(s, decoded);
                        let values = Decoded::new(decoded, sizes.value);
                        place.add(s, values, weights, running, ahead);
                    }
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

/// A block of positions as a tile sees it.
struct Place<'a> {
    call: &'a PagedCall<'a>,
    tile: Tile,
    /// Its first position.
    start: usize,
}

impl Place<'_> {
    /// Adds weighted values to what each query of the tile has of a split.
    #[inline(always)]
    fn add<S: Isa, R: Rows>(
        &self,
        s: S,
        values: R,
        weights: &[f32],
        running: &mut [f32],
        mut ahead: Lines,
    ) {
        let Place { call, tile, start } = *self;
        let (per_group, partial) = (call.sizes.per_group(), call.sizes.partial());
        let n = tile.len * per_group;
        let seen_by = |q: usize| call.seen(tile.first + q / per_group, start, POSITIONS);
        let mut q = 0;
        while q < n {
            // Queries that see the same positions of the block go together, so that none meets a
            // value that it does not see.
            let seen = seen_by(q);
            let mut together = 1;
            while together < widest::<S>().min(n - q) && seen_by(q + together) == seen {
                together += 1;
            }
            if !seen.is_empty() {
                let weights = &weights[q * SPLIT..];
                let running = &mut running[q * partial..][..together * partial];
                let ahead = &mut ahead;
                for_count!(together, add_values::<S, R>(s, weights, values, seen, running, ahead));
                *ahead = Lines::none();
            }
            q += together;
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
