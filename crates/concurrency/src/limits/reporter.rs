//! Reports this replica to the store: its shares of concurrency limits, its permits of strict
//! limits, and its membership heartbeat.
//!
//! Proxies use this module, too, but do not leave the fleet.
//!
//! Guarantees:
//! - Two rounds of reports never overlap.
//! - The parts of a report that are due at the same time share a store call.
//! - Only the first requests of a shared limit wait for a report, until this replica knows its
//!   share.
//! - A replica that leaves the fleet returns its shares and permits within two seconds if the store
//!   replies.
//!
//! Not covered:
//! - The content of the parts: see `shares` and `permits`.
//! - The list of live replicas.
//! - The coordinator, which splits limits into shares.

pub(crate) mod permit_ledger;
mod permits;
mod share_pace;
mod share_round;
pub mod share_totals;
mod shares;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use siphasher::sip::SipHasher24;
use sluicegate_lease::clock::Clock;
use tokio::sync::{Mutex as RoundLock, watch};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use crate::host::Host;
use crate::kernel::concurrency::limiter::LimiterConfig;
use crate::kernel::coordinator::{ConcurrencyFallback, ShareTiming};
use crate::kernel::units::{Incarnation, Nanos, ReplicaId};
use crate::limits::bucket::Bucket;
use crate::limits::{BucketName, ShareSnapshot, SharedLimit, StrictLimit, StrictSnapshot};
use crate::store::fleet::{FleetReport, MembershipHeartbeat, MembershipReply};
use crate::store::{SharedStore, StoreFailure};
use permit_ledger::PermitLedger;
use permits::{PermitReporter, PermitReports};
pub use share_pace::SharePace;
use share_round::ShareReports;
use share_totals::ShareTotals;
use shares::ShareReporter;

/// The longest time that a replica that leaves the fleet waits for the current round of reports.
const LEAVE_ROUND_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest time that a replica takes to leave the fleet. Shares and permits that it has not
/// returned by then expire.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The largest number of polls for due share reports in one heartbeat interval.
const POLLS_PER_HEARTBEAT: u64 = 100;

/// The largest number of reported limits with which every tick polls for due share reports.
const FAST_POLL_LIMITS: usize = 64;

/// With more than [`FAST_POLL_LIMITS`] limits, every fifth tick polls for due share reports: once in
/// the shortest pause between two reports.
const SLOW_POLL_TICKS: u64 = 5;

/// Reports one incarnation of this replica to the store.
#[derive(Debug)]
pub struct FleetReporter {
    first_reply_timeout: Duration,
    host: Arc<dyn Host>,
    shares: ShareReporter,
    permits: PermitReporter,
    /// Locked during a round of reports.
    round_lock: RoundLock<()>,
    has_left: AtomicBool,
}

/// The parts of a round of reports. Permit reports are part of every round.
#[derive(Debug, Default)]
pub struct RoundParts {
    membership: Option<MembershipHeartbeat>,
    has_shares: bool,
    /// The round reports all permits, because no later round will.
    is_last: bool,
}

impl RoundParts {
    /// Returns a round of all reports that are due, and of the heartbeat for the list of live
    /// replicas.
    #[must_use]
    pub fn with_heartbeat(membership: Option<MembershipHeartbeat>) -> Self {
        Self { membership, has_shares: true, ..Self::default() }
    }
}

/// The timer of a loop that sends the reports of one replica.
#[derive(Debug)]
pub struct ReportTimer {
    polls: Interval,
    tick: u64,
}

/// The store's reply to the heartbeat, if the round had one.
pub type MembershipResult = Option<Result<MembershipReply, StoreFailure>>;

impl FleetReporter {
    /// Creates a reporter that has sent no report yet.
    ///
    /// The incarnation must be larger than that of every earlier start of this replica.
    /// `first_reply_timeout` is the longest time that the first request of a limit waits for the
    /// share.
    #[must_use]
    pub fn new(
        host: Arc<dyn Host>,
        incarnation: Nanos,
        pace: SharePace,
        first_reply_timeout: Duration,
    ) -> Self {
        // The store's numbers are exact up to 2^53. So the incarnation is in microseconds, and the
        // replica id is 52 bits of a hash.
        let incarnation = Incarnation(incarnation.0 / Nanos::MICRO.0);
        let replica_hash = SipHasher24::new().hash(host.name().as_bytes()) >> 12;
        let replica = ReplicaId(replica_hash);
        let process = (replica_hash, incarnation.0);
        let permits = PermitReporter::new(PermitLedger::new(Arc::clone(&host), process, pace));
        Self {
            first_reply_timeout,
            shares: ShareReporter::new(Arc::clone(&host), replica, incarnation, pace),
            host,
            permits,
            round_lock: RoundLock::default(),
            has_left: AtomicBool::new(false),
        }
    }

    /// Returns the parameters of a limit in mode `strict` at this replica.
    #[must_use]
    pub fn strict_limit(
        &self,
        rules: &LimiterConfig,
        max_duration: Nanos,
        on_failure: ConcurrencyFallback,
    ) -> StrictLimit {
        let outage_limit = match on_failure {
            ConcurrencyFallback::Deny => 0,
            ConcurrencyFallback::Local => {
                u32::try_from(self.shares.outage_share(rules.limit).0).unwrap_or(0)
            }
            ConcurrencyFallback::Allow => u32::MAX,
        };
        StrictLimit { queue: rules.queue, max_duration, outage_limit }
    }

    /// Switches the heartbeats for strict limits on or off. Switched on, a permit report is sent in
    /// every heartbeat interval, even without permits.
    pub fn expect_strict(&self, has_strict_limits: bool) {
        self.permits.expect_strict(has_strict_limits);
    }

    /// Records the longest time for which a share of these limits or its requests can last, before
    /// the first request uses them.
    pub fn expect_shared(&self, limits: impl Iterator<Item = SharedLimit>) {
        let longest = limits.map(|limit| self.share_timing(limit.max_duration).longest_use()).max();
        self.shares.expect_longest_use(longest.unwrap_or_default());
    }

    /// Returns the longest time for which a share or its requests can last, over all limits so far.
    #[must_use]
    pub fn longest_use(&self) -> Nanos {
        Nanos(self.shares.longest_use.load(Relaxed))
    }

    /// Returns snapshots of at most `max` strict limits in use, sorted by bucket name.
    #[must_use]
    pub fn strict_snapshots(&self, max: usize) -> Vec<(BucketName, StrictSnapshot)> {
        self.permits.snapshots(max)
    }

    /// Returns snapshots of at most `max` shared limits, sorted by bucket name.
    #[must_use]
    pub fn share_snapshots(&self, clock: &Clock, max: usize) -> Vec<(BucketName, ShareSnapshot)> {
        self.shares.snapshots(clock, max)
    }

    /// Returns the numbers of fences and handoffs since the start of this replica, over all limits.
    #[must_use]
    pub const fn totals(&self) -> &Arc<ShareTotals> {
        &self.shares.totals
    }

    /// Returns the store's incarnation from its last reply, this replica's id, and this replica's
    /// incarnation.
    #[must_use]
    pub fn incarnations(&self) -> (Option<Incarnation>, ReplicaId, Incarnation) {
        (self.shares.store_incarnation(), self.shares.replica, self.shares.incarnation)
    }

    /// Returns the timing of share reports.
    #[must_use]
    pub const fn pace(&self) -> SharePace {
        self.shares.pace
    }

    pub(crate) const fn ledger(&self) -> &Arc<PermitLedger> {
        &self.permits.ledger
    }

    /// Reports the permits of a bucket in mode `strict` from now on.
    pub(crate) fn add_strict_bucket(&self, name: &[u8], bucket: &Arc<Bucket>) {
        self.permits.add_bucket(name, bucket);
    }

    pub(crate) const fn replica(&self) -> ReplicaId {
        self.shares.replica
    }

    pub(crate) fn has_left(&self) -> bool {
        self.has_left.load(Relaxed)
    }

    /// Returns the incarnation of a new share: larger than all earlier ones of this replica.
    pub(crate) fn next_incarnation(&self) -> Incarnation {
        self.shares.next_incarnation()
    }

    pub(crate) fn share_timing(&self, max_duration: Nanos) -> ShareTiming {
        self.shares.pace.timing(max_duration)
    }

    /// Adds the bucket to the share reports, and wakes the reporter for its first report.
    pub(crate) fn add_bucket(&self, name: &[u8], bucket: &Arc<Bucket>) {
        self.shares.add_bucket(name, bucket);
    }

    /// Waits for the store's next reply, at most for the given time and for the first-reply timeout
    /// of this reporter.
    pub(crate) async fn wait_for_reply(&self, mut replies: watch::Receiver<()>, max_wait: Nanos) {
        let wait = self.first_reply_timeout.min(Duration::from_nanos(max_wait.0));
        if !wait.is_zero() {
            // After a timeout the bucket decides by the current share.
            drop(timeout(wait, replies.changed()).await);
        }
    }

    /// Sends the share reports and permit reports that are due now, and applies the replies.
    pub async fn report_once(&self, clock: &Clock, store: &dyn SharedStore) {
        let parts = RoundParts { has_shares: true, ..RoundParts::default() };
        self.report(clock, store, parts).await;
    }

    /// Sends all due reports of these parts, and applies the replies. Sends nothing after
    /// [`Self::leave`].
    pub async fn report(
        &self,
        clock: &Clock,
        store: &dyn SharedStore,
        parts: RoundParts,
    ) -> MembershipResult {
        let _round = self.round_lock.lock().await;
        // The replica may have left during the wait for the lock.
        if self.has_left() { None } else { self.run_round(clock, store, parts).await }
    }

    /// Leaves the fleet: returns the shares, releases the permits of ended requests, and removes
    /// this replica's records from the store.
    ///
    /// Waits at most one second for the current round, and at most two seconds in total. Shares,
    /// permits and records that the store still has by then expire.
    pub async fn leave(&self, clock: &Clock, store: &dyn SharedStore) {
        if self.has_left.swap(true, Relaxed) {
            return;
        }
        self.shares.return_shares(clock);
        let reports = async {
            let Ok(_round) = timeout(LEAVE_ROUND_TIMEOUT, self.round_lock.lock()).await else {
                return;
            };
            let parts = RoundParts { membership: None, has_shares: true, is_last: true };
            self.run_round(clock, store, parts).await;
            // The first round returned the shares. The second one removes the replica's records.
            let membership = self.host.departure();
            let parts = RoundParts { membership, has_shares: true, is_last: false };
            if let Some(Err(failure)) = self.run_round(clock, store, parts).await {
                tracing::debug!(
                    cause = failure.as_str(),
                    "failed to leave the fleet, the membership entry expires"
                );
            }
        };
        drop(timeout(LEAVE_TIMEOUT, reports).await);
    }

    /// Sends all due reports of these parts. The caller must have locked `round_lock`.
    async fn run_round(
        &self,
        clock: &Clock,
        store: &dyn SharedStore,
        parts: RoundParts,
    ) -> MembershipResult {
        let mut shares = parts.has_shares.then(|| ShareReports::collect(&self.shares, clock));
        let mut permits = PermitReports::collect(&self.permits, clock, parts.is_last);
        let (mut membership, mut membership_reply) = (parts.membership, None);
        loop {
            let is_failing = store.current_failure().is_some();
            let next_shares =
                shares.as_mut().and_then(|it| it.next_call(is_failing, self.has_left()));
            let report = FleetReport {
                membership: membership.take(),
                shares: next_shares,
                permits: permits.next_call(),
            };
            if report.is_empty() {
                return membership_reply;
            }
            let sent = clock.steady();
            let reply = store.report(sent, &report).await;
            if let (Some(shares), Some(round), Some(reply)) =
                (&mut shares, &report.shares, &reply.shares)
            {
                shares.apply_reply(round, sent, reply);
            }
            if let (Some(round), Some(reply)) = (report.permits, reply.permits) {
                permits.apply_reply(round, reply);
            }
            membership_reply = membership_reply.or(reply.membership);
        }
    }

    /// Returns this replica's part of the fleet-wide limit of a bucket, for metrics that are summed
    /// over all replicas. The part is not enforced.
    #[must_use]
    pub fn metric_part(&self, bucket: &[u8], limit: u32) -> u32 {
        self.host.metric_part(bucket, limit)
    }

    /// Returns the timer for [`Self::next_round`].
    #[must_use]
    pub fn timer(&self) -> ReportTimer {
        let poll = self.shares.pace.heartbeat.0.div_ceil(POLLS_PER_HEARTBEAT).max(1);
        let mut polls = interval(Duration::from_nanos(poll));
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ReportTimer { polls, tick: 0 }
    }

    /// Waits until reports may be due. Safe to cancel.
    pub async fn next_round(&self, timer: &mut ReportTimer) -> RoundParts {
        let has_shares = tokio::select! {
            _ = timer.polls.tick() => {
                timer.tick = timer.tick.wrapping_add(1);
                self.is_poll_tick(timer.tick)
            }
            () = self.shares.wake.notified() => true,
            () = self.permits.ledger.wake.notified() => false,
        };
        RoundParts { has_shares, ..RoundParts::default() }
    }

    /// Returns `true` if this tick polls for due share reports. A poll examines all limits, so polls
    /// are rarer with many limits.
    fn is_poll_tick(&self, tick: u64) -> bool {
        tick.is_multiple_of(SLOW_POLL_TICKS) || self.shares.bucket_count() <= FAST_POLL_LIMITS
    }
}
