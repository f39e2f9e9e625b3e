//! The calls that wait for a transaction.
//!
//! Guarantees:
//! - A call whose caller stopped waiting is not sent.
//! - The queue is bounded; a full queue rejects a call.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::timeout;

use super::super::StoreFailure;
use super::rows::{RowKey, Rows};

/// The most calls in the queue.
const MAX_QUEUED: usize = 16_384;

/// The most calls in one transaction.
const MAX_BATCH: usize = 64;

/// The most keys in one transaction, unless its first call has more. Each takes a lock of the server.
const MAX_KEYS: usize = 256;

/// One call to the store: the rows that it needs, and its effect on them.
pub(super) trait StoreOperation: Send + 'static {
    /// The result for the caller.
    type Reply: Send + 'static;

    /// The keys of the rows.
    fn keys(&self) -> &[RowKey];

    /// The number of leading keys whose rows are only read.
    fn read_only_keys(&self) -> usize {
        0
    }

    /// Returns `true` if each row may be saved without the others.
    fn has_independent_rows(&self) -> bool {
        false
    }

    /// Keeps the part of `reply` that belongs to saved rows, so that it is not applied again. For
    /// operations with several independent rows.
    fn keep_saved(&mut self, _reply: &Self::Reply, _saved: &HashSet<RowKey>) {}

    /// Decides, and writes the changed rows. On an error, no row is changed.
    fn apply(&self, rows: &mut Rows) -> Result<Self::Reply, StoreFailure>;
}

/// A call in the queue.
pub(super) trait QueuedCall: Send {
    /// The keys of the rows, each with true if the row is only read.
    fn keys(&self) -> Vec<(&RowKey, bool)>;

    /// Returns true if the caller stopped waiting.
    fn is_abandoned(&self) -> bool;

    /// Returns `true` if each row may be saved without the others.
    fn has_independent_rows(&self) -> bool;

    /// Returns `true` if all rows were saved. Otherwise the call must be applied again, and keeps what
    /// was saved.
    fn keep_saved(&mut self, saved: &HashSet<RowKey>) -> bool;

    /// Decides, and keeps the reply until [`QueuedCall::finish`].
    fn apply(&mut self, rows: &mut Rows);

    /// Sends the reply to the caller if the transaction was committed, else its failure.
    fn finish(self: Box<Self>, committed: Result<(), StoreFailure>);
}

pub(super) struct PendingCall<O: StoreOperation> {
    operation: O,
    /// True if some of its rows were saved, and others were not.
    is_partly_saved: bool,
    reply: Option<Result<O::Reply, StoreFailure>>,
    caller: oneshot::Sender<Result<O::Reply, StoreFailure>>,
}

/// The receiver of a call's reply.
pub(super) type CallReply<O> =
    oneshot::Receiver<Result<<O as StoreOperation>::Reply, StoreFailure>>;

impl<O: StoreOperation> PendingCall<O> {
    /// Creates a call, and the receiver of its reply.
    pub(super) fn queued(operation: O) -> (Box<dyn QueuedCall>, CallReply<O>) {
        let (caller, reply) = oneshot::channel();
        (Box::new(Self { operation, is_partly_saved: false, reply: None, caller }), reply)
    }
}

impl<O: StoreOperation> QueuedCall for PendingCall<O> {
    fn keys(&self) -> Vec<(&RowKey, bool)> {
        let read_only = self.operation.read_only_keys();
        self.operation.keys().iter().enumerate().map(|(at, key)| (key, at < read_only)).collect()
    }

    fn is_abandoned(&self) -> bool {
        self.caller.is_closed()
    }

    fn has_independent_rows(&self) -> bool {
        self.operation.has_independent_rows()
    }

    fn keep_saved(&mut self, saved: &HashSet<RowKey>) -> bool {
        if self.operation.keys().iter().all(|key| saved.contains(key)) {
            return true;
        }
        self.is_partly_saved |= self.operation.keys().iter().any(|key| saved.contains(key));
        if let Some(Ok(reply)) = &self.reply {
            self.operation.keep_saved(reply, saved);
        }
        false
    }

    fn apply(&mut self, rows: &mut Rows) {
        self.reply = Some(self.operation.apply(rows));
    }

    fn finish(self: Box<Self>, committed: Result<(), StoreFailure>) {
        let Self { reply, caller, is_partly_saved, .. } = *self;
        let reply = committed.and_then(|()| reply.unwrap_or(Err(StoreFailure::Unsent)));
        // A caller may repeat an unsent call.
        let reply = reply.map_err(|cause| match cause {
            StoreFailure::Unsent if is_partly_saved => StoreFailure::ConnectionLost,
            cause => cause,
        });
        // The caller may have stopped waiting.
        drop(caller.send(reply));
    }
}

/// The bounded queue between callers and one connection.
#[derive(Debug)]
pub(super) struct CallQueue {
    sender: mpsc::Sender<Box<dyn QueuedCall>>,
    receiver: Mutex<mpsc::Receiver<Box<dyn QueuedCall>>>,
    is_connected: AtomicBool,
}

impl Default for CallQueue {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED);
        Self { sender, receiver: Mutex::new(receiver), is_connected: AtomicBool::new(false) }
    }
}

impl std::fmt::Debug for dyn QueuedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QueuedCall")
    }
}

impl CallQueue {
    /// Returns true while the connection is open.
    pub(super) fn is_connected(&self) -> bool {
        self.is_connected.load(SeqCst)
    }

    /// Records that the connection was opened or lost.
    pub(super) fn set_connected(&self, is_connected: bool) {
        self.is_connected.store(is_connected, SeqCst);
    }

    /// Queues a call, and waits for its reply.
    pub(super) async fn call<O: StoreOperation>(
        &self,
        operation: O,
        longest: Duration,
    ) -> Result<O::Reply, StoreFailure> {
        let (call, reply) = PendingCall::queued(operation);
        self.sender.try_send(call).map_err(|_full| StoreFailure::Overloaded)?;
        match timeout(longest, reply).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_dropped)) => Err(StoreFailure::ConnectionLost),
            Err(_elapsed) => Err(StoreFailure::TimedOut),
        }
    }

    /// Waits for a call. Cancel safe: a dropped future takes none.
    pub(super) async fn next_call(&self) -> Option<Box<dyn QueuedCall>> {
        self.receiver.lock().await.recv().await
    }

    /// Returns `first` and further calls in the queue, up to [`MAX_BATCH`], without the abandoned
    /// ones.
    pub(super) async fn fill_batch(&self, first: Box<dyn QueuedCall>) -> Vec<Box<dyn QueuedCall>> {
        let mut receiver = self.receiver.lock().await;
        let mut keys = first.keys().len();
        let mut calls = vec![first];
        while calls.len() < MAX_BATCH
            && keys < MAX_KEYS
            && let Ok(call) = receiver.try_recv()
        {
            keys += call.keys().len();
            calls.push(call);
        }
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
