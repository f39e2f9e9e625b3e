//! Permits of strict concurrency limits: each acquire is a store call.
//!
//! Guarantees:
//! - One acquire, or one limit's report, is one step by the store's clock.
//! - A limit with unreadable state stays unchanged and affects no other limit.
//!
//! Not covered:
//! - When a replica acquires and reports (`engine::admit`).
//! - How the store counts ([`crate::kernel::concurrency::permits`]).

use super::Cause;
use super::heartbeat::Name;
pub use crate::kernel::concurrency::permits::{Acquired, Ask, Found, Id, Life, Permits, Times};
use crate::kernel::units::{Nanos, Share};

/// The most permits in one report. A script blocks the store, so a report stays short.
pub const MOST_TOLD: usize = 512;

/// A request for one permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// The bucket of the limit.
    pub bucket: Name,
    /// The permit, the limit and the times.
    pub ask: Ask,
}

/// The reply to a request for one permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The result.
    pub acquired: Acquired,
    /// Permits in use now.
    pub held: Share,
}

/// The permit report of one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// The times, the same at every replica.
    pub times: Times,
    /// Send the report to every node that stores permits.
    /// A node that lost its state then notices at once.
    pub everywhere: bool,
    /// Some of the replica's limits, with at most [`MOST_TOLD`] permits in all.
    pub told: Vec<Told>,
}

/// The permits of one replica at one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The bucket of the limit.
    pub bucket: Name,
    /// Permits in use, each with the time until its deadline.
    pub held: Vec<(Id, Nanos)>,
    /// Released permits.
    pub over: Vec<Id>,
}

/// The reply for one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The changes that the report made.
    pub found: Found,
    /// Permits in use now.
    pub held: Share,
}

/// The reply for each reported limit in order, or why there is none.
pub type AllHeard = Vec<Result<Heard, Cause>>;

impl Round {
    /// Returns the number of permits in the report.
    #[must_use]
    pub fn permits(&self) -> usize {
        self.told.iter().map(|told| told.held.len() + told.over.len()).sum()
    }

    /// Returns the failure `cause` for every limit.
    #[must_use]
    pub fn unheard(&self, cause: Cause) -> AllHeard {
        vec![Err(cause); self.told.len()]
    }
}
