//! How many counters live, of how many that may.
//!
//! Guarantees: never more than `most` at once, over all shards.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The count of live counters.
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

    pub(super) fn has_room(&self) -> bool {
        self.live() < self.most
    }

    /// Takes a place, if there is one.
    pub(super) fn take(&self) -> bool {
        let more = |live| (live < self.most).then_some(live + 1);
        self.live.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Gives `dropped` places back.
    pub(super) fn give_back(&self, dropped: usize) {
        self.live.fetch_sub(dropped, Relaxed);
    }
}
