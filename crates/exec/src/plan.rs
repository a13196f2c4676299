//! The arena plan: where each intermediate of a run lies.

/// The steps between which a buffer holds data: written by step `first`, read last by step `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    pub bytes: usize,
    pub first: usize,
    pub last: usize,
}

/// Whether dead buffers are used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanMode {
    /// Buffers whose lifetimes do not overlap share memory.
    #[default]
    Reuse,
    /// Every buffer keeps its own address, so that each intermediate can be hashed after the run.
    WriteNewOnly,
}

/// Offsets into one arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaPlan {
    /// Offset of each buffer, in the order of the lifetimes; multiples of [`ArenaPlan::ALIGN`].
    pub offsets: Vec<usize>,
    pub bytes: usize,
}

impl ArenaPlan {
    /// Two cache lines, so that neighbouring buffers never share one, even prefetched in pairs.
    pub const ALIGN: usize = 128;
}

/// Places buffers, the largest first, each at the lowest offset where it meets no buffer that is
/// alive at the same time. `None` when the sizes overflow.
pub fn plan_arena(lifetimes: &[Lifetime], mode: PlanMode) -> Option<ArenaPlan> {
    let padded = |bytes: usize| bytes.max(1).checked_next_multiple_of(ArenaPlan::ALIGN);
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lifetimes[i].bytes), i));
    let mut offsets = vec![0usize; lifetimes.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(lifetimes.len());
    let mut total = 0usize;
    for i in order {
        let bytes = padded(lifetimes[i].bytes)?;
        let mut meets: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&j| mode == PlanMode::WriteNewOnly || overlap(&lifetimes[i], &lifetimes[j]))
            .map(|&j| Some((offsets[j], offsets[j].checked_add(padded(lifetimes[j].bytes)?)?)))
            .collect::<Option<_>>()?;
        meets.sort_unstable();
        let mut at = 0usize;
        for (start, end) in meets {
            if at.checked_add(bytes)? <= start {
                break;
            }
            at = at.max(end);
        }
        offsets[i] = at;
        total = total.max(at.checked_add(bytes)?);
        placed.push(i);
    }
    Some(ArenaPlan { offsets, bytes: total })
}

fn overlap(a: &Lifetime, b: &Lifetime) -> bool {
    a.first <= b.last && b.first <= a.last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers() -> Vec<Lifetime> {
        let mut seed = 7u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        (0..200)
            .map(|_| {
                let first = next(100) as usize;
                Lifetime { bytes: next(5000) as usize, first, last: first + next(10) as usize }
            })
            .collect()
    }

    #[test]
    fn buffers_alive_together_never_overlap() {
        let lifetimes = buffers();
        for mode in [PlanMode::Reuse, PlanMode::WriteNewOnly] {
            let plan = plan_arena(&lifetimes, mode).unwrap();
            for (i, a) in lifetimes.iter().enumerate() {
                assert!(plan.offsets[i] + a.bytes <= plan.bytes);
                for (j, b) in lifetimes.iter().enumerate().skip(i + 1) {
                    let apart = plan.offsets[i] + a.bytes <= plan.offsets[j]
                        || plan.offsets[j] + b.bytes <= plan.offsets[i];
                    let together = mode == PlanMode::WriteNewOnly || overlap(a, b);
                    assert!(apart || !together, "{i} and {j} share memory in {mode:?}");
                }
            }
        }
    }

    #[test]
    fn dead_buffers_are_used_again() {
        let chain: Vec<Lifetime> =
            (0..50).map(|i| Lifetime { bytes: 1000, first: i, last: i + 1 }).collect();
        assert_eq!(plan_arena(&chain, PlanMode::Reuse).unwrap().bytes, 2 * 1024);
        assert_eq!(plan_arena(&chain, PlanMode::WriteNewOnly).unwrap().bytes, 50 * 1024);
    }

    #[test]
    fn sizes_that_overflow_have_no_plan() {
        let huge = [Lifetime { bytes: usize::MAX - 5, first: 0, last: 1 }; 2];
        assert_eq!(plan_arena(&huge, PlanMode::Reuse), None);
    }
}
