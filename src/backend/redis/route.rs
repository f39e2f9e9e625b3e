//! Over which connection the charges of a slot go.
//!
//! Guarantees: outside a Cluster every key is of slot 0, and there is one connection.
//! Leaves out: which charges travel together.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::cluster::{self, Cluster};
use super::codec;
use super::connection::{Link, Live};
use super::keep::{Whereabouts, keep};
use super::options::{Options, Place};
use super::sentinel::Watchers;
use super::{Cause, client::At};

/// The connections.
#[derive(Clone, Debug)]
pub(super) enum Route {
    /// To one primary.
    One(Arc<Link>),
    /// To the nodes of a Cluster.
    Many(Arc<Cluster>),
}

impl Route {
    /// The connections, none of them made yet, and the task that makes and keeps them.
    pub(super) fn new(options: Options) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let options = Arc::new(options);
        let route = match &options.place {
            Place::Cluster(_) => Self::Many(Arc::default()),
            Place::Tcp(_) | Place::Unix(_) | Place::Sentinel(_) => Self::One(Arc::default()),
        };
        (route.clone(), kept(route, options))
    }

    /// Whether keys of different slots need calls of their own.
    pub(super) const fn is_clustered(&self) -> bool {
        matches!(self, Self::Many(_))
    }

    /// The slot of a key.
    pub(super) fn slot_of(&self, key: &[u8]) -> u16 {
        if self.is_clustered() { codec::slot(key) } else { 0 }
    }

    /// The connection for a slot's keys.
    ///
    /// # Errors
    /// Why there is nothing to wait for.
    pub(super) fn live(&self, slot: u16) -> Result<Arc<Live>, Cause> {
        match self {
            Self::One(link) => link.live(),
            Self::Many(cluster) => cluster.live(slot),
        }
    }

    /// What a call for a slot's keys comes to within `patience`, the breaker being told.
    pub(super) async fn within<T>(
        &self,
        patience: Duration,
        slot: u16,
        called: impl Future<Output = Result<T, Cause>>,
    ) -> Result<T, Cause> {
        let unanswered = self.unanswered(slot);
        let answer = timeout(patience, called).await;
        let answer = answer.unwrap_or(Err(Cause::Late));
        unanswered.settle();
        self.saw(slot, answer.as_ref().err().copied());
        answer
    }

    /// Learns from how a call for a slot's keys ended.
    pub(super) fn saw(&self, slot: u16, failed: Option<Cause>) {
        match self {
            Self::One(link) => link.saw(failed),
            Self::Many(cluster) => cluster.saw(slot, failed),
        }
    }

    /// A call for a slot's keys is under way.
    pub(super) const fn unanswered(&self, slot: u16) -> Unanswered<'_> {
        Unanswered { route: self, slot, is_settled: false }
    }

    /// A call for a slot's keys was given up: whether its connection still answers is to be seen.
    fn doubt(&self, slot: u16) {
        if let Ok(live) = self.live(slot) {
            live.doubt();
        }
    }

    /// Why some charges are not answered just now, if so.
    pub(super) fn trouble(&self) -> Option<Cause> {
        match self {
            Self::One(link) => link.trouble(),
            Self::Many(cluster) => cluster.trouble(),
        }
    }
}

/// A call that is under way. Dropped, nobody waits for it any more, who may have had less time than the
/// deadline, and would tell nobody that the store is silent.
pub(super) struct Unanswered<'r> {
    route: &'r Route,
    slot: u16,
    is_settled: bool,
}

impl Unanswered<'_> {
    /// It was answered, or failed.
    pub(super) fn settle(mut self) {
        self.is_settled = true;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.route.doubt(self.slot);
        }
    }
}

async fn kept(route: Route, options: Arc<Options>) {
    let link = match route {
        Route::One(link) => link,
        Route::Many(cluster) => {
            let Place::Cluster(seeds) = &options.place else { return };
            return cluster::keep(cluster, seeds.clone(), options).await;
        }
    };
    let place = match &options.place {
        Place::Tcp(address) => Whereabouts::Fixed(At::Tcp(address.clone())),
        Place::Unix(path) => Whereabouts::Fixed(At::Unix(path.clone())),
        Place::Sentinel(sentinels) => {
            Whereabouts::Named(Watchers::new(Arc::clone(&options), sentinels.clone()))
        }
        Place::Cluster(_) => return,
    };
    let jitter = options.jitter;
    keep(link, place, options, jitter).await;
}
