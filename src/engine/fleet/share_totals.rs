//! Counts expired shares and handoffs over all concurrency limits of one replica incarnation.
//!
//! Guarantees:
//! - The counts never decrease, even when a limit is removed.
//!
//! Not covered:
//! - The counts of one limit: see `replica_share`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The numbers of expired shares (fences) and of handoffs.
#[derive(Debug, Default)]
pub struct ShareTotals {
    fences: AtomicU64,
    handoffs: AtomicU64,
}

impl ShareTotals {
    pub(in crate::engine) fn count_fence(&self) {
        self.fences.fetch_add(1, Relaxed);
    }

    pub(in crate::engine) fn count_handoff(&self) {
        self.handoffs.fetch_add(1, Relaxed);
    }

    /// Returns the number of expired shares.
    #[must_use]
    pub fn fences(&self) -> u64 {
        self.fences.load(Relaxed)
    }

    /// Returns the number of times that a share grew by permits from another replica.
    #[must_use]
    pub fn handoffs(&self) -> u64 {
        self.handoffs.load(Relaxed)
    }
}
