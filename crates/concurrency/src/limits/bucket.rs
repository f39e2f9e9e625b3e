//! One bucket: a concurrency limit behind a lock, with its waiting requests.
//!
//! Guarantees:
//! - The effects of a limiter event are applied under the same lock, so no request is woken twice.
//! - A permit that was granted to a canceled request goes to the next waiting request.
//! - A request that carries parameters from before a reload does not restore them.
//!
//! Not covered:
//! - The name of the bucket: see `bucket_map`.
//! - Acquiring a permit: see `bucket::acquire` and `bucket::strict`.

mod acquire;
mod fleet;
mod strict;
mod strict_permits;
mod turns;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sluicegate_lease::clock::Clock;
use tokio::sync::oneshot;

use crate::kernel::concurrency::limiter::{
    AcquireDenial, LimiterConfig, LimiterEffect, LimiterEffects, LimiterEvent,
};
use crate::kernel::concurrency::{
    Limiter, Pace, Permit, QueueTicket, ReportedOutcome, RequestOutcome, RequesterUse,
    RetryAfterRule,
};
use crate::kernel::coordinator::ShareTiming;
use crate::kernel::units::{Nanos, Revision};
use crate::limits::replica_share::ReplicaShare;
use crate::limits::{BucketLoad, BucketMetrics, PermitRequest, SharedLimit};
pub(crate) use acquire::{AcquireStep, QueuedRequest};
pub(crate) use strict::{gate_request, gate_rules};
pub(crate) use strict_permits::AcquireReply;
use strict_permits::StrictPermits;

#[derive(Debug)]
pub(crate) struct Bucket(Mutex<BucketState>, TurnTimer);

/// Locked by the waiting request that has the timer for the next turn of a limit with a pace.
type TurnTimer = tokio::sync::Mutex<()>;

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
    /// The order of the queue in mode `strict`: each waiting request needs the only permit of the gate.
    /// So customers take turns if the limit has fair parts.
    strict_gate: Option<Arc<Bucket>>,
    waiters: HashMap<QueueTicket, oneshot::Sender<Result<Permit, AcquireDenial>>>,
    /// `true` after the removal from the map. A request that still finds this bucket must look up
    /// its name again.
    is_retired: bool,
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
            strict_gate: None,
            waiters,
            is_retired: retired,
        };
        Self(Mutex::new(state), TurnTimer::default())
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
        let pace = limiter.pace().map(Pace::millis_per_second);
        BucketMetrics { load, rtt, min_rtt: limiter.adaptive_limit().min_rtt(), pace }
    }

    pub(crate) fn requesters(&self, most: usize) -> RequesterUse {
        self.0.lock().limiter.requesters(most)
    }

    pub(crate) fn acquire_instants(&self) -> Vec<Nanos> {
        self.0.lock().limiter.permits().map(|(_, since)| since).collect()
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
            leased.usage.count_event(event, &effects, &self.limiter);
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
                                let mut effects =
                                    self.limiter.step(now, LimiterEvent::GiveBack(permit));
                                effects.extend(self.limiter.step(
                                    now,
                                    LimiterEvent::Release { permit, outcome, rtt: None },
                                ));
                                effects
                            },
                        ));
                    }
                    // Dropping the sender ends the wait of the request.
                    LimiterEffect::TimedOut(ticket) => drop(self.waiters.remove(&ticket)),
                    LimiterEffect::Displaced(ticket) => self.displace(ticket),
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
            Some(waiter) => waiter.send(Ok(permit)).is_err().then_some(permit),
            None => Some(permit),
        }
    }

    /// Rejects the waiting request `ticket`, because another request took its place.
    fn displace(&mut self, ticket: QueueTicket) {
        if let Some(waiter) = self.waiters.remove(&ticket) {
            // Without a receiver, the request was canceled.
            waiter.send(Err(AcquireDenial::QueueFull)).ok();
        }
    }

    fn end_strict_permit(&mut self, now: Nanos, permit: Permit) {
        if let Some(strict) = &mut self.strict_permits {
            strict.end_permit(now, permit);
        }
    }

    /// Returns the number of requests that wait in mode `strict`, with the first one.
    fn queue_length(&self) -> usize {
        let load = self.strict_gate.as_ref().map(|gate| gate.load());
        load.map_or(0, |BucketLoad { in_flight, waiting, .. }| {
            waiting.saturating_add(usize::try_from(in_flight).unwrap_or(usize::MAX))
        })
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
        LimiterEffect::Wake(..)
            | LimiterEffect::TimedOut(_)
            | LimiterEffect::Displaced(_)
            | LimiterEffect::Expired(_)
    )
}
