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
//! * **Refusals.** A request dropped at n in flight shows that the backend serves n - 1. The limit
//!   falls to n - 1 at once, and further if this number fluctuates. Then it grows by less than one
//!   request for each success, so that about 3 % are refused (`refusal.rs`).
//!   The limit also falls × 0.9 if more than a tenth of a window was dropped without such a fall.
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
//!   `window` ends by time, and then only its end lowers the limit. `probe_interval` replaces the
//!   number of windows between two probes, and `probe_depth` the 0.3 of C that a probe leaves unused.
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

mod adjustment;
mod constants;
mod drain;
mod fleet;
mod measurement;
mod min_rtt;
mod refusal;
mod thresholds;
mod window;

use super::fixed_point::{FixedPoint, Fraction};
use super::latency_stats::LatencyStats;
use super::sample::{FleetShare, LatencySample};
use super::tuning::{AdaptiveTuning, WindowStart};
use crate::units::Nanos;
use drain::{DrainReason, QueueDrain};
use fleet::FleetGradient;
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
    /// The instant of the last drain or probe.
    probed_at: Nanos,
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
            probed_at: Nanos(0),
            limit_after_probe: FixedPoint::from_whole(0),
            jitter,
            settled_at: Nanos(0),
            reference_window: None,
            fleet: None,
            tuning,
            thresholds: Thresholds::new(tuning),
            window_start: WindowStart::default(),
        };
        new.plan_probe(Nanos(0));
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

    /// The part of the share that may be in flight at `now`; `None` without a fleet.
    pub(super) fn usable_share(&mut self, now: Nanos) -> Option<FixedPoint> {
        self.fleet.as_mut().map(|fleet| fleet.usable_share(now))
    }

    /// The fleet's limit for which this replica votes; `None` without enough samples under it.
    pub(super) fn wanted_limit(&self) -> Option<FixedPoint> {
        self.fleet.as_ref()?.wanted_limit()
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
        let limit = self.grow_after_refusal(limit, sample, share);
        if self.is_window_complete(limit, share, sample) {
            self.evaluate_window(limit, sample.ended_at, share, min)
        } else {
            limit
        }
    }

    /// The limit to which a drain or a probe returns, at least `limit`; `limit` without one.
    pub(super) fn limit_after_drain(&self, limit: FixedPoint) -> FixedPoint {
        if self.drain.is_none() {
            return limit;
        }
        limit.max(self.capacity.times(self.target_factor()))
    }

    fn set_min_rtt(&mut self, rtt: Nanos, capacity: FixedPoint) {
        (self.min_rtt, self.measured_min_rtt, self.capacity) = (Some(rtt), Some(rtt), capacity);
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
        if self.is_probe_due(now, limit) && FixedPoint::from_whole(min) < limit {
            self.capacity = limit.times(self.target_factor().inverse());
            return self.start_drain(now, DrainReason::Probe);
        }
        let next = self.adjust_limit(limit, &measurement, min);
        let next = self.tuning.bound(limit, next, measurement.in_flight, measurement.rtt);
        match &mut self.refusal {
            Some(refusal) => refusal.permit_growth(limit, next),
            None => next,
        }
    }

    /// The limit as a multiple of the capacity: the tolerance, or less with a target latency.
    fn target_factor(&self) -> Fraction {
        self.tuning.capacity_factor(self.thresholds.target, self.min_rtt)
    }
}
