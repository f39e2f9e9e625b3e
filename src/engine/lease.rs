//! Manages the leases of this replica: borrows, spends and returns hits.
//!
//! Guarantees:
//! - Spending from a balance needs no store call, no wait and no allocation.
//! - A check that needs the store is charged there exactly once, or its outcome is a failure.
//! - A check waits for the lease calls of other checks at most twice, and then makes at most two
//!   store calls of its own. All of them have one common deadline.
//! - Message numbers rise over all keys of this process, which is one replica incarnation.
//! - A lease call continues after its check is canceled, and its grant joins the balance.
//! - Hits in a message that certainly never left this process return to the balance.
//! - At most [`MAX_LEASED_KEYS`] keys are leased, with [`MAX_LEASED_KEY_BYTES`] bytes in total.
//! - A new key evicts the keys without a check for the longest time, and their hits are returned.
//!
//! Not covered: the lease protocol and its bound (see [`crate::kernel::lease`]).

mod call;
mod check;
mod key_lease;
mod refill;
mod table;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::SipHasher13;
use smallvec::smallvec;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{MissedTickBehavior, timeout};

use crate::clock::Clock;
use crate::config::{Config, Limit, LimitMode};
use crate::kernel::decision::Cost;
use crate::kernel::key::CounterKey;
use crate::kernel::lease::{
    BorrowReply, BorrowRequest, LeaseTerms, MessageNumber, ReplicaIncarnation, add_local_hits,
};
use crate::kernel::rate::{CounterDecision, Strategy};
use crate::kernel::units::{Hits, Nanos};
use crate::store::lease::{LeaseMessage, LeaseOutcome};
use crate::store::{
    Charge, ChargeMode, ChargeOutcome, Charges, CounterStore, Outcomes, StoreFailure, StoreReply,
};
use crate::telemetry::event::{LeasedHits, LeasedHitsEvent};
use call::{LeaseCall, SettleOnDrop, share_store_call};
pub use check::ChargeTerms;
use key_lease::KeyLease;
use table::{LeaseKeyHash, LeaseShard};

const SHARDS: usize = 256;

/// The largest number of leased keys: 256 in each of 256 shards, about 50 MB without the keys.
pub const MAX_LEASED_KEYS: usize = SHARDS * table::LEASES_PER_SHARD;

/// The largest total size of the keys, in bytes: 32 MiB, split evenly over the shards.
pub const MAX_LEASED_KEY_BYTES: usize = SHARDS * table::MAX_SHARD_KEY_BYTES;

/// The pause between two runs of [`LeaseManager::upkeep`]. Short compared with the longest lease
/// (30 s).
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The largest number of early refills in flight: together with one due refill, as many as fit in
/// one store call.
pub const MAX_EARLY_REFILLS: usize = MAX_RETURNS - 1;

/// The largest number of lease messages in one store call.
const MAX_RETURNS: usize = 62;

/// A counter with a leased limit. The `cost` of `charge` is ignored.
#[derive(Clone, Copy, Debug)]
pub struct LeasedCounter<'c> {
    /// The counter and its strategy.
    pub charge: &'c Charge,
    /// How the limit is leased: duration and size of leases.
    pub terms: LeaseTerms,
}

/// All leases of this replica.
#[derive(Debug)]
pub struct LeaseManager {
    clock: Arc<Clock>,
    store: Arc<dyn CounterStore>,
    incarnation: ReplicaIncarnation,
    unused_number: AtomicU64,
    /// The earliest instant of the next scan for early refills, in nanoseconds.
    next_scan: AtomicU64,
    /// The free slots for early refills, [`MAX_EARLY_REFILLS`] in total.
    early_refill_slots: Arc<Semaphore>,
    shards: Box<[LockedLeases]>,
    /// Hash key, random for each process: no client can choose counter keys that fall into one
    /// shard.
    secret: SipHasher13,
    has_leased_limits: AtomicBool,
    /// `true` while this replica drains: checks still borrow, but background refills stop.
    is_draining: AtomicBool,
    /// Notified when a new configuration has different leased limits.
    limits_changed: Notify,
    /// Notified when a reply arrives whose lease must then return its hits.
    delayed_return: Notify,
}

/// A shard with its lock. The alignment keeps two shards out of one cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct LockedLeases(Mutex<LeaseShard>);

/// The sums over all leases of this replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseSummary {
    /// The number of leased keys.
    pub keys: usize,
    /// The total balance: hits that can be spent without a store call.
    pub hits: Hits,
}

enum LeaseStep {
    Decided(ChargeOutcome),
    Send(BorrowRequest),
    Wait(watch::Receiver<Option<StoreFailure>>),
    ChargeStrictly,
}

impl LeaseManager {
    /// Creates a manager without leases. Its replica incarnation gets a random number.
    #[must_use]
    pub fn new(clock: Arc<Clock>, store: Arc<dyn CounterStore>) -> Arc<Self> {
        let random = RandomState::new();
        let incarnation = ReplicaIncarnation(random.hash_one(0_u8));
        let secret = SipHasher13::new_with_keys(random.hash_one(1_u8), random.hash_one(2_u8));
        Arc::new(Self {
            clock,
            store,
            incarnation,
            unused_number: AtomicU64::new(1),
            next_scan: AtomicU64::new(0),
            early_refill_slots: Arc::new(Semaphore::new(MAX_EARLY_REFILLS)),
            shards: (0..SHARDS).map(|_| LockedLeases::default()).collect(),
            secret,
            has_leased_limits: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            limits_changed: Notify::new(),
            delayed_return: Notify::new(),
        })
    }

    /// Decides a check without a store call, and appends the outcome to `outcomes`. Sends a
    /// background refill if one is due.
    ///
    /// Returns `None` if only the store can decide; then the caller continues with
    /// [`LeaseManager::charge_leased`]. Must be called within a Tokio runtime.
    pub fn try_spend(
        self: &Arc<Self>,
        now: Nanos,
        leased: LeasedCounter<'_>,
        hits: Hits,
        outcomes: &mut Outcomes,
    ) -> Option<()> {
        let key_hash = self.hash_key(&leased.charge.key);
        let mut shard = self.lock_shard(key_hash);
        let lease = shard.get_mut(&key_hash).filter(|lease| lease.is_for(leased))?;
        outcomes.push(lease.decide(now, hits)?);
        lease.record_check(now, hits);
        self.refill_if_due(lease, now);
        Some(())
    }

    /// Charges `hits` to a leased counter, in one of three ways:
    ///
    /// - From the balance or a remembered denial.
    /// - With a store call that charges the hits and borrows more.
    /// - After the reply to a lease call of another check, if one is in flight for the key.
    pub async fn charge_leased(
        self: &Arc<Self>,
        leased: LeasedCounter<'_>,
        hits: Hits,
    ) -> ChargeOutcome {
        let deadline = self.new_deadline();
        // A first call has only the store's own timeout, so that the store counts it as its
        // failure.
        match self.next_step(leased, hits) {
            LeaseStep::Decided(outcome) => outcome,
            LeaseStep::ChargeStrictly => {
                let outcome = self.charge_single(leased, hits, ChargeMode::Each).await;
                self.reconsider_denial(leased, hits, outcome, deadline).await
            }
            LeaseStep::Send(borrow) => {
                let outcome = self.start_call(leased, borrow).await;
                self.finish_charge(leased, hits, outcome, deadline).await
            }
            LeaseStep::Wait(reply) => self.charge_after_wait(reply, leased, hits, deadline).await,
        }
    }

    /// Waits for the reply to another check's lease call. Then charges `hits`, from the balance if
    /// that covers them.
    async fn charge_after_wait(
        self: &Arc<Self>,
        mut reply: watch::Receiver<Option<StoreFailure>>,
        leased: LeasedCounter<'_>,
        hits: Hits,
        deadline: Option<Nanos>,
    ) -> ChargeOutcome {
        let waited = self.run_until(deadline, reply.changed()).await;
        let failure = match waited {
            None => Some(StoreFailure::Unsent),
            Some(Ok(())) => *reply.borrow(),
            // The lease was evicted, so there is no reply to wait for.
            Some(Err(_)) => None,
        };
        match (self.try_decide(leased, hits), failure) {
            (Some(outcome), _) => outcome,
            // The store just failed, so this check does not make another lease call.
            (None, Some(cause)) => ChargeOutcome::Failed(failure_for_waiters(cause)),
            (None, None) => self.charge_again(leased, hits, deadline).await,
        }
    }

    /// Returns the outcome of a check from the `outcome` of its own lease call.
    async fn finish_charge(
        self: &Arc<Self>,
        leased: LeasedCounter<'_>,
        hits: Hits,
        outcome: LeaseOutcome,
        deadline: Option<Nanos>,
    ) -> ChargeOutcome {
        match outcome {
            LeaseOutcome::Applied(reply) => outcome_of_reply(leased, &reply),
            LeaseOutcome::Superseded => self.charge_strictly(leased, hits, deadline).await,
            LeaseOutcome::StoreFull(verdict) => ChargeOutcome::StoreFull(verdict),
            LeaseOutcome::Stale(now) => ChargeOutcome::Stale(now),
            LeaseOutcome::Failed(cause) => ChargeOutcome::Failed(cause),
        }
    }

    /// Charges a check again whose hits the balance did not cover after a first wait.
    async fn charge_again(
        self: &Arc<Self>,
        leased: LeasedCounter<'_>,
        hits: Hits,
        deadline: Option<Nanos>,
    ) -> ChargeOutcome {
        if self.is_past(deadline) {
            return ChargeOutcome::Failed(StoreFailure::Unsent);
        }
        match self.retry_step(leased, hits) {
            LeaseStep::Decided(outcome) => outcome,
            LeaseStep::Send(borrow) => {
                let outcome = self.send_until(deadline, leased, borrow).await;
                self.finish_charge(leased, hits, outcome, deadline).await
            }
            LeaseStep::Wait(_) | LeaseStep::ChargeStrictly => {
                self.charge_strictly(leased, hits, deadline).await
            }
        }
    }

    /// Returns the result of `act`, or `None` if it is not ready at `deadline` (steady clock).
    async fn run_until<T>(
        &self,
        deadline: Option<Nanos>,
        act: impl Future<Output = T>,
    ) -> Option<T> {
        let Some(deadline) = deadline else { return Some(act.await) };
        let remaining = Duration::from_nanos(deadline.since(self.clock.steady()).0);
        timeout(remaining, act).await.ok()
    }

    /// Returns the deadline of a check that arrives now, on the steady clock. `None`: no deadline.
    fn new_deadline(&self) -> Option<Nanos> {
        self.store.max_wait().map(|deadline| self.clock.steady().plus(deadline))
    }

    fn is_past(&self, deadline: Option<Nanos>) -> bool {
        deadline.is_some_and(|deadline| deadline <= self.clock.steady())
    }

    /// Applies a new configuration. If its leased limits differ from those of `before`, all hits
    /// are soon returned to the store.
    pub fn apply_config(&self, before: Option<&Config>, config: &Config) {
        let leased_limits = leased_rules(config);
        self.has_leased_limits.store(!leased_limits.is_empty(), Relaxed);
        if before.is_some_and(|before| leased_rules(before) != leased_limits) {
            self.limits_changed.notify_one();
        }
    }

    #[must_use]
    /// Returns `true` if the configuration has leased limits.
    pub fn has_leased_limits(&self) -> bool {
        self.has_leased_limits.load(Relaxed)
    }

    /// Runs [`LeaseManager::upkeep`] once a second. Never returns. Returns all hits to the store
    /// after a change of the leased limits.
    pub async fn run_upkeep(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.upkeep().await,
                () = self.limits_changed.notified() => self.send_for_each(KeyLease::start_return).await,
                () = self.delayed_return.notified() => self.send_for_each(KeyLease::finish_return).await,
            }
        }
    }

    /// Sends early refills, returns surplus hits and drops idle keys.
    pub async fn upkeep(self: &Arc<Self>) {
        let now = self.clock.now();
        self.refill_early(now, None).await;
        self.send_for_each(KeyLease::return_surplus).await;
        for shard in &self.shards {
            shard.0.lock().retain(|lease| !lease.is_idle(now));
        }
    }

    /// Returns all hits to the store when this replica drains, after all pending replies. Stops
    /// background refills.
    pub async fn return_all(self: &Arc<Self>) {
        self.is_draining.store(true, Relaxed);
        let mut pending_replies = Vec::new();
        self.send_for_each(|lease, now, number| {
            let Some(reply) = lease.take_over_return() else {
                return lease.return_all(now, number);
            };
            pending_replies.push(reply);
            None
        })
        .await;
        for mut reply in pending_replies {
            drop(reply.changed().await);
        }
        self.send_for_each(KeyLease::return_all).await;
    }

    /// Returns the balance of `key`: its hits that can be spent without a store call.
    #[must_use]
    pub fn balance(&self, key: &CounterKey) -> Hits {
        let (now, key_hash) = (self.clock.now(), self.hash_key(key));
        self.lock_shard(key_hash).get(&key_hash).map_or(Hits(0), |lease| lease.balance(now))
    }

    /// Returns the number of leases and their total balance. Cost: O(keys); locks one shard at a
    /// time.
    #[must_use]
    pub fn totals(&self) -> LeaseSummary {
        let now = self.clock.now();
        self.shards.iter().fold(LeaseSummary::default(), |total, shard| {
            let shard = shard.0.lock();
            let hits = shard.values().map(|lease| lease.balance(now)).fold(total.hits, Hits::plus);
            LeaseSummary { keys: total.keys + shard.len(), hits }
        })
    }

    /// Sends the message that `take_message` returns for each lease, in batches.
    async fn send_for_each(
        &self,
        mut take_message: impl FnMut(&mut KeyLease, Nanos, MessageNumber) -> Option<BorrowRequest>,
    ) {
        let now = self.clock.now();
        let mut messages = Vec::new();
        for shard in &self.shards {
            for lease in shard.0.lock().values_mut() {
                if let Some(borrow) = take_message(lease, now, self.next_number()) {
                    messages.push(self.message(lease.leased(), borrow));
                }
            }
            if MAX_RETURNS <= messages.len() {
                self.send_all(&mut messages).await;
            }
        }
        self.send_all(&mut messages).await;
    }

    /// Sends all messages. If one is lost, the store lets its hits expire with the lease.
    async fn send_all(&self, messages: &mut Vec<LeaseMessage>) {
        for batch in messages.chunks(MAX_RETURNS) {
            let calls = join_all(batch.iter().map(|message| self.call_store(message)));
            share_store_call(&*self.store, calls).await;
        }
        messages.clear();
    }

    fn next_step(self: &Arc<Self>, leased: LeasedCounter<'_>, hits: Hits) -> LeaseStep {
        let (now, key_hash) = (self.clock.now(), self.hash_key(&leased.charge.key));
        let mut shard = self.lock_shard(key_hash);
        let has_lease = shard.get(&key_hash).is_some_and(|lease| lease.is_for(leased));
        if !has_lease && hits == Hits(0) || is_pending_for_other_limit(&shard, key_hash, leased) {
            return LeaseStep::ChargeStrictly;
        }
        let replaced =
            if has_lease { None } else { self.create_lease(&mut shard, key_hash, leased, now) };
        let Some(lease) = shard.get_mut(&key_hash) else {
            self.send_in_background(replaced);
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
            // One message for both leases: the store ignores a message older than the last one.
            Some(borrow) => LeaseStep::Send(match replaced {
                Some((_, returning)) => borrow.with_returned(&returning),
                None => borrow,
            }),
            None => LeaseStep::Wait(lease.subscribe()),
        }
    }

    /// Creates a lease for the key, if the shard has room.
    ///
    /// Replaces a lease of the same key under other settings (for example before a reload), which
    /// must have no pending reply. Returns the replaced lease with the message that returns its
    /// hits.
    fn create_lease(
        self: &Arc<Self>,
        shard: &mut LeaseShard,
        key_hash: LeaseKeyHash,
        leased: LeasedCounter<'_>,
        now: Nanos,
    ) -> Option<(KeyLease, BorrowRequest)> {
        let replaced = shard.remove(&key_hash).and_then(|old| self.take_remaining_hits(old, now));
        for evicted in shard.insert(key_hash, KeyLease::new(leased, now, self.next_number())) {
            self.send_in_background(self.take_remaining_hits(evicted, now));
        }
        replaced
    }

    /// Returns `lease`, which was removed, with the message that returns its hits. `None` if it has
    /// no hits.
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
            let (manager, message) = (Arc::clone(self), self.message(lease.leased(), borrow));
            tokio::spawn(async move { manager.call_store(&message).await });
        }
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Relaxed)
    }

    fn try_decide(&self, leased: LeasedCounter<'_>, hits: Hits) -> Option<ChargeOutcome> {
        let (now, key_hash) = (self.clock.now(), self.hash_key(&leased.charge.key));
        let mut shard = self.lock_shard(key_hash);
        shard.get_mut(&key_hash).filter(|lease| lease.is_for(leased))?.decide(now, hits)
    }

    /// Sends the lease message of a check. The call continues after the check is canceled, because
    /// otherwise its grant would be charged and never spent.
    fn start_call(self: &Arc<Self>, leased: LeasedCounter<'_>, borrow: BorrowRequest) -> LeaseCall {
        let (manager, message) = (Arc::clone(self), self.message(leased, borrow));
        LeaseCall::new(async move { manager.send(&message).await })
    }

    /// Sends the lease message of a check. Without a reply at `deadline`, returns a timeout.
    async fn send_until(
        self: &Arc<Self>,
        deadline: Option<Nanos>,
        leased: LeasedCounter<'_>,
        borrow: BorrowRequest,
    ) -> LeaseOutcome {
        let outcome = self.run_until(deadline, self.start_call(leased, borrow)).await;
        outcome.unwrap_or(LeaseOutcome::Failed(StoreFailure::TimedOut))
    }

    async fn send(&self, message: &LeaseMessage) -> LeaseOutcome {
        let mut settle_guard = SettleOnDrop::new(self, message);
        let outcome = self.call_store(message).await;
        settle_guard.set_reply(outcome);
        outcome
    }

    fn message(&self, leased: LeasedCounter<'_>, borrow: BorrowRequest) -> LeaseMessage {
        let (terms, sender) = (leased.terms, self.incarnation);
        let Charge { key, placement, strategy, per_second, .. } = leased.charge.clone();
        LeaseMessage { key, placement, per_second, strategy, terms, sender, borrow }
    }

    async fn call_store(&self, message: &LeaseMessage) -> LeaseOutcome {
        let (outcome, is_unsent) =
            match self.store.exchange_lease_message(self.clock.now(), message) {
                StoreReply::Ready(outcome) => (outcome, matches!(outcome, LeaseOutcome::Failed(_))),
                StoreReply::Pending(reply) => {
                    let outcome = reply.await;
                    (outcome, was_never_sent(outcome))
                }
            };
        if is_unsent {
            self.undo_unsent(&message.key, message.borrow.number);
            return outcome;
        }
        LeasedHits { hits: message.borrow.returned, event: LeasedHitsEvent::Returned }.emit();
        if let LeaseOutcome::Applied(BorrowReply { granted, .. }) = outcome {
            LeasedHits { hits: granted, event: LeasedHitsEvent::Borrowed }.emit();
        }
        outcome
    }

    fn undo_unsent(&self, key: &CounterKey, number: MessageNumber) {
        let (now, key_hash) = (self.clock.now(), self.hash_key(key));
        if let Some(lease) = self.lock_shard(key_hash).get_mut(&key_hash) {
            lease.undo_unsent(now, number);
        }
    }

    async fn charge_strictly(
        self: &Arc<Self>,
        leased: LeasedCounter<'_>,
        hits: Hits,
        deadline: Option<Nanos>,
    ) -> ChargeOutcome {
        if self.is_past(deadline) {
            return ChargeOutcome::Failed(StoreFailure::Unsent);
        }
        let outcome =
            self.run_until(deadline, self.charge_single(leased, hits, ChargeMode::Each)).await;
        let outcome = outcome.unwrap_or(ChargeOutcome::Failed(StoreFailure::TimedOut));
        self.reconsider_denial(leased, hits, outcome, deadline).await
    }

    /// Reconsiders a denial that the store returned while this replica or a pending reply has
    /// unspent hits of the counter. Decides from the balance, or returns the balance together with
    /// a second charge.
    async fn reconsider_denial(
        self: &Arc<Self>,
        leased: LeasedCounter<'_>,
        hits: Hits,
        outcome: ChargeOutcome,
        deadline: Option<Nanos>,
    ) -> ChargeOutcome {
        if !matches!(outcome, ChargeOutcome::Decided(CounterDecision::Deny { .. })) {
            return outcome;
        }
        if let Some(mut reply) = self.pending_reply(leased)
            && self.run_until(deadline, reply.changed()).await.is_none()
        {
            return outcome;
        }
        // A fixed window counts denied hits, so after the denial it has no hits left.
        let can_retry = self.balance(&leased.charge.key) != Hits(0)
            && !self.is_past(deadline)
            && !matches!(leased.charge.strategy, Strategy::FixedWindow(_));
        let step = if can_retry {
            self.retry_step(leased, hits)
        } else {
            self.try_decide(leased, hits).map_or(LeaseStep::ChargeStrictly, LeaseStep::Decided)
        };
        match step {
            LeaseStep::Decided(allowed @ ChargeOutcome::Decided(CounterDecision::Allow(_))) => {
                allowed
            }
            LeaseStep::Send(borrow) => match self.send_until(deadline, leased, borrow).await {
                LeaseOutcome::Applied(reply) => outcome_of_reply(leased, &reply),
                _ => outcome,
            },
            LeaseStep::Decided(_) | LeaseStep::Wait(_) | LeaseStep::ChargeStrictly => outcome,
        }
    }

    /// Decides a check from the balance, or returns its lease message. The check is already
    /// recorded as demand.
    // One lock covers both, because another reply may refill the balance between them.
    fn retry_step(&self, leased: LeasedCounter<'_>, hits: Hits) -> LeaseStep {
        let (now, key_hash) = (self.clock.now(), self.hash_key(&leased.charge.key));
        let mut shard = self.lock_shard(key_hash);
        let Some(lease) = shard.get_mut(&key_hash).filter(|lease| lease.is_for(leased)) else {
            return LeaseStep::ChargeStrictly;
        };
        if let Some(outcome) = lease.decide(now, hits) {
            return LeaseStep::Decided(outcome);
        }
        lease
            .borrow(now, self.next_number(), hits)
            .map_or(LeaseStep::ChargeStrictly, LeaseStep::Send)
    }

    fn pending_reply(
        &self,
        leased: LeasedCounter<'_>,
    ) -> Option<watch::Receiver<Option<StoreFailure>>> {
        let key_hash = self.hash_key(&leased.charge.key);
        let shard = self.lock_shard(key_hash);
        shard
            .get(&key_hash)
            .filter(|lease| lease.is_for(leased) && lease.has_pending())
            .map(KeyLease::subscribe)
    }

    async fn charge_single(
        &self,
        leased: LeasedCounter<'_>,
        hits: Hits,
        mode: ChargeMode,
    ) -> ChargeOutcome {
        let charge = Charge { cost: Cost::Charge(hits), ..leased.charge.clone() };
        let charges = Charges { list: smallvec![charge], mode };
        let balance_before = self.balance_of(self.clock.now(), leased);
        let outcomes = self.charge_store(self.clock.now(), &charges).await;
        let outcome =
            outcomes.first().copied().unwrap_or(ChargeOutcome::Failed(StoreFailure::InvalidReply));
        self.add_local_balance(leased, balance_before, outcome)
    }

    /// Adds the balance of this replica to the headroom in `outcome`, but at most `balance_before`,
    /// the balance before the store call: hits that were granted later may already be in the
    /// store's headroom.
    fn add_local_balance(
        &self,
        leased: LeasedCounter<'_>,
        balance_before: Hits,
        outcome: ChargeOutcome,
    ) -> ChargeOutcome {
        let ChargeOutcome::Decided(step) = outcome else { return outcome };
        let local_hits = balance_before.min(self.balance_of(self.clock.now(), leased));
        ChargeOutcome::Decided(add_local_hits(step, local_hits, max_at_once(leased)))
    }

    async fn charge_store(&self, now: Nanos, charges: &Charges) -> Outcomes {
        match self.store.charge(now, charges) {
            StoreReply::Ready(outcomes) => outcomes,
            StoreReply::Pending(reply) => reply.await,
        }
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
/// supersede the pending one, and its granted hits would never be returned.
fn is_pending_for_other_limit(
    shard: &LeaseShard,
    key_hash: LeaseKeyHash,
    leased: LeasedCounter<'_>,
) -> bool {
    shard.get(&key_hash).is_some_and(|lease| !lease.is_for(leased) && lease.has_pending())
}

/// Returns the outcome of a check from the store's reply, with the balance of this replica in the
/// headroom.
fn outcome_of_reply(leased: LeasedCounter<'_>, reply: &BorrowReply) -> ChargeOutcome {
    ChargeOutcome::Decided(reply.local_decision(max_at_once(leased)))
}

fn max_at_once(leased: LeasedCounter<'_>) -> Hits {
    Hits(leased.charge.strategy.max_at_once().into())
}

/// Returns `true` if the message certainly never left this process. `Unreachable` is not certain:
/// the message may have been written to the lost connection.
const fn was_never_sent(outcome: LeaseOutcome) -> bool {
    matches!(outcome, LeaseOutcome::Failed(StoreFailure::Overloaded | StoreFailure::BreakerOpen))
}

/// Returns the failure of a check that waited for another check's message, which failed with
/// `cause`. The hits of the waiting check were never sent.
const fn failure_for_waiters(cause: StoreFailure) -> StoreFailure {
    match cause {
        StoreFailure::ConnectionLost | StoreFailure::TimedOut | StoreFailure::InvalidReply => {
            StoreFailure::Unsent
        }
        cause => cause,
    }
}

/// Returns the leased limits with the paths of their rules, sorted by path.
fn leased_rules(config: &Config) -> Vec<(&str, &Limit)> {
    let rules = config.domains.values().flat_map(|domain| domain.tree.rules());
    let limits = rules.filter_map(|rule| Some((&*rule.path, rule.limit.as_ref()?)));
    let mut limits: Vec<_> =
        limits.filter(|(_, limit)| matches!(limit.mode, LimitMode::Leased(_))).collect();
    limits.sort_by_key(|(path, _)| *path);
    limits
}
