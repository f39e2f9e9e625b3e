//! Sends releases and renewals to one incarnation of another replica, in batches.
//!
//! Guarantees:
//! - A message waits at most [`BATCH_DELAY`] for others to join its batch.
//! - A message is retried until the other replica receives it or it expires; both are counted.
//! - At most [`QUEUE_CAPACITY`] messages wait in the queue.
//! - One batch is in transit at a time.
//! - After the [`PeerRoute`] is dropped, its task sends the queued messages and ends.
//!
//! Not covered:
//! - Applying a message, which the receiving replica does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic::transport::Channel;

use super::api::peers_client::PeersClient;
use super::api::{Batch, BatchResult, Updates};
use super::delivery_log::DeliveryLog;
use super::trust::PeerTrust;
use super::{MAX_BATCH_MESSAGES, connector, message_codec};
use crate::engine::Engine;
use crate::engine::fleet::forwarding::{IdState, PermitUpdate};
use crate::engine::fleet::membership::Peer;
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Event as _, ForwardingCount as Counted, ForwardingEvent};

/// The time for which the first message of a batch waits for
/// others. Tokio's timer rounds it up to 1 ms.
const BATCH_DELAY: Duration = Duration::from_micros(500);

/// The timeout of one batch. It is longer than a replica normally pauses.
const BATCH_TIMEOUT: Duration = Duration::from_millis(300);

/// The pause before the first retry of a batch, and the longest pause before a retry.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];

/// The largest number of messages in the queue to one replica: 8 batches.
const QUEUE_CAPACITY: usize = 8 * MAX_BATCH_MESSAGES;

#[derive(Debug)]
pub(super) struct QueuedMessage {
    pub(super) message: PermitUpdate<'static>,
    /// The instant on the steady clock after which the message is dropped.
    pub(super) deadline: Nanos,
    pub(super) receiver: ResultReceiver,
    /// True if the message goes to all replicas because its owner is unknown.
    pub(super) is_broadcast: bool,
    /// A reference that is dropped when the message is delivered or has expired.
    /// A draining process waits until no such reference exists.
    pub(super) pending: Arc<()>,
}

/// The receiver of the result of a forwarded message.
#[derive(Debug)]
pub(super) enum ResultReceiver {
    Discard,
    /// The client that sent the release or renewal; receives true if the request had permits.
    Caller(oneshot::Sender<bool>),
    Search(oneshot::Sender<IdState>),
}

impl ResultReceiver {
    fn send_result(self, found: IdState) {
        // A failed send means that the receiver no longer waits.
        match self {
            Self::Discard => {}
            Self::Caller(asker) => _ = asker.send(found == IdState::HadPermits).ok(),
            Self::Search(search) => _ = search.send(found).ok(),
        }
    }
}

/// The state of this replica that all routes share to send batches.
#[derive(Clone, Debug)]
pub(super) struct BatchSender {
    pub(super) engine: Arc<Engine>,
    pub(super) trust: Arc<PeerTrust>,
    /// The sequence number of the last batch that this process sent to any replica.
    ///
    /// All routes share it, so that a route that is removed and created again does not
    /// reuse its numbers. The other replica rejects a number that it already received.
    pub(super) sequence: Arc<AtomicU64>,
    pub(super) log: Arc<DeliveryLog>,
}

/// The queue of releases and renewals to one incarnation of another replica.
#[derive(Debug)]
pub(super) struct PeerRoute(mpsc::Sender<QueuedMessage>);

impl PeerRoute {
    pub(super) fn start(peer: Peer, batches: &BatchSender) -> Self {
        let (sender, queue) = mpsc::channel(QUEUE_CAPACITY);
        let client = PeersClient::new(connector::channel(peer.address, Arc::clone(&batches.trust)));
        let carrier = RouteTask { sender: batches.clone(), peer, client, queue };
        // The task ends after the queue's sender is dropped. A panic of
        // the task closes the queue, which `is_closed` detects.
        drop(tokio::spawn(carrier.run()));
        Self(sender)
    }

    /// Queues a message, or drops and counts it if the queue is full. Messages to all
    /// replicas may use only half of the queue, because any caller can cause them.
    pub(super) fn send(&self, item: QueuedMessage) {
        let is_full = item.is_broadcast && self.0.capacity() < QUEUE_CAPACITY / 2;
        if is_full || self.0.try_send(item).is_err() {
            ForwardingEvent::Dropped.emit();
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// The task that sends the messages of one [`PeerRoute`] in batches.
struct RouteTask {
    sender: BatchSender,
    peer: Peer,
    client: PeersClient<Channel>,
    queue: mpsc::Receiver<QueuedMessage>,
}

impl RouteTask {
    async fn run(mut self) {
        let (mut waiting, mut pause) = (VecDeque::new(), RETRY_PAUSES[0]);
        loop {
            if waiting.is_empty() {
                let Some(first) = self.queue.recv().await else { return };
                waiting.push_back(first);
                sleep(BATCH_DELAY).await;
            }
            while waiting.len() < MAX_BATCH_MESSAGES
                && let Ok(item) = self.queue.try_recv()
            {
                waiting.push_back(item);
            }
            self.drop_expired(&mut waiting);
            if waiting.is_empty() {
                continue;
            }
            match self.send(&waiting).await {
                Ok(receipt) => {
                    self.sender.log.record_success();
                    apply_receipt(&mut waiting, &receipt);
                    pause = RETRY_PAUSES[0];
                }
                Err(error) => {
                    self.sender.log.record_failure(&self.peer, &error);
                    sleep(pause).await;
                    pause = (pause * 2).min(RETRY_PAUSES[1]);
                }
            }
        }
    }

    fn drop_expired(&self, waiting: &mut VecDeque<QueuedMessage>) {
        let (now, before) = (self.sender.engine.clock().steady(), waiting.len());
        waiting.retain(|item| now < item.deadline);
        let late = u64::try_from(before.saturating_sub(waiting.len())).unwrap_or(u64::MAX);
        Counted { event: ForwardingEvent::TimedOut, releases: late }.emit();
    }

    async fn send(&mut self, waiting: &VecDeque<QueuedMessage>) -> Result<BatchResult, Status> {
        let updates = waiting.iter().map(|item| message_codec::encode(&item.message)).collect();
        // A retry gets a new sequence number, because the other replica accepts each number once.
        let sequence = self.sender.sequence.fetch_add(1, Relaxed).saturating_add(1);
        let from = self.sender.engine.owner().unwrap_or_default().to_owned();
        let mut batch = Batch {
            from,
            to: self.peer.incarnation_name.to_string(),
            sequence,
            updates: Updates { updates }.encode_to_vec(),
            signature: Vec::new(),
        };
        if let Some(signer) = &self.sender.trust.signer {
            batch.signature = signer.sign(&batch);
        }
        let sent = timeout(BATCH_TIMEOUT, self.client.deliver(batch)).await;
        let late = || Err(Status::deadline_exceeded("timed out"));
        Ok(sent.unwrap_or_else(|_| late())?.into_inner())
    }
}

fn apply_receipt(waiting: &mut VecDeque<QueuedMessage>, result: &BatchResult) {
    let count = u64::try_from(waiting.len()).unwrap_or(u64::MAX);
    Counted { event: ForwardingEvent::Delivered, releases: count }.emit();
    let states = result.states.iter().copied().chain(std::iter::repeat(0));
    for (QueuedMessage { receiver: answer, pending: way, .. }, state) in
        waiting.drain(..).zip(states)
    {
        answer.send_result(message_codec::decode_result(state));
        drop(way);
    }
}
