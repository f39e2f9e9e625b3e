//! Chooses the connection to Redis for the Cluster slot of a key. Outside a Cluster there is one
//! connection, and every key has slot 0.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::timeout;

use super::cluster::{self, ClusterConnections};
use super::codec;
use super::connection::LiveConnection;
use super::keeper::keep_link;
use super::link::Link;
use super::options::{RedisOptions, RedisTopology};
use super::sentinel::SentinelGroup;
use super::server_location::ServerLocation;
use super::{StoreFailure, client::ServerAddress};

#[derive(Clone, Debug)]
pub(super) enum Route {
    Single(Arc<Link>),
    Clustered(Arc<ClusterConnections>),
}

impl Route {
    /// Returns a route without a connection, and the task that keeps it connected.
    pub(super) fn new(options: RedisOptions) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let options = Arc::new(options);
        let route = match &options.topology {
            RedisTopology::Cluster(_) => Self::Clustered(Arc::default()),
            RedisTopology::Tcp(_) | RedisTopology::Unix(_) | RedisTopology::Sentinel(_) => {
                Self::Single(Arc::default())
            }
        };
        (route.clone(), keep_route(route, options))
    }

    /// Returns `true` behind a proxy, which routes each call by its first key. Then each call has
    /// one counter.
    pub(super) fn is_proxied(&self) -> bool {
        matches!(self, Self::Single(link) if link.is_proxied())
    }

    /// Returns `true` if two counters may be on different servers.
    pub(super) fn has_several_servers(&self) -> bool {
        self.is_clustered() || self.is_proxied()
    }

    /// Returns a number for each key. One call can have the keys with equal numbers.
    pub(super) fn group_keys(&self, keys: &[impl AsRef<[u8]>]) -> SmallVec<[u16; 2]> {
        let first_equal = |key: &[u8]| {
            let first = keys.iter().position(|other| other.as_ref() == key);
            first.and_then(|at| u16::try_from(at).ok()).unwrap_or(u16::MAX)
        };
        let is_proxied = self.is_proxied();
        let number = |key: &[u8]| if is_proxied { first_equal(key) } else { self.slot_of(key) };
        keys.iter().map(|key| number(key.as_ref())).collect()
    }

    /// Returns `true` if keys of different slots need separate calls.
    pub(super) const fn is_clustered(&self) -> bool {
        matches!(self, Self::Clustered(_))
    }

    pub(super) fn slot_of(&self, key: &[u8]) -> u16 {
        if self.is_clustered() { codec::cluster_slot(key) } else { 0 }
    }

    /// Returns the connection for the keys of `slot`. Fails without a connection, or if its circuit
    /// breaker is open.
    pub(super) fn connection(&self, slot: u16) -> Result<Arc<LiveConnection>, StoreFailure> {
        match self {
            Self::Single(link) => link.connection(),
            Self::Clustered(cluster) => cluster.connection(slot),
        }
    }

    /// Waits for a call to the Redis of `slot` until the timeout, and updates the circuit breaker.
    pub(super) async fn call_within<T>(
        &self,
        call_timeout: Duration,
        slot: u16,
        call: impl Future<Output = Result<T, StoreFailure>>,
    ) -> Result<T, StoreFailure> {
        let pending = self.start_call(slot);
        let reply = timeout(call_timeout, call).await.unwrap_or(Err(StoreFailure::TimedOut));
        pending.settle();
        self.record_result(slot, reply.as_ref().err().copied());
        reply
    }

    pub(super) fn record_result(&self, slot: u16, failure: Option<StoreFailure>) {
        match self {
            Self::Single(link) => link.record_result(failure),
            Self::Clustered(cluster) => cluster.record_result(slot, failure),
        }
    }

    pub(super) const fn start_call(&self, slot: u16) -> PendingCall<'_> {
        PendingCall { route: self, slot, is_settled: false }
    }

    /// Requests a probe of the slot's connection after a caller abandoned a call.
    fn record_abandoned(&self, slot: u16) {
        if let Ok(live) = self.connection(slot) {
            live.signals.record_abandoned();
        }
    }

    /// Returns the cause for which some charges fail now; `None` if charges succeed.
    pub(super) fn outage_cause(&self) -> Option<StoreFailure> {
        match self {
            Self::Single(link) => link.outage_cause(),
            Self::Clustered(cluster) => cluster.outage_cause(),
        }
    }
}

/// A guard of a call in flight. If it is dropped unsettled, the caller abandoned the call, and the
/// breaker cannot learn if Redis is late. The guard then requests a probe.
pub(super) struct PendingCall<'r> {
    route: &'r Route,
    slot: u16,
    is_settled: bool,
}

impl PendingCall<'_> {
    pub(super) fn settle(mut self) {
        self.is_settled = true;
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.route.record_abandoned(self.slot);
        }
    }
}

async fn keep_route(route: Route, options: Arc<RedisOptions>) {
    let link = match route {
        Route::Single(link) => link,
        Route::Clustered(cluster) => {
            let RedisTopology::Cluster(seeds) = &options.topology else { return };
            return cluster::keep_cluster(cluster, seeds.clone(), options).await;
        }
    };
    let location = match &options.topology {
        RedisTopology::Tcp(address) => ServerLocation::Fixed(ServerAddress::Tcp(address.clone())),
        RedisTopology::Unix(path) => ServerLocation::Fixed(ServerAddress::Unix(path.clone())),
        RedisTopology::Sentinel(sentinels) => {
            ServerLocation::Sentinel(SentinelGroup::new(Arc::clone(&options), sentinels.clone()))
        }
        RedisTopology::Cluster(_) => return,
    };
    let jitter = options.jitter_seed;
    keep_link(link, location, options, jitter).await;
}
