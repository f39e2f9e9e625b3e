//! The lease of one key in this replica, and the checks that wait for its pending message.
//!
//! Guarantees:
//! - Hits of a denied check return only to the lease that they came from.
//! - They return only while the store's lease table has them: it never has less than the balance.

use tokio::sync::watch;

use super::event::{LeaseEvent, LeaseObserver};
use crate::kernel::lease::balance::{LeaseBalance, SpendResult};
use crate::kernel::lease::sizer;
use crate::kernel::lease::{BorrowReply, BorrowRequest, LeaseTerms, MessageNumber};
use crate::kernel::rate::{CounterDecision, Headroom};
use crate::kernel::units::{Hits, Nanos};
use crate::store::{Charge, ChargeOutcome, StoreFailure};

/// A counter with a leased limit. The `cost` of its charge is not used.
#[derive(Clone, Copy, Debug)]
pub struct LeasedCounter<'c> {
    /// The counter and its strategy.
    pub charge: &'c Charge,
    /// The lease settings.
    pub terms: LeaseTerms,
}

/// A key without a check for this many demand spans is dropped, unless its demand may repeat.
const IDLE_SPANS: u64 = 2;

/// The number of bits for the epochs of one lease (see [`KeyLease::epoch`]).
const EPOCH_BITS: u32 = 20;

#[derive(Debug)]
pub(super) struct KeyLease {
    lease_balance: LeaseBalance,
    pub(super) charge: Charge,
    pub(super) terms: LeaseTerms,
    observe: LeaseObserver,
    last_check: Nanos,
    /// The first epoch of this lease. Each lease of a key has its own range of epochs.
    first_epoch: u64,
    pending: Option<MessageNumber>,
    /// `true` if all hits must be returned once the pending reply arrives.
    is_returning: bool,
    /// Wakes the waiting checks when the pending message is settled. The value is the store
    /// failure, if any.
    settled: watch::Sender<Option<StoreFailure>>,
}

impl KeyLease {
    /// Creates an empty lease. `number` must be unique in this process.
    pub(super) fn new(
        leased: LeasedCounter<'_>,
        now: Nanos,
        number: MessageNumber,
        observe: LeaseObserver,
    ) -> Self {
        let LeasedCounter { charge, terms } = leased;
        let lease_balance = LeaseBalance::new(
            terms.sizing,
            terms.duration,
            sizer::max_lease(charge.strategy.max_at_once()),
        );
        Self {
            lease_balance: lease_balance.with_strategy(charge.strategy),
            charge: charge.clone(),
            terms,
            observe,
            last_check: now,
            first_epoch: number.0 << EPOCH_BITS,
            pending: None,
            is_returning: false,
            settled: watch::Sender::default(),
        }
    }

    /// Returns `true` if this lease has the same strategy and lease terms as `leased`.
    pub(super) fn is_for(&self, leased: LeasedCounter<'_>) -> bool {
        self.terms == leased.terms && self.charge.strategy == leased.charge.strategy
    }

    pub(super) const fn leased(&self) -> LeasedCounter<'_> {
        LeasedCounter { charge: &self.charge, terms: self.terms }
    }

    /// Records the demand of a check, whether it is allowed or denied.
    pub(super) fn record_check(&mut self, now: Nanos, hits: Hits) {
        self.last_check = now;
        self.lease_balance.record_check(now, hits);
    }

    /// Returns the outcome if the balance or a remembered denial decides. A check of more hits than
    /// the denied check gets a longer retry-after.
    pub(super) fn decide(&mut self, now: Nanos, hits: Hits) -> Option<ChargeOutcome> {
        self.expire(now);
        let step = match self.lease_balance.decide(now, hits) {
            SpendResult::Spent(room) => CounterDecision::Allow(room),
            SpendResult::Denied { headroom: room, .. }
                if u64::from(self.charge.strategy.max_at_once()) < hits.0 =>
            {
                CounterDecision::ExceedsLimit(room)
            }
            SpendResult::Denied { retry_after, additional_hits, headroom: room } => {
                let extra_wait = self.charge.strategy.extra_wait(additional_hits)?;
                CounterDecision::Deny { retry_after: retry_after.plus(extra_wait), headroom: room }
            }
            SpendResult::NeedsStore => return None,
        };
        Some(ChargeOutcome::Decided(step))
    }

    /// Decides like [`KeyLease::decide`], but allowed hits stay undecided until
    /// [`KeyLease::put_back`] or [`KeyLease::mark_spent`].
    pub(super) fn take(&mut self, now: Nanos, hits: Hits) -> Option<ChargeOutcome> {
        let outcome = self.decide(now, hits)?;
        if !outcome.is_denial() {
            self.lease_balance.mark_undecided(hits);
        }
        Some(outcome)
    }

    /// Returns the current epoch of undecided hits. When they expire or are returned to the store,
    /// a new epoch begins; hits of an older epoch cannot be put back.
    pub(super) const fn epoch(&self) -> u64 {
        self.first_epoch + self.lease_balance.undecided_epoch()
    }

    /// Puts back hits that were taken in `epoch`, unless a newer epoch has begun.
    pub(super) fn put_back(&mut self, now: Nanos, hits: Hits, epoch: u64) {
        self.expire(now);
        if epoch == self.epoch() {
            self.lease_balance.put_back(now, hits, self.lease_balance.undecided_epoch());
        }
    }

    pub(super) fn mark_spent(&mut self, hits: Hits, epoch: u64) {
        if epoch == self.epoch() {
            self.lease_balance.mark_spent(hits, self.lease_balance.undecided_epoch());
        }
    }

    pub(super) fn headroom(&self, now: Nanos) -> Headroom {
        self.lease_balance.headroom(now)
    }

    pub(super) fn balance(&self, now: Nanos) -> Hits {
        self.lease_balance.balance(now)
    }

    pub(super) fn forget_denial(&mut self, now: Nanos) {
        self.lease_balance.forget_denial(now);
    }

    pub(super) fn refill(
        &mut self,
        now: Nanos,
        number: impl Fn() -> MessageNumber,
    ) -> Option<BorrowRequest> {
        if self.pending.is_some() || !self.lease_balance.may_need_refill(now) {
            return None;
        }
        let message = self.lease_balance.refill(now, number());
        self.set_pending_message(message)
    }

    /// Returns the message of an early refill, if a refill would be due within `time`.
    pub(super) fn refill_early(
        &mut self,
        now: Nanos,
        number: MessageNumber,
        time: Nanos,
    ) -> Option<BorrowRequest> {
        let message = self.lease_balance.refill_early(now, number, time);
        self.set_pending_message(message)
    }

    /// Returns a message that charges `hits` and borrows more. `None` while another message is
    /// pending.
    pub(super) fn borrow(
        &mut self,
        now: Nanos,
        number: MessageNumber,
        hits: Hits,
    ) -> Option<BorrowRequest> {
        self.expire(now);
        let borrow = self.lease_balance.borrow(now, number, hits);
        self.set_pending_message(borrow)
    }

    pub(super) fn return_surplus(
        &mut self,
        now: Nanos,
        number: MessageNumber,
    ) -> Option<BorrowRequest> {
        self.expire(now);
        let idle_for = now.since(self.last_check);
        let surplus = self.lease_balance.return_if_idle(now, number, idle_for);
        let surplus = surplus.or_else(|| self.lease_balance.return_surplus(now, number));
        self.set_pending(surplus, self.pending)
    }

    pub(super) fn return_all(
        &mut self,
        now: Nanos,
        number: MessageNumber,
    ) -> Option<BorrowRequest> {
        self.expire(now);
        let message = self.lease_balance.return_all(now, number);
        self.set_pending(message, None)
    }

    /// Returns the message that returns all hits. While a reply is pending, marks the lease as
    /// returning instead, because the reply may grant hits.
    pub(super) fn start_return(
        &mut self,
        now: Nanos,
        number: MessageNumber,
    ) -> Option<BorrowRequest> {
        self.is_returning = self.has_pending();
        if self.is_returning { None } else { self.return_all(now, number) }
    }

    /// Returns the message that returns all hits of a lease that [`KeyLease::start_return`] marked.
    /// A lease with a new pending message is in use under the current configuration, so it keeps
    /// its hits.
    pub(super) fn finish_return(
        &mut self,
        now: Nanos,
        number: MessageNumber,
    ) -> Option<BorrowRequest> {
        let was_returning = std::mem::take(&mut self.is_returning);
        if was_returning && !self.has_pending() { self.return_all(now, number) } else { None }
    }

    /// Returns a receiver for the pending reply, if any, and unmarks the lease. The caller then
    /// returns the hits instead of [`KeyLease::finish_return`].
    pub(super) fn take_over_return(&mut self) -> Option<watch::Receiver<Option<StoreFailure>>> {
        self.is_returning = false;
        self.pending_reply()
    }

    pub(super) const fn is_returning(&self) -> bool {
        self.is_returning
    }

    pub(super) fn undo_unsent(&mut self, now: Nanos, number: MessageNumber) {
        self.lease_balance.undo_unsent(now, number);
    }

    /// Applies the reply to message `number`, or its failure, and wakes the waiting checks.
    pub(super) fn settle(
        &mut self,
        now: Nanos,
        number: MessageNumber,
        reply: Result<BorrowReply, Option<StoreFailure>>,
    ) {
        self.expire(now);
        let failure = match reply {
            Ok(reply) => {
                self.lease_balance.settle(now, &reply);
                None
            }
            Err(cause) => {
                self.lease_balance.give_up(number);
                cause
            }
        };
        // The reply to an older message does not wake checks that wait for a newer one.
        if self.pending.is_none_or(|pending| pending == number) {
            self.pending = None;
            self.settled.send_replace(failure);
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<StoreFailure>> {
        self.settled.subscribe()
    }

    pub(super) const fn has_pending(&self) -> bool {
        self.pending.is_some()
    }

    pub(super) fn pending_reply(&self) -> Option<watch::Receiver<Option<StoreFailure>>> {
        self.has_pending().then(|| self.subscribe())
    }

    /// Returns the time of the last check, or `None` while a pending reply prevents eviction.
    pub(super) const fn evictable_since(&self) -> Option<Nanos> {
        if self.has_pending() { None } else { Some(self.last_check) }
    }

    pub(super) fn is_idle(&self, now: Nanos) -> bool {
        let idle_time =
            Nanos(self.terms.duration.min(sizer::MAX_SPAN).0.saturating_mul(IDLE_SPANS));
        let is_empty = self.lease_balance.total(now) == Hits(0);
        self.pending.is_none()
            && is_empty
            && idle_time < now.since(self.last_check)
            && !self.lease_balance.may_repeat(now)
    }

    fn set_pending_message(&mut self, message: Option<BorrowRequest>) -> Option<BorrowRequest> {
        let number = message.as_ref().map(|message| message.number);
        self.set_pending(message, number)
    }

    fn set_pending(
        &mut self,
        message: Option<BorrowRequest>,
        pending: Option<MessageNumber>,
    ) -> Option<BorrowRequest> {
        if message.is_some() {
            self.pending = pending;
        }
        message
    }

    fn expire(&mut self, now: Nanos) {
        let hits = self.lease_balance.expire(now);
        if hits != Hits(0) {
            (self.observe)(LeaseEvent::Expired, hits);
        }
    }
}

#[cfg(test)]
mod tests;
