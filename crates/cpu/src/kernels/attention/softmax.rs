//! The online softmax of `sdpa_paged`: scores, weights and weighted values of some queries.
//!
//! A running result is `width` floats of weighted values, then the maximum and the sum (padded to a
//! vector). Each query's sums run in the same order whatever goes together with it.

use std::ops::Range;

use cyb_simd::{Isa, LANES, math};

use super::pool::{Lines, Rows};
use super::{POSITIONS, SPLIT};
use crate::kernels::softmax::{cap, exponentials, keep};

/// Queries that are handled together: as many as leave registers for what they share.
pub(super) const fn widest<S: Isa>() -> usize {
    if S::WIDE { 8 } else { 6 }
}

/// An empty result: no value, maximum -inf, sum 0.
#[inline(always)]
pub(super) fn clear(partial: &mut [f32]) {
    partial.fill(0.0);
    let value = partial.len() - LANES;
    partial[value] = f32::NEG_INFINITY;
}

/// Products of `N` queries, as columns `[width, N]`, with a block of keys `[width, POSITIONS]`, into
/// the first floats of rows that lie [`SPLIT`] apart.
#[inline(always)]
pub(super) fn score<S: Isa, const N: usize>(
    s: S,
    queries: &[f32],
    keys: &[f32],
    scores: &mut [f32],
    ahead: &mut Lines,
) {
    if const { S::WIDE } {
        score_part::<S, N, 2>(s, queries, keys, scores, ahead);
    } else {
        score_part::<S, N, 1>(s, queries, keys, scores, ahead);
        score_part::<S, N, 1>(s, queries, &keys[LANES..], &mut scores[LANES..], &mut Lines::none());
    }
}

/// The same with `V` vectors of positions.
#[inline(always)]
fn score_part<S: Isa, const N: usize, const V: usize>(
    s: S,
    queries: &[f32],
    keys: &[f32],
    scores: &mut [f32],
    ahead: &mut Lines,
) {
    let queries = queries.as_chunks::<N>().0;
    assert!(keys.len() + POSITIONS >= queries.len() * POSITIONS + V * LANES);
    let mut sums = [[s.splat(0.0); V]; N];
    for (d, queries) in queries.iter().enumerate() {
        ahead.ask(s);
        let mut key = [s.splat(0.0); V];
        for (v, key) in key.iter_mut().enumerate() {
            // SAFETY: asserted above.
            *key = unsafe { s.load(keys.as_ptr().add(d * POSITIONS + v * LANES)) };
        }
        for (sums, q) in sums.iter_mut().zip(queries) {
            let q = s.splat(*q);
            for (sum, key) in sums.iter_mut().zip(key) {
                *sum = s.fma(q, key, *sum);
            }
        }
    }
    for (n, sums) in sums.into_iter().enumerate() {
        let row = &mut scores[n * SPLIT..][..V * LANES];
        for (row, sum) in row.chunks_exact_mut(LANES).zip(sums) {
            s.store_partial(row, sum);
        }
    }
}

/// Turns a query's scores of the positions `seen` of a split into weights; those beside them, up to
/// whole vectors, become 0. Gives the largest score and the sum of weights.
#[inline(always)]
pub(super) fn weigh<S: Isa>(
    s: S,
    softcap: f32,
    scores: &mut [f32],
    seen: Range<usize>,
) -> (f32, f32) {
    let first = seen.start / LANES * LANES;
    let row = &mut scores[first..seen.end.next_multiple_of(LANES)];
    cap(s, row, softcap);
    keep(row, seen.start - first..seen.end - first);
    exponentials(s, row)
}

/// Adds the weighted values `seen` of a block to `N` running results. Weights
/// are the first floats of rows that lie [`SPLIT`] apart.
#[inline(always)]
pub(super) fn add_values<S: Isa, const N: usize, R: Rows>(
    s: S,
    weights: &[f32],
    values: R,
    seen: Range<usize>,
    running: &mut [f32],
    ahead: &mut Lines,
) {
    let width = running.len() / N - LANES;
    let mut d = 0;
    while d < width {
        // Sums that do not wait for each other, as far as registers go.
        if S::WIDE && d + 2 * LANES <= width {
            add_part::<S, N, 2, R>(s, weights, values, seen.clone(), running, d, ahead);
            d += 2 * LANES;
        } else {
            add_part::<S, N, 1, R>(s, weights, values, seen.clone(), running, d, ahead);
            d += LANES;
        }
    }
}

/// The same for `V` vectors of values from `d` on.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "two call sites; it is inlined")]
fn add_part<S: Isa, const N: usize, const V: usize, R: Rows>(
    s: S,
    weights: &[f32],
    values: R,
    seen: Range<usize>,
    running: &mut [f32],
    d: usize,
    ahead: &mut Lines,
) {
    let partial = running.len() / N;
    let width = partial - LANES;
    assert!(seen.end <= POSITIONS && d + V * LANES <= width && running.len() >= N * partial);
    assert!(weights.len() >= (N - 1) * SPLIT + seen.end);
    let results = running.as_mut_ptr();
    let mut sums = [[s.splat(0.0); V]; N];
    for (n, sums) in sums.iter_mut().enumerate() {
        for (v, sum) in sums.iter_mut().enumerate() {
            // SAFETY: there are `N` results, and each has the elements, as asserted above.
            *sum = unsafe { s.load(results.add(n * partial + d + v * LANES)) };
        }
    }
    for j in seen {
        ahead.ask(s);
        let mut value = [s.splat(0.0); V];
        for (v, value) in value.iter_mut().enumerate() {
            // SAFETY: rows are as wide as results; the rest is asserted above.
            *value = unsafe { values.lanes(s, j, d + v * LANES) };
        }
        for (n, sums) in sums.iter_mut().enumerate() {
            // SAFETY: asserted above.
            let w = s.splat(unsafe { *weights.get_unchecked(n * SPLIT + j) });
            for (sum, value) in sums.iter_mut().zip(value) {
                *sum = s.fma(w, value, *sum);
            }
        }
    }
    for (n, sums) in sums.iter().enumerate() {
        for (v, sum) in sums.iter().enumerate() {
            // SAFETY: as above.
            unsafe { s.store(results.add(n * partial + d + v * LANES), *sum) };
        }
    }
}

/// `exp` of one number, with the bits the vector form gives.
#[inline(always)]
fn exp_one<S: Isa>(s: S, x: f32) -> f32 {
    s.to_array(math::exp(s, s.splat(x)))[0]
}

/// Adds a later split to a merged result.
#[inline(always)]
pub(super) fn merge<S: Isa>(s: S, merged: &mut [f32], split: &[f32]) {
    let width = merged.len() - LANES;
    let (acc, tail) = merged.split_at_mut(width);
    let (other, other_tail) = split.split_at(width);
    if other_tail[0] == f32::NEG_INFINITY {
        return;
    }
    let top = tail[0].max(other_tail[0]);
    let (keep, take) = (exp_one(s, tail[0] - top), exp_one(s, other_tail[0] - top));
    tail[1] = tail[1].mul_add(keep, other_tail[1] * take);
    tail[0] = top;
    let (keep, take) = (s.splat(keep), s.splat(take));
    for (a, b) in acc.chunks_exact_mut(LANES).zip(other.chunks_exact(LANES)) {
        let sum = s.fma(s.load_partial(a), keep, s.mul(s.load_partial(b), take));
        s.store_partial(a, sum);
    }
}

/// The weighted value over the sum, with a sink's weight in the sum.
#[inline(always)]
pub(super) fn normalize<S: Isa>(s: S, merged: &mut [f32], sink: Option<f32>, out: &mut [f32]) {
    let width = out.len();
    let (mut sum, mut factor) = (merged[width + 1], 1.0);
    if let Some(sink) = sink {
        let top = merged[width].max(sink);
        factor = exp_one(s, merged[width] - top);
        sum = sum * factor + exp_one(s, sink - top);
    }
    let scale = s.splat(factor / sum);
    for (o, v) in out.chunks_mut(LANES).zip(merged.chunks(LANES)) {
        let v = s.mul(s.load_partial(v), scale);
        s.store_partial(o, v);
    }
}
