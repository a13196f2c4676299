//! `sdpa_disentangled`: attention of contents and relative positions within packed sequences.
//!
//! As in `attention_packed`, keys, values and here the tables of positions are laid out in vectors
//! first. A unit of work is then a head of a sequence: the products of its keys with the positions
//! in reach, and for a few neighboring queries at a time those of the queries with keys and
//! positions, the sums of the three, the softmax, the weighted values. What is computed for a token
//! depends on its own sequence only.

use cyb_exec::{Call, ExecError};
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};

use super::attention_packed::{
    Place, QUERIES, Queries, Rows, Sequence, Sequences, Sizes, WIDE, hide, pad, score, turn, typed,
    weigh,
};
use super::attrs_of;
use super::softmax::exponentials;
use crate::io::{Io, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] =
    &[Row { op: "sdpa_disentangled", name: "attention_disentangled", supports, build }];

/// The first table of positions among the inputs.
const TABLES: usize = 6;

fn supports(call: &Call<'_>) -> bool {
    typed(call, 3..TABLES)
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let attrs = attrs_of(&b.node.op);
    Ok(Box::new(Attention {
        scale: attrs.float("scale")? as f32,
        c2p: attrs.flag("c2p")?,
        p2c: attrs.flag("p2c")?,
        workers: b.team.count(),
        isa: b.isa,
    }))
}

#[derive(Debug)]
struct Attention {
    scale: f32,
    c2p: bool,
    p2c: bool,
    workers: usize,
    isa: AnyIsa,
}

/// Sizes of what a worker and what all of them keep.
#[derive(Clone, Copy)]
struct Layout {
    sizes: Sizes,
    /// Positions, to whole vectors.
    positions: usize,
    /// Tables of positions.
    tables: usize,
}

impl Layout {
    fn of(t: &[RawTensor]) -> Layout {
        let positions = t.get(TABLES).map_or(0, |table| table.dims[0]).next_multiple_of(LANES);
        Layout { sizes: Sizes::of(t), positions, tables: t.len().saturating_sub(TABLES) }
    }

    /// Floats of one head's table.
    fn table(&self) -> usize {
        self.positions * self.sizes.key
    }

    /// Floats of a worker's queries, their products with positions and with keys.
    fn tile(&self) -> [usize; 3] {
        [self.sizes.key, self.positions, self.sizes.score_stride()].map(|n| n * QUERIES)
    }

    /// Floats of the products of all keys with positions.
    fn by_key(&self) -> usize {
        self.sizes.tokens.next_multiple_of(QUERIES) * self.positions
    }

    fn workspace(&self) -> usize {
        self.tile().iter().sum::<usize>() + self.by_key()
    }

    fn shared(&self) -> usize {
        let tables = self.tables * self.sizes.heads * self.table();
        self.sizes.key_floats() + self.sizes.value_floats() + tables
    }
}

impl Kernel for Attention {
    fn scratch(&self, limits: &[RawTensor]) -> usize {
        let layout = Layout::of(limits);
        (layout.shared() + self.workers * layout.workspace()) * size_of::<f32>()
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let layout = Layout::of(io.inputs);
        let Layout { sizes, tables, .. } = layout;
        let sequences = Sequences::new(io.slice::<i32>(3), sizes.tokens)?;
        let (queries, keys, values) = (io.slice::<f32>(0), io.slice::<f32>(1), io.slice::<f32>(2));
        let (shown, index) = (io.slice::<i32>(4), io.slice::<i32>(5));
        let positions = io.inputs[TABLES].dims[0];
        let inside = |p: i32| usize::try_from(p).is_ok_and(|p| p < positions);
        if let Some(p) = index.iter().find(|&&p| !inside(p)) {
            return Err(format!("the index has {p}, but there are {positions} positions"));
        }
        if index.len().is_multiple_of(2) && sizes.tokens > 0 {
            return Err(format!("the index has {} entries, an even number", index.len()));
        }
        let scratch = io.scratch::<f32>();
        let padded = sizes.padded_value();
        let (key_block, value_block) = (sizes.key * LANES, LANES * padded);
        let values_at = sizes.key_floats();
        let tables_at = values_at + sizes.value_floats();

        let contents = sizes.sequences * sizes.heads;
        io.each(contents + tables * sizes.heads, |unit| {
            if unit >= contents {
                let (table, head) =
                    ((unit - contents) / sizes.heads, (unit - contents) % sizes.heads);
                let at = tables_at + (table * sizes.heads + head) * layout.table();
                // SAFETY: every head of a table has a place of its own.
                let blocks = unsafe { scratch.range(at, layout.table()) };
                let rows = Rows { stride: sizes.heads * sizes.key, width: sizes.key };
                let from = &io.slice::<f32>(TABLES + table)[head * sizes.key..];
                turn(self.isa, from, rows, positions, blocks);
                return;
            }
            let (sequence, head) = (sequences.get(unit / sizes.heads), unit % sizes.heads);
            let first = head * sizes.blocks() + sequence.block;
            let n = sequence.blocks();
            // SAFETY: blocks of different sequences and heads do not overlap.
            let (k, v) = unsafe {
                (
                    scratch.range(first * key_block, n * key_block),
                    scratch.range(values_at + first * value_block, n * value_block),
                )
            };
            let row = sequence.start * sizes.heads + head;
            let rows = |width: usize| Rows { stride: sizes.heads * width, width };
            turn(self.isa, from(keys, row * sizes.key), rows(sizes.key), sequence.len, k);
            pad(from(values, row * sizes.value), rows(sizes.value), sequence.len, padded, v);
        });
        io.next_phase();

        let workspace_at = layout.shared() + io.worker.index * layout.workspace();
        // SAFETY: every worker has a workspace of its own; the rest is complete and only read from
        // here on.
        let (workspace, shared) = unsafe {
            (scratch.range(workspace_at, layout.workspace()), &*scratch.range(0, layout.shared()))
        };
        let out = io.output::<f32>(0);
        io.each(contents, |unit| {
            let (sequence, head) = (sequences.get(unit / sizes.heads), unit % sizes.heads);
            let first = head * sizes.blocks() + sequence.block;
            let n = sequence.blocks();
            let table = |number: usize| {
                let at = tables_at + (number * sizes.heads + head) * layout.table();
                &shared[at..at + layout.table()]
            };
            let row = sequence.start * sizes.heads + head;
            self.isa.run(Attend {
                scale: self.scale,
                layout,
                sequence,
                index,
                shown: &shown[sequence.start..][..sequence.len],
                queries: from(queries, row * sizes.key),
                contents: from(keys, row * sizes.key),
                keys: &shared[first * key_block..][..n * key_block],
                values: &shared[values_at + first * value_block..][..n * value_block],
                by_query: self.c2p.then(|| table(0)),
                by_key: self.p2c.then(|| table(usize::from(self.c2p))),
                workspace: &mut *workspace,
                out: |token: usize| {
                    let row = (sequence.start + token) * sizes.heads + head;
                    // SAFETY: a head of a sequence is one unit's.
                    unsafe { out.range(row * sizes.value, sizes.value) }
                },
            });
        });
        Ok(())
    }
}

/// What follows `at`, which is the end for sequences without tokens.
fn from(x: &[f32], at: usize) -> &[f32] {
    &x[at.min(x.len())..]
}

/// A head of a sequence.
struct Attend<'a, F> {
    scale: f32,
    layout: Layout,
    sequence: Sequence,
    /// Positions by distance, the middle for none.
    index: &'a [i32],
    /// 0 for tokens that no other sees.
    shown: &'a [i32],
    /// Rows of all heads, from the sequence's first token and this head on.
    queries: &'a [f32],
    contents: &'a [f32],
    /// Blocks `[key width, 16]`.
    keys: &'a [f32],
    /// Rows of the padded value width.
    values: &'a [f32],
    /// Positions as keys, and as queries: blocks `[key width, 16]`.
    by_query: Option<&'a [f32]>,
    by_key: Option<&'a [f32]>,
    workspace: &'a mut [f32],
    /// Where the result of a token goes.
    out: F,
}

impl<'o, F: Fn(usize) -> &'o mut [f32]> SimdOp for Attend<'_, F> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Layout { sizes, positions, .. } = self.layout;
        let len = self.sequence.len;
        if len == 0 {
            return;
        }
        let middle = self.index.len() / 2;
        let reach = (len - 1).min(middle);
        let index = &self.index[middle - reach..=middle + reach];
        let least = index.iter().copied().min().unwrap_or(0) as usize / LANES;
        let most = index.iter().copied().max().unwrap_or(0) as usize / LANES + 1;
        let stride = sizes.score_stride();
        let row = sizes.heads * sizes.key;

        let [staged, by_query, scores] = self.layout.tile();
        let (staged, rest) = self.workspace.split_at_mut(staged);
        let (by_query, rest) = rest.split_at_mut(by_query);
        let (scores, by_key) = rest.split_at_mut(scores);

        if let Some(table) = self.by_key {
            let mut first = 0;
            while first < len {
                let count = QUERIES.min(len - first);
                stage(&self.contents[first * row..], row, count, self.scale, staged);
                let out = &mut by_key[first * positions..];
                blocks(s, staged, table, sizes.key, least..most, out, positions);
                first += QUERIES;
            }
        }
        let mut first = 0;
        while first < len {
            let count = QUERIES.min(len - first);
            stage(&self.queries[first * row..], row, count, self.scale, staged);
            blocks(s, staged, self.keys, sizes.key, 0..len.div_ceil(LANES), scores, stride);
            if let Some(table) = self.by_query {
                blocks(s, staged, table, sizes.key, least..most, by_query, positions);
                for i in 0..count {
                    let own = &by_query[i * positions..][..positions];
                    for (j, score) in scores[i * stride..][..len].iter_mut().enumerate() {
                        *score += own[apart(index, reach, j, first + i)];
                    }
                }
            }
            if self.by_key.is_some() {
                for (j, own) in by_key.chunks_exact(positions).take(len).enumerate() {
                    for i in 0..count {
                        scores[i * stride + j] += own[apart(index, reach, j, first + i)];
                    }
                }
            }
            let end = len.next_multiple_of(LANES);
            let mut sums = [0.0; QUERIES];
            for (i, sum) in sums.iter_mut().enumerate() {
                let row = &mut scores[i * stride..][..end];
                if i >= count {
                    row.fill(0.0);
                    continue;
                }
                row[len..].fill(f32::NEG_INFINITY);
                hide(row, self.shown);
                (_, *sum) = exponentials(s, row);
            }
            let out = |query: usize| (self.out)(first + query);
            let queries = Queries { first, count, rows: &[], stride: 0 };
            let padded = sizes.padded_value();
            let mut column = 0;
            while column < padded {
                let place = Place { column, padded, rows: 0..end };
                if padded - column >= WIDE * LANES {
                    weigh::<S, WIDE, _>(
                        s,
                        scores,
                        stride,
                        self.values,
                        place,
                        &queries,
                        &sums,
                        &out,
                    );
                    column += WIDE * LANES;
                } else {
                    weigh::<S, 1, _>(s, scores, stride, self.values, place, &queries, &sums, &out);
                    column += LANES;
                }
            }
            first += QUERIES;
        }
    }
}

/// The position of key `j` as query `i` sees it; `index` reaches `reach` to both sides.
#[inline(always)]
fn apart(index: &[i32], reach: usize, j: usize, i: usize) -> usize {
    let slot = (j + reach).saturating_sub(i).min(2 * reach);
    index[slot] as usize
}

/// A few rows, scaled, as columns `[width, QUERIES]`; missing ones are zeros.
#[inline(always)]
fn stage(rows: &[f32], stride: usize, count: usize, scale: f32, out: &mut [f32]) {
    for (d, column) in out.chunks_exact_mut(QUERIES).enumerate() {
        for (i, v) in column.iter_mut().enumerate() {
            *v = if i < count { rows[i * stride + d] * scale } else { 0.0 };
        }
    }
}

/// Products of staged rows with some blocks of `[width, 16]`.
#[inline(always)]
fn blocks<S: Isa>(
    s: S,
    staged: &[f32],
    table: &[f32],
    width: usize,
    range: std::ops::Range<usize>,
    out: &mut [f32],
    stride: usize,
) {
    let mut block = range.start;
    while block < range.end {
        let from = &table[block * width * LANES..];
        let at = block * LANES;
        if range.end - block >= WIDE {
            score::<S, WIDE>(s, staged, from, width, &mut out[at..], stride);
            block += WIDE;
        } else {
            score::<S, 1>(s, staged, from, width, &mut out[at..], stride);
            block += 1;
        }
    }
}
