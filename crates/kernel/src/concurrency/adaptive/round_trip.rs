//! The samples of one round trip: requests that were admitted since the last change of the limit.
//!
//! A change of the limit affects only requests that are admitted after it. A round trip counts only
//! these, and ends after half as many samples as requests may be in flight, or after a configured
//! duration. So an algorithm reacts once to the effect of each change, and ignores samples from
//! before it.

use super::RequestOutcome;
use super::fixed_point::FixedPoint;
use super::sample::LatencySample;
use super::tuning::{AdaptiveTuning, WindowEnd, WindowStart};
use crate::units::Nanos;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct RoundTrip {
    valid_from: Nanos,
    window_start: WindowStart,
    successes: u64,
    total_latency: Nanos,
    dropped: u64,
    max_in_flight: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoundSummary {
    /// The mean latency of the successes; `None` without a success.
    pub(super) mean: Option<Nanos>,
    pub(super) successes: u64,
    pub(super) dropped: u64,
    /// The largest number of requests in flight.
    pub(super) in_flight: u32,
}

/// One complete round trip, from which a rule computes the next limit.
pub(super) struct Step<'a> {
    pub(super) tuning: &'a AdaptiveTuning,
    pub(super) limit: FixedPoint,
    pub(super) round: &'a RoundSummary,
    pub(super) min_rtt: Nanos,
    /// The largest number of requests in flight, scaled from the share to the whole limit.
    pub(super) in_flight: FixedPoint,
    /// Set if at least half of the limit was used, so that low latency justifies a higher one.
    pub(super) is_used: bool,
}

impl RoundTrip {
    /// Adds `sample`, and returns the summary if it ends the round trip.
    pub(super) fn push(&mut self, sample: &LatencySample, end: WindowEnd) -> Option<RoundSummary> {
        if sample.ended_at.since(sample.rtt) < self.valid_from {
            return None;
        }
        self.max_in_flight = self.max_in_flight.max(sample.in_flight);
        if sample.outcome == RequestOutcome::Dropped {
            self.dropped = self.dropped.saturating_add(1);
        } else {
            self.successes = self.successes.saturating_add(1);
            self.total_latency = self.total_latency.plus(sample.rtt);
        }
        let is_over = match end {
            WindowEnd::Samples(needed) => needed <= self.successes.saturating_add(self.dropped),
            WindowEnd::Duration(duration) => self.window_start.has_passed(sample, duration),
        };
        is_over.then(|| self.finish())
    }

    /// Discards the samples so far, because the limit changes at `now`.
    pub(super) fn restart(&mut self, now: Nanos) {
        *self = Self { valid_from: now, window_start: self.window_start, ..Self::default() };
    }

    fn finish(&mut self) -> RoundSummary {
        let mean = self.total_latency.0.checked_div(self.successes).map(Nanos);
        let Self { valid_from, window_start, successes, dropped, max_in_flight, .. } = *self;
        *self = Self { valid_from, window_start, ..Self::default() };
        RoundSummary { mean, successes, dropped, in_flight: max_in_flight }
    }
}
