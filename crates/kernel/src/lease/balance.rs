//! The lease balance of one key in one replica, and its expiry.
//!
//! | method | use |
//! |---|---|
//! | [`LeaseBalance::spend`] | Decides a check from the balance or a remembered denial. |
//! | [`LeaseBalance::borrow`] | Otherwise: one store call for the check. |
//! | [`LeaseBalance::settle`], [`LeaseBalance::give_up`] | End a call, with or without reply. |
//! | [`LeaseBalance::decide`] | Decides a check that waited for a store call in flight. |
//! | [`LeaseBalance::mark_undecided`] | Marks spent hits whose check other limits may still deny. |
//! | [`LeaseBalance::put_back`], [`LeaseBalance::mark_spent`] | The check was denied, or allowed. |
//! | [`LeaseBalance::refill`] | A background refill, before the balance runs out. |
//! | [`LeaseBalance::return_surplus`] | Returns the hits that will not be needed. |
//! | [`LeaseBalance::return_all`] | Returns everything when draining. |
//!
//! Guarantees:
//! - Spent hits were granted and had not expired.
//! - Hits of undecided checks come back only before their expiry, and if all later messages
//!   reported them.
//! - A remembered denial applies only to checks of as many hits or more.
//!
//! Not covered:
//! - The messages to the store and its replies: see `messages` and `replies`.

mod messages;
mod replies;

use super::MessageNumber;
use super::sizer::{LeaseSizer, LeaseSizing};
use crate::rate::{Headroom, Strategy};
use crate::units::{Hits, Nanos};

/// The lease balance of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseBalance {
    duration: Nanos,
    sizer: LeaseSizer,
    /// The strategy of the counter. `None`: the headroom stays at the last reported value.
    strategy: Option<Strategy>,
    balance: Hits,
    /// The hits of undecided checks: not spent yet, and not available to other checks.
    undecided: Hits,
    /// The number of times that `undecided` was set to 0, because it expired or the store lists
    /// fewer hits.
    undecided_epoch: u64,
    /// The expiry of the balance and of `undecided`.
    until: Nanos,
    /// `true` if the lease is shorter than `duration`, for example because its window ends. Then a
    /// renewal before `until` would not last longer.
    ends_early: bool,
    last_lease: MessageNumber,
    pending: Option<PendingMessage>,
    written: WrittenMessage,
    denial: Option<LeaseDenial>,
    /// The last time that this replica refunded hits to the key. A denial of
    /// a message sent before may predate the refund, so it is not remembered.
    last_refund: Option<Nanos>,
    /// The last reported headroom, and the time of the report.
    last_headroom: Option<(Nanos, Headroom)>,
    /// The largest recent round trip to the store; each reply reduces the remembered value by 1/4.
    round_trip: Nanos,
    no_refill_before: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PendingMessage {
    number: MessageNumber,
    sent: Nanos,
    hits: Hits,
    /// The undecided hits that this message reports; they may be put back after the store made the
    /// reply.
    undecided: Hits,
}

/// The last message that was written, and the hits that it took from the balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct WrittenMessage {
    number: MessageNumber,
    taken: Hits,
    /// The part of `taken` that the sizer counted as unspent.
    unspent: Hits,
}

impl WrittenMessage {
    const NONE: Self = Self { number: MessageNumber(0), taken: Hits(0), unspent: Hits(0) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LeaseDenial {
    hits: Hits,
    /// The instant at which the hits are allowed if there is no other traffic. Clients receive it
    /// as retry-after, so that none retries too early.
    allowed_at: Nanos,
    /// The instant until which the store is not called again: at
    /// most the retry-after, counted from the time of sending.
    until: Nanos,
}

/// The local result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpendResult {
    /// The hits were taken from the balance.
    Spent(Headroom),
    /// A remembered denial of as many hits or fewer is still valid.
    Denied {
        /// The time until the remembered hits are allowed.
        retry_after: Nanos,
        /// The additional hits of this check over the remembered ones.
        additional_hits: Hits,
        /// The current headroom.
        headroom: Headroom,
    },
    /// Only the store can decide.
    NeedsStore,
}

impl LeaseBalance {
    /// Creates an empty balance, whose leases have a largest size and a duration.
    #[must_use]
    pub const fn new(sizing: LeaseSizing, duration: Nanos, max_lease: Hits) -> Self {
        Self {
            duration,
            sizer: LeaseSizer::new(sizing, duration, max_lease),
            strategy: None,
            balance: Hits(0),
            undecided: Hits(0),
            undecided_epoch: 0,
            until: Nanos(0),
            ends_early: false,
            last_lease: MessageNumber(0),
            pending: None,
            written: WrittenMessage::NONE,
            denial: None,
            last_refund: None,
            last_headroom: None,
            round_trip: Nanos(0),
            no_refill_before: Nanos(0),
        }
    }

    /// Sets the strategy of the counter.
    #[must_use]
    pub const fn with_strategy(self, strategy: Strategy) -> Self {
        Self { strategy: Some(strategy), ..self }
    }

    /// Returns the hits that can be spent now.
    #[must_use]
    pub fn balance(&self, now: Nanos) -> Hits {
        if now < self.until { self.balance } else { Hits(0) }
    }

    /// Returns the balance plus the hits of undecided checks; at most the hits listed in the store.
    #[must_use]
    pub fn total(&self, now: Nanos) -> Hits {
        if now < self.until { self.total_even_if_expired() } else { Hits(0) }
    }

    /// Records a check and decides it without a store call if possible; a check of 0 hits only
    /// while the balance is above 0. Cost: O(1), no allocation.
    pub fn spend(&mut self, now: Nanos, hits: Hits) -> SpendResult {
        self.sizer.record_check(now, hits);
        self.decide(now, hits)
    }

    /// Decides a check that is already recorded, for example when a pending message is settled.
    pub fn decide(&mut self, now: Nanos, hits: Hits) -> SpendResult {
        self.expire(now);
        if self.balance != Hits(0) && hits <= self.balance {
            self.balance = self.balance.less(hits);
            return SpendResult::Spent(self.headroom(now));
        }
        match self.denial {
            Some(denial) if denial.hits <= hits && now < denial.until => {
                let (retry_after, additional_hits) =
                    (denial.allowed_at.since(now), hits.less(denial.hits));
                SpendResult::Denied { retry_after, additional_hits, headroom: self.headroom(now) }
            }
            _ => SpendResult::NeedsStore,
        }
    }

    /// Records a check that is then passed to [`LeaseBalance::decide`].
    pub fn record_check(&mut self, now: Nanos, hits: Hits) {
        self.sizer.record_check(now, hits);
    }

    /// Marks hits that were just spent as undecided, because another limit may still deny the
    /// check. Messages report undecided hits until [`LeaseBalance::put_back`] or
    /// [`LeaseBalance::mark_spent`].
    pub fn mark_undecided(&mut self, hits: Hits) {
        self.undecided = self.undecided.plus(hits);
    }

    /// The number of times that undecided hits were voided; see [`LeaseBalance::put_back`].
    #[must_use]
    pub const fn undecided_epoch(&self) -> u64 {
        self.undecided_epoch
    }

    /// Returns the hits of a denied check to the balance, unless they were voided since `epoch`.
    pub fn put_back(&mut self, now: Nanos, hits: Hits, epoch: u64) {
        self.expire(now);
        if epoch == self.undecided_epoch {
            self.undecided = self.undecided.less(hits);
            self.balance = self.balance.plus(hits);
        }
    }

    /// Marks the hits of an allowed check as spent, unless they were voided since `epoch`.
    pub const fn mark_spent(&mut self, hits: Hits, epoch: u64) {
        if epoch == self.undecided_epoch {
            self.undecided = self.undecided.less(hits);
        }
    }

    /// Forgets the remembered denial because hits were refunded to the key. Refunds and lease
    /// messages may overtake each other, so call this before the refund is sent and again when its
    /// reply arrives.
    pub fn forget_denial(&mut self, now: Nanos) {
        self.denial = None;
        self.last_refund = self.last_refund.max(Some(now));
    }

    /// Returns the headroom as this replica sees it: the counter's headroom plus the balance. The
    /// counter's headroom is projected to `now` without other traffic. The sum is at most the hits
    /// that an empty counter allows at once.
    #[must_use]
    pub fn headroom(&self, now: Nanos) -> Headroom {
        let Some((at, room)) = self.last_headroom else { return Headroom::default() };
        let Some(strategy) = self.strategy else {
            let (remaining, elapsed) = (room.remaining.plus(self.balance(now)), now.since(at));
            return Headroom { remaining, reset_after: room.reset_after.since(elapsed) };
        };
        let room = strategy.project(room, at, now);
        let remaining =
            room.remaining.plus(self.balance(now)).min(Hits(u64::from(strategy.max_at_once())));
        Headroom { remaining, ..room }
    }

    /// Sets an expired balance and its undecided hits to 0. Returns the hits removed from the
    /// balance.
    pub fn expire(&mut self, now: Nanos) -> Hits {
        if now < self.until || self.total_even_if_expired() == Hits(0) {
            return Hits(0);
        }
        self.void_undecided();
        let expired = std::mem::take(&mut self.balance);
        self.sizer.record_unspent(now, expired);
        expired
    }

    /// Returns `true` if the demand of this key may repeat after a pause, so that the next lease can
    /// be predicted.
    #[must_use]
    pub fn may_repeat(&self, now: Nanos) -> bool {
        self.sizer.may_repeat(now)
    }

    fn total_even_if_expired(&self) -> Hits {
        self.balance.plus(self.undecided)
    }

    const fn void_undecided(&mut self) {
        if self.undecided.0 != 0 {
            self.undecided = Hits(0);
            self.undecided_epoch = self.undecided_epoch.wrapping_add(1);
        }
    }
}
