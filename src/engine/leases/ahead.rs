//! What is borrowed before it is asked for, in the background.
//!
//! Guarantees: what a key needs now is sent at once, or within about [`LOOKED_FOR`] where it takes along what others will
//! soon need; no more than [`MOST_AT_LEISURE`](super::MOST_AT_LEISURE) of these are on their way at one time, and while
//! there are more, looks follow of themselves; looking takes no more than one part in [`LOOKING_PART`] of the time.
//! Leaves out: when a key needs more ([`Held`]); what goes back.

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

/// What would be borrowed before the one after the next is borrowed now, so that messages about many keys go
/// in few calls.
const LEISURE: Nanos = Nanos::from_secs(2);

/// Who borrows ahead for one key looks at the others too, but no sooner than this after the last look.
const LOOKED_EVERY: Nanos = Nanos(100_000_000);

/// What goes at once waits no longer than this, and the end of a shard, for what a look finds.
const LOOKED_FOR: Nanos = Nanos(200_000);

/// Looking takes no more than one part in so many of the time.
const LOOKING_PART: u64 = 100;

/// A message to be sent, and the turn that it takes, which is over when it is settled.
type Going = (Message, Option<OwnedSemaphorePermit>);

impl Leases {
    /// Borrows in the background, where it is time to; and with it what others will soon need.
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

    /// Whether it is time to look at all ledgers; who is told so does.
    fn may_look(&self, now: Nanos) -> bool {
        let next = self.next_look.load(Relaxed);
        let after = now.plus(LOOKED_EVERY).0;
        next <= now.0 && self.next_look.compare_exchange(next, after, Relaxed, Relaxed).is_ok()
    }

    /// Sends `first`, and takes along what others will soon need; looks again for as long as there is more of that than finds
    /// a turn, so that it goes in full calls and not one by one once it is urgent.
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
            // Who looks meanwhile goes on in place of this.
            if self.is_leaving() || !self.may_look(self.clock.now()) {
                return;
            }
        }
    }

    /// Borrows in the background for keys that it will soon be time for; false where some of them may have found no turn,
    /// which are found again. What is found travels with what is `urgent`, which does not wait for long.
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
                // What was spawned goes before this goes on.
                tokio::task::yield_now().await;
            }
        }
        self.send_together(goes);
        is_all
    }

    /// Whether there may be more turns for what a shard's keys will soon need, which comes to `goes`.
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
