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
//!
//! Not covered:
//! - The list of unreported releases: see [`super::permit_ledger`].
//! - When a round starts and which store call carries it: see [`super`].
//! - Acquire and release at this replica: see `concurrency::bucket`.
//!
//! Cost: a round examines the permits that it reports. Releases that are due later cost nothing.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use sluicegate_lease::clock::Clock;

use super::permit_ledger::{PermitLedger, ReleasedPermit};
use crate::host::PermitEvent;
use crate::kernel::units::Nanos;
use crate::limits::bucket::Bucket;
use crate::limits::{BucketName, StrictSnapshot};
use crate::store::permits::{
    LimitPermits, LimitPermitsReply, MAX_PERMITS_PER_REPORT, PermitId, PermitReport,
    PermitReportReply, PermitTiming,
};

#[derive(Debug)]
pub(crate) struct PermitReporter {
    pub(super) ledger: Arc<PermitLedger>,
    reported: Mutex<HashMap<BucketName, Arc<Bucket>>>,
    /// `true` if the configuration has strict limits. The store must then learn of this replica
    /// before the first acquire.
    has_strict_limits: AtomicBool,
    last_round: Mutex<RoundState>,
}

#[derive(Debug, Default)]
struct RoundState {
    heartbeat_at: Option<Nanos>,
    is_failing: bool,
}

impl PermitReporter {
    pub(super) fn new(ledger: PermitLedger) -> Self {
        Self {
            ledger: Arc::new(ledger),
            reported: Mutex::default(),
            has_strict_limits: AtomicBool::new(false),
            last_round: Mutex::default(),
        }
    }

    /// Switches heartbeats without permits on or off. The store needs them if the configuration has
    /// strict limits.
    pub(crate) fn expect_strict(&self, has_strict_limits: bool) {
        self.has_strict_limits.store(has_strict_limits, Relaxed);
    }

    pub(crate) fn add_bucket(&self, name: &[u8], bucket: &Arc<Bucket>) {
        self.reported.lock().insert(name.into(), Arc::clone(bucket));
    }

    fn remove_bucket(&self, name: &[u8]) {
        self.reported.lock().remove(name);
    }

    /// Returns `true` if a heartbeat is due, and records its start.
    fn start_due_heartbeat(&self, now: Nanos) -> bool {
        let mut last = self.last_round.lock();
        let is_due = last.heartbeat_at.is_none_or(|at| self.ledger.heartbeat() <= now.since(at));
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
            let in_use = bucket.permits_to_report(clock, || reporter.remove_bucket(&name));
            if !in_use.is_empty() {
                limit_permits(&mut by_bucket, &name).in_use = in_use;
                buckets.insert(name, bucket);
            }
        }
        let mut released = HashMap::new();
        for release in reporter.ledger.take_due(now) {
            limit_permits(&mut by_bucket, &release.bucket).released.push(release.id);
            released.insert(release.id, release);
        }
        let to_all_nodes = is_heartbeat && reporter.has_strict_limits.load(Relaxed);
        let calls = pack_calls(by_bucket, reporter.ledger.times(Nanos(0)), to_all_nodes);
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
                self.reporter.ledger.finish_or_repeat(now, release, reply.is_ok());
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
    fn count_events(&self, permits: &LimitPermits, reply: Option<LimitPermitsReply>) {
        let Some(reply) = reply else { return };
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        self.ledger.count(PermitEvent::Renewed, number(permits.in_use.len()));
        self.ledger.count(PermitEvent::Restored, reply.changes.restored);
        self.ledger.count(PermitEvent::Released, reply.changes.freed);
    }

    fn record_result(&self, now: Nanos, replies: &PermitReportReply) {
        let mut last = self.last_round.lock();
        match replies.iter().find_map(|reply| reply.err()) {
            Some(failure) => {
                // After a failed report, the next heartbeat is due in a quarter of the interval. An
                // available store that gets no reports stops granting permits.
                let sooner = Nanos(now.0.saturating_sub(self.ledger.heartbeat().0 / 4 * 3));
                last.heartbeat_at = last.heartbeat_at.map(|at| at.min(sooner));
                if !std::mem::replace(&mut last.is_failing, true) {
                    let cause = failure.as_str();
                    tracing::warn!(cause, "failed to report permits to the store, retrying");
                }
                self.ledger.record_failed_report(now);
            }
            None if !replies.is_empty() => last.is_failing = false,
            None => {}
        }
    }
}
