//! Sends messages to one incarnation of another replica, in batches.
//!
//! Guarantees:
//! - A message waits at most [`GATHER`] for others to join its batch.
//! - A message is retried until it is received or expires; both are counted.
//! - At most [`QUEUE`] messages wait.
//! - One batch is in transit at a time.
//! - After the [`Route`] is dropped, its task ends with the last message.
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
use super::trust::Trust;
use super::{MOST, calling, letters};
use crate::engine::Engine;
use crate::engine::membership::Peer;
use crate::engine::peers::{Found, Told};
use crate::kernel::units::Nanos;
use crate::telemetry::letters::{LetterEvent, Letters as Counted};

/// The time that the first message of a batch waits for others. Tokio's timer rounds it up to 1 ms.
const GATHER: Duration = Duration::from_micros(500);

/// The timeout of one batch. It is longer than a normal pause of a replica.
const PATIENCE: Duration = Duration::from_millis(300);

/// The pause after the first failed batch, and the longest pause after several.
const PAUSE: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];

/// The largest number of messages that wait for one replica: 8 batches.
const QUEUE: usize = 8 * MOST;

const TELL: Nanos = Nanos::from_secs(60);

#[derive(Debug)]
pub(super) struct Item {
    pub(super) told: Told<'static>,
    /// The deadline, on the steady clock.
    pub(super) until: Nanos,
    pub(super) answer: Answer,
    /// True if the message goes to all replicas because its owner is unknown.
    pub(super) is_for_all: bool,
    /// Dropped when the message is delivered or has expired; a drain waits for that.
    pub(super) way: Arc<()>,
}

/// The receiver of a message's result.
#[derive(Debug)]
pub(super) enum Answer {
    Nobody,
    /// The caller of the release: receives true if permits were released.
    Asker(oneshot::Sender<bool>),
    Search(oneshot::Sender<Found>),
}

impl Answer {
    fn hear(self, found: Found) {
        // The receiver may have stopped waiting.
        match self {
            Self::Nobody => {}
            Self::Asker(asker) => _ = asker.send(found == Found::Held).ok(),
            Self::Search(search) => _ = search.send(found).ok(),
        }
    }
}

/// This replica as a sender of batches.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    pub(super) engine: Arc<Engine>,
    pub(super) trust: Arc<Trust>,
    /// The sequence number of the last batch to any replica.
    ///
    /// It is shared by all routes. A route that is removed and created
    /// again must not reuse its numbers: the receiver remembers them.
    pub(super) sequence: Arc<AtomicU64>,
}

/// The queue of messages to one replica.
#[derive(Debug)]
pub(super) struct Route(mpsc::Sender<Item>);

impl Route {
    pub(super) fn to(peer: Peer, from: &Sender) -> Self {
        let (sender, queue) = mpsc::channel(QUEUE);
        let client = PeersClient::new(calling::channel(peer.address, Arc::clone(&from.trust)));
        let carrier = Carrier { from: from.clone(), peer, client, queue, told_at: None };
        // The task ends after the sender is dropped. A failed task is detected by its closed queue.
        drop(tokio::spawn(carrier.run()));
        Self(sender)
    }

    /// Queues `item`, or counts it as dropped if the queue is full. Any caller can
    /// cause searches, so messages to all replicas may use only half of the queue.
    pub(super) fn send(&self, item: Item) {
        let is_full = item.is_for_all && self.0.capacity() < QUEUE / 2;
        if is_full || self.0.try_send(item).is_err() {
            LetterEvent::Dropped.emit();
        }
    }

    pub(super) fn is_broken(&self) -> bool {
        self.0.is_closed()
    }
}

/// The task that sends messages to one replica.
struct Carrier {
    from: Sender,
    peer: Peer,
    client: PeersClient<Channel>,
    queue: mpsc::Receiver<Item>,
    told_at: Option<Nanos>,
}

impl Carrier {
    async fn run(mut self) {
        let (mut waiting, mut pause) = (VecDeque::new(), PAUSE[0]);
        loop {
            if waiting.is_empty() {
                let Some(first) = self.queue.recv().await else { return };
                waiting.push_back(first);
                sleep(GATHER).await;
            }
            while waiting.len() < MOST
                && let Ok(item) = self.queue.try_recv()
            {
                waiting.push_back(item);
            }
            self.forget_the_late(&mut waiting);
            if waiting.is_empty() {
                continue;
            }
            match self.send(&waiting).await {
                Ok(receipt) => {
                    settle(&mut waiting, &receipt);
                    pause = PAUSE[0];
                }
                Err(error) => {
                    self.tell(&error);
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE[1]);
                }
            }
        }
    }

    fn forget_the_late(&self, waiting: &mut VecDeque<Item>) {
        let (now, before) = (self.from.engine.clock().steady(), waiting.len());
        waiting.retain(|item| now < item.until);
        let late = u64::try_from(before.saturating_sub(waiting.len())).unwrap_or(u64::MAX);
        Counted { event: LetterEvent::Late, letters: late }.emit();
    }

    async fn send(&mut self, waiting: &VecDeque<Item>) -> Result<Receipt, Status> {
        let letters = waiting.iter().map(|item| letters::written(&item.told)).collect();
        // A retry gets a new number, because the receiver accepts each number once.
        let sequence = self.from.sequence.fetch_add(1, Relaxed).saturating_add(1);
        let from = self.from.engine.owner().unwrap_or_default().to_owned();
        let mut parcel = Parcel {
            from,
            to: self.peer.name.to_string(),
            sequence,
            letters: Letters { letters }.encode_to_vec(),
            seal: Vec::new(),
        };
        if let Some(seal) = &self.from.trust.seal {
            seal.put(&mut parcel);
        }
        let sent = timeout(PATIENCE, self.client.deliver(parcel)).await;
        let late = || Err(Status::deadline_exceeded("it does not answer"));
        Ok(sent.unwrap_or_else(|_| late())?.into_inner())
    }

    fn tell(&mut self, error: &Status) {
        let now = self.from.engine.clock().steady();
        if self.told_at.is_some_and(|told| now.since(told) < TELL) {
            return;
        }
        self.told_at = Some(now);
        tracing::warn!(
            node = &*self.peer.node,
            address = %self.peer.address,
            error = error.message(),
            "a replica takes no ends of requests from this one; their permits are free when max_duration is over"
        );
    }
}

fn settle(waiting: &mut VecDeque<Item>, receipt: &Receipt) {
    let letters = u64::try_from(waiting.len()).unwrap_or(u64::MAX);
    Counted { event: LetterEvent::PassedOn, letters }.emit();
    let answers = receipt.answers.iter().copied().chain(std::iter::repeat(0));
    for (Item { answer, way, .. }, said) in waiting.drain(..).zip(answers) {
        answer.hear(letters::found(said));
        drop(way);
    }
}
