//! Relative positions in buckets: what a head adds to the score of a key by its distance.
//!
//! Reference: `_relative_position_bucket` of T5 in Hugging Face transformers, which MPNet has too.

use cyb_tensor::Tensor;

use crate::ModelError;

/// Past this distance nothing changes; published models have 128.
pub(crate) const MAX_DISTANCE: usize = 1 << 16;

/// Buckets of distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buckets {
    pub(crate) count: usize,
    pub(crate) max_distance: usize,
}

impl Buckets {
    /// The bias of each head by distance, `[heads, 2 * max_distance + 1]` with distance 0 in the
    /// middle, from a table `[count, heads]`.
    pub(crate) fn bias(&self, table: &[f32], heads: usize) -> Result<Tensor, ModelError> {
        let reach = self.max_distance as i64;
        let mut bias = Vec::with_capacity(heads.saturating_mul(2 * self.max_distance + 1));
        for head in 0..heads {
            for distance in -reach..=reach {
                bias.push(table[self.of(distance) * heads + head]);
            }
        }
        Tensor::from_f32(vec![heads, 2 * self.max_distance + 1], &bias).map_err(ModelError::tensor)
    }

    /// Half of the buckets are for keys behind the query. Of each half the first half counts single
    /// steps, the rest grows with the logarithm of the distance; in `f32`, as the reference.
    fn of(&self, distance: i64) -> usize {
        let half = self.count / 2;
        let side = if distance > 0 { half } else { 0 };
        let n = distance.unsigned_abs() as usize;
        let exact = half / 2;
        if n < exact || half == 0 {
            return (side + n).min(self.count.saturating_sub(1));
        }
        let exact_f = exact.max(1) as f64;
        let spread = (n as f32 / exact_f as f32).ln()
            / (self.max_distance as f64 / exact_f).ln() as f32
            * (half - exact) as f32;
        // A negative or infinite spread saturates.
        side + (exact + spread as usize).min(half - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_of_the_published_sizes() {
        let buckets = Buckets { count: 32, max_distance: 128 };
        // Single steps up to 7, then by the logarithm: computed with the reference.
        let behind = [0, 1, 7, 8, 11, 12, 16, 23, 32, 64, 127, 128].map(|d| buckets.of(-d));
        assert_eq!(behind, [0, 1, 7, 8, 8, 9, 10, 11, 12, 14, 15, 15]);
        assert_eq!([1, 8, 128].map(|d| buckets.of(d)), [17, 24, 31]);
        for count in 0..6 {
            let odd = Buckets { count, max_distance: 1 };
            assert!([-1, 0, 1].iter().all(|&d| odd.of(d) < count.max(1)));
        }
    }
}
