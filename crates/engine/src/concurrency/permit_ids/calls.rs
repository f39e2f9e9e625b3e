//! Acquires, renews and releases permits by request id.

use super::{SWEEP_INTERVAL, record_no_permits};
use crate::budgets::BudgetUse;
use crate::concurrency::path::{PermitLifetime, RequestStart};
use crate::fleet::forwarding::IdState;
use crate::kernel::concurrency::ReportedOutcome;
use crate::kernel::concurrency::permit_registry::{RegisterOutcome, ReleaseOutcome};
use crate::kernel::decision::Check;
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Event as _, PermitIdEvent};
use crate::{AdmissionOutcome, CheckError, Engine, RequestPermits};
use std::net::IpAddr;

/// A request id with a pending acquire. Dropping it frees the id. Unless `has_permits` is set, the
/// drop also records that the id has no permits.
struct IdClaim<'e> {
    engine: &'e Engine,
    id: Box<str>,
    /// `true` if the id got permits. They may have ended since.
    has_permits: bool,
}

impl Drop for IdClaim<'_> {
    fn drop(&mut self) {
        let mut ids = self.engine.permit_ids.0.lock();
        ids.unclaim(&self.id);
        // Under the same lock as `unclaim`. Otherwise another acquire with this id could come in
        // between, and this record would consume its release.
        if !self.has_permits {
            record_no_permits(&mut ids, self.engine.clock().steady(), &self.id);
        }
    }
}

impl Engine {
    /// Acquires permits and stores them under `id` until the release or until they expire.
    ///
    /// Works like [`Engine::admit`], but only the descriptors of `covered`, a part of the check,
    /// need permits. `descriptor` is the index of the descriptor that contains the id, for errors.
    ///
    /// # Errors
    /// As [`Engine::admit`]. [`CheckError::BadId`] if an acquire with the id waits, or the id has
    /// permits. Nothing is acquired then.
    pub async fn acquire<'q>(
        &self,
        id: (&str, usize),
        covered: &Check<'q>,
        question: &Check<'q>,
        patience: Option<Nanos>,
    ) -> Result<AdmissionOutcome, CheckError> {
        let start = RequestStart { covered, budgets: BudgetUse::Charge };
        self.acquire_and_use(id, start, question, patience).await
    }

    /// Like [`Engine::acquire`], and uses budgets as `start` says.
    ///
    /// # Errors
    /// As [`Engine::acquire`], and [`Engine::admit_request`].
    pub async fn acquire_and_use<'q>(
        &self,
        (id, descriptor): (&str, usize),
        start: RequestStart<'_, 'q>,
        question: &Check<'q>,
        patience: Option<Nanos>,
    ) -> Result<AdmissionOutcome, CheckError> {
        // Claimed first, so that an acquire with an id in use changes no counter.
        let Some(claim) = self.claim(id) else {
            PermitIdEvent::InUse.emit();
            let why = "this id is in flight already: one id is for one request";
            return Err(CheckError::BadId { descriptor, why });
        };
        let admitted =
            self.admit_request(start, question, patience, PermitLifetime::MaxDuration).await?;
        Ok(match admitted {
            AdmissionOutcome::Decided(answer, permits) if !permits.is_empty() => {
                self.store_permits(claim, permits);
                AdmissionOutcome::Decided(answer, RequestPermits::default())
            }
            other => other,
        })
    }

    /// Records that the request `id` needs no permits, so that its release does not count as an
    /// early release. Has no effect if an acquire with the id waits, or the id has permits.
    pub fn record_without_permits(&self, id: &str) {
        drop(self.claim(id));
    }

    fn claim(&self, id: &str) -> Option<IdClaim<'_>> {
        let id = self.permit_ids.claim(self.clock().steady(), id.into())?;
        Some(IdClaim { engine: self, id, has_permits: false })
    }

    /// Stores `permits` under the claimed id. Releases them at once if an early release arrived.
    fn store_permits(&self, mut claim: IdClaim<'_>, permits: RequestPermits) {
        claim.has_permits = true;
        let now = self.clock().steady();
        let until = now.plus(permits.longest_lifetime().unwrap_or_default());
        let acquired = self.permit_ids.0.lock().acquire(now, claim.id.clone(), until, permits);
        let event = match acquired {
            RegisterOutcome::Registered => PermitIdEvent::Acquired,
            RegisterOutcome::AlreadyReleased(_) => PermitIdEvent::AlreadyReleased,
            // Unreachable: a claimed id has no other permits.
            RegisterOutcome::AlreadyRegistered(_) => PermitIdEvent::InUse,
        };
        event.emit();
    }

    /// Releases the permits of `id`, or remembers an early release. `rtt` is the latency that the
    /// proxy measured. Returns `false` if the id had no permits, or they had expired.
    pub fn release(
        &self,
        id: &str,
        source: Option<IpAddr>,
        outcome: impl Into<ReportedOutcome>,
        rtt: Option<Nanos>,
    ) -> bool {
        let released = self.permit_ids.0.lock().release(self.clock().steady(), &id.into(), &source);
        let event = match &released {
            ReleaseOutcome::Released(permits) if permits.is_empty() => {
                PermitIdEvent::WithoutPermits
            }
            ReleaseOutcome::Released(_) => PermitIdEvent::Released,
            ReleaseOutcome::EarlyRelease => PermitIdEvent::EarlyRelease,
            ReleaseOutcome::TableFull => PermitIdEvent::EarlyReleaseDropped,
        };
        event.emit();
        let ReleaseOutcome::Released(permits) = released else { return false };
        permits.release_all(outcome.into(), rtt)
    }

    /// Like [`Engine::release`], but does not remember an early release.
    pub(crate) fn release_known(
        &self,
        id: &str,
        outcome: ReportedOutcome,
        rtt: Option<Nanos>,
    ) -> IdState {
        let released = {
            let (mut ids, id) = (self.permit_ids.0.lock(), id.into());
            if ids.value_mut(&id).is_none() {
                return IdState::Unknown;
            }
            ids.release(self.clock().steady(), &id, &None)
        };
        match released {
            ReleaseOutcome::Released(permits) if permits.is_empty() => {
                PermitIdEvent::WithoutPermits.emit();
                IdState::NoPermits
            }
            ReleaseOutcome::Released(permits) => {
                PermitIdEvent::Released.emit();
                if permits.release_all(outcome, rtt) {
                    IdState::HadPermits
                } else {
                    IdState::NoPermits
                }
            }
            ReleaseOutcome::EarlyRelease | ReleaseOutcome::TableFull => IdState::Unknown,
        }
    }

    /// Returns the time within which `id` must be renewed to keep all its permits. `None` if it has
    /// none.
    #[must_use]
    pub fn renewal_interval(&self, id: &str) -> Option<Nanos> {
        self.permit_ids.0.lock().value_mut(&id.into())?.shortest_lifetime()
    }

    /// Restarts the deadlines of the permits of `id`, because its request is still in flight.
    /// Returns `false` if the id has no permits, or one has expired. The other permits are renewed
    /// even then.
    pub fn renew(&self, id: &str) -> bool {
        let (mut ids, id) = (self.permit_ids.0.lock(), id.into());
        let Some(permits) = ids.value_mut(&id) else { return false };
        let is_whole = permits.renew();
        let is_left = is_whole || permits.last_acquired_at().is_some();
        let keep = permits.longest_lifetime().filter(|_| is_left);
        // The clock is read under the lock, because other calls may move the same deadline.
        let renewed = keep.is_some_and(|keep| ids.renew(&id, self.clock().steady().plus(keep)));
        if renewed {
            PermitIdEvent::Renewed.emit();
        }
        renewed && is_whole
    }

    /// Returns `true` if `id` has permits at this replica, and a share expired after their acquire.
    #[must_use]
    pub fn is_fenced(&self, id: &str) -> bool {
        let mut ids = self.permit_ids.0.lock();
        ids.value_mut(&id.into()).is_some_and(|permits| permits.is_fenced())
    }

    /// Returns the time since `id` acquired its permits. `None` if it has none.
    #[must_use]
    pub fn in_flight_for(&self, id: &str) -> Option<Nanos> {
        let since = self
            .permit_ids
            .0
            .lock()
            .value_mut(&id.into())
            .and_then(|permits| permits.last_acquired_at())?;
        Some(self.clock().steady().since(since))
    }

    /// Returns the number of remembered early releases, and the bound on this number.
    #[must_use]
    pub fn early_releases(&self) -> (usize, u32) {
        let ids = self.permit_ids.0.lock();
        (ids.early_release_count(), ids.limits().total)
    }

    /// Releases expired permits, and removes expired ids and records of proxies, forever.
    pub async fn expire_forever(&self) {
        tokio::join!(self.concurrency_limits.sweep_forever(), self.forget_ids_forever());
    }

    async fn forget_ids_forever(&self) {
        let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            while self.forget_id() {}
            self.proxies().sweep(self.clock().steady());
        }
    }

    /// Removes the next expired id with its permits. Returns `false` if there is none.
    fn forget_id(&self) -> bool {
        let Some((_, permits)) = self.permit_ids.0.lock().remove_overdue(self.clock().steady())
        else {
            return false;
        };
        if !permits.is_empty() {
            PermitIdEvent::Expired.emit();
        }
        true
    }
}
