//! The trust in predictions of demand. After a wrong prediction, ten leases follow without one.
//!
//! A lease of another size than the recent demand gives is a stake of [`STAKE`] points. Each other
//! lease earns one point, up to the same number. The stake is lost in two cases:
//! - Of a larger lease, more than half of the additional hits stay unspent.
//! - After a smaller lease, the next one is needed before the first would have expired.
//!
//! Guarantees:
//! - At most one in [`STAKE`] leases is a lost stake.
//! - The additional hits of a larger lease never count as unspent for later leases.

use crate::units::{Hits, Nanos};

/// The points for one lease of a predicted size.
pub(super) const STAKE: u8 = 10;

/// The size of the next lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasePlan {
    /// The hits to borrow.
    pub hits: Hits,
    /// The hits that recent demand alone gives.
    pub recent: Hits,
}

/// The points of one key, and its open stake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PredictionTrust {
    points: u8,
    stake: Option<Stake>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stake {
    /// A lease with `extra` more hits than recent demand gives, of which `unused` were not spent.
    Larger { extra: Hits, unused: Hits },
    /// A lease of fewer hits; the next one should not be needed earlier.
    Smaller { until: Nanos },
}

impl PredictionTrust {
    pub(super) const NONE: Self = Self { points: 0, stake: None };

    /// Returns `true` if the next lease may have a predicted size.
    pub(super) fn allows_stake(&self, now: Nanos) -> bool {
        self.settled(now).points == STAKE
    }

    /// Returns `true` if hits that are predicted may be kept.
    pub(super) const fn allows_keeping(&self) -> bool {
        self.stake.is_some() || self.points == STAKE
    }

    /// Settles the open stake, and records the next lease.
    pub(super) fn record_lease(&mut self, now: Nanos, duration: Nanos, plan: LeasePlan) {
        *self = self.settled(now);
        let LeasePlan { hits, recent } = plan;
        if hits == recent {
            self.points = self.points.saturating_add(1).min(STAKE);
            return;
        }
        self.points = 0;
        self.stake = Some(if recent < hits {
            Stake::Larger { extra: hits.less(recent), unused: Hits(0) }
        } else {
            Stake::Smaller { until: now.plus(duration) }
        });
    }

    /// Records unspent hits. Returns the part that exceeds the additional hits of a larger lease.
    pub(super) fn record_unspent(&mut self, hits: Hits) -> Hits {
        let Some(Stake::Larger { extra, unused }) = self.stake else { return hits };
        let all_unused = unused.plus(hits).min(extra);
        let is_lost = extra.0 / 2 < all_unused.0;
        self.stake = if is_lost { None } else { Some(Stake::Larger { extra, unused: all_unused }) };
        hits.less(extra.less(unused))
    }

    /// Returns the state after the open stake is settled by a lease at `now`.
    fn settled(self, now: Nanos) -> Self {
        match self.stake {
            None => self,
            Some(Stake::Smaller { until }) if now < until => Self { stake: None, ..self },
            Some(_) => Self { points: STAKE, stake: None },
        }
    }
}
