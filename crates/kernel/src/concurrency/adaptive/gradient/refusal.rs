//! The fall of the limit after a dropped request.
//!
//! A backend that refuses requests above its capacity has no queue, so only refusals show its
//! capacity.
//!
//! | event | limit, with a request refused at 41 in flight |
//! |---|---|
//! | the refusal | 40 were served; minus 4 requests or 15 %, the smaller of the two: 36 |
//! | windows without a queue, up to 90 % of 40 | grows as without a refusal |
//! | the window that ends n successes later | grows by at most the fraction n / 500 |
//!
//! If the capacity fluctuates, about 3 % of the requests are refused. A backend that fails 1 % of
//! its requests keeps its limit, if the limit is in use.
//!
//! Guarantees:
//! - An overload counts once: refusals of requests admitted before the fall change nothing.
//!
//! Not covered:
//! - Failures with less than half of the limit in flight: only a window with more than a tenth of
//!   them lowers the limit.

use super::super::fixed_point::{FixedPoint, Fraction};
use super::super::sample::LatencySample;
use crate::units::Nanos;

/// The largest fall below the served requests after one refusal, in requests.
const MAX_FALL: u32 = 4;
/// The smallest limit after one refusal, as a part of the served requests.
const MIN_REST: Fraction = Fraction::percent(85);
/// The part of the served requests up to which the limit grows as without a refusal.
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
