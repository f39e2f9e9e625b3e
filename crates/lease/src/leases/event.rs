//! The events of leased hits, for metrics.

use crate::kernel::units::Hits;

/// An event of leased hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// Hits were borrowed from the store.
    Borrowed,
    /// Unspent hits were returned to the store.
    Returned,
    /// A lease expired with unspent hits.
    Expired,
}

/// Counts an event of leased hits. It must not block.
pub type LeaseObserver = fn(LeaseEvent, Hits);
