//! Reservations on one counter: hits that are charged for a check and may still be refunded.
//!
//! A check that is charged atomically in several stores reserves its
//! hits in each of them. It then keeps all the hits or cancels all.
//! A reservation that is never decided is canceled when it expires.
//!
//! Guarantees:
//! - Reserved hits are charged at once, so the limit is never exceeded.
//! - A cancel refunds only hits that remain in the same window or log entry.
//! - A cancel reduces a debt only by the part that is certainly still owed.
//! - A repeated reservation with the same id is charged once.
//! - A reservation ends once: kept, canceled or expired.
//!
//! Not covered:
//! - The verdict of the check.
//! - The clock, which is the store's.
//!
//! **Debts.** A GCRA debt drains as a whole; it does not record which hits it consists of.
//! Reserved hits that have drained cannot be refunded: a refund would remove hits that
//! others charged since. Call *gap* the amount by which the debt would be smaller without
//! the open reservations. The gap shrinks only while the debt without them would be zero,
//! by N per tick. So the gap is always at least `held`, which is updated at each step:
//!
//! | formula | worked row, N = 1 per tick |
//! |---|---|
//! | left = debt then − elapsed · N | 50 owed, 20 of them reserved; 40 ticks later: 10 |
//! | held = min(held, left) − the part of `left` that is no longer owed | min(20, 10) = 10 |
//! | refund = min(hits · P, held − cost of the other reservations) | 10, though 20 were reserved |

use super::counter::{Counter, Mark, room};
use crate::kernel::rate::Step;
use crate::kernel::rate::gcra::Gcra;
use crate::kernel::rate::limit::Tick;
use crate::kernel::units::{Hits, Nanos};

/// The most open reservations of one counter; above it, [`Holds::hold`] returns `None`.
///
/// Expiring this many takes about a millisecond, during which the store serves no other client.
pub const MOST_HOLDS: usize = 4_096;

/// The id of a reservation: the process, and a number that is unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub u64, pub u64);

/// The open reservations of one counter. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    open: Vec<Hold>,
    debt: Debt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hold {
    id: Id,
    hits: Hits,
    mark: Mark,
    until: Nanos,
}

/// The part of a GCRA debt that is certainly still reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Debt {
    under: Option<Gcra>,
    /// The tick of the last update, and the debt at that tick in hit·ticks.
    since: u64,
    owed: u64,
    /// The reserved part of `owed`, in hit·ticks.
    held: u64,
}

impl Holds {
    /// Charges and reserves `hits` until `now + term`, if
    /// the limit allows them. A denial charges nothing.
    ///
    /// Returns `None` if too many reservations are open. Cost: O(open reservations).
    pub fn hold(
        &mut self,
        counter: &mut Counter,
        now: Nanos,
        id: Id,
        hits: Hits,
        term: Nanos,
    ) -> Option<Step> {
        let now = Tick::Micro.nanos(Tick::Micro.floor(now));
        if counter.ask(now, Hits(0)) == Step::Stale {
            return Some(Step::Stale);
        }
        settle(counter, now);
        self.expire(counter, now);
        if self.open.iter().any(|hold| hold.id == id) {
            return Some(Step::Admit(room(counter.ask(now, Hits(0)))));
        }
        let asked = counter.ask(now, hits);
        if hits == Hits(0) || !matches!(asked, Step::Admit(_)) {
            return Some(asked);
        }
        if MOST_HOLDS <= self.open.len() {
            return None;
        }
        self.debt.turn(counter, now);
        let step = counter.step(now, hits);
        self.debt.hold(hits);
        self.open.push(Hold { id, hits, mark: counter.mark(now), until: now.plus(term) });
        Some(step)
    }

    /// Keeps the hits charged. Returns `false` if the reservation had already ended.
    pub fn keep(&mut self, id: Id) -> bool {
        let kept = self.take(id);
        self.debt.keep(kept.map_or(Hits(0), |hold| hold.hits));
        kept.is_some()
    }

    /// Refunds the hits if they are still reserved. Returns the headroom after that.
    pub fn give_back(&mut self, counter: &mut Counter, now: Nanos, id: Id) -> Step {
        let now = Tick::Micro.nanos(Tick::Micro.floor(now));
        if counter.ask(now, Hits(0)) == Step::Stale {
            return Step::Stale;
        }
        settle(counter, now);
        if let Some(hold) = self.take(id) {
            self.undo(counter, now, &[hold]);
        }
        counter.ask(now, Hits(0))
    }

    fn take(&mut self, id: Id) -> Option<Hold> {
        let at = self.open.iter().position(|hold| hold.id == id)?;
        Some(self.open.remove(at))
    }

    fn expire(&mut self, counter: &mut Counter, now: Nanos) {
        let over: Vec<Hold> = self.open.extract_if(.., |hold| hold.until <= now).collect();
        if !over.is_empty() {
            self.undo(counter, now, &over);
        }
    }

    fn undo(&mut self, counter: &mut Counter, now: Nanos, over: &[Hold]) {
        self.debt.turn(counter, now);
        match counter {
            Counter::Gcra(limit, state) => {
                let hits = over.iter().map(|hold| hold.hits).fold(Hits(0), Hits::plus);
                let others = self.open.iter().map(|hold| hold.hits).fold(Hits(0), Hits::plus);
                limit.forgive(state, now, self.debt.give_back(hits, others));
            }
            _ => over.iter().for_each(|hold| counter.refund(now, hold.mark, hold.hits)),
        }
    }
}

/// Applies the cap of one burst to a debt after the
/// clock stepped back, so that it drains from `now`.
fn settle(counter: &mut Counter, now: Nanos) {
    if let Counter::Gcra(limit, state) = counter {
        limit.step(state, now, Hits(0));
    }
}

impl Debt {
    /// Updates the debt and its reserved part to `now`.
    fn turn(&mut self, counter: &Counter, now: Nanos) {
        let Counter::Gcra(limit, state) = counter else { return };
        let (since, owed) = (limit.tick().floor(now), limit.owed(state, now));
        let held = if self.under == Some(**limit) { self.still(limit, since, owed) } else { 0 };
        *self = Self { under: Some(**limit), since, owed, held };
    }

    /// Returns the part of the debt `owed` at `tick` that is still reserved.
    fn still(&self, limit: &Gcra, tick: u64, owed: u64) -> u64 {
        let worth = limit.worth();
        let earned = |ticks: u64| ticks.saturating_mul(u64::from(worth.hits));
        let left = match tick.checked_sub(self.since) {
            Some(elapsed) => self.owed.saturating_sub(earned(elapsed)),
            // The clock stepped back.
            None => self
                .owed
                .saturating_add(earned(self.since.saturating_sub(tick)))
                .min(limit.capacity()),
        };
        self.held.min(left).saturating_sub(left.saturating_sub(owed))
    }

    fn hold(&mut self, hits: Hits) {
        let cost = self.cost(hits);
        (self.owed, self.held) = (self.owed.saturating_add(cost), self.held.saturating_add(cost));
    }

    fn keep(&mut self, hits: Hits) {
        self.held = self.held.saturating_sub(self.cost(hits));
    }

    /// Returns the part of the cost of `hits` to refund;
    /// `others` are reserved and may still be kept.
    fn give_back(&mut self, hits: Hits, others: Hits) -> u64 {
        let back = self.cost(hits).min(self.held.saturating_sub(self.cost(others)));
        (self.owed, self.held) = (self.owed.saturating_sub(back), self.held.saturating_sub(back));
        back
    }

    fn cost(&self, hits: Hits) -> u64 {
        self.under.map_or(0, |under| hits.0.saturating_mul(under.worth().ticks.get()))
    }
}
