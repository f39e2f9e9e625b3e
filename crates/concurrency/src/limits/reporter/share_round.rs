//! One round of reports: sends all due share reports, in one or more store calls.
//!
//! Guarantees:
//! - One store call carries at most [`reports_per_round`] reports.
//! - Limits whose requests wait for a share are reported first, then the shares that expire
//!   soonest.
//! - A round accepts new limits for a quarter of the heartbeat interval, so every round ends.
//!
//! Not covered:
//! - The content of a report: see `replica_share`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use siphasher::sip::SipHasher24;
use sluicegate_lease::clock::Clock;
use sluicegate_lease::store::StoreFailure;

use super::shares::{RecordChange, ShareReporter};
use crate::kernel::concurrency::adaptive::ProbeSchedule;
use crate::kernel::coordinator::ClockReading;
use crate::kernel::coordinator::incarnation::IncarnationRecord;
use crate::kernel::units::Nanos;
use crate::limits::BucketName;
use crate::limits::bucket::Bucket;
use crate::limits::replica_share::ReportAction;
use crate::store::heartbeat::{
    MAX_REPORTS_PER_ROUND, ShareReport, ShareRound, ShareRoundReply, reports_per_round,
};

/// A round accepts new limits for this part of the heartbeat interval: 1/4.
const ACCEPT_DIVISOR: u64 = 4;

struct DueReport {
    bucket: Arc<Bucket>,
    report: ShareReport,
    /// The number of replicas that share the limit, from the last grant. The size of the fleet
    /// before the first grant.
    replicas: u64,
    /// The time until the report must be sent, see [`ReportAction::Send`].
    time_left: Nanos,
}

/// One round of reports: all due share reports, in one or more store calls.
pub(super) struct ShareReports<'a> {
    shares: &'a ShareReporter,
    clock: &'a Clock,
    record: IncarnationRecord,
    started_at: Nanos,
    /// Reports of limits whose requests wait for a share.
    awaited: VecDeque<DueReport>,
    /// The other reports. The share that expires first comes first.
    others: VecDeque<DueReport>,
    /// The longest time from now for which a share in this round, or a request under it, may last.
    longest_use: Nanos,
    /// The buckets of the current store call.
    called: Vec<Arc<Bucket>>,
    has_sent_record: bool,
}

impl<'a> ShareReports<'a> {
    /// Collects the due reports. No other round may be active.
    pub(super) fn collect(shares: &'a ShareReporter, clock: &'a Clock) -> Self {
        let buckets = shares.buckets();
        let coordinator_incarnation = shares.common_store_incarnation(&buckets, clock.steady());
        let (replica, incarnation) = (shares.replica, shares.incarnation);
        let mut due = Self {
            shares,
            clock,
            record: IncarnationRecord { replica, incarnation, coordinator_incarnation },
            started_at: Nanos(0),
            awaited: VecDeque::new(),
            others: VecDeque::new(),
            longest_use: Nanos(shares.longest_use.load(Relaxed)),
            called: Vec::new(),
            has_sent_record: false,
        };
        due.add_awaited();
        due.add(buckets, false);
        // The most urgent reports first: the last of many reports waits long if the store is slow.
        due.others.make_contiguous().sort_by_key(|report| report.time_left);
        due.started_at = clock.steady();
        due
    }

    /// Adds the limits whose requests began to wait for a share.
    fn add_awaited(&mut self) {
        let awaited = std::mem::take(&mut *self.shares.awaited.lock());
        self.add(awaited, true);
    }

    fn add(&mut self, buckets: HashMap<BucketName, Arc<Bucket>>, is_awaited: bool) {
        let shares = self.shares;
        for (name, bucket) in buckets {
            self.longest_use = self.longest_use.max(bucket.longest_use());
            if let ReportAction::Send { law, report: heartbeat, replicas, time_left } =
                bucket.next_report(self.clock, || shares.remove_bucket(&name, &bucket))
            {
                let replicas = replicas.unwrap_or_else(|| shares.host.replicas().get().into());
                let report = ShareReport { bucket: name, law, heartbeat };
                self.queue(is_awaited).push_back(DueReport { bucket, report, replicas, time_left });
            }
        }
    }

    /// Returns the next store call: due reports, or at the end a change of this replica's record.
    /// `None` if the round is complete.
    pub(super) fn next_call(
        &mut self,
        is_store_failing: bool,
        has_left: bool,
    ) -> Option<ShareRound> {
        let (buckets, reports): (Vec<_>, Vec<_>) =
            self.take_reports().into_iter().map(|due| (due.bucket, due.report)).unzip();
        let mut is_leaving = false;
        if reports.is_empty() {
            if std::mem::replace(&mut self.has_sent_record, true) {
                return None;
            }
            let now = self.clock.steady();
            let change = self.shares.due_record_change(now, is_store_failing, has_left)?;
            is_leaving = change == RecordChange::Remove;
        }
        self.called = buckets;
        Some(ShareRound {
            record: self.record,
            last_reply_at: self.shares.last_store_time(),
            longest_use: self.longest_use,
            is_leaving,
            reports,
        })
    }

    /// Takes the reports of the next store call. Alternates between awaited and other reports, so
    /// that neither kind delays the other.
    fn take_reports(&mut self) -> Vec<DueReport> {
        let taken = (0..MAX_REPORTS_PER_ROUND).map_while(|turn| self.take_report(turn % 2 == 0));
        let mut call: Vec<(bool, DueReport)> = taken.collect();
        let max = reports_per_round(call.iter().map(|(_, due)| due.replicas));
        for (is_awaited, due) in call.split_off(max).into_iter().rev() {
            self.queue(is_awaited).push_front(due);
        }
        call.into_iter().map(|(_, due)| due).collect()
    }

    /// Takes an awaited report if `wants_awaited`, otherwise another one. Takes the other kind if
    /// there is none of the wanted kind. Returns `true` with an awaited report.
    fn take_report(&mut self, wants_awaited: bool) -> Option<(bool, DueReport)> {
        [wants_awaited, !wants_awaited].into_iter().find_map(|is_awaited| {
            let queue = self.queue(is_awaited);
            while let Some(due) = queue.pop_front() {
                if due.bucket.is_pending(&due.report.heartbeat) {
                    return Some((is_awaited, due));
                }
            }
            None
        })
    }

    const fn queue(&mut self, is_awaited: bool) -> &mut VecDeque<DueReport> {
        if is_awaited { &mut self.awaited } else { &mut self.others }
    }

    /// Applies the store's reply to the call that was sent at `sent`.
    pub(super) fn apply_reply(
        &mut self,
        round: &ShareRound,
        sent: Nanos,
        reply: &Result<ShareRoundReply, StoreFailure>,
    ) {
        let now = self.clock.steady();
        let store_clock = self.shares.record_reply(reply, sent, now, round.is_leaving);
        let replies = reply.as_ref().map_or(&[][..], |reply| &reply.replies);
        for (index, (bucket, report)) in self.called.iter().zip(&round.reports).enumerate() {
            let probes = probe_schedule(store_clock, report);
            let reply = replies.get(index).and_then(Option::as_ref);
            bucket.apply_reply(self.clock, &report.heartbeat, reply, probes, |start| {
                self.shares.outage_share(start)
            });
        }
        // Later limits wake the reporter for the next round. A round that accepted all of them might
        // never end, and shares that became due after its start would expire.
        let accept_time = self.shares.pace.heartbeat.0 / ACCEPT_DIVISOR;
        if !round.reports.is_empty() && self.clock.steady().since(self.started_at).0 < accept_time {
            self.add_awaited();
        }
    }
}

/// Returns the schedule of the min RTT probes of one limit, during which all replicas reduce their
/// use. Each limit has its own instants, so that the load does not drop for all limits at once.
fn probe_schedule(store_clock: ClockReading, report: &ShareReport) -> ProbeSchedule {
    let offset = Nanos(SipHasher24::new().hash(&report.bucket) >> 24);
    ProbeSchedule { clock: store_clock.advanced_by(offset), heartbeat: report.law.timing.heartbeat }
}
