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
//! - A grant joins the balance once, only by the reply to the last message.
//! - Spent hits were granted and had not expired.
//! - Hits that a message returns are removed from the balance before it is sent.
//! - Returned hits come back only if their message certainly never left the replica.
//! - Reports include the hits of undecided checks.
//! - Hits of undecided checks come back only before their expiry, and if all later messages
//!   reported them.
//! - A remembered denial applies only to checks of as many hits or more.

use super::counter::headroom_of;
use super::history::scaled;
use super::sizer::{LeaseSizer, LeaseSizing};
use super::{BorrowReply, BorrowRequest, MessageNumber, safe_duration};
use crate::rate::{CounterDecision, Headroom, Strategy};
use crate::units::{Hits, Nanos};

/// The number of store calls that may be denied again, per span of the [`LeaseSizer`]. It applies
/// where only hits returned by another replica help: after a grant of 0 hits, and after denials due
/// to outstanding hits if the strategy counts denied hits.
const RETRIES_PER_SPAN: u64 = 8;

/// A lease of full duration may be renewed early in its last 1/8.
const EARLY_RENEWAL_DIVISOR: u64 = 8;

/// With 8 checks expected and none arrived, demand has ended. Random arrivals pause this long once
/// in three thousand times (e^−8).
const IDLE_AFTER_CHECKS: u64 = 8;

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

    /// Returns `true` if [`LeaseBalance::refill`] may return a message; cheaper than calling it.
    #[must_use]
    pub fn may_need_refill(&self, now: Nanos) -> bool {
        self.pending.is_none()
            && self.no_refill_before <= now
            && self.is_refill_due(now, self.balance(now))
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

    /// Returns `true` if denied hits are counted, so that each retry uses up returned hits.
    const fn counts_denied(&self) -> bool {
        matches!(self.strategy, Some(Strategy::FixedWindow(_)))
    }

    /// Returns the message for a check that only the store can decide, or `None` while one is in
    /// flight. The message also returns the balance, which was too small for the check.
    pub fn borrow(
        &mut self,
        now: Nanos,
        number: MessageNumber,
        hits: Hits,
    ) -> Option<BorrowRequest> {
        if self.pending.is_some() {
            return None;
        }
        let returned = self.take_balance(now);
        let plan = self.sizer.next_lease(now, hits);
        self.sizer.record_plan(now, plan);
        Some(self.new_message(now, number, hits, plan.hits, returned))
    }

    /// Returns the message for a background refill. `None` if the balance is empty or large enough,
    /// or while a message is in flight.
    pub fn refill(&mut self, now: Nanos, number: MessageNumber) -> Option<BorrowRequest> {
        let balance = self.balance(now);
        let is_blocked =
            self.pending.is_some() || now < self.no_refill_before || balance == Hits(0);
        if is_blocked || !self.is_refill_due(now, balance) {
            return None;
        }
        let wanted = self.plan_refill(now)?;
        Some(self.new_message(now, number, Hits(0), wanted, Hits(0)))
    }

    /// Returns the message for an early refill if a refill would be due within `time`: early
    /// refills of many keys share one store call. `None` in the cases of [`LeaseBalance::refill`].
    pub fn refill_early(
        &mut self,
        now: Nanos,
        number: MessageNumber,
        time: Nanos,
    ) -> Option<BorrowRequest> {
        let balance = self.balance(now);
        let is_blocked =
            self.pending.is_some() || now < self.no_refill_before || balance == Hits(0);
        // Leases that end with a window all end at once, so they are not renewed early.
        let expires_soon = !self.ends_early
            && self.until.since(now) <= time.min(Nanos(self.duration.0 / EARLY_RENEWAL_DIVISOR));
        if is_blocked || !(expires_soon || self.sizer.runs_low(now, balance, time)) {
            return None;
        }
        let wanted = self.plan_refill(now)?;
        Some(self.new_message(now, number, Hits(0), wanted.less(balance), Hits(0)))
    }

    /// Returns the hits to borrow in a refill, if any, and records the plan.
    fn plan_refill(&mut self, now: Nanos) -> Option<Hits> {
        let plan = self.sizer.next_lease(now, Hits(0));
        if plan.hits == Hits(0) {
            return None;
        }
        self.sizer.record_plan(now, plan);
        Some(plan.hits)
    }

    /// Returns the message that returns the hits that demand will not use before they expire.
    /// `None` if demand will use most of them, or while a message is in flight.
    pub fn return_surplus(&mut self, now: Nanos, number: MessageNumber) -> Option<BorrowRequest> {
        self.expire(now);
        let surplus = self.sizer.surplus(now, self.balance, self.until.since(now));
        if self.pending.is_some() || surplus == Hits(0) {
            return None;
        }
        self.balance = self.balance.less(surplus);
        let message = self.one_way_message(now, number, surplus);
        self.record_unspent(now, surplus);
        Some(message)
    }

    /// Returns the message that returns the whole balance because demand has ended. Demand has
    /// ended if `idle_time`, the time since the last check, is a whole span, or if 8 checks were
    /// expected in it. Otherwise returns `None`; also if the balance is empty, while a message is in
    /// flight, or if repeating demand will use most of the balance.
    pub fn return_if_idle(
        &mut self,
        now: Nanos,
        number: MessageNumber,
        idle_time: Nanos,
    ) -> Option<BorrowRequest> {
        self.expire(now);
        let may_continue = self.sizer.expected_checks(now, idle_time) < IDLE_AFTER_CHECKS
            && idle_time < self.sizer.span();
        if self.pending.is_some() || self.balance == Hits(0) || may_continue {
            return None;
        }
        if self.sizer.predicts_use(now, self.balance, self.until.since(now)) {
            return None;
        }
        let all = std::mem::take(&mut self.balance);
        let message = self.final_message(now, number, all);
        self.record_unspent(now, all);
        Some(message)
    }

    /// Returns the message that returns the whole balance, when draining or dropping this balance.
    /// The message supersedes a message in flight, whose reply is then ignored. `None` if the
    /// balance is empty.
    pub fn return_all(&mut self, now: Nanos, number: MessageNumber) -> Option<BorrowRequest> {
        self.pending = None;
        let returned = self.take_balance(now);
        (returned != Hits(0)).then(|| self.final_message(now, number, returned))
    }

    /// Applies the reply to the last message; ignores any other reply.
    pub fn settle(&mut self, now: Nanos, reply: &BorrowReply) {
        let Some(pending) = self.pending.filter(|pending| pending.number == reply.number) else {
            return;
        };
        self.pending = None;
        self.expire(now);
        self.update_estimates(now, pending, reply);
        if reply.kept < self.total_even_if_expired() {
            self.void_undecided();
        }
        let kept = self.balance.min(reply.kept);
        self.sizer.record_unspent(now, self.balance.less(kept));
        self.balance = kept.plus(reply.granted);
        if reply.granted != Hits(0) {
            self.last_lease = reply.number;
            self.sizer.record_lease(now, reply.granted);
        }
        if self.total_even_if_expired() != Hits(0) {
            self.until = pending.sent.plus(safe_duration(reply.valid_for));
            self.ends_early = reply.valid_for < self.duration;
            self.expire(now);
        }
    }

    /// Gives up waiting for the reply to message `number`; a late reply is ignored.
    pub fn give_up(&mut self, number: MessageNumber) {
        self.pending = self.pending.filter(|pending| pending.number != number);
    }

    /// Undoes message `number`, which certainly never left this process. The returned hits can be
    /// spent again until their old expiry. If a newer message was written since, it reported the
    /// balance without them. Then this only stops waiting for the reply.
    pub fn undo_unsent(&mut self, now: Nanos, number: MessageNumber) {
        self.give_up(number);
        if self.written.number == number {
            let WrittenMessage { taken, unspent, .. } =
                std::mem::replace(&mut self.written, WrittenMessage::NONE);
            self.sizer.revert_unspent(now, unspent);
            if now < self.until {
                self.balance = self.balance.plus(taken);
            }
        }
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

    fn take_balance(&mut self, now: Nanos) -> Hits {
        self.expire(now);
        std::mem::take(&mut self.balance)
    }

    /// Returns `true` if it is time to refill: two round trips before the end, because the reply
    /// may be twice as slow.
    fn is_refill_due(&self, now: Nanos, balance: Hits) -> bool {
        let lead_time = self.round_trip.plus(self.round_trip);
        self.sizer.runs_out(now, balance, lead_time) || self.until.since(now) <= lead_time
    }

    fn new_message(
        &mut self,
        now: Nanos,
        number: MessageNumber,
        hits: Hits,
        wanted: Hits,
        returned: Hits,
    ) -> BorrowRequest {
        let balance = self.total(now);
        let undecided = balance.less(self.balance(now));
        self.pending = Some(PendingMessage { number, sent: now, hits, undecided });
        self.written = WrittenMessage { number, taken: returned, unspent: Hits(0) };
        BorrowRequest {
            number,
            hits,
            wanted,
            demand: self.sizer.demand(now),
            balance,
            returned,
            last_lease: self.last_lease,
        }
    }

    /// Creates a message whose reply is ignored.
    fn one_way_message(
        &mut self,
        now: Nanos,
        number: MessageNumber,
        returned: Hits,
    ) -> BorrowRequest {
        let message = self.new_message(now, number, Hits(0), Hits(0), returned);
        self.pending = None;
        message
    }

    /// Records `hits`, which the last message returns, as unspent for the lease sizing.
    fn record_unspent(&mut self, now: Nanos, hits: Hits) {
        self.written.unspent = self.sizer.record_unspent(now, hits);
    }

    /// Creates a message without demand, so that the store divides the remaining hits among others.
    fn final_message(
        &mut self,
        now: Nanos,
        number: MessageNumber,
        returned: Hits,
    ) -> BorrowRequest {
        BorrowRequest { demand: Hits(0), ..self.one_way_message(now, number, returned) }
    }

    fn update_estimates(&mut self, now: Nanos, pending: PendingMessage, reply: &BorrowReply) {
        let round_trip = now.since(pending.sent);
        let faded = Nanos(self.round_trip.0.saturating_sub(self.round_trip.0 / 4));
        self.round_trip = round_trip.max(faded);
        if reply.decision == CounterDecision::OutsideWindows {
            return;
        }
        // The headroom is dated now, although it may be older: a later date gives a later retry,
        // which is safe.
        self.last_headroom = Some((now, headroom_of(reply.decision)));
        self.denial = self.next_denial(now, pending, reply);
        if reply.granted == Hits(0) {
            self.no_refill_before = now.plus(self.retry_interval());
        }
    }

    /// Returns the denial to remember. Of two valid denials, the denial of fewer hits applies to more
    /// checks.
    fn next_denial(
        &self,
        now: Nanos,
        pending: PendingMessage,
        reply: &BorrowReply,
    ) -> Option<LeaseDenial> {
        let previous = self.denial.filter(|denial| pending.sent < denial.until);
        match reply.decision {
            CounterDecision::Deny { .. }
                if self.last_refund.is_some_and(|refunded_at| pending.sent <= refunded_at) =>
            {
                previous
            }
            // Undecided hits that are put back after the message may be enough for the check.
            CounterDecision::Deny { .. } if pending.undecided != Hits(0) => previous,
            CounterDecision::Deny { retry_after, headroom: room } if pending.hits != Hits(0) => {
                let certain_until = pending.sent.plus(certain_denial_time(
                    pending.hits,
                    room,
                    reply.outstanding_elsewhere,
                    retry_after,
                ));
                // Waiting checks use this denial. It stays for at least one round trip, in which no
                // newer reply can arrive.
                let next_reply = now.plus(self.round_trip);
                let recheck_at = if self.counts_denied() {
                    pending.sent.plus(self.retry_interval()).max(next_reply)
                } else {
                    next_reply
                };
                let until = certain_until.max(recheck_at).min(pending.sent.plus(retry_after));
                let denial =
                    LeaseDenial { hits: pending.hits, allowed_at: now.plus(retry_after), until };
                Some(previous.filter(|previous| previous.hits < pending.hits).unwrap_or(denial))
            }
            CounterDecision::Allow(_) => previous.filter(|denial| pending.hits < denial.hits),
            _ => previous,
        }
    }

    const fn retry_interval(&self) -> Nanos {
        Nanos(self.sizer.span().0 / RETRIES_PER_SPAN)
    }
}

/// Returns the time for which a denial is certain, even if other replicas return all outstanding
/// hits: the limit must first free the other missing hits. The 1 is subtracted because `remaining`
/// is rounded down by almost one hit.
///
/// | hits | remaining | outstanding elsewhere | wait | certain for |
/// |---|---|---|---|---|
/// | 64 | 23 | 10 | 410 ms | ⌊410·(41 − 10 − 1)/41⌋ = 300 ms |
/// | 1 | 0 | 1 | any | 0 |
fn certain_denial_time(
    hits: Hits,
    room: Headroom,
    outstanding_elsewhere: Hits,
    retry_after: Nanos,
) -> Nanos {
    if outstanding_elsewhere == Hits(0) {
        return retry_after;
    }
    let missing = hits.less(room.remaining);
    let beyond = missing.less(outstanding_elsewhere).less(Hits(1));
    Nanos(scaled(retry_after.0, beyond.0, missing.0))
}
