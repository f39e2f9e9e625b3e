//! The lease of one key in this replica, and the checks that wait for its pending message.
//!
//! Guarantees:
//! - Hits of a denied check return only to the lease that they came from.
//! - They return only while the store lists them, so it never lists less than the balance.
//!
//! Not covered:
//! - The choice of the key.
//! - Sending messages.

use tokio::sync::watch;

use super::Leased;
use crate::backend::{Cause, Charge, Outcome};
use crate::kernel::lease::ledger::{Ledger, Spend};
use crate::kernel::lease::sizer;
use crate::kernel::lease::{Answer, Borrow, Number, Terms};
use crate::kernel::rate::{Room, Step};
use crate::kernel::units::{Hits, Nanos};
use crate::telemetry::event::{LeaseEnd, LeasedHits};

/// A key without a check for two demand spans is dropped: its sizer has then forgotten all demand.
const IDLE_SPANS: u64 = 2;

/// The number of bits for the epochs of one lease.
const EPOCHS: u32 = 20;

#[derive(Debug)]
pub(super) struct Held {
    ledger: Ledger,
    pub(super) charge: Charge,
    pub(super) terms: Terms,
    asked: Nanos,
    /// The first epoch of this lease; every lease of the key has its own range.
    first: u64,
    awaits: Option<Number>,
    /// `true` if all hits are to be returned after the pending reply.
    leaves: bool,
    /// Wakes the waiting checks when a message is settled.
    /// The value is the failure, if there was one.
    settled: watch::Sender<Option<Cause>>,
}

impl Held {
    /// Creates an empty lease. `number` must be unique in this process.
    pub(super) fn new(leased: Leased<'_>, now: Nanos, number: Number) -> Self {
        let Leased { charge, terms } = leased;
        let ledger = Ledger::new(terms.size, terms.term, sizer::most(charge.strategy.most()));
        Self {
            ledger: ledger.of(charge.strategy),
            charge: charge.clone(),
            terms,
            asked: now,
            first: number.0 << EPOCHS,
            awaits: None,
            leaves: false,
            settled: watch::Sender::default(),
        }
    }

    /// Returns `true` if this lease has the limit and the settings of `leased`.
    pub(super) fn is_of(&self, leased: Leased<'_>) -> bool {
        self.terms == leased.terms && self.charge.strategy == leased.charge.strategy
    }

    pub(super) const fn leased(&self) -> Leased<'_> {
        Leased { charge: &self.charge, terms: self.terms }
    }

    /// Records a check as demand, also if it is denied.
    pub(super) fn count(&mut self, now: Nanos, hits: Hits) {
        self.asked = now;
        self.ledger.asked(now, hits);
    }

    /// Returns the outcome if the balance or a remembered denial decides. A
    /// check of more hits than the remembered one gets a longer retry-after.
    pub(super) fn look(&mut self, now: Nanos, hits: Hits) -> Option<Outcome> {
        self.expire(now);
        let step = match self.ledger.look(now, hits) {
            Spend::Spent(room) => Step::Admit(room),
            Spend::Denied { room, .. } if u64::from(self.charge.strategy.most()) < hits.0 => {
                Step::Never(room)
            }
            Spend::Denied { retry_after, more, room } => {
                let longer = self.charge.strategy.longer(more)?;
                Step::Deny { retry_after: retry_after.plus(longer), room }
            }
            Spend::Ask => return None,
        };
        Some(Outcome::Stepped(step))
    }

    /// Decides like [`Held::look`]. Hits that are allowed stay
    /// undecided until [`Held::put_back`] or [`Held::let_go`].
    pub(super) fn take(&mut self, now: Nanos, hits: Hits) -> Option<Outcome> {
        let outcome = self.look(now, hits)?;
        if !outcome.denies() {
            self.ledger.hold(hits);
        }
        Some(outcome)
    }

    /// Returns the epoch of the undecided hits. They can be put back until it changes.
    pub(super) const fn epoch(&self) -> u64 {
        self.first + self.ledger.grip()
    }

    /// Puts back hits that were taken in `epoch`, unless they were voided since.
    pub(super) fn put_back(&mut self, now: Nanos, hits: Hits, epoch: u64) {
        self.expire(now);
        if epoch == self.epoch() {
            self.ledger.put_back(now, hits, self.ledger.grip());
        }
    }

    pub(super) fn let_go(&mut self, hits: Hits, epoch: u64) {
        if epoch == self.epoch() {
            self.ledger.let_go(hits, self.ledger.grip());
        }
    }

    pub(super) fn room(&self, now: Nanos) -> Room {
        self.ledger.room(now)
    }

    pub(super) fn balance(&self, now: Nanos) -> Hits {
        self.ledger.balance(now)
    }

    pub(super) fn forget_denial(&mut self, now: Nanos) {
        self.ledger.forget_denial(now);
    }

    pub(super) fn ahead(&mut self, now: Nanos, number: impl Fn() -> Number) -> Option<Borrow> {
        if self.awaits.is_some() || !self.ledger.is_near_its_end(now) {
            return None;
        }
        let ahead = self.ledger.ahead(now, number());
        self.awaited(ahead)
    }

    /// Returns the message of an early refill, if a refill would be due within `time`.
    pub(super) fn at_leisure(&mut self, now: Nanos, number: Number, time: Nanos) -> Option<Borrow> {
        let more = self.ledger.at_leisure(now, number, time);
        self.awaited(more)
    }

    /// Returns the message of a check; `None` while another message is pending.
    pub(super) fn borrow(&mut self, now: Nanos, number: Number, hits: Hits) -> Option<Borrow> {
        self.expire(now);
        let borrow = self.ledger.borrow(now, number, hits);
        self.awaited(borrow)
    }

    pub(super) fn surplus(&mut self, now: Nanos, number: Number) -> Option<Borrow> {
        self.expire(now);
        let quiet = now.since(self.asked);
        let surplus = self.ledger.abandon(now, number, quiet);
        let surplus = surplus.or_else(|| self.ledger.surplus(now, number));
        self.wrote(surplus, self.awaits)
    }

    pub(super) fn give_back(&mut self, now: Nanos, number: Number) -> Option<Borrow> {
        self.expire(now);
        let all = self.ledger.give_back(now, number);
        self.wrote(all, None)
    }

    /// Returns the message that returns all hits. Marks the lease instead while a reply is
    /// pending: the store may have granted hits, which can be returned only after the reply.
    pub(super) fn leave(&mut self, now: Nanos, number: Number) -> Option<Borrow> {
        self.leaves = self.awaits();
        if self.leaves { None } else { self.give_back(now, number) }
    }

    /// Returns the message that returns all hits of a marked lease. A lease with a
    /// new pending message has checks under the current configuration, so it stays.
    pub(super) fn leave_at_last(&mut self, now: Nanos, number: Number) -> Option<Borrow> {
        let leaves = std::mem::take(&mut self.leaves);
        if leaves && !self.awaits() { self.give_back(now, number) } else { None }
    }

    /// Returns a receiver for the pending reply. Its caller
    /// returns the hits in place of [`Held::leave_at_last`].
    pub(super) fn last_wait(&mut self) -> Option<watch::Receiver<Option<Cause>>> {
        self.leaves = false;
        self.awaited_now()
    }

    pub(super) const fn leaves(&self) -> bool {
        self.leaves
    }

    pub(super) fn unsent(&mut self, now: Nanos, number: Number) {
        self.ledger.unsent(now, number);
    }

    /// Applies the reply to message `number`, or its failure, and wakes the waiting checks.
    pub(super) fn settle(
        &mut self,
        now: Nanos,
        number: Number,
        came: Result<Answer, Option<Cause>>,
    ) {
        self.expire(now);
        let lost = match came {
            Ok(answer) => {
                self.ledger.settle(now, &answer);
                None
            }
            Err(cause) => {
                self.ledger.lost(number);
                cause
            }
        };
        // Checks that wait for a newer message ignore the end of an older one.
        if self.awaits.is_none_or(|awaited| awaited == number) {
            self.awaits = None;
            self.settled.send_replace(lost);
        }
    }

    pub(super) fn wait(&self) -> watch::Receiver<Option<Cause>> {
        self.settled.subscribe()
    }

    pub(super) const fn awaits(&self) -> bool {
        self.awaits.is_some()
    }

    pub(super) fn awaited_now(&self) -> Option<watch::Receiver<Option<Cause>>> {
        self.awaits().then(|| self.wait())
    }

    /// Returns the time of the last check; `None` while a reply is pending.
    pub(super) const fn last_asked(&self) -> Option<Nanos> {
        if self.awaits() { None } else { Some(self.asked) }
    }

    pub(super) fn is_idle(&self, now: Nanos) -> bool {
        let patience = Nanos(self.terms.term.min(sizer::LONGEST_SPAN).0.saturating_mul(IDLE_SPANS));
        let is_empty = self.ledger.held(now) == Hits(0);
        self.awaits.is_none() && is_empty && patience < now.since(self.asked)
    }

    fn awaited(&mut self, message: Option<Borrow>) -> Option<Borrow> {
        let number = message.as_ref().map(|message| message.number);
        self.wrote(message, number)
    }

    fn wrote(&mut self, message: Option<Borrow>, awaits: Option<Number>) -> Option<Borrow> {
        if message.is_some() {
            self.awaits = awaits;
        }
        message
    }

    fn expire(&mut self, now: Nanos) {
        let hits = self.ledger.expire(now);
        if hits != Hits(0) {
            LeasedHits { hits, end: LeaseEnd::Expired }.emit();
        }
    }
}

#[cfg(test)]
mod tests;
