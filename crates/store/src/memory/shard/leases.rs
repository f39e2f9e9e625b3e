//! Applies lease messages to the counters of one shard.
//!
//! Guarantees:
//! - A new counter or lease table needs capacity. Without capacity, no hits are lent.

use super::{GcraCounter, Shard, ShardFull, WindowCounter, convert_debt, empty_at};
use crate::kernel::lease::BorrowReply;
use crate::kernel::lease::counter::AnyCounter;
use crate::kernel::rate::Strategy;
use crate::kernel::rate::gcra::{Gcra, Tat};
use crate::kernel::units::Nanos;
use crate::lease::LeaseMessage;
use crate::memory::counters::{CapacitySource as _, CounterCapacity};
use crate::memory::gcra_limits::GcraLimits;
use crate::memory::key_hash::KeyHash;
use crate::memory::table::CounterTable;

impl Shard {
    /// Applies a lease message. Returns `None` if a later message of the replica was applied
    /// before.
    pub(in crate::memory) fn apply_lease_message(
        &mut self,
        hash: KeyHash,
        now: Nanos,
        message: &LeaseMessage,
        counters: &CounterCapacity,
    ) -> Result<Option<BorrowReply>, ShardFull> {
        self.sweep_if_full(now, counters);
        let LeaseMessage { terms, sender: replica, borrow, .. } = message;
        let leases = &mut self.leases;
        // Takes the capacity for the counter before that for the lease table: if only one fits, the
        // charge is still counted.
        let mut apply = |mut counter: AnyCounter| {
            let mut list = leases.take_or_create(hash, terms, counters);
            let reply = list.leases.apply(&mut counter, &list.terms, now, *replica, borrow);
            leases.put_back(list, now, counters);
            reply
        };
        match &message.strategy {
            Strategy::Gcra(gcra) => lease_gcra(
                (&mut self.gcra, &mut self.gcra_limits),
                hash,
                now,
                gcra,
                counters,
                apply,
            ),
            Strategy::FixedWindow(window) => {
                let is_empty = |state: &_| window.is_empty(state, now);
                lease_window(&mut self.fixed_window, hash, now, counters, is_empty, |state| {
                    apply(AnyCounter::FixedWindow(window, state))
                })
            }
            Strategy::SlidingWindow(window) => {
                let is_empty = |state: &_| window.is_empty(state, now);
                lease_window(&mut self.sliding_window, hash, now, counters, is_empty, |state| {
                    apply(AnyCounter::SlidingWindow(window, state))
                })
            }
            Strategy::SlidingLog(log) => {
                let is_empty = |state: &_| log.is_empty(state, now);
                lease_window(&mut self.sliding_log, hash, now, counters, is_empty, |state| {
                    apply(AnyCounter::SlidingLog(log, state))
                })
            }
        }
    }
}

fn lease_gcra(
    (table, limits): (&mut CounterTable<GcraCounter>, &mut GcraLimits),
    hash: KeyHash,
    now: Nanos,
    gcra: &Gcra,
    counters: &CounterCapacity,
    apply: impl FnOnce(AnyCounter) -> Option<BorrowReply>,
) -> Result<Option<BorrowReply>, ShardFull> {
    if let Some(counter) = table.get_mut(hash) {
        convert_debt(limits, counter, gcra, now);
        let mut tat = counter.tat;
        let reply = apply(AnyCounter::Gcra(gcra, &mut tat));
        counter.tat = tat;
        table.mark_changed(hash);
        return Ok(reply);
    }
    if !counters.try_take() {
        return Err(ShardFull);
    }
    let mut tat = Tat::default();
    let reply = apply(AnyCounter::Gcra(gcra, &mut tat));
    if gcra.is_empty(&tat, now) {
        counters.release(1);
    } else {
        table.insert(GcraCounter { hash, tat, limit_id: limits.add_user(gcra) });
    }
    Ok(reply)
}

/// Applies a lease message to the counter of `hash`. Takes capacity for a new counter first,
/// because `apply` already records the grant.
fn lease_window<S: Default>(
    table: &mut CounterTable<WindowCounter<S>>,
    hash: KeyHash,
    now: Nanos,
    counters: &CounterCapacity,
    is_empty: impl FnOnce(&S) -> bool,
    apply: impl FnOnce(&mut S) -> Option<BorrowReply>,
) -> Result<Option<BorrowReply>, ShardFull> {
    let empties_at = |reply: &Option<BorrowReply>| empty_at(reply.as_ref()?.decision, now);
    if let Some(counter) = table.get_mut(hash) {
        let reply = apply(&mut counter.state);
        counter.empty_at = empties_at(&reply).unwrap_or(counter.empty_at);
        table.mark_changed(hash);
        return Ok(reply);
    }
    if !counters.try_take() {
        return Err(ShardFull);
    }
    let mut state = S::default();
    let reply = apply(&mut state);
    match empties_at(&reply).filter(|_| !is_empty(&state)) {
        Some(empties_at) => table.insert(WindowCounter { hash, state, empty_at: empties_at }),
        None => counters.release(1),
    }
    Ok(reply)
}
