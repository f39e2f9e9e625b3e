//! A ceiling between two whole numbers, in 1/65,536.
//!
//! Guarantees: products are taken in 128 bits and cut at the largest level, never wrapped; rounding
//! is downward. Floats would have done, but not bit by bit the same everywhere.
//! Leaves out: bounds, which are the policy's.

use crate::kernel::coordinator::aggregate;
use crate::kernel::units::Nanos;

/// One, in fixed point.
const ONE: u64 = 1 << 16;

/// A ceiling in 1/65,536 of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Level(u64);

/// `times` / `per`.
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

    /// `value` times this, rounded down; the largest number where that is infinite.
    pub(super) fn of(self, value: u64) -> u64 {
        let product = u128::from(value).saturating_mul(u128::from(self.times));
        let scaled = product.checked_div(u128::from(self.per)).unwrap_or(u128::MAX);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    /// This ratio, but no smaller than `low` and no larger than `high`.
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
    /// This, moved to `goal` by `part` of the way.
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

    /// As a fleet's ceilings have it, rounded down.
    pub(super) const fn fine(self) -> aggregate::Level {
        aggregate::Level(self.0 / (ONE / aggregate::FINE))
    }

    /// Without the fraction: what is in force.
    pub(super) fn floored(self) -> Self {
        Self::whole(self.floor())
    }

    /// How far apart two levels are, in millionths of the larger.
    pub(super) fn apart(self, other: Self) -> u64 {
        let apart = self.0.abs_diff(other.0);
        Ratio { times: 1_000_000, per: self.max(other).0.max(1) }.of(apart)
    }

    pub(super) fn times(self, ratio: Ratio) -> Self {
        Self(ratio.of(self.0))
    }

    /// `each`, this many times.
    pub(super) fn of(self, each: Nanos) -> Nanos {
        Nanos(Ratio { times: self.0, per: ONE }.of(each.0))
    }

    pub(super) const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// √self: in fixed point the root of a level is the root of its bits times √65,536 = 256.
    pub(super) const fn sqrt(self) -> Self {
        Self(self.0.saturating_mul(ONE).isqrt())
    }

    pub(super) fn within(self, min: u32, max: u32) -> Self {
        self.max(Self::whole(min)).min(Self::whole(max))
    }
}
