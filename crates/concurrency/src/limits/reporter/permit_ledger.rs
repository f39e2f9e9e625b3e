//! The permits of strict limits that this replica got from the store: their ids, their timing, and
//! the releases that the store has not confirmed.
//!
//! Guarantees:
//! - The id of a permit is unique in the fleet.
//! - The number of unreported releases is bounded.
//!
//! Not covered:
//! - Reports of permits in use: see [`super::permits`].

use std::collections::VecDeque;
use std::collections::vec_deque::Drain;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use siphasher::sip::SipHasher24;
use tokio::sync::Notify;

use super::share_pace::SharePace;
use crate::host::{ConcurrencyEvent, Host, PermitEvent};
use crate::kernel::units::Nanos;
use crate::limits::strict_limit::StrictQueue;
use crate::store::permits::{PermitId, PermitTiming};

/// The largest number of unreported releases. Beyond it, the store keeps a released permit until
/// the permit's deadline.
const MAX_PENDING_RELEASES: usize = 65_536;

#[derive(Debug)]
pub(crate) struct PermitLedger {
    host: Arc<dyn Host>,
    /// Identifies this process in permit ids. Unique in the fleet.
    incarnation: u64,
    next_number: AtomicU64,
    pace: SharePace,
    released: Mutex<PendingReleases>,
    /// Notified when a release is due.
    pub(super) wake: Notify,
    /// The instant of the last failed report.
    failed_at: Mutex<Option<Nanos>>,
}

/// A released permit that the store may still count.
#[derive(Debug)]
pub(crate) struct ReleasedPermit {
    /// Shared with the bucket, because many releases may wait and a name may be long.
    pub(crate) bucket: Arc<[u8]>,
    pub(crate) queue: Arc<StrictQueue>,
    pub(crate) id: PermitId,
    /// The instant of the next report of this release.
    pub(crate) due: Nanos,
    /// The deadline of the permit in the store.
    pub(crate) store_deadline: Nanos,
    /// `true` if the release must be repeated, because a pending store call may acquire the permit
    /// again.
    pub(crate) is_repeated: bool,
}

/// The unreported releases, at most [`MAX_PENDING_RELEASES`].
#[derive(Debug, Default)]
struct PendingReleases {
    /// Releases that were never reported.
    fresh: VecDeque<ReleasedPermit>,
    /// Releases that are reported again, in the order of `due`.
    repeated: VecDeque<ReleasedPermit>,
}

impl PendingReleases {
    fn add(&mut self, release: ReleasedPermit) {
        if !self.is_full() {
            self.fresh.push_back(release);
        }
    }

    /// Adds a release that is reported again. Callers must pass increasing `due` instants.
    fn add_repeated(&mut self, release: ReleasedPermit) {
        if !self.is_full() {
            self.repeated.push_back(release);
        }
    }

    fn is_full(&self) -> bool {
        MAX_PENDING_RELEASES <= self.fresh.len() + self.repeated.len()
    }

    /// Removes and returns the due releases. Stops at the first release that is not due, so that the
    /// lock is free soon.
    fn take_due(&mut self, now: Nanos) -> Vec<ReleasedPermit> {
        let both = [&mut self.fresh, &mut self.repeated];
        both.into_iter().flat_map(|list| first_due(list, now)).collect()
    }
}

fn first_due(list: &mut VecDeque<ReleasedPermit>, now: Nanos) -> Drain<'_, ReleasedPermit> {
    let due = list.iter().take_while(|release| release.due <= now).count();
    list.drain(..due)
}

impl PermitLedger {
    pub(super) fn new(
        host: Arc<dyn Host>,
        (replica, incarnation): (u64, u64),
        pace: SharePace,
    ) -> Self {
        let name = [replica.to_le_bytes(), incarnation.to_le_bytes()].concat();
        Self {
            host,
            incarnation: SipHasher24::new().hash(&name),
            next_number: AtomicU64::new(0),
            pace,
            released: Mutex::default(),
            wake: Notify::new(),
            failed_at: Mutex::default(),
        }
    }

    pub(crate) const fn heartbeat(&self) -> Nanos {
        self.pace.heartbeat
    }

    /// Returns the time for which the store keeps a permit without a report.
    pub(crate) const fn unreported_lifetime(&self) -> Nanos {
        self.pace.permit_lifetime()
    }

    /// Returns the timing of permits of a strict limit with this `max_duration`. All replicas with
    /// the same heartbeat interval get the same timing.
    pub(crate) fn times(&self, max_duration: Nanos) -> PermitTiming {
        self.pace.permit_timing(max_duration)
    }

    /// Returns the time for which the store keeps a permit with the given local lifetime. It is one
    /// heartbeat interval longer, because a renewal is reported with the next heartbeat.
    pub(crate) fn store_lifetime(&self, local_lifetime: Option<Nanos>) -> Nanos {
        local_lifetime.map_or(self.unreported_lifetime(), |keep| keep.plus(self.heartbeat()))
    }

    pub(crate) fn next_id(&self) -> PermitId {
        PermitId(self.incarnation, self.next_number.fetch_add(1, Relaxed))
    }

    /// Returns a pseudo-random number below the bound, for jitter.
    pub(crate) fn random_below(&self, bound: u64) -> u64 {
        let PermitId(incarnation, number) = self.next_id();
        SipHasher24::new().hash(&(incarnation ^ number).to_le_bytes()) % bound.max(1)
    }

    /// Queues a released permit for the next report.
    pub(crate) fn queue_release(&self, now: Nanos, release: ReleasedPermit) {
        let failed_at = *self.failed_at.lock();
        let unreported = self.unreported_lifetime();
        let has_failed_lately = failed_at.is_some_and(|at| now.since(at) < unreported);
        let is_repeated = release.is_repeated || has_failed_lately;
        let mut store_deadline = release.store_deadline;
        if is_repeated {
            store_deadline = store_deadline.max(now.plus(unreported));
        }
        self.released.lock().add(ReleasedPermit { store_deadline, is_repeated, ..release });
        self.wake.notify_one();
    }

    /// Counts an event of this number of permits.
    pub(crate) fn count(&self, event: PermitEvent, permits: u64) {
        self.host.count(ConcurrencyEvent::Permits(event, permits));
    }

    pub(super) fn record_failed_report(&self, now: Nanos) {
        *self.failed_at.lock() = Some(now);
    }

    /// Removes and returns the releases to report now.
    pub(super) fn take_due(&self, now: Nanos) -> Vec<ReleasedPermit> {
        self.released.lock().take_due(now)
    }

    /// Applies the result of one report of `release`. After a failed report, the release is repeated
    /// until its deadline in the store, even if a later report succeeds.
    pub(super) fn finish_or_repeat(&self, now: Nanos, release: ReleasedPermit, is_confirmed: bool) {
        if is_confirmed {
            release.queue.wake_first();
        }
        if now < release.store_deadline && (release.is_repeated || !is_confirmed) {
            // A store call without a reply may still be executed later.
            let store_deadline = if is_confirmed {
                release.store_deadline.min(now.plus(self.unreported_lifetime()))
            } else {
                release.store_deadline
            };
            // `due` is always one heartbeat interval from now, so the list of repeated releases
            // stays sorted.
            let due = now.plus(self.heartbeat());
            self.released.lock().add_repeated(ReleasedPermit {
                due,
                store_deadline,
                is_repeated: true,
                ..release
            });
        }
    }
}
