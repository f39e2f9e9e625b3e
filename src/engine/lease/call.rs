//! A lease call in flight.
//!
//! Guarantees:
//! - A lease call continues after its check is canceled, because its grant would be charged but
//!   never spent. Only a runtime that shuts down drops the call.
//! - The end of a lease call wakes the waiting checks, with or without a reply.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use futures_util::future::JoinAll;
use tokio::runtime::Handle;

use super::{LeaseKeyHash, LeaseManager};
use crate::kernel::lease::{BorrowReply, MessageNumber};
use crate::store::lease::{LeaseMessage, LeaseOutcome};
use crate::store::{CounterStore, StoreFailure};

/// The lease call of a check. If the check drops it before the reply, it continues in the
/// background.
pub(super) struct LeaseCall(Option<Pin<Box<dyn Future<Output = LeaseOutcome> + Send>>>);

impl LeaseCall {
    pub(super) fn new(call: impl Future<Output = LeaseOutcome> + Send + 'static) -> Self {
        Self(Some(Box::pin(call)))
    }
}

impl Future for LeaseCall {
    type Output = LeaseOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LeaseOutcome> {
        // Taken out, so that a future that panicked is not polled again in the background.
        let Some(mut call) = self.0.take() else { return Poll::Pending };
        let polled = call.as_mut().poll(context);
        if polled.is_pending() {
            self.0 = Some(call);
        }
        polled
    }
}

impl Drop for LeaseCall {
    fn drop(&mut self) {
        // A runtime that shuts down drops the spawned future.
        if let (Some(call), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(call);
        }
    }
}

/// Runs `sends` so that their messages travel in one store call.
pub(super) async fn share_store_call<F: Future>(
    store: &dyn CounterStore,
    sends: JoinAll<F>,
) -> Vec<F::Output> {
    let (mut sends, mut has_started) = (pin!(sends), false);
    poll_fn(|context| {
        if has_started {
            return sends.as_mut().poll(context);
        }
        let mut first_poll = Poll::Pending;
        store.batch_calls(&mut || first_poll = sends.as_mut().poll(context));
        has_started = true;
        first_poll
    })
    .await
}

/// Settles a message on drop: applies its reply, or a failure if there was none. A message whose
/// future is dropped is thus settled, too.
pub(super) struct SettleOnDrop<'l> {
    leases: &'l LeaseManager,
    key_hash: LeaseKeyHash,
    number: MessageNumber,
    reply: Result<BorrowReply, Option<StoreFailure>>,
}

impl<'l> SettleOnDrop<'l> {
    pub(super) fn new(leases: &'l LeaseManager, message: &LeaseMessage) -> Self {
        let (key_hash, number) = (leases.hash_key(&message.key), message.borrow.number);
        Self { leases, key_hash, number, reply: Err(None) }
    }

    pub(super) const fn set_reply(&mut self, outcome: LeaseOutcome) {
        self.reply = match outcome {
            LeaseOutcome::Applied(reply) => Ok(reply),
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
