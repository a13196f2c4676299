//! The tokens in order of probability, sorted only as far as somebody looks.
//!
//! One pass over the logits takes the maximum of every chunk of [`CHUNK`]. These few thousand
//! maxima answer the expensive questions: the highest logit is among them, and the m-th largest of
//! them is a lower bound for the m-th largest logit, so that the best m tokens are found by looking
//! only into the chunks whose maximum reaches that bound.

use crate::exp::{exp_nonpositive, sum_exp};
use crate::sampler::SampleError;

const CHUNK: usize = 64;
/// Tokens sorted at first; each time more are wanted the number grows by `GROWTH`.
const FIRST: usize = 64;
const GROWTH: usize = 8;
/// Logits per partial sum of probability mass.
const MASS_BLOCK: usize = 1024;

/// Scratch memory for sampling. It grows to what the vocabulary needs and is then reused.
#[derive(Debug, Clone, Default)]
pub struct Workspace {
    maxima: Vec<f32>,
    bounds: Vec<f32>,
    pub(crate) keys: Vec<u64>,
    masses: Vec<f64>,
    /// The logits of one sequence after bias, penalties and mask.
    pub(crate) edited: Vec<f32>,
}

/// A token as a number that sorts by descending logit, then ascending id.
pub(crate) fn key(logit: f32, token: usize) -> u64 {
    // Adding zero turns -0 into +0, which must tie with it.
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | token as u64
}

pub(crate) fn key_token(key: u64) -> u32 {
    key as u32
}

pub(crate) fn key_logit(key: u64) -> f32 {
    let ascending = !((key >> 32) as u32);
    f32::from_bits(if ascending >> 31 == 1 { ascending & !(1 << 31) } else { !ascending })
}

/// The largest number of a chunk, and a number that is not zero if any is NaN. Sixteen lanes, so that
/// compilers use vectors.
fn chunk_max(chunk: &[f32; CHUNK]) -> (f32, u32) {
    const LANES: usize = 16;
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut nans = [0u32; LANES];
    for part in chunk.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            lanes[i] = if part[i] > lanes[i] { part[i] } else { lanes[i] };
            nans[i] |= u32::from(part[i].is_nan());
        }
    }
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] = if lanes[i + half] > lanes[i] { lanes[i + half] } else { lanes[i] };
            nans[i] |= nans[i + half];
        }
    }
    (lanes[0], nans[0])
}

/// Fills `maxima` with the largest logit of every chunk; an error names the first token that is not
/// a number or is plus infinity, or says that no token is possible.
fn scan(logits: &[f32], maxima: &mut Vec<f32>) -> Result<f32, SampleError> {
    maxima.clear();
    let mut nans = 0;
    let mut best = f32::NEG_INFINITY;
    let (chunks, tail) = logits.as_chunks::<CHUNK>();
    let mut padded = [f32::NEG_INFINITY; CHUNK];
    padded[..tail.len()].copy_from_slice(tail);
    for chunk in chunks.iter().chain((!tail.is_empty()).then_some(&padded)) {
        let (max, chunk_nans) = chunk_max(chunk);
        nans |= chunk_nans;
        best = if max > best { max } else { best };
        maxima.push(max);
    }
    if nans != 0 || best == f32::INFINITY {
        let token = logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY).unwrap_or(0);
        return Err(SampleError::NotFinite { token: token as u32, logit: logits[token] });
    }
    if best == f32::NEG_INFINITY {
        return Err(SampleError::NoCandidate);
    }
    Ok(best)
}

/// The token with the highest logit; of equal ones, the one with the lowest id.
pub(crate) fn argmax(logits: &[f32], workspace: &mut Workspace) -> Result<u32, SampleError> {
    let best = scan(logits, &mut workspace.maxima)?;
    let chunk = workspace.maxima.iter().position(|&m| m == best).unwrap_or(0) * CHUNK;
    let within = logits[chunk..].iter().position(|&x| x == best).unwrap_or(0);
    Ok((chunk + within) as u32)
}

/// The tokens that filters have left, most probable first.
///
/// Weights are probabilities up to a common factor: the best token has weight 1.
#[derive(Debug)]
pub(crate) struct Ranking<'a> {
    source: Source<'a>,
    workspace: &'a mut Workspace,
    max: f32,
    inv_t: f32,
    /// Whether `workspace.keys` holds every token that is left.
    complete: bool,
    /// Whether a filter has removed anything.
    cut: bool,
    /// Whether something was asked that the source cannot answer.
    undecided: bool,
}

/// What a ranking is of.
#[derive(Clone, Copy, Debug)]
enum Source<'a> {
    Logits(&'a [f32]),
    /// The first tokens of the ranking, and the mass of all where that is known.
    Candidates(Option<f64>),
}

impl<'a> Ranking<'a> {
    /// A ranking of `logits / temperature`, nothing sorted yet. `inv_t` is the reciprocal of the
    /// temperature, positive and finite.
    pub(crate) fn new(
        logits: &'a [f32],
        inv_t: f32,
        workspace: &'a mut Workspace,
    ) -> Result<Self, SampleError> {
        let max = scan(logits, &mut workspace.maxima)?;
        workspace.keys.clear();
        let source = Source::Logits(logits);
        let (complete, cut, undecided) = (false, false, false);
        Ok(Ranking { source, workspace, max, inv_t, complete, cut, undecided })
    }

    /// The ranking whose first tokens are the workspace's keys, which are sorted and at least one;
    /// with `complete` there are no others. What needs more leaves it undecided.
    pub(crate) fn of_candidates(
        inv_t: f32,
        mass: Option<f64>,
        complete: bool,
        workspace: &'a mut Workspace,
    ) -> Self {
        let max = workspace.keys.first().map_or(f32::NEG_INFINITY, |&k| key_logit(k));
        let source = Source::Candidates(mass);
        Ranking { source, workspace, max, inv_t, complete, cut: false, undecided: false }
    }

    /// Whether the answers so far would be others with all logits known.
    pub(crate) fn undecided(&self) -> bool {
        self.undecided
    }

    /// Sorts the best `n` tokens, or all when there are fewer.
    pub(crate) fn rank(&mut self, n: usize) {
        let Workspace { maxima, bounds, keys, .. } = &mut *self.workspace;
        if self.complete || n <= keys.len() {
            return;
        }
        let Source::Logits(logits) = self.source else {
            self.undecided = true;
            return;
        };
        let bound = if n < maxima.len() {
            bounds.clear();
            bounds.extend_from_slice(maxima);
            *bounds.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a)).1
        } else {
            f32::NEG_INFINITY
        };
        keys.clear();
        for (chunk_idx, chunk) in logits.chunks(CHUNK).enumerate() {
            if maxima[chunk_idx] >= bound {
                for (i, &logit) in chunk.iter().enumerate() {
                    if logit >= bound && logit > f32::NEG_INFINITY {
                        keys.push(key(logit, chunk_idx * CHUNK + i));
                    }
                }
            }
        }
        if keys.len() > n {
            keys.select_nth_unstable(n - 1);
            keys.truncate(n);
        } else {
            self.complete = bound == f32::NEG_INFINITY;
        }
        keys.sort_unstable();
    }

    /// Drops all but the best `n` tokens, which must have been ranked.
    pub(crate) fn keep(&mut self, n: usize) {
        self.workspace.keys.truncate(n);
        self.complete = true;
        self.cut = true;
    }

    /// The weight of the token at rank `i`, none when fewer are left.
    pub(crate) fn weight(&mut self, i: usize) -> Option<f64> {
        if i >= self.workspace.keys.len() {
            self.rank((self.workspace.keys.len() * GROWTH).max(FIRST));
        }
        self.workspace.keys.get(i).map(|&k| self.weight_of(key_logit(k)))
    }

    fn weight_of(&self, logit: f32) -> f64 {
        f64::from(exp_nonpositive((logit - self.max) * self.inv_t))
    }

    /// The id of the token at rank `i`, none when fewer are left.
    pub(crate) fn token(&mut self, i: usize) -> Option<u32> {
        self.rank(i + 1);
        self.workspace.keys.get(i).map(|&k| key_token(k))
    }

    /// The sum of the weights of all tokens that are left.
    pub(crate) fn mass(&mut self) -> f64 {
        if self.cut {
            return self.workspace.keys.iter().map(|&k| self.weight_of(key_logit(k))).sum();
        }
        let logits = match self.source {
            Source::Logits(logits) => logits,
            Source::Candidates(mass) => {
                self.undecided |= mass.is_none();
                return mass.unwrap_or(0.0);
            }
        };
        let masses = &mut self.workspace.masses;
        masses.clear();
        let blocks = logits.chunks(MASS_BLOCK);
        masses.extend(blocks.map(|block| sum_exp(block, self.max, self.inv_t)));
        masses.iter().sum()
    }

    /// Draws a token in proportion to its weight, by inversion of `u` in `[0, 1)`: in order of rank
    /// when a filter has cut the ranking, else in order of id, which needs no sorting.
    pub(crate) fn draw(&mut self, u: f64) -> u32 {
        let mut rest = u * self.mass();
        if self.cut {
            let keys = &self.workspace.keys;
            // Rounding can leave a rest after the last token; the last one that can occur takes it.
            let mut chosen = keys[0];
            for &k in keys {
                let weight = self.weight_of(key_logit(k));
                if weight > 0.0 {
                    chosen = k;
                }
                rest -= weight;
                if rest < 0.0 {
                    break;
                }
            }
            return key_token(chosen);
        }
        let Source::Logits(logits) = self.source else {
            self.undecided = true;
            return 0;
        };
        let masses = &self.workspace.masses;
        let mut block_idx = 0;
        for (i, &mass) in masses.iter().enumerate() {
            if mass > 0.0 {
                block_idx = i;
            }
            if rest < mass {
                break;
            }
            rest -= mass;
        }
        let first = block_idx * MASS_BLOCK;
        let mut chosen = first;
        for (i, &logit) in logits[first..].iter().take(MASS_BLOCK).enumerate() {
            let weight = self.weight_of(logit);
            if weight > 0.0 {
                chosen = first + i;
            }
            rest -= weight;
            if rest < 0.0 {
                break;
            }
        }
        chosen as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive_order(logits: &[f32]) -> Vec<u32> {
        let mut ids: Vec<u32> =
            (0..logits.len() as u32).filter(|&i| logits[i as usize] > f32::NEG_INFINITY).collect();
        ids.sort_by(|&a, &b| logits[b as usize].partial_cmp(&logits[a as usize]).unwrap());
        ids
    }

    #[test]
    fn keys_keep_logit_and_order() {
        let logits = [-3.5f32, -0.0, 0.0, 1e-30, 7.25, f32::MAX, f32::MIN];
        for &x in &logits {
            assert_eq!(key_logit(key(x, 5)), x);
            assert_eq!(key_token(key(x, 5)), 5);
        }
        assert!(key(-0.0, 1) < key(0.0, 2));
        assert!(key(1.0, 9) < key(0.5, 0));
        assert!(key(-1.0, 9) < key(-1.5, 0));
    }

    proptest! {
        /// Few distinct values make ties the rule; sizes cross the chunk and growth boundaries.
        #[test]
        fn ranks_like_a_full_stable_sort(
            logits in prop::collection::vec(
                prop_oneof![3 => (-20i32..20).prop_map(|x| x as f32 / 4.0), 1 => Just(f32::NEG_INFINITY)],
                1..6000),
            n in 1usize..600,
        ) {
            let want = naive_order(&logits);
            prop_assume!(!want.is_empty());
            let mut workspace = Workspace::default();
            prop_assert_eq!(argmax(&logits, &mut workspace).unwrap(), want[0]);
            let mut ranking = Ranking::new(&logits, 1.0, &mut workspace).unwrap();
            let mut got = Vec::new();
            while let Some(token) = ranking.token(got.len()) {
                got.push(token);
                if got.len() == n { break; }
            }
            prop_assert_eq!(&got[..], &want[..n.min(want.len())]);
            let mut i = 0;
            while ranking.weight(i).is_some() { i += 1; }
            prop_assert_eq!(i, want.len());
        }
    }

    #[test]
    fn broken_logits_are_errors() {
        let mut workspace = Workspace::default();
        for at in [0usize, 63, 64, 130] {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut logits = vec![1.0f32; 131];
                logits[at] = bad;
                match argmax(&logits, &mut workspace) {
                    Err(SampleError::NotFinite { token, .. }) => assert_eq!(token as usize, at),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(argmax(&[f32::NEG_INFINITY; 70], &mut workspace), Err(SampleError::NoCandidate));
        assert_eq!(argmax(&[], &mut workspace), Err(SampleError::NoCandidate));
    }
}
