//! The memory store, which is the default: it keeps the counters in this process.
//!
//! Guarantees:
//! - Each charge locks the shard of its counter, so concurrent checks count exactly.
//! - At most `max_keys` counters exist; [`WhenFull`] decides further new keys.
//! - Sweeps drop empty counters, one shard at a time.
//! - The lease table of a counter is in the same shard, under the same lock.
//! - A lease table counts toward `max_keys`, too; a full store lends no hits for a new one.
//!
//! Not covered:
//! - Persistence: a restart loses all counters (see [`super::file`]).
//! - Limits shared with replicas in other processes.
//!
//! Memory: 32 bytes for a GCRA counter and 40 bytes for a window counter. The hash tables are 53 %
//! to 80 % full. A counter of a sliding log also stores the arrivals of its hits (see
//! [`crate::kernel::rate::sliding_log`]).

mod change_list;
mod changed_shards;
pub mod coordinators;
pub(crate) mod counter_record;
mod counters;
mod gcra_limits;
pub(crate) mod key_hash;
mod lease_lists;
pub mod permits;
mod saving;
mod shard;
pub(crate) mod table;

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::SipHasher13;
use smallvec::SmallVec;

use super::heartbeat::{ShareRound, ShareRoundReply};
use super::lease::{LeaseMessage, LeaseOutcome};
use super::permits::{PermitReport, PermitReportReply, StrictPermitReply, StrictPermitRequest};
use super::{
    AuditStore, Charge, ChargeMode, ChargeOutcome, Charges, CounterStore, FleetStore, Outcomes,
    StoreFailure, StoreReply, is_allowed,
};
use crate::kernel::decision::{Cost, Verdict};
use crate::kernel::key::CounterKey;
use crate::kernel::lease::BorrowReply;
use crate::kernel::rate::{CounterDecision, Strategy};
use crate::kernel::units::{Hits, Nanos};
use crate::telemetry::event::{Event as _, MemoryStoreFull};
use changed_shards::ChangedShards;
use coordinators::Coordinators;
use counters::{CapacitySource, CounterCapacity, ReservedCapacity};
use key_hash::KeyHash;
use permits::StrictLimits;
use shard::{Shard, can_create_counter};

/// The number of shards. A sweep locks one shard at a time, for a short time even with millions of
/// keys.
const SHARDS: usize = 1024;

/// The verdict for a check with a new key when the store is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Deny the check, because its hits cannot be counted.
    #[default]
    Deny,
    /// Allow the check without counting it.
    Allow,
}

impl WhenFull {
    const fn verdict(self) -> Verdict {
        match self {
            Self::Deny => Verdict::Deny,
            Self::Allow => Verdict::Allow,
        }
    }
}

/// A store that keeps all counters in the memory of this process.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[ShardLock]>,
    /// The hash function, keyed with a secret of the process, so that clients cannot choose keys
    /// that collide or share one shard.
    hasher: SipHasher13,
    counters: CounterCapacity,
    when_full: WhenFull,
    /// The shards with changed counters; `None` if nobody collects them.
    changed_shards: Option<ChangedShards>,
    next_to_sweep: AtomicUsize,
    full_count: AtomicU64,
    coordinators: Mutex<Coordinators>,
    strict_limits: Mutex<StrictLimits>,
}

// Two cache lines: two shards in one line would slow down threads that use different shards, and
// processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ShardLock(Mutex<Shard>);

impl MemoryStore {
    /// Creates an empty store for at most `max_keys` counters.
    #[must_use]
    pub fn new(max_keys: usize, when_full: WhenFull, secret: [u8; 16]) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| ShardLock::default()).collect(),
            hasher: SipHasher13::new_with_key(&secret),
            counters: CounterCapacity::new(max_keys),
            when_full,
            changed_shards: None,
            next_to_sweep: AtomicUsize::new(0),
            full_count: AtomicU64::new(0),
            coordinators: Mutex::new(Coordinators::settled()),
            strict_limits: Mutex::new(StrictLimits::settled()),
        }
    }

    /// Returns the number of counters and lease tables in the store.
    pub fn live_keys(&self) -> usize {
        self.counters.used()
    }

    /// Returns the maximum number of counters and lease tables (`max_keys`).
    pub fn max_keys(&self) -> usize {
        self.counters.max()
    }

    /// Returns how many times a new counter was refused because the store was full.
    pub fn times_full(&self) -> u64 {
        self.full_count.load(Relaxed)
    }

    /// Drops the empty counters of one shard, and of the next shard at the next call. The call
    /// after `MemoryStore::SHARDS` starts again. Cost: O(counters in the shard), under its lock.
    pub fn sweep_next(&self, now: Nanos) {
        let index = self.next_to_sweep.fetch_add(1, Relaxed) % SHARDS;
        if let Some(shard) = self.shards.get(index) {
            shard.0.lock().drop_empty(now, &self.counters);
        }
    }

    /// Drops every counter, one shard at a time.
    pub fn clear(&self) {
        for shard in &self.shards {
            shard.0.lock().clear(&self.counters);
        }
    }

    /// The number of [`MemoryStore::sweep_next`] calls after which every shard was swept.
    pub const SHARDS: usize = SHARDS;

    fn hash(&self, key: &CounterKey) -> KeyHash {
        let hash = self.hasher.hash(key.as_bytes());
        let rest = NonZeroU64::new(hash.h2).unwrap_or(NonZeroU64::MIN);
        KeyHash { position: hash.h1, tag: rest }
    }

    /// Returns the index of the shard of a counter.
    pub(crate) fn shard_of(hash: KeyHash) -> usize {
        usize::try_from(hash.position % SHARDS as u64).unwrap_or(0)
    }

    fn lock_shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].0.lock()
    }

    fn charge_each(&self, now: Nanos, charges: &[Charge]) -> StoreReply<'_, Outcomes> {
        // Write the outcomes directly into the reply, because moving a finished list is slow.
        let mut reply = StoreReply::Ready(Outcomes::new());
        let StoreReply::Ready(outcomes) = &mut reply else { return reply };
        for charge in charges {
            let hash = self.hash(&charge.key);
            let mut shard = self.lock_shard(Self::shard_of(hash));
            shard.sweep_if_full(now, &self.counters);
            outcomes.push(self.apply_charge(&mut shard, hash, now, charge, &self.counters));
            self.note_change(hash);
        }
        reply
    }

    /// Marks the shard of a counter as changed. The caller holds the shard's lock.
    fn note_change(&self, hash: KeyHash) {
        if let Some(changed) = &self.changed_shards {
            changed.insert(Self::shard_of(hash));
        }
    }

    fn apply_charge(
        &self,
        shard: &mut Shard,
        hash: KeyHash,
        now: Nanos,
        charge: &Charge,
        capacity: &impl CapacitySource,
    ) -> ChargeOutcome {
        let decision = shard.charge(hash, now, &charge.strategy, charge.cost, capacity);
        match (decision, charge.cost) {
            (Ok(decision), Cost::Charge(_)) => ChargeOutcome::Decided(decision),
            (Ok(decision), Cost::Refund(_)) => ChargeOutcome::Refunded(decision),
            (Err(_full), _) => self.full_outcome(),
        }
    }

    #[cold]
    fn full_outcome(&self) -> ChargeOutcome {
        ChargeOutcome::StoreFull(self.full_verdict())
    }

    fn full_verdict(&self) -> Verdict {
        let verdict = self.when_full.verdict();
        self.full_count.fetch_add(1, Relaxed);
        MemoryStoreFull { verdict }.emit();
        verdict
    }

    fn apply_lease_message(&self, now: Nanos, message: &LeaseMessage) -> LeaseOutcome {
        let hash = self.hash(&message.key);
        let mut shard = self.lock_shard(Self::shard_of(hash));
        let result = shard.apply_lease_message(hash, now, message, &self.counters);
        self.note_change(hash);
        drop(shard);
        match result {
            Ok(Some(BorrowReply { decision: CounterDecision::OutsideWindows, .. })) => {
                LeaseOutcome::Stale(now)
            }
            Ok(Some(reply)) => LeaseOutcome::Applied(reply),
            Ok(None) => LeaseOutcome::Superseded,
            Err(_full) => LeaseOutcome::StoreFull(self.full_verdict()),
        }
    }

    /// Previews the outcomes of all charges. Makes all charges if `admits` accepts these outcomes,
    /// else none. Refunds are always made.
    fn charge_atomically(
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

impl CounterStore for MemoryStore {
    fn is_synchronous(&self) -> bool {
        true
    }

    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        let list = &charges.list;
        match charges.mode {
            ChargeMode::AllOrNothing { quota_for_all, quota_cannot_deny } => {
                StoreReply::Ready(self.charge_atomically(now, list, |previews| {
                    is_allowed(list, previews, quota_for_all, quota_cannot_deny)
                }))
            }
            ChargeMode::Each => self.charge_each(now, list),
            ChargeMode::Preview => {
                StoreReply::Ready(self.charge_atomically(now, list, |_previews| false))
            }
        }
    }

    fn exchange_lease_message<'a>(
        &'a self,
        now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        StoreReply::Ready(self.apply_lease_message(now, message))
    }
}

impl FleetStore for MemoryStore {
    fn report_shares<'a>(
        &'a self,
        now: Nanos,
        round: &'a ShareRound,
    ) -> StoreReply<'a, Result<ShareRoundReply, StoreFailure>> {
        StoreReply::Ready(Ok(self.coordinators.lock().apply_round(now, "", round)))
    }

    fn acquire_strict_permit<'a>(
        &'a self,
        now: Nanos,
        request: &'a StrictPermitRequest,
    ) -> StoreReply<'a, Result<StrictPermitReply, StoreFailure>> {
        StoreReply::Ready(Ok(self.strict_limits.lock().acquire(now, "", request)))
    }

    fn report_strict_permits<'a>(
        &'a self,
        now: Nanos,
        report: &'a PermitReport,
    ) -> StoreReply<'a, PermitReportReply> {
        StoreReply::Ready(
            self.strict_limits.lock().apply_report(now, "", report).into_iter().map(Ok).collect(),
        )
    }
}

impl AuditStore for MemoryStore {}

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
