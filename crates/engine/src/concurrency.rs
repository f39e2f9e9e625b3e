//! The concurrency limits of this replica: the limits that cover a check, and its permits.
//!
//! Not covered:
//! - Acquiring and releasing permits, and queues (see [`sluicegate_concurrency::limits`]).

pub(crate) mod bucket_name;
pub mod path;
mod permit_collector;
pub(super) mod permit_ids;
pub mod request_permits;
mod requester;
pub(super) mod terms;
pub mod usage;
mod wait_deadlines;

pub use requester::RequestersInUse;
pub use sluicegate_concurrency::limits::queue_time::{with_queue_slots, with_queue_time};
pub use sluicegate_concurrency::limits::*;

use crate::telemetry::trace;

/// The default for the largest number of buckets.
pub const DEFAULT_MAX_BUCKETS: usize = 100_000;

/// Starts the trace span of a wait in a queue.
pub(super) fn start_queue_span() -> QueueSpan {
    let span = trace::stage_span(trace::CheckStage::Queue);
    span.is_recorded().then(|| Box::new(span) as _)
}
