//! The gradient algorithm for a limit that a fleet adapts together.
//!
//! One replica cannot shorten the backend's queue alone, and its latency depends on the requests of
//! all replicas. So each replica measures latency while the fleet's limit is constant, and votes
//! for a factor by which the limit should change.
//!
//! | formula | worked row: limit 60, min RTT 10 ms, RTT 15 ms |
//! |---|---|
//! | slowdown x = RTT / min RTT | 15 / 10 = 1.5 |
//! | factor = 1.3 / x, once x shows a queue (x > 1.15) | 1.3 / 1.5 = 0.87, a limit of 52 |
//! | no queue: 2 before the first queue or after growth that caused none, else 1.3 | 1.3 |
//!
//! * **The min RTT** is measured in probes, for which all replicas lower their requests in flight
//!   together ([`MinRttMeter`]). No replica votes for growth until a probe confirmed the min RTT.
//! * **Overload** (x > 1.55, beyond doubt). Every replica that observes it uses less of its share
//!   at once, for at most two heartbeat intervals and no less than a quarter. The limit follows by
//!   votes.
//!
//! Guarantees:
//! - The reduced use of a share ends after a bounded time.
//!
//! Not covered: an unused share cannot vote for growth (see
//! [`crate::coordinator::aggregate::vote`]).

use super::super::RequestOutcome;
use super::super::fixed_point::{FixedPoint, Fraction};
use super::super::min_rtt::MinRttMeter;
use super::super::sample::{FleetShare, LatencySample};
use super::super::tuning::AdaptiveTuning;
use super::constants::{MAX_UNSURE_GROWTH, SMALL_ERROR};
use super::thresholds::Thresholds;
use crate::units::Nanos;

/// The smallest and the largest reduction of the limit after dropped requests, in millionths.
const DROP_REDUCTION: (u64, u64) = (100_000, 500_000);
const MILLION: u64 = 1_000_000;

/// A temporary reduction of this replica's share to `remaining` millionths of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ShareCut {
    remaining: u64,
    ends_at: Nanos,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FleetGradient {
    fleet_share: FleetShare,
    /// The latencies under the current limit, and the min RTT.
    meter: MinRttMeter,
    dropped: u64,
    cut: Option<ShareCut>,
    /// The number of consecutive increases of the limit that caused no queue.
    calm_increases: u64,
    had_queue: bool,
    tuning: AdaptiveTuning,
    thresholds: Thresholds,
}

impl FleetGradient {
    /// Starts with `fleet_share`, and with `min_rtt` until a probe measures it.
    pub(super) fn new(
        now: Nanos,
        fleet_share: FleetShare,
        min_rtt: Option<Nanos>,
        tuning: AdaptiveTuning,
    ) -> Self {
        Self {
            fleet_share,
            meter: MinRttMeter::new(now, fleet_share.probes, min_rtt, tuning),
            dropped: 0,
            cut: None,
            calm_increases: 0,
            had_queue: false,
            tuning,
            thresholds: Thresholds::new(tuning),
        }
    }

    pub(super) fn set_tuning(&mut self, tuning: AdaptiveTuning) {
        (self.tuning, self.thresholds) = (tuning, Thresholds::new(tuning));
        self.meter.set_tuning(tuning);
    }

    pub(super) fn min_rtt(&self) -> Option<Nanos> {
        self.meter.min_rtt()
    }

    pub(super) fn set_share(&mut self, now: Nanos, fleet_share: FleetShare) {
        let previous = std::mem::replace(&mut self.fleet_share, fleet_share);
        if previous.limit != fleet_share.limit {
            let has_grown = previous.limit.saturating_add(previous.limit / 5) < fleet_share.limit;
            self.calm_increases = if has_grown { self.calm_increases.saturating_add(1) } else { 0 };
            self.discard_samples(now);
        }
        // The last heartbeat reported these dropped requests, so they do not count again.
        self.dropped = 0;
        self.meter.set_schedule(now, fleet_share.probes);
    }

    /// The part of the share that may be in flight at `now`.
    pub(super) fn usable_share(&mut self, now: Nanos) -> FixedPoint {
        // With fewer requests than the usual queue, a probe would measure that queue.
        self.meter.advance(now, self.thresholds.target.of(MILLION));
        if self.cut.is_some_and(|cut| cut.ends_at <= now) {
            self.discard_samples(now);
        }
        let share = FixedPoint::from_whole(self.fleet_share.share);
        let cut = share.times(self.remaining());
        self.meter.probe_part(now).map_or(cut, |part| share.times(part).min(cut))
    }

    /// The fraction of the share that a [`ShareCut`] leaves usable.
    fn remaining(&self) -> Fraction {
        Fraction { numerator: self.cut.map_or(MILLION, |cut| cut.remaining), denominator: MILLION }
    }

    pub(super) fn record(&mut self, sample: &LatencySample) {
        if self.meter.is_valid(sample) && sample.outcome == RequestOutcome::Dropped {
            self.dropped = self.dropped.saturating_add(1);
        }
        if self.meter.record(sample, self.fleet_share.share.into()) {
            self.react_to_queue(sample.ended_at);
        }
    }

    /// Notes a queue, and lowers the use of the share at once after an overload.
    fn react_to_queue(&mut self, now: Nanos) {
        let (Some(slowdown), window) = (self.meter.slowdown(), self.meter.window()) else { return };
        self.had_queue |=
            self.thresholds.no_queue < slowdown && window.standard_error() < SMALL_ERROR;
        let lower_bound = MILLION.saturating_sub(window.cautious_error().saturating_mul(2));
        if self.thresholds.overload
            < (Fraction { numerator: lower_bound, denominator: MILLION }).of(slowdown)
        {
            self.cut_share(now, slowdown);
        }
    }

    /// Lowers the use of this replica's share at once, before votes lower the limit. The cut is
    /// short and leaves a quarter of the share, so that a replica that alone observes an overload
    /// does not starve.
    fn cut_share(&mut self, now: Nanos, slowdown: u64) {
        let usable_millionths = self.remaining().of(self.thresholds.target.of(Fraction {
            numerator: MILLION,
            denominator: slowdown,
        }
        .of(MILLION)));
        let ends_at = now.plus(Nanos(self.fleet_share.probes.heartbeat.0.saturating_mul(2)));
        let ends_at = self.cut.map_or(ends_at, |cut| cut.ends_at);
        self.discard_samples(now);
        self.cut =
            Some(ShareCut { remaining: usable_millionths.clamp(MILLION / 4, MILLION), ends_at });
    }

    /// Discards samples that were taken with another number of requests in flight.
    fn discard_samples(&mut self, now: Nanos) {
        (self.dropped, self.cut) = Default::default();
        self.meter.discard_samples(now);
    }

    /// The limit of the whole fleet for which this replica votes; `None` without enough samples.
    pub(super) fn wanted_limit(&self) -> Option<FixedPoint> {
        let limit = FixedPoint::from_whole(self.fleet_share.limit);
        if 0 < self.dropped {
            return Some(limit.times(self.drop_factor()));
        }
        let Some(slowdown) = self.meter.slowdown() else {
            return self.cut.map(|_| limit.times(self.remaining()));
        };
        let target =
            self.thresholds
                .target
                .of(Fraction { numerator: MILLION, denominator: slowdown }.of(MILLION));
        let wanted = limit
            .times(self.remaining())
            .times(Fraction { numerator: target, denominator: MILLION });
        let may_grow = self.cut.is_none() && self.meter.is_confirmed();
        let wanted = match (may_grow, self.thresholds.no_queue < slowdown) {
            (true, true) => wanted,
            (true, false) => limit.times(self.growth()),
            (false, _) => wanted.min(limit),
        };
        Some(self.tuning.bound(limit, wanted, limit, self.meter.window().mean()))
    }

    fn drop_factor(&self) -> Fraction {
        let (min_reduction, max_reduction) = DROP_REDUCTION;
        let served = self.meter.window().count().saturating_add(self.meter.pending());
        let dropped_part =
            Fraction { numerator: self.dropped, denominator: served.saturating_add(self.dropped) };
        Fraction {
            numerator: MILLION
                .saturating_sub(dropped_part.of(MILLION).clamp(min_reduction, max_reduction)),
            denominator: MILLION,
        }
    }

    fn growth(&self) -> Fraction {
        if self.had_queue && self.calm_increases == 0 {
            self.thresholds.target.within(Fraction::percent(100), MAX_UNSURE_GROWTH)
        } else {
            Fraction::percent(200)
        }
    }
}
