//! One shard: a table of counters for each strategy, changed by the kernel's steps.
//!
//! Guarantees:
//! - The tables contain every counter that is not empty; a sweep drops the empty ones.
//! - The shard's part of the number of counters in use is exact.

use super::books::Books;
use super::counters::{Counters, Places};
use super::shapes::{ShapeId, Shapes};
use super::table::{Hashed, KeyHash, Table};
use crate::backend::lease::Message;
use crate::kernel::decision::Cost;
use crate::kernel::lease::Answer;
use crate::kernel::lease::counter::Counter;
use crate::kernel::rate::gcra::{Gcra, Tat};
use crate::kernel::rate::{Room, Step, Strategy, fixed_window, sliding_log, sliding_window};
use crate::kernel::units::{Hits, Nanos};

/// The shortest pause between two sweeps of a full shard. A sweep costs
/// O(counters), so a flood of new keys must not cause a sweep for each key.
const SWEEP_PAUSE: Nanos = Nanos::SECOND;

/// The counters of one shard, one table for each strategy, because the states differ in size.
// The order keeps the most frequently read tables
// beside the lock: the lock's cache line contains them.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Shard {
    gcra: Table<Debt>,
    fixed_window: Table<Windowed<fixed_window::Count>>,
    shapes: Shapes,
    sliding_window: Table<Windowed<sliding_window::Pair>>,
    sliding_log: Table<Windowed<sliding_log::Log>>,
    books: Books,
    swept: Nanos,
}

// 32 bytes: two entries fill a cache line, and no entry crosses one.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Debt {
    hash: KeyHash,
    tat: Tat,
    shape: ShapeId,
}

const _: () = assert!(size_of::<Option<Debt>>() == 32);

/// A window or a log, with the instant at which it is empty.
/// That instant depends on the limit of the last write.
#[derive(Debug)]
struct Windowed<S> {
    hash: KeyHash,
    state: S,
    rested_at: Nanos,
}

const _: () = assert!(size_of::<Option<Windowed<fixed_window::Count>>>() == 40);
const _: () = assert!(size_of::<Option<Windowed<sliding_window::Pair>>>() == 40);
const _: () = assert!(size_of::<Option<Windowed<sliding_log::Log>>>() == 64);

impl Hashed for Debt {
    fn hash(&self) -> KeyHash {
        self.hash
    }
}

impl<S> Hashed for Windowed<S> {
    fn hash(&self) -> KeyHash {
        self.hash
    }
}

pub(super) struct Full;

impl Shard {
    pub(super) fn charge(
        &mut self,
        hash: KeyHash,
        now: Nanos,
        strategy: &Strategy,
        cost: Cost,
        places: &impl Places,
    ) -> Result<Step, Full> {
        match strategy {
            Strategy::Gcra(gcra) => self.charge_gcra(hash, now, gcra, cost, places),
            Strategy::FixedWindow(window) => {
                windowed(&mut self.fixed_window, hash, now, cost, places, |state| match cost {
                    Cost::Charge(hits) => window.step(state, now, hits),
                    Cost::Refund(hits) => window.refund(state, now, hits),
                })
            }
            Strategy::SlidingWindow(window) => {
                windowed(&mut self.sliding_window, hash, now, cost, places, |state| match cost {
                    Cost::Charge(hits) => window.step(state, now, hits),
                    Cost::Refund(hits) => window.refund(state, now, hits),
                })
            }
            Strategy::SlidingLog(log) => {
                windowed(&mut self.sliding_log, hash, now, cost, places, |state| match cost {
                    Cost::Charge(hits) => log.step(state, now, hits),
                    Cost::Refund(hits) => log.refund(state, now, hits),
                })
            }
        }
    }

    /// Applies a lease message. Returns `None` if a later message superseded it.
    pub(super) fn borrow(
        &mut self,
        hash: KeyHash,
        now: Nanos,
        message: &Message,
        counters: &Counters,
    ) -> Result<Option<Answer>, Full> {
        self.sweep_if_full(now, counters);
        let Message { terms, member, borrow, .. } = message;
        let books = &mut self.books;
        // The counter takes its place before the list does:
        // with one free place the charge still counts.
        let mut act = |mut counter: Counter| {
            let mut open = books.open(hash, terms, counters);
            let answer = open.book.step(&mut counter, &open.terms, now, *member, borrow);
            books.close(open, now, counters);
            answer
        };
        match &message.strategy {
            Strategy::Gcra(gcra) => {
                lend_gcra((&mut self.gcra, &mut self.shapes), hash, now, gcra, counters, act)
            }
            Strategy::FixedWindow(window) => {
                let rested = |state: &_| window.rested(state, now);
                lend(&mut self.fixed_window, hash, now, counters, rested, |state| {
                    act(Counter::FixedWindow(window, state))
                })
            }
            Strategy::SlidingWindow(window) => {
                let rested = |state: &_| window.rested(state, now);
                lend(&mut self.sliding_window, hash, now, counters, rested, |state| {
                    act(Counter::SlidingWindow(window, state))
                })
            }
            Strategy::SlidingLog(log) => {
                let rested = |state: &_| log.rested(state, now);
                lend(&mut self.sliding_log, hash, now, counters, rested, |state| {
                    act(Counter::SlidingLog(log, state))
                })
            }
        }
    }

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

    pub(super) fn knows(&self, hash: KeyHash) -> bool {
        self.gcra.get(hash).is_some()
            || self.fixed_window.get(hash).is_some()
            || self.sliding_window.get(hash).is_some()
            || self.sliding_log.get(hash).is_some()
    }

    pub(super) fn sweep(&mut self, now: Nanos, counters: &Counters) {
        let before = self.len();
        let shapes = &mut self.shapes;
        self.gcra.retain(|debt| {
            let rested = is_rested(shapes, debt, now);
            if rested {
                shapes.give_back(debt.shape);
            }
            !rested
        });
        drop_rested(&mut self.fixed_window, now);
        drop_rested(&mut self.sliding_window, now);
        drop_rested(&mut self.sliding_log, now);
        self.books.sweep(now);
        self.swept = now;
        counters.give_back(before - self.len());
    }

    pub(super) fn clear(&mut self, counters: &Counters) {
        counters.give_back(self.len());
        *self = Self { swept: self.swept, ..Self::default() };
    }

    fn len(&self) -> usize {
        self.gcra.len()
            + self.fixed_window.len()
            + self.sliding_window.len()
            + self.sliding_log.len()
            + self.books.len()
    }

    /// Sweeps if there is no place for a new counter, at most once in [`SWEEP_PAUSE`].
    pub(super) fn sweep_if_full(&mut self, now: Nanos, counters: &Counters) {
        if counters.are_full() && self.swept.plus(SWEEP_PAUSE) <= now {
            self.sweep(now, counters);
        }
    }

    fn charge_gcra(
        &mut self,
        hash: KeyHash,
        now: Nanos,
        gcra: &Gcra,
        cost: Cost,
        places: &impl Places,
    ) -> Result<Step, Full> {
        let act = |tat: &mut Tat| match cost {
            Cost::Charge(hits) => gcra.step(tat, now, hits),
            Cost::Refund(hits) => gcra.refund(tat, now, hits),
        };
        if let Some(debt) = self.gcra.get_mut(hash) {
            carry(&mut self.shapes, debt, gcra, now);
            let mut tat = debt.tat;
            let step = act(&mut tat);
            debt.tat = tat;
            return Ok(step);
        }
        let mut tat = Tat::default();
        let step = act(&mut tat);
        if gcra.rested(&tat, now) {
            return Ok(step);
        }
        if !places.take() {
            return Err(Full);
        }
        self.gcra.insert(Debt { hash, tat, shape: self.shapes.take(gcra) });
        Ok(step)
    }

    /// Returns the debt of `hash`, converted to the limit `gcra`.
    fn tat(&self, hash: KeyHash, now: Nanos, gcra: &Gcra) -> Tat {
        let Some(debt) = self.gcra.get(hash) else { return Tat::default() };
        match self.shapes.get(debt.shape) {
            Some(from) if from != gcra => gcra.carry(&debt.tat, from, now),
            _ => debt.tat,
        }
    }
}

fn carry(shapes: &mut Shapes, debt: &mut Debt, gcra: &Gcra, now: Nanos) {
    let Some(from) = shapes.get(debt.shape).copied().filter(|from| from != gcra) else { return };
    debt.tat = gcra.carry(&debt.tat, &from, now);
    shapes.give_back(debt.shape);
    debt.shape = shapes.take(gcra);
}

fn is_rested(shapes: &Shapes, debt: &Debt, now: Nanos) -> bool {
    shapes.get(debt.shape).is_none_or(|gcra| gcra.rested(&debt.tat, now))
}

fn ask<S: Default>(
    table: &Table<Windowed<S>>,
    hash: KeyHash,
    ask: impl FnOnce(&S) -> Step,
) -> Step {
    match table.get(hash) {
        Some(windowed) => ask(&windowed.state),
        None => ask(&S::default()),
    }
}

fn windowed<S: Default>(
    table: &mut Table<Windowed<S>>,
    hash: KeyHash,
    now: Nanos,
    cost: Cost,
    places: &impl Places,
    act: impl FnOnce(&mut S) -> Step,
) -> Result<Step, Full> {
    if let Some(windowed) = table.get_mut(hash) {
        let step = act(&mut windowed.state);
        windowed.rested_at = rested_at(step, now).unwrap_or(windowed.rested_at);
        return Ok(step);
    }
    let mut state = S::default();
    let step = act(&mut state);
    let Some(rested_at) = rested_at(step, now).filter(|at| makes_one(cost) && *at > now) else {
        return Ok(step);
    };
    if !places.take() {
        return Err(Full);
    }
    table.insert(Windowed { hash, state, rested_at });
    Ok(step)
}

fn lend_gcra(
    (table, shapes): (&mut Table<Debt>, &mut Shapes),
    hash: KeyHash,
    now: Nanos,
    gcra: &Gcra,
    counters: &Counters,
    act: impl FnOnce(Counter) -> Option<Answer>,
) -> Result<Option<Answer>, Full> {
    if let Some(debt) = table.get_mut(hash) {
        carry(shapes, debt, gcra, now);
        let mut tat = debt.tat;
        let answer = act(Counter::Gcra(gcra, &mut tat));
        debt.tat = tat;
        return Ok(answer);
    }
    if !counters.take() {
        return Err(Full);
    }
    let mut tat = Tat::default();
    let answer = act(Counter::Gcra(gcra, &mut tat));
    if gcra.rested(&tat, now) {
        counters.give_back(1);
    } else {
        table.insert(Debt { hash, tat, shape: shapes.take(gcra) });
    }
    Ok(answer)
}

/// Applies a lease message to the counter of `hash`. A new counter
/// takes its place first: after `act` the grant is already listed.
fn lend<S: Default>(
    table: &mut Table<Windowed<S>>,
    hash: KeyHash,
    now: Nanos,
    counters: &Counters,
    rested: impl FnOnce(&S) -> bool,
    act: impl FnOnce(&mut S) -> Option<Answer>,
) -> Result<Option<Answer>, Full> {
    let rests = |answer: &Option<Answer>| rested_at(answer.as_ref()?.step, now);
    if let Some(windowed) = table.get_mut(hash) {
        let answer = act(&mut windowed.state);
        windowed.rested_at = rests(&answer).unwrap_or(windowed.rested_at);
        return Ok(answer);
    }
    if !counters.take() {
        return Err(Full);
    }
    let mut state = S::default();
    let answer = act(&mut state);
    match rests(&answer).filter(|_| !rested(&state)) {
        Some(rested_at) => table.insert(Windowed { hash, state, rested_at }),
        None => counters.give_back(1),
    }
    Ok(answer)
}

pub(super) const fn makes_one(cost: Cost) -> bool {
    matches!(cost, Cost::Charge(Hits(1..)))
}

/// Returns the instant at which the counter is empty after `step`, or `None` without a decision.
fn rested_at(step: Step, now: Nanos) -> Option<Nanos> {
    match step {
        Step::Admit(Room { reset_after, .. })
        | Step::Deny { room: Room { reset_after, .. }, .. }
        | Step::Never(Room { reset_after, .. }) => Some(now.plus(reset_after)),
        Step::Stale => None,
    }
}

fn drop_rested<S>(table: &mut Table<Windowed<S>>, now: Nanos) {
    table.retain(|windowed| windowed.rested_at > now);
}
