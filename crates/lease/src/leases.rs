//! Manages the leases of this replica: borrows, spends and returns hits.
//!
//! Guarantees:
//! - Spending from a balance needs no store call, no wait and no allocation.
//! - A check that needs the store is charged in the store once, or its outcome is a failure.
//! - Message numbers rise over all keys of this process, which is one replica incarnation.
//! - A lease call continues after its check is canceled, and its grant joins the balance.
//! - Hits in a message that certainly never left this process return to the balance.
//! - At most [`LeaseOptions::max_keys`] keys are leased, with 512 bytes each in total.
//! - A new key evicts the keys without a check for the longest time, and their hits are returned.
//!
//! Not covered:
//! - The lease protocol and its bound (see [`crate::kernel::lease`]).
//! - The deadline of one store call, and the caller's timeout.
//! - The choice of leased limits.

mod call;
mod check;
mod event;
mod key_lease;
mod leased_charge;
mod refill;
mod send;
mod strict_charge;
mod table;
mod upkeep;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::SipHasher13;
use tokio::sync::{Notify, Semaphore, watch};

use crate::clock::Clock;
use crate::kernel::key::CounterKey;
use crate::kernel::lease::{BorrowRequest, MessageNumber, ReplicaIncarnation};
use crate::kernel::units::{Hits, Nanos};
use crate::store::lease::LeaseMessage;
use crate::store::{Charge, ChargeOutcome, CounterStore, Outcomes, StoreFailure};
pub use check::ChargeTerms;
pub use event::{LeaseEvent, LeaseObserver};
use key_lease::KeyLease;
pub use key_lease::LeasedCounter;
use table::{LeaseKeyHash, LeaseShard};

const SHARDS: usize = 256;

/// The default of the largest number of leased keys: 256 in each of 256 shards, about 50 MB without
/// the keys.
pub const MAX_LEASED_KEYS: usize = SHARDS * 256;

/// The largest total size of the keys, in bytes: 32 MiB, split evenly over the shards.
pub const MAX_LEASED_KEY_BYTES: usize = MAX_LEASED_KEYS * table::BYTES_PER_KEY;

/// The largest number of early refills in flight. Together with the due refill, they fill one store
/// call. More would delay the checks in later store calls; the next scan sends the others.
pub const MAX_EARLY_REFILLS: usize = MAX_RETURNS - 1;

/// The largest number of messages in flight that return hits: as many as fit in one store call.
const MAX_RETURNS: usize = 62;

/// All leases of this replica.
#[derive(Debug)]
pub struct LeaseManager {
    clock: Arc<Clock>,
    store: Arc<dyn CounterStore>,
    observe: LeaseObserver,
    incarnation: ReplicaIncarnation,
    unused_number: AtomicU64,
    /// The earliest instant of the next scan for early refills, in nanoseconds.
    next_scan: AtomicU64,
    /// The free slots for early refills: at most [`MAX_EARLY_REFILLS`] are in flight.
    early_refill_slots: Arc<Semaphore>,
    shards: Box<[LockedLeases]>,
    /// Random for each process, so that no client can choose keys that fall into one shard.
    secret: SipHasher13,
    has_leased_limits: AtomicBool,
    /// `true` while draining: then checks borrow, but nothing is refilled in the background.
    is_draining: AtomicBool,
    /// Notified when a new configuration has other leased limits.
    limits_changed: Notify,
    /// Notified when the reply arrives for which the return of a lease waited.
    delayed_return: Notify,
}

/// A shard with its lock, aligned so that no two shards share a cache line.
#[derive(Debug)]
#[repr(align(128))]
struct LockedLeases(Mutex<LeaseShard>);

impl LockedLeases {
    fn new(max_keys: usize) -> Self {
        Self(Mutex::new(LeaseShard::new((max_keys / SHARDS).max(1))))
    }
}

/// The options of a [`LeaseManager`].
#[derive(Clone, Copy, Debug)]
pub struct LeaseOptions {
    /// Counts the events of leased hits.
    pub observe: LeaseObserver,
    /// The largest number of leased keys, at least 256. Their total size is at most 512 bytes for
    /// each.
    pub max_keys: usize,
}

impl Default for LeaseOptions {
    fn default() -> Self {
        Self { observe: |_, _| {}, max_keys: MAX_LEASED_KEYS }
    }
}

/// The totals over all leases of this replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseSummary {
    /// The number of leased keys.
    pub keys: usize,
    /// The hits that can be spent without a store call.
    pub hits: Hits,
}

enum LeaseStep {
    Decided(ChargeOutcome),
    Send(BorrowRequest),
    Wait(watch::Receiver<Option<StoreFailure>>),
    ChargeStrictly,
}

impl LeaseManager {
    /// Creates a manager without leases, for a new replica incarnation with a random number.
    #[must_use]
    pub fn new(
        clock: Arc<Clock>,
        store: Arc<dyn CounterStore>,
        options: LeaseOptions,
    ) -> Arc<Self> {
        let random = RandomState::new();
        let member = ReplicaIncarnation(random.hash_one(0_u8));
        let secret = SipHasher13::new_with_keys(random.hash_one(1_u8), random.hash_one(2_u8));
        Arc::new(Self {
            clock,
            store,
            observe: options.observe,
            incarnation: member,
            unused_number: AtomicU64::new(1),
            next_scan: AtomicU64::new(0),
            early_refill_slots: Arc::new(Semaphore::new(MAX_EARLY_REFILLS)),
            shards: (0..SHARDS).map(|_| LockedLeases::new(options.max_keys)).collect(),
            secret,
            has_leased_limits: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            limits_changed: Notify::new(),
            delayed_return: Notify::new(),
        })
    }

    /// Decides a check without a store call if possible, and appends the
    /// outcome to `outcomes`. Sends a background refill if one is due.
    ///
    /// Returns `None` if only the store can decide. Then the check is not recorded as demand, and
    /// the caller continues with [`LeaseManager::charge_leased`]. Must be called within a Tokio
    /// runtime.
    pub fn try_spend(
        self: &Arc<Self>,
        now: Nanos,
        leased: LeasedCounter<'_>,
        hits: Hits,
        outcomes: &mut Outcomes,
    ) -> Option<()> {
        let place = self.hash_key(&leased.charge.key);
        let mut shard = self.lock_shard(place);
        let lease = shard.get_mut(&place).filter(|held| held.is_for(leased))?;
        outcomes.push(lease.decide(now, hits)?);
        lease.record_check(now, hits);
        self.refill_if_due(lease, now);
        Some(())
    }

    fn next_step(self: &Arc<Self>, leased: LeasedCounter<'_>, hits: Hits) -> LeaseStep {
        let (now, place) = (self.clock.now(), self.hash_key(&leased.charge.key));
        let mut shard = self.lock_shard(place);
        let has_lease = shard.get(&place).is_some_and(|held| held.is_for(leased));
        if !has_lease && hits == Hits(0) || is_pending_for_other_limit(&shard, place, leased) {
            return LeaseStep::ChargeStrictly;
        }
        let before =
            if has_lease { None } else { self.create_lease(&mut shard, place, leased, now) };
        let Some(lease) = shard.get_mut(&place) else {
            self.send_in_background(before);
            return LeaseStep::ChargeStrictly;
        };
        lease.record_check(now, hits);
        if let Some(outcome) = lease.decide(now, hits) {
            self.refill_if_due(lease, now);
            return LeaseStep::Decided(outcome);
        }
        if hits == Hits(0) {
            return LeaseStep::ChargeStrictly;
        }
        match lease.borrow(now, self.next_number(), hits) {
            // One message replaces two, because the store ignores a replica's message older than
            // its last one.
            Some(borrow) => LeaseStep::Send(match before {
                Some((_, parting)) => borrow.with_returned(&parting),
                None => borrow,
            }),
            None => LeaseStep::Wait(lease.subscribe()),
        }
    }

    /// Creates a lease for the key, if the shard has room.
    ///
    /// The new lease replaces a lease of the same key with other settings, for example from before
    /// a reload. The old lease must have no pending reply. Returns it with the message that returns
    /// its hits.
    fn create_lease(
        self: &Arc<Self>,
        shard: &mut LeaseShard,
        place: LeaseKeyHash,
        leased: LeasedCounter<'_>,
        now: Nanos,
    ) -> Option<(KeyLease, BorrowRequest)> {
        let before = shard.remove(&place).and_then(|before| self.take_remaining_hits(before, now));
        for evicted in
            shard.insert(place, KeyLease::new(leased, now, self.next_number(), self.observe))
        {
            self.send_in_background(self.take_remaining_hits(evicted, now));
        }
        before
    }

    /// Returns a removed lease with the message that returns its hits, if it has any.
    fn take_remaining_hits(
        &self,
        mut lease: KeyLease,
        now: Nanos,
    ) -> Option<(KeyLease, BorrowRequest)> {
        let message = lease.return_all(now, self.next_number())?;
        Some((lease, message))
    }

    fn send_in_background(self: &Arc<Self>, removed: Option<(KeyLease, BorrowRequest)>) {
        if let Some((lease, borrow)) = removed {
            let (all, message) = (Arc::clone(self), self.message(lease.leased(), borrow));
            tokio::spawn(async move { all.call_store(&message).await });
        }
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Relaxed)
    }

    fn try_decide(&self, leased: LeasedCounter<'_>, hits: Hits) -> Option<ChargeOutcome> {
        let (now, place) = (self.clock.now(), self.hash_key(&leased.charge.key));
        let mut shard = self.lock_shard(place);
        shard.get_mut(&place).filter(|held| held.is_for(leased))?.decide(now, hits)
    }

    fn message(&self, leased: LeasedCounter<'_>, borrow: BorrowRequest) -> LeaseMessage {
        let (terms, member) = (leased.terms, self.incarnation);
        let Charge { key, placement: home, strategy, per_second, .. } = leased.charge.clone();
        LeaseMessage { key, placement: home, per_second, strategy, terms, sender: member, borrow }
    }

    fn next_number(&self) -> MessageNumber {
        MessageNumber(self.unused_number.fetch_add(1, Relaxed))
    }

    fn hash_key(&self, key: &CounterKey) -> LeaseKeyHash {
        let hash = self.secret.hash(key.as_bytes());
        [hash.h1, hash.h2]
    }

    fn lock_shard(&self, key_hash: LeaseKeyHash) -> MutexGuard<'_, LeaseShard> {
        let index = usize::try_from(key_hash[0] % SHARDS as u64).unwrap_or(0);
        self.shards[index].0.lock()
    }
}

/// Returns `true` if the key has a lease of another limit with a pending reply. A new message would
/// supersede the pending one, and the hits of its grant would never be returned.
fn is_pending_for_other_limit(
    shard: &LeaseShard,
    place: LeaseKeyHash,
    leased: LeasedCounter<'_>,
) -> bool {
    shard.get(&place).is_some_and(|held| !held.is_for(leased) && held.has_pending())
}
