//! The capacity, slowdown and certainty that one window of latency samples shows.

use super::super::fixed_point::{FixedPoint, Fraction};
use super::thresholds::Thresholds;
use crate::units::Nanos;

/// The number of standard errors to add to the slowdown before a window counts as without a queue.
const CALM_ERRORS: u64 = 3;
/// The number of requests in flight beyond the capacity that make an overload; fewer are noise.
const MIN_EXCESS: Fraction = Fraction::percent(150);

pub(super) struct WindowMeasurement {
    pub(super) in_flight: FixedPoint,
    pub(super) rtt: Nanos,
    /// The standard error of `rtt`, in millionths of `rtt`.
    pub(super) error: u64,
    /// Set if latencies vary by more than a fifth.
    pub(super) is_wide: bool,
    /// Latency divided by the min RTT, in millionths.
    pub(super) slowdown: u64,
    pub(super) capacity: FixedPoint,
}

impl WindowMeasurement {
    /// Returns `true` if the window shows no queue, beyond doubt.
    pub(super) fn is_calm(&self, thresholds: &Thresholds) -> bool {
        let upper_bound = 1_000_000_u64.saturating_add(self.error.saturating_mul(CALM_ERRORS));
        Fraction { numerator: upper_bound, denominator: 1_000_000 }.of(self.slowdown)
            < thresholds.no_queue
    }

    pub(super) fn is_overload(&self, thresholds: &Thresholds, margin: Fraction) -> bool {
        let lower_bound = 1_000_000_u64.saturating_sub(self.error.saturating_mul(2));
        let beyond_doubt =
            Fraction { numerator: lower_bound, denominator: 1_000_000 }.of(self.slowdown);
        let excess = FixedPoint::from_whole(1).times(MIN_EXCESS);
        margin.of(thresholds.overload) < beyond_doubt
            && self.capacity.plus(excess) <= self.in_flight
    }
}
