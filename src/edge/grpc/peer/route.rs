//! Sends messages to one incarnation of another replica, in batches.
//!
//! Guarantees:
//! - A message waits at most [`BATCH_DELAY`] for others to join its batch.
//! - A message is retried until it is received or expires; both are counted.
//! - At most [`QUEUE_CAPACITY`] messages wait.
//! - One batch is in transit at a time.
//! - After the [`PeerRoute`] is dropped, its task ends with the last message.
//!
//! Not covered:
//! - The effect of a message, which the receipt contains.

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
use super::api::{Letters, Parcel, Receipt};
use super::trust::PeerTrust;
use super::{MAX_BATCH_MESSAGES, connector, message_codec};
use crate::engine::Engine;
use crate::engine::fleet::forwarding::{IdState, PermitUpdate};
use crate::engine::fleet::membership::Peer;
use crate::kernel::units::Nanos;
use crate::telemetry::forwarding::{ForwardingCount as Counted, ForwardingEvent};

/// The time that the first message of a batch waits for others. Tokio's timer rounds it up to 1 ms.
const BATCH_DELAY: Duration = Duration::from_micros(500);

/// The timeout of one batch. It is longer than a normal pause of a replica.
const BATCH_TIMEOUT: Duration = Duration::from_millis(300);

/// The pause after the first failed batch, and the longest pause after several.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];

/// The largest number of messages that wait for one replica: 8 batches.
const QUEUE_CAPACITY: usize = 8 * MAX_BATCH_MESSAGES;

const WARN_INTERVAL: Nanos = Nanos::from_secs(60);

#[derive(Debug)]
pub(super) struct QueuedMessage {
    pub(super) message: PermitUpdate<'static>,
    /// The deadline, on the steady clock.
    pub(super) deadline: Nanos,
    pub(super) receiver: ResultReceiver,
    /// True if the message goes to all replicas because its owner is unknown.
    pub(super) is_broadcast: bool,
    /// Dropped when the message is delivered or has expired; a drain waits for that.
    pub(super) pending: Arc<()>,
}

/// The receiver of a message's result.
#[derive(Debug)]
pub(super) enum ResultReceiver {
    Discard,
    /// The caller of the release: receives true if permits were released.
    Caller(oneshot::Sender<bool>),
    Search(oneshot::Sender<IdState>),
}

impl ResultReceiver {
    fn send_result(self, found: IdState) {
        // The receiver may have stopped waiting.
        match self {
            Self::Discard => {}
            Self::Caller(asker) => _ = asker.send(found == IdState::HadPermits).ok(),
            Self::Search(search) => _ = search.send(found).ok(),
        }
    }
}

/// This replica as a sender of batches.
#[derive(Clone, Debug)]
pub(super) struct BatchSender {
    pub(super) engine: Arc<Engine>,
    pub(super) trust: Arc<PeerTrust>,
    /// The sequence number of the last batch to any replica.
    ///
    /// It is shared by all routes. A route that is removed and created
    /// again must not reuse its numbers: the receiver remembers them.
    pub(super) sequence: Arc<AtomicU64>,
}

/// The queue of messages to one replica.
#[derive(Debug)]
pub(super) struct PeerRoute(mpsc::Sender<QueuedMessage>);

impl PeerRoute {
    pub(super) fn start(peer: Peer, from: &BatchSender) -> Self {
        let (sender, queue) = mpsc::channel(QUEUE_CAPACITY);
        let client = PeersClient::new(connector::channel(peer.address, Arc::clone(&from.trust)));
        let carrier = RouteTask { sender: from.clone(), peer, client, queue, last_warned: None };
        // The task ends after the sender is dropped. A failed task is detected by its closed queue.
        drop(tokio::spawn(carrier.run()));
        Self(sender)
    }

    /// Queues `item`, or counts it as dropped if the queue is full. Any caller can
    /// cause searches, so messages to all replicas may use only half of the queue.
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

/// The task that sends messages to one replica.
struct RouteTask {
    sender: BatchSender,
    peer: Peer,
    client: PeersClient<Channel>,
    queue: mpsc::Receiver<QueuedMessage>,
    last_warned: Option<Nanos>,
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
                    apply_receipt(&mut waiting, &receipt);
                    pause = RETRY_PAUSES[0];
                }
                Err(error) => {
                    self.warn_failed(&error);
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

    async fn send(&mut self, waiting: &VecDeque<QueuedMessage>) -> Result<Receipt, Status> {
        let letters = waiting.iter().map(|item| message_codec::encode(&item.message)).collect();
        // A retry gets a new number, because the receiver accepts each number once.
        let sequence = self.sender.sequence.fetch_add(1, Relaxed).saturating_add(1);
        let from = self.sender.engine.owner().unwrap_or_default().to_owned();
        let mut parcel = Parcel {
            from,
            to: self.peer.incarnation_name.to_string(),
            sequence,
            letters: Letters { letters }.encode_to_vec(),
            seal: Vec::new(),
        };
        if let Some(seal) = &self.sender.trust.signer {
            seal.sign(&mut parcel);
        }
        let sent = timeout(BATCH_TIMEOUT, self.client.deliver(parcel)).await;
        let late = || Err(Status::deadline_exceeded("it does not answer"));
        Ok(sent.unwrap_or_else(|_| late())?.into_inner())
    }

    fn warn_failed(&mut self, error: &Status) {
        let now = self.sender.engine.clock().steady();
        if self.last_warned.is_some_and(|told| now.since(told) < WARN_INTERVAL) {
            return;
        }
        self.last_warned = Some(now);
        tracing::warn!(
            replica = &*self.peer.replica_name,
            address = %self.peer.address,
            error = error.message(),
            "failed to forward releases, their permits expire after max_duration"
        );
    }
}

fn apply_receipt(waiting: &mut VecDeque<QueuedMessage>, receipt: &Receipt) {
    let letters = u64::try_from(waiting.len()).unwrap_or(u64::MAX);
    Counted { event: ForwardingEvent::Delivered, releases: letters }.emit();
    let answers = receipt.answers.iter().copied().chain(std::iter::repeat(0));
    for (QueuedMessage { receiver: answer, pending: way, .. }, said) in
        waiting.drain(..).zip(answers)
    {
        answer.send_result(message_codec::decode_result(said));
        drop(way);
    }
}
