//! One limit in mode `strict` at this replica: its parameters, its queue and its snapshot.
//!
//! Guarantees:
//! - The number of requests in the queue is bounded.
//! - A canceled request leaves the queue.
//!
//! Not covered:
//! - The attempts to acquire a permit (see `limits::strict`).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::{Mutex, Notify};

use crate::kernel::concurrency::limiter::QueueConfig;
use crate::kernel::units::{Nanos, Share};

/// The parameters of a limit in mode `strict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrictLimit {
    /// The queue of this replica. `None`: requests do not wait for a permit.
    pub queue: Option<QueueConfig>,
    /// The longest duration of a request.
    pub max_duration: Nanos,
    /// The largest number of requests in flight at this replica during a store outage.
    pub outage_limit: u32,
}

/// A snapshot of one strict limit at this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrictSnapshot {
    /// The limit of the whole fleet.
    pub limit: u32,
    /// The requests in flight at this replica.
    pub in_flight: u32,
    /// The permits in use in the whole fleet, from the store's last reply. `None` before it.
    pub fleet_permits: Option<Share>,
    /// The number of waiting requests at this replica.
    pub waiting: usize,
    /// The time for which the store grants no permits, from its last reply to an acquire. 0 if it
    /// grants them.
    pub closed_for: Nanos,
    /// `true` if the last store call for this limit got no reply.
    pub is_outage: bool,
}

/// The requests of this replica that wait for a permit of one strict limit.
#[derive(Debug, Default)]
pub(crate) struct StrictQueue {
    /// Locked by the first request in the queue. The lock is fair, so the order of arrival is kept.
    pub(super) front: Mutex<()>,
    waiting: AtomicUsize,
    pub(super) wake_up: Notify,
}

/// A request's entry in the queue. Dropping it removes the entry.
pub(super) struct QueueEntry<'l>(&'l StrictQueue);

impl StrictQueue {
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Wakes the first request in the queue, because a permit may be free.
    pub(crate) fn wake_first(&self) {
        self.wake_up.notify_one();
    }

    /// Adds a request to the queue. Returns `None` if `most` requests are waiting.
    pub(super) fn join(&self, most: u32) -> Option<QueueEntry<'_>> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let one_more = |waiting| (waiting < most).then(|| waiting + 1);
        let joined = self.waiting.fetch_update(Relaxed, Relaxed, one_more);
        // A full queue gives no `QueueEntry`: its drop would remove another request's entry.
        joined.is_ok().then(|| QueueEntry(self))
    }
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}
