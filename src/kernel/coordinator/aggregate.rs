//! What the members infer, folded into one ceiling.
//!
//! Each infers from its own requests, so it can only say by which factor what it was allowed is
//! too small or too large; the fleet's ceiling moves by the lower median of those. Never by a sum:
//! each sees the same backend.
//!
//! | formula, allowed 8, estimate 10, ceiling 40 | worked row |
//! |---|---|
//! | r = ⌊estimate·2^16 / allowed⌋, at most 2 | 10·65,536 / 8 = 81,920, that is 1.25 |
//! | new = ⌊ceiling·r / 2^16⌋ within min and max | 40·1.25 = 50 |
//!
//! ```
//! use sluicegate::kernel::coordinator::aggregate::{self, Inference, Level};
//! use sluicegate::kernel::units::Share;
//!
//! let inference = Inference {
//!     estimate: Level::of(Share(10)), allowed: Share(8), peak: Share(8), samples: 100,
//! };
//! let ratio = aggregate::vote(&inference).unwrap();
//! let (min, max) = (Share(1), Share(1_000));
//! assert_eq!(Level::of(Share(40)).scaled(ratio, min, max).whole(), Share(50));
//! ```
//!
//! Guarantees: a member without a sample moves nothing; N members that see what one would see move
//! the ceiling as one would.
//! Leaves out: how an estimate is made; that is the policy's.

use std::num::NonZeroU64;

use crate::kernel::units::Share;

/// Levels per permit: a ceiling of 4 that should grow by a twentieth must not stay 4 for ever.
pub const FINE: u64 = 1 << 10;

/// Samples without which an estimate says nothing.
pub const FRESH: u32 = 8;

/// A ceiling with its fraction, in 1,024ths of a permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(pub u64);

impl Level {
    /// A whole ceiling; saturates beyond what a ceiling can be.
    #[must_use]
    pub const fn of(share: Share) -> Self {
        Self(share.0.saturating_mul(FINE))
    }

    /// The permits in it, rounded down: a fraction of a permit admits nobody.
    #[must_use]
    pub const fn whole(self) -> Share {
        Share(self.0 / FINE)
    }

    /// The permits in it, rounded up.
    #[must_use]
    pub const fn up(self) -> Share {
        Share(self.0.div_ceil(FINE))
    }

    /// This level times `ratio`, at most doubled, between `min` and `max`.
    #[must_use]
    pub fn scaled(self, ratio: Ratio, min: Share, max: Share) -> Self {
        let ratio = u64::from(ratio.min(Ratio::TWICE).0);
        Self(self.0.saturating_mul(ratio) / (1 << 16)).within(min, max)
    }

    /// The nearest level between `min` and `max`.
    #[must_use]
    pub fn within(self, min: Share, max: Share) -> Self {
        // Not `clamp`, which panics where min is above max.
        self.min(Self::of(max)).max(Self::of(min))
    }
}

/// A factor in 65,536ths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ratio(pub u32);

impl Ratio {
    /// No change.
    pub const ONE: Self = Self(1 << 16);
    /// The most that a ceiling grows at once.
    pub const TWICE: Self = Self(1 << 17);
}

/// What a member inferred since its share last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Inference {
    /// The requests in flight it believes best for itself.
    pub estimate: Level,
    /// The share it was allowed meanwhile.
    pub allowed: Share,
    /// The most of it that was in use at once.
    pub peak: Share,
    /// From how many requests.
    pub samples: u32,
}

/// The factor a member votes for; none without enough samples or without a share.
///
/// One that used less than half of its share cannot know that more would be good, so it votes for
/// no growth. That less would be better, it can see at any use.
#[must_use]
pub fn vote(inference: &Inference) -> Option<Ratio> {
    let allowed = NonZeroU64::new(inference.allowed.0).filter(|_| FRESH <= inference.samples)?;
    let scaled = u128::from(inference.estimate.0).saturating_mul(u128::from(Ratio::ONE.0));
    let whole = u128::from(Level::of(Share(allowed.get())).0);
    let ratio = scaled.checked_div(whole).and_then(|r| u32::try_from(r).ok());
    let used = inference.allowed <= inference.peak.plus(inference.peak);
    let most = if used { Ratio::TWICE } else { Ratio::ONE };
    Some(ratio.map_or(most, Ratio).min(most))
}

/// How many votes become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Aggregate {
    /// The lower median: half the fleet must agree before the ceiling grows.
    #[default]
    Median,
    /// The least: any one member holds the ceiling down.
    Min,
}

impl Aggregate {
    /// The vote that counts; none where nobody voted. Cost: O(n log n), in place.
    #[must_use]
    pub fn fold(self, votes: &mut [Ratio]) -> Option<Ratio> {
        votes.sort_unstable();
        match self {
            Self::Median => votes.get(votes.len().saturating_sub(1) / 2),
            Self::Min => votes.first(),
        }
        .copied()
    }
}
