//! The samples of one round trip: requests that were admitted since the last change of the limit.
//!
//! A change of the limit affects only requests that are admitted after it. A round trip counts only
//! these, and ends after half as many samples as requests may be in flight. So an algorithm reacts
//! once to the effect of each change, and ignores samples from before it.

use super::RequestOutcome;
use super::sample::LatencySample;
use crate::units::Nanos;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct RoundTrip {
    started_at: Nanos,
    successes: u64,
    total_latency: Nanos,
    dropped: u64,
    max_in_flight: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoundSummary {
    /// The mean latency of the successes; `None` without a success.
    pub(super) mean: Option<Nanos>,
    pub(super) dropped: u64,
    /// The largest number of requests in flight.
    pub(super) in_flight: u32,
}

impl RoundTrip {
    /// Adds `sample`, and returns the summary if the round trip ends: after `allowed / 2` samples,
    /// where `allowed` requests may be in flight.
    pub(super) fn push(&mut self, sample: &LatencySample, allowed: u32) -> Option<RoundSummary> {
        if sample.ended_at.since(sample.rtt) < self.started_at {
            return None;
        }
        self.max_in_flight = self.max_in_flight.max(sample.in_flight);
        if sample.outcome == RequestOutcome::Dropped {
            self.dropped = self.dropped.saturating_add(1);
        } else {
            self.successes = self.successes.saturating_add(1);
            self.total_latency = self.total_latency.plus(sample.rtt);
        }
        let count = self.successes.saturating_add(self.dropped);
        (u64::from(allowed.div_ceil(2)) <= count).then(|| self.finish(sample.ended_at))
    }

    fn finish(&mut self, now: Nanos) -> RoundSummary {
        let mean = self.total_latency.0.checked_div(self.successes).map(Nanos);
        let (dropped, in_flight) = (self.dropped, self.max_in_flight);
        *self = Self { started_at: now, ..Self::default() };
        RoundSummary { mean, dropped, in_flight }
    }
}
