//! The change of the limit after a window.
//!
//! Guarantees:
//! - An unused limit does not grow.
//!
//! Not covered:
//! - Drains and probes, which lower the limit for a short time: see `min_rtt`.

use super::super::fixed_point::{FixedPoint, Fraction};
use super::super::latency_stats::{self, LatencyStats};
use super::Gradient;
use super::constants::{
    BELOW_MIN_RTT, FEWER_IN_FLIGHT, HALF, MARGIN_ERRORS, MAX_CHANGE, MAX_ERROR, MAX_UNSURE_GROWTH,
    NOT_FASTER, SMALL_ERROR, SPREAD_WEIGHT, USED,
};
use super::measurement::WindowMeasurement;

impl Gradient {
    /// The new limit after a window that shows a queue.
    fn lower_limit(
        &mut self,
        limit: FixedPoint,
        measurement: &WindowMeasurement,
        min: u32,
    ) -> FixedPoint {
        if measurement.in_flight <= FixedPoint::from_whole(min) {
            // No lower limit can be measured, so these samples count as unqueued.
            self.set_min_rtt(measurement.rtt, limit);
            return limit;
        }
        if measurement.is_wide && self.has_no_queue(measurement) {
            // Fewer requests in flight were not faster, so the min RTT was too low.
            self.set_min_rtt(measurement.rtt, measurement.in_flight);
            self.reference_window = None;
            return self.capacity.times(self.target_factor());
        }
        self.adopt_capacity(measurement);
        self.capacity.times(self.target_factor()).times(self.margin(measurement.error))
    }

    /// The factor that raises the limit if latencies vary: the measured capacity may be too low,
    /// and a limit that is too low costs goodput at once.
    pub(super) fn margin(&self, error: u64) -> Fraction {
        let Some(excess_spread) = self.spread.checked_sub(latency_stats::WIDE_SPREAD) else {
            return Fraction::percent(100);
        };
        let doubt = error.min(MAX_ERROR).saturating_sub(SMALL_ERROR).saturating_mul(MARGIN_ERRORS);
        let margin = doubt.saturating_add(SPREAD_WEIGHT.of(excess_spread.min(1_000_000)));
        Fraction { numerator: 1_000_000_u64.saturating_add(margin), denominator: 1_000_000 }
    }

    /// Returns `true` if more than a tenth of the window was dropped, or, with a configured
    /// duration, any request. Without a duration, each drop has lowered the limit already.
    pub(super) fn has_many_drops(&mut self) -> bool {
        let dropped = std::mem::take(&mut self.dropped);
        let total = self.window.count().saturating_add(dropped);
        let few = if self.tuning.window.is_some() { 0 } else { total / 10 };
        few < dropped
    }

    /// Lowers the limit after dropped requests, which show an overload but not its size.
    pub(super) fn back_off(&mut self, limit: FixedPoint) -> FixedPoint {
        self.window = LatencyStats::default();
        (self.calm_windows, self.had_queue) = (0, true);
        self.capacity = self.capacity.min(limit).times(Fraction::percent(90));
        limit.times(Fraction::percent(90))
    }

    pub(super) fn adjust_limit(
        &mut self,
        limit: FixedPoint,
        measurement: &WindowMeasurement,
        min: u32,
    ) -> FixedPoint {
        let is_used = limit.times(HALF) <= measurement.in_flight;
        if self.thresholds.no_queue < measurement.slowdown && is_used {
            return self.lower_limit(limit, measurement, min);
        }
        self.reference_window = None;
        // Latency below the min RTT shows that the min RTT is wrong: even this window may have a
        // queue.
        if measurement.slowdown < BELOW_MIN_RTT {
            return limit;
        }
        if self.thresholds.no_queue < measurement.slowdown
            || measurement.in_flight < limit.without_fraction().times(USED)
        {
            return limit;
        }
        let next = limit.times(self.growth(measurement)).max(limit.plus(FixedPoint::from_whole(1)));
        self.capacity = self.capacity.max(next.times(self.target_factor().inverse()));
        next
    }

    /// Returns `true` if fewer requests in flight were not faster, so there was no queue. The
    /// window with the most requests in flight is the reference for later windows.
    fn has_no_queue(&mut self, measurement: &WindowMeasurement) -> bool {
        let (max_in_flight, rtt) =
            *self.reference_window.get_or_insert((measurement.in_flight, measurement.rtt));
        if max_in_flight <= measurement.in_flight {
            self.reference_window = Some((measurement.in_flight, measurement.rtt));
            return false;
        }
        let has_fewer = measurement.in_flight < max_in_flight.times(FEWER_IN_FLIGHT);
        has_fewer && NOT_FASTER.of(rtt.0) < measurement.rtt.0
    }

    fn growth(&mut self, measurement: &WindowMeasurement) -> Fraction {
        if !measurement.is_calm(&self.thresholds) {
            return self.thresholds.target.within(Fraction::percent(100), MAX_UNSURE_GROWTH);
        }
        let growth_percent = u64::from(self.calm_windows).saturating_mul(26).saturating_add(130);
        self.calm_windows = self.calm_windows.saturating_add(1);
        Fraction::percent(if self.had_queue { growth_percent.min(200) } else { 200 })
    }

    pub(super) fn adopt_capacity(&mut self, measurement: &WindowMeasurement) {
        if let Some(previous) = self.last_capacity {
            let change = previous.relative_difference(measurement.capacity);
            let is_certain = measurement.error.saturating_mul(4) < change;
            let counted_change = if is_certain { change.min(MAX_CHANGE) } else { 0 };
            self.capacity_changes =
                self.capacity_changes.saturating_mul(31).saturating_add(counted_change) / 32;
        }
        self.last_capacity = Some(measurement.capacity);
        (self.capacity, self.calm_windows, self.had_queue) = (measurement.capacity, 0, true);
    }
}
