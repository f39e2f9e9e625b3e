//! A lowered limit: the queue empties, and those that are alone show the ideal latency.
//!
//! Guarantees: it ends, with samples enough or with time; a wide spread of latencies biases nothing. Where latencies
//! hardly vary and requests come often enough, what would raise the ideal much is no word of one or two samples.
//! Leaves out: what the limit is meanwhile and what follows, which is [`super`]'s.

use super::super::level::{Level, Ratio};
use super::super::tally::Tally;
use super::super::{Outcome, Sample};
use crate::kernel::units::Nanos;

/// How many windows' worth are waited for where latencies vary.
const WIDE_PATIENCE: u64 = 4;
/// So much slower or quicker than the ideal is no noise.
pub(super) const CHANGED: Ratio = Ratio::percent(130);
/// Samples that say slower, before they are believed, where latencies hardly vary.
const SLOWER_NEEDS: u64 = 4;
/// The limit was not used where Little's law has more than so many times the mean of those that have returned.
const UNUSED: u64 = 2;

/// The limit is lowered, to empty the queue or to measure without one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Drain {
    pub(super) since: Nanos,
    pub(super) why: Why,
    pub(super) alone: Tally,
    pub(super) dropped: u64,
    /// When the first that was alone left, when the last one did, and how many did between.
    pub(super) first: Option<Nanos>,
    pub(super) last: Nanos,
    pub(super) passed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Why {
    Overload,
    Look,
    /// The first ideal latency is not known to be one.
    First,
}

impl Drain {
    /// Begins at `since`; nobody was alone yet.
    pub(super) fn new(since: Nanos, why: Why) -> Self {
        let alone = Tally::default();
        Self { since, why, alone, dropped: 0, first: None, last: since, passed: 0 }
    }

    pub(super) fn note(&mut self, sample: &Sample, most: Level, ideal: Nanos) {
        if self.first.is_some() && sample.outcome == Outcome::Success {
            self.passed = self.passed.saturating_add(1);
            self.last = sample.at;
        }
        let settled = Nanos(ideal.0 / 2) <= sample.at.since(self.since);
        if !settled || most < Level::whole(sample.in_flight) {
            return;
        }
        match sample.outcome {
            Outcome::Success => {
                self.alone.push(sample.in_flight, sample.rtt);
                self.first.get_or_insert(sample.at);
            }
            Outcome::Dropped => self.dropped = self.dropped.saturating_add(1),
            Outcome::Ignored => {}
        }
    }

    /// The latency of those that were alone. Where latencies vary the quick ones have returned and the
    /// slow ones have not, which biases their mean low: there it is what Little's law shows, the time
    /// that all of them were in flight by how many were served in it. So many are in flight only where the limit is
    /// used: of a few that come now and then it would be the time from one to the next.
    pub(super) fn measured(&self) -> Nanos {
        let mean = self.alone.mean();
        if !self.alone.is_wide() || self.passed == 0 {
            return mean;
        }
        let took = self.last.since(self.first.unwrap_or(self.last));
        let each = Nanos(took.0.checked_div(self.passed).unwrap_or(0));
        let by_little = self.alone.in_flight().of(each).max(Nanos(1));
        if by_little.0 <= mean.0.saturating_mul(UNUSED) { by_little } else { mean }
    }

    /// Is there enough to learn from at `at`, or nothing more to wait for? `enough` samples make a window; single latencies
    /// hardly vary where `is_narrow`.
    pub(super) fn is_over(&self, enough: u64, is_narrow: bool, at: Nanos, ideal: Nanos) -> bool {
        let times = if self.alone.is_wide() { WIDE_PATIENCE } else { 1 };
        let least = if is_narrow && self.is_slower(ideal) { SLOWER_NEEDS } else { 0 };
        let needed = enough.saturating_mul(times).max(least);
        let count = self.alone.count().saturating_add(self.dropped);
        // Where few come, or nothing succeeds, time must end it.
        let longest = Nanos(ideal.0.saturating_mul(64)).plus(Nanos::SECOND);
        needed <= count || longest < at.since(self.since)
    }

    /// Is what was measured so much slower than `ideal` that it changed?
    fn is_slower(&self, ideal: Nanos) -> bool {
        0 < self.alone.count() && Nanos(CHANGED.of(ideal.0)) < self.measured()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_request_holds_a_drain_up_only_where_latencies_hardly_vary() {
        let (ideal, now) = (Nanos(10 * Nanos::MILLI.0), Nanos::SECOND);
        let mut drain = Drain::new(Nanos(0), Why::Overload);
        let rtt = Nanos(20 * Nanos::MILLI.0);
        let sample = Sample { at: now, rtt, in_flight: 1, outcome: Outcome::Success };
        drain.note(&sample, Level::whole(1), ideal);
        assert!(!drain.is_over(1, true, now, ideal));
        assert!(drain.is_over(1, false, now, ideal), "there it is no news");
        assert!(
            drain.is_over(1, true, Nanos::from_secs(3), ideal),
            "nor is it waited for for ever"
        );
    }
}
