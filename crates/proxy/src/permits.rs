//! The permits of a request.
//!
//! Guarantees:
//! - Permits are released once: by [`Permits::release`], or when they are dropped.

use sluicegate_concurrency::limits::PermitGuard;

use crate::answer::Answer;
use crate::kernel::concurrency::ReportedOutcome;
use crate::kernel::units::Nanos;

/// The permits of one request. Dropping them releases them without a latency sample.
#[derive(Debug, Default)]
pub struct Permits(Vec<PermitGuard>);

impl Permits {
    pub(crate) fn add(&mut self, permit: PermitGuard) {
        self.0.push(permit);
    }

    /// Notes that the request starts now. Until then, a drop also gives back turns of limits with a
    /// pace.
    pub(crate) fn started(mut self) -> Self {
        self.0.iter_mut().for_each(PermitGuard::start);
        self
    }

    /// Returns `true` if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the time since the last permit was acquired. `None` without permits.
    #[must_use]
    pub fn age(&self) -> Option<Nanos> {
        self.0.iter().filter_map(PermitGuard::age).min()
    }

    /// Releases the permits with the outcome of the request. `latency` is that of the upstream;
    /// `None` counts the time since the acquire.
    pub fn release(self, outcome: ReportedOutcome, latency: Option<Nanos>) {
        for permit in self.0 {
            let _was_valid = permit.release(outcome, latency);
        }
    }
}

/// The answer to a request, and its permits. A denied request has no permits.
#[derive(Debug)]
pub struct Admission {
    /// The answer.
    pub answer: Answer,
    /// The permits, which the caller releases at the end of the request.
    pub permits: Permits,
}

impl From<Answer> for Admission {
    fn from(answer: Answer) -> Self {
        Self { answer, permits: Permits::default() }
    }
}
