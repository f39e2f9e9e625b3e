//! Counts expired shares and handoffs over all concurrency limits of one incarnation.
//!
//! Guarantees:
//! - The counts never decrease, even when a limit is removed.
//!
//! Not covered:
//! - The counts of one limit: see `replica_share`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::watch;

use crate::host::{ConcurrencyEvent, Host, ShareChange};

/// The numbers of expired shares (fences) and of handoffs.
#[derive(Debug)]
pub struct ShareTotals {
    host: Arc<dyn Host>,
    fences: watch::Sender<u64>,
    handoffs: AtomicU64,
}

impl ShareTotals {
    pub(crate) fn new(host: Arc<dyn Host>) -> Self {
        Self { host, fences: watch::Sender::new(0), handoffs: AtomicU64::new(0) }
    }

    /// Counts an expired share of the limit with this path.
    pub(crate) fn count_fence(&self, limit_path: &str) {
        self.fences.send_modify(|fences| *fences = fences.saturating_add(1));
        self.host.count(ConcurrencyEvent::ShareExpired(limit_path));
    }

    pub(crate) fn count_change(&self, change: ShareChange) {
        if change == ShareChange::HandedOver {
            self.handoffs.fetch_add(1, Relaxed);
        }
        self.host.count(ConcurrencyEvent::Share(change));
    }

    /// Returns the number of expired shares.
    #[must_use]
    pub fn fences(&self) -> u64 {
        *self.fences.borrow()
    }

    /// Returns a watch on the number of expired shares.
    #[must_use]
    pub fn watch_fences(&self) -> watch::Receiver<u64> {
        self.fences.subscribe()
    }

    /// Returns the number of times that a share grew by permits from another process.
    #[must_use]
    pub fn handoffs(&self) -> u64 {
        self.handoffs.load(Relaxed)
    }
}
