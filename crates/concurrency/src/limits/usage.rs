//! Measures the recent use of one shared limit at this replica, for the demand and the vote in its
//! share reports.
//!
//! Guarantees:
//! - Recording an event costs a few integer additions.
//!
//! Not covered:
//! - The coordinator's use of demand and vote: see [`crate::kernel::coordinator`].

mod requester_meter;

use crate::kernel::concurrency::limiter::{LimiterEffect, LimiterEvent};
use crate::kernel::concurrency::{Limiter, RequestOutcome};
use crate::kernel::coordinator::aggregate::{
    FractionalLimit, LEVELS_PER_PERMIT, LimitFactor, LimitInference, vote,
};
use crate::kernel::coordinator::split::{self, demand};
use crate::kernel::coordinator::{DemandCurve, ShareTiming};
use crate::kernel::units::{Nanos, Share};
use requester_meter::RequesterMeter;

/// The use of one shared limit at this replica, in the current measuring window.
#[derive(Clone, Debug)]
pub(super) struct UsageMeter {
    window_start: Nanos,
    measured_until: Nanos,
    /// Integrals over time, in requests × nanoseconds: of the requests in flight and in the queue.
    in_flight_area: u128,
    waiting_area: u128,
    arrived: u64,
    refused: u64,
    ended: u64,
    /// The demand in the last share report.
    wanted: Share,
    mean_duration: Option<Nanos>,
    /// This and the following fields are measured since the last change of this replica's share.
    share: Share,
    peak: u32,
    samples: u32,
    requesters: RequesterMeter,
}

impl UsageMeter {
    pub(super) fn new(now: Nanos) -> Self {
        Self {
            window_start: now,
            measured_until: now,
            in_flight_area: 0,
            waiting_area: 0,
            arrived: 0,
            refused: 0,
            ended: 0,
            wanted: Share(0),
            mean_duration: None,
            share: Share(0),
            peak: 0,
            samples: 0,
            requesters: RequesterMeter::default(),
        }
    }

    /// Adds the time since the last call, during which `in_flight` and `waiting` were constant.
    pub(super) fn accumulate(&mut self, now: Nanos, in_flight: u32, waiting: usize) {
        let passed = now.since(self.measured_until);
        self.in_flight_area += area(passed, u64::from(in_flight));
        if 0 < waiting {
            self.waiting_area += area(passed, u64::try_from(waiting).unwrap_or(0));
        }
        self.measured_until = self.measured_until.max(now);
    }

    /// Counts `event` with its effects. `limiter` is in the state after it.
    pub(super) fn count_event(
        &mut self,
        event: LimiterEvent,
        effects: &[LimiterEffect],
        limiter: &Limiter,
    ) {
        match event {
            LimiterEvent::Acquire { by, .. } => {
                self.arrived += 1;
                let refused = effects.iter().any(|effect| matches!(effect, LimiterEffect::Deny(_)));
                self.refused += u64::from(refused);
                if limiter.distinguishes_requesters() {
                    self.requesters.count(limiter.known(by), refused);
                }
            }
            LimiterEvent::Release { outcome, .. } if !effects.contains(&LimiterEffect::Unknown) => {
                self.ended += 1;
                // An ignored outcome is no latency sample.
                let sampled = u32::from(outcome != RequestOutcome::Ignored);
                self.samples = self.samples.saturating_add(sampled);
            }
            _ => {}
        }
        self.peak = self.peak.max(limiter.in_flight());
    }

    /// Records a new share. Restarts peak and samples, because they describe the use of the old
    /// share.
    pub(super) const fn set_share(&mut self, share: Share) {
        (self.share, self.peak, self.samples) = (share, 0, 0);
    }

    /// Returns the demand: the permits that this replica could use. If the measuring window is
    /// shorter than a quarter of the heartbeat interval, returns the last reported demand or the
    /// current number of requests, whichever is larger.
    pub(super) fn wanted(
        &self,
        now: Nanos,
        in_flight: u32,
        waiting: usize,
        terms: &ShareTiming,
    ) -> Share {
        let here = Share(u64::from(in_flight).saturating_add(u64::try_from(waiting).unwrap_or(0)));
        if now.since(self.window_start).0 < terms.heartbeat.0 / 4 {
            return self.wanted.max(here);
        }
        let window = now.since(self.window_start);
        let passed = now.since(self.measured_until);
        let in_flight = self.in_flight_area + area(passed, u64::from(in_flight));
        let waiting = self.waiting_area + area(passed, u64::try_from(waiting).unwrap_or(0));
        demand(&split::UsageSample {
            window,
            mean_in_use: FractionalLimit(mean(in_flight.saturating_add(waiting), window)),
            arrived: self.arrived,
            denied: self.refused,
            mean_duration: self.mean_request_duration(in_flight),
        })
    }

    /// Returns the demand of the classes and customers; empty for a limit without these.
    pub(super) fn curve(&self, now: Nanos, limiter: &Limiter, terms: &ShareTiming) -> DemandCurve {
        if !limiter.distinguishes_requesters() {
            return DemandCurve::EMPTY;
        }
        let window = now.since(self.window_start);
        let is_short = window.0 < terms.heartbeat.0 / 4;
        let mean = self.mean_request_duration(self.in_flight_area);
        self.requesters.curve(limiter, mean, (!is_short).then_some(window))
    }

    /// Returns the vote: the factor by which this replica would change the fleet-wide `limit`.
    /// `estimate` is its algorithm's value for that limit.
    pub(super) fn vote(&self, estimate: FractionalLimit, limit: Share) -> Option<LimitFactor> {
        let (peak, samples) = (Share(self.peak.into()), self.samples);
        vote(&LimitInference { estimate, limit, allowed: self.share, peak, samples })
    }

    /// Starts a new measuring window after a report, unless the current one is shorter than half
    /// the heartbeat interval.
    pub(super) fn start_window(&mut self, now: Nanos, terms: &ShareTiming) {
        if now.since(self.window_start).0 < terms.heartbeat.0 / 2 {
            return;
        }
        self.wanted = self.wanted(now, 0, 0, terms);
        self.requesters.start_window(now.since(self.window_start));
        self.mean_duration = self.mean_request_duration(self.in_flight_area);
        (self.window_start, self.in_flight_area, self.waiting_area) = (now, 0, 0);
        (self.arrived, self.refused, self.ended) = (0, 0, 0);
    }

    /// Returns the mean duration of requests by Little's law: total time in flight / ended
    /// requests. Returns the previous value if no request ended.
    fn mean_request_duration(&self, in_flight: u128) -> Option<Nanos> {
        let lasted = in_flight.checked_div(u128::from(self.ended));
        lasted.and_then(|lasted| u64::try_from(lasted).ok()).map(Nanos).or(self.mean_duration)
    }
}

/// Returns requests × nanoseconds. One multiplication instruction, because both factors have 64
/// bits.
fn area(passed: Nanos, many: u64) -> u128 {
    u128::from(passed.0) * u128::from(many)
}

/// Returns the mean number of requests in the window, in units of 1/1,024.
fn mean(area: u128, window: Nanos) -> u64 {
    let mean = area
        .saturating_mul(LEVELS_PER_PERMIT.into())
        .checked_div(u128::from(window.0))
        .unwrap_or(0);
    u64::try_from(mean).unwrap_or(u64::MAX)
}
