//! What this replica holds of one key, and who waits for more of it.
//!
//! Guarantees: what a question took that is not admitted goes back to the ledger that it was taken from, and only while the
//! store lists it, so that it never lists less than is held.
//! Leaves out: which key; sending.

use tokio::sync::watch;

use super::Leased;
use crate::backend::{Cause, Charge, Outcome};
use crate::kernel::lease::ledger::{Ledger, Spend};
use crate::kernel::lease::sizer;
use crate::kernel::lease::{Answer, Borrow, Number, Terms};
use crate::kernel::rate::{Room, Step};
use crate::kernel::units::{Hits, Nanos};
use crate::telemetry::event::{LeaseEnd, LeasedHits};

/// A key that nobody asked for in so many spans of demand is forgotten: as much as its sizer would remember.
const IDLE_SPANS: u64 = 2;

/// Bits for the epochs of one ledger.
const EPOCHS: u32 = 20;

/// What is held of one key.
#[derive(Debug)]
pub(super) struct Held {
    ledger: Ledger,
    pub(super) charge: Charge,
    pub(super) terms: Terms,
    /// The last question.
    asked: Nanos,
    /// The first of the epochs of this ledger, which no other one of the key has.
    first: u64,
    /// The message whose answer is awaited.
    awaits: Option<Number>,
    /// All is to be given back once that answer is there.
    leaves: bool,
    /// Tells those who wait that a message was settled, or why it was not.
    settled: watch::Sender<Option<Cause>>,
}

impl Held {
    /// Nothing yet. `number` is one that nothing else of this process has.
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

    /// Whether this is held under `leased`'s numbers.
    pub(super) fn is_of(&self, leased: Leased<'_>) -> bool {
        self.terms == leased.terms && self.charge.strategy == leased.charge.strategy
    }

    pub(super) const fn leased(&self) -> Leased<'_> {
        Leased { charge: &self.charge, terms: self.terms }
    }

    /// Counts a question, whatever becomes of it.
    pub(super) fn count(&mut self, now: Nanos, hits: Hits) {
        self.asked = now;
        self.ledger.asked(now, hits);
    }

    /// The outcome where the ledger knows it, a denial's wait included: who asks for more waits longer.
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

    /// The same; hits that pass are in hand until their question is decided: [`Held::put_back`], [`Held::let_go`].
    pub(super) fn take(&mut self, now: Nanos, hits: Hits) -> Option<Outcome> {
        let outcome = self.look(now, hits)?;
        if !outcome.denies() {
            self.ledger.hold(hits);
        }
        Some(outcome)
    }

    /// Until when what is in hand may be put back: while this stays.
    pub(super) const fn epoch(&self) -> u64 {
        self.first + self.ledger.grip()
    }

    /// Puts back hits that were taken in `epoch`.
    pub(super) fn put_back(&mut self, now: Nanos, hits: Hits, epoch: u64) {
        self.expire(now);
        if epoch == self.epoch() {
            self.ledger.put_back(now, hits, self.ledger.grip());
        }
    }

    /// Hits that were taken in `epoch` are spent.
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

    /// The message for more, where it is time to.
    pub(super) fn ahead(&mut self, now: Nanos, number: impl Fn() -> Number) -> Option<Borrow> {
        if self.awaits.is_some() || !self.ledger.is_near_its_end(now) {
            return None;
        }
        let ahead = self.ledger.ahead(now, number());
        self.awaited(ahead)
    }

    /// The message for more that will be needed within `time`.
    pub(super) fn at_leisure(&mut self, now: Nanos, number: Number, time: Nanos) -> Option<Borrow> {
        let more = self.ledger.at_leisure(now, number, time);
        self.awaited(more)
    }

    /// The message for a question; none while another is on its way.
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

    /// Gives everything back; where an answer is awaited, only once it is there: the store may have lent already, and
    /// takes nothing back from who has not heard of it.
    pub(super) fn leave(&mut self, now: Nanos, number: Number) -> Option<Borrow> {
        self.leaves = self.awaits();
        if self.leaves { None } else { self.give_back(now, number) }
    }

    /// Gives back what waited for an answer. One that awaits the next by then is of a limit that is in force and in use.
    pub(super) fn leave_at_last(&mut self, now: Nanos, number: Number) -> Option<Borrow> {
        let leaves = std::mem::take(&mut self.leaves);
        if leaves && !self.awaits() { self.give_back(now, number) } else { None }
    }

    /// Waits for the answer that is awaited, if one is. Whoever does gives back in place of [`Held::leave_at_last`].
    pub(super) fn last_wait(&mut self) -> Option<watch::Receiver<Option<Cause>>> {
        self.leaves = false;
        self.awaited_now()
    }

    pub(super) const fn leaves(&self) -> bool {
        self.leaves
    }

    /// Takes back what message `number` took, because it surely never left.
    pub(super) fn unsent(&mut self, now: Nanos, number: Number) {
        self.ledger.unsent(now, number);
    }

    /// Takes the answer to message `number`, or that none came and why. Those who wait are told.
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
        // Those who wait for a newer message are not told of an older one's fate.
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

    /// Waits for the answer that is awaited, if one is.
    pub(super) fn awaited_now(&self) -> Option<watch::Receiver<Option<Cause>>> {
        self.awaits().then(|| self.wait())
    }

    /// When the last question came; none while an answer is awaited.
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
