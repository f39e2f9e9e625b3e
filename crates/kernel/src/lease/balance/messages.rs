//! The messages of one lease balance to the store: borrowing, refills and returns.
//!
//! Guarantees:
//! - Hits that a message returns are removed from the balance before it is sent.
//! - Returned hits come back only if their message certainly never left the replica.
//! - Reports include the hits of undecided checks.
//!
//! Not covered:
//! - The replies: see [`super::replies`].

use super::{LeaseBalance, PendingMessage, WrittenMessage};
use crate::lease::{BorrowRequest, MessageNumber};
use crate::units::{Hits, Nanos};

/// A lease of full duration may be renewed early in its last 1/8.
const EARLY_RENEWAL_DIVISOR: u64 = 8;

/// With 8 checks expected and none arrived, demand has ended. Random arrivals pause this long once
/// in three thousand times (e^−8).
const IDLE_AFTER_CHECKS: u64 = 8;

impl LeaseBalance {
    /// Returns `true` if [`LeaseBalance::refill`] may return a message; cheaper than calling it.
    #[must_use]
    pub fn may_need_refill(&self, now: Nanos) -> bool {
        self.pending.is_none()
            && self.no_refill_before <= now
            && self.is_refill_due(now, self.balance(now))
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
}
