//! Batches items of many callers, each a check or a lease message, into few script calls.
//!
//! Guarantees:
//! - If no call is in flight, an item is sent at once, in its caller's task.
//! - During a call, items wait until the call ends, for [`MAX_DELAY`], or until a batch is full.
//! - Items from one [`Batcher::send_together`] block are sent together, outside a Cluster.
//! - The size of a call, the calls in flight and the waiting items are bounded.
//! - If a caller abandons its item before it is sent, the item is never sent.
//! - Each caller gets its result, even if other callers of the batch abandon theirs.
//!
//! Not covered: the deadlines of callers. Each caller stops waiting by itself.
//!
//! A lane is the queue of items for one Redis, or for one slot of a Cluster. Lanes are independent.

mod item;
mod lane;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::route::Route;
use super::{Batching, StoreFailure};
pub(super) use item::{BatchItem, BatchReplies};
use item::{QueuedItem, deliver};
use lane::{BatchLane, MAX_WAITING_MICROS, NumberedBatch};

/// The longest time that a call in flight delays later items: Redis on the same machine replies
/// sooner, and items for a distant Redis must not wait for a whole round trip.
const MAX_DELAY: Duration = Duration::from_millis(1);

const CLUSTER_SLOTS: u16 = 16_384;

/// The batched calls of one script to one Redis or Cluster.
#[derive(Debug)]
pub(super) struct Batcher<T: BatchItem> {
    route: Route,
    deadline: Duration,
    batching: Batching,
    lanes: Box<[Mutex<BatchLane<T>>]>,
}

/// One call in flight of a lane. Dropping the guard ends the call and may start the next.
struct CallGuard<T: BatchItem> {
    batcher: Arc<Batcher<T>>,
    slot: u16,
    /// The number of the call; `None` after its end.
    number: Option<u64>,
}

/// Delays the sending of all items until this guard is dropped.
struct GroupGuard<'c, T: BatchItem>(&'c Arc<Batcher<T>>);

enum Submission<T: BatchItem> {
    /// The item is sent at once, in a call of its own.
    SendNow(T, CallGuard<T>),
    /// The item waits in the queue, and may have completed a batch, which is then sent.
    Queued(
        oneshot::Receiver<Result<T::Output, StoreFailure>>,
        Option<(Vec<QueuedItem<T>>, CallGuard<T>)>,
    ),
}

impl<T: BatchItem> Batcher<T> {
    pub(super) fn new(route: Route, deadline: Duration, batching: Batching) -> Arc<Self> {
        let lanes = if route.is_clustered() { CLUSTER_SLOTS } else { 1 };
        let lanes = (0..lanes).map(|_| Mutex::default()).collect();
        Arc::new(Self { route, deadline, batching, lanes })
    }

    /// Sends an item to the Redis of the Cluster slot `slot`, and waits for the result.
    pub(super) async fn submit(
        self: &Arc<Self>,
        slot: u16,
        item: T,
    ) -> Result<T::Output, StoreFailure> {
        let submission = self.enqueue(slot, item)?;
        let pending = self.route.start_call(slot);
        match submission {
            Submission::SendNow(item, call) => {
                let result = call.run_call(vec![item]).await;
                pending.settle();
                self.route.record_result(slot, result.as_ref().err().copied());
                result.and_then(|(mut results, _)| results.pop().ok_or(StoreFailure::InvalidReply))
            }
            Submission::Queued(receiver, full) => {
                if let Some((batch, call)) = full {
                    tokio::spawn(call.drive(batch));
                }
                let caller = WaitingCaller { batcher: self, slot, receiver, has_result: false };
                let result = caller.wait().await;
                pending.settle();
                if matches!(result, Err(StoreFailure::TimedOut)) {
                    self.route.record_result(slot, Some(StoreFailure::TimedOut));
                }
                result
            }
        }
    }

    /// Runs `begin`, which submits several items, and sends them together after it returns. In a
    /// Cluster each item is sent at once, because each key has its own slot.
    pub(super) fn send_together(self: &Arc<Self>, begin: &mut dyn FnMut()) {
        if self.route.has_several_servers() {
            return begin();
        }
        self.lane(0).lock().open_groups += 1;
        let group = GroupGuard(self);
        begin();
        drop(group);
    }

    fn enqueue(self: &Arc<Self>, slot: u16, item: T) -> Result<Submission<T>, StoreFailure> {
        let call_guard =
            |number| CallGuard { batcher: Arc::clone(self), slot, number: Some(number) };
        let mut lane = self.lane(slot).lock();
        let can_send_now = lane.waiting.is_empty() && lane.can_start_call();
        // Behind a proxy, a batch would reach only the server of its first key.
        let is_alone = self.batching == Batching::Off || self.route.is_proxied();
        if can_send_now || is_alone {
            let number = lane.begin_call();
            return Ok(Submission::SendNow(item, call_guard(number)));
        }
        if MAX_WAITING_MICROS < lane.waiting_micros {
            return Err(StoreFailure::Overloaded);
        }
        let (sender, receiver) = oneshot::channel();
        lane.waiting_micros += item.script_micros();
        lane.waiting.push_back(QueuedItem { item, sender });
        let full_batch = lane.next_batch();
        drop(lane);
        Ok(Submission::Queued(
            receiver,
            full_batch.map(|(batch, number)| (batch, call_guard(number))),
        ))
    }

    fn lane(&self, slot: u16) -> &Mutex<BatchLane<T>> {
        &self.lanes[usize::from(slot) % self.lanes.len()]
    }

    fn start(self: &Arc<Self>, slot: u16, next: Option<NumberedBatch<T>>) {
        let Some((batch, number)) = next else { return };
        let call = CallGuard { batcher: Arc::clone(self), slot, number: Some(number) };
        // Without a Tokio runtime the process is ending, and no caller waits.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(call.drive(batch));
        }
    }
}

impl<T: BatchItem> CallGuard<T> {
    /// Lets other calls start although this call is still in flight.
    fn allow_next_call(&self) {
        let next = {
            let mut lane = self.batcher.lane(self.slot).lock();
            lane.stop_delaying(self.number);
            lane.next_batch()
        };
        self.batcher.start(self.slot, next);
    }

    /// Sends `batch`, and then further batches until no batch is ready.
    async fn drive(mut self, mut batch: Vec<QueuedItem<T>>) {
        loop {
            let (items, senders): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|waiting| (waiting.item, waiting.sender)).unzip();
            let result = self.run_call(items).await;
            // Do not record a timeout here, because each waiting caller records its own.
            if !matches!(result, Err(StoreFailure::TimedOut)) {
                self.batcher.route.record_result(self.slot, result.as_ref().err().copied());
            }
            let unsent_items = deliver(senders, result);
            if !unsent_items.is_empty() {
                batch = unsent_items;
                continue;
            }
            let Some((next, number)) = self.finish() else { return };
            (batch, self.number) = (next, Some(number));
        }
    }

    /// Makes one call and waits until the deadline for its reply. After [`MAX_DELAY`], other calls
    /// of the lane may start.
    async fn run_call(&self, items: Vec<T>) -> Result<BatchReplies<T>, StoreFailure> {
        let live = self.batcher.route.connection(self.slot)?;
        let mut call = pin!(T::run_batch(&live, items));
        let deadline = self.batcher.deadline;
        let delay = MAX_DELAY.min(deadline);
        match timeout(delay, &mut call).await {
            Ok(result) => result,
            Err(_elapsed) => {
                self.allow_next_call();
                let remaining = deadline.saturating_sub(delay);
                timeout(remaining, call).await.unwrap_or(Err(StoreFailure::TimedOut))
            }
        }
    }

    fn finish(&mut self) -> Option<NumberedBatch<T>> {
        let number = self.number.take()?;
        let mut lane = self.batcher.lane(self.slot).lock();
        lane.end_call(number);
        lane.next_batch()
    }
}

impl<T: BatchItem> Drop for CallGuard<T> {
    fn drop(&mut self) {
        let next = self.finish();
        self.batcher.start(self.slot, next);
    }
}

impl<T: BatchItem> Drop for GroupGuard<'_, T> {
    fn drop(&mut self) {
        let next = {
            let mut lane = self.0.lane(0).lock();
            lane.open_groups -= 1;
            lane.next_batch()
        };
        self.0.start(0, next);
    }
}

/// A caller that waits for its result. If it is dropped before the result, the item is abandoned.
struct WaitingCaller<'c, T: BatchItem> {
    batcher: &'c Batcher<T>,
    slot: u16,
    receiver: oneshot::Receiver<Result<T::Output, StoreFailure>>,
    has_result: bool,
}

impl<T: BatchItem> WaitingCaller<'_, T> {
    async fn wait(mut self) -> Result<T::Output, StoreFailure> {
        let received = timeout(self.batcher.deadline, &mut self.receiver).await;
        self.has_result = received.is_ok();
        // A sender is dropped without a result only when the process ends.
        received.map_or(Err(StoreFailure::TimedOut), |result| {
            result.unwrap_or(Err(StoreFailure::Unreachable))
        })
    }
}

impl<T: BatchItem> Drop for WaitingCaller<'_, T> {
    fn drop(&mut self) {
        if !self.has_result {
            self.receiver.close();
            self.batcher.lane(self.slot).lock().count_abandoned();
        }
    }
}
