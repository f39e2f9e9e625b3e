//! Measures the recent usage of one limit at one replica, to derive its demand and its vote.
//!
//! Guarantees:
//! - An event costs a few integer additions.
//!
//! Not covered:
//! - The use of these values by the fleet: see [`crate::kernel::coordinator`].

use crate::kernel::concurrency::Outcome;
use crate::kernel::concurrency::limiter::{Effect, Event};
use crate::kernel::coordinator::Terms;
use crate::kernel::coordinator::aggregate::{FINE, Inference, Level, Ratio, vote};
use crate::kernel::coordinator::split::{self, wanted};
use crate::kernel::units::{Nanos, Share};

/// The usage since the last report.
#[derive(Clone, Debug)]
pub(super) struct Usage {
    since: Nanos,
    seen: Nanos,
    /// Sums of requests × nanoseconds, in flight and waiting.
    in_flight: u128,
    waiting: u128,
    arrived: u64,
    refused: u64,
    left: u64,
    /// As in the last report.
    wanted: Share,
    lasted: Option<Nanos>,
    /// This and the following fields are measured since the last change of the share.
    allowed: Share,
    peak: u32,
    samples: u32,
}

impl Usage {
    pub(super) const fn new(now: Nanos) -> Self {
        Self {
            since: now,
            seen: now,
            in_flight: 0,
            waiting: 0,
            arrived: 0,
            refused: 0,
            left: 0,
            wanted: Share(0),
            lasted: None,
            allowed: Share(0),
            peak: 0,
            samples: 0,
        }
    }

    /// Adds the time since the last call, during which the two counts were constant.
    pub(super) fn pass(&mut self, now: Nanos, in_flight: u32, waiting: usize) {
        let passed = now.since(self.seen);
        self.in_flight += area(passed, u64::from(in_flight));
        if 0 < waiting {
            self.waiting += area(passed, u64::try_from(waiting).unwrap_or(0));
        }
        self.seen = self.seen.max(now);
    }

    /// Counts `event`. `in_flight` is the number after it.
    pub(super) fn note(&mut self, event: Event, effects: &[Effect], in_flight: u32) {
        match event {
            Event::Arrive { .. } => {
                self.arrived += 1;
                let refused = effects.iter().any(|effect| matches!(effect, Effect::Deny(_)));
                self.refused += u64::from(refused);
            }
            Event::Leave { outcome, .. } if !effects.contains(&Effect::Unknown) => {
                self.left += 1;
                // An ignored outcome is no latency sample.
                let sampled = u32::from(outcome != Outcome::Ignored);
                self.samples = self.samples.saturating_add(sampled);
            }
            _ => {}
        }
        self.peak = self.peak.max(in_flight);
    }

    /// Records a new share. Earlier samples concern the previous share.
    pub(super) const fn allowed(&mut self, share: Share) {
        (self.allowed, self.peak, self.samples) = (share, 0, 0);
    }

    /// Returns the permits that this replica could use. In a window below a quarter of
    /// a heartbeat, the larger of the last reported value and the current requests.
    pub(super) fn wanted(
        &self,
        now: Nanos,
        in_flight: u32,
        waiting: usize,
        terms: &Terms,
    ) -> Share {
        let here = Share(u64::from(in_flight).saturating_add(u64::try_from(waiting).unwrap_or(0)));
        if now.since(self.since).0 < terms.heartbeat.0 / 4 {
            return self.wanted.max(here);
        }
        let window = now.since(self.since);
        let passed = now.since(self.seen);
        let in_flight = self.in_flight + area(passed, u64::from(in_flight));
        let waiting = self.waiting + area(passed, u64::try_from(waiting).unwrap_or(0));
        wanted(&split::Usage {
            window,
            mean: Level(mean(in_flight.saturating_add(waiting), window)),
            arrived: self.arrived,
            refused: self.refused,
            lasted: self.lasted(in_flight),
        })
    }

    /// Returns the factor by which the fleet-wide limit should
    /// change, from the algorithm's `estimate` for this replica.
    pub(super) fn vote(&self, estimate: Level) -> Option<Ratio> {
        let (peak, samples) = (Share(self.peak.into()), self.samples);
        vote(&Inference { estimate, allowed: self.allowed, peak, samples })
    }

    /// Starts a new window after a report, unless the current one is shorter than half a heartbeat.
    pub(super) fn spoke(&mut self, now: Nanos, terms: &Terms) {
        if now.since(self.since).0 < terms.heartbeat.0 / 2 {
            return;
        }
        self.wanted = self.wanted(now, 0, 0, terms);
        self.lasted = self.lasted(self.in_flight);
        (self.since, self.in_flight, self.waiting) = (now, 0, 0);
        (self.arrived, self.refused, self.left) = (0, 0, 0);
    }

    /// Returns the mean duration of ended requests by Little's law: the total
    /// time in flight / ended requests. The previous value if none ended.
    fn lasted(&self, in_flight: u128) -> Option<Nanos> {
        let lasted = in_flight.checked_div(u128::from(self.left));
        lasted.and_then(|lasted| u64::try_from(lasted).ok()).map(Nanos).or(self.lasted)
    }
}

/// Requests × nanoseconds. One multiplication instruction, because both factors have 64 bits.
fn area(passed: Nanos, many: u64) -> u128 {
    u128::from(passed.0) * u128::from(many)
}

/// Returns the mean in units of 1/1,024.
fn mean(area: u128, window: Nanos) -> u64 {
    let mean = area.saturating_mul(FINE.into()).checked_div(u128::from(window.0)).unwrap_or(0);
    u64::try_from(mean).unwrap_or(u64::MAX)
}
