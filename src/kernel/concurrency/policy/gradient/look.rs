//! A min RTT probe: for a short time all replicas of a fleet have fewer requests in flight.
//!
//! Guarantees:
//! - It ends.
//! - It measures only requests admitted after the queue drained, while all replicas take part.
//!
//! Not covered:
//! - The reaction to the result.

use super::super::level::{Level, Ratio};
use super::super::tally::Tally;
use super::super::{Outcome, Sample};
use crate::kernel::units::Nanos;

/// The part of the share to use while the backend's capacity is unknown.
pub(super) const DEEP: Ratio = Ratio::percent(25);
/// The largest difference between the replicas' start times.
const APART: Nanos = Nanos(10 * Nanos::MILLI.0);
/// The duration in round trips; `LASTS_DEEP` applies while the min RTT is unconfirmed.
pub(super) const LASTS: u64 = 4;
pub(super) const LASTS_DEEP: u64 = 8;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Look {
    pub(super) began: Nanos,
    /// The period in which admitted requests are unqueued.
    pub(super) measures: (Nanos, Nanos),
    pub(super) ends: Nanos,
    /// The instant by which the measured requests have finished.
    pub(super) closes: Nanos,
    pub(super) limit: Level,
    pub(super) alone: Tally,
}

impl Look {
    /// Starts a probe at `now` that lasts `lasts` plus a tolerance; requests take `rtt`.
    pub(super) fn new(now: Nanos, limit: Level, rtt: Nanos, lasts: Nanos) -> Self {
        let lasts = lasts.plus(APART).plus(APART).plus(APART);
        let ends = now.plus(lasts);
        let from = now.plus(rtt).plus(APART);
        // Replicas that measure slightly different latencies end slightly apart.
        let until = ends.since(Nanos(rtt.0 / 2)).since(APART);
        let closes = ends.plus(lasts);
        Self { began: now, measures: (from, until), ends, closes, limit, alone: Tally::default() }
    }

    pub(super) fn note(&mut self, sample: &Sample) {
        let (from, until) = self.measures;
        let admitted = sample.at.since(sample.rtt);
        if sample.outcome == Outcome::Success && from <= admitted && admitted < until {
            self.alone.push(sample.in_flight, sample.rtt);
        }
    }
}
