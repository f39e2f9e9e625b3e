//! A lease call in flight.
//!
//! Guarantees:
//! - It continues after its check is canceled, because its grant is charged.
//! - Its end wakes the waiting checks, with or without a reply.
//!
//! Not covered:
//! - The content of the message.
//! - The deadline, which the store enforces.
//! - A runtime that shuts down: the call is then dropped.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use futures_util::future::JoinAll;
use tokio::runtime::Handle;

use super::{Leases, Place};
use crate::backend::lease::{Lent, Message};
use crate::backend::{Backend, Cause};
use crate::kernel::lease::{Answer, Number};

/// The call of a check. If it is dropped before its end, it continues in the background.
pub(super) struct Sending(Option<Pin<Box<dyn Future<Output = Lent> + Send>>>);

impl Sending {
    pub(super) fn new(sending: impl Future<Output = Lent> + Send + 'static) -> Self {
        Self(Some(Box::pin(sending)))
    }
}

impl Future for Sending {
    type Output = Lent;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Lent> {
        // Taken out, so that a future that panicked is not polled again in the background.
        let Some(mut sending) = self.0.take() else { return Poll::Pending };
        let polled = sending.as_mut().poll(context);
        if polled.is_pending() {
            self.0 = Some(sending);
        }
        polled
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        // A runtime that shuts down drops the spawned future.
        if let (Some(sending), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(sending);
        }
    }
}

/// Runs `sends` such that their messages share a store call.
pub(super) async fn together<F: Future>(
    backend: &dyn Backend,
    sends: JoinAll<F>,
) -> Vec<F::Output> {
    let (mut sends, mut is_begun) = (pin!(sends), false);
    poll_fn(|context| {
        if is_begun {
            return sends.as_mut().poll(context);
        }
        let mut begun = Poll::Pending;
        backend.together(&mut || begun = sends.as_mut().poll(context));
        is_begun = true;
        begun
    })
    .await
}

/// Settles its message when it is dropped.
pub(super) struct Flight<'l> {
    leases: &'l Leases,
    place: Place,
    number: Number,
    came: Result<Answer, Option<Cause>>,
}

impl<'l> Flight<'l> {
    pub(super) fn of(leases: &'l Leases, message: &Message) -> Self {
        let (place, number) = (leases.place(&message.key), message.borrow.number);
        Self { leases, place, number, came: Err(None) }
    }

    pub(super) const fn land(&mut self, lent: Lent) {
        self.came = match lent {
            Lent::Answered(answer) => Ok(answer),
            Lent::Failed(cause) => Err(Some(cause)),
            Lent::Superseded | Lent::Full(_) | Lent::Stale(_) => Err(None),
        };
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let now = self.leases.clock.now();
        let mut shard = self.leases.shard(self.place);
        if let Some(held) = shard.get_mut(&self.place) {
            held.settle(now, self.number, self.came);
            if held.leaves() && !held.awaits() {
                self.leases.awaited.notify_one();
            }
        }
    }
}
