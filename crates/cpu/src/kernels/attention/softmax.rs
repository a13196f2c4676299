//! The online softmax of `sdpa_paged`: one query's running result over blocks of keys and values.
//!
//! A running result is `width` floats of weighted values, then the maximum and the sum (padded to a
//! vector).

use cyb_simd::{Isa, LANES, math};

use super::POSITIONS;

/// A block as the inner loops want it.
pub(super) struct Block<'a> {
    /// [key width, POSITIONS]
    pub(super) keys: &'a [f32],
    /// [POSITIONS, value width]
    pub(super) values: &'a [f32],
}

/// An empty result: no value, maximum -inf, sum 0.
#[inline(always)]
pub(super) fn clear(partial: &mut [f32]) {
    partial.fill(0.0);
    let value = partial.len() - LANES;
    partial[value] = f32::NEG_INFINITY;
}

/// `N` queries over the positions `seen` of one block. Each query's sums run in the same order for
/// every `N`.
#[inline(always)]
pub(super) fn step<S: Isa, const N: usize>(
    s: S,
    softcap: f32,
    queries: &[f32],
    block: &Block<'_>,
    seen: std::ops::Range<usize>,
    weights: &mut [f32],
    running: &mut [f32],
) {
    let key = queries.len() / N;
    let mut scores = [[s.splat(0.0); 2]; N];
    for (d, keys) in block.keys.chunks_exact(POSITIONS).enumerate() {
        // SAFETY: `keys` holds 32 floats.
        let (low, high) = unsafe { (s.load(keys.as_ptr()), s.load(keys.as_ptr().add(LANES))) };
        for (n, scores) in scores.iter_mut().enumerate() {
            let q = s.splat(queries[n * key + d]);
            scores[0] = s.fma(q, low, scores[0]);
            scores[1] = s.fma(q, high, scores[1]);
        }
    }
    let partial = running.len() / N;
    let width = partial - LANES;
    let mut keep = [s.splat(0.0); N];
    for (n, [mut low, mut high]) in scores.into_iter().enumerate() {
        let weights = &mut weights[n * POSITIONS..][..POSITIONS];
        let tail = &mut running[n * partial + width..][..LANES];
        if softcap > 0.0 {
            low = s.mul(math::tanh(s, s.mul(low, s.splat(1.0 / softcap))), s.splat(softcap));
            high = s.mul(math::tanh(s, s.mul(high, s.splat(1.0 / softcap))), s.splat(softcap));
        }
        if seen.len() < POSITIONS {
            s.store_partial(&mut weights[..LANES], low);
            s.store_partial(&mut weights[LANES..], high);
            weights[..seen.start].fill(f32::NEG_INFINITY);
            weights[seen.end..].fill(f32::NEG_INFINITY);
            (low, high) = (s.load_partial(weights), s.load_partial(&weights[LANES..]));
        }
        let top = s.reduce_max(s.max(low, high)).max(tail[0]);
        let kept = exp_one(s, tail[0] - top);
        low = math::exp(s, s.sub(low, s.splat(top)));
        high = math::exp(s, s.sub(high, s.splat(top)));
        s.store_partial(&mut weights[..LANES], low);
        s.store_partial(&mut weights[LANES..], high);
        tail[0] = top;
        tail[1] = tail[1] * kept + s.reduce_sum(s.add(low, high));
        keep[n] = s.splat(kept);
    }
    for d in (0..width).step_by(2 * LANES) {
        // Two vectors at a time where the width allows: sums that do not wait for each other.
        if d + 2 * LANES <= width {
            accumulate::<S, N, 2>(s, block, &seen, weights, running, &keep, d);
        } else {
            accumulate::<S, N, 1>(s, block, &seen, weights, running, &keep, d);
        }
    }
}

/// Scales `V` vectors of the running values from `d` on and adds the block's weighted values.
#[inline(always)]
fn accumulate<S: Isa, const N: usize, const V: usize>(
    s: S,
    block: &Block<'_>,
    seen: &std::ops::Range<usize>,
    weights: &[f32],
    running: &mut [f32],
    keep: &[S::F; N],
    d: usize,
) {
    let partial = running.len() / N;
    let width = partial - LANES;
    let mut sums = [[s.splat(0.0); V]; N];
    for (n, sums) in sums.iter_mut().enumerate() {
        for (v, sum) in sums.iter_mut().enumerate() {
            *sum = s.mul(s.load_partial(&running[n * partial + d + v * LANES..]), keep[n]);
        }
    }
    for j in seen.clone() {
        let from = &block.values[j * width + d..][..V * LANES];
        let mut values = [s.splat(0.0); V];
        for (v, value) in values.iter_mut().enumerate() {
            *value = s.load_partial(&from[v * LANES..]);
        }
        for (n, sums) in sums.iter_mut().enumerate() {
            let w = s.splat(weights[n * POSITIONS + j]);
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = s.fma(w, value, *sum);
            }
        }
    }
    for (n, sums) in sums.iter().enumerate() {
        for (v, sum) in sums.iter().enumerate() {
            let at = n * partial + d + v * LANES;
            s.store_partial(&mut running[at..at + LANES], *sum);
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
