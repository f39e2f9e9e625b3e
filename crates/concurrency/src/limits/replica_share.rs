//! This replica's share of one shared concurrency limit.
//!
//! Guarantees:
//! - Without a valid share no request is allowed, unless `on_store_failure` allows it during a
//!   store outage.
//! - Until the store confirms the return of a share, this replica can take the share up again.
//!
//! Not covered:
//! - The next report and its instant: see `replica_share::report`.
//! - Sending the reports: see `reporter::shares`.
//! - The permits under the share: see [`Limiter`].

mod report;

use std::cmp::Ordering;
use std::sync::Arc;

use tokio::sync::watch;

use crate::host::ShareChange;
use crate::kernel::concurrency::Limiter;
use crate::kernel::coordinator::share_client::{GrantOutcome, LoadReport};
use crate::kernel::coordinator::{
    ClockReading, ConcurrencyFallback, CoordinatorConfig, Grant, Heartbeat, HeartbeatReply,
    ShareClient, ShareTiming,
};
use crate::kernel::units::{Incarnation, Nanos, ReplicaId, Share};
use crate::limits::reporter::share_totals::ShareTotals;
use crate::limits::shared_limit::SharedLimit;
use crate::limits::usage::UsageMeter;
pub(crate) use report::ReportAction;

#[derive(Debug)]
pub(crate) struct ReplicaShare {
    pub(crate) shared: SharedLimit,
    law: CoordinatorConfig,
    incarnation: Incarnation,
    /// `None` if this replica has no share of this limit and no requests in flight under it.
    member: Option<ShareClient>,
    intent: ShareIntent,
    joined_at: Nanos,
    /// The instant since which the limit is not shared. Only the return of the share is still
    /// pending.
    local_since: Option<Nanos>,
    pub(super) usage: UsageMeter,
    /// The last reported load, with the coordinator config and the instant of its report.
    last_report: Option<(LoadReport, CoordinatorConfig, Nanos)>,
    /// The number of the newest report since this replica last joined. Replies to older reports are
    /// ignored.
    newest_number: Option<u64>,
    last_grant: Option<Grant>,
    outage: bool,
    /// The number of requests that wait for the store's first reply.
    waiting_requests: u64,
    reply_notifier: watch::Sender<()>,
    fences: u64,
    handoffs: u64,
    totals: Arc<ShareTotals>,
    /// The instant since which the share is below the fair share.
    below_fair_since: Option<Nanos>,
    handoff_took: Option<Nanos>,
}

/// The next step with the share: keep it or return it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShareIntent {
    Keep,
    /// Return the share. The return has not been reported yet.
    Return,
    /// The return was reported. The store confirmed it, or its reply is pending.
    ReturnReported,
    /// The return was reported, but the store refused it or did not reply. It is reported again.
    ReturnUnconfirmed,
}

/// A snapshot of one fleet-wide limit at this replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareSnapshot {
    /// The newest grant of the store.
    pub grant: Option<Grant>,
    /// The valid share. During a store outage, the limit that applies at this replica instead.
    pub share: Share,
    /// The time until the share expires.
    pub time_left: Nanos,
    /// The requests in flight.
    pub in_flight: u32,
    /// The last reported demand: the permits that this replica could use.
    pub wanted: Share,
    /// The number of shares that expired.
    pub fences: u64,
    /// The number of times that the share grew by permits from other replicas.
    pub handoffs: u64,
    /// The duration of the last handoff: from the first grant below the fair share to the grant
    /// that reached the fair share.
    pub handoff_duration: Option<Nanos>,
    /// `true` while the store is unavailable and `on_store_failure` applies.
    pub is_outage: bool,
}

impl ReplicaShare {
    pub(crate) fn new(
        shared: SharedLimit,
        terms: ShareTiming,
        now: Nanos,
        totals: Arc<ShareTotals>,
    ) -> Self {
        Self {
            shared,
            law: shared.coordinator_config(terms),
            incarnation: Incarnation(0),
            member: None,
            intent: ShareIntent::Keep,
            joined_at: now,
            local_since: None,
            usage: UsageMeter::new(now),
            last_report: None,
            newest_number: None,
            last_grant: None,
            outage: false,
            waiting_requests: 0,
            reply_notifier: watch::Sender::new(()),
            fences: 0,
            handoffs: 0,
            totals,
            below_fair_since: None,
            handoff_took: None,
        }
    }

    pub(crate) fn reload(&mut self, shared: SharedLimit, terms: ShareTiming) {
        (self.shared, self.law) = (shared, shared.coordinator_config(terms));
        if let Some(member) = &mut self.member {
            member.reload(terms);
        }
    }

    /// Joins the fleet for this limit, with a new incarnation. Keeps the old incarnation if its
    /// return is unconfirmed.
    pub(crate) fn join(&mut self, now: Nanos, id: ReplicaId, incarnation: Incarnation) {
        if let Some(member) = &mut self.member {
            // Under a new incarnation, this replica would have to wait until the store frees its
            // old share, as for the share of a lost replica.
            member.cancel_leave();
        } else {
            self.incarnation = incarnation;
            self.member = Some(ShareClient::new(id, incarnation, self.law.timing));
        }
        (self.joined_at, self.newest_number) = (now, None);
        (self.intent, self.local_since, self.outage) = (ShareIntent::Keep, None, false);
        (self.last_report, self.last_grant, self.below_fair_since, self.waiting_requests) =
            (None, None, None, 0);
    }

    /// Returns `true` if this replica is in the fleet and does not return its share.
    pub(crate) const fn is_in_fleet(&self) -> bool {
        self.member.is_some() && !self.is_leaving()
    }

    /// Returns `true` if the store may still list the share. The bucket must stay then: a new
    /// incarnation would wait for the share as for that of a lost replica. `false` after a return
    /// without a reply, because buckets must not accumulate while the store is unavailable.
    pub(crate) const fn is_in_use(&self) -> bool {
        self.member.is_some() && !matches!(self.intent, ShareIntent::ReturnUnconfirmed)
    }

    /// Returns `true` until the store's first reply after a join. A new request should wait for it.
    pub(crate) const fn is_share_unknown(&self) -> bool {
        self.member.is_none() || self.is_leaving() || (self.last_grant.is_none() && !self.outage)
    }

    /// Counts a request that waits for the share, and returns a receiver that is notified of the
    /// store's next reply.
    pub(crate) fn subscribe(&mut self) -> watch::Receiver<()> {
        self.waiting_requests = self.waiting_requests.saturating_add(1);
        self.reply_notifier.subscribe()
    }

    /// Stops sharing the limit, and returns the share with the next report.
    pub(crate) const fn become_local(&mut self, now: Nanos) {
        self.local_since = Some(now);
        self.return_share();
    }

    pub(crate) const fn is_local(&self) -> bool {
        self.local_since.is_some()
    }

    /// Returns the share to the store with the next report.
    pub(crate) const fn return_share(&mut self) {
        if !self.is_leaving() {
            self.intent = ShareIntent::Return;
        }
    }

    const fn is_leaving(&self) -> bool {
        !matches!(self.intent, ShareIntent::Keep)
    }

    /// Returns `true` if the share expired since the last call. A limit that is not shared has no
    /// share. `limit_path` is the path of the limit in the configuration.
    pub(crate) fn fence(&mut self, now: Nanos, limit_path: &str) -> bool {
        let is_over = self.member.as_mut().is_some_and(|member| member.fence(now));
        let fenced = is_over && !self.is_local();
        if fenced {
            self.fences = self.fences.saturating_add(1);
            self.totals.count_fence(limit_path);
        }
        fenced
    }

    /// Returns the incarnation of the store that granted the share in use at this replica.
    /// `Ok(None)` if no share is in use.
    ///
    /// # Errors
    /// Requests are in flight without a valid grant.
    pub(crate) fn granted_by(
        &self,
        now: Nanos,
        limiter: &Limiter,
    ) -> Result<Option<Incarnation>, ()> {
        match self.member.as_ref().and_then(|member| member.coordinator_incarnation(now)) {
            Some(life) => Ok(Some(life)),
            None if requests_in_share(limiter, self.local_since) == Share(0) => Ok(None),
            None => Err(()),
        }
    }

    /// Returns the longest time from now for which the share, or a request under it, may last.
    pub(crate) const fn longest_use(&self) -> Nanos {
        self.law.timing.longest_use()
    }

    /// Returns `true` if `report` is the newest report of the current share incarnation.
    pub(crate) fn is_newest(&self, report: &Heartbeat) -> bool {
        (report.incarnation, Some(report.number)) == (self.incarnation, self.newest_number)
    }

    /// Applies the store's reply to `report`. `None`: the store did not reply. Returns the new
    /// share if it changes.
    pub(crate) fn apply_reply(
        &mut self,
        now: Nanos,
        report: &Heartbeat,
        reply: Option<&HeartbeatReply>,
        clock: ClockReading,
        outage_share: Share,
    ) -> Option<Share> {
        if !self.is_newest(report) {
            return None;
        }
        let member = self.member.as_mut()?;
        member.set_clock(clock);
        if report.is_leaving {
            let is_heard = reply == Some(&HeartbeatReply::Left);
            self.intent =
                if is_heard { ShareIntent::ReturnReported } else { ShareIntent::ReturnUnconfirmed };
        }
        let share = match reply {
            Some(HeartbeatReply::Grant(grant)) => match member.apply_grant(now, grant) {
                GrantOutcome::Applied(before) => {
                    self.record_grant(now, before, *grant);
                    Some(grant.share)
                }
                GrantOutcome::Ignored => None,
            },
            Some(HeartbeatReply::Left) => {
                if report.in_flight == Share(0) {
                    (self.member, self.last_grant) = (None, None);
                    (self.intent, self.outage) = (ShareIntent::Keep, false);
                }
                None
            }
            // The store replied, so the outage is over, although the store granted no share.
            Some(_) => {
                member.discard_reply();
                std::mem::take(&mut self.outage).then_some(Share(0))
            }
            None => {
                member.discard_reply();
                self.outage_share(now, outage_share)
            }
        };
        self.reply_notifier.send_replace(());
        share.filter(|_| !self.is_local() && !self.is_leaving())
    }

    fn record_grant(&mut self, now: Nanos, before: Share, grant: Grant) {
        let was_below_fair_share = self.last_grant.is_some_and(|last| last.share < last.fair_share);
        match before.cmp(&grant.share) {
            Ordering::Less if was_below_fair_share => {
                self.handoffs = self.handoffs.saturating_add(1);
                self.totals.count_change(ShareChange::HandedOver);
            }
            Ordering::Less => self.totals.count_change(ShareChange::Grown),
            Ordering::Greater => self.totals.count_change(ShareChange::Shrunk),
            Ordering::Equal => {}
        }
        if grant.fair_share <= grant.share {
            let took = self.below_fair_since.take().map(|since| now.since(since));
            self.handoff_took = took.or(self.handoff_took);
        } else {
            self.below_fair_since = self.below_fair_since.or(Some(now));
        }
        if before != grant.share {
            self.usage.set_share(grant.share);
        }
        (self.last_grant, self.outage) = (Some(grant), false);
    }

    /// Returns the share that applies during a store outage. `None` while a granted share is valid.
    fn outage_share(&mut self, now: Nanos, alone: Share) -> Option<Share> {
        if self.member.as_ref().is_some_and(|member| member.current_grant(now).is_some()) {
            return None;
        }
        if !std::mem::replace(&mut self.outage, true) {
            self.totals.count_change(ShareChange::Outage);
        }
        Some(match self.shared.on_failure {
            ConcurrencyFallback::Deny => Share(0),
            // Other replicas still use the permits that they have not returned.
            // The sum of shares that were valid at the same time never exceeds the
            // limit. A sum of fair shares from different instants can exceed it.
            ConcurrencyFallback::Local => {
                self.last_grant.map_or(alone, |last| last.fair_share.min(last.share))
            }
            ConcurrencyFallback::Allow => Share(u64::MAX),
        })
    }

    pub(crate) fn snapshot(&self, now: Nanos, limiter: &Limiter) -> ShareSnapshot {
        let member = self.member.as_ref();
        let grant = member.and_then(|member| member.current_grant(now)).copied();
        let alone = if self.outage { limiter.limit() } else { 0 };
        ShareSnapshot {
            grant: grant.or(self.last_grant),
            share: grant.map_or(Share(alone.into()), |grant| grant.share),
            time_left: member
                .and_then(ShareClient::expires_at)
                .map_or(Nanos(0), |ends_at| ends_at.since(now)),
            in_flight: limiter.in_flight(),
            wanted: self.last_report.map_or(Share(0), |(load, ..)| load.demand),
            fences: self.fences,
            handoffs: self.handoffs,
            handoff_duration: self.handoff_took,
            is_outage: self.outage,
        }
    }
}

/// Returns the requests in flight under the share. If the limit is no longer shared, later requests
/// do not count; otherwise a busy limit could never return its share.
fn requests_in_share(limiter: &Limiter, local_since: Option<Nanos>) -> Share {
    let Some(alone) = local_since else { return Share(limiter.in_flight().into()) };
    let before = limiter.permits().filter(|(_, since)| *since <= alone).count();
    Share(u64::try_from(before).unwrap_or(u64::MAX))
}
