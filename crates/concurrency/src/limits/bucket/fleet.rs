//! A bucket of a limit in mode `shared`: its reports to the fleet, and its share.

use sluicegate_lease::clock::Clock;

use super::{Bucket, BucketState};
use crate::kernel::concurrency::adaptive::{FleetShare, ProbeSchedule};
use crate::kernel::concurrency::limiter::LimiterEvent;
use crate::kernel::coordinator::{Heartbeat, HeartbeatReply, ShareTiming};
use crate::kernel::units::{Incarnation, Nanos, Share};
use crate::limits::SharedLimit;
use crate::limits::replica_share::{ReportAction, ShareSnapshot};

/// The methods that the fleet reporter calls.
impl Bucket {
    /// Returns the next share report of this bucket if it is due. Calls `on_idle` under the lock if
    /// no report is due before the next request.
    pub(crate) fn next_report(&self, clock: &Clock, on_idle: impl FnOnce()) -> ReportAction {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.step(now, LimiterEvent::Expire);
        if state.is_retired {
            // A retired bucket has no requests in flight and no share. If the report that returned
            // its share was lost, the store keeps the share until it expires. A new bucket of this
            // name waits for that.
            on_idle();
            state.replica_share = None;
            return ReportAction::Idle;
        }
        let BucketState { replica_share: leased, limiter, .. } = &mut *state;
        let Some(leased) = leased else {
            on_idle();
            return ReportAction::Idle;
        };
        let action = leased.next_report(now, limiter);
        match &action {
            ReportAction::Idle => {
                on_idle();
                if leased.is_local() {
                    state.replica_share = None;
                }
            }
            // This report returns the share. A new request joins the fleet again and waits for a
            // new share. After this replica has left the fleet, new
            // requests are rejected.
            ReportAction::Send { report, .. } if report.is_leaving && !leased.is_local() => {
                state.step(now, LimiterEvent::Share(0));
            }
            _ => {}
        }
        action
    }

    /// Returns `true` if `report` is still worth sending. The return of a share is obsolete if the
    /// bucket has joined the fleet again.
    pub(crate) fn is_pending(&self, report: &Heartbeat) -> bool {
        self.0.lock().replica_share.as_ref().is_some_and(|leased| leased.is_newest(report))
    }

    /// Applies the store's reply to `report`. `None`: the store did not reply.
    pub(crate) fn apply_reply(
        &self,
        clock: &Clock,
        report: &Heartbeat,
        reply: Option<&HeartbeatReply>,
        probes: ProbeSchedule,
        outage_share: impl FnOnce(u32) -> Share,
    ) {
        let mut state = self.0.lock();
        let now = clock.steady();
        // Runs before the reply is applied, so that the limiter also drops an expired share.
        state.step(now, LimiterEvent::Expire);
        let BucketState { replica_share: Some(leased), rules, .. } = &mut *state else { return };
        let outage_limit = outage_share(rules.limit);
        let Some(share) =
            leased.apply_reply(now, report, reply, probes.heartbeat_clock(), outage_limit)
        else {
            return;
        };
        let number = |share: Share| u32::try_from(share.0).unwrap_or(u32::MAX);
        let event = match reply {
            Some(HeartbeatReply::Grant(grant)) => {
                let (share, ceiling) = (number(share), number(grant.limit));
                LimiterEvent::FleetShare(FleetShare { share, limit: ceiling, probes })
            }
            _ => LimiterEvent::Share(number(share)),
        };
        state.step(now, event);
    }

    pub(crate) fn return_share(&self, clock: &Clock) {
        let mut state = self.0.lock();
        let Some(leased) = &mut state.replica_share else { return };
        leased.return_share();
        if !leased.is_local() {
            state.step(clock.steady(), LimiterEvent::Fence);
        }
    }

    /// Returns the incarnation of the store that granted the share in use. `Ok(None)` if no share is
    /// in use.
    ///
    /// # Errors
    /// Requests are in flight without a valid grant.
    pub(crate) fn granted_by(&self, now: Nanos) -> Result<Option<Incarnation>, ()> {
        let state = self.0.lock();
        state
            .replica_share
            .as_ref()
            .map_or(Ok(None), |leased| leased.granted_by(now, &state.limiter))
    }

    pub(crate) fn longest_use(&self) -> Nanos {
        self.0.lock().replica_share.as_ref().map_or(Nanos(0), |leased| leased.longest_use())
    }

    pub(crate) fn share_snapshot(&self, clock: &Clock) -> Option<ShareSnapshot> {
        let state = self.0.lock();
        state.replica_share.as_ref().map(|leased| leased.snapshot(clock.steady(), &state.limiter))
    }
}

impl BucketState {
    /// Applies changed parameters of a shared limit at once. Otherwise the share reports would
    /// contain the old parameters until the next request.
    pub(super) fn apply_fleet_terms(&mut self, shared: SharedLimit, terms: ShareTiming) {
        let leased = self.replica_share.as_mut().filter(|leased| !leased.is_local());
        if let Some(leased) = leased.filter(|leased| leased.shared != shared) {
            leased.reload(shared, terms);
        }
    }

    pub(super) fn leave_fleet(&mut self, now: Nanos) {
        if let Some(leased) = self.replica_share.as_mut().filter(|leased| !leased.is_local()) {
            leased.become_local(now);
            self.step(now, LimiterEvent::Share(u32::MAX));
        }
    }
}
