//! Chooses the connection for a slot.
//!
//! Guarantees:
//! - Outside a Cluster, every key has slot 0, and there is one connection.
//!
//! Not covered:
//! - Batching of charges (`batch`).

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

#[derive(Clone, Debug)]
pub(super) enum Route {
    One(Arc<Link>),
    Many(Arc<Cluster>),
}

impl Route {
    /// Returns the unconnected route, and the task that connects it and keeps it connected.
    pub(super) fn new(options: Options) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let options = Arc::new(options);
        let route = match &options.place {
            Place::Cluster(_) => Self::Many(Arc::default()),
            Place::Tcp(_) | Place::Unix(_) | Place::Sentinel(_) => Self::One(Arc::default()),
        };
        (route.clone(), kept(route, options))
    }

    /// Returns `true` if keys of different slots need separate calls.
    pub(super) const fn is_clustered(&self) -> bool {
        matches!(self, Self::Many(_))
    }

    pub(super) fn slot_of(&self, key: &[u8]) -> u16 {
        if self.is_clustered() { codec::slot(key) } else { 0 }
    }

    /// The connection for the keys of a slot.
    ///
    /// # Errors
    /// There is no connection, or its breaker is open.
    pub(super) fn live(&self, slot: u16) -> Result<Arc<Live>, Cause> {
        match self {
            Self::One(link) => link.live(),
            Self::Many(cluster) => cluster.live(slot),
        }
    }

    /// Waits for a call to a slot until the timeout, and updates the breaker.
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

    pub(super) fn saw(&self, slot: u16, failed: Option<Cause>) {
        match self {
            Self::One(link) => link.saw(failed),
            Self::Many(cluster) => cluster.saw(slot, failed),
        }
    }

    pub(super) const fn unanswered(&self, slot: u16) -> Unanswered<'_> {
        Unanswered { route: self, slot, is_settled: false }
    }

    /// Requests a probe of the slot's connection after a caller abandoned a call.
    fn doubt(&self, slot: u16) {
        if let Ok(live) = self.live(slot) {
            live.doubt();
        }
    }

    /// The reason that some charges fail now, if any.
    pub(super) fn trouble(&self) -> Option<Cause> {
        match self {
            Self::One(link) => link.trouble(),
            Self::Many(cluster) => cluster.trouble(),
        }
    }
}

/// A call in flight. Dropping it unsettled means that its caller left, perhaps before the
/// deadline. The breaker would then never learn that the store is silent, so a probe is requested.
pub(super) struct Unanswered<'r> {
    route: &'r Route,
    slot: u16,
    is_settled: bool,
}

impl Unanswered<'_> {
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
