//! What a store counts of itself, beside what it answers.
//!
//! Guarantees: connections are counted when they are ready and when they are gone, so that those that are open are the
//! difference; lookups are hits or misses, never both.
//! Leaves out: under which names it is shown.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a store has counted so far; nothing where there is no such part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// Connections to the store.
    pub connections: Option<Connections>,
    /// Connections to the store of limits whose period is a second.
    pub per_second: Option<Connections>,
    /// Denials that are remembered here.
    pub remembered: Option<Remembered>,
}

/// Connections that carry questions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// That were made.
    pub made: u64,
    /// Of those, that are gone, whoever closed them.
    pub gone: u64,
}

/// A table of keys that are known to be over their limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// Keys in it, those with it whose window has ended and that nobody asked for since.
    pub keys: u64,
    /// Lookups that found a key.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Of those, that found one whose window had ended.
    pub expired: u64,
    /// Keys that gave way to newer ones.
    pub evicted: u64,
    /// Keys that were put where they were already.
    pub overwritten: u64,
    /// When each key in it was last put or found, in seconds since 1970, added up.
    pub found_at: u64,
}

impl Remembered {
    /// When a key in it was last put or found, on average, in seconds since 1970; 0 where there is none.
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

/// Counts connections.
#[derive(Debug, Default)]
pub struct Counter {
    made: AtomicU64,
    gone: AtomicU64,
}

impl Counter {
    /// A connection is there, until what this returns is dropped.
    pub fn hold(&self) -> Open<'_> {
        self.made.fetch_add(1, Relaxed);
        Open(self)
    }

    /// What was counted so far.
    #[must_use]
    pub fn seen(&self) -> Connections {
        // In this order: a connection that comes and goes between is not gone before it was made.
        let gone = self.gone.load(Relaxed);
        Connections { made: self.made.load(Relaxed).max(gone), gone }
    }
}

/// A connection that is counted as open.
#[derive(Debug)]
#[must_use]
pub struct Open<'c>(&'c Counter);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.gone.fetch_add(1, Relaxed);
    }
}
