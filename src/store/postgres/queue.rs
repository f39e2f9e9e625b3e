//! The calls that wait for a transaction.
//!
//! Guarantees:
//! - A call whose caller stopped waiting is not sent.
//! - The queue is bounded; a full queue rejects a call.

use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::timeout;

use super::super::StoreFailure;
use super::rows::{RowKey, Rows};

/// The most calls in the queue.
const MAX_QUEUED: usize = 16_384;

/// The most calls in one transaction.
const MAX_BATCH: usize = 64;

/// One call to the store: the rows that it needs, and its effect on them.
pub(super) trait StoreOperation: Send + 'static {
    /// The result for the caller.
    type Reply: Send + 'static;

    /// The keys of the rows.
    fn keys(&self) -> &[RowKey];

    /// Decides, and writes the changed rows. On an error, no row is changed.
    fn apply(&self, rows: &mut Rows) -> Result<Self::Reply, StoreFailure>;
}

/// A call in the queue.
pub(super) trait QueuedCall: Send {
    /// The keys of the rows.
    fn keys(&self) -> &[RowKey];

    /// Returns true if the caller stopped waiting.
    fn is_abandoned(&self) -> bool;

    /// Decides, and keeps the reply until [`QueuedCall::finish`].
    fn apply(&mut self, rows: &mut Rows);

    /// Sends the reply to the caller if the transaction was committed, else its failure.
    fn finish(self: Box<Self>, committed: Result<(), StoreFailure>);
}

struct PendingCall<O: StoreOperation> {
    operation: O,
    reply: Option<Result<O::Reply, StoreFailure>>,
    caller: oneshot::Sender<Result<O::Reply, StoreFailure>>,
}

impl<O: StoreOperation> QueuedCall for PendingCall<O> {
    fn keys(&self) -> &[RowKey] {
        self.operation.keys()
    }

    fn is_abandoned(&self) -> bool {
        self.caller.is_closed()
    }

    fn apply(&mut self, rows: &mut Rows) {
        self.reply = Some(self.operation.apply(rows));
    }

    fn finish(self: Box<Self>, committed: Result<(), StoreFailure>) {
        let Self { reply, caller, .. } = *self;
        let reply = committed.and_then(|()| reply.unwrap_or(Err(StoreFailure::Unsent)));
        // The caller may have stopped waiting.
        drop(caller.send(reply));
    }
}

/// The bounded queue between callers and connections.
#[derive(Debug)]
pub(super) struct CallQueue {
    sender: mpsc::Sender<Box<dyn QueuedCall>>,
    receiver: Mutex<mpsc::Receiver<Box<dyn QueuedCall>>>,
}

impl Default for CallQueue {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED);
        Self { sender, receiver: Mutex::new(receiver) }
    }
}

impl std::fmt::Debug for dyn QueuedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QueuedCall")
    }
}

impl CallQueue {
    /// Queues a call, and waits for its reply.
    pub(super) async fn call<O: StoreOperation>(
        &self,
        operation: O,
        longest: Duration,
    ) -> Result<O::Reply, StoreFailure> {
        let (caller, reply) = oneshot::channel();
        let call = Box::new(PendingCall { operation, reply: None, caller });
        self.sender.try_send(call).map_err(|_full| StoreFailure::Overloaded)?;
        match timeout(longest, reply).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_dropped)) => Err(StoreFailure::ConnectionLost),
            Err(_elapsed) => Err(StoreFailure::TimedOut),
        }
    }

    /// Waits for calls, and returns up to [`MAX_BATCH`] that are not abandoned; maybe none.
    pub(super) async fn next_batch(&self) -> Vec<Box<dyn QueuedCall>> {
        let mut calls = Vec::with_capacity(MAX_BATCH);
        self.receiver.lock().await.recv_many(&mut calls, MAX_BATCH).await;
        calls.retain(|call| !call.is_abandoned());
        calls
    }

    /// Fails all calls in the queue.
    pub(super) async fn fail_all(&self, cause: StoreFailure) {
        let mut receiver = self.receiver.lock().await;
        while let Ok(call) = receiver.try_recv() {
            call.finish(Err(cause));
        }
    }
}
