//! What came to one replica at one ceiling lately: what it would use, and what it infers.
//!
//! Guarantees: a few additions at each event, in whole numbers.
//! Leaves out: what the fleet makes of it ([`crate::kernel::coordinator`]).

use crate::kernel::concurrency::Outcome;
use crate::kernel::concurrency::limiter::{Effect, Event};
use crate::kernel::coordinator::Terms;
use crate::kernel::coordinator::aggregate::{FINE, Inference, Level, Ratio, vote};
use crate::kernel::coordinator::split::{self, wanted};
use crate::kernel::units::{Nanos, Share};

/// Since the last time it was reported.
#[derive(Clone, Debug)]
pub(super) struct Usage {
    since: Nanos,
    seen: Nanos,
    /// Requests times nanoseconds: in flight, and those that waited beside.
    in_flight: u128,
    waiting: u128,
    arrived: u64,
    refused: u64,
    left: u64,
    /// As last reported.
    wanted: Share,
    lasted: Option<Nanos>,
    /// Since the share last changed.
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

    /// So many were in flight and waited until now.
    pub(super) fn pass(&mut self, now: Nanos, in_flight: u32, waiting: usize) {
        let passed = now.since(self.seen);
        self.in_flight += area(passed, u64::from(in_flight));
        if 0 < waiting {
            self.waiting += area(passed, u64::try_from(waiting).unwrap_or(0));
        }
        self.seen = self.seen.max(now);
    }

    /// This happened, with these effects, and now so many are in flight.
    pub(super) fn note(&mut self, event: Event, effects: &[Effect], in_flight: u32) {
        match event {
            Event::Arrive { .. } => {
                self.arrived += 1;
                let refused = effects.iter().any(|effect| matches!(effect, Effect::Deny(_)));
                self.refused += u64::from(refused);
            }
            Event::Leave { outcome, .. } if !effects.contains(&Effect::Unknown) => {
                self.left += 1;
                // One that is ignored tells nothing of the backend.
                let sampled = u32::from(outcome != Outcome::Ignored);
                self.samples = self.samples.saturating_add(sampled);
            }
            _ => {}
        }
        self.peak = self.peak.max(in_flight);
    }

    /// The share is another one: what was inferred was about the one before.
    pub(super) const fn allowed(&mut self, share: Share) {
        (self.allowed, self.peak, self.samples) = (share, 0, 0);
    }

    /// Permits that it would use. Too short a time says nothing: then what was reported before, or what
    /// is there now.
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

    /// How a factor for the whole ceiling follows from the policy's `estimate` for this replica.
    pub(super) fn vote(&self, estimate: Level) -> Option<Ratio> {
        let (peak, samples) = (Share(self.peak.into()), self.samples);
        vote(&Inference { estimate, allowed: self.allowed, peak, samples })
    }

    /// It was reported; a long enough time begins anew.
    pub(super) fn spoke(&mut self, now: Nanos, terms: &Terms) {
        if now.since(self.since).0 < terms.heartbeat.0 / 2 {
            return;
        }
        self.wanted = self.wanted(now, 0, 0, terms);
        self.lasted = self.lasted(self.in_flight);
        (self.since, self.in_flight, self.waiting) = (now, 0, 0);
        (self.arrived, self.refused, self.left) = (0, 0, 0);
    }

    /// How long those took that ended, by Little's law: all the time in flight, shared among them. As
    /// before where none did.
    fn lasted(&self, in_flight: u128) -> Option<Nanos> {
        let lasted = in_flight.checked_div(u128::from(self.left));
        lasted.and_then(|lasted| u64::try_from(lasted).ok()).map(Nanos).or(self.lasted)
    }
}

/// Requests times nanoseconds. Of two numbers of 64 bits it is one of the processor's multiplications.
fn area(passed: Nanos, many: u64) -> u128 {
    u128::from(passed.0) * u128::from(many)
}

/// In 1,024ths.
fn mean(area: u128, window: Nanos) -> u64 {
    let mean = area.saturating_mul(FINE.into()).checked_div(u128::from(window.0)).unwrap_or(0);
    u64::try_from(mean).unwrap_or(u64::MAX)
}
