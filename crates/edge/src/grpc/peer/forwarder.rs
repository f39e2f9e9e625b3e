//! Chooses the replicas to which a release or renewal of permits is sent.
//!
//! A message is one release or renewal. A search asks all live replicas for its request id.
//!
//! Guarantees:
//! - A message that names an owner is sent to that replica only.
//! - A message without an owner starts a search, which takes at most [`SEARCH_TIMEOUT`].
//! - If no replica knows the request id, all replicas record an early release.
//! - A message to an owner that is not a live replica waits at most [`FORWARD_TIMEOUT`] for it.
//! - The numbers of searches and of waiting messages have a maximum.
//! - Connections go only to addresses in `fleet.peers.networks`, and
//!   only to loopback if no secret or certificate is configured.
//!
//! Not covered:
//! - Sending the messages (see [`super::route`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::route::{BatchSender, PeerRoute, QueuedMessage, ResultReceiver};
use super::trust::PeerTrust;
use crate::config::settings::Networks;
use crate::engine::fleet::forwarding::{ForwardedRelease, IdState, SEARCH_TIMEOUT};
use crate::engine::fleet::membership::{FleetSnapshot, Peer};
use crate::engine::{Engine, Membership};
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Event as _, ForwardingEvent};

/// The time after which a message to an owner is dropped: two heartbeat intervals and a
/// pause of the owner. The permits are then released at their own deadline.
const FORWARD_TIMEOUT: Nanos = Nanos::from_secs(3);

/// The largest number of concurrent searches, and of messages
/// that wait for an owner that is not a live replica.
const MAX_PENDING: usize = 10_000;

const OWNER_RETRY_INTERVAL: Duration = Duration::from_millis(100);

const WARN_INTERVAL: Nanos = Nanos::from_secs(60);

type FinishedSearch = (ForwardedRelease, IdState);

/// The task that sends releases and renewals to the replicas that own the permits.
pub struct ReleaseForwarder {
    sender: BatchSender,
    networks: Networks,
    queue: mpsc::Receiver<ForwardedRelease>,
    routes: HashMap<Box<str>, PeerRoute>,
    /// The replicas at addresses to which connections are not allowed, by incarnation name.
    disallowed: HashMap<Box<str>, Peer>,
    /// The membership from which `routes` and `disallowed` were built.
    fleet: Option<Arc<FleetSnapshot>>,
    searches: FuturesUnordered<BoxFuture<'static, FinishedSearch>>,
    /// Messages to owners that are not in the membership yet, each with its deadline.
    waiting: VecDeque<(Nanos, ForwardedRelease)>,
    last_warned: Option<Nanos>,
}

impl ReleaseForwarder {
    /// Creates the task. It sends the messages of the queue to replicas whose addresses are in
    /// `networks`, and authenticates to them with `trust`.
    #[must_use]
    pub fn new(
        engine: Arc<Engine>,
        posted: mpsc::Receiver<ForwardedRelease>,
        trust: Arc<PeerTrust>,
        networks: Networks,
    ) -> Self {
        Self {
            sender: BatchSender { engine, trust, sequence: Arc::default(), log: Arc::default() },
            networks,
            queue: posted,
            routes: HashMap::new(),
            disallowed: HashMap::new(),
            fleet: None,
            searches: FuturesUnordered::new(),
            waiting: VecDeque::new(),
            last_warned: None,
        }
    }

    /// Sends messages until the task is dropped; never returns.
    pub async fn run(mut self) {
        let mut ticks = interval(OWNER_RETRY_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(post) = self.queue.recv() => self.forward(post),
                Some(searched) = self.searches.next() => self.finish_search(searched),
                _ = ticks.tick() => self.retry_waiting(),
            }
        }
    }

    fn forward(&mut self, message: ForwardedRelease) {
        self.update_routes();
        if message.owner.is_none() {
            return self.search_all(message);
        }
        let until = self.sender.engine.clock().steady().plus(FORWARD_TIMEOUT);
        let Some(post) = self.send_to_owner(until, message) else { return };
        if self.waiting.len() < MAX_PENDING {
            self.waiting.push_back((until, post));
        } else {
            ForwardingEvent::Dropped.emit();
        }
    }

    /// Sends a message to its owner. Returns the message if the owner is not a live replica.
    fn send_to_owner(
        &mut self,
        deadline: Nanos,
        message: ForwardedRelease,
    ) -> Option<ForwardedRelease> {
        let owner = message.owner.as_deref()?;
        if let Some(peer) = self.disallowed.get(owner) {
            ForwardingEvent::AddressNotAllowed.emit();
            warn_disallowed(&mut self.last_warned, self.sender.engine.clock().steady(), peer);
            return None;
        }
        let Some(route) = self.routes.get(owner) else { return Some(message) };
        let answer = message.result_sender.map_or(ResultReceiver::Discard, ResultReceiver::Caller);
        route.send(QueuedMessage {
            message: message.update,
            deadline,
            receiver: answer,
            is_broadcast: false,
            pending: message.in_transit,
        });
        None
    }

    fn retry_waiting(&mut self) {
        self.update_routes();
        let now = self.sender.engine.clock().steady();
        for (until, post) in std::mem::take(&mut self.waiting) {
            if until <= now {
                ForwardingEvent::TimedOut.emit();
            } else if let Some(post) = self.send_to_owner(until, post) {
                self.waiting.push_back((until, post));
            }
        }
    }

    /// Starts a search: sends a message to all replicas, and
    /// waits for the first that knows the request id.
    fn search_all(&mut self, message: ForwardedRelease) {
        if MAX_PENDING <= self.searches.len() || self.routes.is_empty() {
            if !self.routes.is_empty() {
                ForwardingEvent::Dropped.emit();
            }
            self.searches.push(async move { (message, IdState::Unknown) }.boxed());
            return;
        }
        ForwardingEvent::Searched.emit();
        let until = self.sender.engine.clock().steady().plus(SEARCH_TIMEOUT);
        let results: FuturesUnordered<_> =
            self.routes.values().map(|route| query_replica(route, &message, until)).collect();
        let search = async move {
            let found =
                timeout(Duration::from_nanos(SEARCH_TIMEOUT.0), first_known_result(results))
                    .await
                    .unwrap_or(IdState::Unknown);
            (message, found)
        };
        self.searches.push(search.boxed());
    }

    /// Ends a search. If no replica knows the request id, tells all replicas to
    /// record an early release.
    fn finish_search(&mut self, (post, mut found): FinishedSearch) {
        let ForwardedRelease { update, result_sender: answer, in_transit: way, .. } = post;
        if found == IdState::Unknown {
            let update = update.into_unknown();
            // The acquire of this request id may have reached this replica during the search.
            found = self.sender.engine.apply_forwarded(&update);
            if found == IdState::Unknown {
                ForwardingEvent::NotFound.emit();
                let until = self.sender.engine.clock().steady().plus(FORWARD_TIMEOUT);
                for route in self.routes.values() {
                    let (update, way) = (update.clone(), Arc::clone(&way));
                    let answer = ResultReceiver::Discard;
                    route.send(QueuedMessage {
                        message: update,
                        deadline: until,
                        receiver: answer,
                        is_broadcast: true,
                        pending: way,
                    });
                }
            }
        }
        if let Some(answer) = answer {
            // A failed send means that the caller no longer waits.
            answer.send(found == IdState::HadPermits).ok();
        }
    }

    /// Updates `routes` if the membership has changed: one for each live replica at an
    /// allowed address.
    fn update_routes(&mut self) {
        let seen = self.sender.engine.membership().and_then(Membership::snapshot);
        let is_same = match (&seen, &self.fleet) {
            (Some(new), Some(old)) => Arc::ptr_eq(new, old),
            (None, None) => true,
            _ => false,
        };
        if is_same {
            return;
        }
        let peers: Vec<_> = seen.iter().flat_map(|seen| seen.peers.clone()).collect();
        let own = self.sender.engine.membership().and_then(Membership::address);
        let (allowed, disallowed): (Vec<_>, Vec<_>) =
            peers.into_iter().partition(|peer| self.is_allowed(peer) && Some(peer.address) != own);
        self.disallowed =
            disallowed.into_iter().map(|peer| (peer.incarnation_name.clone(), peer)).collect();
        self.routes.retain(|name, route| {
            !route.is_closed() && allowed.iter().any(|peer| peer.incarnation_name == *name)
        });
        for peer in allowed {
            let from = &self.sender;
            self.routes
                .entry(peer.incarnation_name.clone())
                .or_insert_with(|| PeerRoute::start(peer, from));
        }
        self.fleet = seen;
    }

    fn is_allowed(&self, peer: &Peer) -> bool {
        let address = peer.address.ip();
        self.networks.contains(address)
            && self.sender.trust.can_authenticate(address.to_canonical())
    }
}

fn warn_disallowed(last_warned: &mut Option<Nanos>, now: Nanos, peer: &Peer) {
    if last_warned.is_some_and(|warned_at| now.since(warned_at) < WARN_INTERVAL) {
        return;
    }
    *last_warned = Some(now);
    tracing::warn!(
        replica = &*peer.replica_name,
        address = %peer.address,
        "release not forwarded, peer address rejected: check `fleet.peers.networks`, `fleet.peers.address`, and \
         `fleet.peers.secret` or the peer certificates; see docs/guides/share-a-concurrency-limit.md"
    );
}

fn query_replica(
    route: &PeerRoute,
    message: &ForwardedRelease,
    until: Nanos,
) -> impl Future<Output = IdState> + Send + use<> {
    let (search, found) = oneshot::channel();
    let (update, way) = (message.update.clone(), Arc::clone(&message.in_transit));
    route.send(QueuedMessage {
        message: update,
        deadline: until,
        receiver: ResultReceiver::Search(search),
        is_broadcast: true,
        pending: way,
    });
    async move { found.await.unwrap_or(IdState::Unknown) }
}

async fn first_known_result(
    mut results: FuturesUnordered<impl Future<Output = IdState>>,
) -> IdState {
    while let Some(found) = results.next().await {
        if found != IdState::Unknown {
            return found;
        }
    }
    IdState::Unknown
}
