//! The answer to a request.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::kernel::concurrency::RejectReply;
use crate::kernel::decision::{Reason, RuleVerdict, Verdict};
use crate::kernel::proxy_rule::ConcurrencyRule;

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The verdict on the request; never [`RuleVerdict::ShadowDeny`].
    pub verdict: RuleVerdict,
    /// The path of the rule that denied, if a rule denied.
    pub denied_by: Option<Arc<str>>,
    /// The path of each rule that applied, and `true` if it allowed its descriptor.
    pub rules: SmallVec<[(Arc<str>, bool); 2]>,
    /// The time after which the request is allowed; `None` if it is allowed now, or if the time is
    /// not known.
    pub retry_after: Option<Duration>,
    /// The HTTP status of a denial by a ban; `None` for all other answers.
    pub ban_status: Option<u16>,
    /// Set if a concurrency limit rejected the request.
    pub rejection: Option<Box<PermitRejection>>,
    /// The limit for response headers: the one with the fewest remaining requests.
    pub reported: Option<ReportedLimit>,
}

impl Answer {
    /// The answer to a request that no limit applies to.
    #[must_use]
    pub const fn unlimited() -> Self {
        Self {
            verdict: RuleVerdict::Allow,
            denied_by: None,
            rules: SmallVec::new_const(),
            retry_after: None,
            ban_status: None,
            rejection: None,
            reported: None,
        }
    }

    /// The answer if Sluicegate does not reply: `failure` is the filter's failure rule.
    #[must_use]
    pub fn failed(failure: Verdict) -> Self {
        Self { verdict: RuleVerdict::fallback(failure), ..Self::unlimited() }
    }

    /// The answer to a request that a concurrency limit rejects.
    pub(crate) fn rejected(limit: &ConcurrencyRule, reason: Reason) -> Self {
        let path = Arc::clone(&limit.path);
        Self {
            verdict: RuleVerdict::Deny,
            denied_by: Some(Arc::clone(&path)),
            rules: std::iter::once((path, false)).collect(),
            rejection: Some(Box::new(PermitRejection { reply: limit.reject.clone(), reason })),
            ..Self::unlimited()
        }
    }

    /// Adds the result of one rule. A denied request waits for the longest retry-after of its
    /// rules.
    pub(crate) fn add(&mut self, part: RuleAnswer) {
        self.verdict = self.verdict.and(part.verdict);
        let is_allowed = part.verdict.is_allowed();
        if !is_allowed {
            self.retry_after = self.retry_after.max(part.retry_after);
            self.ban_status = self.ban_status.or(part.ban_status);
        }
        if let Some(path) = part.path {
            if part.verdict == RuleVerdict::Deny && self.denied_by.is_none() {
                self.denied_by = Some(Arc::clone(&path));
            }
            self.rules.push((path, is_allowed));
        }
        self.reported = ReportedLimit::fewest(self.reported, part.reported);
    }
}

/// The rejection of a request by a concurrency limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitRejection {
    /// The response.
    pub reply: RejectReply,
    /// The reason.
    pub reason: Reason,
}

/// The result of the rule of one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuleAnswer {
    pub(crate) verdict: RuleVerdict,
    pub(crate) path: Option<Arc<str>>,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) ban_status: Option<u16>,
    pub(crate) reported: Option<ReportedLimit>,
}

impl RuleAnswer {
    /// The result of a descriptor that no limit applies to.
    pub(crate) const UNLIMITED: Self = Self {
        verdict: RuleVerdict::Allow,
        path: None,
        retry_after: None,
        ban_status: None,
        reported: None,
    };

    /// The result if Sluicegate does not reply: `failure` is the filter's failure rule.
    pub(crate) fn failed(failure: Verdict) -> Self {
        Self { verdict: RuleVerdict::fallback(failure), ..Self::UNLIMITED }
    }
}

/// A limit as response headers report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedLimit {
    /// The requests that are allowed in each period.
    pub requests: u32,
    /// The period.
    pub period: Duration,
    /// The requests that are allowed now.
    pub remaining: u64,
    /// The time until the counter is empty; for a fixed window, until it ends.
    pub reset_after: Duration,
}

impl ReportedLimit {
    /// Returns the limit with fewer remaining requests; `one` if both have as many.
    pub(crate) fn fewest(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        one.into_iter().chain(other).min_by_key(|limit| limit.remaining)
    }
}

#[cfg(test)]
mod tests;
