//! Sends a lease message and applies its reply.
//!
//! Guarantees:
//! - The end of a lease call wakes the waiting checks, with or without a reply.
//! - A message that certainly never left the replica is undone.
//!
//! Not covered:
//! - The content of the message.
//! - The deadline, which the store enforces.

use super::event::LeaseEvent;
use super::{LeaseKeyHash, LeaseManager};
use crate::kernel::key::CounterKey;
use crate::kernel::lease::{BorrowReply, MessageNumber};
use crate::store::lease::{LeaseMessage, LeaseOutcome};
use crate::store::{StoreFailure, StoreReply};

impl LeaseManager {
    pub(super) async fn send(&self, message: &LeaseMessage) -> LeaseOutcome {
        let mut settle_guard = SettleOnDrop::new(self, message);
        let lent = self.call_store(message).await;
        settle_guard.set_reply(lent);
        lent
    }

    pub(super) async fn call_store(&self, message: &LeaseMessage) -> LeaseOutcome {
        let (lent, is_unsent) = match self.store.exchange_lease_message(self.clock.now(), message) {
            StoreReply::Ready(lent) => (lent, matches!(lent, LeaseOutcome::Failed(_))),
            StoreReply::Pending(later) => {
                let lent = later.await;
                (lent, was_never_sent(lent))
            }
        };
        if is_unsent {
            self.undo_unsent(&message.key, message.borrow.number);
            return lent;
        }
        (self.observe)(LeaseEvent::Returned, message.borrow.returned);
        if let LeaseOutcome::Applied(BorrowReply { granted, .. }) = lent {
            (self.observe)(LeaseEvent::Borrowed, granted);
        }
        lent
    }

    fn undo_unsent(&self, key: &CounterKey, number: MessageNumber) {
        let (now, place) = (self.clock.now(), self.hash_key(key));
        if let Some(lease) = self.lock_shard(place).get_mut(&place) {
            lease.undo_unsent(now, number);
        }
    }
}

/// Returns `true` if the message certainly never left this process. `Unreachable` does not count:
/// the message may have been written to the lost connection.
const fn was_never_sent(outcome: LeaseOutcome) -> bool {
    matches!(outcome, LeaseOutcome::Failed(StoreFailure::Overloaded | StoreFailure::BreakerOpen))
}

/// Settles a message on drop: applies its reply, or a failure if there is none.
struct SettleOnDrop<'l> {
    leases: &'l LeaseManager,
    key_hash: LeaseKeyHash,
    number: MessageNumber,
    reply: Result<BorrowReply, Option<StoreFailure>>,
}

impl<'l> SettleOnDrop<'l> {
    fn new(leases: &'l LeaseManager, message: &LeaseMessage) -> Self {
        let (place, number) = (leases.hash_key(&message.key), message.borrow.number);
        Self { leases, key_hash: place, number, reply: Err(None) }
    }

    const fn set_reply(&mut self, outcome: LeaseOutcome) {
        self.reply = match outcome {
            LeaseOutcome::Applied(answer) => Ok(answer),
            LeaseOutcome::Failed(cause) => Err(Some(cause)),
            LeaseOutcome::Superseded | LeaseOutcome::StoreFull(_) | LeaseOutcome::Stale(_) => {
                Err(None)
            }
        };
    }
}

impl Drop for SettleOnDrop<'_> {
    fn drop(&mut self) {
        let now = self.leases.clock.now();
        let mut shard = self.leases.lock_shard(self.key_hash);
        if let Some(lease) = shard.get_mut(&self.key_hash) {
            lease.settle(now, self.number, self.reply);
            if lease.is_returning() && !lease.has_pending() {
                self.leases.delayed_return.notify_one();
            }
        }
    }
}
