//! The combination of the replicas' votes into one limit.
//!
//! Each replica judges its own requests, so it can vote only for a
//! factor of its share. The limit changes by the lower median of these
//! factors. A sum would be wrong: all replicas observe the same backend.
//!
//! | formula, allowed 8, estimate 10, limit 40 | worked row |
//! |---|---|
//! | r = ⌊estimate·2^16 / allowed⌋, at most 2 | 10·65,536 / 8 = 81,920, that is 1.25 |
//! | new = ⌊limit·r / 2^16⌋ within min and max | 40·1.25 = 50 |
//!
//! ```
//! use sluicegate_kernel::coordinator::aggregate::{self, FractionalLimit, LimitInference};
//! use sluicegate_kernel::units::Share;
//!
//! let estimate = FractionalLimit::from_share(Share(10));
//! let inference =
//!     LimitInference { estimate, allowed: Share(8), peak: Share(8), samples: 100 };
//! let factor = aggregate::vote(&inference).unwrap();
//! let (min, max) = (Share(1), Share(1_000));
//! let limit = FractionalLimit::from_share(Share(40)).scaled(factor, min, max);
//! assert_eq!(limit.round_down(), Share(50));
//! ```
//!
//! Guarantees:
//! - A replica without samples has no influence.
//! - N replicas with equal observations change the limit as one would.
//!
//! Not covered:
//! - The estimate of a replica, which its adaptive limit makes.

use std::num::NonZeroU64;

use crate::units::Share;

/// The levels per permit, so that a limit of 4 can grow by a twentieth.
pub const LEVELS_PER_PERMIT: u64 = 1 << 10;

/// The samples that an estimate needs.
pub const MIN_SAMPLES: u32 = 8;

/// A limit with its fraction, in 1,024ths of a permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FractionalLimit(pub u64);

impl FractionalLimit {
    /// A whole limit; saturates far above the largest limit.
    #[must_use]
    pub const fn from_share(share: Share) -> Self {
        Self(share.0.saturating_mul(LEVELS_PER_PERMIT))
    }

    /// The permits, rounded down: a fraction of a permit admits nothing.
    #[must_use]
    pub const fn round_down(self) -> Share {
        Share(self.0 / LEVELS_PER_PERMIT)
    }

    /// The permits, rounded up.
    #[must_use]
    pub const fn round_up(self) -> Share {
        Share(self.0.div_ceil(LEVELS_PER_PERMIT))
    }

    /// This level times `ratio`, at most doubled, between `min` and `max`.
    #[must_use]
    pub fn scaled(self, ratio: LimitFactor, min: Share, max: Share) -> Self {
        let ratio = u64::from(ratio.min(LimitFactor::TWICE).0);
        Self(self.0.saturating_mul(ratio) / (1 << 16)).within(min, max)
    }

    /// The nearest level between `min` and `max`.
    #[must_use]
    pub fn within(self, min: Share, max: Share) -> Self {
        // `clamp` would panic if `min` exceeds `max`.
        self.min(Self::from_share(max)).max(Self::from_share(min))
    }
}

/// A factor in 65,536ths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitFactor(pub u32);

impl LimitFactor {
    /// No change.
    pub const ONE: Self = Self(1 << 16);
    /// The largest growth in one step.
    pub const TWICE: Self = Self(1 << 17);
}

/// The observations of a replica since its share last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimitInference {
    /// The best number of requests in flight for this replica.
    pub estimate: FractionalLimit,
    /// The share during the observation.
    pub allowed: Share,
    /// The largest number of permits in use at once.
    pub peak: Share,
    /// The number of finished requests.
    pub samples: u32,
}

/// The factor that a replica votes for; `None` without enough samples or without a share.
///
/// A replica that used less than half of its share cannot vote for
/// growth: it has no evidence. It can vote for a decrease at any use.
#[must_use]
pub fn vote(inference: &LimitInference) -> Option<LimitFactor> {
    let allowed =
        NonZeroU64::new(inference.allowed.0).filter(|_| MIN_SAMPLES <= inference.samples)?;
    let scaled = u128::from(inference.estimate.0).saturating_mul(u128::from(LimitFactor::ONE.0));
    let whole = u128::from(FractionalLimit::from_share(Share(allowed.get())).0);
    let ratio = scaled.checked_div(whole).and_then(|r| u32::try_from(r).ok());
    let used = inference.allowed <= inference.peak.plus(inference.peak);
    let most = if used { LimitFactor::TWICE } else { LimitFactor::ONE };
    Some(ratio.map_or(most, LimitFactor).min(most))
}

/// The rule that combines the votes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VoteAggregate {
    /// The lower median: half of the fleet must agree before the limit grows.
    #[default]
    Median,
    /// The least: each replica can keep the limit low.
    Min,
}

impl VoteAggregate {
    /// The combined vote; `None` without votes. Cost: O(n log n), in place.
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
