//! The interface of the core that decides checks. This version allows every check: the core, which
//! borrows hits from Sluicegate, replaces it in the next commit.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_descriptors::DescriptorEntries;
use sluicegate_descriptors::filter_config::{FailureMode, ServiceConfig};
use smallvec::SmallVec;

/// The checks of all filters with one service address and the same TLS files.
#[derive(Debug)]
pub struct Limiter;

/// The service cannot be used as configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimiterError {
    /// The thread that talks to the service did not start.
    #[error("needs a thread, which did not start: {0}; raise the limit on threads")]
    Thread(String),
}

/// One check.
#[derive(Clone, Copy, Debug)]
pub struct Check<'c, 'd> {
    /// The domain of the descriptors.
    pub domain: &'c str,
    /// The descriptors; at least one.
    pub descriptors: &'c [DescriptorEntries<'d>],
    /// The longest time until the answer.
    pub deadline: Duration,
    /// The answer without the service.
    pub failure: FailureMode,
}

/// A check that is decided, or waits for the service.
#[derive(Debug)]
pub enum Started {
    /// The answer from held balances.
    Decided(Answer),
    /// The answer is pending.
    Waiting(PendingAnswer),
}

/// An answer that is pending. Dropping it cancels the wait.
#[derive(Debug)]
pub struct PendingAnswer(std::convert::Infallible);

/// The decision of a check.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The verdict, and whether it is that of the service.
    pub verdict: Verdict,
    /// The path of the rule that denied.
    pub denied_by: Option<Arc<str>>,
    /// The paths of the rules that decided, with `true` if the rule allowed.
    pub rules: SmallVec<[(Arc<str>, bool); 2]>,
    /// The time until the same check would be allowed.
    pub retry_after: Option<Duration>,
    /// The limit for the rate limit headers.
    pub reported: Option<ReportedLimit>,
}

/// The verdict of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The limits allow the request.
    Allow,
    /// A limit denies the request.
    Deny,
    /// The service did not answer, and the failure mode allows the request.
    FallbackAllow,
    /// The service did not answer, and the failure mode denies the request.
    FallbackDeny,
}

/// The limit that rate limit headers report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedLimit {
    /// The requests per period.
    pub requests: u32,
    /// The period.
    pub period: Duration,
    /// The hits left now.
    pub remaining: u64,
    /// The time until the counter is empty.
    pub reset_after: Duration,
}

impl Limiter {
    /// Returns the limiter of this service, and connects if it is new. Never blocks. `name` is the
    /// name of this proxy for operators.
    ///
    /// # Errors
    /// [`LimiterError::Thread`].
    pub fn connect(_service: &ServiceConfig, _name: &str) -> Result<Arc<Self>, LimiterError> {
        Ok(Arc::new(Self))
    }

    /// Starts a check.
    #[must_use]
    pub fn start(&self, _check: &Check<'_, '_>) -> Started {
        Started::Decided(Answer {
            verdict: Verdict::Allow,
            denied_by: None,
            rules: SmallVec::new(),
            retry_after: None,
            reported: None,
        })
    }

    /// Returns the hits borrowed since the last call.
    #[must_use]
    pub fn take_borrowed_hits(&self) -> u64 {
        0
    }
}

impl PendingAnswer {
    /// Runs `wake` once, on any thread, when the answer is known or the deadline passed.
    pub fn wake_with(&self, _wake: Box<dyn FnOnce() + Send>) {
        match self.0 {}
    }

    /// Returns the answer, or `None` if it is pending.
    #[must_use]
    pub fn take(&self) -> Option<Answer> {
        match self.0 {}
    }
}
