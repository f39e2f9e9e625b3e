//! This replica's permits of one limit in mode `strict`. The store counts the permits of the fleet.
//!
//! Guarantees:
//! - Every permit that the store may count is reported as released after it ends at this replica.
//! - A permit is reported as in use only if the store granted it or `on_store_failure` allowed
//!   it.
//!
//! Not covered:
//! - Acquire calls and queueing: see `limits::strict`.
//! - Sending the permit reports: see `reporter::permits`.

use std::collections::HashMap;
use std::sync::Arc;

use sluicegate_lease::clock::Clock;
use sluicegate_lease::store::StoreFailure;

use super::{Bucket, BucketState};
use crate::host::PermitEvent;
use crate::kernel::concurrency::Permit;
use crate::kernel::concurrency::limiter::{AcquireDenial, LimiterEffect, LimiterEvent};
use crate::kernel::units::{Nanos, Share};
use crate::limits::PermitRequest;
use crate::limits::reporter::permits::{PermitReporter, ReleasedPermit};
use crate::limits::strict::{StrictLimit, StrictQueue, StrictSnapshot};
use crate::store::permits::{AcquireOutcome, LimitPermitsReply, PermitId, StrictPermitReply};

#[derive(Debug)]
pub(super) struct StrictPermits {
    name: Arc<[u8]>,
    reporter: Arc<PermitReporter>,
    pub(super) queue: Arc<StrictQueue>,
    permits: HashMap<Permit, StrictPermit>,
    /// `true` while the permit reporter has this bucket in its list.
    is_reported: bool,
    limit: u32,
    max_duration: Nanos,
    fleet_permits: Option<Share>,
    closed_for: Nanos,
    is_outage: bool,
}

#[derive(Clone, Copy, Debug)]
struct StrictPermit {
    id: PermitId,
    /// The time for which the store keeps the permit if it is not reported.
    store_lifetime: Nanos,
    is_granted: bool,
    known: StoreKnowledge,
    /// The latest end of the request, if its release will not be reported to this replica.
    latest_end: Option<Nanos>,
}

/// The last known state of a permit in the store: counted or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreKnowledge {
    No,
    /// The acquire call has no reply yet, and may still reach the store.
    Pending,
    Yes,
}

impl Bucket {
    /// Applies the request's parameters unless the bucket has later ones, and returns the bucket's
    /// queue. Returns `None` if the bucket was removed from the map.
    pub(crate) fn register_request(
        &self,
        clock: &Clock,
        ask: &PermitRequest<'_>,
        max_duration: Nanos,
        teller: &Arc<PermitReporter>,
    ) -> Option<Arc<StrictQueue>> {
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
        let made = || Box::new(StrictPermits::new(ask.bucket, teller));
        let strict = state.strict_permits.get_or_insert_with(made);
        (strict.limit, strict.max_duration) = (limit, max_duration);
        Some(Arc::clone(&strict.queue))
    }

    /// Takes a permit of this replica's limiter, before the store call. Returns the permit, and its
    /// id and the limit for the store call. The store keeps an unreported permit for
    /// `store_lifetime`.
    pub(crate) fn take_local_permit(
        self: &Arc<Self>,
        clock: &Clock,
        keep: Option<Nanos>,
        store_lifetime: Nanos,
    ) -> Result<(Permit, PermitId, Share), AcquireDenial> {
        let mut state = self.0.lock();
        let now = clock.steady();
        let arrives = LimiterEvent::Acquire { lifetime: keep, timeout: Nanos(0) };
        let permit = match state.step(now, arrives).pop() {
            Some(LimiterEffect::Admit(permit)) => permit,
            Some(LimiterEffect::Deny(refusal)) => return Err(refusal),
            _ => return Err(AcquireDenial::LimitReached),
        };
        let limit = Share(state.rules.limit.into());
        let strict = state.strict_permits.as_mut().ok_or(AcquireDenial::LimitReached)?;
        let id = strict.add_permit(permit, store_lifetime);
        if !std::mem::replace(&mut strict.is_reported, true) {
            strict.reporter.add_bucket(&strict.name, self);
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
        let late = strict.reporter.heartbeat() <= now.since(sent);
        strict.record_reply(permit, answer, in_flight <= strict_limit.outage_limit, late)
    }

    /// Returns the permits to report as in use, each with the time for which the store keeps it. If
    /// the bucket has no permits, removes it from the reporter's list.
    pub(crate) fn permits_to_report(&self, clock: &Clock) -> Vec<(PermitId, Nanos)> {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.step(now, LimiterEvent::Expire);
        let BucketState { strict_permits: Some(strict), limiter, .. } = &mut *state else {
            return Vec::new();
        };
        if strict.permits.is_empty() {
            strict.is_reported = false;
            strict.reporter.remove_bucket(&strict.name);
        }
        let granted = strict.permits.iter_mut().filter(|(_, entry)| entry.is_granted);
        let reported = granted.map(|(permit, entry)| {
            if entry.known == StoreKnowledge::No {
                entry.known = StoreKnowledge::Yes;
            }
            let until = limiter.deadline(*permit).or(entry.latest_end);
            let keep = until.map(|until| until.since(now));
            (entry.id, strict.reporter.store_lifetime(keep))
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
            waiting: strict.queue.waiting(),
            closed_for: strict.closed_for,
            is_outage: strict.is_outage,
        })
    }
}

impl BucketState {
    pub(super) fn end_strict_permit(&mut self, now: Nanos, permit: Permit) {
        if let Some(strict) = &mut self.strict_permits {
            strict.end_permit(now, permit);
        }
    }

    pub(super) fn queue_length(&self) -> usize {
        self.strict_permits.as_ref().map_or(0, |strict| strict.queue.waiting())
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum AcquireReply {
    Replied(StrictPermitReply),
    /// The acquire call was sent and got no reply.
    NoReply,
    /// The acquire call was not sent.
    No,
}

impl StrictPermits {
    fn new(name: &[u8], reporter: &Arc<PermitReporter>) -> Self {
        Self {
            name: name.into(),
            reporter: Arc::clone(reporter),
            queue: Arc::default(),
            permits: HashMap::new(),
            is_reported: false,
            limit: 0,
            max_duration: Nanos(0),
            fleet_permits: None,
            closed_for: Nanos(0),
            is_outage: false,
        }
    }

    /// Returns `true` while a request acquires or waits in this bucket, or a report is pending. The
    /// bucket must stay then: a new bucket of the same name would replace it in the permit
    /// reporter.
    pub(super) fn is_in_use(&self) -> bool {
        // Each such request, and each unreported release, has a reference to the queue.
        self.is_reported || 1 < Arc::strong_count(&self.queue)
    }

    fn add_permit(&mut self, permit: Permit, store_lifetime: Nanos) -> PermitId {
        let id = self.reporter.next_id();
        self.permits.insert(
            permit,
            StrictPermit {
                id,
                store_lifetime,
                is_granted: false,
                known: StoreKnowledge::Pending,
                latest_end: None,
            },
        );
        id
    }

    /// Records the reply to an acquire call, and returns `true` if the request has its permit.
    ///
    /// - `alone`: the requests in flight are within the limit that applies here without the store.
    /// - `late`: the reply took a heartbeat interval or longer, so the permit may expire in the
    ///   store before its first report.
    fn record_reply(
        &mut self,
        permit: Permit,
        answer: AcquireReply,
        alone: bool,
        late: bool,
    ) -> bool {
        let Some(entry) = self.permits.get_mut(&permit) else { return false };
        let AcquireReply::Replied(StrictPermitReply { result: acquired, held }) = answer else {
            self.is_outage = true;
            if matches!(answer, AcquireReply::No) {
                entry.known = StoreKnowledge::No;
            }
            entry.is_granted = alone;
            self.reporter.count(PermitEvent::NoReply, 1);
            return alone;
        };
        (self.is_outage, self.fleet_permits) = (false, Some(held));
        self.closed_for = match acquired {
            AcquireOutcome::Closed(closed_for) => closed_for,
            AcquireOutcome::Acquired | AcquireOutcome::LimitReached => Nanos(0),
        };
        let is_held = acquired == AcquireOutcome::Acquired;
        entry.known = if is_held { StoreKnowledge::Yes } else { StoreKnowledge::No };
        entry.is_granted = is_held && !late;
        let is_granted = entry.is_granted;
        let event = match acquired {
            AcquireOutcome::Acquired => PermitEvent::Granted,
            AcquireOutcome::LimitReached => PermitEvent::LimitReached,
            AcquireOutcome::Closed(_) => PermitEvent::GrantsPaused,
        };
        self.reporter.count(event, 1);
        is_granted
    }

    fn end_permit(&mut self, now: Nanos, permit: Permit) {
        let Some(StrictPermit { id, store_lifetime: keep, is_granted: is_held, known, .. }) =
            self.permits.remove(&permit)
        else {
            return;
        };
        if known == StoreKnowledge::No {
            if is_held {
                self.queue.wake_first();
            }
            return;
        }
        let (bucket, queue) = (Arc::clone(&self.name), Arc::clone(&self.queue));
        let repeats = known == StoreKnowledge::Pending;
        self.reporter.queue_release(
            now,
            ReleasedPermit {
                bucket,
                queue,
                id,
                due: now,
                store_deadline: now.plus(keep),
                is_repeated: repeats,
            },
        );
    }
}
