//! Statistics that a store keeps about itself.
//!
//! Guarantees:
//! - Connections are counted when they open and when they close.
//! - Each lookup is either a hit or a miss.
//!
//! Not covered:
//! - The names of the metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The statistics of a store. A field is `None` if the store has no such part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// Connections to the store.
    pub connections: Option<Connections>,
    /// Connections to the store of per-second limits.
    pub per_second: Option<Connections>,
    /// The deny cache of this process.
    pub remembered: Option<Remembered>,
}

/// The number of connections that were opened and closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Connections that were opened.
    pub made: u64,
    /// Connections that were closed, by either side.
    pub gone: u64,
}

/// The statistics of a deny cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// Keys in the cache, including expired keys without a lookup since.
    pub keys: u64,
    /// Lookups that found a denied key.
    pub hits: u64,
    /// Lookups that found no denied key.
    pub misses: u64,
    /// Misses because the window of the key had ended.
    pub expired: u64,
    /// Keys that were evicted for newer ones.
    pub evicted: u64,
    /// Inserts of a key that the cache already contained.
    pub overwritten: u64,
    /// The sum over all keys of the last insert or hit, in seconds since 1970.
    pub found_at: u64,
}

impl Remembered {
    /// Returns the mean of the last insert or hit of
    /// each key, in seconds since 1970; 0 without keys.
    #[must_use]
    pub const fn average_found_at(self) -> u64 {
        match self.found_at.checked_div(self.keys) {
            Some(average) => average,
            None => 0,
        }
    }
}

impl std::ops::Add for Remembered {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            keys: self.keys + other.keys,
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            expired: self.expired + other.expired,
            evicted: self.evicted + other.evicted,
            overwritten: self.overwritten + other.overwritten,
            found_at: self.found_at + other.found_at,
        }
    }
}

/// A counter of opened and closed connections.
#[derive(Debug, Default)]
pub struct Counter {
    made: AtomicU64,
    gone: AtomicU64,
}

impl Counter {
    /// Counts a connection as open until the returned guard is dropped.
    pub fn hold(&self) -> Open<'_> {
        self.made.fetch_add(1, Relaxed);
        Open(self)
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn seen(&self) -> Connections {
        // Load `gone` first: a connection that opens and
        // closes in between must not count as closed only.
        let gone = self.gone.load(Relaxed);
        Connections { made: self.made.load(Relaxed).max(gone), gone }
    }
}

/// The guard of an open connection.
#[derive(Debug)]
#[must_use]
pub struct Open<'c>(&'c Counter);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.gone.fetch_add(1, Relaxed);
    }
}
