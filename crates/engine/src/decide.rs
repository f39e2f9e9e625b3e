//! The decision of a check: its types, and the modules that make it.
//!
//! Guarantees:
//! - Each check is planned once and counted once.

pub(super) mod charge_decision;
mod charge_stats;
mod counted;
mod decision;
mod decision_log;
pub(super) mod deny_cache;
mod excess;
mod fallback;
pub(super) mod fallback_debt;
mod limit_list;
pub(super) mod limit_plan;
pub(super) mod local_fallback;
pub mod local_share;
pub(super) mod path;
mod peek;
pub(super) mod plan;
pub(super) mod record;
mod retry_after;
mod rule_stats;
pub(super) mod stale_charges;
mod table_plan;

pub use counted::CountedHits;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::config::penalty::DEFAULT_BAN_STATUS;
use crate::kernel::decision::{DescriptorDecision, Reason, StoreFailure, Verdict, VoteGroup};
use crate::kernel::units::{Nanos, Revision};

/// The decision for one check.
#[derive(Debug)]
pub struct Decision {
    /// The overall verdict, after global shadow mode.
    pub verdict: Verdict,
    /// One status for each descriptor, in the order of the check.
    pub statuses: LimitStatuses,
    /// One status for each limit, in the order of the check, if a rule has a list `rate_limits`.
    /// Otherwise empty.
    pub limit_statuses: Vec<LimitStatus>,
    /// The index in `statuses` of the limit that the response headers report.
    pub binding: Option<usize>,
    /// After a denial, the wait until the same check would be allowed without other traffic.
    /// `None` if waiting does not help.
    pub retry_after: Option<Nanos>,
    /// The HTTP status of a denial by a ban; `None` for all other decisions.
    pub ban_status: Option<u16>,
    /// After a denial, the path of the rule that denied. `None` if a limit override denied.
    pub denied_by: Option<Arc<str>>,
    /// The path of the first rule in shadow mode that would have denied, for a rate limit or a
    /// concurrency limit.
    pub shadow_denied_by: Option<Arc<str>>,
    /// `true` if global shadow mode turned a denial into an allowed check.
    pub is_shadowed: bool,
    /// The revision of the configuration that decided.
    pub revision: Revision,
    /// The instant of the decision.
    pub now: Nanos,
}

impl Decision {
    /// Creates a decision that allows the check and has no statuses yet.
    #[must_use]
    pub fn allow(revision: Revision, now: Nanos) -> Self {
        let (verdict, statuses) = (Verdict::Allow, LimitStatuses::new());
        let (binding, retry_after, denied_by, is_shadowed) = (None, None, None, false);
        Self {
            verdict,
            statuses,
            limit_statuses: Vec::new(),
            binding,
            retry_after,
            ban_status: None,
            denied_by,
            shadow_denied_by: None,
            is_shadowed,
            revision,
            now,
        }
    }

    /// Returns the HTTP status of a denial, for protocols that carry one.
    #[must_use]
    pub const fn deny_status(&self) -> u16 {
        match self.ban_status {
            Some(status) => status,
            None => DEFAULT_BAN_STATUS,
        }
    }

    /// Returns the status of each limit; a descriptor without a limit has one, too.
    #[must_use]
    #[inline]
    pub fn all_limits(&self) -> &[LimitStatus] {
        if self.limit_statuses.is_empty() { &self.statuses } else { &self.limit_statuses }
    }
}

/// The statuses of a check, one for each descriptor.
pub type LimitStatuses = SmallVec<[LimitStatus; 2]>;

/// The decision for one descriptor, or for one of its limits.
#[derive(Clone, Debug)]
pub struct LimitStatus {
    /// The verdict with its reason, limit and retry-after.
    pub decision: DescriptorDecision,
    /// The free-form metadata of the matching rule.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
}

impl LimitStatus {
    // A constant, because one copy of the whole value is faster than a value built field by field.
    const UNLIMITED: Self = Self {
        decision: DescriptorDecision::uncounted(Reason::NoLimit, VoteGroup::Enforced),
        metadata: None,
    };
}

/// The reason why a check got no decision. No counter changed, except after a store timeout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The domain is empty. The text is that of envoyproxy/ratelimit, because clients match it.
    #[error("the domain must not be empty")]
    EmptyDomain,
    /// The check has no descriptors. The text is that of envoyproxy/ratelimit.
    #[error("the list of descriptors must not be empty")]
    NoDescriptors,
    /// No configuration is loaded.
    #[error("no limits are loaded; see the log, or /config on the admin port")]
    NoConfig,
    /// The check has too many descriptors.
    #[error("{got} descriptors in one check; the maximum is {most}: send the rest separately")]
    TooManyDescriptors {
        /// The number of descriptors in the check.
        got: usize,
        /// The largest number allowed.
        most: usize,
    },
    /// The descriptors of the check have too many entries in total.
    #[error("{got} entries in one check; the maximum is {most}: send the rest separately")]
    TooManyEntries {
        /// The number of entries in the check.
        got: usize,
        /// The largest number allowed.
        most: usize,
    },
    /// The key of an entry is too long.
    #[error("descriptor {descriptor}: a key of {got} bytes; it must have less than {most}")]
    EntryTooLong {
        /// The index of the descriptor, from 0.
        descriptor: usize,
        /// The length in bytes.
        got: usize,
        /// The shortest refused length, in bytes.
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
        "descriptor {descriptor}: {got} is not a unit for a limit override; use 1 SECOND, \
         2 MINUTE, 3 HOUR, 4 DAY, 5 MONTH, 6 YEAR or 7 (week)"
    )]
    UnknownUnit {
        /// The index of the descriptor, from 0.
        descriptor: usize,
        /// The unit's number in the request.
        got: i32,
    },
    /// The descriptor is a refund (`is_negative_hits`), and the setting `limits.refunds` is off.
    #[error(
        "descriptor {descriptor}: is_negative_hits is refused; turn the setting limits.refunds on"
    )]
    RefundsDisabled {
        /// The index of the descriptor, from 0.
        descriptor: usize,
    },
    /// A reserved descriptor entry has an invalid request id or is not allowed here.
    #[error("descriptor {descriptor}: {why}")]
    BadId {
        /// The index of the descriptor, from 0.
        descriptor: usize,
        /// The error text for the caller.
        why: &'static str,
    },
    /// The store did not reply or is full, and a limit or budget has `on_store_failure: error`. After
    /// a timeout the store may still have made the charge.
    #[error("{}; on_store_failure can allow or deny checks meanwhile", store_problem(*.0))]
    StoreUnavailable(StoreFailure),
}

fn store_problem(cause: StoreFailure) -> String {
    let problem = match cause {
        StoreFailure::OutOfMemory => "full",
        _ => "unavailable",
    };
    format!("the store is {problem} ({})", cause.as_str())
}
