//! Fixed-point numbers of requests, in units of 1/65,536.
//!
//! Guarantees:
//! - Products use 128 bits, round down, and saturate at the largest number.
//! - Results are identical on every platform, which floats do not guarantee.

use crate::coordinator::aggregate;
use crate::units::Nanos;

const ONE: u64 = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FixedPoint(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fraction {
    pub(super) numerator: u64,
    pub(super) denominator: u64,
}

impl Fraction {
    pub(super) const fn percent(numerator: u64) -> Self {
        Self { numerator, denominator: 100 }
    }

    pub(super) const fn inverse(self) -> Self {
        Self { numerator: self.denominator, denominator: self.numerator }
    }

    /// This fraction of `value`, rounded down; saturates for a zero denominator.
    pub(super) fn of(self, value: u64) -> u64 {
        let product = u128::from(value).saturating_mul(u128::from(self.numerator));
        let scaled = product.checked_div(u128::from(self.denominator)).unwrap_or(u128::MAX);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    pub(super) fn within(self, low: Self, high: Self) -> Self {
        if self.is_below(low) {
            low
        } else if high.is_below(self) {
            high
        } else {
            self
        }
    }

    pub(super) fn is_below(self, other: Self) -> bool {
        let left_product = u128::from(self.numerator).saturating_mul(u128::from(other.denominator));
        left_product < u128::from(other.numerator).saturating_mul(u128::from(self.denominator))
    }
}

impl Nanos {
    /// Moves this duration towards `goal` by the fraction `part` of the difference.
    pub(super) fn toward(self, goal: Self, part: Fraction) -> Self {
        let distance = part.of(self.0.abs_diff(goal.0));
        if self < goal { self.plus(Self(distance)) } else { self.since(Self(distance)) }
    }
}

impl FixedPoint {
    pub(super) const ZERO: Self = Self(0);

    pub(super) fn from_whole(limit: u32) -> Self {
        Self(u64::from(limit).saturating_mul(ONE))
    }

    pub(super) fn floor(self) -> u32 {
        u32::try_from(self.0 / ONE).unwrap_or(u32::MAX)
    }

    /// Converts this number to the unit of fleet-wide limits and votes, rounded down.
    pub(super) const fn to_fleet_limit(self) -> aggregate::FractionalLimit {
        aggregate::FractionalLimit(self.0 / (ONE / aggregate::LEVELS_PER_PERMIT))
    }

    /// This number without its fraction: only whole limits are enforced.
    pub(super) fn without_fraction(self) -> Self {
        Self::from_whole(self.floor())
    }

    /// This number rounded to a whole one.
    pub(super) fn rounded(self) -> Self {
        self.plus(Self(ONE / 2)).without_fraction()
    }

    /// The difference between two numbers, in millionths of the larger one.
    pub(super) fn relative_difference(self, other: Self) -> u64 {
        let difference = self.0.abs_diff(other.0);
        Fraction { numerator: 1_000_000, denominator: self.max(other).0.max(1) }.of(difference)
    }

    pub(super) fn times(self, ratio: Fraction) -> Self {
        Self(ratio.of(self.0))
    }

    pub(super) fn times_duration(self, duration: Nanos) -> Nanos {
        Nanos(Fraction { numerator: self.0, denominator: ONE }.of(duration.0))
    }

    pub(super) const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    pub(super) const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The square root. Its raw integer is the root of the raw integer times √65,536 = 256.
    pub(super) const fn sqrt(self) -> Self {
        Self(self.0.saturating_mul(ONE).isqrt())
    }

    pub(super) fn within(self, min: u32, max: u32) -> Self {
        self.max(Self::from_whole(min)).min(Self::from_whole(max))
    }
}
