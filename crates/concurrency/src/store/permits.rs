//! Permits of strict concurrency limits: each acquire is a store call.
//!
//! Guarantees:
//! - One acquire, or the report for one limit, is applied atomically, by the store's clock.
//! - If the store cannot read the state of a limit, that state is unchanged; other limits work.

use super::StoreFailure;
use super::heartbeat::BucketKey;
pub use crate::kernel::concurrency::permit_table::{
    AcquireGate, AcquireOutcome, PermitCorrections, PermitId, PermitTable, PermitTiming,
    StrictAcquire,
};
use crate::kernel::units::{Nanos, Share};

/// The most permits in one permit report: its script blocks Redis, so it must be short.
pub const MAX_PERMITS_PER_REPORT: usize = 512;

/// A request for one permit of a strict concurrency limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrictPermitRequest {
    /// The bucket of the limit.
    pub bucket: BucketKey,
    /// The permit id, the concurrency limit in permits and the permit's lifetime.
    pub permit: StrictAcquire,
}

/// The store's reply to a [`StrictPermitRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrictPermitReply {
    /// The result of the acquire.
    pub result: AcquireOutcome,
    /// The number of permits in use now.
    pub held: Share,
}

/// One replica's report of its permits of strict concurrency limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitReport {
    /// The grace period, the longest silence and the longest lifetime, equal at all replicas.
    pub times: PermitTiming,
    /// True if the report goes to every Redis node that stores permits, so that a node without a
    /// permit of this replica also detects that it lost its state.
    pub to_all_nodes: bool,
    /// The reported limits, with at most [`MAX_PERMITS_PER_REPORT`] permits in all.
    pub limits: Vec<LimitPermits>,
}

/// One replica's permits of one concurrency limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitPermits {
    /// The bucket of the limit.
    pub bucket: BucketKey,
    /// Permits in use, each with the time until its deadline.
    pub in_use: Vec<(PermitId, Nanos)>,
    /// Permits that the replica released since its last report.
    pub released: Vec<PermitId>,
    /// Set if a proxy reports permits that the serving replica does not know: the store renews
    /// them, but adds none.
    pub is_claimed: bool,
}

/// The store's reply to [`LimitPermits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitPermitsReply {
    /// The changes that the report made to the permits in the store.
    pub changes: PermitCorrections,
    /// The number of permits in use now.
    pub held: Share,
}

/// The reply for each reported limit, in order, or the store failure.
pub type PermitReportReply = Vec<Result<LimitPermitsReply, StoreFailure>>;

impl PermitReport {
    /// Returns the number of permits in the report.
    #[must_use]
    pub fn permit_count(&self) -> usize {
        self.limits.iter().map(|limit| limit.in_use.len() + limit.released.len()).sum()
    }

    /// Returns a reply in which every limit of this report failed with `cause`.
    #[must_use]
    pub fn failed_reply(&self, cause: StoreFailure) -> PermitReportReply {
        vec![Err(cause); self.limits.len()]
    }
}
