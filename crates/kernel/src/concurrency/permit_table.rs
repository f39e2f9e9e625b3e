//! The store's permits of one concurrency limit in strict mode: every acquire is a store call.
//!
//! ```
//! use sluicegate_kernel::concurrency::permit_table::{AcquireOutcome, PermitId, PermitTable};
//! use sluicegate_kernel::concurrency::permit_table::{PermitTiming, StrictAcquire};
//! use sluicegate_kernel::units::{Nanos, Share};
//!
//! let [max_silence, grace, max_lifetime] = [2, 4, 60].map(Nanos::from_secs);
//! let timing = PermitTiming { max_silence, grace, max_lifetime };
//! let lifetime = Nanos::from_secs(3);
//! let request =
//!     |number| StrictAcquire { id: PermitId(7, number), limit: Share(1), lifetime, timing };
//! let (mut permits, now, open) = (PermitTable::default(), Nanos::from_secs(1_000), Nanos(0));
//! assert_eq!(permits.acquire(now, open, &request(0)), AcquireOutcome::Acquired);
//! assert_eq!(permits.acquire(now, open, &request(0)), AcquireOutcome::Acquired, "repeated");
//! assert_eq!(permits.acquire(now, open, &request(1)), AcquireOutcome::LimitReached);
//! let later = now.plus(lifetime);
//! assert_eq!(permits.acquire(later, open, &request(1)), AcquireOutcome::Acquired);
//! ```
//!
//! A permit that a replica reports is certainly in use. So every reported permit counts, even above
//! the limit, after the store lost its state.
//!
//! Guarantees:
//! - A new permit never raises the count above the limit.
//! - A permit counts until its release or deadline; each report of its replica renews it.
//! - After a possible loss of state, the store admits nothing until all replicas could report
//!   ([`AcquireGate`]).
//! - Cost: O(log n) for each permit that is acquired, reported or released.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::units::{Nanos, Share};

/// A permit's id, unique in the fleet: the replica's incarnation, and a number unique in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PermitId(pub u64, pub u64);

/// The durations that all replicas use for one concurrency limit in strict mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitTiming {
    /// The time for which a store that may have lost state admits nothing, so that replicas report.
    pub grace: Nanos,
    /// The longest time without any report; after it the store counts its state as lost. It is
    /// shorter than a permit's lifetime by at least one report interval. Otherwise permits could
    /// expire while their requests still run.
    pub max_silence: Nanos,
    /// The longest lifetime of a permit. A later deadline means that the store's clock was set
    /// back.
    pub max_lifetime: Nanos,
}

/// A request for one permit of a concurrency limit in strict mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrictAcquire {
    /// The permit's id. Repeating an acquire with the same id has no further effect.
    pub id: PermitId,
    /// The concurrency limit in permits.
    pub limit: Share,
    /// The permit's lifetime, unless a report renews it.
    pub lifetime: Nanos,
    /// The durations that all replicas use for this limit.
    pub timing: PermitTiming,
}

/// The result of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The permit is in the store's table.
    Acquired,
    /// The limit is reached.
    LimitReached,
    /// The store may have lost state and admits nothing for this duration.
    Closed(Nanos),
}

/// The number of errors in the store's table that a replica's report corrected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PermitCorrections {
    /// The number of reported permits that the table lacked.
    pub restored: u64,
    /// The number of released permits that were still in the table.
    pub freed: u64,
}

/// All permits of one concurrency limit, with their deadlines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermitTable {
    deadline_by_id: BTreeMap<PermitId, Nanos>,
    deadlines: BTreeSet<(Nanos, PermitId)>,
}

impl PermitTable {
    /// Acquires a permit, or renews it if its id is known. A new id is rejected if `closed_for`,
    /// the time for which the store still admits nothing, is above 0.
    pub fn acquire(
        &mut self,
        now: Nanos,
        closed_for: Nanos,
        request: &StrictAcquire,
    ) -> AcquireOutcome {
        self.expire(now);
        if !self.deadline_by_id.contains_key(&request.id) {
            if Nanos(0) < closed_for {
                return AcquireOutcome::Closed(closed_for);
            }
            if request.limit <= self.count() {
                self.clamp_deadlines(now.plus(request.timing.max_lifetime));
                return AcquireOutcome::LimitReached;
            }
        }
        self.insert(request.id, now.plus(request.lifetime));
        AcquireOutcome::Acquired
    }

    /// Applies a replica's report: permits still in use, each with its lifetime, and released ones.
    pub fn apply_report(
        &mut self,
        now: Nanos,
        active: &[(PermitId, Nanos)],
        released: &[PermitId],
    ) -> PermitCorrections {
        self.expire(now);
        let mut corrections = PermitCorrections::default();
        for &(id, lifetime) in active {
            let is_new = self.insert(id, now.plus(lifetime));
            corrections.restored = corrections.restored.saturating_add(u64::from(is_new));
        }
        for id in released {
            corrections.freed = corrections.freed.saturating_add(u64::from(self.remove(id)));
        }
        corrections
    }

    /// Returns the permits of `active` that are in the table, for the report of a proxy whose
    /// history the serving replica does not know.
    #[must_use]
    pub fn listed(&mut self, now: Nanos, active: &[(PermitId, Nanos)]) -> Vec<(PermitId, Nanos)> {
        self.expire(now);
        let is_listed = |(id, _): &&(PermitId, Nanos)| self.deadline_by_id.contains_key(id);
        active.iter().filter(is_listed).copied().collect()
    }

    /// The number of permits. Permits that expired since the last acquire or report still count.
    #[must_use]
    pub fn count(&self) -> Share {
        Share(u64::try_from(self.deadline_by_id.len()).unwrap_or(u64::MAX))
    }

    /// The latest deadline; `None` without permits.
    #[must_use]
    pub fn last_deadline(&self) -> Option<Nanos> {
        self.deadlines.last().map(|&(until, _)| until)
    }

    fn expire(&mut self, now: Nanos) {
        while let Some(&(until, id)) = self.deadlines.first() {
            if now < until {
                return;
            }
            self.remove(&id);
        }
    }

    /// Shortens deadlines to at most `latest`: later ones stem from a clock that was set back.
    fn clamp_deadlines(&mut self, latest: Nanos) {
        while let Some(&(until, id)) = self.deadlines.last() {
            if until <= latest {
                return;
            }
            self.insert(id, latest);
        }
    }

    /// Inserts or renews a permit; `true` if it is new.
    fn insert(&mut self, id: PermitId, until: Nanos) -> bool {
        let is_new = !self.remove(&id);
        self.deadline_by_id.insert(id, until);
        self.deadlines.insert((until, id));
        is_new
    }

    fn remove(&mut self, id: &PermitId) -> bool {
        let until = self.deadline_by_id.remove(id);
        until.is_some_and(|until| self.deadlines.remove(&(until, *id)))
    }
}

/// The gate that rejects acquires while the store's permits may be incomplete. Every replica that
/// reports within the grace period is counted before the next admission. Permits of a crashed
/// replica are lost, because no replica reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcquireGate {
    opens_at: Nanos,
    reported_at: Nanos,
}

impl AcquireGate {
    /// A closed gate, for a store that is new or may have lost its state.
    #[must_use]
    pub const fn closed(now: Nanos, grace: Nanos) -> Self {
        Self { opens_at: now.plus(grace), reported_at: now }
    }

    /// An open gate, for a store without permits. It does not close before the first report.
    #[must_use]
    pub const fn open() -> Self {
        Self { opens_at: Nanos(0), reported_at: Nanos(u64::MAX) }
    }

    /// Returns `true` if the gate allows acquires at `now`.
    #[must_use]
    pub const fn is_open(&self, now: Nanos) -> bool {
        self.opens_at.0 <= now.0
    }

    /// The time until the gate opens, at most the grace period even if the clock jumped. A long
    /// time without reports counts as lost state: permits may have expired in a pause of the store
    /// although their requests still run.
    pub fn closed_for(&mut self, now: Nanos, timing: &PermitTiming) -> Nanos {
        if self.reported_at.plus(timing.max_silence) <= now {
            *self = Self::closed(now, timing.grace);
        }
        self.opens_at = self.opens_at.min(now.plus(timing.grace));
        self.opens_at.since(now)
    }

    /// Records that a replica reported, even if its report was empty.
    pub const fn record_report(&mut self, now: Nanos) {
        self.reported_at = now;
    }
}
