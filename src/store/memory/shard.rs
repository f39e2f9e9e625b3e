//! One shard of the memory store: a hash table of counters for each strategy.
//!
//! Guarantees:
//! - The hash tables contain every counter that is not empty; a sweep drops the empty ones.
//! - Every new or dropped counter of the shard is counted in the total of the store.

use super::counters::{CounterCapacity, PlaceSource};
use super::gcra_limits::{GcraId, GcraLimits};
use super::lease_lists::LeaseLists;
use super::table::{CounterTable, HasKeyHash, KeyHash};
use crate::kernel::decision::Cost;
use crate::kernel::lease::BorrowReply;
use crate::kernel::lease::counter::AnyCounter;
use crate::kernel::rate::gcra::{Gcra, Tat};
use crate::kernel::rate::{
    CounterDecision, Headroom, Strategy, fixed_window, sliding_log, sliding_window,
};
use crate::kernel::units::{Hits, Nanos};
use crate::store::lease::LeaseMessage;

/// The shortest pause between two sweeps of a shard while the store is full. A sweep costs
/// O(counters), so a flood of new keys must not cause a sweep for each key.
const MIN_SWEEP_INTERVAL: Nanos = Nanos::SECOND;

/// The counters of one shard. Each strategy has its own hash table, because the states differ in
/// size.
// The most frequently read hash tables come first: they are then in the same cache line as the
// shard's lock.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Shard {
    gcra: CounterTable<GcraCounter>,
    fixed_window: CounterTable<WindowCounter<fixed_window::WindowCount>>,
    gcra_limits: GcraLimits,
    sliding_window: CounterTable<WindowCounter<sliding_window::WindowPair>>,
    sliding_log: CounterTable<WindowCounter<sliding_log::ArrivalLog>>,
    leases: LeaseLists,
    swept_at: Nanos,
}

// The alignment of 32 bytes keeps each entry within one cache line, which contains two entries.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct GcraCounter {
    hash: KeyHash,
    tat: Tat,
    limit_id: GcraId,
}

const _: () = assert!(size_of::<Option<GcraCounter>>() == 32);

/// A counter of a window or of a sliding log, with the instant at which it becomes empty. That
/// instant depends on the limit at the last write.
#[derive(Debug)]
struct WindowCounter<S> {
    hash: KeyHash,
    state: S,
    empty_at: Nanos,
}

const _: () = assert!(size_of::<Option<WindowCounter<fixed_window::WindowCount>>>() == 40);
const _: () = assert!(size_of::<Option<WindowCounter<sliding_window::WindowPair>>>() == 40);
const _: () = assert!(size_of::<Option<WindowCounter<sliding_log::ArrivalLog>>>() == 64);

impl HasKeyHash for GcraCounter {
    fn hash(&self) -> KeyHash {
        self.hash
    }
}

impl<S> HasKeyHash for WindowCounter<S> {
    fn hash(&self) -> KeyHash {
        self.hash
    }
}

pub(super) struct ShardFull;

impl Shard {
    pub(super) fn charge(
        &mut self,
        hash: KeyHash,
        now: Nanos,
        strategy: &Strategy,
        cost: Cost,
        places: &impl PlaceSource,
    ) -> Result<CounterDecision, ShardFull> {
        match strategy {
            Strategy::Gcra(gcra) => self.charge_gcra(hash, now, gcra, cost, places),
            Strategy::FixedWindow(window) => {
                charge_window(&mut self.fixed_window, hash, now, cost, places, |state| match cost {
                    Cost::Charge(hits) => window.charge(state, now, hits),
                    Cost::Refund(hits) => window.refund(state, now, hits),
                })
            }
            Strategy::SlidingWindow(window) => {
                charge_window(&mut self.sliding_window, hash, now, cost, places, |state| match cost
                {
                    Cost::Charge(hits) => window.charge(state, now, hits),
                    Cost::Refund(hits) => window.refund(state, now, hits),
                })
            }
            Strategy::SlidingLog(log) => {
                charge_window(&mut self.sliding_log, hash, now, cost, places, |state| match cost {
                    Cost::Charge(hits) => log.charge(state, now, hits),
                    Cost::Refund(hits) => log.refund(state, now, hits),
                })
            }
        }
    }

    /// Applies a lease message. Returns `None` if the store has already applied a later message of
    /// the replica.
    pub(super) fn apply_lease_message(
        &mut self,
        hash: KeyHash,
        now: Nanos,
        message: &LeaseMessage,
        counters: &CounterCapacity,
    ) -> Result<Option<BorrowReply>, ShardFull> {
        self.sweep_if_full(now, counters);
        let LeaseMessage { terms, sender: member, borrow, .. } = message;
        let books = &mut self.leases;
        // Reserve capacity for the counter before the lease table: if only one of them fits, the
        // charge is still counted.
        let mut act = |mut counter: AnyCounter| {
            let mut open = books.take_or_create(hash, terms, counters);
            let answer = open.leases.apply(&mut counter, &open.terms, now, *member, borrow);
            books.put_back(open, now, counters);
            answer
        };
        match &message.strategy {
            Strategy::Gcra(gcra) => {
                lease_gcra((&mut self.gcra, &mut self.gcra_limits), hash, now, gcra, counters, act)
            }
            Strategy::FixedWindow(window) => {
                let rested = |state: &_| window.is_empty(state, now);
                lease_window(&mut self.fixed_window, hash, now, counters, rested, |state| {
                    act(AnyCounter::FixedWindow(window, state))
                })
            }
            Strategy::SlidingWindow(window) => {
                let rested = |state: &_| window.is_empty(state, now);
                lease_window(&mut self.sliding_window, hash, now, counters, rested, |state| {
                    act(AnyCounter::SlidingWindow(window, state))
                })
            }
            Strategy::SlidingLog(log) => {
                let rested = |state: &_| log.is_empty(state, now);
                lease_window(&mut self.sliding_log, hash, now, counters, rested, |state| {
                    act(AnyCounter::SlidingLog(log, state))
                })
            }
        }
    }

    pub(super) fn preview(
        &self,
        hash: KeyHash,
        now: Nanos,
        strategy: &Strategy,
        hits: Hits,
    ) -> CounterDecision {
        match strategy {
            Strategy::Gcra(gcra) => gcra.peek(&self.gcra_state(hash, now, gcra), now, hits),
            Strategy::FixedWindow(window) => {
                preview_window(&self.fixed_window, hash, |state| window.peek(state, now, hits))
            }
            Strategy::SlidingWindow(window) => {
                preview_window(&self.sliding_window, hash, |state| window.peek(state, now, hits))
            }
            Strategy::SlidingLog(log) => {
                preview_window(&self.sliding_log, hash, |state| log.peek(state, now, hits))
            }
        }
    }

    pub(super) fn has_counter(&self, hash: KeyHash) -> bool {
        self.gcra.get(hash).is_some()
            || self.fixed_window.get(hash).is_some()
            || self.sliding_window.get(hash).is_some()
            || self.sliding_log.get(hash).is_some()
    }

    pub(super) fn drop_empty(&mut self, now: Nanos, counters: &CounterCapacity) {
        let before = self.len();
        let shapes = &mut self.gcra_limits;
        self.gcra.retain(|debt| {
            let rested = is_debt_drained(shapes, debt, now);
            if rested {
                shapes.remove_user(debt.limit_id);
            }
            !rested
        });
        drop_empty_windows(&mut self.fixed_window, now);
        drop_empty_windows(&mut self.sliding_window, now);
        drop_empty_windows(&mut self.sliding_log, now);
        self.leases.drop_expired(now);
        self.swept_at = now;
        counters.release(before - self.len());
    }

    pub(super) fn clear(&mut self, counters: &CounterCapacity) {
        counters.release(self.len());
        *self = Self { swept_at: self.swept_at, ..Self::default() };
    }

    fn len(&self) -> usize {
        self.gcra.len()
            + self.fixed_window.len()
            + self.sliding_window.len()
            + self.sliding_log.len()
            + self.leases.len()
    }

    /// Sweeps this shard if the store is full, at most once in [`MIN_SWEEP_INTERVAL`].
    pub(super) fn sweep_if_full(&mut self, now: Nanos, counters: &CounterCapacity) {
        if counters.is_full() && self.swept_at.plus(MIN_SWEEP_INTERVAL) <= now {
            self.drop_empty(now, counters);
        }
    }

    fn charge_gcra(
        &mut self,
        hash: KeyHash,
        now: Nanos,
        gcra: &Gcra,
        cost: Cost,
        places: &impl PlaceSource,
    ) -> Result<CounterDecision, ShardFull> {
        let act = |tat: &mut Tat| match cost {
            Cost::Charge(hits) => gcra.charge(tat, now, hits),
            Cost::Refund(hits) => gcra.refund(tat, now, hits),
        };
        if let Some(debt) = self.gcra.get_mut(hash) {
            convert_debt(&mut self.gcra_limits, debt, gcra, now);
            let mut tat = debt.tat;
            let step = act(&mut tat);
            debt.tat = tat;
            return Ok(step);
        }
        let mut tat = Tat::default();
        let step = act(&mut tat);
        if gcra.is_empty(&tat, now) {
            return Ok(step);
        }
        if !places.try_take() {
            return Err(ShardFull);
        }
        self.gcra.insert(GcraCounter { hash, tat, limit_id: self.gcra_limits.add_user(gcra) });
        Ok(step)
    }

    /// Returns the GCRA state of the counter `hash`, converted to the limit `gcra`.
    fn gcra_state(&self, hash: KeyHash, now: Nanos, gcra: &Gcra) -> Tat {
        let Some(debt) = self.gcra.get(hash) else { return Tat::default() };
        match self.gcra_limits.get(debt.limit_id) {
            Some(from) if from != gcra => gcra.convert(&debt.tat, from, now),
            _ => debt.tat,
        }
    }
}

fn convert_debt(shapes: &mut GcraLimits, debt: &mut GcraCounter, gcra: &Gcra, now: Nanos) {
    let Some(from) = shapes.get(debt.limit_id).copied().filter(|from| from != gcra) else { return };
    debt.tat = gcra.convert(&debt.tat, &from, now);
    shapes.remove_user(debt.limit_id);
    debt.limit_id = shapes.add_user(gcra);
}

fn is_debt_drained(shapes: &GcraLimits, debt: &GcraCounter, now: Nanos) -> bool {
    shapes.get(debt.limit_id).is_none_or(|gcra| gcra.is_empty(&debt.tat, now))
}

fn preview_window<S: Default>(
    table: &CounterTable<WindowCounter<S>>,
    hash: KeyHash,
    ask: impl FnOnce(&S) -> CounterDecision,
) -> CounterDecision {
    match table.get(hash) {
        Some(windowed) => ask(&windowed.state),
        None => ask(&S::default()),
    }
}

fn charge_window<S: Default>(
    table: &mut CounterTable<WindowCounter<S>>,
    hash: KeyHash,
    now: Nanos,
    cost: Cost,
    places: &impl PlaceSource,
    act: impl FnOnce(&mut S) -> CounterDecision,
) -> Result<CounterDecision, ShardFull> {
    if let Some(windowed) = table.get_mut(hash) {
        let step = act(&mut windowed.state);
        windowed.empty_at = empty_at(step, now).unwrap_or(windowed.empty_at);
        return Ok(step);
    }
    let mut state = S::default();
    let step = act(&mut state);
    let Some(rested_at) = empty_at(step, now).filter(|at| can_create_counter(cost) && *at > now)
    else {
        return Ok(step);
    };
    if !places.try_take() {
        return Err(ShardFull);
    }
    table.insert(WindowCounter { hash, state, empty_at: rested_at });
    Ok(step)
}

fn lease_gcra(
    (table, shapes): (&mut CounterTable<GcraCounter>, &mut GcraLimits),
    hash: KeyHash,
    now: Nanos,
    gcra: &Gcra,
    counters: &CounterCapacity,
    act: impl FnOnce(AnyCounter) -> Option<BorrowReply>,
) -> Result<Option<BorrowReply>, ShardFull> {
    if let Some(debt) = table.get_mut(hash) {
        convert_debt(shapes, debt, gcra, now);
        let mut tat = debt.tat;
        let answer = act(AnyCounter::Gcra(gcra, &mut tat));
        debt.tat = tat;
        return Ok(answer);
    }
    if !counters.try_take() {
        return Err(ShardFull);
    }
    let mut tat = Tat::default();
    let answer = act(AnyCounter::Gcra(gcra, &mut tat));
    if gcra.is_empty(&tat, now) {
        counters.release(1);
    } else {
        table.insert(GcraCounter { hash, tat, limit_id: shapes.add_user(gcra) });
    }
    Ok(answer)
}

/// Applies a lease message to the counter of `hash` with `act`. Reserves capacity for a new counter
/// first, because `act` already records the grant.
fn lease_window<S: Default>(
    table: &mut CounterTable<WindowCounter<S>>,
    hash: KeyHash,
    now: Nanos,
    counters: &CounterCapacity,
    rested: impl FnOnce(&S) -> bool,
    act: impl FnOnce(&mut S) -> Option<BorrowReply>,
) -> Result<Option<BorrowReply>, ShardFull> {
    let rests = |answer: &Option<BorrowReply>| empty_at(answer.as_ref()?.decision, now);
    if let Some(windowed) = table.get_mut(hash) {
        let answer = act(&mut windowed.state);
        windowed.empty_at = rests(&answer).unwrap_or(windowed.empty_at);
        return Ok(answer);
    }
    if !counters.try_take() {
        return Err(ShardFull);
    }
    let mut state = S::default();
    let answer = act(&mut state);
    match rests(&answer).filter(|_| !rested(&state)) {
        Some(rested_at) => table.insert(WindowCounter { hash, state, empty_at: rested_at }),
        None => counters.release(1),
    }
    Ok(answer)
}

pub(super) const fn can_create_counter(cost: Cost) -> bool {
    matches!(cost, Cost::Charge(Hits(1..)))
}

/// Returns the instant at which the counter becomes empty after this decision. `None` if the
/// counter did not decide.
fn empty_at(step: CounterDecision, now: Nanos) -> Option<Nanos> {
    match step {
        CounterDecision::Allow(Headroom { reset_after, .. })
        | CounterDecision::Deny { headroom: Headroom { reset_after, .. }, .. }
        | CounterDecision::ExceedsLimit(Headroom { reset_after, .. }) => {
            Some(now.plus(reset_after))
        }
        CounterDecision::OutsideWindows => None,
    }
}

fn drop_empty_windows<S>(table: &mut CounterTable<WindowCounter<S>>, now: Nanos) {
    table.retain(|windowed| windowed.empty_at > now);
}
