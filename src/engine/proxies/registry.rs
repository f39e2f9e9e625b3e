//! The proxies that are connected to this replica.
//!
//! Guarantees:
//! - At most [`MAX_PROXIES`] proxies.
//! - A second stream of a process replaces the first.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::kernel::lease::ReplicaIncarnation;
use crate::kernel::units::Nanos;

/// The largest number of connected proxies.
pub const MAX_PROXIES: usize = 4_096;

/// The connected proxies.
#[derive(Debug, Default)]
pub struct ProxyRegistry(Mutex<BTreeMap<ReplicaIncarnation, Arc<ConnectedProxy>>>);

/// A connected proxy, and what it has reported.
#[derive(Debug)]
pub struct ConnectedProxy {
    /// The number of this start of the proxy's process.
    pub incarnation: ReplicaIncarnation,
    /// The name for operators.
    pub name: String,
    /// The software and its version.
    pub software: String,
    /// The address of the connection.
    pub address: Option<SocketAddr>,
    /// The begin of the stream, on the steady clock.
    pub connected_at: Nanos,
    /// The leased keys of the last report.
    pub leased_keys: AtomicU64,
    /// The leased hits of the last report.
    pub leased_hits: AtomicU64,
    /// The messages of the stream.
    pub messages: AtomicU64,
    /// Cancelled if another stream of the same process replaces this one.
    pub replaced: CancellationToken,
}

/// A registered proxy. Dropping it removes the proxy.
#[derive(Debug)]
pub struct RegisteredProxy {
    registry: Arc<ProxyRegistry>,
    /// The proxy.
    pub proxy: Arc<ConnectedProxy>,
}

impl ProxyRegistry {
    /// Adds a proxy. Returns `None` if there are [`MAX_PROXIES`] others.
    #[must_use]
    pub fn add(self: &Arc<Self>, proxy: ConnectedProxy) -> Option<RegisteredProxy> {
        let proxy = Arc::new(proxy);
        let mut proxies = self.0.lock();
        if MAX_PROXIES <= proxies.len() && !proxies.contains_key(&proxy.incarnation) {
            return None;
        }
        if let Some(older) = proxies.insert(proxy.incarnation, Arc::clone(&proxy)) {
            older.replaced.cancel();
        }
        Some(RegisteredProxy { registry: Arc::clone(self), proxy })
    }

    /// Returns the number of connected proxies.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Returns the connected proxies, by incarnation.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<ConnectedProxy>> {
        self.0.lock().values().map(Arc::clone).collect()
    }
}

impl ConnectedProxy {
    /// Stores the totals of a report.
    pub fn set_leased(&self, keys: u64, hits: u64) {
        self.leased_keys.store(keys, Relaxed);
        self.leased_hits.store(hits, Relaxed);
    }
}

impl Drop for RegisteredProxy {
    fn drop(&mut self) {
        let mut proxies = self.registry.0.lock();
        let own = proxies.get(&self.proxy.incarnation);
        if own.is_some_and(|own| Arc::ptr_eq(own, &self.proxy)) {
            proxies.remove(&self.proxy.incarnation);
        }
    }
}
