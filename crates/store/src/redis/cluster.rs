//! The connections to the primaries of a Redis Cluster, and the slots of each.
//!
//! Guarantees:
//! - Each node has its own connection, so a lost node affects only its own slots.
//! - The slot map is queried again when a node is lost, is slow, or redirects a call.
//! - If nodes return different slot maps, the newest is used.
//!
//! Not covered: calls with keys of several slots, which a Cluster rejects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::StoreFailure;
use super::call_error::connect_refusal;
use super::client::{ServerAddress, describe_error};
use super::connection::{ClusterNodes, LiveConnection};
use super::keeper;
use super::link::Link;
use super::options::{Address, RedisOptions};
use super::redirect::Redirect;
use super::server_location::ServerLocation;
use super::slot_map::{self, SlotMap};
use crate::backoff::Backoff;

/// The interval between slot queries while all slots are available.
const QUERY_INTERVAL: Duration = Duration::from_secs(10);

/// The interval between slot queries while some slots are unavailable.
const OUTAGE_QUERY_INTERVAL: Duration = Duration::from_millis(200);

/// The longest pause before a slot query that a failure or a redirect requested.
const MAX_QUERY_DELAY: Duration = Duration::from_millis(50);

/// The number of slot queries for which the target of a redirect stays connected without slots.
const KEPT_FOR_QUERIES: u8 = 50;

/// The most nodes without slots that stay connected.
const MAX_REDIRECT_TARGETS: usize = 64;

/// The connections to a Cluster, which one task keeps open and all callers use.
#[derive(Debug, Default)]
pub(super) struct ClusterConnections {
    map: ArcSwap<ClusterMap>,
    /// The nodes that redirects named, each with the number of slot queries that it stays
    /// connected.
    redirect_targets: Mutex<BTreeMap<Address, u8>>,
    /// The error of a node in the last slot query, if no node returned a slot map.
    query_failure: Mutex<Option<StoreFailure>>,
    query_notify: Notify,
}

#[derive(Debug, Default)]
struct ClusterMap {
    slots: SlotMap,
    nodes: BTreeMap<Address, ClusterNode>,
}

#[derive(Clone, Debug)]
struct ClusterNode {
    link: Arc<Link>,
    keeper: AbortHandle,
}

impl ClusterConnections {
    /// Returns the connection to the node that owns `slot`. Fails if the owner is unknown or not
    /// connected.
    pub(super) fn connection(&self, slot: u16) -> Result<Arc<LiveConnection>, StoreFailure> {
        let map = self.map.load();
        let node = map.slots.owner(slot).and_then(|address| map.nodes.get(address));
        node.ok_or_else(|| self.unknown_owner_cause())?.link.connection()
    }

    /// Updates the circuit breaker of the slot's owner with the result of a call.
    pub(super) fn record_result(&self, slot: u16, failure: Option<StoreFailure>) {
        let map = self.map.load();
        let node = map.slots.owner(slot).and_then(|address| map.nodes.get(address));
        if let Some(node) = node {
            node.link.record_result(failure);
        }
    }

    /// Returns the cause for which charges to some slots fail now; `None` if charges succeed.
    pub(super) fn outage_cause(&self) -> Option<StoreFailure> {
        let map = self.map.load();
        let mut owners = map.slots.owners().map(|address| map.nodes.get(address));
        let failure = owners.find_map(|node| match node {
            Some(node) => node.link.outage_cause(),
            None => Some(self.unknown_owner_cause()),
        });
        failure.or_else(|| (!map.slots.is_complete()).then(|| self.unknown_owner_cause()))
    }

    fn unknown_owner_cause(&self) -> StoreFailure {
        self.query_failure.lock().unwrap_or(StoreFailure::Unreachable)
    }

    fn connected_nodes(&self) -> Vec<(Address, Arc<LiveConnection>)> {
        let map = self.map.load();
        let live = map
            .nodes
            .iter()
            .filter_map(|(address, node)| Some((address, node.link.connection().ok()?)));
        live.map(|(address, live)| (address.clone(), live)).collect()
    }

    /// Returns the nodes that stay connected without slots, and counts one slot query for each.
    fn kept_targets(&self) -> Vec<Address> {
        let mut targets = self.redirect_targets.lock();
        targets.retain(|_, remaining_queries| {
            *remaining_queries = remaining_queries.saturating_sub(1);
            *remaining_queries != 0
        });
        targets.keys().cloned().collect()
    }
}

impl ClusterNodes for ClusterConnections {
    fn request_query(&self) {
        self.query_notify.notify_one();
    }

    fn connection_to(&self, redirect: &Redirect) -> Option<Arc<LiveConnection>> {
        if !redirect.is_ask {
            self.request_query();
        }
        let map = self.map.load();
        let node = map.nodes.get(&redirect.target);
        if node.is_none() {
            let mut targets = self.redirect_targets.lock();
            if targets.len() < MAX_REDIRECT_TARGETS {
                targets.insert(redirect.target.clone(), KEPT_FOR_QUERIES);
            }
            self.request_query();
        }
        node?.link.connection().ok()
    }
}

/// Keeps `cluster` connected; never returns. Dropping the future closes the connections.
pub(super) async fn keep_cluster(
    cluster: Arc<ClusterConnections>,
    seeds: Vec<Address>,
    options: Arc<RedisOptions>,
) {
    let mut keepers = NodeKeepers {
        tasks: JoinSet::new(),
        cluster: Arc::clone(&cluster),
        options: Arc::clone(&options),
        pauses: Backoff::new(options.jitter_seed),
    };
    let mut last_error = String::new();
    loop {
        match slot_map::query_slot_map(
            cluster.connected_nodes(),
            &seeds,
            &options,
            &mut keepers.pauses,
        )
        .await
        {
            Ok(slots) => {
                keepers.apply_slots(slots);
                *cluster.query_failure.lock() = None;
                last_error.clear();
            }
            Err(error) => {
                *cluster.query_failure.lock() = connect_refusal(&error);
                let message = describe_error(&error);
                if message != last_error {
                    tracing::warn!(error = %message, "failed to query the slots of the redis cluster, retrying");
                    last_error = message;
                }
            }
        }
        sleep(keepers.pauses.random_below(MAX_QUERY_DELAY)).await;
        let interval =
            if cluster.outage_cause().is_none() { QUERY_INTERVAL } else { OUTAGE_QUERY_INTERVAL };
        let _requested_or_elapsed = timeout(interval, cluster.query_notify.notified()).await;
    }
}

struct NodeKeepers {
    tasks: JoinSet<()>,
    cluster: Arc<ClusterConnections>,
    options: Arc<RedisOptions>,
    pauses: Backoff,
}

impl NodeKeepers {
    /// Connects to the owners of slots and the targets of recent redirects; drops other
    /// connections.
    fn apply_slots(&mut self, slots: SlotMap) {
        let old = self.cluster.map.load_full();
        let targets = self.cluster.kept_targets();
        let mut nodes = BTreeMap::new();
        for address in slots.owners().chain(&targets) {
            if !nodes.contains_key(address) {
                let kept = old.nodes.get(address).filter(|node| !node.keeper.is_finished());
                let node = kept.cloned().unwrap_or_else(|| self.keep_node(address));
                nodes.insert(address.clone(), node);
            }
        }
        let removed = old.nodes.iter().filter(|(address, _)| !nodes.contains_key(*address));
        for (address, node) in removed {
            tracing::info!(addr = %address, "redis cluster node has no slots left, disconnecting");
            node.keeper.abort();
        }
        self.cluster.map.store(Arc::new(ClusterMap { slots, nodes }));
        while self.tasks.try_join_next().is_some() {}
    }

    fn keep_node(&mut self, address: &Address) -> ClusterNode {
        let link = Arc::new(Link::default());
        let server = ServerAddress::Tcp(address.clone());
        let cluster = Arc::downgrade(&self.cluster);
        let location = ServerLocation::Node(server, cluster);
        let options = Arc::clone(&self.options);
        let keeper_task =
            keeper::keep_link(Arc::clone(&link), location, options, self.pauses.random());
        ClusterNode { link, keeper: self.tasks.spawn(keeper_task) }
    }
}
