//! The number of counters and lease tables in the memory store, at most `max` in all shards.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub(super) trait CapacitySource {
    fn try_take(&self) -> bool;
}

#[derive(Debug)]
pub(super) struct CounterCapacity {
    used: AtomicUsize,
    max: usize,
}

impl CounterCapacity {
    pub(super) const fn new(max: usize) -> Self {
        Self { used: AtomicUsize::new(0), max }
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
    pub(super) fn reserve(&self, wanted: usize) -> ReservedCapacity<'_> {
        // Do not write to `used` for 0 counters: all shards share it, and most checks create none.
        if wanted == 0 {
            return ReservedCapacity { counters: self, remaining: Cell::new(0) };
        }
        let free_for = |used: usize| wanted.min(self.max.saturating_sub(used));
        let add = |used| Some(used + free_for(used));
        let used_before = self.used.fetch_update(Relaxed, Relaxed, add);
        let remaining = used_before.map_or(0, free_for);
        ReservedCapacity { counters: self, remaining: Cell::new(remaining) }
    }

    pub(super) fn release(&self, count: usize) {
        self.used.fetch_sub(count, Relaxed);
    }
}

impl CapacitySource for CounterCapacity {
    fn try_take(&self) -> bool {
        let add = |used| (used < self.max).then_some(used + 1);
        self.used.fetch_update(Relaxed, Relaxed, add).is_ok()
    }
}

/// Capacity reserved before the number of new counters is known. Dropping it frees the unused part.
#[derive(Debug)]
pub(super) struct ReservedCapacity<'c> {
    counters: &'c CounterCapacity,
    remaining: Cell<usize>,
}

impl ReservedCapacity<'_> {
    pub(super) const fn remaining(&self) -> usize {
        self.remaining.get()
    }
}

impl CapacitySource for ReservedCapacity<'_> {
    fn try_take(&self) -> bool {
        let remaining = self.remaining.get();
        self.remaining.set(remaining.saturating_sub(1));
        remaining != 0
    }
}

impl Drop for ReservedCapacity<'_> {
    fn drop(&mut self) {
        if self.remaining.get() != 0 {
            self.counters.release(self.remaining.get());
        }
    }
}
