//! Whether a short program is walked by the whole team or by its caller alone.
//!
//! Programs of a few dozen microseconds gain little from a second worker and lose much when it is slow
//! to arrive, which depends on the machine and on what else runs there. Results do not depend on who
//! computes them, so a session tries both and keeps to the faster way.

use std::time::Duration;

/// Runs that take longer are shared out whatever a worker costs.
const SHORT: f64 = 1e-3;
/// Runs after which the slower way is tried again.
const AGAIN: u32 = 64;
/// First runs, which find caches cold.
const WARM_UP: u32 = 2;

/// What both ways of walking a program took of late, in seconds; 0 before the first try.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    team: f64,
    alone: f64,
    runs: u32,
}

impl Pace {
    /// Whether the next run is the caller's alone.
    pub(crate) fn alone(&mut self) -> bool {
        self.runs = self.runs.wrapping_add(1);
        if self.runs <= WARM_UP || self.team == 0.0 || self.team > SHORT {
            return false;
        }
        if self.alone == 0.0 {
            return true;
        }
        let faster = self.alone < self.team;
        if self.runs.is_multiple_of(AGAIN) { !faster } else { faster }
    }

    /// Notes what a run took; one that was held up counts for little.
    pub(crate) fn took(&mut self, alone: bool, time: Duration) {
        let time = time.as_secs_f64();
        if self.runs <= WARM_UP {
            return;
        }
        let mean = if alone { &mut self.alone } else { &mut self.team };
        *mean = match *mean {
            0.0 => time,
            before => before + (time.min(4.0 * before) - before) / 8.0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `runs` are the caller's alone when both ways take so many microseconds.
    fn alone(team: u64, solo: u64, runs: usize) -> usize {
        let mut pace = Pace::default();
        let mut count = 0;
        for _ in 0..runs {
            let alone = pace.alone();
            pace.took(alone, Duration::from_micros(if alone { solo } else { team }));
            count += usize::from(alone);
        }
        count
    }

    #[test]
    fn the_faster_way_is_taken() {
        assert!(alone(60, 90, 1000) < 30);
        assert!(alone(250, 90, 1000) > 970);
    }

    #[test]
    fn long_runs_are_shared() {
        assert_eq!(alone(5000, 100, 1000), 0);
    }

    #[test]
    fn a_machine_that_changes_is_noticed() {
        let mut pace = Pace::default();
        for run in 0..5000 {
            let alone = pace.alone();
            let team = if run < 1000 { 60 } else { 300 };
            pace.took(alone, Duration::from_micros(if alone { 90 } else { team }));
        }
        assert!(pace.alone < pace.team);
    }
}
