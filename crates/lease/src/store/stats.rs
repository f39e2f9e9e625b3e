//! Statistics that a store keeps about itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The statistics of a store; `None` for connections or a deny cache that it does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Connections to the store.
    pub connections: Option<ConnectionCounts>,
    /// Connections to the separate Redis for limits per second.
    pub per_second_connections: Option<ConnectionCounts>,
    /// The deny cache of this process.
    pub deny_cache: Option<DenyCacheStats>,
}

/// The number of connections that were opened and closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Connections that were opened.
    pub opened: u64,
    /// Connections that were closed, by either side.
    pub closed: u64,
}

/// The statistics of a deny cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DenyCacheStats {
    /// Keys in the cache. An expired key is included until its next lookup.
    pub keys: u64,
    /// Lookups that found a denied key.
    pub hits: u64,
    /// Lookups that found no denied key.
    pub misses: u64,
    /// Misses for a cached key whose denial had expired, because its window had ended.
    pub expired: u64,
    /// Keys that were evicted for newer ones.
    pub evicted: u64,
    /// Inserts of a key that the cache already contained.
    pub overwritten: u64,
    /// The sum, over all cached keys, of the time of the last insert or hit, in Unix seconds.
    pub last_access_sum: u64,
}

impl DenyCacheStats {
    /// Returns the mean time of the last insert or hit of all cached keys, in Unix seconds; 0
    /// without keys.
    #[must_use]
    pub const fn mean_last_access(self) -> u64 {
        match self.last_access_sum.checked_div(self.keys) {
            Some(mean) => mean,
            None => 0,
        }
    }
}

impl std::ops::Add for DenyCacheStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            keys: self.keys + other.keys,
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            expired: self.expired + other.expired,
            evicted: self.evicted + other.evicted,
            overwritten: self.overwritten + other.overwritten,
            last_access_sum: self.last_access_sum + other.last_access_sum,
        }
    }
}

/// A counter of opened and closed connections.
#[derive(Debug, Default)]
pub struct ConnectionCounter {
    opened: AtomicU64,
    closed: AtomicU64,
}

impl ConnectionCounter {
    /// Counts a connection as open until the returned guard is dropped.
    pub fn count_open(&self) -> OpenConnection<'_> {
        self.opened.fetch_add(1, Relaxed);
        OpenConnection(self)
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> ConnectionCounts {
        // Load `closed` first: a connection that opens and closes meanwhile must not count only as
        // closed.
        let closed = self.closed.load(Relaxed);
        ConnectionCounts { opened: self.opened.load(Relaxed).max(closed), closed }
    }
}

/// The guard of an open connection.
#[derive(Debug)]
#[must_use]
pub struct OpenConnection<'c>(&'c ConnectionCounter);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.closed.fetch_add(1, Relaxed);
    }
}
