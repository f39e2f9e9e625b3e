//! Refills leases in the background, before their balances run out.
//!
//! Guarantees:
//! - A due refill is sent within [`MAX_SCAN_WAIT`].
//! - At most [`MAX_EARLY_REFILLS`](super::MAX_EARLY_REFILLS) early refills are in flight. While
//!   more are needed, the scan for them repeats.
//! - The interval between scans is at least [`SCAN_TIME_DIVISOR`] times the duration of a scan.

use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::OwnedSemaphorePermit;

use super::LeaseManager;
use super::call::share_store_call;
use super::key_lease::KeyLease;
use super::table::LeaseShard;
use crate::kernel::units::Nanos;
use crate::store::lease::LeaseMessage;

/// A refill that would be due within this time is sent early, so that refills of many keys share
/// few store calls.
const EARLY_REFILL_TIME: Nanos = Nanos::from_secs(2);

/// The shortest interval between scans of all leases for early refills.
const MIN_SCAN_INTERVAL: Nanos = Nanos(100_000_000);

/// A due refill waits at most for this time, plus the scan of one shard, until it is sent.
const MAX_SCAN_WAIT: Nanos = Nanos(200_000);

const SCAN_TIME_DIVISOR: u64 = 100;

/// A message to send. An early refill has a slot, which is freed after the reply.
type OutgoingMessage = (LeaseMessage, Option<OwnedSemaphorePermit>);

impl LeaseManager {
    /// Sends a refill if one is due, together with early refills of other keys.
    pub(super) fn refill_if_due(self: &Arc<Self>, lease: &mut KeyLease, now: Nanos) {
        if self.is_draining() {
            return;
        }
        if let Some(borrow) = lease.refill(now, || self.next_number()) {
            let message = self.message(lease.leased(), borrow);
            if self.claim_scan(now) {
                let manager = Arc::clone(self);
                tokio::spawn(async move { manager.scan_repeatedly(message).await });
            } else {
                self.send_in_batch(vec![(message, None)]);
            }
        }
    }

    /// Returns `true` if the caller may scan all shards now, and reserves the scan.
    fn claim_scan(&self, now: Nanos) -> bool {
        let next = self.next_scan.load(Relaxed);
        let after = now.plus(MIN_SCAN_INTERVAL).0;
        next <= now.0 && self.next_scan.compare_exchange(next, after, Relaxed, Relaxed).is_ok()
    }

    /// Sends `due_refill` together with early refills of other keys. Repeats while there are more
    /// early refills than slots.
    async fn scan_repeatedly(self: &Arc<Self>, due_refill: LeaseMessage) {
        let mut urgent = Some((due_refill, None));
        loop {
            let started_at = self.clock.now();
            let has_slots = self.refill_early(started_at, urgent.take()).await;
            let scan_time = self.clock.now().since(started_at);
            let pause = Nanos(scan_time.0.saturating_mul(SCAN_TIME_DIVISOR)).max(MIN_SCAN_INTERVAL);
            self.next_scan.store(started_at.plus(pause).0, Relaxed);
            if has_slots {
                return;
            }
            tokio::time::sleep(Duration::from_nanos(pause.0)).await;
            // A scan that another task started meanwhile replaces this one.
            if self.is_draining() || !self.claim_scan(self.clock.now()) {
                return;
            }
        }
    }

    /// Sends early refills of all keys, together with the `urgent` message, which waits at most
    /// [`MAX_SCAN_WAIT`]. Returns `false` if slots ran out.
    pub(super) async fn refill_early(
        self: &Arc<Self>,
        now: Nanos,
        urgent: Option<OutgoingMessage>,
    ) -> bool {
        let (latest_send, mut is_urgent) = (now.plus(MAX_SCAN_WAIT), urgent.is_some());
        let mut outgoing = Vec::from_iter(urgent);
        let mut has_slots = true;
        for shard in &self.shards {
            has_slots = self.collect_early_refills(&mut shard.0.lock(), now, &mut outgoing);
            if !has_slots {
                break;
            }
            if is_urgent && latest_send <= self.clock.now() {
                is_urgent = false;
                self.send_in_batch(take(&mut outgoing));
                // Lets the spawned task send the urgent message before this scan continues.
                tokio::task::yield_now().await;
            }
        }
        self.send_in_batch(outgoing);
        has_slots
    }

    /// Adds the early refills of one shard to `outgoing`. Returns `false` if slots ran out.
    fn collect_early_refills(
        &self,
        shard: &mut LeaseShard,
        now: Nanos,
        outgoing: &mut Vec<OutgoingMessage>,
    ) -> bool {
        let try_slot = || Arc::clone(&self.early_refill_slots).try_acquire_owned().ok();
        let mut slot = try_slot();
        for lease in shard.values_mut() {
            if slot.is_none() || self.is_draining() {
                return false;
            }
            if let Some(borrow) = lease.refill_early(now, self.next_number(), EARLY_REFILL_TIME) {
                outgoing.push((self.message(lease.leased(), borrow), slot));
                slot = try_slot();
            }
        }
        true
    }

    /// Sends messages in the background, in one store call.
    pub(super) fn send_in_batch(self: &Arc<Self>, outgoing: Vec<OutgoingMessage>) {
        if outgoing.is_empty() {
            return;
        }
        let manager = Arc::clone(self);
        tokio::spawn(async move {
            if let [(message, _)] = &*outgoing {
                manager.send(message).await;
                return;
            }
            let send = async |(message, slot): OutgoingMessage| {
                manager.send(&message).await;
                drop(slot);
            };
            share_store_call(&*manager.store, join_all(outgoing.into_iter().map(send))).await;
        });
    }
}
