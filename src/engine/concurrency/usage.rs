//! Measures the recent usage of one limit at one replica, to derive its demand and its vote.
//!
//! Guarantees:
//! - An event costs a few integer additions.
//!
//! Not covered:
//! - The use of these values by the fleet: see [`crate::kernel::coordinator`].

use crate::kernel::concurrency::RequestOutcome;
use crate::kernel::concurrency::limiter::{LimiterEffect, LimiterEvent};
use crate::kernel::coordinator::ShareTiming;
use crate::kernel::coordinator::aggregate::{
    FractionalLimit, LEVELS_PER_PERMIT, LimitFactor, LimitInference, vote,
};
use crate::kernel::coordinator::split::{self, demand};
use crate::kernel::units::{Nanos, Share};

/// The usage since the last report.
#[derive(Clone, Debug)]
pub(super) struct UsageMeter {
    window_start: Nanos,
    measured_until: Nanos,
    /// Sums of requests × nanoseconds, in flight and waiting.
    in_flight_area: u128,
    waiting_area: u128,
    arrived: u64,
    refused: u64,
    ended: u64,
    /// As in the last report.
    wanted: Share,
    mean_duration: Option<Nanos>,
    /// This and the following fields are measured since the last change of the share.
    share: Share,
    peak: u32,
    samples: u32,
}

impl UsageMeter {
    pub(super) const fn new(now: Nanos) -> Self {
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
        }
    }

    /// Adds the time since the last call, during which the two counts were constant.
    pub(super) fn accumulate(&mut self, now: Nanos, in_flight: u32, waiting: usize) {
        let passed = now.since(self.measured_until);
        self.in_flight_area += area(passed, u64::from(in_flight));
        if 0 < waiting {
            self.waiting_area += area(passed, u64::try_from(waiting).unwrap_or(0));
        }
        self.measured_until = self.measured_until.max(now);
    }

    /// Counts `event`. `in_flight` is the number after it.
    pub(super) fn count_event(
        &mut self,
        event: LimiterEvent,
        effects: &[LimiterEffect],
        in_flight: u32,
    ) {
        match event {
            LimiterEvent::Acquire { .. } => {
                self.arrived += 1;
                let refused = effects.iter().any(|effect| matches!(effect, LimiterEffect::Deny(_)));
                self.refused += u64::from(refused);
            }
            LimiterEvent::Release { outcome, .. } if !effects.contains(&LimiterEffect::Unknown) => {
                self.ended += 1;
                // An ignored outcome is no latency sample.
                let sampled = u32::from(outcome != RequestOutcome::Ignored);
                self.samples = self.samples.saturating_add(sampled);
            }
            _ => {}
        }
        self.peak = self.peak.max(in_flight);
    }

    /// Records a new share. Earlier samples concern the previous share.
    pub(super) const fn set_share(&mut self, share: Share) {
        (self.share, self.peak, self.samples) = (share, 0, 0);
    }

    /// Returns the permits that this replica could use. In a window below a quarter of
    /// a heartbeat, the larger of the last reported value and the current requests.
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

    /// Returns the factor by which the fleet-wide limit should
    /// change, from the algorithm's `estimate` for this replica.
    pub(super) fn vote(&self, estimate: FractionalLimit) -> Option<LimitFactor> {
        let (peak, samples) = (Share(self.peak.into()), self.samples);
        vote(&LimitInference { estimate, allowed: self.share, peak, samples })
    }

    /// Starts a new window after a report, unless the current one is shorter than half a heartbeat.
    pub(super) fn start_window(&mut self, now: Nanos, terms: &ShareTiming) {
        if now.since(self.window_start).0 < terms.heartbeat.0 / 2 {
            return;
        }
        self.wanted = self.wanted(now, 0, 0, terms);
        self.mean_duration = self.mean_request_duration(self.in_flight_area);
        (self.window_start, self.in_flight_area, self.waiting_area) = (now, 0, 0);
        (self.arrived, self.refused, self.ended) = (0, 0, 0);
    }

    /// Returns the mean duration of ended requests by Little's law: the total
    /// time in flight / ended requests. The previous value if none ended.
    fn mean_request_duration(&self, in_flight: u128) -> Option<Nanos> {
        let lasted = in_flight.checked_div(u128::from(self.ended));
        lasted.and_then(|lasted| u64::try_from(lasted).ok()).map(Nanos).or(self.mean_duration)
    }
}

/// Requests × nanoseconds. One multiplication instruction, because both factors have 64 bits.
fn area(passed: Nanos, many: u64) -> u128 {
    u128::from(passed.0) * u128::from(many)
}

/// Returns the mean in units of 1/1,024.
fn mean(area: u128, window: Nanos) -> u64 {
    let mean = area
        .saturating_mul(LEVELS_PER_PERMIT.into())
        .checked_div(u128::from(window.0))
        .unwrap_or(0);
    u64::try_from(mean).unwrap_or(u64::MAX)
}
