//! Refills leases in the background, before their balances run out.
//!
//! Guarantees:
//! - A due refill is sent at once, or within [`LOOKED_FOR`] together with early refills.
//! - At most [`MOST_AT_LEISURE`](super::MOST_AT_LEISURE) early refills are in flight.
//! - While more are needed than fit, scans repeat by themselves.
//! - Scans take at most 1/[`LOOKING_PART`] of the time.
//!
//! Not covered:
//! - The time of a refill (see [`Held`]).
//! - Returning hits.

use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::OwnedSemaphorePermit;

use super::Leases;
use super::flight::together;
use super::held::Held;
use super::shard::Ledgers;
use crate::backend::lease::Message;
use crate::kernel::units::Nanos;

/// A refill that would be due within this time, two upkeep rounds,
/// is sent early. Refills of many keys then share few store calls.
const LEISURE: Nanos = Nanos::from_secs(2);

/// The shortest interval between scans. A refill of one key scans all others for early refills.
const LOOKED_EVERY: Nanos = Nanos(100_000_000);

/// The longest time that a due refill waits for a scan, plus the scan of one shard.
const LOOKED_FOR: Nanos = Nanos(200_000);

/// Scans take at most 1/100 of the time.
const LOOKING_PART: u64 = 100;

/// A message to send, and its slot if it is an early refill. The slot is freed after the reply.
type Going = (Message, Option<OwnedSemaphorePermit>);

impl Leases {
    /// Sends a refill if one is due, together with early refills of other keys.
    pub(super) fn borrow_ahead(self: &Arc<Self>, held: &mut Held, now: Nanos) {
        if self.is_leaving() {
            return;
        }
        if let Some(borrow) = held.ahead(now, || self.next()) {
            let message = self.message(held.leased(), borrow);
            if self.may_look(now) {
                let all = Arc::clone(self);
                tokio::spawn(async move { all.look_around(message).await });
            } else {
                self.send_together(vec![(message, None)]);
            }
        }
    }

    /// Returns `true` if the caller may scan all shards now.
    fn may_look(&self, now: Nanos) -> bool {
        let next = self.next_look.load(Relaxed);
        let after = now.plus(LOOKED_EVERY).0;
        next <= now.0 && self.next_look.compare_exchange(next, after, Relaxed, Relaxed).is_ok()
    }

    /// Sends `first` together with early refills of other keys. Repeats while there are more
    /// early refills than slots, so that they are sent in full calls before they become urgent.
    async fn look_around(self: &Arc<Self>, first: Message) {
        let mut urgent = Some((first, None));
        loop {
            let began = self.clock.now();
            let is_all = self.borrow_at_leisure(began, urgent.take()).await;
            let took = self.clock.now().since(began);
            let patience = Nanos(took.0.saturating_mul(LOOKING_PART)).max(LOOKED_EVERY);
            self.next_look.store(began.plus(patience).0, Relaxed);
            if is_all {
                return;
            }
            tokio::time::sleep(Duration::from_nanos(patience.0)).await;
            // A scan that another task started meanwhile replaces this one.
            if self.is_leaving() || !self.may_look(self.clock.now()) {
                return;
            }
        }
    }

    /// Scans all keys, and sends the early refills together with the `urgent` message, which
    /// does not wait long. Returns `false` if slots ran out; a later scan finds the rest.
    pub(super) async fn borrow_at_leisure(
        self: &Arc<Self>,
        now: Nanos,
        urgent: Option<Going>,
    ) -> bool {
        let (late, mut is_urgent) = (now.plus(LOOKED_FOR), urgent.is_some());
        let mut goes = Vec::from_iter(urgent);
        let mut is_all = true;
        for shard in &self.shards {
            is_all = self.find_at_leisure(&mut shard.0.lock(), now, &mut goes);
            if !is_all {
                break;
            }
            if is_urgent && late <= self.clock.now() {
                is_urgent = false;
                self.send_together(take(&mut goes));
                // Lets the spawned task send the urgent message before the scan continues.
                tokio::task::yield_now().await;
            }
        }
        self.send_together(goes);
        is_all
    }

    /// Adds the early refills of one shard to `goes`. Returns `false` if slots ran out.
    fn find_at_leisure(&self, shard: &mut Ledgers, now: Nanos, goes: &mut Vec<Going>) -> bool {
        let turn = || Arc::clone(&self.leisure).try_acquire_owned().ok();
        let mut next = turn();
        for held in shard.values_mut() {
            if next.is_none() || self.is_leaving() {
                return false;
            }
            if let Some(borrow) = held.at_leisure(now, self.next(), LEISURE) {
                goes.push((self.message(held.leased(), borrow), next));
                next = turn();
            }
        }
        true
    }

    /// Sends messages in the background.
    pub(super) fn send_together(self: &Arc<Self>, goes: Vec<Going>) {
        if goes.is_empty() {
            return;
        }
        let all = Arc::clone(self);
        tokio::spawn(async move {
            if let [(message, _)] = &*goes {
                all.send(message).await;
                return;
            }
            let send = async |(message, turn): Going| {
                all.send(&message).await;
                drop(turn);
            };
            together(&*all.backend, join_all(goes.into_iter().map(send))).await;
        });
    }
}
