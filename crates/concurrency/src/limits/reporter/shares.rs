//! This replica's reports of its shares of fleet-wide concurrency limits, and the store's replies.
//!
//! Guarantees:
//! - Replicas without shares report too, so that a store that lost its data starts to recover.
//!
//! Not covered:
//! - One round of reports: see [`super::share_round`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use sluicegate_lease::clock::Clock;
use sluicegate_lease::store::StoreFailure;
use tokio::sync::Notify;

use super::share_pace::SharePace;
use super::share_totals::ShareTotals;
use crate::host::Host;
use crate::kernel::coordinator::{ClockReading, HeartbeatReply};
use crate::kernel::units::{Incarnation, Nanos, ReplicaId, Share};
use crate::limits::bucket::Bucket;
use crate::limits::{BucketName, ShareSnapshot};
use crate::store::heartbeat::ShareRoundReply;

/// The number of heartbeat intervals between two reports of a replica without shares. A store that
/// lost its data starts to recover after this time at the latest.
const IDLE_REPORT_HEARTBEATS: u64 = 60;

/// Reports the shares of one incarnation of this replica.
#[derive(Debug)]
pub(super) struct ShareReporter {
    pub(super) replica: ReplicaId,
    pub(super) incarnation: Incarnation,
    pub(super) pace: SharePace,
    last_share_incarnation: AtomicU64,
    pub(super) host: Arc<dyn Host>,
    reported: Mutex<HashMap<BucketName, Arc<Bucket>>>,
    /// Limits with a request that waits for a share and arrived after the limit's last report.
    pub(super) awaited: Mutex<HashMap<BucketName, Arc<Bucket>>>,
    /// Notified when a request waits for a share.
    pub(super) wake: Notify,
    store_status: Mutex<StoreStatus>,
    /// The longest time for which a share or its requests can last, in nanoseconds, over all
    /// configurations so far. 0 without shared limits. The same bound covers limits that only other
    /// replicas use.
    pub(super) longest_use: AtomicU64,
    pub(super) totals: Arc<ShareTotals>,
}

#[derive(Debug, Default)]
struct StoreStatus {
    incarnation: Option<Incarnation>,
    /// The instant of the store's last reply. `None` if the store has no record of this replica.
    replied_at: Option<Nanos>,
    called_at: Option<Nanos>,
    clock: ClockReading,
    is_failing: bool,
    /// The store incarnation for which a recovery from lost data was logged.
    recovering: Option<Incarnation>,
}

impl ShareReporter {
    pub(super) fn new(
        host: Arc<dyn Host>,
        replica: ReplicaId,
        incarnation: Incarnation,
        pace: SharePace,
    ) -> Self {
        Self {
            replica,
            incarnation,
            pace,
            last_share_incarnation: AtomicU64::new(incarnation.0),
            totals: Arc::new(ShareTotals::new(Arc::clone(&host))),
            host,
            reported: Mutex::default(),
            awaited: Mutex::default(),
            wake: Notify::new(),
            store_status: Mutex::default(),
            longest_use: AtomicU64::new(0),
        }
    }

    pub(super) fn expect_longest_use(&self, longest: Nanos) {
        self.longest_use.fetch_max(longest.0, Relaxed);
    }

    pub(super) fn next_incarnation(&self) -> Incarnation {
        Incarnation(self.last_share_incarnation.fetch_add(1, Relaxed).saturating_add(1))
    }

    pub(super) fn store_incarnation(&self) -> Option<Incarnation> {
        self.store_status.lock().incarnation
    }

    pub(super) fn add_bucket(&self, name: &[u8], bucket: &Arc<Bucket>) {
        self.reported.lock().insert(name.into(), Arc::clone(bucket));
        self.awaited.lock().insert(name.into(), Arc::clone(bucket));
        self.wake.notify_one();
    }

    /// Removes `bucket` from the reports, unless a newer bucket has this name.
    pub(super) fn remove_bucket(&self, name: &[u8], bucket: &Bucket) {
        let mut reported = self.reported.lock();
        if reported.get(name).is_some_and(|known| std::ptr::eq(&raw const **known, bucket)) {
            reported.remove(name);
        }
    }

    pub(super) fn bucket_count(&self) -> usize {
        self.reported.lock().len()
    }

    pub(super) fn buckets(&self) -> HashMap<BucketName, Arc<Bucket>> {
        self.reported.lock().clone()
    }

    /// Returns all shares. The next round reports that.
    pub(super) fn return_shares(&self, clock: &Clock) {
        for bucket in self.buckets().values() {
            bucket.return_share(clock);
        }
    }

    pub(super) fn snapshots(&self, clock: &Clock, max: usize) -> Vec<(BucketName, ShareSnapshot)> {
        let mut buckets: Vec<_> = self.buckets().into_iter().collect();
        buckets.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let snapshots = buckets
            .into_iter()
            .filter_map(|(name, bucket)| Some((name, bucket.share_snapshot(clock)?)));
        snapshots.take(max).collect()
    }

    /// Returns this replica's part of the initial limit, for a store outage before the first grant.
    pub(super) fn outage_share(&self, initial_limit: u32) -> Share {
        Share(u64::from(initial_limit / self.host.replicas()))
    }

    /// Returns the store incarnation that granted all shares in use at this replica. `None` if a
    /// share in use has another grant. No report may be pending during this call.
    pub(super) fn common_store_incarnation(
        &self,
        buckets: &HashMap<BucketName, Arc<Bucket>>,
        now: Nanos,
    ) -> Option<Incarnation> {
        let incarnation = self.store_incarnation()?;
        let is_granted_by_store = |bucket: &Arc<Bucket>| match bucket.granted_by(now) {
            Ok(granted_by) => granted_by.is_none_or(|granted_by| granted_by == incarnation),
            Err(()) => false,
        };
        buckets.values().all(is_granted_by_store).then_some(incarnation)
    }

    /// Returns the due change of this replica's record in the store. A replica that has left
    /// removes its record once it has no shares.
    pub(super) fn due_record_change(
        &self,
        now: Nanos,
        is_store_failing: bool,
        has_left: bool,
    ) -> Option<RecordChange> {
        let has_no_shares = self.reported.lock().is_empty();
        let status = self.store_status.lock();
        let is_known = status.replied_at.is_some();
        let is_new =
            !is_known && self.longest_use.load(Relaxed) != 0 && !is_store_failing && !has_left;
        let has_reported = is_known || status.incarnation.is_none();
        let pause_heartbeats = if has_reported { 1 } else { IDLE_REPORT_HEARTBEATS };
        let pause = Nanos(self.pace.heartbeat.0.saturating_mul(pause_heartbeats));
        let is_due = status.called_at.is_none_or(|called_at| pause <= now.since(called_at));
        if is_known && has_no_shares && (is_due || has_left) {
            return Some(RecordChange::Remove);
        }
        ((is_known || is_new) && is_due).then_some(RecordChange::Renew)
    }

    /// Returns the instant of the store's last reply, by the store's clock.
    pub(super) fn last_store_time(&self) -> Option<Nanos> {
        let status = self.store_status.lock();
        status.incarnation.map(|_| status.clock.coordinator_time)
    }

    /// Records the store's reply to a call that was sent at `sent`, and returns the store's clock.
    /// `removes_record`: the call removed this replica's record.
    pub(super) fn record_reply(
        &self,
        reply: &Result<ShareRoundReply, StoreFailure>,
        sent: Nanos,
        now: Nanos,
        removes_record: bool,
    ) -> ClockReading {
        let mut status = self.store_status.lock();
        status.called_at = Some(now);
        match reply {
            Ok(reply) => {
                status.record_success(reply, sent, now);
                if removes_record {
                    status.replied_at = None;
                }
            }
            Err(failure) => status.record_failure(*failure),
        }
        status.clock
    }
}

impl StoreStatus {
    fn record_failure(&mut self, failure: StoreFailure) {
        if !std::mem::replace(&mut self.is_failing, true) {
            let cause = failure.as_str();
            tracing::warn!(
                cause,
                "failed to report shares to the store, retrying until they expire"
            );
        }
    }

    fn record_success(&mut self, reply: &ShareRoundReply, sent: Nanos, now: Nanos) {
        if self.incarnation.is_some_and(|known| known != reply.incarnation) {
            self.recovering = Some(reply.incarnation);
            tracing::warn!(
                "the store lost its share state, keeping current shares until all replicas have \
                 reported"
            );
        }
        (self.incarnation, self.replied_at, self.is_failing) =
            (Some(reply.incarnation), Some(now), false);
        // The store read its clock between sending and reply. The middle has the smallest possible
        // error.
        let local_time = sent.plus(Nanos(now.since(sent).0 / 2));
        self.clock = ClockReading { local_time, coordinator_time: reply.store_time };
        let is_recovering = |reply: &HeartbeatReply| matches!(reply, HeartbeatReply::Grant(grant) if grant.is_recovering);
        if reply.replies.iter().flatten().any(is_recovering)
            && self.recovering.replace(reply.incarnation) != Some(reply.incarnation)
        {
            tracing::warn!(
                "the store does not know the requests in flight yet, keeping current shares for \
                 fleet.share_expiry and max_duration; if none is in flight anywhere, run \
                 `sluicegate fleet start`"
            );
        }
    }
}

/// A change of this replica's record in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordChange {
    Renew,
    Remove,
}
