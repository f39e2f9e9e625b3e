//! The number of counters and lease tables in the memory store.
//!
//! Guarantees:
//! - All shards together never contain more than `max` counters and lease tables.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub(super) trait PlaceSource {
    fn try_take(&self) -> bool;
}

#[derive(Debug)]
pub(super) struct CounterCapacity {
    used: AtomicUsize,
    max: usize,
}

impl CounterCapacity {
    pub(super) const fn new(most: usize) -> Self {
        Self { used: AtomicUsize::new(0), max: most }
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    pub(super) const fn max(&self) -> usize {
        self.max
    }

    pub(super) fn is_full(&self) -> bool {
        self.max <= self.used()
    }

    /// Reserves capacity for `wanted` counters, or for fewer if the store is full.
    pub(super) fn reserve(&self, wanted: usize) -> ReservedPlaces<'_> {
        // Do not write to the counter for 0 places: all shards share it, and most checks create no
        // counter.
        if wanted == 0 {
            return ReservedPlaces { counters: self, left: Cell::new(0) };
        }
        let free_for = |live: usize| wanted.min(self.max.saturating_sub(live));
        let more = |live| Some(live + free_for(live));
        let before = self.used.fetch_update(Relaxed, Relaxed, more);
        let left = before.map_or(0, free_for);
        ReservedPlaces { counters: self, left: Cell::new(left) }
    }

    pub(super) fn release(&self, dropped: usize) {
        self.used.fetch_sub(dropped, Relaxed);
    }
}

impl PlaceSource for CounterCapacity {
    fn try_take(&self) -> bool {
        let more = |live| (live < self.max).then_some(live + 1);
        self.used.fetch_update(Relaxed, Relaxed, more).is_ok()
    }
}

/// Capacity for new counters, reserved before the number of new counters is known. Dropping it
/// frees the unused capacity.
#[derive(Debug)]
pub(super) struct ReservedPlaces<'c> {
    counters: &'c CounterCapacity,
    left: Cell<usize>,
}

impl ReservedPlaces<'_> {
    pub(super) const fn left(&self) -> usize {
        self.left.get()
    }
}

impl PlaceSource for ReservedPlaces<'_> {
    fn try_take(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left != 0
    }
}

impl Drop for ReservedPlaces<'_> {
    fn drop(&mut self) {
        if self.left.get() != 0 {
            self.counters.release(self.left.get());
        }
    }
}
