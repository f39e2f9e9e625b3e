//! The upkeep of leases: early refills, returned hits and idle keys.
//!
//! Guarantees:
//! - At most [`MAX_RETURNS`] messages that return hits are in flight.
//!
//! Not covered:
//! - The choice of refills (see [`super::refill`]).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::MissedTickBehavior;

use super::call::share_store_call;
use super::key_lease::KeyLease;
use super::{LeaseManager, LeaseSummary, MAX_RETURNS};
use crate::kernel::key::CounterKey;
use crate::kernel::lease::{BorrowRequest, MessageNumber};
use crate::kernel::units::{Hits, Nanos};
use crate::store::lease::LeaseMessage;

/// The upkeep interval, short compared with the longest lease (30 s).
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);

impl LeaseManager {
    /// Notes whether the limits in force have a leased one. If the leased limits changed, the upkeep
    /// task returns all hits to the store soon.
    pub fn apply_limits(&self, has_leased_limits: bool, are_changed: bool) {
        self.has_leased_limits.store(has_leased_limits, Relaxed);
        if are_changed {
            self.limits_changed.notify_one();
        }
    }

    /// Returns `true` if the configuration has a leased limit.
    #[must_use]
    pub fn has_leased_limits(&self) -> bool {
        self.has_leased_limits.load(Relaxed)
    }

    /// Runs [`LeaseManager::upkeep`] once a second, forever. Returns all hits to the store when a
    /// configuration has other leased limits.
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

    /// Returns all hits to the store for a drain, after pending replies arrive
    /// or fail. Background refills stop, because their replies would be ignored.
    pub async fn return_all(self: &Arc<Self>) {
        self.is_draining.store(true, Relaxed);
        let mut pending_replies = Vec::new();
        self.send_for_each(|lease, now, number| {
            let Some(settled) = lease.take_over_return() else {
                return lease.return_all(now, number);
            };
            pending_replies.push(settled);
            None
        })
        .await;
        for mut settled in pending_replies {
            drop(settled.changed().await);
        }
        self.send_for_each(KeyLease::return_all).await;
    }

    /// Returns the hits of `key` that can be spent without a store call.
    #[must_use]
    pub fn balance(&self, key: &CounterKey) -> Hits {
        let (now, place) = (self.clock.now(), self.hash_key(key));
        self.lock_shard(place).get(&place).map_or(Hits(0), |lease| lease.balance(now))
    }

    /// Returns the totals over all leases. Cost: O(keys); locks one shard at a time.
    #[must_use]
    pub fn totals(&self) -> LeaseSummary {
        let now = self.clock.now();
        self.shards.iter().fold(LeaseSummary::default(), |sum, shard| {
            let shard = shard.0.lock();
            let hits = shard.values().map(|lease| lease.balance(now)).fold(sum.hits, Hits::plus);
            LeaseSummary { keys: sum.keys + shard.len(), hits }
        })
    }

    /// Sends the messages that `take` returns, in batches.
    async fn send_for_each(
        &self,
        mut take: impl FnMut(&mut KeyLease, Nanos, MessageNumber) -> Option<BorrowRequest>,
    ) {
        let now = self.clock.now();
        let mut messages = Vec::new();
        for shard in &self.shards {
            for lease in shard.0.lock().values_mut() {
                if let Some(borrow) = take(lease, now, self.next_number()) {
                    messages.push(self.message(lease.leased(), borrow));
                }
            }
            if MAX_RETURNS <= messages.len() {
                self.send_all(&mut messages).await;
            }
        }
        self.send_all(&mut messages).await;
    }

    /// Sends all messages. The hits of a lost message expire with their lease.
    async fn send_all(&self, messages: &mut Vec<LeaseMessage>) {
        for batch in messages.chunks(MAX_RETURNS) {
            let calls = join_all(batch.iter().map(|parting| self.call_store(parting)));
            share_store_call(&*self.store, calls).await;
        }
        messages.clear();
    }
}
