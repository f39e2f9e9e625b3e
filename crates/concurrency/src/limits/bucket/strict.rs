//! A bucket of a limit in mode `strict`. The store counts the permits of the fleet.
//!
//! Guarantees:
//! - A permit is reported as in use only if the store granted it or `on_store_failure` allowed
//!   it.
//!
//! Not covered:
//! - Acquire calls and queueing: see `limits::strict`.
//! - Sending the permit reports: see `reporter::permits`.

use std::sync::Arc;

use sluicegate_lease::clock::Clock;
use sluicegate_lease::store::StoreFailure;

use super::strict_permits::{AcquireReply, StoreKnowledge, StrictPermits};
use super::{Bucket, BucketState};
use crate::kernel::concurrency::limiter::{
    AcquireDenial, LimiterConfig, LimiterEffect, LimiterEvent, QueueConfig,
};
use crate::kernel::concurrency::{Permit, Requester};
use crate::kernel::units::{Nanos, Share};
use crate::limits::reporter::permit_ledger::PermitLedger;
use crate::limits::strict_limit::StrictQueue;
use crate::limits::{PermitRequest, StrictLimit, StrictSnapshot};
use crate::store::permits::{LimitPermitsReply, PermitId};

impl Bucket {
    /// Applies the request's parameters unless the bucket has later ones, and returns the bucket's
    /// queue with its gate. Returns `None` if the bucket was removed from the map.
    pub(crate) fn register_request(
        &self,
        clock: &Clock,
        ask: &PermitRequest<'_>,
        max_duration: Nanos,
        ledger: &Arc<PermitLedger>,
    ) -> Option<(Arc<StrictQueue>, Arc<Self>)> {
        let mut state = self.0.lock();
        if state.is_retired {
            return None;
        }
        let now = clock.steady();
        state.reload(now, ask.revision, ask.rules);
        if state.revision <= ask.revision {
            state.leave_fleet(now);
        }
        let limit = state.rules.limit;
        let made = || Box::new(StrictPermits::new(ask.bucket, ledger));
        let strict = state.strict_permits.get_or_insert_with(made);
        (strict.limit, strict.max_duration) = (limit, max_duration);
        let queue = Arc::clone(&strict.queue);
        let new_gate = || {
            let rules = gate_rules(ask.rules, None);
            Arc::new(Self::new(&gate_request(ask, &rules), 0))
        };
        Some((queue, Arc::clone(state.strict_gate.get_or_insert_with(new_gate))))
    }

    /// Takes a permit of this replica's limiter, before the store call. Returns the permit, and its
    /// id and the limit for the store call. The store keeps an unreported permit for
    /// `store_lifetime`. Calls `on_first` under the lock if permits of this bucket must be reported
    /// from now on.
    pub(crate) fn take_local_permit(
        &self,
        clock: &Clock,
        keep: Option<Nanos>,
        store_lifetime: Nanos,
        on_first: impl FnOnce(),
    ) -> Result<(Permit, PermitId, Share), AcquireDenial> {
        let mut state = self.0.lock();
        let now = clock.steady();
        let arrives =
            LimiterEvent::Acquire { lifetime: keep, timeout: Nanos(0), by: Requester::ANY };
        let permit = match state.step(now, arrives).pop() {
            Some(LimiterEffect::Admit(permit)) => permit,
            Some(LimiterEffect::Deny(refusal)) => return Err(refusal),
            _ => return Err(AcquireDenial::LimitReached),
        };
        let limit = Share(state.rules.limit.into());
        let strict = state.strict_permits.as_mut().ok_or(AcquireDenial::LimitReached)?;
        let id = strict.add_permit(permit, store_lifetime);
        if !std::mem::replace(&mut strict.is_reported, true) {
            on_first();
        }
        Ok((permit, id, limit))
    }

    /// Applies the store's reply to the acquire call that was sent at `sent`. Returns `false` if
    /// the request gets no permit: the caller must then release `permit`.
    pub(crate) fn apply_acquire_reply(
        &self,
        clock: &Clock,
        permit: Permit,
        sent: Nanos,
        answer: AcquireReply,
        strict_limit: &StrictLimit,
    ) -> bool {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.step(now, LimiterEvent::Expire);
        let in_flight = state.limiter.in_flight();
        let Some(strict) = &mut state.strict_permits else { return false };
        let late = strict.ledger.heartbeat() <= now.since(sent);
        strict.record_reply(permit, answer, in_flight <= strict_limit.outage_limit, late)
    }

    /// Returns the permits to report as in use, each with the time for which the store keeps it.
    /// Calls `on_unused` under the lock if the bucket has no permits.
    pub(crate) fn permits_to_report(
        &self,
        clock: &Clock,
        on_unused: impl FnOnce(),
    ) -> Vec<(PermitId, Nanos)> {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.step(now, LimiterEvent::Expire);
        let BucketState { strict_permits: Some(strict), limiter, .. } = &mut *state else {
            return Vec::new();
        };
        if strict.permits.is_empty() {
            strict.is_reported = false;
            on_unused();
        }
        let granted = strict.permits.iter_mut().filter(|(_, entry)| entry.is_granted);
        let reported = granted.map(|(permit, entry)| {
            if entry.known == StoreKnowledge::No {
                entry.known = StoreKnowledge::Yes;
            }
            let until = limiter.deadline(*permit).or(entry.latest_end);
            let keep = until.map(|until| until.since(now));
            (entry.id, strict.ledger.store_lifetime(keep))
        });
        reported.collect()
    }

    /// Reports `permit` as in use until `max_duration` is over, because its release will not be
    /// reported to this replica.
    pub(crate) fn leave_to_deadline(&self, clock: &Clock, permit: Permit) {
        let mut state = self.0.lock();
        let Some(strict) = &mut state.strict_permits else { return };
        let ends = clock.steady().plus(strict.max_duration);
        if let Some(entry) = strict.permits.get_mut(&permit) {
            entry.latest_end = Some(ends);
        }
    }

    /// Like [`Self::leave_to_deadline`] for all permits, because this replica leaves the fleet and
    /// will receive no more releases.
    pub(crate) fn leave_all_to_deadlines(&self, clock: &Clock) {
        let mut state = self.0.lock();
        let Some(strict) = &mut state.strict_permits else { return };
        let ends = clock.steady().plus(strict.max_duration);
        for entry in strict.permits.values_mut() {
            entry.latest_end.get_or_insert(ends);
        }
    }

    pub(crate) fn apply_report_reply(&self, reply: Result<LimitPermitsReply, StoreFailure>) {
        let mut state = self.0.lock();
        let Some(strict) = &mut state.strict_permits else { return };
        strict.is_outage = reply.is_err();
        if let Ok(heard) = reply {
            strict.fleet_permits = Some(heard.held);
        }
    }

    pub(crate) fn strict_snapshot(&self) -> Option<StrictSnapshot> {
        let state = self.0.lock();
        let strict = state.strict_permits.as_ref()?;
        Some(StrictSnapshot {
            limit: strict.limit,
            in_flight: state.limiter.in_flight(),
            fleet_permits: strict.fleet_permits,
            waiting: state.queue_length(),
            closed_for: strict.closed_for,
            is_outage: strict.is_outage,
        })
    }
}

/// Returns the parameters of a gate: the first request in the queue has its permit, and the others wait
/// for it.
pub(crate) fn gate_rules(rules: &LimiterConfig, queue: Option<QueueConfig>) -> LimiterConfig {
    let behind = |queue: QueueConfig| QueueConfig { size: queue.size.saturating_sub(1), ..queue };
    let queue = queue.map(behind);
    LimiterConfig { queue, fair_keys: rules.fair_keys, ..LimiterConfig::fixed(1) }
}

/// Returns the request for the permit of a gate with these parameters.
pub(crate) fn gate_request<'r>(
    request: &PermitRequest<'r>,
    rules: &'r LimiterConfig,
) -> PermitRequest<'r> {
    PermitRequest { rules, permit_lifetime: None, shared: None, ..*request }
}
