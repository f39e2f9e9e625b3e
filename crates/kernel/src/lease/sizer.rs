//! Lease sizing: the number of hits to borrow.
//!
//! Example: 200 hits were requested in the last 10 s, and 50 leased
//! hits were not spent. A lease lasts 30 s and is at most 1,000 hits.
//!
//! | formula | worked row |
//! |---|---|
//! | demand = hits of the current span + the weighted hits of the last span | 200 |
//! | demand over one lease; a demand below 64 is not scaled up | 200·30/10 = 600 |
//! | reduced by the unspent hits: ·demand / (demand + unspent) | ⌊600·200/250⌋ = 480 |
//!
//! Demand is counted in two intervals of one span each. The weight of the older one falls linearly
//! to 0. After two spans nothing of a demand is left. A span is the duration of a lease, at most
//! [`MAX_SPAN`].
//!
//! The current check is not part of the demand, only earlier checks are. A key with one check per
//! span borrows nothing. The second check borrows as many hits as were requested, and then each
//! lease is twice as large as the last.
//!
//! Demand that repeats is predicted from the [history](super::history). *Recent* is the size by the
//! table above. The prediction replaces it if the two differ by a factor of 2. Example: the job of
//! 500 hits each minute from the history's module. No hits were requested in the last 10 s.
//!
//! | case | size | worked row |
//! |---|---|---|
//! | 2·recent ≤ least hits of the last two periods | these hits | recent 0, least 499: 499 |
//! | 2·(most hits + ⌊recent/64⌋) ≤ recent | these hits | recent 1,000, most 1: 1 + 15 = 16 |
//! | otherwise | recent | recent 300, least 400: 300 |
//!
//! ```
//! # use sluicegate_kernel::lease::sizer::{LeaseSizer, LeaseSizing};
//! # use sluicegate_kernel::units::{Hits, Nanos};
//! let mut sizer = LeaseSizer::new(LeaseSizing::Learned, Nanos::from_secs(30), Hits(1_000));
//! for minute in 10..12 {
//!     for _ in 0..10 {
//!         let plan = sizer.next_lease(Nanos::from_secs(60 * minute), Hits(0));
//!         sizer.record_plan(Nanos::from_secs(60 * minute), plan);
//!     }
//!     sizer.record_check(Nanos::from_secs(60 * minute), Hits(500));
//! }
//! let now = Nanos::from_secs(720);
//! sizer.record_check(now, Hits(1));
//! let plan = sizer.next_lease(now, Hits(1));
//! assert_eq!((plan.hits, plan.recent), (Hits(499), Hits(0)));
//! sizer.record_check(now, Hits(498));
//! let plan = sizer.next_lease(now, Hits(0));
//! assert_eq!((plan.hits, plan.recent), (Hits(16), Hits(1_000)));
//! ```
//!
//! Guarantees:
//! - A lease is at most `max_lease` hits, and 0 without demand in the last minutes.
//! - At most one lease in ten has a wrong prediction (see `trust`).
//! - O(1), no allocation.
//!
//! Measured (`tests/lease/prediction.rs`), against the store calls of recent demand alone: at most
//! 0.7 times as many for bursts that repeat, and at most 1.1 times for erratic demand.
//!
//! Not covered:
//! - Leases shorter than 10 s. Their size is by recent demand alone.
//! - The demand that the store divides by. It is the recent demand.

use super::history::{DemandForecast, DemandHistory, INTERVAL, scaled};
pub use super::trust::LeasePlan;
use super::trust::PredictionTrust;
use crate::units::{Hits, Nanos};

/// Below this demand a lease is not scaled to its full duration: so few hits predict little.
const SMALL_DEMAND: Hits = Hits(64);

/// The longest span in which demand is counted: lease sizes must follow changes of demand.
pub const MAX_SPAN: Nanos = Nanos::from_secs(10);

/// A surplus below 1/2 of the balance is not returned. Random
/// arrivals vary that much, and the message would be wasted.
const SURPLUS_DIVISOR: u64 = 2;

/// The refill threshold of a fixed size is 1/4 of a lease. With a learned size, the balance that is
/// kept for one check as large as recent ones is at most 1/4 of a lease.
const REFILL_DIVISOR: u64 = 4;

/// The threshold of an early refill is 1/5 of a lease. A larger threshold would send more messages,
/// and more of `max_overshoot` would be borrowed but not spent.
const EARLY_REFILL_DIVISOR: u64 = 5;

/// A lease that a prediction reduces exceeds the prediction by 1/64 of the lease without it.
const MARGIN_DIVISOR: u64 = 64;

/// A lease is at most 1/10 of the hits that the limit allows at one instant.
const LIMIT_DIVISOR: u64 = 10;

/// The largest lease for a limit that allows `max_at_once` hits at one instant; at least 1.
#[must_use]
pub fn max_lease(max_at_once: u32) -> Hits {
    Hits((u64::from(max_at_once) / LIMIT_DIVISOR).max(1))
}

/// The way to choose the size of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseSizing {
    /// A constant number of hits.
    Fixed(Hits),
    /// Learned from recent demand and from unspent hits: the baseline of [`LeaseSizing::Learned`].
    Recent,
    /// Learned like [`LeaseSizing::Recent`], and from demand that repeats.
    Learned,
}

/// The demand for one key in one replica, from which the size of its next lease is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseSizer {
    sizing: LeaseSizing,
    duration: Nanos,
    max_lease: Hits,
    recent: RecentDemand,
    history: DemandHistory,
    trust: PredictionTrust,
}

/// The demand of the last two intervals of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RecentDemand {
    span: Nanos,
    started_at: Nanos,
    current: DemandTally,
    last: DemandTally,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct DemandTally {
    requested: Hits,
    checks: u64,
    unspent: Hits,
    largest_check: Hits,
    largest_lease: Hits,
}

impl DemandTally {
    const NONE: Self = Self {
        requested: Hits(0),
        checks: 0,
        unspent: Hits(0),
        largest_check: Hits(0),
        largest_lease: Hits(0),
    };
}

impl LeaseSizer {
    /// Creates a sizer for leases with a largest size and a duration.
    #[must_use]
    pub const fn new(sizing: LeaseSizing, duration: Nanos, max_lease: Hits) -> Self {
        let span = if duration.0 < MAX_SPAN.0 { duration } else { MAX_SPAN };
        let (current, last) = (DemandTally::NONE, DemandTally::NONE);
        Self {
            sizing,
            duration,
            max_lease,
            recent: RecentDemand { span, started_at: Nanos(0), current, last },
            history: DemandHistory::new(),
            trust: PredictionTrust::NONE,
        }
    }

    /// The span in which demand is counted.
    #[must_use]
    pub const fn span(&self) -> Nanos {
        self.recent.span
    }

    /// Records a check as demand, also if it is denied.
    pub fn record_check(&mut self, now: Nanos, hits: Hits) {
        if self.predicts() {
            self.history.record(now, hits);
        }
        if let Some(tally) = self.tally(now) {
            tally.requested = tally.requested.plus(hits);
            tally.checks = tally.checks.saturating_add(1);
            tally.largest_check = tally.largest_check.max(hits);
        }
    }

    /// Records the plan of a message that borrows.
    pub fn record_plan(&mut self, now: Nanos, plan: LeasePlan) {
        if self.predicts() {
            self.trust.record_lease(now, self.duration, plan);
        }
    }

    /// Records a granted lease.
    pub fn record_lease(&mut self, now: Nanos, hits: Hits) {
        if let Some(tally) = self.tally(now) {
            tally.largest_lease = tally.largest_lease.max(hits);
        }
    }

    /// Records leased hits that were not spent. Returns the part that reduces later leases:
    /// additional hits of a predicted lease do not.
    pub fn record_unspent(&mut self, now: Nanos, hits: Hits) -> Hits {
        let hits = self.trust.record_unspent(hits);
        if let Some(tally) = self.tally(now) {
            tally.unspent = tally.unspent.plus(hits);
        }
        hits
    }

    /// Reverts [`LeaseSizer::record_unspent`], which returned `hits`: they can be spent after all.
    pub fn revert_unspent(&mut self, now: Nanos, hits: Hits) {
        if let Some(tally) = self.tally(now) {
            tally.unspent = tally.unspent.less(hits);
        }
    }

    /// Returns the hits requested in the last span; with a fixed lease size, returns that size.
    #[must_use]
    pub fn demand(&self, now: Nanos) -> Hits {
        match self.sizing {
            LeaseSizing::Fixed(hits) => hits,
            LeaseSizing::Recent | LeaseSizing::Learned => self.recent.last_span(now).requested,
        }
    }

    /// Returns the hits to borrow next, at most `max_lease`. `excluded` are the hits of the current
    /// check, which is already recorded.
    #[must_use]
    pub fn next_lease(&self, now: Nanos, excluded: Hits) -> LeasePlan {
        let recent = match self.sizing {
            LeaseSizing::Fixed(hits) => hits,
            LeaseSizing::Recent | LeaseSizing::Learned => self.recent_lease(now, excluded),
        };
        let recent = recent.min(self.max_lease);
        if !(self.predicts() && self.trust.allows_stake(now)) {
            return LeasePlan { hits: recent, recent };
        }
        let DemandForecast { least, most } = self.history.forecast(now, self.duration);
        let least = least.min(self.max_lease);
        let most = most.map(|most| most.plus(Hits(recent.0 / MARGIN_DIVISOR)));
        let hits = match most {
            _ if recent.plus(recent).max(Hits(1)) <= least => least,
            Some(most) if most.plus(most) <= recent => most,
            _ => recent,
        };
        LeasePlan { hits, recent }
    }

    /// Returns the lease that the demand of the last span gives.
    fn recent_lease(&self, now: Nanos, excluded: Hits) -> Hits {
        let DemandTally { requested, unspent, .. } = self.recent.last_span(now);
        let requested = requested.less(excluded);
        let lease = if requested < SMALL_DEMAND {
            requested.0
        } else {
            scaled(requested.0, self.duration.0, self.span().0)
        };
        Hits(scaled(lease, requested.0, requested.plus(unspent).0))
    }

    /// Returns `true` if the demand of this key may repeat after a pause.
    #[must_use]
    pub fn may_repeat(&self, now: Nanos) -> bool {
        self.predicts() && self.history.may_repeat(now)
    }

    /// Returns the part of `balance` above the hits expected in `time`; 0 if it is less than half
    /// of the balance.
    #[must_use]
    pub fn surplus(&self, now: Nanos, balance: Hits, time: Nanos) -> Hits {
        let worth_returning = |expected| {
            let surplus = balance.less(expected);
            let is_worth_it = balance.0.div_ceil(SURPLUS_DIVISOR) <= surplus.0;
            if is_worth_it { surplus } else { Hits(0) }
        };
        let surplus = worth_returning(self.expected_hits(now, time));
        if surplus == Hits(0) || !self.is_learned() {
            return Hits(0);
        }
        surplus.min(worth_returning(self.predicted_hits(now, time)))
    }

    /// Returns `true` if repeating demand is expected to use at least half of `balance` in `time`.
    #[must_use]
    pub fn predicts_use(&self, now: Nanos, balance: Hits, time: Nanos) -> bool {
        balance.0.div_ceil(SURPLUS_DIVISOR) <= self.predicted_hits(now, time).0
    }

    /// Returns the most hits expected in `time` if demand repeats. 0 if one of the last two periods
    /// had none, and without trust in predictions.
    fn predicted_hits(&self, now: Nanos, time: Nanos) -> Hits {
        if self.predicts() && self.trust.allows_keeping() {
            let DemandForecast { least, most } = self.history.forecast(now, time);
            if least == Hits(0) { Hits(0) } else { most.unwrap_or(least) }
        } else {
            Hits(0)
        }
    }

    /// Returns the hits expected in `time` at the demand of the last span; 0 for a fixed size.
    #[must_use]
    pub fn expected_hits(&self, now: Nanos, time: Nanos) -> Hits {
        Hits(scaled(self.recent.last_span(now).requested.0, time.0, self.span().0))
    }

    /// Returns the number of checks expected in `time` at the last span's rate; 0 for a fixed size.
    #[must_use]
    pub fn expected_checks(&self, now: Nanos, time: Nanos) -> u64 {
        scaled(self.recent.last_span(now).checks, time.0, self.span().0)
    }

    /// Returns `true` if `balance` is at most 1/5 of a lease and is expected to run out within
    /// `time`. Always `false` for a fixed size with a balance above 0.
    #[must_use]
    pub fn runs_low(&self, now: Nanos, balance: Hits, time: Nanos) -> bool {
        let threshold = self.recent.last_span(now).largest_lease.0 / EARLY_REFILL_DIVISOR;
        balance.0 <= self.expected_hits(now, time).0.min(threshold)
    }

    /// Returns `true` if `balance` will run out within `time`, or cannot cover a check as large as
    /// recent ones. With a fixed size: if `balance` is less than 1/4 of a lease.
    #[must_use]
    pub fn runs_out(&self, now: Nanos, balance: Hits, time: Nanos) -> bool {
        match self.sizing {
            LeaseSizing::Fixed(hits) => balance.0 < hits.0.div_ceil(REFILL_DIVISOR),
            LeaseSizing::Recent | LeaseSizing::Learned => {
                let recent = self.recent.last_span(now);
                let next = recent.largest_check.0.min(recent.largest_lease.0 / REFILL_DIVISOR);
                balance.0 <= scaled(recent.requested.0, time.0, self.span().0).max(next)
            }
        }
    }

    fn is_learned(&self) -> bool {
        !matches!(self.sizing, LeaseSizing::Fixed(_))
    }

    /// Returns `true` if repeating demand is predicted: not for leases shorter than an interval of
    /// the history.
    fn predicts(&self) -> bool {
        self.sizing == LeaseSizing::Learned && INTERVAL <= self.duration
    }

    /// Returns the tally of the current span; `None` for a fixed size.
    fn tally(&mut self, now: Nanos) -> Option<&mut DemandTally> {
        if !self.is_learned() {
            return None;
        }
        self.recent.rotate(now);
        Some(&mut self.recent.current)
    }
}

impl RecentDemand {
    /// Starts a new interval if the current one is a span old.
    fn rotate(&mut self, now: Nanos) {
        let age = now.since(self.started_at);
        if age < self.span {
            return;
        }
        let is_next_span = age.since(self.span) < self.span;
        self.last = if is_next_span { self.current } else { DemandTally::default() };
        self.started_at = if is_next_span { self.started_at.plus(self.span) } else { now };
        self.current = DemandTally::default();
    }

    /// Returns the counts of the last span: the current interval plus the weighted older one.
    fn last_span(&self, now: Nanos) -> DemandTally {
        let mut rotated = *self;
        rotated.rotate(now);
        let remaining = rotated.span.since(now.since(rotated.started_at));
        let fading = |count| scaled(count, remaining.0, rotated.span.0);
        let fading_hits = |hits: Hits| Hits(fading(hits.0));
        DemandTally {
            requested: rotated.current.requested.plus(fading_hits(rotated.last.requested)),
            checks: rotated.current.checks.saturating_add(fading(rotated.last.checks)),
            unspent: rotated.current.unspent.plus(fading_hits(rotated.last.unspent)),
            largest_check: rotated.current.largest_check.max(rotated.last.largest_check),
            largest_lease: rotated.current.largest_lease.max(rotated.last.largest_lease),
        }
    }
}
