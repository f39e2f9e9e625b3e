//! Sends this replica's share reports to the store, and applies the replies to its shared limits.
//!
//! Guarantees:
//! - Two rounds of share reports never overlap.
//! - One store call carries at most [`reports_per_round`] reports. The store's own timeout applies.
//! - Only the first requests of a limit wait for a report, until this replica knows its share.
//! - Limits whose requests wait for a share are reported first, then the shares that expire
//!   soonest.
//! - A round accepts new limits for a quarter of the heartbeat interval, so every round ends.
//! - Replicas without shares report too, so that a store that lost its data starts to recover.
//! - A replica that leaves the fleet returns its shares within two seconds if the store replies.
//!
//! Not covered:
//! - The content of a report: see `concurrency::replica_share`.
//! - The coordinator, which splits limits into shares.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use siphasher::sip::SipHasher24;
use tokio::sync::{Mutex as Turn, Notify, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::bucket::Bucket;
use super::permit_reporter::PermitReporter;
use super::replica_share::{ReportAction, ShareSnapshot, SharedLimit};
use super::share_totals::ShareTotals;
use super::strict::{StrictLimit, StrictSnapshot};
use super::{BucketName, ConcurrencyLimits};
use crate::clock::Clock;
use crate::config::concurrency::{ConcurrencyFallback, ConcurrencyLimit, ConcurrencyMode};
use crate::engine::Membership;
use crate::engine::decide::local_share::{FleetDivision, divide};
use crate::kernel::concurrency::adaptive::ProbeSchedule;
use crate::kernel::coordinator::config::CoordinatorConfigError;
use crate::kernel::coordinator::incarnation::IncarnationRecord;
use crate::kernel::coordinator::{ClockReading, Grant, HeartbeatReply as Answer, ShareTiming};
use crate::kernel::units::{Incarnation, Nanos, ReplicaId, Share};
use crate::store::heartbeat::{
    MAX_REPORTS_PER_ROUND, ShareReport, ShareRound, ShareRoundReply, reports_per_round,
};
use crate::store::{Store, StoreFailure, StoreReply};

/// The largest assumed difference in rate between two clocks, in parts per million. NTP slews a
/// clock by at most 500 ppm.
const DRIFT_PPM: u32 = 1_000;

/// The longest time that a replica that leaves the fleet waits for the current round of reports.
const LEAVE_ROUND_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest time that a replica takes to leave the fleet. Shares and permits that it has not
/// returned by then expire.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// A round accepts new limits for this part of the heartbeat interval: 1/4.
const ACCEPT_DIVISOR: u64 = 4;

/// The largest number of polls for due share reports in one heartbeat interval.
const POLLS_PER_HEARTBEAT: u64 = 100;

/// The largest number of reported limits with which every tick polls for due reports.
const FAST_POLL_LIMITS: usize = 64;

/// With more than [`FAST_POLL_LIMITS`] limits, every fifth tick polls for due reports: once in the
/// shortest pause between two reports.
const SLOW_POLL_TICKS: u64 = 5;

/// The number of heartbeat intervals between two reports of a replica without shares. A store that
/// lost its data starts to recover after this time at the latest.
const IDLE_REPORT_HEARTBEATS: u64 = 60;

/// The timing of share reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharePace {
    /// The heartbeat interval: the time between two share reports when nothing is urgent.
    pub heartbeat: Nanos,
    /// The share lifetime, counted from the report that requested the share.
    pub share_duration: Nanos,
}

impl Default for SharePace {
    fn default() -> Self {
        Self { heartbeat: Nanos::SECOND, share_duration: Nanos::from_secs(5) }
    }
}

/// Reports the shares of one incarnation of this replica, and has its permit reporter for strict
/// limits.
#[derive(Debug)]
pub struct FleetReporter {
    replica: ReplicaId,
    incarnation: Incarnation,
    last_share_incarnation: AtomicU64,
    pace: SharePace,
    first_reply_timeout: Duration,
    membership: Arc<Membership>,
    reported: Mutex<HashMap<BucketName, Arc<Bucket>>>,
    /// Limits with a request that waits for a share and arrived after the limit's last report.
    awaited: Mutex<HashMap<BucketName, Arc<Bucket>>>,
    wake: Notify,
    /// Locked during a round of share reports.
    round_lock: Turn<()>,
    store_status: Mutex<StoreStatus>,
    has_left: AtomicBool,
    /// The longest time for which a share or its requests can last, in nanoseconds, over all
    /// configurations so far. 0 without shared limits. The same bound covers limits that only other
    /// replicas use.
    longest_use: AtomicU64,
    permit_reporter: Arc<PermitReporter>,
    totals: Arc<ShareTotals>,
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

struct DueReport {
    bucket: Arc<Bucket>,
    report: ShareReport,
    /// The number of replicas that share the limit, from the last grant. The size of the fleet
    /// before the first grant.
    replicas: u64,
    /// The time until the report must be sent, see [`ReportAction::Send`].
    time_left: Nanos,
}

struct DueReports {
    /// Reports of limits whose requests wait for a share.
    awaited: VecDeque<DueReport>,
    /// The other reports. The share that expires first comes first.
    others: VecDeque<DueReport>,
    /// The longest time from now for which a share in this round, or a request under it, may last.
    longest_use: Nanos,
}

impl DueReports {
    /// Returns the reports of the next store call. Alternates between awaited and other reports, so
    /// that neither kind delays the other.
    fn next_call(&mut self) -> Vec<DueReport> {
        let reports = (0..MAX_REPORTS_PER_ROUND).map_while(|turn| self.take_report(turn % 2 == 0));
        let mut call: Vec<(bool, DueReport)> = reports.collect();
        let most = reports_per_round(call.iter().map(|(_, spoken)| spoken.replicas));
        for (is_first, spoken) in call.split_off(most).into_iter().rev() {
            self.queue_of(is_first).push_front(spoken);
        }
        call.into_iter().map(|(_, spoken)| spoken).collect()
    }

    /// Takes an awaited report if `is_first`, otherwise another one. Takes the other kind if there
    /// is none of the wanted kind. Returns `true` for an awaited report.
    fn take_report(&mut self, is_first: bool) -> Option<(bool, DueReport)> {
        let kinds = [is_first, !is_first];
        kinds.into_iter().find_map(|is_first| {
            let kind = self.queue_of(is_first);
            while let Some(spoken) = kind.pop_front() {
                if spoken.bucket.is_pending(&spoken.report.heartbeat) {
                    return Some((is_first, spoken));
                }
            }
            None
        })
    }

    const fn queue_of(&mut self, is_first: bool) -> &mut VecDeque<DueReport> {
        if is_first { &mut self.awaited } else { &mut self.others }
    }
}

impl FleetReporter {
    /// Creates a reporter that has sent no report yet.
    ///
    /// The incarnation must be larger than that of every earlier start of this replica. The
    /// `Duration` is the longest time that the first request of a limit waits for the share.
    #[must_use]
    pub fn new(
        membership: Arc<Membership>,
        incarnation: Nanos,
        pace: SharePace,
        first_reply_timeout: Duration,
    ) -> Self {
        // The store's numbers are exact up to 2^53. So the incarnation is in microseconds, and the
        // replica id is 52 bits of a hash.
        let life = incarnation.0 / Nanos::MICRO.0;
        let replica_hash = SipHasher24::new().hash(membership.replica_name().as_bytes()) >> 12;
        Self {
            replica: ReplicaId(replica_hash),
            incarnation: Incarnation(life),
            last_share_incarnation: AtomicU64::new(life),
            pace,
            first_reply_timeout,
            membership,
            reported: Mutex::default(),
            awaited: Mutex::default(),
            wake: Notify::new(),
            round_lock: Turn::default(),
            store_status: Mutex::default(),
            has_left: AtomicBool::new(false),
            longest_use: AtomicU64::new(0),
            permit_reporter: Arc::new(PermitReporter::new(replica_hash, life, pace.heartbeat)),
            totals: Arc::default(),
        }
    }

    /// Returns the sharing parameters of a limit in mode `shared`. `None` for modes `local` and
    /// `strict`.
    #[must_use]
    pub fn shared_limit(&self, limit: &ConcurrencyLimit) -> Option<SharedLimit> {
        if matches!(limit.mode, Some(ConcurrencyMode::Local | ConcurrencyMode::Strict)) {
            return None;
        }
        let start = limit.rules.limit;
        let (min, max) = limit.rules.adaptive.map_or((start, start), |it| (it.min, it.max));
        let (max_duration, on_failure) = (limit.max_duration, limit.on_backend_failure);
        Some(SharedLimit { min, start, max, max_duration, on_failure })
    }

    /// Returns the parameters of a limit in mode `strict`. `None` for other modes.
    #[must_use]
    pub fn strict_limit(&self, limit: &ConcurrencyLimit) -> Option<StrictLimit> {
        let queue = limit.rules.queue;
        let outage_limit = match limit.on_backend_failure {
            ConcurrencyFallback::Deny => 0,
            ConcurrencyFallback::Local => {
                u32::try_from(self.outage_share(limit.rules.limit).0).unwrap_or(0)
            }
            ConcurrencyFallback::Allow => u32::MAX,
        };
        let max_duration = limit.max_duration;
        (limit.mode == Some(ConcurrencyMode::Strict)).then_some(StrictLimit {
            queue,
            max_duration,
            outage_limit,
        })
    }

    /// Switches the heartbeats for strict limits on or off. Switched on, a permit report is sent in
    /// every heartbeat interval, even without permits.
    pub fn expect_strict(&self, has_strict_limits: bool) {
        self.permit_reporter.expect_strict(has_strict_limits);
    }

    /// Records the longest time for which a share of these limits or its requests can last, before
    /// the first request uses them.
    pub fn expect_shared<'c>(&self, limits: impl Iterator<Item = &'c ConcurrencyLimit>) {
        let shared = limits.filter_map(|ceiling| self.shared_limit(ceiling));
        let longest = shared.map(|it| self.share_timing(it.max_duration).longest_use()).max();
        self.longest_use.fetch_max(longest.unwrap_or_default().0, Relaxed);
    }

    /// Returns snapshots of at most `max_wait` strict limits in use, sorted by bucket name.
    #[must_use]
    pub fn strict_snapshots(&self, most: usize) -> Vec<(BucketName, StrictSnapshot)> {
        self.permit_reporter.snapshots(most)
    }

    pub(super) const fn permit_reporter(&self) -> &Arc<PermitReporter> {
        &self.permit_reporter
    }

    pub(super) const fn replica(&self) -> ReplicaId {
        self.replica
    }

    pub(super) fn has_left(&self) -> bool {
        self.has_left.load(Relaxed)
    }

    /// Returns the incarnation of a new share: larger than all earlier ones of this replica.
    pub(super) fn next_incarnation(&self) -> Incarnation {
        Incarnation(self.last_share_incarnation.fetch_add(1, Relaxed).saturating_add(1))
    }

    /// Returns the timing of a shared limit. A long `max_duration` needs a longer share lifetime,
    /// because the safety margin for clock drift grows with it.
    pub(super) fn share_timing(&self, max_duration: Nanos) -> ShareTiming {
        let SharePace { heartbeat, share_duration: term } = self.pace;
        let mut share_lifetime = term;
        loop {
            match ShareTiming::new(heartbeat, share_lifetime, max_duration, DRIFT_PPM) {
                Ok(timing) => return timing,
                Err(CoordinatorConfigError::LifetimeTooShort { least, .. })
                    if share_lifetime < least =>
                {
                    share_lifetime = least.plus(Nanos(least.0 / 100));
                }
                // With a margin as long as the lifetime, a share is never usable, which is safe.
                Err(_) => {
                    return ShareTiming {
                        heartbeat,
                        share_lifetime: term,
                        margin: term,
                        max_duration,
                    };
                }
            }
        }
    }

    /// Adds the bucket to the share reports, and wakes the reporter for its first report.
    pub(super) fn add_bucket(&self, name: &[u8], bucket: &Arc<Bucket>) {
        self.reported.lock().insert(name.into(), Arc::clone(bucket));
        self.awaited.lock().insert(name.into(), Arc::clone(bucket));
        self.wake.notify_one();
    }

    fn take_awaited(&self) -> HashMap<BucketName, Arc<Bucket>> {
        std::mem::take(&mut self.awaited.lock())
    }

    /// Removes `bucket` from the share reports, unless a newer bucket has this name.
    pub(super) fn remove_bucket(&self, name: &[u8], bucket: &Bucket) {
        let mut active = self.reported.lock();
        if active.get(name).is_some_and(|known| std::ptr::eq(&raw const **known, bucket)) {
            active.remove(name);
        }
    }

    /// Waits for the store's next reply, at most for the given time and for the first-reply timeout
    /// of this reporter.
    pub(super) async fn wait_for_reply(&self, mut replies: watch::Receiver<()>, max_wait: Nanos) {
        let wait = self.first_reply_timeout.min(Duration::from_nanos(max_wait.0));
        if !wait.is_zero() {
            // After a timeout the bucket decides by the current share.
            drop(timeout(wait, replies.changed()).await);
        }
    }

    /// Returns this replica's part of the initial limit, for a store outage before the first grant.
    fn outage_share(&self, initial_limit: u32) -> Share {
        Share(u64::from(initial_limit / self.membership.replicas()))
    }

    /// Returns this replica's part of a fleet-wide limit, for metrics that are summed over all
    /// replicas. The part is not enforced. The bucket name determines which replicas get the
    /// remainder of the division.
    pub(in crate::engine) fn metric_part(&self, name: &[u8], limit: u32) -> u32 {
        let FleetDivision { replicas, rank } = self.membership.division();
        let rank_offset = SipHasher24::new().hash(name) % u64::from(replicas.get());
        let rotated_rank = |rank: u32| (u64::from(rank) + rank_offset) % u64::from(replicas.get());
        let rank = rank.and_then(|rank| u32::try_from(rotated_rank(rank)).ok());
        divide(limit, FleetDivision { replicas, rank })
    }

    /// Returns snapshots of at most `max_wait` shared limits, sorted by bucket name.
    #[must_use]
    pub fn share_snapshots(&self, clock: &Clock, most: usize) -> Vec<(BucketName, ShareSnapshot)> {
        let mut all: Vec<_> = self.reported.lock().clone().into_iter().collect();
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let shown =
            |(name, bucket): (BucketName, Arc<Bucket>)| Some((name, bucket.share_snapshot(clock)?));
        all.into_iter().filter_map(shown).take(most).collect()
    }

    /// Returns the counts of expired shares and handoffs, including limits that are no longer
    /// reported.
    #[must_use]
    pub const fn totals(&self) -> &Arc<ShareTotals> {
        &self.totals
    }

    /// Returns the store's incarnation from its last reply, this replica's id, and this replica's
    /// incarnation.
    #[must_use]
    pub fn incarnations(&self) -> (Option<Incarnation>, ReplicaId, Incarnation) {
        (self.store_status.lock().incarnation, self.replica, self.incarnation)
    }
}

impl ConcurrencyLimits {
    /// Reports shares and strict permits forever. Without a fleet, sends nothing and never returns.
    pub async fn report_forever(&self, backend: &dyn Store) {
        tokio::join!(self.report_shares_forever(backend), self.report_permits_forever(backend));
    }

    async fn report_shares_forever(&self, backend: &dyn Store) {
        let Some(reporter) = self.fleet_reporter() else { return std::future::pending().await };
        let poll_interval =
            Duration::from_nanos(reporter.pace.heartbeat.0.div_ceil(POLLS_PER_HEARTBEAT).max(1));
        let mut ticks = interval(poll_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for tick in 0_u64.. {
            tokio::select! {
                _ = ticks.tick() => if !reporter.is_poll_tick(tick) { continue },
                () = reporter.wake.notified() => {}
            }
            self.report_due_shares(backend).await;
        }
    }

    /// Sends all share reports and permit reports that are due now, and applies the replies.
    pub async fn report_once(&self, backend: &dyn Store) {
        self.report_due_shares(backend).await;
        self.report_permits_once(backend).await;
    }

    async fn report_due_shares(&self, backend: &dyn Store) {
        let Some(fleet) = self.fleet_reporter() else { return };
        let _round = fleet.round_lock.lock().await;
        // The replica may have left during the wait for the lock.
        if !fleet.has_left() {
            self.run_round(fleet, backend).await;
        }
    }

    /// Leaves the fleet: returns all shares if the store replies, and stops the reports.
    ///
    /// Waits at most one second for the current round, and at most two seconds in total. Shares
    /// that are not returned by then expire.
    pub async fn leave_fleet(&self, backend: &dyn Store) {
        let Some(fleet) = self.fleet_reporter().filter(|fleet| !fleet.has_left.swap(true, Relaxed))
        else {
            return;
        };
        for bucket in reported_buckets(fleet).values() {
            bucket.return_share(&self.clock);
        }
        // Concurrently, so that neither shares nor permits use up the time of the other.
        let both = async {
            tokio::join!(self.return_shares(fleet, backend), self.report_permits_finally(backend))
        };
        drop(timeout(LEAVE_TIMEOUT, both).await);
    }

    async fn return_shares(&self, fleet: &FleetReporter, backend: &dyn Store) {
        let Ok(_round) = timeout(LEAVE_ROUND_TIMEOUT, fleet.round_lock.lock()).await else {
            return;
        };
        self.run_round(fleet, backend).await;
        // The first round returned the shares. The second one removes the replica's record from the
        // store.
        self.run_round(fleet, backend).await;
    }

    /// Sends all share reports that are due. The caller must have locked `round_lock`.
    async fn run_round(&self, fleet: &FleetReporter, backend: &dyn Store) {
        let buckets = reported_buckets(fleet);
        let store_incarnation = common_store_incarnation(fleet, &buckets, self.clock.steady());
        let record = IncarnationRecord {
            replica: fleet.replica,
            incarnation: fleet.incarnation,
            coordinator_incarnation: store_incarnation,
        };
        let longest = Nanos(fleet.longest_use.load(Relaxed));
        let mut due =
            DueReports { awaited: VecDeque::new(), others: VecDeque::new(), longest_use: longest };
        self.collect_due(fleet, fleet.take_awaited(), true, &mut due);
        self.collect_due(fleet, buckets, false, &mut due);
        // The most urgent reports first: the last of many reports waits long if the store is slow.
        due.others.make_contiguous().sort_by_key(|spoken| spoken.time_left);
        let started_at = self.clock.steady();
        loop {
            let call = due.next_call();
            if call.is_empty() {
                break;
            }
            self.send_reports(fleet, backend, (record, due.longest_use), call).await;
            // Limits that are added later have woken the reporter for the next round. A round that
            // accepted all of them might never end, and shares that became due after its start
            // would expire.
            if self.clock.steady().since(started_at).0 < fleet.pace.heartbeat.0 / ACCEPT_DIVISOR {
                self.collect_due(fleet, fleet.take_awaited(), true, &mut due);
            }
        }
        let (last_reply_at, longest) = (fleet.last_store_time(), due.longest_use);
        let last = ShareRound {
            record,
            last_reply_at,
            longest_use: longest,
            is_leaving: false,
            reports: vec![],
        };
        self.renew_record(fleet, backend, last).await;
    }

    fn collect_due(
        &self,
        fleet: &FleetReporter,
        buckets: HashMap<BucketName, Arc<Bucket>>,
        is_first: bool,
        due: &mut DueReports,
    ) {
        for (name, bucket) in buckets {
            due.longest_use = due.longest_use.max(bucket.longest_use());
            if let ReportAction::Send { law, report: said, replicas: members, time_left: left } =
                bucket.next_report(&self.clock, || fleet.remove_bucket(&name, &bucket))
            {
                let members = members.unwrap_or(fleet.membership.replicas().get().into());
                let beat = ShareReport { bucket: name, law, heartbeat: said };
                due.queue_of(is_first).push_back(DueReport {
                    bucket,
                    report: beat,
                    replicas: members,
                    time_left: left,
                });
            }
        }
    }

    async fn send_reports(
        &self,
        fleet: &FleetReporter,
        backend: &dyn Store,
        (record, longest): (IncarnationRecord, Nanos),
        call: Vec<DueReport>,
    ) {
        let (buckets, beats): (Vec<_>, Vec<_>) =
            call.into_iter().map(|spoken| (spoken.bucket, spoken.report)).unzip();
        let round = ShareRound {
            record,
            last_reply_at: fleet.last_store_time(),
            longest_use: longest,
            is_leaving: false,
            reports: beats,
        };
        let round_reply = self.send_round(fleet, backend, &round).await;
        let store = fleet.store_status.lock().clock;
        for (at, (bucket, beat)) in buckets.iter().zip(&round.reports).enumerate() {
            let reply = round_reply.as_ref().and_then(|heard| heard.replies.get(at)?.as_ref());
            let probes = probe_schedule(store, beat);
            bucket.apply_reply(&self.clock, &beat.heartbeat, reply, probes, |start| {
                fleet.outage_share(start)
            });
        }
    }

    /// Sends this replica's record if no report was sent for a heartbeat interval. Removes the
    /// record from the store if the replica has no shares.
    async fn renew_record(&self, fleet: &FleetReporter, backend: &dyn Store, round: ShareRound) {
        let is_store_failing = backend.current_failure().is_some();
        let Some(removes_record) = fleet.due_record_change(self.clock.steady(), is_store_failing)
        else {
            return;
        };
        let heard = self
            .send_round(fleet, backend, &ShareRound { is_leaving: removes_record, ..round })
            .await;
        if removes_record && heard.is_some() {
            fleet.store_status.lock().replied_at = None;
        }
    }

    async fn send_round(
        &self,
        fleet: &FleetReporter,
        backend: &dyn Store,
        round: &ShareRound,
    ) -> Option<ShareRoundReply> {
        let sent = self.clock.steady();
        let heard = match backend.report_shares(sent, round) {
            StoreReply::Ready(heard) => heard,
            StoreReply::Pending(heard) => heard.await,
        };
        fleet.record_reply(heard.as_ref(), sent, self.clock.steady());
        heard.ok()
    }
}

impl FleetReporter {
    /// Returns `true` if this tick polls for due reports. A poll examines all limits, so polls are
    /// rarer with many limits.
    fn is_poll_tick(&self, tick: u64) -> bool {
        tick.is_multiple_of(SLOW_POLL_TICKS) || self.reported.lock().len() <= FAST_POLL_LIMITS
    }

    /// Returns the due change of this replica's record in the store: `true` removes it, `false`
    /// renews it.
    fn due_record_change(&self, now: Nanos, is_store_failing: bool) -> Option<bool> {
        let has_no_shares = self.reported.lock().is_empty();
        let told = self.store_status.lock();
        let is_known = told.replied_at.is_some();
        let is_new = !is_known
            && self.longest_use.load(Relaxed) != 0
            && !is_store_failing
            && !self.has_left();
        let pause_heartbeats =
            if is_known || told.incarnation.is_none() { 1 } else { IDLE_REPORT_HEARTBEATS };
        let pause = Nanos(self.pace.heartbeat.0.saturating_mul(pause_heartbeats));
        let is_due = told.called_at.is_none_or(|spoken| pause <= now.since(spoken));
        let removes_record = is_known && has_no_shares;
        ((is_known || is_new) && is_due || removes_record && self.has_left())
            .then_some(removes_record)
    }

    fn last_store_time(&self) -> Option<Nanos> {
        let told = self.store_status.lock();
        told.incarnation.map(|_| told.clock.coordinator_time)
    }

    fn record_reply(
        &self,
        reply: Result<&ShareRoundReply, &StoreFailure>,
        sent: Nanos,
        now: Nanos,
    ) {
        let mut told = self.store_status.lock();
        told.called_at = Some(now);
        match reply {
            Ok(heard) => {
                if told.incarnation.is_some_and(|under| under != heard.incarnation) {
                    told.recovering = Some(heard.incarnation);
                    tracing::warn!(
                        "the store lost its share state, keeping current shares until all replicas \
                         have reported"
                    );
                }
                (told.incarnation, told.replied_at, told.is_failing) =
                    (Some(heard.incarnation), Some(now), false);
                // The store read its clock between sending and reply. The middle has the smallest
                // possible error.
                let local_time = sent.plus(Nanos(now.since(sent).0 / 2));
                told.clock = ClockReading { local_time, coordinator_time: heard.store_time };
                let mut grants = heard.replies.iter().flatten().filter_map(as_grant);
                let is_recovering = grants.any(|grant| grant.is_recovering);
                if is_recovering
                    && told.recovering.replace(heard.incarnation) != Some(heard.incarnation)
                {
                    tracing::warn!(
                        "the store does not know the requests in flight yet, keeping current shares \
                         for fleet.share_expiry and max_duration"
                    );
                }
            }
            Err(cause) => {
                if !told.is_failing {
                    let cause = cause.as_str();
                    tracing::warn!(
                        cause,
                        "failed to report shares to the store, retrying until they expire"
                    );
                }
                told.is_failing = true;
            }
        }
    }
}

const fn as_grant(reply: &Answer) -> Option<&Grant> {
    match reply {
        Answer::Grant(grant) => Some(grant),
        _ => None,
    }
}

/// Returns the schedule of the min RTT probes of one limit, during which all replicas reduce their
/// use. Each limit has its own instants, so that the load does not drop for all limits at once.
fn probe_schedule(store_clock: ClockReading, report: &ShareReport) -> ProbeSchedule {
    let offset = Nanos(SipHasher24::new().hash(&report.bucket) >> 24);
    ProbeSchedule { clock: store_clock.advanced_by(offset), heartbeat: report.law.timing.heartbeat }
}

fn reported_buckets(fleet: &FleetReporter) -> HashMap<BucketName, Arc<Bucket>> {
    fleet.reported.lock().clone()
}

/// Returns the store incarnation that granted all shares in use at this replica. `None` if a share
/// in use has no grant of it. No report may be pending during this call.
fn common_store_incarnation(
    fleet: &FleetReporter,
    active: &HashMap<BucketName, Arc<Bucket>>,
    now: Nanos,
) -> Option<Incarnation> {
    let incarnation = fleet.store_status.lock().incarnation?;
    let is_granted_by_store = |bucket: &Arc<Bucket>| match bucket.granted_by(now) {
        Ok(under) => under.is_none_or(|under| under == incarnation),
        Err(()) => false,
    };
    active.values().all(is_granted_by_store).then_some(incarnation)
}
