//! The windows of samples: their end, and the capacity and the slowdown that they show.
//!
//! Guarantees:
//! - A window ends after a bounded number of samples.
//!
//! Not covered:
//! - The change of the limit after a window: see `adjustment`.

use super::super::RequestOutcome;
use super::super::fixed_point::{FixedPoint, Fraction};
use super::super::latency_stats::LatencyStats;
use super::super::sample::{LatencySample, scale_to_limit};
use super::Gradient;
use super::constants::{
    BLOCK_PARTS, FAR_OVERLOAD, HALF, MAX_BLOCK, MAX_BLOCKS, MIN_PART, MIN_SPREAD_SAMPLES,
    SMALL_ERROR, UNQUEUED, USED,
};
use super::measurement::WindowMeasurement;
use super::refusal::Refusal;
use crate::units::Nanos;

impl Gradient {
    pub(super) fn record_sample(&mut self, sample: &LatencySample, min: u32) {
        let max_unqueued = self.max_unqueued(min);
        let min_rtt = self.min_rtt.unwrap_or_default();
        if let Some(drain) = &mut self.drain {
            drain.record(sample, max_unqueued, min_rtt);
        }
        match sample.outcome {
            RequestOutcome::Success if sample.ended_at < self.settled_at => {}
            RequestOutcome::Success => self.block.push(sample.in_flight, sample.rtt),
            RequestOutcome::Dropped => self.dropped = self.dropped.saturating_add(1),
            RequestOutcome::Ignored => {}
        }
        if let (RequestOutcome::Success, Some(refusal)) = (sample.outcome, &mut self.refusal) {
            refusal.record_success();
        }
    }

    /// Lowers the limit at once after a dropped request, unless windows have a duration. With less
    /// than half of the limit in flight, a refusal says nothing about the limit; the window counts
    /// it.
    pub(super) fn fall_after_refusal(
        &mut self,
        limit: FixedPoint,
        sample: &LatencySample,
        share: u32,
    ) -> FixedPoint {
        let is_known = self.refusal.is_some_and(|refusal| refusal.covers(sample));
        let has_windows = self.tuning.window.is_some();
        if sample.outcome != RequestOutcome::Dropped || is_known || has_windows {
            return limit;
        }
        let in_flight = scale_to_limit(FixedPoint::from_whole(sample.in_flight), limit, share);
        if in_flight.plus(in_flight) < limit {
            return limit;
        }
        // The window must not count it again.
        self.dropped = self.dropped.saturating_sub(1);
        let level = limit.min(in_flight.minus(FixedPoint::from_whole(1)));
        let refusal = Refusal::new(sample, level, self.min_rtt, self.refusal);
        self.refusal = Some(refusal);
        let lowered = refusal.lowered_limit();
        self.capacity = self.capacity.min(lowered.times(self.target_factor().inverse()));
        (self.calm_windows, self.had_queue) = (0, true);
        lowered
    }

    /// Raises the limit after a success, if a refusal slows the growth and the limit is in use.
    pub(super) fn grow_after_refusal(
        &self,
        limit: FixedPoint,
        sample: &LatencySample,
        share: u32,
    ) -> FixedPoint {
        let Some(refusal) = self.refusal else { return limit };
        let in_flight = scale_to_limit(FixedPoint::from_whole(sample.in_flight), limit, share);
        let is_used = limit.without_fraction().times(USED) <= in_flight;
        if sample.outcome == RequestOutcome::Success && is_used {
            refusal.grown_limit(limit)
        } else {
            limit
        }
    }

    /// The largest number of requests in flight without a queue; a drain never allows more.
    fn max_unqueued(&self, min: u32) -> FixedPoint {
        self.capacity.times(UNQUEUED).max(FixedPoint::from_whole(min))
    }

    /// Adds a full block of samples to the window; returns `true` if the window can be judged. A
    /// window grows while its mean is uncertain, but only by blocks with the same latency: another
    /// latency shows a change, so it starts a new window.
    pub(super) fn is_window_complete(
        &mut self,
        limit: FixedPoint,
        share: u32,
        sample: &LatencySample,
    ) -> bool {
        if let Some(duration) = self.tuning.window {
            return self.is_window_over(sample, duration);
        }
        let min_samples = block_size(limit, share);
        if self.block.count().saturating_add(self.dropped) < min_samples {
            return self.is_far_overloaded(limit, share, min_samples);
        }
        let block = std::mem::take(&mut self.block);
        if self.window.agrees_with(&block) {
            self.window.merge(&block);
        } else {
            self.window = block;
        }
        let is_longest = min_samples.saturating_mul(MAX_BLOCKS) <= self.window.count();
        is_longest || 0 < self.dropped || self.window.standard_error() < SMALL_ERROR
    }

    /// Ends a window of `duration` if it is over. A window without samples continues.
    fn is_window_over(&mut self, sample: &LatencySample, duration: Nanos) -> bool {
        let has_samples = 0 < self.block.count() || 0 < self.dropped;
        let is_over = has_samples && self.window_start.has_passed(sample, duration);
        if is_over {
            self.window = std::mem::take(&mut self.block);
        }
        is_over
    }

    /// Returns `true` if the current block shows a slowdown above 2; tested after each quarter.
    fn is_far_overloaded(&mut self, limit: FixedPoint, share: u32, min_samples: u64) -> bool {
        let part = min_samples.div_ceil(BLOCK_PARTS).max(MIN_PART);
        let is_part = self.block.count() != 0 && self.block.count().is_multiple_of(part);
        if self.drain.is_some() || !is_part {
            return false;
        }
        let measurement = self.measure(&self.block, limit, share);
        let is_far = measurement.is_overload(&self.thresholds, FAR_OVERLOAD);
        if is_far {
            // The older samples of the window are from before the overload.
            self.window = std::mem::take(&mut self.block);
        }
        is_far
    }

    pub(super) fn measure_window(&mut self, limit: FixedPoint, share: u32) -> WindowMeasurement {
        let window = std::mem::take(&mut self.window);
        self.update_spread(&window);
        let measurement = self.measure(&window, limit, share);
        self.min_rtt.get_or_insert(measurement.rtt);
        measurement
    }

    fn update_spread(&mut self, window: &LatencyStats) {
        if window.count() < MIN_SPREAD_SAMPLES {
            return;
        }
        self.spread = match self.spread {
            0 => window.spread(),
            previous => previous.saturating_mul(7).saturating_add(window.spread()) / 8,
        };
    }

    fn measure(&self, window: &LatencyStats, limit: FixedPoint, share: u32) -> WindowMeasurement {
        let rtt = window.mean();
        let min_rtt = self.min_rtt.unwrap_or(rtt);
        let in_flight = scale_to_limit(window.in_flight(), limit, share);
        let slowdown = Fraction { numerator: 1_000_000, denominator: min_rtt.0 }.of(rtt.0).max(1);
        // If hardly any requests are in flight, compute the capacity from the limit instead.
        let load = if in_flight < limit.times(HALF) { limit } else { in_flight };
        let capacity = load.times(Fraction { numerator: 1_000_000, denominator: slowdown });
        let (error, is_wide) = (window.error_with_spread(self.spread), window.is_wide());
        WindowMeasurement { in_flight, rtt, error, is_wide, slowdown, capacity }
    }

    pub(super) fn is_overload(&self, measurement: &WindowMeasurement) -> bool {
        measurement.is_overload(&self.thresholds, self.margin(measurement.error))
    }
}

/// The number of samples in a block: about one round trip of this replica's requests in flight.
pub(super) fn block_size(limit: FixedPoint, share: u32) -> u64 {
    u64::from(limit.floor().min(share)).clamp(1, MAX_BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::concurrency::adaptive::AdaptiveTuning;

    #[test]
    fn windows_with_few_samples_do_not_change_the_spread() {
        let window = |rtts: &[u64]| {
            let mut window = LatencyStats::default();
            for &rtt in rtts {
                window.push(1, Nanos(rtt));
            }
            window
        };
        let mut gradient = Gradient::new(FixedPoint::from_whole(4), 1, AdaptiveTuning::default());
        gradient.update_spread(&window(&[1_000, 3_000, 1_000, 3_000]));
        assert_eq!(gradient.spread, 500_000, "1 ± 0.5");
        for few in [&[2_000][..], &[2_000; 2], &[2_000; 3]] {
            gradient.update_spread(&window(few));
            assert_eq!(gradient.spread, 500_000, "forgotten over {few:?}");
        }
    }
}
