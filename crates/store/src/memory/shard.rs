//! One shard of the memory store: a hash table of counters for each strategy.
//!
//! Guarantees:
//! - The hash tables contain every counter that is not empty; a sweep drops the empty ones. If the counters are
//!   saved, an empty one stays until its last change is collected.
//! - Every new or dropped counter of the shard is counted in the total of the store.

mod leases;
mod records;

use super::counters::{CapacitySource, CounterCapacity};
use super::gcra_limits::{GcraId, GcraLimits};
use super::key_hash::{HasKeyHash, KeyHash};
use super::lease_lists::LeaseLists;
use super::table::CounterTable;
use crate::kernel::decision::Cost;
use crate::kernel::rate::gcra::{Gcra, Tat};
use crate::kernel::rate::{
    CounterDecision, Headroom, Strategy, fixed_window, sliding_log, sliding_window,
};
use crate::kernel::units::{Hits, Nanos};

/// The shortest pause between two sweeps of a shard while the store is full: a flood of new keys
/// must not cause a sweep, which costs O(counters), for each key.
const MIN_SWEEP_INTERVAL: Nanos = Nanos::SECOND;

/// The counters of one shard, in one hash table per strategy, because the states differ in size.
// The most frequently read hash tables come first, in the same cache line as the shard's lock.
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

/// A counter of a window or of a sliding log, and when it becomes empty under the last limit.
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

#[derive(Debug)]
pub(super) struct ShardFull;

impl Shard {
    pub(super) fn charge(
        &mut self,
        hash: KeyHash,
        now: Nanos,
        strategy: &Strategy,
        cost: Cost,
        capacity: &impl CapacitySource,
    ) -> Result<CounterDecision, ShardFull> {
        match strategy {
            Strategy::Gcra(gcra) => self.charge_gcra(hash, now, gcra, cost, capacity),
            Strategy::FixedWindow(window) => {
                charge_window(&mut self.fixed_window, hash, now, cost, capacity, |state| match cost
                {
                    Cost::Charge(hits) => window.charge(state, now, hits),
                    Cost::Refund(hits) => window.refund(state, now, hits),
                })
            }
            Strategy::SlidingWindow(window) => {
                charge_window(&mut self.sliding_window, hash, now, cost, capacity, |state| {
                    match cost {
                        Cost::Charge(hits) => window.charge(state, now, hits),
                        Cost::Refund(hits) => window.refund(state, now, hits),
                    }
                })
            }
            Strategy::SlidingLog(log) => charge_window(
                &mut self.sliding_log,
                hash,
                now,
                cost,
                capacity,
                |state| match cost {
                    Cost::Charge(hits) => log.charge(state, now, hits),
                    Cost::Refund(hits) => log.refund(state, now, hits),
                },
            ),
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
        let len_before = self.len();
        let limits = &mut self.gcra_limits;
        self.gcra.retain(|counter| {
            let is_empty = is_debt_drained(limits, counter, now);
            if is_empty {
                limits.remove_user(counter.limit_id);
            }
            !is_empty
        });
        drop_empty_windows(&mut self.fixed_window, now);
        drop_empty_windows(&mut self.sliding_window, now);
        drop_empty_windows(&mut self.sliding_log, now);
        self.leases.drop_expired(now);
        self.swept_at = now;
        counters.release(len_before - self.len());
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
        capacity: &impl CapacitySource,
    ) -> Result<CounterDecision, ShardFull> {
        let apply = |tat: &mut Tat| match cost {
            Cost::Charge(hits) => gcra.charge(tat, now, hits),
            Cost::Refund(hits) => gcra.refund(tat, now, hits),
        };
        if let Some(counter) = self.gcra.get_mut(hash) {
            convert_debt(&mut self.gcra_limits, counter, gcra, now);
            let mut tat = counter.tat;
            let decision = apply(&mut tat);
            counter.tat = tat;
            self.gcra.mark_changed(hash);
            return Ok(decision);
        }
        let mut tat = Tat::default();
        let decision = apply(&mut tat);
        if gcra.is_empty(&tat, now) {
            return Ok(decision);
        }
        if !capacity.try_take() {
            return Err(ShardFull);
        }
        self.gcra.insert(GcraCounter { hash, tat, limit_id: self.gcra_limits.add_user(gcra) });
        Ok(decision)
    }

    /// Returns the GCRA state of the counter `hash`, converted to the limit `gcra`.
    fn gcra_state(&self, hash: KeyHash, now: Nanos, gcra: &Gcra) -> Tat {
        let Some(counter) = self.gcra.get(hash) else { return Tat::default() };
        match self.gcra_limits.get(counter.limit_id) {
            Some(from) if from != gcra => gcra.convert(&counter.tat, from, now),
            _ => counter.tat,
        }
    }
}

fn convert_debt(limits: &mut GcraLimits, counter: &mut GcraCounter, gcra: &Gcra, now: Nanos) {
    let Some(from) = limits.get(counter.limit_id).copied().filter(|from| from != gcra) else {
        return;
    };
    counter.tat = gcra.convert(&counter.tat, &from, now);
    limits.remove_user(counter.limit_id);
    counter.limit_id = limits.add_user(gcra);
}

fn is_debt_drained(limits: &GcraLimits, counter: &GcraCounter, now: Nanos) -> bool {
    limits.get(counter.limit_id).is_none_or(|gcra| gcra.is_empty(&counter.tat, now))
}

fn preview_window<S: Default>(
    table: &CounterTable<WindowCounter<S>>,
    hash: KeyHash,
    peek: impl FnOnce(&S) -> CounterDecision,
) -> CounterDecision {
    match table.get(hash) {
        Some(counter) => peek(&counter.state),
        None => peek(&S::default()),
    }
}

fn charge_window<S: Default>(
    table: &mut CounterTable<WindowCounter<S>>,
    hash: KeyHash,
    now: Nanos,
    cost: Cost,
    capacity: &impl CapacitySource,
    apply: impl FnOnce(&mut S) -> CounterDecision,
) -> Result<CounterDecision, ShardFull> {
    if let Some(counter) = table.get_mut(hash) {
        let decision = apply(&mut counter.state);
        counter.empty_at = empty_at(decision, now).unwrap_or(counter.empty_at);
        table.mark_changed(hash);
        return Ok(decision);
    }
    let mut state = S::default();
    let decision = apply(&mut state);
    let Some(empties_at) =
        empty_at(decision, now).filter(|instant| can_create_counter(cost) && *instant > now)
    else {
        return Ok(decision);
    };
    if !capacity.try_take() {
        return Err(ShardFull);
    }
    table.insert(WindowCounter { hash, state, empty_at: empties_at });
    Ok(decision)
}

pub(super) const fn can_create_counter(cost: Cost) -> bool {
    matches!(cost, Cost::Charge(Hits(1..)))
}

/// Returns the instant at which the counter becomes empty after this decision; `None` if the
/// counter did not decide.
fn empty_at(decision: CounterDecision, now: Nanos) -> Option<Nanos> {
    match decision {
        CounterDecision::Allow(Headroom { reset_after, .. })
        | CounterDecision::Deny { headroom: Headroom { reset_after, .. }, .. }
        | CounterDecision::ExceedsLimit(Headroom { reset_after, .. }) => {
            Some(now.plus(reset_after))
        }
        CounterDecision::OutsideWindows => None,
    }
}

fn drop_empty_windows<S>(table: &mut CounterTable<WindowCounter<S>>, now: Nanos) {
    table.retain(|counter| counter.empty_at > now);
}
