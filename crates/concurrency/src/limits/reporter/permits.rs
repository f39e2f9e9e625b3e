//! Reports this replica's permits of strict limits to the store.
//!
//! Guarantees:
//! - A released permit is never reported as in use afterwards, because rounds never overlap.
//! - All permits in use are reported in each heartbeat interval, and when this replica leaves the
//!   fleet.
//! - Releases are reported as soon as possible, in as few store calls as possible.
//! - A release that the store did not confirm is reported again until the permit's deadline.
//! - A release is repeated for three heartbeat intervals if its acquire call may still arrive
//!   later.
//! - The number of unreported releases is bounded.
//!
//! Not covered:
//! - When a round starts and which store call carries it: see [`super::reporter`].
//! - Acquire and release at this replica: see `concurrency::bucket`.
//!
//! Cost: a round examines the permits that it reports. Releases that are due later cost nothing.

use std::collections::vec_deque::Drain;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use siphasher::sip::SipHasher24;
use sluicegate_lease::clock::Clock;
use tokio::sync::Notify;

use crate::host::{ConcurrencyEvent, Host, PermitEvent};
use crate::kernel::units::Nanos;
use crate::limits::BucketName;
use crate::limits::bucket::Bucket;
use crate::limits::reporter::shares::SharePace;
use crate::limits::strict::{StrictQueue, StrictSnapshot};
use crate::store::permits::{
    LimitPermits, LimitPermitsReply, MAX_PERMITS_PER_REPORT, PermitId, PermitReport,
    PermitReportReply, PermitTiming,
};

/// The largest number of unreported releases. Beyond it, the store keeps a released permit until
/// the permit's deadline.
const MAX_PENDING_RELEASES: usize = 65_536;

#[derive(Debug)]
pub(crate) struct PermitReporter {
    host: Arc<dyn Host>,
    /// Identifies this process in permit ids. Unique in the fleet.
    incarnation: u64,
    next_number: AtomicU64,
    pace: SharePace,
    reported: Mutex<HashMap<BucketName, Arc<Bucket>>>,
    released: Mutex<PendingReleases>,
    /// Notified when a release is due.
    pub(super) wake: Notify,
    /// `true` if the configuration has strict limits. The store must then learn of this replica
    /// before the first acquire.
    has_strict_limits: AtomicBool,
    last_round: Mutex<RoundState>,
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

#[derive(Debug, Default)]
struct RoundState {
    heartbeat_at: Option<Nanos>,
    failed_at: Option<Nanos>,
    is_failing: bool,
}

impl PermitReporter {
    pub(crate) fn new(
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
            reported: Mutex::default(),
            released: Mutex::default(),
            wake: Notify::new(),
            has_strict_limits: AtomicBool::new(false),
            last_round: Mutex::default(),
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

    /// Switches heartbeats without permits on or off. The store needs them if the configuration has
    /// strict limits.
    pub(crate) fn expect_strict(&self, has_strict_limits: bool) {
        self.has_strict_limits.store(has_strict_limits, Relaxed);
    }

    pub(crate) fn add_bucket(&self, name: &[u8], bucket: &Arc<Bucket>) {
        self.reported.lock().insert(name.into(), Arc::clone(bucket));
    }

    pub(crate) fn remove_bucket(&self, name: &[u8]) {
        self.reported.lock().remove(name);
    }

    /// Queues a released permit for the next report.
    pub(crate) fn queue_release(&self, now: Nanos, release: ReleasedPermit) {
        let failed_at = self.last_round.lock().failed_at;
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

    /// Returns `true` if a heartbeat is due, and records its start.
    fn start_due_heartbeat(&self, now: Nanos) -> bool {
        let mut last = self.last_round.lock();
        let is_due = last.heartbeat_at.is_none_or(|at| self.heartbeat() <= now.since(at));
        if is_due {
            last.heartbeat_at = Some(now);
        }
        is_due
    }

    fn buckets(&self) -> Vec<(BucketName, Arc<Bucket>)> {
        let reported = self.reported.lock();
        reported.iter().map(|(name, bucket)| (name.clone(), Arc::clone(bucket))).collect()
    }

    /// Returns snapshots of at most `max` strict limits in use, sorted by bucket name.
    pub(super) fn snapshots(&self, max: usize) -> Vec<(BucketName, StrictSnapshot)> {
        let mut buckets = self.buckets();
        buckets.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let snapshots = buckets
            .into_iter()
            .filter_map(|(name, bucket)| Some((name, bucket.strict_snapshot()?)));
        snapshots.take(max).collect()
    }
}

/// One round of permit reports: all that are due, in as many store calls as they need.
pub(super) struct PermitReports<'a> {
    reporter: &'a PermitReporter,
    clock: &'a Clock,
    calls: VecDeque<PermitReport>,
    buckets: HashMap<BucketName, Arc<Bucket>>,
    released: HashMap<PermitId, ReleasedPermit>,
}

impl<'a> PermitReports<'a> {
    /// Collects the due reports. No other round may be active. With `is_last`, reports all permits
    /// in use and all releases, because no later round will.
    pub(super) fn collect(reporter: &'a PermitReporter, clock: &'a Clock, is_last: bool) -> Self {
        let now = clock.steady();
        let is_heartbeat = reporter.start_due_heartbeat(now) || is_last;
        let (mut by_bucket, mut buckets) = (BTreeMap::new(), HashMap::new());
        let buckets_in_use = if is_heartbeat { reporter.buckets() } else { Vec::new() };
        for (name, bucket) in buckets_in_use {
            if is_last {
                bucket.leave_all_to_deadlines(clock);
            }
            let in_use = bucket.permits_to_report(clock);
            if !in_use.is_empty() {
                limit_permits(&mut by_bucket, &name).in_use = in_use;
                buckets.insert(name, bucket);
            }
        }
        let mut released = HashMap::new();
        for release in reporter.released.lock().take_due(now) {
            limit_permits(&mut by_bucket, &release.bucket).released.push(release.id);
            released.insert(release.id, release);
        }
        let to_all_nodes = is_heartbeat && reporter.has_strict_limits.load(Relaxed);
        let calls = pack_calls(by_bucket, reporter.times(Nanos(0)), to_all_nodes);
        Self { reporter, clock, calls, buckets, released }
    }

    /// Returns the next store call. `None` if the round is complete.
    pub(super) fn next_call(&mut self) -> Option<PermitReport> {
        self.calls.pop_front()
    }

    /// Applies the store's reply to `report`.
    pub(super) fn apply_reply(&mut self, report: PermitReport, replies: PermitReportReply) {
        let now = self.clock.steady();
        self.reporter.record_result(now, &replies);
        for (limit, reply) in report.limits.into_iter().zip(replies) {
            if let Some(bucket) = self.buckets.get(&limit.bucket) {
                bucket.apply_report_reply(reply);
            }
            self.reporter.count_events(&limit, reply.ok());
            for release in limit.released.iter().filter_map(|id| self.released.remove(id)) {
                self.reporter.finish_or_repeat(now, release, reply.is_ok());
            }
        }
    }
}

fn limit_permits<'m>(
    by_bucket: &'m mut BTreeMap<BucketName, LimitPermits>,
    name: &[u8],
) -> &'m mut LimitPermits {
    let empty = || LimitPermits {
        bucket: name.into(),
        in_use: Vec::new(),
        released: Vec::new(),
        is_claimed: false,
    };
    by_bucket.entry(name.into()).or_insert_with(empty)
}

/// Packs the reports of all limits into as few store calls as possible. With `to_all_nodes`, the
/// first call goes to all nodes of the store, even without permits.
fn pack_calls(
    permits: BTreeMap<BucketName, LimitPermits>,
    times: PermitTiming,
    to_all_nodes: bool,
) -> VecDeque<PermitReport> {
    let empty = |to_all_nodes| PermitReport { times, to_all_nodes, limits: Vec::new() };
    let mut calls: VecDeque<PermitReport> = to_all_nodes.then(|| empty(true)).into_iter().collect();
    for piece in permits.into_values().flat_map(split_report) {
        let size = piece.in_use.len() + piece.released.len();
        match calls.back_mut() {
            Some(call) if call.permit_count() + size <= MAX_PERMITS_PER_REPORT => {
                call.limits.push(piece);
            }
            _ => calls.push_back(PermitReport { limits: vec![piece], ..empty(false) }),
        }
    }
    calls
}

/// Splits the report of one limit into pieces that fit into one store call each.
fn split_report(permits: LimitPermits) -> Vec<LimitPermits> {
    let LimitPermits { bucket, in_use, released, is_claimed } = &permits;
    if in_use.len() + released.len() <= MAX_PERMITS_PER_REPORT {
        return vec![permits];
    }
    let piece = |in_use: &[_], released: &[_]| LimitPermits {
        bucket: bucket.clone(),
        in_use: in_use.to_vec(),
        released: released.to_vec(),
        is_claimed: *is_claimed,
    };
    let in_use = in_use.chunks(MAX_PERMITS_PER_REPORT).map(|chunk| piece(chunk, &[]));
    in_use.chain(released.chunks(MAX_PERMITS_PER_REPORT).map(|chunk| piece(&[], chunk))).collect()
}

impl PermitReporter {
    /// Counts an event of this number of permits.
    pub(crate) fn count(&self, event: PermitEvent, permits: u64) {
        self.host.count(ConcurrencyEvent::Permits(event, permits));
    }

    fn count_events(&self, permits: &LimitPermits, reply: Option<LimitPermitsReply>) {
        let Some(reply) = reply else { return };
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        self.count(PermitEvent::Renewed, number(permits.in_use.len()));
        self.count(PermitEvent::Restored, reply.changes.restored);
        self.count(PermitEvent::Released, reply.changes.freed);
    }

    fn finish_or_repeat(&self, now: Nanos, release: ReleasedPermit, is_confirmed: bool) {
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

    fn record_result(&self, now: Nanos, replies: &PermitReportReply) {
        let mut last = self.last_round.lock();
        match replies.iter().find_map(|reply| reply.err()) {
            Some(failure) => {
                // The next heartbeat is due after a quarter of the interval, because an available
                // store that gets no reports stops granting permits.
                let sooner = Nanos(now.0.saturating_sub(self.heartbeat().0 / 4 * 3));
                last.heartbeat_at = last.heartbeat_at.map(|at| at.min(sooner));
                if !std::mem::replace(&mut last.is_failing, true) {
                    let cause = failure.as_str();
                    tracing::warn!(cause, "failed to report permits to the store, retrying");
                }
                last.failed_at = Some(now);
            }
            None if !replies.is_empty() => last.is_failing = false,
            None => {}
        }
    }
}
