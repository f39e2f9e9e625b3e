//! The decision of a check: its types, and the modules that make it.
//!
//! Guarantees:
//! - Each check is planned once and counted once.
//!
//! Not covered:
//! - Lease balances (see [`crate::engine::lease`]) and permits
//!   (see [`crate::engine::concurrency`]).

mod decision;
mod decision_log;
pub(super) mod deny_cache;
mod fallback;
pub(super) mod fallback_debt;
pub(super) mod local_fallback;
pub mod local_share;
pub(super) mod path;
pub(super) mod plan;
mod retry_after;
mod rule_stats;
pub(super) mod stale_charges;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::kernel::decision::{DescriptorDecision, Reason, StoreFailure, Verdict, VoteGroup};
use crate::kernel::units::{Nanos, Revision};

/// The decision for one check.
#[derive(Debug)]
pub struct Decision {
    /// The overall verdict, after global shadow mode.
    pub verdict: Verdict,
    /// One status for each descriptor, in the order of the check.
    pub statuses: LimitStatuses,
    /// The index in `statuses` of the status that response headers describe.
    pub binding: Option<usize>,
    /// After a denial, the wait until the same check would be allowed
    /// if no other check came. `None` if waiting does not help.
    pub retry_after: Option<Nanos>,
    /// `true` if global shadow mode turned a denial into an allowed check.
    pub is_shadowed: bool,
    /// The revision of the configuration that decided.
    pub revision: Revision,
    /// The instant of the decision.
    pub now: Nanos,
}

impl Decision {
    /// Returns a decision that allows the check and has no statuses yet.
    #[must_use]
    pub fn allow(revision: Revision, now: Nanos) -> Self {
        let (verdict, statuses) = (Verdict::Allow, LimitStatuses::new());
        let (binding, retry_after, shadowed) = (None, None, false);
        Self { verdict, statuses, binding, retry_after, is_shadowed: shadowed, revision, now }
    }
}

/// The statuses of a check, one for each descriptor.
pub type LimitStatuses = SmallVec<[LimitStatus; 2]>;

/// The decision for one descriptor.
#[derive(Debug)]
pub struct LimitStatus {
    /// The verdict with its reason, limit and retry-after.
    pub decision: DescriptorDecision,
    /// The metadata of the rule.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
}

impl LimitStatus {
    /// The status of a descriptor without a limit.
    // A constant, because one copy of the whole value is faster than a value built field by field.
    const UNLIMITED: Self = Self {
        decision: DescriptorDecision::uncounted(Reason::NoLimit, VoteGroup::Enforced),
        metadata: None,
    };
}

/// The reason why a check has no decision. No counter changed, unless a store failed to reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The domain is empty. Same error as envoyproxy/ratelimit, because clients know it.
    #[error("the domain must not be empty")]
    EmptyDomain,
    /// The check has no descriptors. Same error as envoyproxy/ratelimit.
    #[error("the list of descriptors must not be empty")]
    NoDescriptors,
    /// No configuration is loaded. Same error as envoyproxy/ratelimit.
    #[error("no limits are loaded; see the log or /config for what is wrong with them")]
    NoConfig,
    /// The check has too many descriptors.
    #[error(
        "{got} descriptors in one question; at most {most} are answered: ask the rest in another"
    )]
    TooManyDescriptors {
        /// The number of descriptors in the check.
        got: usize,
        /// The largest number allowed.
        most: usize,
    },
    /// The descriptors of the check have too many entries in total.
    #[error("{got} entries in one question; at most {most} are answered: ask the rest in another")]
    TooManyEntries {
        /// The number of entries in the check.
        got: usize,
        /// The largest number allowed.
        most: usize,
    },
    /// The key or value of an entry is too long.
    #[error(
        "descriptor {descriptor}: an entry of {got} bytes; a key or value has less than {most}"
    )]
    EntryTooLong {
        /// The index of the descriptor, from 0.
        descriptor: usize,
        /// The length in bytes.
        got: usize,
        /// The shortest length that is refused, in bytes.
        most: usize,
    },
    /// `hits_addend` is 2^63 or more.
    #[error("descriptor {descriptor}: hits_addend {got} is 2^63 or more")]
    HitsTooLarge {
        /// The index of the descriptor, from 0.
        descriptor: usize,
        /// The `hits_addend` of the descriptor.
        got: u64,
    },
    /// A limit override has an unknown unit.
    #[error(
        "descriptor {descriptor}: {got} is not a unit for a limit in a request; \
         1 SECOND, 2 MINUTE, 3 HOUR, 4 DAY, 5 MONTH, 6 YEAR and 7 (week) are"
    )]
    UnknownUnit {
        /// The index of the descriptor, from 0.
        descriptor: usize,
        /// The number of the unit in the request.
        got: i32,
    },
    /// `is_negative_hits` is set while the setting `limits.refunds` is off.
    #[error(
        "descriptor {descriptor}: is_negative_hits is refused unless the setting limits.refunds is on"
    )]
    RefundsDisabled {
        /// The index of the descriptor, from 0.
        descriptor: usize,
    },
    /// A reserved descriptor entry has an invalid request id, or is used in a way that is not
    /// allowed.
    #[error("descriptor {descriptor}: {why}")]
    BadId {
        /// The index of the descriptor, from 0.
        descriptor: usize,
        /// The error, for the caller.
        why: &'static str,
    },
    /// The store did not reply, and a limit has `on_backend_failure:
    /// error`. After a timeout the store may still have made the charge.
    #[error(
        "the store of counters did not answer ({}), and the limit's on_backend_failure is error",
        .0.as_str()
    )]
    StoreUnavailable(StoreFailure),
}
