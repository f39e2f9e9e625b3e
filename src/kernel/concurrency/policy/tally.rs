//! Sums of latencies, with their mean and its standard error.
//!
//! Guarantees:
//! - All results are integers; sums saturate.
//!
//! Not covered:
//! - The number of samples that an algorithm needs.

use super::level::{Level, Ratio};
use crate::kernel::units::Nanos;

/// The assumed error of a mean of one sample, in millionths; one sample shows no spread.
const ONE_SAMPLE: u64 = 250_000;

/// The spread, in millionths of the mean, above which latencies count as wide.
pub(super) const WIDE: u64 = 200_000;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Tally {
    count: u64,
    in_flight: u64,
    latency: u64,
    squares: u128,
}

impl Tally {
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

    /// The mean latency, at least 1 ns, so that a ratio to it stays finite.
    pub(super) fn mean(&self) -> Nanos {
        Nanos(self.latency.checked_div(self.count).unwrap_or(0).max(1))
    }

    pub(super) fn in_flight(&self) -> Level {
        Level::whole(1).times(Ratio { times: self.in_flight, per: self.count.max(1) })
    }

    /// The standard deviation of one sample, in millionths of the mean.
    pub(super) fn spread(&self) -> u64 {
        self.relative(self.variance())
    }

    /// Returns `true` if latencies vary so much that the mean of finished requests is biased low.
    ///
    /// The fast requests return first.
    pub(super) fn is_wide(&self) -> bool {
        WIDE < self.spread()
    }

    /// The standard error of the mean, in millionths of the mean.
    pub(super) fn error(&self) -> u64 {
        self.relative(self.variance().checked_div(u128::from(self.count)).unwrap_or(0))
    }

    /// The standard error with a lower bound for few samples, which may agree by chance.
    pub(super) fn cautious_error(&self) -> u64 {
        self.error().max(ONE_SAMPLE.checked_div(self.count).unwrap_or(ONE_SAMPLE))
    }

    /// The standard error if single latencies are known to vary by `spread`.
    pub(super) fn error_of(&self, spread: u64) -> u64 {
        let square = u128::from(spread).saturating_mul(u128::from(spread));
        let shared = square.checked_div(u128::from(self.count)).unwrap_or(square).isqrt();
        self.cautious_error().max(u64::try_from(shared).unwrap_or(u64::MAX))
    }

    /// Returns `true` if both can have the same mean. An empty tally agrees with every other.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        if self.count == 0 || other.count == 0 {
            return true;
        }
        let doubt = |tally: &Self| {
            Ratio { times: tally.cautious_error().saturating_mul(2), per: 1_000_000 }
                .of(tally.mean().0)
        };
        self.mean().0.abs_diff(other.mean().0) <= doubt(self).saturating_add(doubt(other))
    }

    pub(super) fn join(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
        self.latency = self.latency.saturating_add(other.latency);
        self.squares = self.squares.saturating_add(other.squares);
    }

    /// Halves the weight of these samples.
    pub(super) const fn halve(&mut self) {
        (self.count, self.in_flight) = (self.count / 2, self.in_flight / 2);
        (self.latency, self.squares) = (self.latency / 2, self.squares / 2);
    }

    fn variance(&self) -> u128 {
        let mean = u128::from(self.mean().0);
        let square = self.squares.checked_div(u128::from(self.count)).unwrap_or(0);
        square.saturating_sub(mean.saturating_mul(mean))
    }

    fn relative(&self, square: u128) -> u64 {
        let root = u64::try_from(square.isqrt()).unwrap_or(u64::MAX);
        Ratio { times: 1_000_000, per: self.mean().0 }.of(root)
    }
}
