//! The combination of the replicas' votes into the new value of a fleet-wide concurrency limit.
//!
//! Each replica observes only its own requests, but all observe the same backend. So each estimates
//! the whole limit, and votes for the factor by which the limit should change. The limit changes by
//! the lower median of these factors, which are never added.
//!
//! | formula for estimate 50, limit 40 | worked row |
//! |---|---|
//! | vote r = ⌊estimate·2^16 / limit⌋, at most 2·2^16 | 50·65,536 / 40 = 81,920, the factor 1.25 |
//! | new limit = ⌊limit·r / 2^16⌋, between min and max | 40·1.25 = 50 |
//!
//! ```
//! use sluicegate_kernel::coordinator::aggregate::{self, FractionalLimit, LimitInference};
//! use sluicegate_kernel::units::Share;
//!
//! let estimate = FractionalLimit::from_share(Share(50));
//! let (limit, allowed, peak) = (Share(40), Share(8), Share(8));
//! let inference = LimitInference { estimate, limit, allowed, peak, samples: 100 };
//! let factor = aggregate::vote(&inference).unwrap();
//! let (min, max) = (Share(1), Share(1_000));
//! let limit = FractionalLimit::from_share(Share(40)).scaled(factor, min, max);
//! assert_eq!(limit.round_down(), Share(50));
//! ```
//!
//! Guarantees:
//! - A replica with fewer than [`MIN_SAMPLES`] samples has no vote.
//! - N replicas with equal observations change the limit as one replica would.
//!
//! Not covered:
//! - The estimate on which a replica bases its vote; see [`crate::concurrency::adaptive`].

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::units::Share;

/// The number of [`FractionalLimit`] units in one permit, so that a limit of 4 can grow by a
/// twentieth.
pub const LEVELS_PER_PERMIT: u64 = 1 << 10;

/// The smallest number of finished requests that a vote needs.
pub const MIN_SAMPLES: u32 = 8;

/// A concurrency limit with its fraction, in 1,024ths of a permit.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct FractionalLimit(pub u64);

impl FractionalLimit {
    /// Converts a whole number of permits; saturates far above the largest limit.
    #[must_use]
    pub const fn from_share(share: Share) -> Self {
        Self(share.0.saturating_mul(LEVELS_PER_PERMIT))
    }

    /// The limit in permits, rounded down, because a fraction of a permit admits no request.
    #[must_use]
    pub const fn round_down(self) -> Share {
        Share(self.0 / LEVELS_PER_PERMIT)
    }

    /// The limit in permits, rounded up.
    #[must_use]
    pub const fn round_up(self) -> Share {
        Share(self.0.div_ceil(LEVELS_PER_PERMIT))
    }

    /// This limit times `ratio` (at most 2), then bounded by `min` and `max`.
    #[must_use]
    pub fn scaled(self, ratio: LimitFactor, min: Share, max: Share) -> Self {
        let ratio = u64::from(ratio.min(LimitFactor::TWICE).0);
        Self(self.0.saturating_mul(ratio) / (1 << 16)).within(min, max)
    }

    /// This limit, raised to `min` or lowered to `max` if it is outside of these bounds.
    #[must_use]
    pub fn within(self, min: Share, max: Share) -> Self {
        // `clamp` would panic if `min` exceeds `max`.
        self.min(Self::from_share(max)).max(Self::from_share(min))
    }
}

/// A factor by which a limit changes, in 65,536ths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LimitFactor(pub u32);

impl LimitFactor {
    /// The factor 1: no change.
    pub const ONE: Self = Self(1 << 16);
    /// The factor 2: the largest growth in one vote count.
    pub const TWICE: Self = Self(1 << 17);
}

/// A replica's observations since its share last changed, from which it computes its vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimitInference {
    /// The whole limit that this replica's algorithm infers.
    pub estimate: FractionalLimit,
    /// The fleet's limit from which the estimate started.
    pub limit: Share,
    /// This replica's share during the observation, in permits.
    pub allowed: Share,
    /// The largest number of permits that this replica used at once.
    pub peak: Share,
    /// The number of requests that finished during the observation.
    pub samples: u32,
}

/// The factor that a replica votes for; `None` with fewer than [`MIN_SAMPLES`] samples, a zero share
/// or a zero limit.
///
/// A replica that used less than half of its share has no evidence for growth, so its vote is at
/// most 1. It can vote for a decrease at any use.
#[must_use]
pub fn vote(inference: &LimitInference) -> Option<LimitFactor> {
    if inference.allowed == Share(0) || inference.samples < MIN_SAMPLES {
        return None;
    }
    let limit = NonZeroU64::new(FractionalLimit::from_share(inference.limit).0)?;
    let scaled = u128::from(inference.estimate.0).saturating_mul(u128::from(LimitFactor::ONE.0));
    let ratio = scaled.checked_div(u128::from(limit.get())).and_then(|r| u32::try_from(r).ok());
    let is_share_used = inference.allowed <= inference.peak.plus(inference.peak);
    let max_factor = if is_share_used { LimitFactor::TWICE } else { LimitFactor::ONE };
    Some(ratio.map_or(max_factor, LimitFactor).min(max_factor))
}

/// The rule that combines the replicas' votes into one factor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VoteAggregate {
    /// The lower median: the limit grows only if more than half of the votes are for growth.
    #[default]
    Median,
    /// The smallest vote: each replica can keep the limit low.
    Min,
}

impl VoteAggregate {
    /// The combined factor; `None` without votes. Sorts `votes` in place. Cost: O(n log n).
    #[must_use]
    pub fn combine(self, votes: &mut [LimitFactor]) -> Option<LimitFactor> {
        votes.sort_unstable();
        match self {
            Self::Median => votes.get(votes.len().saturating_sub(1) / 2),
            Self::Min => votes.first(),
        }
        .copied()
    }
}
