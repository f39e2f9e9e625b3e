//! The min RTT of one replica alone: drains and probes that measure it, and its changes.
//!
//! In a fleet, all replicas probe together instead ([`super::super::min_rtt`]).
//!
//! Guarantees:
//! - A drain or probe ends after a bounded time, and the limit returns.

use super::super::fixed_point::{FixedPoint, Fraction};
use super::super::latency_stats::{self, LatencyStats};
use super::super::sample::LatencySample;
use super::super::tuning::WindowStart;
use super::Gradient;
use super::constants::{
    DRAIN, EARLY_PROBE_DIVISOR, EXPLORATION, FLUCTUATION, HALF, NEW_OVERLOAD, PROBE_INTERVAL,
    PROBE_JITTER, SETTLING_ROUND_TRIPS, SMALL_CAPACITY, SMALL_ERROR,
};
use super::drain::{self, DrainReason, QueueDrain};
use super::measurement::WindowMeasurement;
use super::refusal::Refusal;
use super::window::block_size;
use crate::units::Nanos;

impl Gradient {
    pub(super) fn step_drain(
        &mut self,
        limit: FixedPoint,
        sample: &LatencySample,
        share: u32,
        min: u32,
    ) -> FixedPoint {
        let min_rtt = self.min_rtt.unwrap_or_default();
        let (min_samples, is_narrow) =
            (block_size(limit, share), self.spread <= latency_stats::WIDE_SPREAD);
        let is_over = self
            .drain
            .as_ref()
            .is_some_and(|drain| drain.is_over(min_samples, is_narrow, sample.ended_at, min_rtt));
        if is_over {
            return self.end_drain(sample.ended_at, min);
        }
        // Requests that were admitted before the drain still show the backend's capacity.
        if !self.is_window_complete(limit, share, sample) || self.window.count() == 0 {
            return limit;
        }
        let measurement = self.measure_window(limit, share);
        self.lower_min_rtt(&measurement);
        // Requests from before the drain show the known overload again; only a larger one is new.
        let is_new_overload = measurement.capacity < self.capacity.times(NEW_OVERLOAD);
        if is_new_overload && self.is_overload(&measurement) {
            self.drain_after_overload(&measurement, sample.ended_at)
        } else {
            limit
        }
    }

    /// Lowers the min RTT if the requests of the window were faster, beyond doubt: in small steps,
    /// unless the backend must have changed. Returns `true` if the min RTT is now far below its
    /// last unqueued measurement, so it may still include a queue.
    pub(super) fn lower_min_rtt(&mut self, measurement: &WindowMeasurement) -> bool {
        let Some(min_rtt) = self.min_rtt else { return false };
        let doubt =
            Fraction { numerator: measurement.error.saturating_mul(4), denominator: 1_000_000 };
        let upper_bound = measurement.rtt.plus(Nanos(doubt.of(measurement.rtt.0)));
        if upper_bound < min_rtt {
            let has_changed = upper_bound < Nanos(Fraction::percent(65).of(min_rtt.0));
            let (goal, step_percent) =
                if has_changed { (measurement.rtt, 100) } else { (upper_bound, 9) };
            self.min_rtt = Some(min_rtt.toward(goal, Fraction::percent(step_percent)));
        }
        self.min_rtt
            < self.measured_min_rtt.map(|measured| Nanos(Fraction::percent(88).of(measured.0)))
    }

    pub(super) fn drain_after_overload(
        &mut self,
        measurement: &WindowMeasurement,
        now: Nanos,
    ) -> FixedPoint {
        self.adopt_capacity(measurement);
        self.start_drain(now, DrainReason::Overload)
    }

    pub(super) fn is_probe_due(&mut self, now: Nanos, limit: FixedPoint) -> bool {
        self.windows_to_probe = self.windows_to_probe.saturating_sub(1);
        let is_due = match self.tuning.probe_interval {
            Some(interval) => interval <= now.since(self.probed_at),
            None => self.windows_to_probe == 0,
        };
        is_due || limit < self.limit_after_probe.times(HALF)
    }

    pub(super) fn plan_probe(&mut self, now: Nanos) {
        self.probed_at = now;
        // A linear congruential generator; its high bits are the best.
        self.jitter = self.jitter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let jitter =
            Fraction { numerator: PROBE_JITTER, denominator: u64::MAX >> 8 }.of(self.jitter >> 8);
        self.windows_to_probe = PROBE_INTERVAL.saturating_add(jitter);
    }

    pub(super) fn start_drain(&mut self, since: Nanos, reason: DrainReason) -> FixedPoint {
        self.drain = Some(QueueDrain::new(since, reason));
        self.refusal.iter_mut().for_each(Refusal::forbid_growth);
        self.capacity.times(match reason {
            DrainReason::Overload => DRAIN,
            DrainReason::Probe => self.tuning.probe_part(),
            DrainReason::Initial => HALF,
        })
    }

    fn end_drain(&mut self, now: Nanos, min: u32) -> FixedPoint {
        let Some(drain) = self.drain.take() else { return self.capacity };
        (self.window, self.block) = (LatencyStats::default(), LatencyStats::default());
        (self.dropped, self.calm_windows) = (0, 0);
        self.window_start = WindowStart::default();
        self.plan_probe(now);
        if drain.unqueued.is_wide() {
            self.settled_at = now.plus(Nanos(
                self.min_rtt.unwrap_or_default().0.saturating_mul(SETTLING_ROUND_TRIPS),
            ));
        }
        self.reference_window = None;
        let previous = self.min_rtt.unwrap_or(Nanos(1));
        let measured = self.learn_min_rtt(&drain);
        if drain.reason == DrainReason::Initial && measured.0 < Fraction::percent(80).of(previous.0)
        {
            // Fewer requests in flight were faster, so the assumed min RTT included a queue.
            self.min_rtt = Some(measured);
            self.capacity = self.capacity.times(HALF);
            if FixedPoint::from_whole(min) < self.capacity {
                return self.start_drain(now, DrainReason::Initial);
            }
        }
        self.measured_min_rtt = self.min_rtt;
        let is_slower =
            self.min_rtt.is_some_and(|rtt| Fraction::percent(110).of(previous.0) < rtt.0);
        let limit = self.capacity.times(self.return_factor(&drain, is_slower));
        self.limit_after_probe = self.capacity.times(self.target_factor());
        limit
    }

    fn return_factor(&self, drain: &QueueDrain, is_slower: bool) -> Fraction {
        if drain.reason == DrainReason::Initial {
            // So far it is known only that the capacity is at least the limit.
            return Fraction::percent(100);
        }
        let is_small = self
            .last_capacity
            .is_none_or(|capacity| capacity < FixedPoint::from_whole(SMALL_CAPACITY));
        let explores = drain.reason == DrainReason::Overload
            && FLUCTUATION < self.capacity_changes
            && !is_slower
            && !is_small;
        if explores && self.tuning.target.is_none() {
            EXPLORATION.within(self.thresholds.target, EXPLORATION)
        } else {
            self.target_factor()
        }
    }

    /// Moves the min RTT towards the latency that the drain measured, and returns that latency. A
    /// change beyond doubt is adopted at once and rescales the capacity.
    fn learn_min_rtt(&mut self, drain: &QueueDrain) -> Nanos {
        let (unqueued, min_rtt) = (&drain.unqueued, self.min_rtt.unwrap_or(Nanos(1)));
        if unqueued.count() == 0 {
            return min_rtt;
        }
        let rtt = drain.measured_rtt();
        let error = unqueued.error_with_spread(self.spread);
        let step_percent =
            min_rtt_step_percent(min_rtt, rtt, error, latency_stats::WIDE_SPREAD < self.spread);
        let new_min_rtt = min_rtt.toward(rtt, Fraction::percent(step_percent));
        self.min_rtt = Some(new_min_rtt);
        if 20 < step_percent {
            self.capacity =
                self.capacity.times(Fraction { numerator: new_min_rtt.0, denominator: min_rtt.0 });
            if SMALL_ERROR <= error {
                self.windows_to_probe = self.windows_to_probe.div_ceil(EARLY_PROBE_DIVISOR);
            }
        }
        rtt
    }
}

/// The change of the min RTT towards a new measurement, in percent of their difference. If
/// latencies vary much, a lower measurement is adopted slowly, because fast requests end first.
fn min_rtt_step_percent(min_rtt: Nanos, measured: Nanos, error: u64, is_wide: bool) -> u64 {
    let part =
        |numerator: u64| Nanos(Fraction { numerator, denominator: 1_000_000 }.of(measured.0));
    let doubt = error.saturating_mul(2);
    let lower_bound = part(1_000_000_u64.saturating_sub(doubt));
    let upper_bound = part(1_000_000_u64.saturating_add(doubt));
    let slow_threshold = Nanos(drain::CHANGE.of(min_rtt.0));
    let fast_threshold = Nanos(drain::CHANGE.inverse().of(min_rtt.0));
    match () {
        () if slow_threshold < lower_bound || (!is_wide && upper_bound < fast_threshold) => 100,
        () if slow_threshold < measured => 50,
        () => 20,
    }
}
