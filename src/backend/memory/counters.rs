//! The number of counters in use.
//!
//! Guarantees:
//! - All shards together never use more than `most` places.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub(super) trait Places {
    fn take(&self) -> bool;
}

#[derive(Debug)]
pub(super) struct Counters {
    live: AtomicUsize,
    most: usize,
}

impl Counters {
    pub(super) const fn new(most: usize) -> Self {
        Self { live: AtomicUsize::new(0), most }
    }

    pub(super) fn live(&self) -> usize {
        self.live.load(Relaxed)
    }

    pub(super) const fn most(&self) -> usize {
        self.most
    }

    pub(super) fn are_full(&self) -> bool {
        self.most <= self.live()
    }

    /// Takes `wanted` places, or fewer if the store is full.
    pub(super) fn reserve(&self, wanted: usize) -> Reserved<'_> {
        // All shards write to this number, and most checks create no counter.
        if wanted == 0 {
            return Reserved { counters: self, left: Cell::new(0) };
        }
        let there_are = |live: usize| wanted.min(self.most.saturating_sub(live));
        let more = |live| Some(live + there_are(live));
        let before = self.live.fetch_update(Relaxed, Relaxed, more);
        let left = before.map_or(0, there_are);
        Reserved { counters: self, left: Cell::new(left) }
    }

    pub(super) fn give_back(&self, dropped: usize) {
        self.live.fetch_sub(dropped, Relaxed);
    }
}

impl Places for Counters {
    fn take(&self) -> bool {
        let more = |live| (live < self.most).then_some(live + 1);
        self.live.fetch_update(Relaxed, Relaxed, more).is_ok()
    }
}

/// Places that were taken before it is known how many are needed. A drop frees the unused ones.
#[derive(Debug)]
pub(super) struct Reserved<'c> {
    counters: &'c Counters,
    left: Cell<usize>,
}

impl Reserved<'_> {
    pub(super) const fn left(&self) -> usize {
        self.left.get()
    }
}

impl Places for Reserved<'_> {
    fn take(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left != 0
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.left.get() != 0 {
            self.counters.give_back(self.left.get());
        }
    }
}
