//! One limit in mode `strict` at this replica: its parameters, its wake-ups and its snapshot.
//!
//! Not covered:
//! - The queue, and the attempts to acquire a permit (see `limits::strict`).

use tokio::sync::Notify;

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

/// Wakes the requests of this replica that wait for a permit of one strict limit.
#[derive(Debug, Default)]
pub(crate) struct StrictQueue {
    pub(super) wake_up: Notify,
}

impl StrictQueue {
    /// Wakes the first request in the queue, because a permit may be free.
    pub(crate) fn wake_first(&self) {
        self.wake_up.notify_one();
    }
}
