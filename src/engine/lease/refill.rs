//! Refills leases in the background, before their balances run out.
//!
//! Guarantees:
//! - A due refill is sent at once, or within [`MAX_SCAN_WAIT`] together with early refills.
//! - At most [`MAX_EARLY_REFILLS`](super::MAX_EARLY_REFILLS) early refills are in flight.
//! - While more early refills are needed than fit, the scan for them repeats.
//! - The interval between scans is at least [`SCAN_TIME_DIVISOR`] times the duration of a scan.
//!
//! Not covered:
//! - The instant at which a refill is due (see [`KeyLease`]).
//! - Returning hits.

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

/// A refill that would be due within this time, two upkeep intervals, is sent early. Refills of
/// many keys then share few store calls.
const EARLY_REFILL_TIME: Nanos = Nanos::from_secs(2);

/// The shortest interval between scans. A refill of one key scans all others for early refills.
const MIN_SCAN_INTERVAL: Nanos = Nanos(100_000_000);

/// The longest time that a due refill waits for the scan of all shards, plus the scan of one shard.
const MAX_SCAN_WAIT: Nanos = Nanos(200_000);

/// The interval between scans is at least 100 times the duration of a scan.
const SCAN_TIME_DIVISOR: u64 = 100;

/// A message to send, and the slot of an early refill, which is freed after the reply.
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
                let all = Arc::clone(self);
                tokio::spawn(async move { all.scan_repeatedly(message).await });
            } else {
                self.send_in_batch(vec![(message, None)]);
            }
        }
    }

    /// Returns `true` if the caller may scan all shards now.
    fn claim_scan(&self, now: Nanos) -> bool {
        let next = self.next_scan.load(Relaxed);
        let after = now.plus(MIN_SCAN_INTERVAL).0;
        next <= now.0 && self.next_scan.compare_exchange(next, after, Relaxed, Relaxed).is_ok()
    }

    /// Sends `first` together with early refills of other keys. Repeats while there are more early
    /// refills than slots, so that they are sent in full store calls before they are due.
    async fn scan_repeatedly(self: &Arc<Self>, first: LeaseMessage) {
        let mut urgent = Some((first, None));
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

    /// Scans all keys, and sends the early refills together with the `urgent` message, which waits
    /// at most [`MAX_SCAN_WAIT`]. Returns `false` if slots ran out; a later scan sends the others.
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
                // Lets the spawned task send the urgent message before the scan continues.
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

    /// Sends messages in the background.
    pub(super) fn send_in_batch(self: &Arc<Self>, outgoing: Vec<OutgoingMessage>) {
        if outgoing.is_empty() {
            return;
        }
        let all = Arc::clone(self);
        tokio::spawn(async move {
            if let [(message, _)] = &*outgoing {
                all.send(message).await;
                return;
            }
            let send = async |(message, slot): OutgoingMessage| {
                all.send(&message).await;
                drop(slot);
            };
            share_store_call(&*all.store, join_all(outgoing.into_iter().map(send))).await;
        });
    }
}
