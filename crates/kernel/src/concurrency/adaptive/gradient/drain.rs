//! A drain: a lowered limit that empties the backend's queue and measures the min RTT.
//!
//! Guarantees:
//! - A drain ends after enough samples, or after a longest time.
//! - A wide spread of latencies does not bias the measurement.
//! - If latencies vary little and requests are frequent, raising the min RTT needs several samples.

use super::super::RequestOutcome;
use super::super::fixed_point::{FixedPoint, Fraction};
use super::super::latency_stats::LatencyStats;
use super::super::sample::LatencySample;
use crate::units::Nanos;

/// The number of blocks of samples that a drain needs if latencies vary.
const WIDE_BLOCKS: u64 = 4;
/// The factor, up or down, beyond which a change of the min RTT is not noise.
pub(super) const CHANGE: Fraction = Fraction::percent(130);
/// The number of samples that must show a slower backend if latencies vary little.
const MIN_SLOW_SAMPLES: u64 = 4;
/// The multiple of the mean latency above which a result of Little's law means an unused limit.
const MAX_LITTLE_RATIO: u64 = 2;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct QueueDrain {
    pub(super) started_at: Nanos,
    pub(super) reason: DrainReason,
    pub(super) unqueued: LatencyStats,
    pub(super) dropped: u64,
    /// The instant at which the first unqueued request ended.
    pub(super) first_end: Option<Nanos>,
    pub(super) last_end: Nanos,
    /// The number of requests that ended after `first_end`, the latest at `last_end`.
    pub(super) ended: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum DrainReason {
    Overload,
    Probe,
    /// The first min RTT must be verified, because it may include a queue.
    Initial,
}

impl QueueDrain {
    pub(super) fn new(started_at: Nanos, reason: DrainReason) -> Self {
        let unqueued = LatencyStats::default();
        Self {
            started_at,
            reason,
            unqueued,
            dropped: 0,
            first_end: None,
            last_end: started_at,
            ended: 0,
        }
    }

    pub(super) fn record(
        &mut self,
        sample: &LatencySample,
        max_unqueued: FixedPoint,
        min_rtt: Nanos,
    ) {
        if self.first_end.is_some() && sample.outcome == RequestOutcome::Success {
            self.ended = self.ended.saturating_add(1);
            self.last_end = sample.ended_at;
        }
        let is_settled = Nanos(min_rtt.0 / 2) <= sample.ended_at.since(self.started_at);
        if !is_settled || max_unqueued < FixedPoint::from_whole(sample.in_flight) {
            return;
        }
        match sample.outcome {
            RequestOutcome::Success => {
                self.unqueued.push(sample.in_flight, sample.rtt);
                self.first_end.get_or_insert(sample.ended_at);
            }
            RequestOutcome::Dropped => self.dropped = self.dropped.saturating_add(1),
            RequestOutcome::Ignored => {}
        }
    }

    /// The measured latency of unqueued requests. If latencies vary, fast requests end first, so
    /// the mean is too low. Then Little's law gives in flight × time / served requests. With an
    /// unused limit that is the time between arrivals, so a result far above the mean is ignored.
    pub(super) fn measured_rtt(&self) -> Nanos {
        let mean = self.unqueued.mean();
        if !self.unqueued.is_wide() || self.ended == 0 {
            return mean;
        }
        let measured_time = self.last_end.since(self.first_end.unwrap_or(self.last_end));
        let time_per_request = Nanos(measured_time.0.checked_div(self.ended).unwrap_or(0));
        let by_little = self.unqueued.in_flight().times_duration(time_per_request).max(Nanos(1));
        if by_little.0 <= mean.0.saturating_mul(MAX_LITTLE_RATIO) { by_little } else { mean }
    }

    /// Returns `true` if the drain has enough samples, or if more waiting is useless. `block_size`
    /// is in samples; `is_narrow` is set if latencies vary little.
    pub(super) fn is_over(
        &self,
        block_size: u64,
        is_narrow: bool,
        now: Nanos,
        min_rtt: Nanos,
    ) -> bool {
        let blocks = if self.unqueued.is_wide() { WIDE_BLOCKS } else { 1 };
        let min_samples = if is_narrow && self.is_slower(min_rtt) { MIN_SLOW_SAMPLES } else { 0 };
        let needed = block_size.saturating_mul(blocks).max(min_samples);
        let count = self.unqueued.count().saturating_add(self.dropped);
        // With few requests, or only dropped ones, the drain ends after this longest time.
        let longest = Nanos(min_rtt.0.saturating_mul(64)).plus(Nanos::SECOND);
        needed <= count || longest < now.since(self.started_at)
    }

    /// Returns `true` if the measured latency exceeds `min_rtt` by more than noise.
    fn is_slower(&self, min_rtt: Nanos) -> bool {
        0 < self.unqueued.count() && Nanos(CHANGE.of(min_rtt.0)) < self.measured_rtt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_request_extends_a_drain_only_if_latency_is_steady() {
        let (min_rtt, now) = (Nanos(10 * Nanos::MILLI.0), Nanos::SECOND);
        let mut drain = QueueDrain::new(Nanos(0), DrainReason::Overload);
        let rtt = Nanos(20 * Nanos::MILLI.0);
        let sample =
            LatencySample { ended_at: now, rtt, in_flight: 1, outcome: RequestOutcome::Success };
        drain.record(&sample, FixedPoint::from_whole(1), min_rtt);
        assert!(!drain.is_over(1, true, now, min_rtt));
        assert!(drain.is_over(1, false, now, min_rtt), "one slow sample proves little");
        assert!(drain.is_over(1, true, Nanos::from_secs(3), min_rtt), "the longest time is over");
    }
}
