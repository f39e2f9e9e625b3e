//! The nodes of a Cluster and their slots.
//!
//! Guarantees:
//! - Each node has its own connection, so a lost node fails only its own slots.
//! - Slots are queried again when a node is lost, slow, or redirects a call.
//! - The newest of several slot maps is used.
//!
//! Not covered:
//! - Keys of several slots in one call, which no Cluster accepts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use fred::error::Error;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::Cause;
use super::client::{At, in_words};
use super::connection::{Link, Live, refusal};
use super::keep::{self, Whereabouts};
use super::options::{Address, Options};
use super::pauses::Pauses;
use super::slots::{self, Slots};

/// The interval between slot queries while all is well.
const REST: Duration = Duration::from_secs(10);

/// The interval while some slots are unavailable.
const UNREST: Duration = Duration::from_millis(200);

/// The longest pause before a query that was requested early.
const BREATH: Duration = Duration::from_millis(50);

/// The number of slot queries for which a node without slots is kept after a redirect to it.
const KEPT_FOR: u8 = 50;

/// The most nodes without slots that are kept.
const MOST_NAMED: usize = 64;

/// The state that the keeper task shares with callers.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    map: ArcSwap<Map>,
    /// The nodes from redirects, and the number of slot queries for which each is still kept.
    named: Mutex<BTreeMap<Address, u8>>,
    /// The error that a node returned to the last slot query, if all nodes failed.
    refused: Mutex<Option<Cause>>,
    /// Notified when the slots may have changed.
    doubted: Notify,
}

#[derive(Debug, Default)]
struct Map {
    slots: Slots,
    nodes: BTreeMap<Address, Node>,
}

/// One node, and the task that keeps the connection to it.
#[derive(Clone, Debug)]
struct Node {
    link: Arc<Link>,
    keeper: AbortHandle,
}

/// The target of a `MOVED` or `ASK` error.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Redirect {
    to: Address,
    /// The error was `ASK`: the node has the key, and imports the slot.
    pub(super) asks: bool,
}

impl Redirect {
    /// Parses a redirect error of the node at `host`.
    /// A redirect without a host means the same host.
    pub(super) fn of(error: &Error, host: &str) -> Option<Self> {
        let mut words = error.details().split(' ');
        let asks = match words.next()? {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let (name, port) = words.nth(1)?.rsplit_once(':')?;
        let name = if matches!(name, "" | "?") { host } else { name };
        let to = Address { host: name.to_owned(), port: port.parse().ok()? };
        Some(Self { to, asks })
    }
}

impl Cluster {
    /// The connection to the owner of the slot.
    ///
    /// # Errors
    /// The slot has no known owner, or the owner has no connection.
    pub(super) fn live(&self, slot: u16) -> Result<Arc<Live>, Cause> {
        let map = self.map.load();
        let node = map.slots.owner(slot).and_then(|address| map.nodes.get(address));
        node.ok_or_else(|| self.unknown())?.link.live()
    }

    /// Updates the breaker of the slot's owner with the result of a call.
    pub(super) fn saw(&self, slot: u16, failed: Option<Cause>) {
        let map = self.map.load();
        let node = map.slots.owner(slot).and_then(|address| map.nodes.get(address));
        if let Some(node) = node {
            node.link.saw(failed);
        }
    }

    /// The reason that some charges fail now, if any.
    pub(super) fn trouble(&self) -> Option<Cause> {
        let map = self.map.load();
        let mut owners = map.slots.owners().map(|address| map.nodes.get(address));
        let trouble = owners.find_map(|node| match node {
            Some(node) => node.link.trouble(),
            None => Some(self.unknown()),
        });
        trouble.or_else(|| (!map.slots.are_all()).then(|| self.unknown()))
    }

    /// The reason that the owner of a slot is unknown.
    fn unknown(&self) -> Cause {
        self.refused.lock().unwrap_or(Cause::Unreachable)
    }

    pub(super) fn doubt(&self) {
        self.doubted.notify_one();
    }

    /// The connection to the target of `redirect`, if there is one.
    pub(super) fn follow(&self, redirect: &Redirect) -> Option<Arc<Live>> {
        if !redirect.asks {
            self.doubt();
        }
        let map = self.map.load();
        let known = map.nodes.get(&redirect.to);
        if known.is_none() {
            let mut named = self.named.lock();
            if named.len() < MOST_NAMED {
                named.insert(redirect.to.clone(), KEPT_FOR);
            }
            self.doubt();
        }
        known?.link.live().ok()
    }

    /// The nodes that a slot query can use.
    fn answering(&self) -> Vec<(Address, Arc<Live>)> {
        let map = self.map.load();
        let live = map.nodes.iter().filter_map(|(at, node)| Some((at, node.link.live().ok()?)));
        live.map(|(at, live)| (at.clone(), live)).collect()
    }

    /// The nodes that are kept without slots. Counts one slot query for each.
    fn still_named(&self) -> Vec<Address> {
        let mut named = self.named.lock();
        named.retain(|_, looks| {
            *looks = looks.saturating_sub(1);
            *looks != 0
        });
        named.keys().cloned().collect()
    }
}

/// Keeps `cluster` connected; never returns. Dropping the future closes the connections.
pub(super) async fn keep(cluster: Arc<Cluster>, seeds: Vec<Address>, options: Arc<Options>) {
    let mut keepers = Keepers {
        tasks: JoinSet::new(),
        cluster: Arc::clone(&cluster),
        options: Arc::clone(&options),
        pauses: Pauses::new(options.jitter),
    };
    let mut said = String::new();
    loop {
        match slots::look(cluster.answering(), &seeds, &options, &mut keepers.pauses).await {
            Ok(slots) => {
                keepers.lay_out(slots);
                *cluster.refused.lock() = None;
                said.clear();
            }
            Err(error) => {
                *cluster.refused.lock() = refusal(&error);
                let why = in_words(&error);
                if why != said {
                    tracing::warn!(error = %why, "no node of the redis cluster tells its slots");
                    said = why;
                }
            }
        }
        sleep(keepers.pauses.up_to(BREATH)).await;
        let rest = if cluster.trouble().is_none() { REST } else { UNREST };
        let _doubted_or_rested = timeout(rest, cluster.doubted.notified()).await;
    }
}

/// The tasks that each keep one node connected.
struct Keepers {
    tasks: JoinSet<()>,
    cluster: Arc<Cluster>,
    options: Arc<Options>,
    pauses: Pauses,
}

impl Keepers {
    /// Connects to the owners of slots and to the kept nodes, and drops all other connections.
    fn lay_out(&mut self, slots: Slots) {
        let before = self.cluster.map.load_full();
        let named = self.cluster.still_named();
        let mut nodes = BTreeMap::new();
        for address in slots.owners().chain(&named) {
            if !nodes.contains_key(address) {
                let kept = before.nodes.get(address).filter(|node| !node.keeper.is_finished());
                let node = kept.cloned().unwrap_or_else(|| self.node(address));
                nodes.insert(address.clone(), node);
            }
        }
        let gone = before.nodes.iter().filter(|(address, _)| !nodes.contains_key(*address));
        for (address, node) in gone {
            tracing::info!(at = %address, "this node of the redis cluster has no slots any more");
            node.keeper.abort();
        }
        self.cluster.map.store(Arc::new(Map { slots, nodes }));
        while self.tasks.try_join_next().is_some() {}
    }

    fn node(&mut self, address: &Address) -> Node {
        let link = Arc::new(Link::default());
        let at = At::Tcp(address.clone());
        let place = Whereabouts::Node(at, Arc::downgrade(&self.cluster));
        let options = Arc::clone(&self.options);
        let kept = keep::keep(Arc::clone(&link), place, options, self.pauses.number());
        Node { link, keeper: self.tasks.spawn(kept) }
    }
}

#[cfg(test)]
mod tests {
    use fred::error::{Error, ErrorKind};

    use super::{Address, Redirect};

    #[test]
    fn moved_and_ask_errors_parse_as_redirects() {
        let of = |text: &'static str| {
            Redirect::of(&Error::new(ErrorKind::Cluster, text), "redis-1.local")
        };
        let to = |host: &str, port, asks| {
            Some(Redirect { to: Address { host: host.to_owned(), port }, asks })
        };
        assert_eq!(of("MOVED 3999 127.0.0.1:6381"), to("127.0.0.1", 6381, false));
        assert_eq!(of("ASK 3999 redis-2.local:6381"), to("redis-2.local", 6381, true));
        assert_eq!(of("MOVED 3999 ::1:6381"), to("::1", 6381, false));
        // A redirect without a known host means the host of the node that replied.
        assert_eq!(of("MOVED 3999 :6381"), to("redis-1.local", 6381, false));
        assert_eq!(of("ASK 3999 ?:6381"), to("redis-1.local", 6381, true));
        for other in
            ["", "MOVED", "MOVED 1", "MOVED 1 x", "MOVED 1 x:y", "TRYAGAIN x y:1", "ASKING"]
        {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
