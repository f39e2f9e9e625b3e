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
//! * **The min RTT** is measured in a *probe*: for about four round trips, all replicas lower their
//!   requests in flight to 0.7 of the capacity. Requests that are admitted after the queue drained
//!   are unqueued. A replica that probed alone would measure the queue of the others, and vote to
//!   raise the limit.
//! * **Probe times** follow the store's clock, which the reply to each heartbeat reports. Probes
//!   are a few heartbeat intervals apart, and more if round trips are long: they cost 2 % of the
//!   goodput.
//! * **An unconfirmed min RTT** may include a queue: the first min RTT, and a min RTT that rose
//!   beyond doubt. The next probe lowers the requests in flight to a quarter. No replica votes for
//!   growth until a probe was not faster than the min RTT.
//! * **Overload** (x > 1.55, beyond doubt). Every replica that observes it uses less of its share
//!   at once, for at most two heartbeat intervals and no less than a quarter. The limit follows by
//!   votes.
//!
//! Guarantees:
//! - A probe ends after a bounded time, and so does the reduced use of a share.
//!
//! Not covered: an unused share cannot vote for growth (see
//! [`crate::coordinator::aggregate::vote`]).

use super::super::RequestOutcome;
use super::super::fixed_point::{FixedPoint, Fraction};
use super::super::latency_stats::LatencyStats;
use super::super::sample::{FleetShare, LatencySample};
use super::super::tuning::{AdaptiveTuning, WindowStart};
use super::constants::{MAX_UNSURE_GROWTH, PROBE, SMALL_ERROR};
use super::probe::{self, FleetProbe};
use super::thresholds::Thresholds;
use crate::units::Nanos;

/// The smallest number of samples in a block, which is added to the window at once.
const MIN_BLOCK: u64 = 8;
/// The largest weight of past samples in a mean, so that old ones fade.
const MAX_WEIGHT: u64 = 512;
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
    /// The unqueued samples, whose mean is the min RTT.
    unqueued: LatencyStats,
    /// Set once a probe with fewer requests in flight was not faster than the min RTT.
    is_confirmed: bool,
    /// The samples under the current limit that agree with the newest block, and that block.
    window: LatencyStats,
    block: LatencyStats,
    dropped: u64,
    cut: Option<ShareCut>,
    /// Samples that finish before this instant belong to another limit, or to a probe.
    valid_from: Nanos,
    rtt: Option<Nanos>,
    probe: Option<FleetProbe>,
    next_probe: Nanos,
    /// The number of consecutive increases of the limit that caused no queue.
    calm_increases: u64,
    had_queue: bool,
    tuning: AdaptiveTuning,
    thresholds: Thresholds,
    /// The start of the current block, if windows have a duration.
    block_start: WindowStart,
}

impl FleetGradient {
    /// Starts with `fleet_share`, and with `min_rtt` until a probe measures it.
    pub(super) fn new(
        now: Nanos,
        fleet_share: FleetShare,
        min_rtt: Option<Nanos>,
        tuning: AdaptiveTuning,
    ) -> Self {
        let mut unqueued = LatencyStats::default();
        if let Some(min_rtt) = min_rtt {
            unqueued.push(1, min_rtt);
        }
        let mut new = Self {
            fleet_share,
            unqueued,
            is_confirmed: false,
            window: LatencyStats::default(),
            block: LatencyStats::default(),
            dropped: 0,
            cut: None,
            valid_from: now,
            rtt: min_rtt,
            probe: None,
            next_probe: now,
            calm_increases: 0,
            had_queue: false,
            tuning,
            thresholds: Thresholds::new(tuning),
            block_start: WindowStart::default(),
        };
        new.plan_probe(now);
        new
    }

    pub(super) fn set_tuning(&mut self, tuning: AdaptiveTuning) {
        (self.tuning, self.thresholds) = (tuning, Thresholds::new(tuning));
    }

    pub(super) fn min_rtt(&self) -> Option<Nanos> {
        (0 < self.unqueued.count()).then(|| self.unqueued.mean())
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
        self.plan_probe(now);
    }

    pub(super) fn limit(&mut self, now: Nanos) -> FixedPoint {
        if self.probe.as_ref().is_some_and(|probe| probe.closes_at <= now) {
            self.end_probe();
        }
        if self.next_probe <= now && self.probe.is_none() {
            self.start_probe(now);
        }
        if self.cut.is_some_and(|cut| cut.ends_at <= now) {
            self.discard_samples(now);
        }
        let share = FixedPoint::from_whole(self.fleet_share.share);
        let cut = share.times(self.remaining());
        let probe_limit =
            self.probe.as_ref().filter(|probe| now < probe.ends_at).map(|probe| probe.limit);
        probe_limit.map_or(cut, |probe_limit| probe_limit.min(cut))
    }

    /// The fraction of the share that a [`ShareCut`] leaves usable.
    fn remaining(&self) -> Fraction {
        Fraction { numerator: self.cut.map_or(MILLION, |cut| cut.remaining), denominator: MILLION }
    }

    pub(super) fn record(&mut self, sample: &LatencySample) {
        if let Some(probe) = &mut self.probe {
            probe.record(sample);
        }
        if sample.ended_at < self.valid_from {
            return;
        }
        match sample.outcome {
            RequestOutcome::Success => self.block.push(sample.in_flight, sample.rtt),
            RequestOutcome::Dropped => self.dropped = self.dropped.saturating_add(1),
            RequestOutcome::Ignored => {}
        }
        if self.is_block_complete(sample) {
            self.end_block(sample.ended_at);
        }
    }

    fn is_block_complete(&mut self, sample: &LatencySample) -> bool {
        if let Some(duration) = self.tuning.window {
            return 0 < self.block.count() && self.block_start.has_passed(sample, duration);
        }
        let needed = u64::from(self.fleet_share.share).max(MIN_BLOCK).max(self.window.count() / 4);
        needed <= self.block.count()
    }

    /// Adds the newest block to the window if their latencies agree. Otherwise the latency changed,
    /// and the block starts a new window.
    fn end_block(&mut self, now: Nanos) {
        let block = std::mem::take(&mut self.block);
        if self.window.agrees_with(&block) {
            self.window.merge(&block);
        } else {
            self.window = block;
        }
        cap_weight(&mut self.window);
        self.rtt = Some(self.window.mean());
        self.lower_min_rtt();
        let Some(slowdown) = self.slowdown() else { return };
        self.had_queue |=
            self.thresholds.no_queue < slowdown && self.window.standard_error() < SMALL_ERROR;
        let lower_bound = MILLION.saturating_sub(self.window.cautious_error().saturating_mul(2));
        if self.thresholds.overload
            < (Fraction { numerator: lower_bound, denominator: MILLION }).of(slowdown)
        {
            self.cut_share(now, slowdown);
        }
    }

    /// Lowers the min RTT to the window's mean: no mean can be below the true min RTT.
    fn lower_min_rtt(&mut self) {
        let is_faster = self.min_rtt().is_some_and(|min_rtt| self.window.mean() < min_rtt);
        if is_faster
            && self.window.standard_error() < SMALL_ERROR
            && !self.unqueued.agrees_with(&self.window)
        {
            (self.unqueued, self.is_confirmed) = (self.window.clone(), false);
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
        (self.window, self.block, self.dropped, self.cut) = Default::default();
        self.block_start = WindowStart::default();
        // Requests that finish after one more round trip were admitted after `now`.
        self.valid_from = self.valid_from.max(now.plus(self.rtt.unwrap_or_default()));
    }

    fn slowdown(&self) -> Option<u64> {
        let min_rtt = self.min_rtt().filter(|_| MIN_BLOCK <= self.window.count())?;
        Some(
            Fraction { numerator: MILLION, denominator: min_rtt.0 }.of(self.window.mean().0).max(1),
        )
    }

    /// The number of requests in flight that this replica wants, from which its vote is computed;
    /// `None` without enough samples.
    pub(super) fn wanted_limit(&self) -> Option<FixedPoint> {
        let share = FixedPoint::from_whole(self.fleet_share.share);
        if 0 < self.dropped {
            return Some(share.times(self.drop_factor()));
        }
        let Some(slowdown) = self.slowdown() else {
            return self.cut.map(|_| share.times(self.remaining()));
        };
        let target =
            self.thresholds
                .target
                .of(Fraction { numerator: MILLION, denominator: slowdown }.of(MILLION));
        let wanted = share
            .times(self.remaining())
            .times(Fraction { numerator: target, denominator: MILLION });
        let wanted =
            match (self.cut.is_none() && self.is_confirmed, self.thresholds.no_queue < slowdown) {
                (true, true) => wanted,
                (true, false) => share.times(self.growth()),
                (false, _) => wanted.min(share),
            };
        Some(self.tuning.bound(share, wanted, share, self.window.mean()))
    }

    fn drop_factor(&self) -> Fraction {
        let (min_reduction, max_reduction) = DROP_REDUCTION;
        let served = self.window.count().saturating_add(self.block.count());
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

    fn plan_probe(&mut self, now: Nanos) {
        let interval = self.fleet_share.probes.interval(self.rtt.unwrap_or_default());
        let started_at = self.probe.as_ref().map(|probe| probe.started_at);
        let earliest =
            started_at.map_or(now, |started_at| now.max(started_at.plus(Nanos(interval.0 / 2))));
        self.next_probe = self.fleet_share.probes.clock.next_multiple_after(earliest, interval);
    }

    fn start_probe(&mut self, now: Nanos) {
        if let Some(rtt) = self.rtt {
            let round_trips =
                if self.is_confirmed { probe::ROUND_TRIPS } else { probe::DEEP_ROUND_TRIPS };
            let max_duration = Nanos(self.fleet_share.probes.interval(rtt).0 / 4);
            let duration = Nanos(rtt.0.saturating_mul(round_trips)).min(max_duration);
            let probe = FleetProbe::new(now, self.probe_limit(), rtt, duration);
            self.valid_from = self.valid_from.max(probe.ends_at.plus(rtt));
            self.probe = Some(probe);
        }
        self.plan_probe(now.plus(Nanos(1)));
    }

    /// The number of requests in flight that this replica allows during a probe: with a confirmed
    /// min RTT, a part of the capacity, which is the number in flight divided by the slowdown.
    fn probe_limit(&self) -> FixedPoint {
        let share = FixedPoint::from_whole(self.fleet_share.share);
        let slowdown = self.slowdown().unwrap_or(MILLION).max(self.thresholds.target.of(MILLION));
        if self.is_confirmed {
            share.times(PROBE).times(Fraction { numerator: MILLION, denominator: slowdown })
        } else {
            share.times(probe::DEEP_PROBE)
        }
    }

    fn end_probe(&mut self) {
        let Some(FleetProbe { unqueued, .. }) = self.probe.take() else { return };
        if unqueued.count() == 0 {
            return;
        }
        // Before the first probe there is no unqueued sample, so compare it with normal samples.
        let is_known = self.unqueued.count() != 0;
        let previous = if is_known { &self.unqueued } else { &self.window };
        self.is_confirmed = previous.count() != 0 && previous.agrees_with(&unqueued);
        if is_known && self.is_confirmed {
            self.unqueued.merge(&unqueued);
            cap_weight(&mut self.unqueued);
        } else {
            // The backend changed, or the old min RTT included a queue.
            self.unqueued = unqueued;
        }
    }
}

/// Halves the weight of the samples until it is at most [`MAX_WEIGHT`].
fn cap_weight(stats: &mut LatencyStats) {
    while MAX_WEIGHT < stats.count() {
        stats.halve();
    }
}
