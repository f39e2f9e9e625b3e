//! One limit in mode `strict` at this replica: its parameters, its queue and its snapshot.
//!
//! Guarantees:
//! - The number of requests in the queue is bounded.
//! - A canceled request leaves the queue.
//!
//! Not covered:
//! - The attempts to acquire a permit (see `limits::strict`).

use std::sync::Arc;

use sluicegate_lease::clock::Clock;
use tokio::sync::Notify;

use crate::kernel::concurrency::Permit;
use crate::kernel::concurrency::limiter::{LimiterConfig, QueueConfig};
use crate::kernel::units::{Nanos, Share};
use crate::limits::bucket::{AcquireStep, Bucket, QueuedRequest};
use crate::limits::{BucketLoad, PermitGuard, PermitRequest};

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
///
/// Each of them needs the only permit of the `gate`, so its order is that of any queue: customers take
/// turns if the limit has fair parts.
#[derive(Debug)]
pub(crate) struct StrictQueue {
    gate: Arc<Bucket>,
    pub(super) wake_up: Notify,
}

impl StrictQueue {
    pub(crate) fn new(request: &PermitRequest<'_>) -> Self {
        let rules = gate_rules(request.rules, None);
        let gate = Bucket::new(&gate_request(request, &rules), 0);
        Self { gate: Arc::new(gate), wake_up: Notify::new() }
    }

    pub(crate) fn waiting(&self) -> usize {
        let BucketLoad { in_flight, waiting, .. } = self.gate.load();
        waiting.saturating_add(usize::try_from(in_flight).unwrap_or(usize::MAX))
    }

    /// Wakes the first request in the queue, because a permit may be free.
    pub(crate) fn wake_first(&self) {
        self.wake_up.notify_one();
    }

    /// Adds a request to the queue with these bounds. Returns `None` if it is full.
    pub(super) fn join(
        &self,
        clock: &Arc<Clock>,
        request: &PermitRequest<'_>,
        queue: QueueConfig,
    ) -> Option<QueuePlace> {
        let rules = gate_rules(request.rules, Some(queue));
        let step = self.gate.try_acquire(clock, &gate_request(request, &rules), None, true);
        match step? {
            AcquireStep::Allowed(permit) => Some(QueuePlace::First(self.front(clock, permit))),
            AcquireStep::Queued(waiting) => Some(QueuePlace::Behind(waiting)),
            AcquireStep::Rejected(_) | AcquireStep::ShareUnknown(_) => None,
        }
    }

    /// Returns the place of the first request in the queue. Dropping it lets the next one follow.
    pub(super) fn front(&self, clock: &Arc<Clock>, permit: Permit) -> PermitGuard {
        PermitGuard::new(Arc::clone(&self.gate), permit, None, Arc::clone(clock))
    }
}

/// The place of a request in the queue. Dropping it leaves the queue.
pub(super) enum QueuePlace {
    /// It alone asks the store.
    First(PermitGuard),
    /// It waits until it is the first one.
    Behind(QueuedRequest),
}

/// The first request in the queue has a permit of the gate, and all others wait for it.
fn gate_rules(rules: &LimiterConfig, queue: Option<QueueConfig>) -> LimiterConfig {
    let behind = |queue: QueueConfig| QueueConfig { size: queue.size.saturating_sub(1), ..queue };
    let queue = queue.map(behind);
    LimiterConfig { queue, fair_keys: rules.fair_keys, ..LimiterConfig::fixed(1) }
}

fn gate_request<'r>(request: &PermitRequest<'r>, rules: &'r LimiterConfig) -> PermitRequest<'r> {
    PermitRequest { rules, permit_lifetime: None, shared: None, ..*request }
}
