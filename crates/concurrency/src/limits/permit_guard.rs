//! A permit of this replica, until it is released.
//!
//! Guarantees:
//! - A permit is released at most once. Dropping its guard releases it, except after
//!   [`PermitGuard::leave_to_deadline`].
//! - A guard that is dropped before [`PermitGuard::start`] also gives back its turn in a limit with a
//!   pace.

use std::sync::Arc;

use sluicegate_lease::clock::Clock;

use crate::kernel::concurrency::limiter::{LimiterEffect, LimiterEvent};
use crate::kernel::concurrency::{Permit, ReportedOutcome, RequestOutcome};
use crate::kernel::units::Nanos;
use crate::limits::bucket::Bucket;

/// A permit that is released when dropped. A release by drop gives no latency sample.
#[derive(Debug)]
pub struct PermitGuard {
    bucket: Arc<Bucket>,
    permit: Permit,
    lifetime: Option<Nanos>,
    clock: Arc<Clock>,
    is_started: bool,
    is_released: bool,
}

impl PermitGuard {
    pub(super) const fn new(
        bucket: Arc<Bucket>,
        permit: Permit,
        lifetime: Option<Nanos>,
        clock: Arc<Clock>,
    ) -> Self {
        Self { bucket, permit, lifetime, clock, is_started: false, is_released: false }
    }

    /// Notes that the request starts now: the permit reached its caller.
    pub const fn start(&mut self) {
        self.is_started = true;
    }

    /// Releases the permit. `rtt` is the latency of the request, if the caller measured it;
    /// otherwise the time since the acquire counts. Returns `false` if the permit had already
    /// expired.
    #[must_use]
    pub fn release(mut self, outcome: impl Into<ReportedOutcome>, rtt: Option<Nanos>) -> bool {
        self.end_permit(outcome.into(), rtt)
    }

    /// Keeps the permit until its deadline, because the end of the request will not be reported to
    /// this process.
    pub fn leave_to_deadline(mut self) {
        self.is_released = true;
        self.bucket.leave_to_deadline(&self.clock, self.permit);
    }

    /// Returns the instant of the acquire. `None` if the permit has expired.
    #[must_use]
    pub fn acquired_at(&self) -> Option<Nanos> {
        self.bucket.acquired_at(&self.clock, self.permit)
    }

    /// Returns `true` if this replica's share of a shared limit expired after the acquire. The store
    /// gives the share to other replicas once `max_duration` has passed, so the request should end
    /// before.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.bucket.is_fenced(&self.clock, self.permit)
    }

    /// Returns the time since the acquire. `None` if the permit has expired.
    #[must_use]
    pub fn age(&self) -> Option<Nanos> {
        self.acquired_at().map(|since| self.clock.steady().since(since))
    }

    /// Returns `true` if other requests wait in the queue of the permit's bucket.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        0 < self.bucket.load().waiting
    }

    /// Returns the time after which an unreleased permit expires. `None` if the end of the request
    /// is always reported.
    #[must_use]
    pub const fn lifetime(&self) -> Option<Nanos> {
        self.lifetime
    }

    /// Restarts the deadline of the permit, because its request is still in flight. Returns `false`
    /// if the permit had already expired.
    #[must_use]
    pub fn renew(&self) -> bool {
        let Some(keep) = self.lifetime else { return true };
        let event = LimiterEvent::Renew { permit: self.permit, lifetime: keep };
        !self.bucket.step(&self.clock, event).contains(&LimiterEffect::Unknown)
    }

    fn end_permit(&mut self, outcome: ReportedOutcome, rtt: Option<Nanos>) -> bool {
        self.is_released = true;
        self.bucket.release(&self.clock, self.permit, outcome, rtt)
    }
}

impl Drop for PermitGuard {
    fn drop(&mut self) {
        if self.is_released {
            return;
        }
        if self.is_started {
            self.end_permit(RequestOutcome::Ignored.into(), None);
        } else {
            self.bucket.give_back(&self.clock, self.permit);
        }
    }
}
