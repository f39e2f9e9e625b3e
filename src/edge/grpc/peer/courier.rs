//! Forwards releases and renewals to the replicas that own the permits.
//!
//! Guarantees:
//! - A message with an owner is sent to that replica only.
//! - A message without an owner is sent to all live replicas, for at most [`SEARCH`].
//! - If none of them knows the id, all of them remember the early release.
//! - Messages to an unknown owner wait briefly for the owner to appear.
//! - Searches and waiting messages are bounded.
//! - It connects only to addresses in `peer_networks`, and without trust only to loopback.
//!
//! Not covered:
//! - Transport (see [`super::route`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::route::{Answer, Item, Route, Sender};
use super::trust::Trust;
use crate::config::settings::Networks;
use crate::engine::membership::{Peer, Seen};
use crate::engine::peers::{Found, Post, SEARCH};
use crate::engine::{Engine, Membership};
use crate::kernel::units::Nanos;
use crate::telemetry::letters::LetterEvent;

/// The time that a message to an owner is tried: two heartbeats
/// and a pause. Afterwards the permit's own deadline frees it.
const KEEP: Nanos = Nanos::from_secs(3);

/// The largest number of concurrent searches, and of messages to owners that are not live yet.
const MOST: usize = 10_000;

const LOOK: Duration = Duration::from_millis(100);

const TELL: Nanos = Nanos::from_secs(60);

type Searched = (Post, Found);

/// The task that forwards messages.
pub struct Courier {
    from: Sender,
    networks: Networks,
    posted: mpsc::Receiver<Post>,
    routes: HashMap<Box<str>, Route>,
    /// The replicas at addresses that are not allowed, by name.
    foreign: HashMap<Box<str>, Peer>,
    /// The snapshot of the fleet that `routes` and `foreign` are built from.
    seen: Option<Arc<Seen>>,
    searches: FuturesUnordered<BoxFuture<'static, Searched>>,
    /// Messages to owners that are not live yet, each with its deadline.
    waiting: VecDeque<(Nanos, Post)>,
    told_at: Option<Nanos>,
}

impl Courier {
    /// Forwards the messages in `posted` to replicas in `networks`, authenticated by `trust`.
    #[must_use]
    pub fn new(
        engine: Arc<Engine>,
        posted: mpsc::Receiver<Post>,
        trust: Arc<Trust>,
        networks: Networks,
    ) -> Self {
        Self {
            from: Sender { engine, trust, sequence: Arc::default() },
            networks,
            posted,
            routes: HashMap::new(),
            foreign: HashMap::new(),
            seen: None,
            searches: FuturesUnordered::new(),
            waiting: VecDeque::new(),
            told_at: None,
        }
    }

    /// Forwards messages; never returns.
    pub async fn run(mut self) {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(post) = self.posted.recv() => self.take(post),
                Some(searched) = self.searches.next() => self.settle(searched),
                _ = ticks.tick() => self.look_again(),
            }
        }
    }

    fn take(&mut self, post: Post) {
        self.follow();
        if post.owner.is_none() {
            return self.search(post);
        }
        let until = self.from.engine.clock().steady().plus(KEEP);
        let Some(post) = self.hand_in(until, post) else { return };
        if self.waiting.len() < MOST {
            self.waiting.push_back((until, post));
        } else {
            LetterEvent::Dropped.emit();
        }
    }

    /// Sends `post` to its owner; returns it if the owner is not live yet.
    fn hand_in(&mut self, until: Nanos, post: Post) -> Option<Post> {
        let owner = post.owner.as_deref()?;
        if let Some(peer) = self.foreign.get(owner) {
            LetterEvent::Foreign.emit();
            tell_foreign(&mut self.told_at, self.from.engine.clock().steady(), peer);
            return None;
        }
        let Some(route) = self.routes.get(owner) else { return Some(post) };
        let answer = post.answer.map_or(Answer::Nobody, Answer::Asker);
        route.send(Item { told: post.told, until, answer, is_for_all: false, way: post.way });
        None
    }

    fn look_again(&mut self) {
        self.follow();
        let now = self.from.engine.clock().steady();
        for (until, post) in std::mem::take(&mut self.waiting) {
            if until <= now {
                LetterEvent::Late.emit();
            } else if let Some(post) = self.hand_in(until, post) {
                self.waiting.push_back((until, post));
            }
        }
    }

    /// Sends `post` to all replicas and waits for the first that knows the id.
    fn search(&mut self, post: Post) {
        if MOST <= self.searches.len() || self.routes.is_empty() {
            if !self.routes.is_empty() {
                LetterEvent::Dropped.emit();
            }
            self.searches.push(async move { (post, Found::Unknown) }.boxed());
            return;
        }
        LetterEvent::Searched.emit();
        let until = self.from.engine.clock().steady().plus(SEARCH);
        let asked: FuturesUnordered<_> =
            self.routes.values().map(|route| ask(route, &post, until)).collect();
        let search = async move {
            let found = timeout(Duration::from_nanos(SEARCH.0), first_known(asked))
                .await
                .unwrap_or(Found::Unknown);
            (post, found)
        };
        self.searches.push(search.boxed());
    }

    /// Ends a search. If the id is unknown, all replicas remember the early release.
    fn settle(&mut self, (post, mut found): Searched) {
        let Post { told, answer, way, .. } = post;
        if found == Found::Unknown {
            let told = told.unknown_everywhere();
            // Its acquire may have arrived at this replica during the search.
            found = self.from.engine.hear(&told);
            if found == Found::Unknown {
                LetterEvent::KnownNowhere.emit();
                let until = self.from.engine.clock().steady().plus(KEEP);
                for route in self.routes.values() {
                    let (told, way) = (told.clone(), Arc::clone(&way));
                    let answer = Answer::Nobody;
                    route.send(Item { told, until, answer, is_for_all: true, way });
                }
            }
        }
        if let Some(answer) = answer {
            // The caller may have stopped waiting.
            answer.send(found == Found::Held).ok();
        }
    }

    /// Updates the routes: one for each live replica at an allowed address.
    fn follow(&mut self) {
        let seen = self.from.engine.membership().and_then(Membership::seen);
        let is_same = match (&seen, &self.seen) {
            (Some(new), Some(old)) => Arc::ptr_eq(new, old),
            (None, None) => true,
            _ => false,
        };
        if is_same {
            return;
        }
        let peers: Vec<_> = seen.iter().flat_map(|seen| seen.peers.clone()).collect();
        let own = self.from.engine.membership().and_then(Membership::address);
        let (may, not): (Vec<_>, Vec<_>) =
            peers.into_iter().partition(|peer| self.may_call(peer) && Some(peer.address) != own);
        self.foreign = not.into_iter().map(|peer| (peer.name.clone(), peer)).collect();
        self.routes
            .retain(|name, route| !route.is_broken() && may.iter().any(|peer| peer.name == *name));
        for peer in may {
            let from = &self.from;
            self.routes.entry(peer.name.clone()).or_insert_with(|| Route::to(peer, from));
        }
        self.seen = seen;
    }

    fn may_call(&self, peer: &Peer) -> bool {
        let address = peer.address.ip();
        self.networks.contain(address) && self.from.trust.reaches(address.to_canonical())
    }
}

fn tell_foreign(told_at: &mut Option<Nanos>, now: Nanos, peer: &Peer) {
    if told_at.is_some_and(|told| now.since(told) < TELL) {
        return;
    }
    *told_at = Some(now);
    tracing::warn!(
        node = &*peer.node,
        address = %peer.address,
        "an end of a request is for a replica at an address that is not called: it must lie in `peer_networks`, be its own, \
         and without `peer_secret` or certificates be this machine's; see docs/peers.md"
    );
}

fn ask(route: &Route, post: &Post, until: Nanos) -> impl Future<Output = Found> + Send + use<> {
    let (search, found) = oneshot::channel();
    let (told, way) = (post.told.clone(), Arc::clone(&post.way));
    route.send(Item { told, until, answer: Answer::Search(search), is_for_all: true, way });
    async move { found.await.unwrap_or(Found::Unknown) }
}

async fn first_known(mut asked: FuturesUnordered<impl Future<Output = Found>>) -> Found {
    while let Some(found) = asked.next().await {
        if found != Found::Unknown {
            return found;
        }
    }
    Found::Unknown
}
