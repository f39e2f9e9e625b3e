//! Fixed-point numbers of requests, in units of 1/65,536.
//!
//! Guarantees:
//! - Products use 128 bits, round down, and saturate at the largest level.
//! - Results are identical on every platform, which floats do not guarantee.
//!
//! Not covered:
//! - The bounds of a limit.

use crate::kernel::coordinator::aggregate;
use crate::kernel::units::Nanos;

const ONE: u64 = 1 << 16;

/// A number of requests in units of 1/65,536.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Level(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ratio {
    pub(super) times: u64,
    pub(super) per: u64,
}

impl Ratio {
    pub(super) const fn percent(times: u64) -> Self {
        Self { times, per: 100 }
    }

    pub(super) const fn inverse(self) -> Self {
        Self { times: self.per, per: self.times }
    }

    /// The fraction of `value`, rounded down; saturates for a zero denominator.
    pub(super) fn of(self, value: u64) -> u64 {
        let product = u128::from(value).saturating_mul(u128::from(self.times));
        let scaled = product.checked_div(u128::from(self.per)).unwrap_or(u128::MAX);
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
        let ours = u128::from(self.times).saturating_mul(u128::from(other.per));
        ours < u128::from(other.times).saturating_mul(u128::from(self.per))
    }
}

impl Nanos {
    /// Moves this value towards `goal` by `part` of the difference.
    pub(super) fn toward(self, goal: Self, part: Ratio) -> Self {
        let way = part.of(self.0.abs_diff(goal.0));
        if self < goal { self.plus(Self(way)) } else { self.since(Self(way)) }
    }
}

impl Level {
    pub(super) fn whole(limit: u32) -> Self {
        Self(u64::from(limit).saturating_mul(ONE))
    }

    pub(super) fn floor(self) -> u32 {
        u32::try_from(self.0 / ONE).unwrap_or(u32::MAX)
    }

    /// This level in the unit of the fleet's vote, rounded down.
    pub(super) const fn fine(self) -> aggregate::Level {
        aggregate::Level(self.0 / (ONE / aggregate::FINE))
    }

    /// This level without its fraction, as it is enforced.
    pub(super) fn floored(self) -> Self {
        Self::whole(self.floor())
    }

    /// The difference between two levels, in millionths of the larger one.
    pub(super) fn apart(self, other: Self) -> u64 {
        let apart = self.0.abs_diff(other.0);
        Ratio { times: 1_000_000, per: self.max(other).0.max(1) }.of(apart)
    }

    pub(super) fn times(self, ratio: Ratio) -> Self {
        Self(ratio.of(self.0))
    }

    pub(super) fn of(self, each: Nanos) -> Nanos {
        Nanos(Ratio { times: self.0, per: ONE }.of(each.0))
    }

    pub(super) const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The square root. In fixed point it is the root of the bits times √65,536 = 256.
    pub(super) const fn sqrt(self) -> Self {
        Self(self.0.saturating_mul(ONE).isqrt())
    }

    pub(super) fn within(self, min: u32, max: u32) -> Self {
        self.max(Self::whole(min)).min(Self::whole(max))
    }
}
