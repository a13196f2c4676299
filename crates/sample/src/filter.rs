//! The filters. Each keeps a prefix of the ranking, at least one token.

use crate::rank::Ranking;

/// Keeps the `k` most probable tokens (Fan et al., 2018); of equal ones, those with lower ids.
pub(crate) fn top_k(ranking: &mut Ranking<'_>, k: usize) {
    ranking.rank(k);
    ranking.keep(k);
}

/// Keeps the fewest tokens whose probabilities add up to `p` or more (Holtzman et al., "The curious
/// case of neural text degeneration", 2020). Probabilities are those of the tokens that are left.
///
/// Tokens of less than `floor` times the highest probability are about to be dropped by min-p: when
/// the search comes to them it ends, and the long tail is never ranked.
pub(crate) fn top_p(ranking: &mut Ranking<'_>, p: f64, floor: f64) {
    let target = p * ranking.mass();
    let mut mass = 0.0;
    let mut n = 0;
    while let Some(weight) = ranking.weight(n)
        && (weight >= floor || n == 0)
    {
        mass += weight;
        n += 1;
        if mass >= target {
            return ranking.keep(n);
        }
    }
}

/// Keeps the tokens whose probability is at least `p` times the highest (Nguyen et al., "Turning up
/// the heat: min-p sampling", 2024).
pub(crate) fn min_p(ranking: &mut Ranking<'_>, p: f64) {
    let mut n = 0;
    while let Some(weight) = ranking.weight(n) {
        if weight < p {
            return ranking.keep(n.max(1));
        }
        n += 1;
    }
}
