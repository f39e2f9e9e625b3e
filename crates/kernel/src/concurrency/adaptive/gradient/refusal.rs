//! The last dropped request: a backend that refuses requests above its capacity shows no queue.
//!
//! | event | limit, with a request refused at 41 in flight |
//! |---|---|
//! | the refusal | 40, less 4 requests or 15 %: 36 |
//! | windows without a queue, up to 90 % of 40 | grows as without a refusal |
//! | the window that ends n successes later | grows by at most n / 500 |
//!
//! So about 3 % of the requests are refused at a wandering capacity. A backend that fails 1 % of
//! its requests at any load keeps its limit.
//!
//! Guarantees:
//! - A refusal counts once: requests admitted before the limit fell show the same overload.

use super::super::fixed_point::{FixedPoint, Fraction};
use super::super::sample::LatencySample;
use crate::units::Nanos;

/// The most requests by which one refusal lowers the limit, and the largest part of the limit.
const MAX_FALL: u32 = 4;
const MIN_REST: Fraction = Fraction::percent(85);
/// The part of the refused level up to which growth is free.
const FREE_GROWTH: Fraction = Fraction::percent(90);
/// The number of successes after which the limit may double.
const RECOVERY: u64 = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Refusal {
    /// The requests in flight that the backend served at the refusal.
    level: FixedPoint,
    at: Nanos,
    successes: u64,
}

impl Refusal {
    pub(super) fn new(sample: &LatencySample, limit: FixedPoint, in_flight: FixedPoint) -> Self {
        let level = limit.min(in_flight.minus(FixedPoint::from_whole(1)));
        Self { level, at: sample.ended_at, successes: 0 }
    }

    pub(super) const fn record_success(&mut self) {
        self.successes = self.successes.saturating_add(1);
    }

    /// Returns `true` if the request was admitted before this refusal lowered the limit.
    pub(super) fn covers(&self, sample: &LatencySample) -> bool {
        sample.ended_at.since(sample.rtt) < self.at
    }

    pub(super) fn lowered_limit(&self) -> FixedPoint {
        self.level.minus(FixedPoint::from_whole(MAX_FALL)).max(self.level.times(MIN_REST))
    }

    /// Bounds the growth from `limit` to `next`.
    pub(super) fn bound(&self, limit: FixedPoint, next: FixedPoint) -> FixedPoint {
        let numerator = self.successes.saturating_add(RECOVERY);
        let slow = limit.times(Fraction { numerator, denominator: RECOVERY });
        next.min(slow.max(self.level.times(FREE_GROWTH)))
    }
}
