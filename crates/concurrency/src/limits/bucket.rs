//! One bucket: a concurrency limit behind a lock, with its waiting requests.
//!
//! Guarantees:
//! - The effects of a limiter event are applied under the same lock, so no request is woken twice.
//! - A permit that was granted to a canceled request goes to the next waiting request.
//! - A request that carries parameters from before a reload does not restore them.
//!
//! Not covered:
//! - The name of the bucket: see `bucket_map`.

mod strict;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sluicegate_lease::clock::Clock;
use tokio::sync::{oneshot, watch};

use crate::kernel::concurrency::adaptive::{FleetShare, ProbeSchedule};
use crate::kernel::concurrency::limiter::{
    AcquireDenial, LimiterConfig, LimiterEffect, LimiterEffects, LimiterEvent,
};
use crate::kernel::concurrency::{
    Limiter, Permit, QueueTicket, ReportedOutcome, RequestOutcome, RetryAfterRule,
};
use crate::kernel::coordinator::{Heartbeat, HeartbeatReply, ShareTiming};
use crate::kernel::units::{Incarnation, Nanos, Revision, Share};
use crate::limits::replica_share::{ReplicaShare, ReportAction, ShareSnapshot, SharedLimit};
use crate::limits::reporter::FleetReporter;
use crate::limits::{BucketLoad, BucketMetrics, PermitRequest};
pub(crate) use strict::AcquireReply;
use strict::StrictPermits;

#[derive(Debug)]
pub(crate) struct Bucket(Mutex<BucketState>);

#[derive(Debug)]
struct BucketState {
    limiter: Limiter,
    /// The path of the limit in the configuration, for events.
    limit_path: Box<str>,
    revision: Revision,
    rules: LimiterConfig,
    /// The smoothed latency of successful requests. Each new request has a weight of 1/8.
    rtt: Option<Nanos>,
    /// This replica's share. Set while the limit is shared with the fleet.
    replica_share: Option<Box<ReplicaShare>>,
    /// The instant at which a share last expired. Requests from before may exceed the fleet's limit.
    fenced_at: Option<Nanos>,
    /// The permits that the store counts. Set once the limit was used in mode `strict`.
    strict_permits: Option<Box<StrictPermits>>,
    waiters: HashMap<QueueTicket, oneshot::Sender<Permit>>,
    /// `true` after the removal from the map. A request that still finds this bucket must look up
    /// its name again.
    is_retired: bool,
}

pub(crate) enum AcquireStep {
    Allowed(Permit),
    Queued(QueuedRequest),
    Rejected(AcquireDenial),
    /// This replica does not know its share yet. The request retries after the store's next reply.
    ShareUnknown(watch::Receiver<()>),
}

/// A request in the queue. Dropping it removes the queue entry, or releases a permit just granted.
pub(crate) struct QueuedRequest {
    bucket: Arc<Bucket>,
    clock: Arc<Clock>,
    ticket: QueueTicket,
    patience: Nanos,
    permit: oneshot::Receiver<Permit>,
}

impl Bucket {
    /// Creates the bucket of the first request.
    pub(crate) fn new(request: &PermitRequest<'_>, jitter: u64) -> Self {
        let (revision, rules) = (request.revision, request.rules);
        let limiter = Limiter::new(rules, jitter);
        let (rules, waiters) = (*rules, HashMap::new());
        let (rtt, leased, strict, retired) = (None, None, None, false);
        let state = BucketState {
            limiter,
            limit_path: request.limit_path.into(),
            revision,
            rules,
            rtt,
            replica_share: leased,
            fenced_at: None,
            strict_permits: strict,
            waiters,
            is_retired: retired,
        };
        Self(Mutex::new(state))
    }

    /// Tries to acquire a permit. A request that `has_waited` for the store's reply is decided by
    /// the current share. Returns `None` if the bucket was removed from the map.
    pub(crate) fn try_acquire(
        self: &Arc<Self>,
        clock: &Arc<Clock>,
        ask: &PermitRequest<'_>,
        fleet: Option<&FleetReporter>,
        has_waited: bool,
    ) -> Option<AcquireStep> {
        let mut state = self.0.lock();
        if state.is_retired {
            return None;
        }
        // Read under the lock, so that the limiter's events have increasing times.
        let now = clock.steady();
        state.reload(now, ask.revision, ask.rules);
        if let Some(fleet) = fleet.filter(|_| state.has_to_join(ask))
            && let Some(answers) = state.join_fleet(now, ask, fleet, self)
            && !has_waited
        {
            return Some(AcquireStep::ShareUnknown(answers));
        }
        let PermitRequest { permit_lifetime: lifetime, queue_timeout: timeout, .. } = *ask;
        let mut effects = state.step(now, LimiterEvent::Acquire { lifetime, timeout });
        Some(match effects.pop()? {
            LimiterEffect::Admit(permit) => AcquireStep::Allowed(permit),
            LimiterEffect::Queue(ticket) => {
                AcquireStep::Queued(self.enqueue(&mut state, clock, ticket, timeout))
            }
            LimiterEffect::Deny(denial) => AcquireStep::Rejected(denial),
            _ => return None,
        })
    }

    /// Applies `event`, wakes or rejects waiting requests, and returns the effects for the caller.
    pub(crate) fn step(&self, clock: &Clock, event: LimiterEvent) -> LimiterEffects {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.step(now, event)
    }

    /// Releases `permit`. The rules of the limit decide the outcome of the request. Returns `false`
    /// if the permit had expired.
    pub(crate) fn release(
        &self,
        clock: &Clock,
        permit: Permit,
        reported: ReportedOutcome,
        rtt: Option<Nanos>,
    ) -> bool {
        let mut state = self.0.lock();
        let now = clock.steady();
        let outcome = state.rules.overloaded_by.classify(reported);
        let event = LimiterEvent::Release { permit, outcome, rtt };
        state.record_latency(now, event);
        let is_released = !state.step(now, event).contains(&LimiterEffect::Unknown);
        if outcome == RequestOutcome::Dropped
            && state.rules.retry_after == RetryAfterRule::Honour
            && let Some(wait) = reported.retry_after()
        {
            state.step(now, LimiterEvent::PauseGrowth(wait));
        }
        is_released
    }

    /// Applies the limiter parameters `rules` of configuration `revision`. Without `shared`, this
    /// replica returns its share of the limit.
    pub(crate) fn reload(
        &self,
        clock: &Clock,
        revision: Revision,
        rules: &LimiterConfig,
        shared: Option<(SharedLimit, ShareTiming)>,
    ) {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.reload(now, revision, rules);
        match shared {
            Some((shared, terms)) => state.apply_fleet_terms(shared, terms),
            None => state.leave_fleet(now),
        }
        if let Some(strict) = &state.strict_permits {
            strict.queue.wake_first();
        }
    }

    /// Returns the instant at which `permit` was acquired. `None` if it was released or has
    /// expired.
    pub(crate) fn acquired_at(&self, clock: &Clock, permit: Permit) -> Option<Nanos> {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.step(now, LimiterEvent::Expire);
        state.limiter.admitted_at(permit)
    }

    /// Returns `true` if this replica's share expired after `permit` was acquired. `false` if the
    /// permit was released or has expired.
    pub(crate) fn is_fenced(&self, clock: &Clock, permit: Permit) -> bool {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.step(now, LimiterEvent::Expire);
        let Some(fenced_at) = state.fenced_at else { return false };
        state.limiter.admitted_at(permit).is_some_and(|acquired_at| acquired_at < fenced_at)
    }

    /// Releases permits whose deadline has passed. Returns the instant since which no request is in
    /// flight or queued.
    pub(crate) fn sweep(&self, clock: &Clock) -> Option<Nanos> {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.step(now, LimiterEvent::Expire);
        state.limiter.idle_since()
    }

    /// Returns the instant since which the bucket has no requests, no share and no unsent reports.
    pub(crate) fn unused_since(&self) -> Option<Nanos> {
        self.0.lock().unused_since()
    }

    /// Marks the bucket as removed if it is unused and the predicate accepts the instant since
    /// which it is unused. Returns `true` if it is marked.
    pub(crate) fn retire(&self, is_old: impl Fn(Nanos) -> bool) -> bool {
        let mut state = self.0.lock();
        state.is_retired = state.unused_since().is_some_and(is_old);
        state.is_retired
    }

    /// Returns `true` if this replica is in the fleet of a shared limit.
    pub(crate) fn has_share(&self) -> bool {
        let state = self.0.lock();
        state.replica_share.as_ref().is_some_and(|share| share.is_in_fleet())
    }

    /// Returns `true` before the first share of a shared limit.
    pub(crate) fn is_share_unknown(&self) -> bool {
        let state = self.0.lock();
        state.replica_share.as_ref().is_some_and(|share| share.is_share_unknown())
    }

    pub(crate) fn load(&self) -> BucketLoad {
        self.snapshot().load
    }

    pub(crate) fn snapshot(&self) -> BucketMetrics {
        let state = self.0.lock();
        let (limiter, rtt) = (&state.limiter, state.rtt);
        let (in_flight, waiting) =
            (limiter.in_flight(), limiter.queue_len() + state.queue_length());
        let load = BucketLoad { in_flight, waiting, limit: limiter.limit() };
        BucketMetrics { load, rtt, min_rtt: limiter.adaptive_limit().min_rtt() }
    }

    pub(crate) fn acquire_instants(&self) -> Vec<Nanos> {
        self.0.lock().limiter.permits().map(|(_, since)| since).collect()
    }

    fn enqueue(
        self: &Arc<Self>,
        state: &mut BucketState,
        clock: &Arc<Clock>,
        ticket: QueueTicket,
        patience: Nanos,
    ) -> QueuedRequest {
        let (sender, permit) = oneshot::channel();
        state.waiters.insert(ticket, sender);
        let timeout = state.rules.queue.map_or(patience, |queue| queue.timeout);
        let (patience, clock) = (timeout.min(patience), Arc::clone(clock));
        QueuedRequest { bucket: Arc::clone(self), clock, ticket, patience, permit }
    }
}

impl BucketState {
    fn unused_since(&self) -> Option<Nanos> {
        let has_share = self.replica_share.as_ref().is_some_and(|leased| leased.is_in_use());
        let has_strict_permits =
            self.strict_permits.as_ref().is_some_and(|strict| strict.is_in_use());
        self.limiter.idle_since().filter(|_| !has_share && !has_strict_permits)
    }

    /// Ignores parameters of an earlier revision: a check that started before a reload may arrive
    /// after it.
    fn reload(&mut self, now: Nanos, revision: Revision, rules: &LimiterConfig) {
        if revision < self.revision {
            return;
        }
        self.revision = revision;
        if self.rules != *rules {
            self.rules = *rules;
            self.step(now, LimiterEvent::Reload(*rules));
        }
    }

    /// Updates the smoothed latency. Must run before the limiter releases the permit, because only
    /// the limiter knows the acquire instant.
    fn record_latency(&mut self, now: Nanos, event: LimiterEvent) {
        let LimiterEvent::Release { permit, outcome: RequestOutcome::Success, rtt } = event else {
            return;
        };
        let Some(since) = self.limiter.admitted_at(permit) else { return };
        let (new, old) = (rtt.unwrap_or(now.since(since)), self.rtt);
        let smoothed =
            |old: Nanos| Nanos(old.0.saturating_sub(old.0 / 8).saturating_add(new.0 / 8));
        self.rtt = Some(old.map_or(new, smoothed));
    }

    /// Applies `event`, wakes or rejects waiting requests, and returns the effects for the caller
    /// in order.
    fn step(&mut self, now: Nanos, event: LimiterEvent) -> LimiterEffects {
        if let LimiterEvent::Release { permit, .. } = event {
            self.end_strict_permit(now, permit);
        }
        if let Some(leased) = &mut self.replica_share {
            leased.usage.accumulate(now, self.limiter.in_flight(), self.limiter.queue_len());
            if leased.fence(now, &self.limit_path) {
                let (in_flight, queued) = (self.limiter.in_flight(), self.limiter.queue_len());
                log_fence(&self.limit_path, in_flight, queued);
                self.fenced_at = Some(now);
                let todo = self.limiter.step(now, LimiterEvent::Fence);
                // The effects of a fence concern waiting requests only, so none is for the caller.
                self.apply_effects(now, todo);
            }
        }
        let effects = self.limiter.step(now, event);
        if let Some(leased) = &mut self.replica_share {
            leased.usage.count_event(event, &effects, self.limiter.in_flight());
        }
        // Usually no effect concerns a waiting request or an expired permit.
        if effects.iter().all(is_for_the_caller) {
            effects
        } else {
            self.apply_effects(now, effects)
        }
    }

    fn apply_effects(&mut self, now: Nanos, mut effects: LimiterEffects) -> LimiterEffects {
        let mut for_caller = LimiterEffects::new();
        while !effects.is_empty() {
            let mut follow_ups = LimiterEffects::new();
            for effect in effects.drain(..) {
                match effect {
                    LimiterEffect::Wake(ticket, permit) => {
                        follow_ups.extend(self.wake(ticket, permit).into_iter().flat_map(
                            |permit| {
                                let outcome = RequestOutcome::Ignored;
                                self.limiter
                                    .step(now, LimiterEvent::Release { permit, outcome, rtt: None })
                            },
                        ));
                    }
                    // Dropping the sender ends the wait of the request.
                    LimiterEffect::TimedOut(ticket) => drop(self.waiters.remove(&ticket)),
                    // The release of the expired permit's `PermitGuard` will return `false`.
                    LimiterEffect::Expired(permit) => self.end_strict_permit(now, permit),
                    other => for_caller.push(other),
                }
            }
            effects = follow_ups;
        }
        for_caller
    }

    /// Sends `permit` to the waiting request `ticket`. Returns the permit if that request was
    /// canceled.
    fn wake(&mut self, ticket: QueueTicket, permit: Permit) -> Option<Permit> {
        match self.waiters.remove(&ticket) {
            Some(waiter) => waiter.send(permit).err(),
            None => Some(permit),
        }
    }
}

/// Logs that the share of a limit expired with `in_flight` requests in flight, while `queued`
/// requests waited.
#[cold]
fn log_fence(limit: &str, in_flight: u32, queued: usize) {
    tracing::debug!(limit, in_flight, queued, "share of the concurrency limit expired");
}

const fn is_for_the_caller(effect: &LimiterEffect) -> bool {
    !matches!(
        effect,
        LimiterEffect::Wake(..) | LimiterEffect::TimedOut(_) | LimiterEffect::Expired(_)
    )
}

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
            // new share. After this replica has left the fleet, it is rejected.
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
    fn apply_fleet_terms(&mut self, shared: SharedLimit, terms: ShareTiming) {
        let leased = self.replica_share.as_mut().filter(|leased| !leased.is_local());
        if let Some(leased) = leased.filter(|leased| leased.shared != shared) {
            leased.reload(shared, terms);
        }
    }

    fn leave_fleet(&mut self, now: Nanos) {
        if let Some(leased) = self.replica_share.as_mut().filter(|leased| !leased.is_local()) {
            leased.become_local(now);
            self.step(now, LimiterEvent::Share(u32::MAX));
        }
    }

    /// Returns the sharing parameters of the request, or the current ones if the request comes
    /// from an earlier revision.
    fn shared_limit(&self, request: &PermitRequest<'_>) -> Option<SharedLimit> {
        if self.revision <= request.revision {
            return request.shared;
        }
        self.replica_share.as_ref().filter(|leased| !leased.is_local()).map(|leased| leased.shared)
    }

    /// Returns `true` if the sharing parameters have changed, or this replica does not know its
    /// share.
    fn has_to_join(&self, request: &PermitRequest<'_>) -> bool {
        match &self.replica_share {
            Some(leased) => {
                request.shared.is_none_or(|shared| leased.shared != shared)
                    || leased.is_share_unknown()
            }
            None => request.shared.is_some(),
        }
    }

    /// Joins or leaves the fleet for this limit, as the request requires. If the share is not
    /// known yet, returns a receiver that is notified of the store's next reply.
    fn join_fleet(
        &mut self,
        now: Nanos,
        ask: &PermitRequest<'_>,
        fleet: &FleetReporter,
        bucket: &Arc<Bucket>,
    ) -> Option<watch::Receiver<()>> {
        let Some(shared) = self.shared_limit(ask) else {
            self.leave_fleet(now);
            return None;
        };
        if self.replica_share.is_none() {
            let (terms, totals) =
                (fleet.share_timing(shared.max_duration), Arc::clone(fleet.totals()));
            self.replica_share = Some(Box::new(ReplicaShare::new(shared, terms, now, totals)));
            self.step(now, LimiterEvent::Share(0));
        }
        let leased = self.replica_share.as_mut()?;
        if leased.shared != shared {
            leased.reload(shared, fleet.share_timing(shared.max_duration));
        }
        if !leased.is_in_fleet() && !fleet.has_left() {
            leased.join(now, fleet.replica(), fleet.next_incarnation());
            fleet.add_bucket(ask.bucket, bucket);
            self.step(now, LimiterEvent::Share(0));
        }
        let leased = self.replica_share.as_mut()?;
        leased.is_share_unknown().then(|| leased.subscribe())
    }
}

impl QueuedRequest {
    pub(crate) async fn wait_for_permit(mut self) -> Option<Permit> {
        let patience = Duration::from_nanos(self.patience.0);
        // If a reload shortens the queue timeout, the limiter ends the wait by dropping the sender.
        match tokio::time::timeout(patience, &mut self.permit).await {
            Ok(permit) => permit.ok(),
            Err(_) => None,
        }
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        let mut state = self.bucket.0.lock();
        let now = self.clock.steady();
        if state.waiters.remove(&self.ticket).is_some() {
            state.step(now, LimiterEvent::Cancel(self.ticket));
        } else if let Ok(permit) = self.permit.try_recv() {
            // The request was granted a permit, but was canceled before it received the permit.
            state.step(
                now,
                LimiterEvent::Release { permit, outcome: RequestOutcome::Ignored, rtt: None },
            );
        }
    }
}
