//! A min RTT probe: for a short time there are fewer requests in flight, at all replicas of a fleet.
//!
//! Guarantees:
//! - A probe ends after a bounded time.
//! - A probe measures only requests admitted after the queue drained, while all replicas take part.

use super::RequestOutcome;
use super::fixed_point::Fraction;
use super::latency_stats::LatencyStats;
use super::sample::LatencySample;
use crate::units::Nanos;

/// The part of the limit that a probe uses while the min RTT is unconfirmed.
pub(super) const DEEP_PROBE: Fraction = Fraction::percent(25);
/// The largest difference between the start times of one probe at two replicas.
const MAX_SKEW: Nanos = Nanos(10 * Nanos::MILLI.0);
/// The duration of a probe, in round trips.
pub(super) const ROUND_TRIPS: u64 = 4;
/// The duration of a probe of an unconfirmed min RTT, in round trips.
pub(super) const DEEP_ROUND_TRIPS: u64 = 8;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct MinRttProbe {
    pub(super) started_at: Nanos,
    /// The start and the end of the period in which admitted requests are unqueued.
    pub(super) unqueued_period: (Nanos, Nanos),
    pub(super) ends_at: Nanos,
    /// The instant by which the measured requests have finished.
    pub(super) closes_at: Nanos,
    /// The part of the limit, or of the share, that may be in flight.
    pub(super) part: Fraction,
    pub(super) unqueued: LatencyStats,
}

impl MinRttProbe {
    /// Starts a probe at `now` that lasts `duration` plus a tolerance, if requests take `rtt`.
    pub(super) fn new(now: Nanos, part: Fraction, rtt: Nanos, duration: Nanos) -> Self {
        let duration = duration.plus(MAX_SKEW).plus(MAX_SKEW).plus(MAX_SKEW);
        let ends_at = now.plus(duration);
        let from = now.plus(rtt).plus(MAX_SKEW);
        // Replicas that measure slightly different latencies end their probes slightly apart.
        let until = ends_at.since(Nanos(rtt.0 / 2)).since(MAX_SKEW);
        let closes_at = ends_at.plus(duration);
        Self {
            started_at: now,
            unqueued_period: (from, until),
            ends_at,
            closes_at,
            part,
            unqueued: LatencyStats::default(),
        }
    }

    pub(super) fn record(&mut self, sample: &LatencySample) {
        let (from, until) = self.unqueued_period;
        let admitted_at = sample.ended_at.since(sample.rtt);
        if sample.outcome == RequestOutcome::Success && from <= admitted_at && admitted_at < until {
            self.unqueued.push(sample.in_flight, sample.rtt);
        }
    }
}
