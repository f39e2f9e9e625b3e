//! The connected proxies that lease hits from this replica.
//!
//! Guarantees:
//! - Of two streams with one incarnation, the newer one stays and the older one is told to end.
//! - A proxy is listed from its introduction until its stream ends.
//!
//! Not covered:
//! - Proxies that are connected to other replicas.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use crate::engine::concurrency::BucketLoad;
use crate::kernel::lease::ReplicaIncarnation;
use crate::kernel::units::{Hits, Nanos};

/// The largest number of open streams of proxies.
pub const MAX_PROXY_STREAMS: usize = 4_096;

/// The connected proxies, and the number of the limits in force.
#[derive(Debug)]
pub struct Proxies {
    by_incarnation: Arc<Mutex<HashMap<ReplicaIncarnation, Arc<ConnectedProxy>>>>,
    slots: Arc<Semaphore>,
    limits: watch::Sender<u64>,
}

impl Default for Proxies {
    fn default() -> Self {
        Self {
            by_incarnation: Arc::default(),
            slots: Arc::new(Semaphore::new(MAX_PROXY_STREAMS)),
            limits: watch::Sender::new(0),
        }
    }
}

/// The right to serve one stream. Dropping it ends the right.
#[derive(Debug)]
pub struct StreamSlot {
    _permit: OwnedSemaphorePermit,
}

/// A proxy as it introduced itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyIdentity {
    /// The number of this start of the process, below 2^53.
    pub incarnation: ReplicaIncarnation,
    /// The name for operators.
    pub name: Box<str>,
    /// The software and its version.
    pub software: Box<str>,
    /// The address of the connection; `None` for a Unix socket.
    pub peer: Option<SocketAddr>,
}

/// The hits that a proxy reported last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyHits {
    /// The counters with leased hits.
    pub leased_keys: u64,
    /// The sum of the leased hits.
    pub leased_hits: Hits,
}

/// A connected proxy, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyInfo {
    /// The proxy.
    pub identity: ProxyIdentity,
    /// The start of the stream, since the Unix epoch.
    pub connected_at: Nanos,
    /// The last report of the proxy.
    pub hits: ProxyHits,
    /// The messages of the stream.
    pub messages: u64,
    /// The hits that the proxy borrowed on the stream.
    pub borrowed_hits: u64,
    /// The buckets of concurrency limits that the proxy reported last.
    pub concurrency: Vec<ProxyBucket>,
}

/// A bucket of a concurrency limit at a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyBucket {
    /// The name of the bucket.
    pub bucket: Box<[u8]>,
    /// The requests, and the limit or share of the proxy.
    pub load: BucketLoad,
}

#[derive(Debug)]
struct ConnectedProxy {
    identity: ProxyIdentity,
    connected_at: Nanos,
    replaced: Notify,
    hits: Mutex<ProxyHits>,
    concurrency: Mutex<Vec<ProxyBucket>>,
    messages: AtomicU64,
    borrowed_hits: AtomicU64,
}

/// The connection of one proxy. Dropping it removes the proxy from the list.
#[derive(Debug)]
pub struct ProxyConnection {
    by_incarnation: Arc<Mutex<HashMap<ReplicaIncarnation, Arc<ConnectedProxy>>>>,
    proxy: Arc<ConnectedProxy>,
}

impl Proxies {
    /// Returns the right to serve one more stream; `None` if [`MAX_PROXY_STREAMS`] are open.
    #[must_use]
    pub fn open_stream(&self) -> Option<StreamSlot> {
        Arc::clone(&self.slots)
            .try_acquire_owned()
            .ok()
            .map(|permit| StreamSlot { _permit: permit })
    }

    /// Adds a proxy at the instant `now`. Tells an older stream of the same incarnation to end.
    #[must_use]
    pub fn connect(&self, identity: ProxyIdentity, now: Nanos) -> ProxyConnection {
        let incarnation = identity.incarnation;
        let proxy = Arc::new(ConnectedProxy {
            identity,
            connected_at: now,
            replaced: Notify::new(),
            hits: Mutex::default(),
            concurrency: Mutex::default(),
            messages: AtomicU64::new(0),
            borrowed_hits: AtomicU64::new(0),
        });
        let older = self.by_incarnation.lock().insert(incarnation, Arc::clone(&proxy));
        if let Some(older) = older {
            older.replaced.notify_one();
        }
        ProxyConnection { by_incarnation: Arc::clone(&self.by_incarnation), proxy }
    }

    /// Returns the number of the limits in force, and its later changes.
    #[must_use]
    pub fn watch_limits(&self) -> watch::Receiver<u64> {
        self.limits.subscribe()
    }

    /// Returns the number of the limits in force: the number of configurations so far.
    #[must_use]
    pub fn limits(&self) -> u64 {
        *self.limits.borrow()
    }

    /// Announces that another configuration is in force.
    pub(in crate::engine) fn announce_limits(&self) {
        self.limits.send_modify(|number| *number = number.saturating_add(1));
    }

    /// Returns the number of connected proxies.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_incarnation.lock().len()
    }

    /// Returns the connected proxies, sorted by name and incarnation.
    #[must_use]
    pub fn list(&self) -> Vec<ProxyInfo> {
        let proxies: Vec<_> = self.by_incarnation.lock().values().cloned().collect();
        let mut list: Vec<_> = proxies.iter().map(|proxy| proxy.info()).collect();
        list.sort_by(|a, b| {
            let order = a.identity.name.cmp(&b.identity.name);
            order.then(a.identity.incarnation.cmp(&b.identity.incarnation))
        });
        list
    }
}

impl ConnectedProxy {
    fn info(&self) -> ProxyInfo {
        ProxyInfo {
            identity: self.identity.clone(),
            connected_at: self.connected_at,
            hits: *self.hits.lock(),
            messages: self.messages.load(Relaxed),
            borrowed_hits: self.borrowed_hits.load(Relaxed),
            concurrency: self.concurrency.lock().clone(),
        }
    }
}

impl ProxyConnection {
    /// The incarnation under which the lease tables list the proxy.
    #[must_use]
    pub fn incarnation(&self) -> ReplicaIncarnation {
        self.proxy.identity.incarnation
    }

    /// Waits until a newer stream of the same incarnation replaces this one.
    pub async fn replaced(&self) {
        self.proxy.replaced.notified().await;
    }

    /// Counts a message of the proxy.
    pub fn count_message(&self) {
        self.proxy.messages.fetch_add(1, Relaxed);
    }

    /// Counts hits that the proxy borrowed.
    pub fn count_borrowed(&self, hits: Hits) {
        self.proxy.borrowed_hits.fetch_add(hits.0, Relaxed);
    }

    /// Records the last report of the proxy.
    pub fn record_report(&self, hits: ProxyHits, concurrency: Vec<ProxyBucket>) {
        *self.proxy.hits.lock() = hits;
        *self.proxy.concurrency.lock() = concurrency;
    }
}

impl Drop for ProxyConnection {
    fn drop(&mut self) {
        let mut proxies = self.by_incarnation.lock();
        let incarnation = self.incarnation();
        if proxies.get(&incarnation).is_some_and(|listed| Arc::ptr_eq(listed, &self.proxy)) {
            proxies.remove(&incarnation);
        }
    }
}
