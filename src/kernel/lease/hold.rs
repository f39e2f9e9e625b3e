//! Holds of one counter: hits that questions charged and may yet take back.
//!
//! A question that is charged as one in several places holds its hits in each of them, and keeps all
//! or gives all back. What it never comes back for is given back once its term is over.
//!
//! Guarantees: a hold is charged when it is made, so nothing is ever admitted above the law; what is
//! given back is undone only where the counter still holds it: of its own window, of its own entry in
//! the log, and of a debt no more than is surely there. A hold that is made again while it is open is
//! made once, and it ends once, whoever ends it.
//! Leaves out: who decides, and the clock, which is the store's.
//!
//! **Debts.** A debt has no parts, and drains. Hits that were held while the counter came to rest are
//! gone with it: to give them back later would take away what others charged since. Let `gap` be how much
//! less would be owed, had the open holds not been charged. It falls only while nothing would be
//! owed without them, at N a tick. So it stays at least `held`, where at each turn
//!
//! | formula | worked row, N = 1 a tick |
//! |---|---|
//! | left = owed then − elapsed · N | 50 owed, of which 20 held; 40 ticks later: 10 |
//! | held = min(held, left), less what is missing of `left` | min(20, 10) = 10 |
//! | given back = min(hits · P, held) | 10, though 20 were held and others owe more by now |

use super::counter::{Counter, Mark, room};
use crate::kernel::rate::Step;
use crate::kernel::rate::gcra::Gcra;
use crate::kernel::rate::limit::Tick;
use crate::kernel::units::{Hits, Nanos};

/// The most holds of one counter that are open; then it makes no more. Looking for those whose term
/// is over takes time in which a store answers nobody, about a millisecond for so many.
pub const MOST_HOLDS: usize = 4_096;

/// Whose hold: a process, and the number of its question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub u64, pub u64);

/// The holds of one counter. The default has none.
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

/// What of a debt is surely held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Debt {
    under: Option<Gcra>,
    /// A tick, and what was owed then, in hit·ticks.
    since: u64,
    owed: u64,
    /// How much of it.
    held: u64,
}

impl Holds {
    /// Charges `hits` if they pass, to be kept or given back within `term`. A denial charges nothing.
    ///
    /// None when too many are open. Cost: O(open holds).
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

    /// Leaves the hits charged. Whether they still were held.
    pub fn keep(&mut self, id: Id) -> bool {
        let kept = self.take(id);
        self.debt.keep(kept.map_or(Hits(0), |hold| hold.hits));
        kept.is_some()
    }

    /// Gives the hits back, if they still are held; what is left then.
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

    /// Gives back what nobody came back for.
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
                limit.forgive(state, now, self.debt.give_back(hits));
            }
            _ => over.iter().for_each(|hold| counter.refund(now, hold.mark, hold.hits)),
        }
    }
}

/// A debt cut down to one burst, because the clock stepped back, must drain from here.
fn settle(counter: &mut Counter, now: Nanos) {
    if let Counter::Gcra(limit, state) = counter {
        limit.step(state, now, Hits(0));
    }
}

impl Debt {
    /// What is left of it at `now`.
    fn turn(&mut self, counter: &Counter, now: Nanos) {
        let Counter::Gcra(limit, state) = counter else { return };
        let (since, owed) = (limit.tick().floor(now), limit.owed(state, now));
        let held = if self.under == Some(**limit) { self.still(limit, since, owed) } else { 0 };
        *self = Self { under: Some(**limit), since, owed, held };
    }

    /// How much is still held at `tick`, where `owed` is owed.
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

    /// What of the cost of these hits can be given back.
    fn give_back(&mut self, hits: Hits) -> u64 {
        let back = self.cost(hits).min(self.held);
        (self.owed, self.held) = (self.owed.saturating_sub(back), self.held.saturating_sub(back));
        back
    }

    fn cost(&self, hits: Hits) -> u64 {
        self.under.map_or(0, |under| hits.0.saturating_mul(under.worth().ticks.get()))
    }
}
