//! The memory store, which is the default: it keeps the counters in this process.
//!
//! Guarantees:
//! - Each charge locks the shard of its counter, so concurrent checks count exactly.
//! - At most `max_keys` counters exist; [`WhenFull`] decides further new keys.
//! - Sweeps drop empty counters, one shard at a time.
//! - At most `max_keys` budgets exist, too.
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

mod atomic_charge;
pub(crate) mod budgets;
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

use super::budgets::{BudgetCall, BudgetReply};
use super::heartbeat::{ShareRound, ShareRoundReply};
use super::lease::{LeaseMessage, LeaseOutcome};
use super::permits::{PermitReport, PermitReportReply, StrictPermitReply, StrictPermitRequest};
use super::{
    AuditStore, BudgetStore, Charge, ChargeMode, ChargeOutcome, Charges, CounterStore, FleetStore,
    Outcomes, StoreFailure, StoreReply, is_allowed,
};
use crate::kernel::decision::{Cost, Verdict};
use crate::kernel::key::CounterKey;
use crate::kernel::lease::BorrowReply;
use crate::kernel::rate::CounterDecision;
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Event as _, MemoryStoreFull};
use budgets::Budgets;
use changed_shards::ChangedShards;
use coordinators::Coordinators;
use counters::{CapacitySource, CounterCapacity};
use key_hash::KeyHash;
use permits::StrictLimits;
use shard::Shard;

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
    budgets: Mutex<Budgets>,
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
            budgets: Mutex::default(),
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
        self.budgets.lock().sweep(now);
    }

    /// Drops every counter, one shard at a time.
    pub fn clear(&self) {
        for shard in &self.shards {
            shard.0.lock().clear(&self.counters);
        }
        self.budgets.lock().clear();
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

impl BudgetStore for MemoryStore {
    fn call_budgets<'a>(
        &'a self,
        now: Nanos,
        call: &'a BudgetCall,
    ) -> StoreReply<'a, Result<BudgetReply, StoreFailure>> {
        let reply = self.budgets.lock().apply(call, now, self.max_keys());
        // The log and the metrics name the full store. `on_store_failure` decides.
        StoreReply::Ready(reply.inspect_err(|_full| {
            self.full_verdict();
        }))
    }
}

impl AuditStore for MemoryStore {}
