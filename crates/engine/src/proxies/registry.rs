//! The connected proxies that lease hits from this replica.
//!
//! Guarantees:
//! - Of two streams with one incarnation, the newer one stays and the older one is told to end.
//! - A proxy is listed from its introduction until its stream ends.
//! - While its stream is open or its records last, an incarnation belongs to the peer that
//!   introduced it.
//! - The records of a proxy end with its shares and permits: at most `fleet.share_expiry` plus
//!   `max_duration` after its stream.
//!
//! Not covered:
//! - Proxies that are connected to other replicas.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::asked_rows::{AskedRows, RowsChange};
use super::history::ProxyHistory;
use super::peer::{Peer, PeerKey, Peers, StreamSlot};
use super::votes::ProxyVotes;
use crate::concurrency::BucketLoad;
use crate::kernel::lease::ReplicaIncarnation;
use crate::kernel::proxy_rule::TableRow;
use crate::kernel::units::{Hits, Nanos};

/// The time after which a denial is forgotten: no shorter than a heartbeat interval.
const DENIED_MEMORY: Nanos = Nanos::from_secs(60);

/// The connected proxies, and the number of the limits in force.
#[derive(Debug)]
pub struct Proxies {
    by_incarnation: Arc<Mutex<HashMap<ReplicaIncarnation, Arc<ConnectedProxy>>>>,
    peers: Peers,
    /// The histories of connected proxies, and of others while their records last.
    histories: Mutex<HashMap<ReplicaIncarnation, Arc<Mutex<ProxyHistory>>>>,
    pub(super) votes: Arc<Mutex<ProxyVotes>>,
    /// The last proxy that was denied a strict limit, by the hash of the bucket.
    denied: Mutex<HashMap<u64, (ReplicaIncarnation, Nanos)>>,
    /// The number of the last change of limits and tables.
    number: AtomicU64,
    /// The number of the last change of all limits.
    limits: watch::Sender<u64>,
}

impl Default for Proxies {
    fn default() -> Self {
        Self {
            by_incarnation: Arc::default(),
            peers: Peers::default(),
            histories: Mutex::default(),
            votes: Arc::default(),
            denied: Mutex::default(),
            number: AtomicU64::new(0),
            limits: watch::Sender::new(0),
        }
    }
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
    asked_rows: AskedRows,
}

/// The connection of one proxy. Dropping it removes the proxy from the list.
#[derive(Debug)]
pub struct ProxyConnection {
    by_incarnation: Arc<Mutex<HashMap<ReplicaIncarnation, Arc<ConnectedProxy>>>>,
    proxy: Arc<ConnectedProxy>,
    pub(super) history: Arc<Mutex<ProxyHistory>>,
    votes: Arc<Mutex<ProxyVotes>>,
    _slot: StreamSlot,
}

/// The incarnation in an introduction belongs to another peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another peer introduced this incarnation")]
pub struct IncarnationTaken;

impl Proxies {
    /// Returns the right to serve one more stream of a peer; `None` at
    /// [`MAX_PEER_STREAMS`](super::MAX_PEER_STREAMS) or
    /// [`MAX_PROXY_STREAMS`](super::MAX_PROXY_STREAMS).
    #[must_use]
    pub fn open_stream(&self, peer: PeerKey) -> Option<StreamSlot> {
        self.peers.open_stream(peer)
    }

    /// Adds a proxy at the instant `now`. Tells an older stream of the same incarnation to end.
    ///
    /// # Errors
    /// The incarnation belongs to another peer.
    pub fn connect(
        &self,
        identity: ProxyIdentity,
        slot: StreamSlot,
        now: Nanos,
    ) -> Result<ProxyConnection, IncarnationTaken> {
        let incarnation = identity.incarnation;
        let history = self.history_of(incarnation, slot.peer())?;
        let proxy = Arc::new(ConnectedProxy {
            identity,
            connected_at: now,
            replaced: Notify::new(),
            hits: Mutex::default(),
            concurrency: Mutex::default(),
            messages: AtomicU64::new(0),
            borrowed_hits: AtomicU64::new(0),
            asked_rows: AskedRows::default(),
        });
        let older = self.by_incarnation.lock().insert(incarnation, Arc::clone(&proxy));
        if let Some(older) = older {
            older.replaced.notify_one();
        }
        let by_incarnation = Arc::clone(&self.by_incarnation);
        let votes = Arc::clone(&self.votes);
        Ok(ProxyConnection { by_incarnation, proxy, history, votes, _slot: slot })
    }

    fn history_of(
        &self,
        incarnation: ReplicaIncarnation,
        peer: &Peer,
    ) -> Result<Arc<Mutex<ProxyHistory>>, IncarnationTaken> {
        let mut histories = self.histories.lock();
        let make = || Arc::new(Mutex::new(ProxyHistory::new(incarnation, peer.clone())));
        let history = Arc::clone(histories.entry(incarnation).or_insert_with(make));
        let is_own = history.lock().peer.is(peer);
        if is_own { Ok(history) } else { Err(IncarnationTaken) }
    }

    /// Returns `true` if another proxy was denied the limit within the time `recently`.
    pub(super) fn is_denied_to_others(
        &self,
        (bucket, proxy): (u64, ReplicaIncarnation),
        now: Nanos,
        recently: Nanos,
    ) -> bool {
        let denied = self.denied.lock();
        denied.get(&bucket).is_some_and(|(other, at)| *other != proxy && now.since(*at) < recently)
    }

    /// Records the result of an acquire.
    pub(super) fn record_acquire(
        &self,
        (bucket, proxy): (u64, ReplicaIncarnation),
        now: Nanos,
        is_denied: bool,
    ) {
        let mut denied = self.denied.lock();
        if is_denied {
            denied.insert(bucket, (proxy, now));
        } else if denied.get(&bucket).is_some_and(|(other, _)| *other == proxy) {
            denied.remove(&bucket);
        }
    }

    /// Removes the records that have ended, and the histories of proxies that are gone.
    ///
    /// `now` is an instant of the steady clock. Cost: O(records).
    pub fn sweep(&self, now: Nanos) {
        self.denied.lock().retain(|_, (_, at)| now.since(*at) < DENIED_MEMORY);
        self.votes.lock().sweep(now);
        self.histories.lock().retain(|_, history| {
            let is_connected = 1 < Arc::strong_count(history);
            let mut history = history.lock();
            history.sweep(now);
            is_connected || !history.is_empty()
        });
    }

    /// Returns the number of shares and permits of all proxies that this replica keeps records of.
    #[must_use]
    pub fn records(&self) -> usize {
        self.peers.records()
    }

    /// Returns the number of the last change of all limits, and its later values.
    #[must_use]
    pub fn watch_limits(&self) -> watch::Receiver<u64> {
        self.limits.subscribe()
    }

    /// Returns the number of the limits in force: the number of changes of limits and tables so far.
    #[must_use]
    pub fn limits(&self) -> u64 {
        self.number.load(SeqCst)
    }

    /// Announces that another configuration is in force.
    pub(crate) fn announce_limits(&self) {
        let number = self.number.fetch_add(1, SeqCst) + 1;
        self.limits.send_modify(|last| *last = number.max(*last));
    }

    /// Announces to the proxies that asked for them that these rows have other numbers.
    pub(crate) fn announce_rows(&self, rows: &[TableRow]) {
        // First the number: a rule with an older number is asked for again, or its rows are known.
        self.number.fetch_add(1, SeqCst);
        let proxies: Vec<_> = self.by_incarnation.lock().values().cloned().collect();
        for proxy in proxies {
            proxy.asked_rows.announce(rows);
        }
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

    /// Remembers the rows of a rule that the proxy asked for.
    pub(super) fn add_rows(&self, rows: &[TableRow]) {
        self.proxy.asked_rows.add(rows);
    }

    /// Waits for a change of rows that the proxy asked for.
    pub async fn rows_changed(&self) -> RowsChange {
        self.proxy.asked_rows.next_change().await
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
            drop(proxies);
            self.votes.lock().remove(incarnation);
        }
    }
}
