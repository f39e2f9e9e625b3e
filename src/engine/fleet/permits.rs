//! Reports this replica's permits of strict limits to the store.
//!
//! Guarantees:
//! - Two rounds of permit reports never overlap, so a released permit is never reported as in use
//!   afterwards.
//! - All permits in use are reported in each heartbeat interval, and when this replica leaves the
//!   fleet.
//! - Releases are reported as soon as possible, in as few store calls as possible.
//! - A release that the store did not confirm is reported again until the permit's deadline.
//! - A release is repeated for three heartbeat intervals if its acquire call may still arrive
//!   later.
//! - The number of unreported releases is bounded.
//!
//! Not covered:
//! - Acquire and release at this replica: see [`super::bucket`].
//!
//! Cost: a round examines the permits that it reports. Releases that are due later cost nothing.

use std::collections::vec_deque::Drain;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use siphasher::sip::SipHasher24;
use tokio::sync::{Mutex as Turn, Notify};
use tokio::time::{MissedTickBehavior, interval};

use crate::clock::Clock;
use crate::engine::concurrency::bucket::Bucket;
use crate::engine::concurrency::strict::{StrictQueue, StrictSnapshot};
use crate::engine::concurrency::{BucketName, ConcurrencyLimits};
use crate::kernel::units::Nanos;
use crate::store::permits::{
    LimitPermits, LimitPermitsReply, MAX_PERMITS_PER_REPORT, PermitId, PermitReport,
    PermitReportReply, PermitTiming,
};
use crate::store::{FleetStore, StoreReply};
use crate::telemetry::event::StrictPermitEvent;

/// The number of heartbeat intervals after which the store releases an unreported permit.
const PERMIT_HEARTBEATS: u64 = 3;
/// The number of heartbeat intervals without any report after which the store stops granting
/// permits. One less than [`PERMIT_HEARTBEATS`], because replicas report at different times in an
/// interval.
const SILENT_HEARTBEATS: u64 = 2;
/// The longest time in which a replica reconnects to a store that is available again. The store's
/// grace period is longer by this time.
const RECONNECT_TIME: Nanos = Nanos::SECOND;
/// The largest number of unreported releases. Beyond it, the store keeps a released permit until
/// the permit's deadline.
const MAX_PENDING_RELEASES: usize = 65_536;

#[derive(Debug)]
pub(in crate::engine) struct PermitReporter {
    /// Identifies this process in permit ids. Unique in the fleet.
    incarnation: u64,
    next_number: AtomicU64,
    heartbeat: Nanos,
    reported: Mutex<HashMap<BucketName, Arc<Bucket>>>,
    released: Mutex<PendingReleases>,
    wake: Notify,
    /// `true` if the configuration has strict limits. The store must then learn of this replica
    /// before the first acquire.
    has_strict_limits: AtomicBool,
    last_round: Mutex<RoundState>,
    round_lock: Turn<()>,
}

/// A released permit that the store may still count.
#[derive(Debug)]
pub(in crate::engine) struct ReleasedPermit {
    /// Shared with the bucket, because many releases may wait and a name may be long.
    pub(in crate::engine) bucket: Arc<[u8]>,
    pub(in crate::engine) queue: Arc<StrictQueue>,
    pub(in crate::engine) id: PermitId,
    /// The instant of the next report of this release.
    pub(in crate::engine) due: Nanos,
    /// The deadline of the permit in the store.
    pub(in crate::engine) store_deadline: Nanos,
    /// `true` if the release must be repeated, because a pending store call may acquire the permit
    /// again.
    pub(in crate::engine) is_repeated: bool,
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
    fn add(&mut self, one: ReleasedPermit) {
        if !self.is_full() {
            self.fresh.push_back(one);
        }
    }

    /// Adds a release that is reported again. Callers must pass increasing `due` instants.
    fn add_repeated(&mut self, one: ReleasedPermit) {
        if !self.is_full() {
            self.repeated.push_back(one);
        }
    }

    fn is_full(&self) -> bool {
        MAX_PENDING_RELEASES <= self.fresh.len() + self.repeated.len()
    }

    /// Removes and returns the due releases. Stops at the first one that is not due, because every
    /// release of a permit needs this lock.
    fn take_due(&mut self, now: Nanos) -> Vec<ReleasedPermit> {
        let both = [&mut self.fresh, &mut self.repeated];
        both.into_iter().flat_map(|list| first_due(list, now)).collect()
    }
}

fn first_due(list: &mut VecDeque<ReleasedPermit>, now: Nanos) -> Drain<'_, ReleasedPermit> {
    let due = list.iter().take_while(|one| one.due <= now).count();
    list.drain(..due)
}

#[derive(Debug, Default)]
struct RoundState {
    heartbeat_at: Option<Nanos>,
    failed_at: Option<Nanos>,
    is_failing: bool,
}

impl PermitReporter {
    pub(in crate::engine) fn new(member: u64, life: u64, beat: Nanos) -> Self {
        let name = [member.to_le_bytes(), life.to_le_bytes()].concat();
        Self {
            incarnation: SipHasher24::new().hash(&name),
            next_number: AtomicU64::new(0),
            heartbeat: beat,
            reported: Mutex::default(),
            released: Mutex::default(),
            wake: Notify::new(),
            has_strict_limits: AtomicBool::new(false),
            last_round: Mutex::default(),
            round_lock: Turn::default(),
        }
    }

    pub(in crate::engine) const fn heartbeat(&self) -> Nanos {
        self.heartbeat
    }

    /// Returns the time for which the store keeps a permit without a report.
    pub(in crate::engine) const fn unreported_lifetime(&self) -> Nanos {
        Nanos(self.heartbeat.0.saturating_mul(PERMIT_HEARTBEATS))
    }

    /// Returns the timing of permits of a strict limit with this `max_duration`. All replicas with
    /// the same heartbeat interval get the same timing.
    pub(in crate::engine) fn times(&self, max_duration: Nanos) -> PermitTiming {
        PermitTiming {
            grace: self.unreported_lifetime().plus(RECONNECT_TIME),
            max_silence: Nanos(self.heartbeat.0.saturating_mul(SILENT_HEARTBEATS)),
            max_lifetime: self.store_lifetime(Some(max_duration)).max(self.unreported_lifetime()),
        }
    }

    /// Returns the time for which the store keeps a permit with the given local lifetime. It is one
    /// heartbeat interval longer, because a renewal is reported with the next heartbeat.
    pub(in crate::engine) fn store_lifetime(&self, local_lifetime: Option<Nanos>) -> Nanos {
        local_lifetime.map_or(self.unreported_lifetime(), |keep| keep.plus(self.heartbeat))
    }

    pub(in crate::engine) fn next_id(&self) -> PermitId {
        PermitId(self.incarnation, self.next_number.fetch_add(1, Relaxed))
    }

    /// Returns a pseudo-random number below the bound, for jitter.
    pub(in crate::engine) fn random_below(&self, bound: u64) -> u64 {
        let PermitId(life, number) = self.next_id();
        SipHasher24::new().hash(&(life ^ number).to_le_bytes()) % bound.max(1)
    }

    /// Switches heartbeats without permits on or off. The store needs them if the configuration has
    /// strict limits.
    pub(in crate::engine) fn expect_strict(&self, some: bool) {
        self.has_strict_limits.store(some, Relaxed);
    }

    pub(in crate::engine) fn add_bucket(&self, name: &[u8], bucket: &Arc<Bucket>) {
        self.reported.lock().insert(name.into(), Arc::clone(bucket));
    }

    pub(in crate::engine) fn remove_bucket(&self, name: &[u8]) {
        self.reported.lock().remove(name);
    }

    /// Queues a released permit for the next report.
    pub(in crate::engine) fn queue_release(&self, now: Nanos, one: ReleasedPermit) {
        let failed = self.last_round.lock().failed_at;
        let lately = failed.is_some_and(|failed| now.since(failed) < self.unreported_lifetime());
        let repeats = one.is_repeated || lately;
        let until = if repeats {
            one.store_deadline.max(now.plus(self.unreported_lifetime()))
        } else {
            one.store_deadline
        };
        self.released.lock().add(ReleasedPermit {
            store_deadline: until,
            is_repeated: repeats,
            ..one
        });
        self.wake.notify_one();
    }

    /// Returns `true` if a heartbeat is due, and records its start.
    fn start_due_heartbeat(&self, now: Nanos) -> bool {
        let mut last = self.last_round.lock();
        let is_due = last.heartbeat_at.is_none_or(|at| self.heartbeat <= now.since(at));
        if is_due {
            last.heartbeat_at = Some(now);
        }
        is_due
    }

    fn buckets(&self) -> Vec<(BucketName, Arc<Bucket>)> {
        let active = self.reported.lock();
        active.iter().map(|(name, bucket)| (name.clone(), Arc::clone(bucket))).collect()
    }

    /// Returns snapshots of at most `most` strict limits in use, sorted by bucket name.
    pub(in crate::engine) fn snapshots(&self, most: usize) -> Vec<(BucketName, StrictSnapshot)> {
        let mut all = self.buckets();
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let seen =
            |(name, bucket): (BucketName, Arc<Bucket>)| Some((name, bucket.strict_snapshot()?));
        all.into_iter().filter_map(seen).take(most).collect()
    }
}

impl ConcurrencyLimits {
    /// Sends permit reports forever. Without a fleet, sends nothing and never returns.
    pub(in crate::engine) async fn report_permits_forever(&self, backend: &dyn FleetStore) {
        let Some(fleet) = self.fleet_reporter() else { return std::future::pending().await };
        let teller = fleet.permit_reporter();
        let period = std::time::Duration::from_nanos(teller.heartbeat.0.div_ceil(20).max(1));
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = teller.wake.notified() => {}
            }
            self.report_permits_once(backend).await;
        }
    }

    /// Sends all permit reports that are due now, and applies the replies.
    pub(in crate::engine) async fn report_permits_once(&self, backend: &dyn FleetStore) {
        self.report_due_permits(backend, false).await;
    }

    /// Sends the final report: all permits in use and all releases.
    pub(in crate::engine) async fn report_permits_finally(&self, backend: &dyn FleetStore) {
        self.report_due_permits(backend, true).await;
    }

    async fn report_due_permits(&self, backend: &dyn FleetStore, is_last: bool) {
        let Some(fleet) = self.fleet_reporter() else { return };
        let teller = fleet.permit_reporter();
        let _turn = teller.round_lock.lock().await;
        let now = self.clock.steady();
        let is_beat = teller.start_due_heartbeat(now) || is_last;
        let mut batch = PermitBatch::default();
        if is_beat {
            for (name, bucket) in teller.buckets() {
                if is_last {
                    bucket.leave_all_to_deadlines(&self.clock);
                }
                batch.add_in_use(name, bucket.permits_to_report(&self.clock), bucket);
            }
        }
        let due = teller.released.lock().take_due(now);
        batch.add_released(due);
        let everywhere = is_beat && teller.has_strict_limits.load(Relaxed);
        for round in
            pack_rounds(std::mem::take(&mut batch.by_bucket), teller.times(Nanos(0)), everywhere)
        {
            let heard = match backend.report_strict_permits(now, &round) {
                StoreReply::Ready(heard) => heard,
                StoreReply::Pending(heard) => heard.await,
            };
            teller.apply_replies(&self.clock, &mut batch, round, heard);
        }
    }
}

#[derive(Default)]
struct PermitBatch {
    by_bucket: BTreeMap<BucketName, LimitPermits>,
    buckets: HashMap<BucketName, Arc<Bucket>>,
    released: HashMap<PermitId, ReleasedPermit>,
}

impl PermitBatch {
    fn add_in_use(&mut self, name: BucketName, held: Vec<(PermitId, Nanos)>, bucket: Arc<Bucket>) {
        if !held.is_empty() {
            self.entry(&name).in_use = held;
            self.buckets.insert(name, bucket);
        }
    }

    fn add_released(&mut self, ended: Vec<ReleasedPermit>) {
        for one in ended {
            self.entry(&one.bucket).released.push(one.id);
            self.released.insert(one.id, one);
        }
    }

    fn entry(&mut self, name: &[u8]) -> &mut LimitPermits {
        let nothing =
            || LimitPermits { bucket: name.into(), in_use: Vec::new(), released: Vec::new() };
        self.by_bucket.entry(name.into()).or_insert_with(nothing)
    }
}

/// Packs the reports of all limits into as few store calls as possible. With `everywhere`, the
/// first call goes to all nodes of the store, even without permits.
fn pack_rounds(
    permits: BTreeMap<BucketName, LimitPermits>,
    times: PermitTiming,
    everywhere: bool,
) -> Vec<PermitReport> {
    let empty = |everywhere| PermitReport { times, to_all_nodes: everywhere, limits: Vec::new() };
    let mut rounds: Vec<PermitReport> = everywhere.then(|| empty(true)).into_iter().collect();
    for piece in permits.into_values().flat_map(split_report) {
        let size = piece.in_use.len() + piece.released.len();
        match rounds.last_mut() {
            Some(round) if round.permit_count() + size <= MAX_PERMITS_PER_REPORT => {
                round.limits.push(piece);
            }
            _ => rounds.push(PermitReport { limits: vec![piece], ..empty(false) }),
        }
    }
    rounds
}

/// Splits the report of one limit into pieces that fit into one store call each.
fn split_report(permits: LimitPermits) -> Vec<LimitPermits> {
    let LimitPermits { bucket, in_use: held, released: over } = permits;
    if held.len() + over.len() <= MAX_PERMITS_PER_REPORT {
        return vec![LimitPermits { bucket, in_use: held, released: over }];
    }
    let of = |held: &[_], over: &[_]| LimitPermits {
        bucket: bucket.clone(),
        in_use: held.to_vec(),
        released: over.to_vec(),
    };
    let held = held.chunks(MAX_PERMITS_PER_REPORT).map(|held| of(held, &[]));
    held.chain(over.chunks(MAX_PERMITS_PER_REPORT).map(|over| of(&[], over))).collect()
}

impl PermitReporter {
    fn apply_replies(
        &self,
        clock: &Clock,
        batch: &mut PermitBatch,
        round: PermitReport,
        replies: PermitReportReply,
    ) {
        let now = clock.steady();
        self.record_result(now, &replies);
        for (told, heard) in round.limits.into_iter().zip(replies) {
            if let Some(bucket) = batch.buckets.get(&told.bucket) {
                bucket.apply_report_reply(heard);
            }
            count_events(&told, heard.ok());
            for one in told.released.iter().filter_map(|id| batch.released.remove(id)) {
                self.finish_or_repeat(now, one, heard.is_ok());
            }
        }
    }

    fn finish_or_repeat(&self, now: Nanos, one: ReleasedPermit, is_confirmed: bool) {
        if is_confirmed {
            one.queue.wake_first();
        }
        if now < one.store_deadline && (one.is_repeated || !is_confirmed) {
            // A store call without a reply may still be executed later.
            let until = if is_confirmed {
                one.store_deadline.min(now.plus(self.unreported_lifetime()))
            } else {
                one.store_deadline
            };
            // `due` is always one heartbeat interval from now, so the list of repeated releases
            // stays sorted.
            let due = now.plus(self.heartbeat);
            self.released.lock().add_repeated(ReleasedPermit {
                due,
                store_deadline: until,
                is_repeated: true,
                ..one
            });
        }
    }

    fn record_result(&self, now: Nanos, heard: &PermitReportReply) {
        let mut last = self.last_round.lock();
        match heard.iter().find_map(|heard| heard.err()) {
            Some(cause) => {
                // The next heartbeat is due after a quarter of the interval, because an available
                // store that gets no reports stops granting permits.
                let sooner = Nanos(now.0.saturating_sub(self.heartbeat.0 / 4 * 3));
                last.heartbeat_at = last.heartbeat_at.map(|at| at.min(sooner));
                if !std::mem::replace(&mut last.is_failing, true) {
                    let cause = cause.as_str();
                    tracing::warn!(cause, "failed to report permits to the store, retrying");
                }
                last.failed_at = Some(now);
            }
            None if !heard.is_empty() => last.is_failing = false,
            None => {}
        }
    }
}

fn count_events(permits: &LimitPermits, heard: Option<LimitPermitsReply>) {
    let Some(heard) = heard else { return };
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    StrictPermitEvent::Renewed.emit(number(permits.in_use.len()));
    StrictPermitEvent::Restored.emit(heard.changes.restored);
    StrictPermitEvent::Released.emit(heard.changes.freed);
}
