//! A lowered limit that empties the queue and measures the min RTT.
//!
//! Guarantees:
//! - It ends after enough samples, or by time.
//! - A wide spread of latencies does not bias the measurement.
//! - If latencies are narrow and requests frequent, raising the min RTT needs several samples.
//!
//! Not covered:
//! - The limit during and after the drain; see [`super`].

use super::super::level::{Level, Ratio};
use super::super::tally::Tally;
use super::super::{Outcome, Sample};
use crate::kernel::units::Nanos;

/// The blocks to wait for if latencies vary.
const WIDE_PATIENCE: u64 = 4;
/// The factor, up or down, beyond which a change of the min RTT is not noise.
pub(super) const CHANGED: Ratio = Ratio::percent(130);
/// The samples that must show a slower backend if latencies are narrow.
const SLOWER_NEEDS: u64 = 4;
/// The multiple of the mean above which a result of Little's law means that the limit was unused.
const UNUSED: u64 = 2;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Drain {
    pub(super) since: Nanos,
    pub(super) why: Why,
    pub(super) alone: Tally,
    pub(super) dropped: u64,
    /// The end of the first unqueued request; `passed`
    /// requests ended after it, the latest at `last`.
    pub(super) first: Option<Nanos>,
    pub(super) last: Nanos,
    pub(super) passed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Why {
    Overload,
    Look,
    /// The first min RTT may include a queue.
    First,
}

impl Drain {
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

    /// The latency of unqueued requests.
    ///
    /// If latencies vary, fast requests have returned and slow ones have not, so the mean is
    /// too low. Then Little's law gives the latency: in flight × time / served. This needs a
    /// limit that is used. With few requests the result would be the time between arrivals.
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

    /// Returns `true` if there are enough samples, or more waiting is useless.
    ///
    /// `enough` is the size of a block. `is_narrow` is set if single latencies hardly vary.
    pub(super) fn is_over(&self, enough: u64, is_narrow: bool, at: Nanos, ideal: Nanos) -> bool {
        let times = if self.alone.is_wide() { WIDE_PATIENCE } else { 1 };
        let least = if is_narrow && self.is_slower(ideal) { SLOWER_NEEDS } else { 0 };
        let needed = enough.saturating_mul(times).max(least);
        let count = self.alone.count().saturating_add(self.dropped);
        // With few requests, or only failures, the drain ends by time.
        let longest = Nanos(ideal.0.saturating_mul(64)).plus(Nanos::SECOND);
        needed <= count || longest < at.since(self.since)
    }

    /// Returns `true` if the measurement exceeds `ideal` by more than noise.
    fn is_slower(&self, ideal: Nanos) -> bool {
        0 < self.alone.count() && Nanos(CHANGED.of(ideal.0)) < self.measured()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_request_extends_a_drain_only_if_latency_is_steady() {
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
