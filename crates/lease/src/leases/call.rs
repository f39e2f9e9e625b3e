//! A lease call in flight.
//!
//! Guarantees:
//! - A lease call continues after its check is canceled, because its grant would be charged but
//!   never spent.
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

use crate::store::CounterStore;
use crate::store::lease::LeaseOutcome;

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
