//! Makes all charges of a check or none, in the memory store.
//!
//! Guarantees:
//! - The shards of all counters are locked in ascending order, so two checks cannot deadlock.
//! - No other check sees a part of the charges.

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::MemoryStore;
use super::counters::{CounterCapacity, ReservedCapacity};
use super::key_hash::KeyHash;
use super::shard::{Shard, can_create_counter};
use crate::kernel::decision::Cost;
use crate::kernel::rate::{CounterDecision, Strategy};
use crate::kernel::units::{Hits, Nanos};
use crate::{Charge, ChargeOutcome, Outcomes};

impl MemoryStore {
    /// Previews the outcomes of all charges. Makes all charges if `admits` accepts these outcomes,
    /// else none. Refunds are always made.
    pub(super) fn charge_atomically(
        &self,
        now: Nanos,
        charges: &[Charge],
        admits: impl FnOnce(&Outcomes) -> bool,
    ) -> Outcomes {
        let hashes: SmallVec<[KeyHash; 2]> =
            charges.iter().map(|charge| self.hash(&charge.key)).collect();
        let mut locked = LockedShards::lock_all(self, &hashes);
        locked.sweep_if_full(now, &self.counters);
        let (capacity, fits) = self.reserve_capacity(&mut locked, charges, &hashes);
        let previews: Outcomes = (0..charges.len())
            .map(|i| self.preview(locked.shard_mut(hashes[i]), now, (charges, &hashes), i, fits[i]))
            .collect();
        let admitted = admits(&previews);
        let settle = |(i, charge): (usize, &Charge)| {
            let shard = locked.shard_mut(hashes[i]);
            match charge.cost {
                Cost::Charge(_) if !admitted => {
                    self.skipped_outcome(shard, hashes[i], now, charge, previews[i])
                }
                Cost::Charge(_) | Cost::Refund(_) => {
                    let outcome = self.apply_charge(shard, hashes[i], now, charge, &capacity);
                    self.note_change(hashes[i]);
                    outcome
                }
            }
        };
        charges.iter().enumerate().map(settle).collect()
    }

    /// Reserves capacity for the new counters of `charges`. The returned list has `false` for each
    /// charge whose new counter does not fit.
    fn reserve_capacity(
        &self,
        locked: &mut LockedShards<'_>,
        charges: &[Charge],
        hashes: &[KeyHash],
    ) -> (ReservedCapacity<'_>, SmallVec<[bool; 2]>) {
        let mut new_counters: SmallVec<[KeyHash; 2]> = SmallVec::new();
        for (charge, &hash) in charges.iter().zip(hashes) {
            if can_create_counter(charge.cost)
                && !locked.shard_mut(hash).has_counter(hash)
                && !new_counters.contains(&hash)
            {
                new_counters.push(hash);
            }
        }
        let capacity = self.counters.reserve(new_counters.len());
        let rejected = &new_counters[capacity.remaining()..];
        let fits = |(charge, hash): (&Charge, &KeyHash)| {
            !can_create_counter(charge.cost) || !rejected.contains(hash)
        };
        let all_fits = charges.iter().zip(hashes).map(fits).collect();
        (capacity, all_fits)
    }

    /// Returns the outcome that charge `i` would have after all charges before it, without
    /// charging.
    fn preview(
        &self,
        shard: &Shard,
        now: Nanos,
        (charges, hashes): (&[Charge], &[KeyHash]),
        i: usize,
        fits: bool,
    ) -> ChargeOutcome {
        let Cost::Charge(hits) = charges[i].cost else {
            return ChargeOutcome::Refunded(shard.preview(
                hashes[i],
                now,
                &charges[i].strategy,
                Hits(0),
            ));
        };
        if !fits {
            let decision = shard.preview(hashes[i], now, &charges[i].strategy, hits);
            return if leaves_counter(&charges[i].strategy, decision) {
                ChargeOutcome::StoreFull(self.when_full.verdict())
            } else {
                ChargeOutcome::Decided(decision)
            };
        }
        let earlier =
            (0..i).filter(|&j| hashes[j] == hashes[i]).filter_map(|j| match charges[j].cost {
                Cost::Charge(hits) => Some(hits),
                Cost::Refund(_) => None,
            });
        let total = earlier.fold(hits, Hits::plus);
        ChargeOutcome::Decided(shard.preview(hashes[i], now, &charges[i].strategy, total))
    }

    /// Returns the outcome of a charge that is not made because the check is denied: its own
    /// denial, or the remaining hits of its counter.
    fn skipped_outcome(
        &self,
        shard: &Shard,
        hash: KeyHash,
        now: Nanos,
        charge: &Charge,
        preview: ChargeOutcome,
    ) -> ChargeOutcome {
        match preview {
            ChargeOutcome::StoreFull(_) => self.full_outcome(),
            denial if denial.is_denial() => denial,
            _ => ChargeOutcome::Decided(shard.preview(hash, now, &charge.strategy, Hits(0))),
        }
    }
}

/// Returns true if the counter must be stored after this decision, which needs capacity.
const fn leaves_counter(strategy: &Strategy, decision: CounterDecision) -> bool {
    match decision {
        CounterDecision::Allow(_) | CounterDecision::Deny { .. } => true,
        CounterDecision::ExceedsLimit(_) => strategy.charges_denied_hits(),
        CounterDecision::OutsideWindows => false,
    }
}

struct LockedShards<'m>(SmallVec<[(usize, MutexGuard<'m, Shard>); 2]>);

impl<'m> LockedShards<'m> {
    /// Locks the shards in ascending order, so that two checks cannot deadlock.
    fn lock_all(memory: &'m MemoryStore, hashes: &[KeyHash]) -> Self {
        let mut indices: SmallVec<[usize; 2]> =
            hashes.iter().map(|&hash| MemoryStore::shard_of(hash)).collect();
        indices.sort_unstable();
        indices.dedup();
        Self(indices.into_iter().map(|index| (index, memory.lock_shard(index))).collect())
    }

    fn sweep_if_full(&mut self, now: Nanos, counters: &CounterCapacity) {
        self.0.iter_mut().for_each(|(_, shard)| shard.sweep_if_full(now, counters));
    }

    fn shard_mut(&mut self, hash: KeyHash) -> &mut Shard {
        let index = MemoryStore::shard_of(hash);
        let position = self.0.partition_point(|(locked, _)| *locked < index);
        &mut self.0[position].1
    }
}
