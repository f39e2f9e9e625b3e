//! One shard: a table of counters per strategy, and the kernel's step upon them.
//!
//! Guarantees: a counter is in its table exactly when it is not rested, or has not been swept since;
//! the shard's share of the live count is exact.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;

use super::counters::Counters;
use super::shapes::{ShapeId, Shapes};
use super::{KeyHash, Outcome};
use crate::kernel::decision::Cost;
use crate::kernel::rate::gcra::{Gcra, Tat};
use crate::kernel::rate::{Room, Step, Strategy, fixed_window, sliding_log, sliding_window};
use crate::kernel::units::{Hits, Nanos};

/// How long a full shard is left alone between two sweeps that a new key asks for: each costs
/// O(counters), and a flood of new keys must not buy one apiece.
const SWEEP_PAUSE: Nanos = Nanos::SECOND;

/// The counters of one shard, by strategy: a strategy's own state is smaller than any of them.
// A cache line to begin with: two shards on one line would be fought over by threads that have
// nothing to do with each other.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Shard {
    gcra: Table<Debt>,
    fixed_window: Table<Windowed<fixed_window::Count>>,
    sliding_window: Table<Windowed<sliding_window::Pair>>,
    sliding_log: Table<Windowed<sliding_log::Log>>,
    shapes: Shapes,
    swept: Nanos,
}

type Table<S> = HashTable<Entry<S>>;

#[derive(Debug)]
struct Entry<S> {
    hash: KeyHash,
    state: S,
}

/// A GCRA counter: 16 bytes.
#[derive(Clone, Copy, Debug)]
struct Debt {
    tat: Tat,
    shape: ShapeId,
}

/// A counter whose resting depends on the limit, noted when it was last written.
#[derive(Debug, Default)]
struct Windowed<S> {
    state: S,
    rested_at: Nanos,
}

/// The key is new and there is no room for it.
pub(super) struct Full;

impl Shard {
    /// Puts `cost` to the counter of `hash`.
    pub(super) fn charge(
        &mut self,
        hash: KeyHash,
        now: Nanos,
        strategy: &Strategy,
        cost: Cost,
        counters: &Counters,
    ) -> Result<Outcome, Full> {
        if counters.live() >= counters.most() && self.swept.plus(SWEEP_PAUSE) <= now {
            self.sweep(now, counters);
        }
        let step = match strategy {
            Strategy::Gcra(gcra) => self.charge_gcra(hash, now, gcra, cost, counters)?,
            Strategy::FixedWindow(window) => {
                windowed(&mut self.fixed_window, hash, now, cost, counters, |state| match cost {
                    Cost::Charge(hits) => window.step(state, now, hits),
                    Cost::Refund(hits) => window.refund(state, now, hits),
                })?
            }
            Strategy::SlidingWindow(window) => {
                windowed(&mut self.sliding_window, hash, now, cost, counters, |state| match cost {
                    Cost::Charge(hits) => window.step(state, now, hits),
                    Cost::Refund(hits) => window.refund(state, now, hits),
                })?
            }
            Strategy::SlidingLog(log) => {
                windowed(&mut self.sliding_log, hash, now, cost, counters, |state| match cost {
                    Cost::Charge(hits) => log.step(state, now, hits),
                    Cost::Refund(hits) => log.refund(state, now, hits),
                })?
            }
        };
        Ok(match cost {
            Cost::Charge(_) => Outcome::Stepped(step),
            Cost::Refund(_) => Outcome::Refunded(step),
        })
    }

    /// What charging `hits` would come to; changes nothing.
    pub(super) fn ask(&self, hash: KeyHash, now: Nanos, strategy: &Strategy, hits: Hits) -> Step {
        match strategy {
            Strategy::Gcra(gcra) => gcra.ask(&self.tat(hash, now, gcra), now, hits),
            Strategy::FixedWindow(window) => {
                ask(&self.fixed_window, hash, |state| window.ask(state, now, hits))
            }
            Strategy::SlidingWindow(window) => {
                ask(&self.sliding_window, hash, |state| window.ask(state, now, hits))
            }
            Strategy::SlidingLog(log) => {
                ask(&self.sliding_log, hash, |state| log.ask(state, now, hits))
            }
        }
    }

    /// Whether the counter of `hash` exists or may be made.
    pub(super) fn has_room(&self, hash: KeyHash, counters: &Counters) -> bool {
        counters.has_room()
            || find(&self.gcra, hash).is_some()
            || find(&self.fixed_window, hash).is_some()
            || find(&self.sliding_window, hash).is_some()
            || find(&self.sliding_log, hash).is_some()
    }

    /// Drops what is rested at `now`.
    pub(super) fn sweep(&mut self, now: Nanos, counters: &Counters) {
        let before = self.len();
        let shapes = &mut self.shapes;
        self.gcra.retain(|entry| {
            let rested = is_rested(shapes, &entry.state, now);
            if rested {
                shapes.give_back(entry.state.shape);
            }
            !rested
        });
        drop_rested(&mut self.fixed_window, now);
        drop_rested(&mut self.sliding_window, now);
        drop_rested(&mut self.sliding_log, now);
        shrink(&mut self.gcra);
        shrink(&mut self.fixed_window);
        shrink(&mut self.sliding_window);
        shrink(&mut self.sliding_log);
        self.swept = now;
        counters.give_back(before - self.len());
    }

    /// Drops every counter.
    pub(super) fn clear(&mut self, counters: &Counters) {
        counters.give_back(self.len());
        *self = Self { swept: self.swept, ..Self::default() };
    }

    fn len(&self) -> usize {
        self.gcra.len()
            + self.fixed_window.len()
            + self.sliding_window.len()
            + self.sliding_log.len()
    }

    fn charge_gcra(
        &mut self,
        hash: KeyHash,
        now: Nanos,
        gcra: &Gcra,
        cost: Cost,
        counters: &Counters,
    ) -> Result<Step, Full> {
        let act = |tat: &mut Tat| match cost {
            Cost::Charge(hits) => gcra.step(tat, now, hits),
            Cost::Refund(hits) => gcra.refund(tat, now, hits),
        };
        match self.gcra.entry(hash[1], |entry| entry.hash == hash, |entry| entry.hash[1]) {
            Slot::Occupied(mut slot) => {
                let debt = &mut slot.get_mut().state;
                carry(&mut self.shapes, debt, gcra, now);
                let mut tat = debt.tat;
                let step = act(&mut tat);
                debt.tat = tat;
                Ok(step)
            }
            Slot::Vacant(slot) => {
                let mut tat = Tat::default();
                let step = act(&mut tat);
                if gcra.rested(&tat, now) {
                    return Ok(step);
                }
                if !counters.take() {
                    return Err(Full);
                }
                slot.insert(Entry { hash, state: Debt { tat, shape: self.shapes.take(gcra) } });
                Ok(step)
            }
        }
    }

    /// The debt of `hash` as `gcra` sees it.
    fn tat(&self, hash: KeyHash, now: Nanos, gcra: &Gcra) -> Tat {
        let Some(debt) = find(&self.gcra, hash) else { return Tat::default() };
        match self.shapes.get(debt.shape) {
            Some(from) if from != gcra => gcra.carry(&debt.tat, from, now),
            _ => debt.tat,
        }
    }
}

/// Converts a debt that was written under other numbers.
fn carry(shapes: &mut Shapes, debt: &mut Debt, gcra: &Gcra, now: Nanos) {
    let Some(from) = shapes.get(debt.shape).copied().filter(|from| from != gcra) else { return };
    debt.tat = gcra.carry(&debt.tat, &from, now);
    shapes.give_back(debt.shape);
    debt.shape = shapes.take(gcra);
}

fn is_rested(shapes: &Shapes, debt: &Debt, now: Nanos) -> bool {
    shapes.get(debt.shape).is_none_or(|gcra| gcra.rested(&debt.tat, now))
}

fn find<S>(table: &Table<S>, hash: KeyHash) -> Option<&S> {
    table.find(hash[1], |entry| entry.hash == hash).map(|entry| &entry.state)
}

fn ask<S: Default>(
    table: &Table<Windowed<S>>,
    hash: KeyHash,
    ask: impl FnOnce(&S) -> Step,
) -> Step {
    match find(table, hash) {
        Some(windowed) => ask(&windowed.state),
        None => ask(&S::default()),
    }
}

fn windowed<S: Default>(
    table: &mut Table<Windowed<S>>,
    hash: KeyHash,
    now: Nanos,
    cost: Cost,
    counters: &Counters,
    act: impl FnOnce(&mut S) -> Step,
) -> Result<Step, Full> {
    match table.entry(hash[1], |entry| entry.hash == hash, |entry| entry.hash[1]) {
        Slot::Occupied(mut slot) => {
            let windowed = &mut slot.get_mut().state;
            let step = act(&mut windowed.state);
            windowed.rested_at = rested_at(step, now).unwrap_or(windowed.rested_at);
            Ok(step)
        }
        Slot::Vacant(slot) => {
            let mut state = S::default();
            let step = act(&mut state);
            let Some(rested_at) = rested_at(step, now).filter(|at| charges(cost) && *at > now)
            else {
                return Ok(step);
            };
            if !counters.take() {
                return Err(Full);
            }
            slot.insert(Entry { hash, state: Windowed { state, rested_at } });
            Ok(step)
        }
    }
}

/// Whether `cost` can make a counter out of nothing.
const fn charges(cost: Cost) -> bool {
    matches!(cost, Cost::Charge(Hits(1..)))
}

/// When the counter that answered `step` is rested again; nothing when it did not answer.
fn rested_at(step: Step, now: Nanos) -> Option<Nanos> {
    match step {
        Step::Admit(Room { reset_after, .. })
        | Step::Deny { room: Room { reset_after, .. }, .. }
        | Step::Never(Room { reset_after, .. }) => Some(now.plus(reset_after)),
        Step::Stale => None,
    }
}

fn drop_rested<S>(table: &mut Table<Windowed<S>>, now: Nanos) {
    table.retain(|entry| entry.state.rested_at > now);
}

/// Gives memory back once three quarters of a table stand empty.
fn shrink<S>(table: &mut Table<S>) {
    if table.capacity() > 64 && table.len() < table.capacity() / 4 {
        table.shrink_to(table.len() * 2, |entry| entry.hash[1]);
    }
}
