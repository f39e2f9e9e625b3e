//! How often shares ended and moved, of all ceilings of one life of a replica.
//!
//! Guarantees: they only grow, whatever becomes of the ceilings that they were of.
//! Leaves out: how often it was of each, which goes with the ceiling.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The totals.
#[derive(Debug, Default)]
pub struct Totals {
    fences: AtomicU64,
    handoffs: AtomicU64,
}

impl Totals {
    pub(super) fn fenced(&self) {
        self.fences.fetch_add(1, Relaxed);
    }

    pub(super) fn handed_over(&self) {
        self.handoffs.fetch_add(1, Relaxed);
    }

    /// How often a share was given up because its term was over.
    #[must_use]
    pub fn fences(&self) -> u64 {
        self.fences.load(Relaxed)
    }

    /// How often a share grew by what another replica gave up.
    #[must_use]
    pub fn handoffs(&self) -> u64 {
        self.handoffs.load(Relaxed)
    }
}
