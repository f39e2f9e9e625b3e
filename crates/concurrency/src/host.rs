//! The process that enforces concurrency limits, as this crate needs it.

use std::fmt::Debug;
use std::num::NonZeroU32;

use crate::store::fleet::MembershipHeartbeat;

/// The process that enforces concurrency limits with other processes.
pub trait Host: Debug + Send + Sync {
    /// Returns the name of the process, unique in the fleet.
    fn name(&self) -> &str;

    /// Returns the number of processes that share a limit, for a store outage before the first
    /// share.
    fn replicas(&self) -> NonZeroU32;

    /// Returns this process's part of the fleet-wide limit of a bucket, for metrics that are summed
    /// over all processes.
    fn metric_part(&self, bucket: &[u8], limit: u32) -> u32;

    /// Returns the heartbeat that removes the process from the list of live replicas. `None` if the
    /// process is not in the list.
    fn departure(&self) -> Option<MembershipHeartbeat>;

    /// Counts an event.
    fn count(&self, event: ConcurrencyEvent<'_>);
}

/// An event of fleet-wide concurrency limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConcurrencyEvent<'l> {
    /// The share changed.
    Share(ShareChange),
    /// The share of the limit with this path expired before the store replied.
    ShareExpired(&'l str),
    /// An event of this number of permits of strict limits.
    Permits(PermitEvent, u64),
}

/// A change of this replica's share of one limit, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareChange {
    /// The share grew without a handoff.
    Grown,
    /// The share grew after a handoff from other processes.
    HandedOver,
    /// The share shrank.
    Shrunk,
    /// There is no share and the store is unavailable, so `on_store_failure` applies.
    Outage,
}

/// An event of permits of strict limits, which the store counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitEvent {
    /// The store granted a permit.
    Granted,
    /// The store granted no permit, because the limit is reached.
    LimitReached,
    /// The store may have lost the list of permits, so it grants none for a limited time.
    GrantsPaused,
    /// The store did not reply, so `on_store_failure` applies.
    NoReply,
    /// A heartbeat reported a permit that is still in use.
    Renewed,
    /// A heartbeat reported a permit that the store did not know.
    Restored,
    /// The store released a permit.
    Released,
}
