//! The deadlines until which a check may wait for its permits.

use crate::kernel::units::Nanos;

/// The start of a check, and the deadlines of its waits in queues and for the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitDeadlines {
    pub(super) started_at: Nanos,
    pub(super) queue_deadline: Option<Nanos>,
    pub(super) store_deadline: Option<Nanos>,
}

impl WaitDeadlines {
    /// Creates the deadlines of a check from its start and timeout. A timeout of zero disables
    /// queueing, but sets no deadline for the store.
    pub(super) fn starting_at(started_at: Nanos, timeout: Option<Nanos>) -> Self {
        let end = timeout.map(|patience| started_at.plus(patience));
        Self {
            started_at,
            queue_deadline: end,
            store_deadline: end.filter(|end| started_at < *end),
        }
    }
}

pub(super) fn time_left(now: Nanos, end: Option<Nanos>) -> Nanos {
    end.map_or(Nanos(u64::MAX), |end| end.since(now))
}
