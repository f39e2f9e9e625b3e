//! The next share report of one shared concurrency limit, and the instant at which it is due.
//!
//! Guarantees:
//! - All values of a share report are measured at one instant, under the bucket's lock.
//! - A return of the share is reported at once, then in every heartbeat interval until the store
//!   confirms it.
//!
//! Not covered:
//! - The store's reply to a report: see `replica_share`.

use super::{ReplicaShare, ShareIntent, requests_in_share};
use crate::kernel::concurrency::Limiter;
use crate::kernel::coordinator::aggregate::LimitFactor;
use crate::kernel::coordinator::share_client::LoadReport;
use crate::kernel::coordinator::{CoordinatorConfig, DemandCurve, Heartbeat};
use crate::kernel::units::{Nanos, Share};

/// The number of heartbeat intervals without requests after which a replica returns its share, so
/// that an unused limit costs the store nothing.
const IDLE_HEARTBEATS: u64 = 10;

/// The next action of the fleet reporter for one limit.
#[allow(clippy::large_enum_variant, reason = "it is moved once and not stored")]
pub(crate) enum ReportAction {
    NotDue,
    /// No report is due before the next request.
    Idle,
    /// Send this report.
    Send {
        law: CoordinatorConfig,
        report: Heartbeat,
        /// The number of replicas that share the limit, from the last grant.
        replicas: Option<u64>,
        /// The time until the report must be sent: until the share expires. For the return of a
        /// share, the lifetime of a new share.
        time_left: Nanos,
    },
}

impl ReplicaShare {
    /// Returns the next share report if it is due.
    pub(crate) fn next_report(&mut self, now: Nanos, limiter: &Limiter) -> ReportAction {
        self.usage.accumulate(now, limiter.in_flight(), limiter.queue_len());
        let load = self.measure_load(now, limiter);
        if self.member.is_none() {
            return ReportAction::Idle;
        }
        if self.intent == ShareIntent::Keep && self.is_idle(now, limiter) {
            self.intent = ShareIntent::Return;
        }
        let due = if self.intent == ShareIntent::Keep {
            self.due_heartbeat(now, &load, limiter)
        } else {
            self.due_return(now, limiter)
        };
        let Some((report, time_left)) = due else { return ReportAction::NotDue };
        (self.last_report, self.newest_number) = (Some((load, self.law, now)), Some(report.number));
        self.usage.start_window(now, &self.law.timing);
        let replicas = self.last_grant.map(|grant| grant.replicas);
        ReportAction::Send { law: self.law, report, replicas, time_left }
    }

    fn is_idle(&self, now: Nanos, limiter: &Limiter) -> bool {
        let longest = Nanos(self.law.timing.heartbeat.0.saturating_mul(IDLE_HEARTBEATS));
        let idle_since = limiter.idle_since().map(|since| since.max(self.joined_at));
        idle_since.is_some_and(|since| longest <= now.since(since))
    }

    /// Returns the next heartbeat if it is due, and the time until the share expires.
    fn due_heartbeat(
        &mut self,
        now: Nanos,
        load: &LoadReport,
        limiter: &Limiter,
    ) -> Option<(Heartbeat, Nanos)> {
        let member = self.member.as_mut()?;
        let left = member.expires_at().map_or(Nanos(0), |ends_at| ends_at.since(now));
        let fresh = self.law.timing.usable_lifetime().0 < left.0.saturating_mul(2);
        // Customers change also under the same load.
        let has_customers = limiter.distinguishes_requesters() && load.demand != Share(0);
        // A changed coordinator config must be reported, because the store keeps the share of a
        // lost replica by the last reported one.
        let same = !has_customers
            && self.last_report.is_some_and(|(said, law, _)| (said, law) == (*load, self.law));
        // `ShareClient` already lengthens the pauses between the heartbeats of a replica that waits for
        // permits. Half of the share lifetime in addition would delay free permits too long.
        let has_none = member.current_grant(now).is_none_or(|grant| grant.share == Share(0));
        let waits =
            member.early_heartbeat_at(now, load).is_some() || has_none && load.demand != Share(0);
        let is_due = member.next_heartbeat_at(now, load) <= now && (waits || !same || !fresh);
        is_due.then(|| {
            let curve = self.usage.curve(now, limiter, &self.law.timing);
            (member.next_heartbeat(now, &LoadReport { curve, ..*load }), left)
        })
    }

    /// Returns the next report that returns the share if it is due, and the lifetime of a new
    /// share.
    fn due_return(&mut self, now: Nanos, limiter: &Limiter) -> Option<(Heartbeat, Nanos)> {
        let timing = self.law.timing;
        let since = self.last_report.map(|(_, _, at)| now.since(at));
        if self.intent == ShareIntent::Return {
            self.intent = ShareIntent::ReturnReported;
        } else if since.is_some_and(|since| since < timing.heartbeat) {
            return None;
        }
        let in_flight = requests_in_share(limiter, self.local_since);
        Some((self.member.as_mut()?.last_heartbeat(now, in_flight), timing.usable_lifetime()))
    }

    fn measure_load(&self, now: Nanos, limiter: &Limiter) -> LoadReport {
        let (in_flight, waiting) = (limiter.in_flight(), limiter.queue_len());
        let least = Share(if self.last_report.is_none() { self.waiting_requests } else { 0 });
        let wanted = self.usage.wanted(now, in_flight, waiting, &self.law.timing).max(least);
        let policy = limiter.adaptive_limit();
        let vote = (self.shared.min < self.shared.max)
            .then(|| self.usage.vote(policy.wanted_limit()?, self.last_grant?.limit))
            .flatten()
            .map(|vote| if policy.is_growth_paused() { vote.min(LimitFactor::ONE) } else { vote });
        // The curve costs more, so only a report that is sent has it.
        let curve = DemandCurve::EMPTY;
        LoadReport { in_flight: Share(in_flight.into()), demand: wanted, curve, vote }
    }
}
