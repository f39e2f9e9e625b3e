//! The permits of one request, which are renewed and released together.

use smallvec::SmallVec;

use crate::concurrency::PermitGuard;
use crate::kernel::concurrency::ReportedOutcome;
use crate::kernel::units::Nanos;

/// The permits of a request in flight. Dropping them releases them without a latency sample.
#[derive(Debug, Default)]
#[must_use = "what is dropped is given back"]
pub struct RequestPermits(pub(super) SmallVec<[PermitGuard; 1]>);

impl RequestPermits {
    /// Notes that the request starts now. Until then, a drop also gives back turns of limits with a
    /// pace.
    pub(super) fn started(mut self) -> Self {
        self.0.iter_mut().for_each(PermitGuard::start);
        self
    }

    /// Releases all permits. `rtt` is the latency of the request, if the caller measured it;
    /// otherwise the time since the acquire counts.
    pub fn release(self, outcome: impl Into<ReportedOutcome>, rtt: Option<Nanos>) {
        // The result does not matter: `false` only means that there was nothing left to release.
        let _held = self.release_all(outcome.into(), rtt);
    }

    /// Releases all permits. Returns `false` if there were none, or all of them had expired.
    #[must_use]
    pub fn release_all(self, outcome: ReportedOutcome, rtt: Option<Nanos>) -> bool {
        let rtt = rtt.or_else(|| self.common_age());
        self.0.into_iter().map(|held| held.release(outcome, rtt)).filter(|held| *held).count() != 0
    }

    /// Restarts the deadlines of the permits, because the request is still in flight. Returns
    /// `false` if there are no permits, or one has expired.
    #[must_use]
    pub fn renew(&self) -> bool {
        // Renew all permits: `all()` would stop at the first expired one.
        self.0.iter().filter(|held| !held.renew()).count() == 0 && !self.is_empty()
    }

    /// Returns `true` if there are permits and none has expired.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.is_empty() && self.0.iter().all(|held| held.acquired_at().is_some())
    }

    /// Returns `true` if a share expired after one of these permits was acquired under it.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.0.iter().any(PermitGuard::is_fenced)
    }

    /// Returns the time until the first fenced permit expires. Then another replica may get its
    /// share. 0 if no permit is fenced, or the time has passed.
    #[must_use]
    pub fn fenced_time_left(&self) -> Nanos {
        let fenced = self.0.iter().filter(|held| held.is_fenced());
        let left = |held: &PermitGuard| Some(held.lifetime()?.since(held.age()?));
        fenced.filter_map(left).min().unwrap_or_default()
    }

    /// Returns the latest acquire instant of the permits that have not expired.
    #[must_use]
    pub fn last_acquired_at(&self) -> Option<Nanos> {
        self.0.iter().filter_map(PermitGuard::acquired_at).max()
    }

    /// Returns the time since the last of several acquires. The age of an earlier permit would
    /// include the wait for a later one. `None` for a single permit, which measures its own
    /// latency.
    fn common_age(&self) -> Option<Nanos> {
        let several = self.0.get(1).is_some();
        several.then(|| self.0.iter().filter_map(PermitGuard::age).min()).flatten()
    }

    /// Returns the longest lifetime (`max_duration`) of the permits. Without a renewal, all of them
    /// have expired after this time.
    #[must_use]
    pub fn longest_lifetime(&self) -> Option<Nanos> {
        self.0.iter().filter_map(PermitGuard::lifetime).max()
    }

    /// Returns the shortest lifetime (`max_duration`) of the permits. To keep all of them, they
    /// must be renewed within this time.
    #[must_use]
    pub fn shortest_lifetime(&self) -> Option<Nanos> {
        self.0.iter().filter_map(PermitGuard::lifetime).min()
    }

    /// Returns `true` if another request waits in a queue for one of these permits.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        self.0.iter().any(PermitGuard::has_waiters)
    }

    /// Keeps the permits until their deadlines, because this process stops while the requests
    /// continue. Permits of a local limit count while the process runs. Permits of a fleet-wide
    /// limit count until `max_duration` is over.
    pub fn leave_to_deadlines(self) {
        self.0.into_iter().for_each(PermitGuard::leave_to_deadline);
    }

    /// Returns `true` if there are no permits: no concurrency limit covers the check.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
