//! The min RTT (latency without queueing), measured again in probes, and the latency between them.
//!
//! * **A probe** lowers the requests in flight to a part of the capacity for about four round trips.
//!   Requests that are admitted after the queue drained are unqueued, and their mean is the min RTT.
//! * **The capacity** is the limit divided by the slowdown x = RTT / min RTT, by Little's law.
//! * **Probe times** follow a clock. In a fleet it is the store's, which the reply to each heartbeat
//!   reports, so all replicas probe together. A replica that probed alone would measure the queue
//!   of the others.
//! * **An unconfirmed min RTT** may include a queue: the first min RTT, and a min RTT that rose
//!   beyond doubt. The next probe lowers the requests in flight to a quarter. A probe that was not
//!   faster than the min RTT confirms it.
//! * **Parameters.** `probe_interval` is the time between two probes. Its default is a few heartbeat
//!   intervals, and more if round trips are long: probes cost 2 % of the goodput. `probe_depth` is
//!   the part of the capacity that a probe leaves unused.
//!
//! Guarantees:
//! - A probe ends after a bounded time.
//! - The size of the state is bounded.
//!
//! Not covered:
//! - The limit, and votes for it.

use super::RequestOutcome;
use super::fixed_point::Fraction;
use super::latency_stats::LatencyStats;
use super::probe::{self, MinRttProbe};
use super::sample::{LatencySample, ProbeSchedule};
use super::tuning::{AdaptiveTuning, WindowStart};
use crate::units::Nanos;

/// The smallest number of samples in a block, which is added to the window at once.
pub(super) const MIN_BLOCK: u64 = 8;
/// The largest weight of past samples in a mean, so that old ones fade.
const MAX_WEIGHT: u64 = 512;
/// The standard error of a mean, in millionths, below which the mean can lower the min RTT.
const SMALL_ERROR: u64 = 50_000;
const MILLION: u64 = 1_000_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct MinRttMeter {
    schedule: ProbeSchedule,
    tuning: AdaptiveTuning,
    /// The unqueued samples, whose mean is the min RTT.
    unqueued: LatencyStats,
    /// Set once a probe with fewer requests in flight was not faster than the min RTT.
    is_confirmed: bool,
    /// The samples outside of probes that agree with the newest block, and that block.
    window: LatencyStats,
    block: LatencyStats,
    /// The start of the current block, if windows have a duration.
    block_start: WindowStart,
    /// Samples that finish before this instant belong to another limit, or to a probe.
    valid_from: Nanos,
    rtt: Option<Nanos>,
    probe: Option<MinRttProbe>,
    next_probe: Nanos,
}

impl MinRttMeter {
    /// Starts with `min_rtt` until a probe measures it.
    pub(super) fn new(
        now: Nanos,
        schedule: ProbeSchedule,
        min_rtt: Option<Nanos>,
        tuning: AdaptiveTuning,
    ) -> Self {
        let mut new = Self {
            schedule,
            tuning,
            unqueued: LatencyStats::default(),
            is_confirmed: false,
            window: LatencyStats::default(),
            block: LatencyStats::default(),
            block_start: WindowStart::default(),
            valid_from: now,
            rtt: min_rtt,
            probe: None,
            next_probe: now,
        };
        if let Some(min_rtt) = min_rtt {
            new.assume(min_rtt);
        }
        new.plan_probe(now);
        new
    }

    pub(super) fn set_tuning(&mut self, tuning: AdaptiveTuning) {
        self.tuning = tuning;
    }

    /// Follows another clock. A probe under way ends in time.
    pub(super) fn set_schedule(&mut self, now: Nanos, schedule: ProbeSchedule) {
        self.schedule = schedule;
        self.plan_probe(now);
    }

    pub(super) fn min_rtt(&self) -> Option<Nanos> {
        (0 < self.unqueued.count()).then(|| self.unqueued.mean())
    }

    /// Takes `min_rtt` as the min RTT until a probe measures it.
    pub(super) fn assume(&mut self, min_rtt: Nanos) {
        self.unqueued.push(1, min_rtt);
    }

    pub(super) const fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    /// The samples outside of probes that agree with the newest ones.
    pub(super) const fn window(&self) -> &LatencyStats {
        &self.window
    }

    /// The number of samples that are not in the window yet.
    pub(super) const fn pending(&self) -> u64 {
        self.block.count()
    }

    /// Returns `true` if `sample` was taken under the current limit and outside of a probe.
    pub(super) fn is_valid(&self, sample: &LatencySample) -> bool {
        self.valid_from <= sample.ended_at
    }

    /// RTT / min RTT, in millionths; `None` without enough samples.
    pub(super) fn slowdown(&self) -> Option<u64> {
        let min_rtt = self.min_rtt().filter(|_| MIN_BLOCK <= self.window.count())?;
        Some(
            Fraction { numerator: MILLION, denominator: min_rtt.0 }.of(self.window.mean().0).max(1),
        )
    }

    /// Ends and starts probes by time. A probe assumes at least the slowdown `usual`, in millionths.
    pub(super) fn advance(&mut self, now: Nanos, usual: u64) {
        if self.probe.as_ref().is_some_and(|probe| probe.closes_at <= now) {
            self.end_probe();
        }
        if self.next_probe <= now && self.probe.is_none() {
            self.start_probe(now, usual);
        }
    }

    /// The part of the limit, or of the share, that may be in flight during a probe.
    pub(super) fn probe_part(&self, now: Nanos) -> Option<Fraction> {
        self.probe.as_ref().filter(|probe| now < probe.ends_at).map(|probe| probe.part)
    }

    /// Adds a sample; a block has at least `min_block` samples. Returns `true` if a block ends.
    pub(super) fn record(&mut self, sample: &LatencySample, min_block: u64) -> bool {
        if let Some(probe) = &mut self.probe {
            probe.record(sample);
        }
        if !self.is_valid(sample) {
            return false;
        }
        if sample.outcome == RequestOutcome::Success {
            self.block.push(sample.in_flight, sample.rtt);
        }
        let is_complete = self.is_block_complete(sample, min_block);
        if is_complete {
            self.end_block();
        }
        is_complete
    }

    /// Discards samples that were taken with another number of requests in flight.
    pub(super) fn discard_samples(&mut self, now: Nanos) {
        (self.window, self.block, self.block_start) = Default::default();
        // Requests that finish after one more round trip were admitted after `now`.
        self.valid_from = self.valid_from.max(now.plus(self.rtt.unwrap_or_default()));
    }

    fn is_block_complete(&mut self, sample: &LatencySample, min_block: u64) -> bool {
        if let Some(duration) = self.tuning.window {
            return 0 < self.block.count() && self.block_start.has_passed(sample, duration);
        }
        min_block.max(MIN_BLOCK).max(self.window.count() / 4) <= self.block.count()
    }

    /// Adds the newest block to the window if their latencies agree. Otherwise the latency changed,
    /// and the block starts a new window.
    fn end_block(&mut self) {
        let block = std::mem::take(&mut self.block);
        if self.window.agrees_with(&block) {
            self.window.merge(&block);
        } else {
            self.window = block;
        }
        cap_weight(&mut self.window);
        self.rtt = Some(self.window.mean());
        self.lower_min_rtt();
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

    fn interval(&self) -> Nanos {
        let by_rtt = || self.schedule.interval(self.rtt.unwrap_or_default());
        self.tuning.probe_interval.unwrap_or_else(by_rtt)
    }

    fn plan_probe(&mut self, now: Nanos) {
        let interval = self.interval();
        let started_at = self.probe.as_ref().map(|probe| probe.started_at);
        let earliest =
            started_at.map_or(now, |started_at| now.max(started_at.plus(Nanos(interval.0 / 2))));
        self.next_probe = self.schedule.clock.next_multiple_after(earliest, interval);
    }

    fn start_probe(&mut self, now: Nanos, usual: u64) {
        if let Some(rtt) = self.rtt {
            let round_trips =
                if self.is_confirmed { probe::ROUND_TRIPS } else { probe::DEEP_ROUND_TRIPS };
            let max_duration = Nanos(self.interval().0 / 4);
            let duration = Nanos(rtt.0.saturating_mul(round_trips)).min(max_duration);
            let probe = MinRttProbe::new(now, self.part_to_probe(usual), rtt, duration);
            self.valid_from = self.valid_from.max(probe.ends_at.plus(rtt));
            self.probe = Some(probe);
        }
        self.plan_probe(now.plus(Nanos(1)));
    }

    /// The part of the limit that a probe allows: with a confirmed min RTT, a part of the capacity.
    fn part_to_probe(&self, usual: u64) -> Fraction {
        let part = self.tuning.probe_part();
        if !self.is_confirmed {
            return probe::DEEP_PROBE.within(Fraction::percent(0), part);
        }
        let slowdown = self.slowdown().unwrap_or(MILLION).max(usual);
        let of_limit = part.of(Fraction { numerator: MILLION, denominator: slowdown }.of(MILLION));
        Fraction { numerator: of_limit, denominator: MILLION }
    }

    fn end_probe(&mut self) {
        let Some(MinRttProbe { unqueued, .. }) = self.probe.take() else { return };
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
