//! The route to one life of another replica: what is for it, in parcels.
//!
//! Guarantees: a letter waits at most [`GATHER`] for others to go with it, goes again until it is received or its time is
//! over, and is counted either way; at most [`QUEUE`] wait. One parcel is under way at a time. A route whose sender is gone
//! ends when the last letter has.
//! Leaves out: whether a letter did anything, which its receipt says.

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

/// How long the first letter of a parcel waits for others. The runtime's timer turns it into a millisecond.
const GATHER: Duration = Duration::from_micros(500);

/// How long a parcel may take: longer than a pause of the other replica that is no fault, and a third of the time that
/// anybody waits for an end.
const PATIENCE: Duration = Duration::from_millis(300);

/// The wait after a parcel that was not received, and the longest after several.
const PAUSE: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];

/// Letters that may wait for one replica: 8 parcels.
const QUEUE: usize = 8 * MOST;

/// How often a replica that takes no parcels is told of.
const TELL: Nanos = Nanos::from_secs(60);

/// A letter on its way.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) told: Told<'static>,
    /// After this it is of no use.
    pub(super) until: Nanos,
    /// Who waits to hear what was found.
    pub(super) answer: Answer,
    /// Whether it is for all replicas, because nobody knows whose it is.
    pub(super) is_for_all: bool,
    /// Kept until it has arrived, or never will.
    pub(super) way: Arc<()>,
}

/// Who waits to hear of a letter.
#[derive(Debug)]
pub(super) enum Answer {
    /// Nobody.
    Nobody,
    /// Whoever told of it.
    Asker(oneshot::Sender<bool>),
    /// A search.
    Search(oneshot::Sender<Found>),
}

impl Answer {
    fn hear(self, found: Found) {
        // Whoever does not wait any more need not hear it.
        match self {
            Self::Nobody => {}
            Self::Asker(asker) => _ = asker.send(found == Found::Held).ok(),
            Self::Search(search) => _ = search.send(found).ok(),
        }
    }
}

/// This life of this replica.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    pub(super) engine: Arc<Engine>,
    pub(super) trust: Arc<Trust>,
    /// Of the last parcel to anybody. Not one for each route: a replica that was lost from sight for a while has a new
    /// route then, and remembers the old one's sequences.
    pub(super) sequence: Arc<AtomicU64>,
}

/// Where letters for one replica are handed in.
#[derive(Debug)]
pub(super) struct Route(mpsc::Sender<Item>);

impl Route {
    /// The route to `peer`.
    pub(super) fn to(peer: Peer, from: &Sender) -> Self {
        let (sender, queue) = mpsc::channel(QUEUE);
        let client = PeersClient::new(calling::channel(peer.address, Arc::clone(&from.trust)));
        let carrier = Carrier { from: from.clone(), peer, client, queue, told_at: None };
        // It ends by itself, soon after the sender; one that broke is found by its closed queue.
        drop(tokio::spawn(carrier.run()));
        Self(sender)
    }

    /// Hands in `item`; counted where there is no room. Searches, which anybody can cause, leave half of it to others.
    pub(super) fn send(&self, item: Item) {
        let is_full = item.is_for_all && self.0.capacity() < QUEUE / 2;
        if is_full || self.0.try_send(item).is_err() {
            LetterEvent::Dropped.emit();
        }
    }

    /// Whether nobody carries what is handed in.
    pub(super) fn is_broken(&self) -> bool {
        self.0.is_closed()
    }
}

/// Carries letters to one replica.
struct Carrier {
    from: Sender,
    peer: Peer,
    client: PeersClient<Channel>,
    queue: mpsc::Receiver<Item>,
    /// When it was last told that parcels are not received.
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
        // Each time another number: what is sent again is a parcel of its own.
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

    /// Says once a minute that parcels are not received.
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

/// Hands out what the receipt says of each letter.
fn settle(waiting: &mut VecDeque<Item>, receipt: &Receipt) {
    let letters = u64::try_from(waiting.len()).unwrap_or(u64::MAX);
    Counted { event: LetterEvent::PassedOn, letters }.emit();
    let answers = receipt.answers.iter().copied().chain(std::iter::repeat(0));
    for (Item { answer, way, .. }, said) in waiting.drain(..).zip(answers) {
        answer.hear(letters::found(said));
        drop(way);
    }
}
