//! The default algorithm: a limit that follows the backend's capacity, measured with Little's law.
//!
//! A queue at the backend shows as latency. With `m` requests in flight at a backend that serves
//! `C` at once, a request takes `m/C` times as long as without a queue. So each *window* (the
//! samples between two updates of the limit) measures `C`, at any limit:
//!
//! | formula | worked row: min RTT 10 ms, 60 in flight, RTT 15 ms |
//! |---|---|
//! | slowdown x = RTT / min RTT | 15 / 10 = 1.5 |
//! | capacity C = m / x | 60 / 1.5 = 40 |
//! | limit = 1.3 · C, once x shows a queue | 52 |
//!
//! A request is *unqueued* if fewer than 0.7 · C are in flight at its admission.
//!
//! * **Growth.** A window without a queue (x ≤ 1.15) raises the limit × 1.3, if the limit is in
//!   use. Consecutive windows without a queue, beyond doubt, raise this to × 2. Before the first
//!   queue, every such window gives × 2. A window with few or widely varying samples leaves doubt.
//! * **Overload** (x > 1.55, beyond doubt). The limit falls to 0.3 · C until the queue is empty (a
//!   *drain*), then returns to 1.3 · C. A slowdown above 2 is detected within a quarter of a
//!   window, because requests that are admitted meanwhile wait longest.
//! * **Refusals.** A dropped request lowers the limit at once, below the number of requests that the
//!   backend served. Then the limit grows slowly, until many requests succeed (`refusal.rs`).
//!   The limit also falls × 0.9 if more than a tenth of a window was dropped.
//! * **The min RTT** is the mean of unqueued samples, because noise makes a minimum too low. These
//!   samples come from the drain after an overload, or from a min RTT probe every 128 to 191
//!   windows. A probe lowers the limit to 0.7 · C for about one round trip. If the backend became
//!   slower, a probe shows it: fewer requests in flight are not faster. The min RTT also falls if
//!   the mean of a window is below it beyond doubt.
//! * **Latencies that vary** by a fifth or more. If many requests start together, the fast ones end
//!   first, and the mean of the finished ones is far too low. Then the min RTT is in flight × time
//!   / served requests during the drain (Little's law), if the limit is used. Samples within two
//!   round trips after the drain are ignored.
//! * **Allowance for variance.** If latencies vary so much, the limit is higher by two standard
//!   errors of the window beyond 5 %, and by half of the spread beyond a fifth. A limit that is too
//!   low leaves workers of the backend idle at once; a longer queue is small against such
//!   latencies. The overload threshold rises by the same factor.
//! * **At the lower bound `min`** no lower limit can be measured, so the latency there counts as
//!   min RTT. Otherwise a min RTT that is too low would keep the limit there forever.
//! * **A min RTT that is too low** is detected, because a queue must shrink with fewer requests in
//!   flight. If supposed queues lowered the limit by a quarter and requests were not faster, there
//!   was no queue. The min RTT then rises to the observed latency.
//! * **Fluctuating capacity.** If the measured capacity changes by more than its error for many
//!   windows (moving average above 5 %), it is soon outdated. After a drain the limit then returns
//!   to 5 · C. This costs one queue, which measures the capacity again.
//! * **Parameters.** `tolerance` replaces 1.3 and scales both thresholds (`thresholds.rs`). With a
//!   `target` latency, the limit is at most the multiple of C that takes nine tenths of it. A
//!   `window` ends by time, and then only its end lowers the limit.
//!
//! Guarantees:
//! - The size of the state is bounded.
//! - A lowered limit still admits requests, which count as unqueued, for a bounded time.
//! - An unused limit does not grow; latency can always lower it.
//! - With a share of a fleet-wide limit, `m` is scaled from the share to the whole limit.
//!
//! Not covered:
//! - Service times that vary by half their mean: the limit can be too low (`benches/real_backend`).
//! - A backend that serves fewer than `min` requests at once: the limit stays slightly above `min`.
//! - Replicas that share a backend without sharing a limit: together they keep a queue there.

mod constants;
mod drain;
mod fleet;
mod measurement;
mod probe;
mod refusal;
mod thresholds;

use super::RequestOutcome;
use super::fixed_point::{FixedPoint, Fraction};
use super::latency_stats::{self, LatencyStats};
use super::sample::{FleetShare, LatencySample, scale_to_limit};
use super::tuning::{AdaptiveTuning, WindowStart};
use crate::units::Nanos;
use constants::{
    BELOW_MIN_RTT, BLOCK_PARTS, DRAIN, EARLY_PROBE_DIVISOR, EXPLORATION, FAR_OVERLOAD,
    FEWER_IN_FLIGHT, FLUCTUATION, HALF, MARGIN_ERRORS, MAX_BLOCK, MAX_BLOCKS, MAX_CHANGE,
    MAX_ERROR, MAX_UNSURE_GROWTH, MIN_PART, MIN_SPREAD_SAMPLES, NEW_OVERLOAD, NOT_FASTER, PROBE,
    PROBE_INTERVAL, PROBE_JITTER, SETTLING_ROUND_TRIPS, SMALL_CAPACITY, SMALL_ERROR, SPREAD_WEIGHT,
    UNQUEUED,
};
use drain::{DrainReason, QueueDrain};
use fleet::FleetGradient;
use measurement::WindowMeasurement;
use refusal::Refusal;
use thresholds::Thresholds;

/// The state of the gradient algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gradient {
    min_rtt: Option<Nanos>,
    /// The min RTT when it was last measured without a queue.
    measured_min_rtt: Option<Nanos>,
    capacity: FixedPoint,
    /// The relative standard deviation of latencies, in millionths; a moving average over windows.
    spread: u64,
    window: LatencyStats,
    /// The newest samples, before they are added to the window or replace it.
    block: LatencyStats,
    dropped: u64,
    /// The last refusal that lowered the limit.
    refusal: Option<Refusal>,
    drain: Option<QueueDrain>,
    /// The number of windows without a queue, beyond doubt, since the last queue or drain.
    calm_windows: u32,
    had_queue: bool,
    last_capacity: Option<FixedPoint>,
    /// The moving average of the changes of `last_capacity`, in millionths.
    capacity_changes: u64,
    windows_to_probe: u64,
    limit_after_probe: FixedPoint,
    jitter: u64,
    /// The end of the time after a drain in which finished requests are too fast on average.
    settled_at: Nanos,
    /// The requests in flight and the RTT of the window with the most requests in flight since a
    /// queue lowered the limit.
    reference_window: Option<(FixedPoint, Nanos)>,
    fleet: Option<Box<FleetGradient>>,
    tuning: AdaptiveTuning,
    thresholds: Thresholds,
    /// The start of the current window, if windows have a duration.
    window_start: WindowStart,
}

impl Gradient {
    /// The initial state; a different `jitter` for each limit keeps their probes apart.
    pub(super) fn new(limit: FixedPoint, jitter: u64, tuning: AdaptiveTuning) -> Self {
        let mut new = Self {
            min_rtt: None,
            measured_min_rtt: None,
            capacity: limit,
            spread: 0,
            window: LatencyStats::default(),
            block: LatencyStats::default(),
            dropped: 0,
            refusal: None,
            drain: None,
            calm_windows: 0,
            had_queue: false,
            last_capacity: None,
            capacity_changes: 0,
            windows_to_probe: 0,
            limit_after_probe: FixedPoint::from_whole(0),
            jitter,
            settled_at: Nanos(0),
            reference_window: None,
            fleet: None,
            tuning,
            thresholds: Thresholds::new(tuning),
            window_start: WindowStart::default(),
        };
        new.plan_probe();
        new
    }

    pub(super) fn set_tuning(&mut self, tuning: AdaptiveTuning) {
        (self.tuning, self.thresholds) = (tuning, Thresholds::new(tuning));
        if let Some(fleet) = &mut self.fleet {
            fleet.set_tuning(tuning);
        }
    }

    /// The min RTT, if known.
    #[must_use]
    pub fn min_rtt(&self) -> Option<Nanos> {
        self.fleet.as_ref().map_or(self.min_rtt, |fleet| fleet.min_rtt())
    }

    /// Switches to a share of a fleet's limit, or back to a limit of this replica alone.
    pub(super) fn set_fleet_share(
        &mut self,
        now: Nanos,
        fleet_share: Option<FleetShare>,
        limit: FixedPoint,
    ) {
        match (fleet_share, &mut self.fleet) {
            (Some(share), Some(fleet)) => fleet.set_share(now, share),
            (Some(share), fleet) => {
                *fleet = Some(Box::new(FleetGradient::new(now, share, self.min_rtt, self.tuning)));
            }
            (None, None) => {}
            (None, Some(fleet)) => {
                let min_rtt = fleet.min_rtt();
                let new = Self::new(limit, self.jitter, self.tuning);
                *self = Self { min_rtt, measured_min_rtt: min_rtt, ..new };
            }
        }
    }

    /// The limit at `now` if the fleet adapts it; otherwise `None`.
    pub(super) fn fleet_limit(&mut self, now: Nanos) -> Option<FixedPoint> {
        self.fleet.as_mut().map(|fleet| fleet.limit(now))
    }

    /// The limit that this replica wants; `None` without enough samples under the fleet's limit.
    pub(super) fn wanted_limit(&self, limit: FixedPoint) -> Option<FixedPoint> {
        self.fleet.as_ref().map_or(Some(limit), |fleet| fleet.wanted_limit())
    }

    /// The limit after `sample`, given the previous limit and this replica's share.
    pub(super) fn step(
        &mut self,
        limit: FixedPoint,
        sample: &LatencySample,
        share: u32,
        min: u32,
    ) -> FixedPoint {
        if let Some(fleet) = &mut self.fleet {
            fleet.record(sample);
            return limit;
        }
        self.record_sample(sample, min);
        if self.drain.is_some() {
            return self.step_drain(limit, sample, share, min);
        }
        let limit = self.fall_after_refusal(limit, sample, share);
        if self.is_window_complete(limit, share, sample) {
            self.evaluate_window(limit, sample.ended_at, share, min)
        } else {
            limit
        }
    }

    fn record_sample(&mut self, sample: &LatencySample, min: u32) {
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
    fn fall_after_refusal(
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
        let refusal = Refusal::new(sample, limit, in_flight);
        self.refusal = Some(refusal);
        let lowered = refusal.lowered_limit();
        self.capacity = self.capacity.min(lowered.times(self.target_factor().inverse()));
        (self.calm_windows, self.had_queue) = (0, true);
        lowered
    }

    /// The limit to which a drain or a probe returns, at least `limit`; `limit` without one.
    pub(super) fn limit_after_drain(&self, limit: FixedPoint) -> FixedPoint {
        if self.drain.is_none() {
            return limit;
        }
        limit.max(self.capacity.times(self.target_factor()))
    }

    /// The largest number of requests in flight without a queue; a drain never allows more.
    fn max_unqueued(&self, min: u32) -> FixedPoint {
        self.capacity.times(UNQUEUED).max(FixedPoint::from_whole(min))
    }

    /// Adds a full block of samples to the window; returns `true` if the window can be judged. A
    /// window grows while its mean is uncertain, but only by blocks with the same latency: another
    /// latency shows a change, so it starts a new window.
    fn is_window_complete(
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

    fn step_drain(
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

    fn measure_window(&mut self, limit: FixedPoint, share: u32) -> WindowMeasurement {
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

    fn is_overload(&self, measurement: &WindowMeasurement) -> bool {
        measurement.is_overload(&self.thresholds, self.margin(measurement.error))
    }

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

    fn set_min_rtt(&mut self, rtt: Nanos, capacity: FixedPoint) {
        (self.min_rtt, self.measured_min_rtt, self.capacity) = (Some(rtt), Some(rtt), capacity);
    }

    /// The factor that raises the limit if latencies vary: the measured capacity may be too low,
    /// and a limit that is too low costs goodput at once.
    fn margin(&self, error: u64) -> Fraction {
        let Some(excess_spread) = self.spread.checked_sub(latency_stats::WIDE_SPREAD) else {
            return Fraction::percent(100);
        };
        let doubt = error.min(MAX_ERROR).saturating_sub(SMALL_ERROR).saturating_mul(MARGIN_ERRORS);
        let margin = doubt.saturating_add(SPREAD_WEIGHT.of(excess_spread.min(1_000_000)));
        Fraction { numerator: 1_000_000_u64.saturating_add(margin), denominator: 1_000_000 }
    }

    fn evaluate_window(
        &mut self,
        limit: FixedPoint,
        now: Nanos,
        share: u32,
        min: u32,
    ) -> FixedPoint {
        if self.has_many_drops() {
            return self.back_off(limit);
        }
        let is_first = self.min_rtt.is_none();
        let measurement = self.measure_window(limit, share);
        let changed = self.lower_min_rtt(&measurement);
        if (is_first || changed) && FixedPoint::from_whole(min) < limit {
            self.capacity = limit;
            return self.start_drain(now, DrainReason::Initial);
        }
        if self.is_overload(&measurement) {
            return self.drain_after_overload(&measurement, now);
        }
        if self.is_probe_due(limit) && FixedPoint::from_whole(min) < limit {
            self.capacity = limit.times(self.target_factor().inverse());
            return self.start_drain(now, DrainReason::Probe);
        }
        let next = self.adjust_limit(limit, &measurement, min);
        let next = self.refusal.map_or(next, |refusal| refusal.bound(limit, next));
        self.tuning.bound(limit, next, measurement.in_flight, measurement.rtt)
    }

    /// Returns `true` if more than a tenth of the window was dropped, or, with a configured
    /// duration, any request. Without a duration, each drop has lowered the limit already.
    fn has_many_drops(&mut self) -> bool {
        let dropped = std::mem::take(&mut self.dropped);
        let total = self.window.count().saturating_add(dropped);
        let few = if self.tuning.window.is_some() { 0 } else { total / 10 };
        few < dropped
    }

    /// Lowers the limit after dropped requests, which show an overload but not its size.
    fn back_off(&mut self, limit: FixedPoint) -> FixedPoint {
        self.window = LatencyStats::default();
        (self.calm_windows, self.had_queue) = (0, true);
        self.capacity = self.capacity.min(limit).times(Fraction::percent(90));
        limit.times(Fraction::percent(90))
    }

    /// Lowers the min RTT if the requests of the window were faster, beyond doubt: in small steps,
    /// unless the backend must have changed. Returns `true` if the min RTT is now far below its
    /// last unqueued measurement, so it may still include a queue.
    fn lower_min_rtt(&mut self, measurement: &WindowMeasurement) -> bool {
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

    fn drain_after_overload(&mut self, measurement: &WindowMeasurement, now: Nanos) -> FixedPoint {
        self.adopt_capacity(measurement);
        self.start_drain(now, DrainReason::Overload)
    }

    fn adjust_limit(
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
            || measurement.in_flight < limit.without_fraction().times(Fraction::percent(80))
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

    /// The limit as a multiple of the capacity: the tolerance, or less with a target latency.
    fn target_factor(&self) -> Fraction {
        self.tuning.capacity_factor(self.thresholds.target, self.min_rtt)
    }

    fn growth(&mut self, measurement: &WindowMeasurement) -> Fraction {
        if !measurement.is_calm(&self.thresholds) {
            return self.thresholds.target.within(Fraction::percent(100), MAX_UNSURE_GROWTH);
        }
        let growth_percent = u64::from(self.calm_windows).saturating_mul(26).saturating_add(130);
        self.calm_windows = self.calm_windows.saturating_add(1);
        Fraction::percent(if self.had_queue { growth_percent.min(200) } else { 200 })
    }

    fn adopt_capacity(&mut self, measurement: &WindowMeasurement) {
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

    fn is_probe_due(&mut self, limit: FixedPoint) -> bool {
        self.windows_to_probe = self.windows_to_probe.saturating_sub(1);
        self.windows_to_probe == 0 || limit < self.limit_after_probe.times(HALF)
    }

    fn plan_probe(&mut self) {
        // A linear congruential generator; its high bits are the best.
        self.jitter = self.jitter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let jitter =
            Fraction { numerator: PROBE_JITTER, denominator: u64::MAX >> 8 }.of(self.jitter >> 8);
        self.windows_to_probe = PROBE_INTERVAL.saturating_add(jitter);
    }

    fn start_drain(&mut self, since: Nanos, reason: DrainReason) -> FixedPoint {
        self.drain = Some(QueueDrain::new(since, reason));
        self.capacity.times(match reason {
            DrainReason::Overload => DRAIN,
            DrainReason::Probe => PROBE,
            DrainReason::Initial => HALF,
        })
    }

    fn end_drain(&mut self, now: Nanos, min: u32) -> FixedPoint {
        let Some(drain) = self.drain.take() else { return self.capacity };
        (self.window, self.block) = (LatencyStats::default(), LatencyStats::default());
        (self.dropped, self.calm_windows) = (0, 0);
        self.window_start = WindowStart::default();
        self.plan_probe();
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

/// The number of samples in a block: about one round trip of this replica's requests in flight.
fn block_size(limit: FixedPoint, share: u32) -> u64 {
    u64::from(limit.floor().min(share)).clamp(1, MAX_BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

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
