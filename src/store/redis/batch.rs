//! Batches checks or lease messages of many callers into few script calls. An item is one check or
//! one lease message.
//!
//! Guarantees:
//! - If no call is in flight, an item is sent at once, in its caller's task.
//! - During a call, items wait until the call ends, for [`MAX_DELAY`], or until a batch is full.
//! - Items that callers submit in one [`Batcher::send_together`] block are sent together, outside a
//!   Cluster.
//! - The size of a call, the calls in flight and the waiting items are bounded.
//! - If a caller abandons its item before it is sent, the item is never sent.
//! - Each caller gets its result, even if other callers of the batch abandon theirs.
//!
//! Not covered:
//! - The deadlines of callers: each caller stops waiting by itself.
//! - The content of items and results.
//!
//! A lane is the queue of items for one Redis, or for one slot of a Cluster. Lanes are independent.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::connection::LiveConnection;
use super::route::Route;
use super::{Batching, StoreFailure};

/// The longest time that a call in flight delays later items. Redis on the same machine replies
/// sooner. If Redis is distant, items wait this long instead of a whole round trip, and Redis
/// receives one call per millisecond.
const MAX_DELAY: Duration = Duration::from_millis(1);

/// The longest estimated script time of a call, in microseconds. Redis serves no other client
/// meanwhile.
const MAX_SCRIPT_MICROS: usize = 1_000;

/// The most calls in flight in one lane. At one call per millisecond this suffices for a round trip
/// of 32 ms. With full batches it carries 100,000 checks per second over a round trip of 80 ms.
const MAX_CALLS_IN_FLIGHT: usize = 32;

/// The most estimated script time that may wait in one lane, in microseconds. Redis would need
/// longer for more items than any caller's deadline.
const MAX_WAITING_MICROS: usize = 64 * MAX_SCRIPT_MICROS;

const CLUSTER_SLOTS: u16 = 16_384;

/// A check or a lease message that can share a script call with others of its kind.
pub(super) trait BatchItem: Sized + Send + Sync + 'static {
    type Output: Debug + Send + 'static;

    /// The estimated script time in microseconds.
    fn script_micros(&self) -> usize;

    /// Makes one script call for all items.
    ///
    /// # Errors
    /// The reason why Redis sent no usable reply.
    fn run_batch(
        live: &LiveConnection,
        questions: Vec<Self>,
    ) -> impl Future<Output = Result<BatchReplies<Self>, StoreFailure>> + Send;
}

/// The results of the first items (at least one), and the items that the script did not execute.
/// They need another call.
pub(super) type BatchReplies<Q> = (Vec<<Q as BatchItem>::Output>, Vec<Q>);

/// The batched calls of one script to one Redis or Cluster.
#[derive(Debug)]
pub(super) struct Batcher<Q: BatchItem> {
    route: Route,
    deadline: Duration,
    batching: Batching,
    lanes: Box<[Mutex<BatchLane<Q>>]>,
}

/// The waiting items and the calls in flight of one Redis or one Cluster slot.
#[derive(Debug)]
struct BatchLane<Q: BatchItem> {
    waiting: VecDeque<QueuedItem<Q>>,
    /// The estimated script time of the waiting items, in microseconds.
    waiting_micros: usize,
    /// At least the number of abandoned items in `waiting`.
    abandoned: usize,
    in_flight: usize,
    call_count: u64,
    /// The number of the call in flight that delays waiting items.
    delaying_call: Option<u64>,
    /// The number of [`Batcher::send_together`] blocks in progress.
    open_groups: usize,
}

#[derive(Debug)]
struct QueuedItem<Q: BatchItem> {
    item: Q,
    sender: oneshot::Sender<Result<Q::Output, StoreFailure>>,
}

/// One call in flight of a lane. Dropping the guard ends the call, so that the lane may start
/// another.
struct CallGuard<Q: BatchItem> {
    calls: Arc<Batcher<Q>>,
    slot: u16,
    /// The number of the call; `None` after its end.
    number: Option<u64>,
}

/// Delays the sending of all items of the batcher until this guard is dropped.
struct GroupGuard<'c, Q: BatchItem>(&'c Arc<Batcher<Q>>);

/// The items of one call, and the number of the call.
type NumberedBatch<Q> = (Vec<QueuedItem<Q>>, u64);

enum Submission<Q: BatchItem> {
    /// The item is sent at once, in a call of its own.
    SendNow(Q, CallGuard<Q>),
    /// The item waits in the queue. The second field is the batch that became full with this item,
    /// if any.
    Queued(
        oneshot::Receiver<Result<Q::Output, StoreFailure>>,
        Option<(Vec<QueuedItem<Q>>, CallGuard<Q>)>,
    ),
}

impl<Q: BatchItem> Default for BatchLane<Q> {
    fn default() -> Self {
        let (waiting, held_by) = (VecDeque::new(), None);
        Self {
            waiting,
            waiting_micros: 0,
            abandoned: 0,
            in_flight: 0,
            call_count: 0,
            delaying_call: held_by,
            open_groups: 0,
        }
    }
}

impl<Q: BatchItem> Batcher<Q> {
    pub(super) fn new(route: Route, deadline: Duration, batching: Batching) -> Arc<Self> {
        let lanes = if route.is_clustered() { CLUSTER_SLOTS } else { 1 };
        let lanes = (0..lanes).map(|_| Mutex::default()).collect();
        Arc::new(Self { route, deadline, batching, lanes })
    }

    /// Sends an item to the Redis of the Cluster slot `slot`, and waits for the result.
    pub(super) async fn submit(
        self: &Arc<Self>,
        slot: u16,
        item: Q,
    ) -> Result<Q::Output, StoreFailure> {
        let submission = self.enqueue(slot, item)?;
        let unanswered = self.route.start_call(slot);
        match submission {
            Submission::SendNow(question, turn) => {
                let batch_result = turn.run_call(vec![question]).await;
                unanswered.settle();
                self.route.record_result(slot, batch_result.as_ref().err().copied());
                batch_result
                    .and_then(|(mut shares, _)| shares.pop().ok_or(StoreFailure::InvalidReply))
            }
            Submission::Queued(answer, full) => {
                if let Some((batch, turn)) = full {
                    tokio::spawn(turn.drive(batch));
                }
                let answer =
                    WaitingCaller { calls: self, slot, receiver: answer, has_result: false }
                        .wait()
                        .await;
                unanswered.settle();
                if matches!(answer, Err(StoreFailure::TimedOut)) {
                    self.route.record_result(slot, Some(StoreFailure::TimedOut));
                }
                answer
            }
        }
    }

    /// Runs `begin`, which submits several items, and sends them together only after `begin`
    /// returns. In a Cluster each item is sent at once, because each key has its own slot.
    pub(super) fn send_together(self: &Arc<Self>, begin: &mut dyn FnMut()) {
        if self.route.is_clustered() {
            return begin();
        }
        self.lane(0).lock().open_groups += 1;
        let gathering = GroupGuard(self);
        begin();
        drop(gathering);
    }

    fn enqueue(self: &Arc<Self>, slot: u16, item: Q) -> Result<Submission<Q>, StoreFailure> {
        let call_guard = |number| CallGuard { calls: Arc::clone(self), slot, number: Some(number) };
        let mut lane = self.lane(slot).lock();
        let alone = lane.waiting.is_empty() && lane.can_start();
        if alone || self.batching == Batching::Off {
            let number = lane.begin_call();
            return Ok(Submission::SendNow(item, call_guard(number)));
        }
        if MAX_WAITING_MICROS < lane.waiting_micros {
            return Err(StoreFailure::Overloaded);
        }
        let (sender, receiver) = oneshot::channel();
        lane.waiting_micros += item.script_micros();
        lane.waiting.push_back(QueuedItem { item, sender });
        let full = lane.next_batch();
        drop(lane);
        Ok(Submission::Queued(receiver, full.map(|(batch, number)| (batch, call_guard(number)))))
    }

    fn lane(&self, slot: u16) -> &Mutex<BatchLane<Q>> {
        &self.lanes[usize::from(slot) % self.lanes.len()]
    }

    fn start(self: &Arc<Self>, slot: u16, next: Option<NumberedBatch<Q>>) {
        let Some((batch, number)) = next else { return };
        let call = CallGuard { calls: Arc::clone(self), slot, number: Some(number) };
        // Without a Tokio runtime the process is ending, and no caller waits.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(call.drive(batch));
        }
    }
}

impl<Q: BatchItem> BatchLane<Q> {
    fn can_start(&self) -> bool {
        let is_full = MAX_SCRIPT_MICROS <= self.waiting_micros;
        let is_held = self.delaying_call.is_some() && !is_full;
        self.open_groups == 0 && self.in_flight < MAX_CALLS_IN_FLIGHT && !is_held
    }

    fn begin_call(&mut self) -> u64 {
        self.call_count += 1;
        self.in_flight += 1;
        self.delaying_call = Some(self.call_count);
        self.call_count
    }

    fn end_call(&mut self, number: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.stop_delaying(Some(number));
    }

    fn stop_delaying(&mut self, number: Option<u64>) {
        if self.delaying_call == number {
            self.delaying_call = None;
        }
    }

    fn next_batch(&mut self) -> Option<NumberedBatch<Q>> {
        if !self.can_start() {
            return None;
        }
        let batch = self.take_batch();
        if batch.is_empty() { None } else { Some((batch, self.begin_call())) }
    }

    /// Removes the next batch from the queue: as many items as fit in [`MAX_SCRIPT_MICROS`], and at
    /// least one.
    fn take_batch(&mut self) -> Vec<QueuedItem<Q>> {
        let (mut batch, mut micros) = (Vec::with_capacity(self.waiting.len().min(256)), 0);
        while let Some(first) = self.waiting.front() {
            let its = first.item.script_micros();
            let is_dead = first.sender.is_closed();
            if !is_dead && !batch.is_empty() && MAX_SCRIPT_MICROS < micros + its {
                break;
            }
            self.waiting_micros -= its;
            if is_dead {
                self.waiting.pop_front();
                self.abandoned = self.abandoned.saturating_sub(1);
                continue;
            }
            micros += its;
            batch.extend(self.waiting.pop_front());
        }
        batch
    }

    /// Counts an abandoned item. If abandoned items may be more than half of the queue, removes all
    /// of them. Amortized cost: O(1) for each item.
    fn count_abandoned(&mut self) {
        self.abandoned += 1;
        if self.waiting.len() < 2 * self.abandoned {
            self.abandoned = 0;
            self.waiting.retain(|waiting| !waiting.sender.is_closed());
            self.waiting_micros =
                self.waiting.iter().map(|waiting| waiting.item.script_micros()).sum();
        }
    }
}

impl<Q: BatchItem> CallGuard<Q> {
    /// Lets other calls start although this call is still in flight.
    fn allow_next_call(&self) {
        let next = {
            let mut lane = self.calls.lane(self.slot).lock();
            lane.stop_delaying(self.number);
            lane.next_batch()
        };
        self.calls.start(self.slot, next);
    }

    /// Sends `batch`, and then further batches until no batch is ready.
    async fn drive(mut self, mut batch: Vec<QueuedItem<Q>>) {
        loop {
            let (questions, askers): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|waiting| (waiting.item, waiting.sender)).unzip();
            let result = self.run_call(questions).await;
            // Do not record a timeout here, because each waiting caller records its own.
            if !matches!(result, Err(StoreFailure::TimedOut)) {
                self.calls.route.record_result(self.slot, result.as_ref().err().copied());
            }
            let unsent_items = deliver(askers, result);
            if !unsent_items.is_empty() {
                batch = unsent_items;
                continue;
            }
            let Some((next, number)) = self.finish() else { return };
            (batch, self.number) = (next, Some(number));
        }
    }

    /// Makes one call and waits for its reply until the deadline. After [`MAX_DELAY`], other calls
    /// of the lane may start.
    async fn run_call(&self, items: Vec<Q>) -> Result<BatchReplies<Q>, StoreFailure> {
        let live = self.calls.route.connection(self.slot)?;
        let mut called = pin!(Q::run_batch(&live, items));
        let deadline = self.calls.deadline;
        let linger = MAX_DELAY.min(deadline);
        match timeout(linger, &mut called).await {
            Ok(shares) => shares,
            Err(_elapsed) => {
                self.allow_next_call();
                let left = deadline.saturating_sub(linger);
                timeout(left, called).await.unwrap_or(Err(StoreFailure::TimedOut))
            }
        }
    }

    /// Ends the call, and returns the next batch if one is ready.
    fn finish(&mut self) -> Option<NumberedBatch<Q>> {
        let number = self.number.take()?;
        let mut lane = self.calls.lane(self.slot).lock();
        lane.end_call(number);
        lane.next_batch()
    }
}

impl<Q: BatchItem> Drop for CallGuard<Q> {
    fn drop(&mut self) {
        let next = self.finish();
        self.calls.start(self.slot, next);
    }
}

impl<Q: BatchItem> Drop for GroupGuard<'_, Q> {
    fn drop(&mut self) {
        let next = {
            let mut lane = self.0.lane(0).lock();
            lane.open_groups -= 1;
            lane.next_batch()
        };
        self.0.start(0, next);
    }
}

/// Sends each caller its result, or the failure of the
/// call. Returns the items that still need a call.
fn deliver<Q: BatchItem>(
    callers: Vec<oneshot::Sender<Result<Q::Output, StoreFailure>>>,
    call_result: Result<BatchReplies<Q>, StoreFailure>,
) -> Vec<QueuedItem<Q>> {
    let mut askers = callers.into_iter();
    // A send fails only if the caller no longer waits, so the error is ignored.
    match call_result {
        Ok((shares, rest)) => {
            shares
                .into_iter()
                .zip(&mut askers)
                .for_each(|(share, asker)| drop(asker.send(Ok(share))));
            let rest = rest.into_iter().zip(askers).filter(|(_, asker)| !asker.is_closed());
            rest.map(|(question, answer)| QueuedItem { item: question, sender: answer }).collect()
        }
        Err(cause) => {
            askers.for_each(|asker| drop(asker.send(Err(cause))));
            Vec::new()
        }
    }
}

/// A caller that waits for its result. If it is dropped before the result, the item is abandoned.
struct WaitingCaller<'c, Q: BatchItem> {
    calls: &'c Batcher<Q>,
    slot: u16,
    receiver: oneshot::Receiver<Result<Q::Output, StoreFailure>>,
    has_result: bool,
}

impl<Q: BatchItem> WaitingCaller<'_, Q> {
    async fn wait(mut self) -> Result<Q::Output, StoreFailure> {
        let received = timeout(self.calls.deadline, &mut self.receiver).await;
        self.has_result = received.is_ok();
        // A sender is dropped without a result only when the process ends.
        received.map_or(Err(StoreFailure::TimedOut), |told| {
            told.unwrap_or(Err(StoreFailure::Unreachable))
        })
    }
}

impl<Q: BatchItem> Drop for WaitingCaller<'_, Q> {
    fn drop(&mut self) {
        if !self.has_result {
            self.receiver.close();
            self.calls.lane(self.slot).lock().count_abandoned();
        }
    }
}
