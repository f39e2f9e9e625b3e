//! Permits of strict concurrency limits: each acquire is a store call.
//!
//! Guarantees:
//! - One acquire, or one limit's report, is one step by the store's clock.
//! - A limit with unreadable state stays unchanged and affects no other limit.
//!
//! Not covered:
//! - When a replica acquires and reports (`engine::concurrency`).
//! - How the store counts ([`crate::kernel::concurrency::permit_table`]).

use super::StoreFailure;
use super::heartbeat::BucketKey;
pub use crate::kernel::concurrency::permit_table::{
    AcquireGate, AcquireOutcome, PermitCorrections, PermitId, PermitTable, PermitTiming,
    StrictAcquire,
};
use crate::kernel::units::{Nanos, Share};

/// The most permits in one report. A script blocks the store, so a report stays short.
pub const MAX_PERMITS_PER_REPORT: usize = 512;

/// A request for one permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrictPermitRequest {
    /// The bucket of the limit.
    pub bucket: BucketKey,
    /// The permit, the limit and the times.
    pub permit: StrictAcquire,
}

/// The reply to a request for one permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrictPermitReply {
    /// The result.
    pub result: AcquireOutcome,
    /// Permits in use now.
    pub held: Share,
}

/// The permit report of one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitReport {
    /// The times, the same at every replica.
    pub times: PermitTiming,
    /// Send the report to every node that stores permits.
    /// A node that lost its state then notices at once.
    pub to_all_nodes: bool,
    /// Some of the replica's limits, with at most [`MAX_PERMITS_PER_REPORT`] permits in all.
    pub limits: Vec<LimitPermits>,
}

/// The permits of one replica at one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitPermits {
    /// The bucket of the limit.
    pub bucket: BucketKey,
    /// Permits in use, each with the time until its deadline.
    pub in_use: Vec<(PermitId, Nanos)>,
    /// Released permits.
    pub released: Vec<PermitId>,
}

/// The reply for one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitPermitsReply {
    /// The changes that the report made.
    pub changes: PermitCorrections,
    /// Permits in use now.
    pub held: Share,
}

/// The reply for each reported limit in order, or why there is none.
pub type PermitReportReply = Vec<Result<LimitPermitsReply, StoreFailure>>;

impl PermitReport {
    /// Returns the number of permits in the report.
    #[must_use]
    pub fn permit_count(&self) -> usize {
        self.limits.iter().map(|told| told.in_use.len() + told.released.len()).sum()
    }

    /// Returns the failure `cause` for every limit.
    #[must_use]
    pub fn failed_reply(&self, cause: StoreFailure) -> PermitReportReply {
        vec![Err(cause); self.limits.len()]
    }
}
