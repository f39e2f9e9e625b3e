//! Sums of latency samples, with their mean and its standard error.

use super::fixed_point::{FixedPoint, Fraction};
use crate::units::Nanos;

/// The assumed error of the mean of a single sample, in millionths: one sample shows no spread.
const SINGLE_SAMPLE_ERROR: u64 = 250_000;

/// The standard deviation, in millionths of the mean, above which latencies vary widely.
pub(super) const WIDE_SPREAD: u64 = 200_000;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct LatencyStats {
    count: u64,
    in_flight: u64,
    latency: u64,
    squares: u128,
}

impl LatencyStats {
    pub(super) fn push(&mut self, in_flight: u32, rtt: Nanos) {
        self.count = self.count.saturating_add(1);
        self.in_flight = self.in_flight.saturating_add(u64::from(in_flight));
        self.latency = self.latency.saturating_add(rtt.0);
        let square = u128::from(rtt.0).saturating_mul(u128::from(rtt.0));
        self.squares = self.squares.saturating_add(square);
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// The mean latency, at least 1 ns, so that dividing by it is possible.
    pub(super) fn mean(&self) -> Nanos {
        Nanos(self.latency.checked_div(self.count).unwrap_or(0).max(1))
    }

    pub(super) fn in_flight(&self) -> FixedPoint {
        FixedPoint::from_whole(1)
            .times(Fraction { numerator: self.in_flight, denominator: self.count.max(1) })
    }

    /// The standard deviation of latencies, in millionths of the mean.
    pub(super) fn spread(&self) -> u64 {
        self.relative_to_mean(self.variance())
    }

    /// Returns `true` if latencies vary so much that the mean of finished requests is too low,
    /// because fast requests end first.
    pub(super) fn is_wide(&self) -> bool {
        WIDE_SPREAD < self.spread()
    }

    /// The standard error of the mean, in millionths of the mean.
    pub(super) fn standard_error(&self) -> u64 {
        self.relative_to_mean(self.variance().checked_div(u128::from(self.count)).unwrap_or(0))
    }

    /// The standard error with a lower bound, because a few samples may agree by chance.
    pub(super) fn cautious_error(&self) -> u64 {
        self.standard_error()
            .max(SINGLE_SAMPLE_ERROR.checked_div(self.count).unwrap_or(SINGLE_SAMPLE_ERROR))
    }

    /// The standard error, if single latencies are already known to vary by `spread` millionths.
    pub(super) fn error_with_spread(&self, spread: u64) -> u64 {
        let square = u128::from(spread).saturating_mul(u128::from(spread));
        let error = square.checked_div(u128::from(self.count)).unwrap_or(square).isqrt();
        self.cautious_error().max(u64::try_from(error).unwrap_or(u64::MAX))
    }

    /// Returns `true` if both sets of samples can have the same mean, or if one set is empty.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        if self.count == 0 || other.count == 0 {
            return true;
        }
        let doubt = |stats: &Self| {
            Fraction { numerator: stats.cautious_error().saturating_mul(2), denominator: 1_000_000 }
                .of(stats.mean().0)
        };
        self.mean().0.abs_diff(other.mean().0) <= doubt(self).saturating_add(doubt(other))
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
        self.latency = self.latency.saturating_add(other.latency);
        self.squares = self.squares.saturating_add(other.squares);
    }

    pub(super) const fn halve(&mut self) {
        (self.count, self.in_flight) = (self.count / 2, self.in_flight / 2);
        (self.latency, self.squares) = (self.latency / 2, self.squares / 2);
    }

    fn variance(&self) -> u128 {
        let mean = u128::from(self.mean().0);
        let square = self.squares.checked_div(u128::from(self.count)).unwrap_or(0);
        square.saturating_sub(mean.saturating_mul(mean))
    }

    fn relative_to_mean(&self, square: u128) -> u64 {
        let root = u64::try_from(square.isqrt()).unwrap_or(u64::MAX);
        Fraction { numerator: 1_000_000, denominator: self.mean().0 }.of(root)
    }
}
