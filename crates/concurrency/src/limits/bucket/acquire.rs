//! Acquires permits of local and shared limits: joins the fleet if necessary, and queues requests.
//!
//! Guarantees:
//! - A canceled request leaves the queue, or releases a permit that it was just granted.
//! - The first request of a shared limit gets [`AcquireStep::ShareUnknown`], and can wait for the share.
//!
//! Not covered:
//! - Limits in mode `strict` (see [`super::strict`]).

use std::sync::Arc;
use std::time::Duration;

use sluicegate_lease::clock::Clock;
use tokio::sync::{oneshot, watch};

use super::{Bucket, BucketState};
use crate::kernel::concurrency::limiter::{AcquireDenial, LimiterEffect, LimiterEvent};
use crate::kernel::concurrency::{Permit, QueueTicket};
use crate::kernel::units::Nanos;
use crate::limits::replica_share::ReplicaShare;
use crate::limits::reporter::FleetReporter;
use crate::limits::{AcquireError, PermitRequest, SharedLimit};

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
    permit: oneshot::Receiver<Result<Permit, AcquireDenial>>,
    /// `true` if the limit has a pace: a wait can end by time.
    is_paced: bool,
}

impl Bucket {
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
        let PermitRequest { permit_lifetime: lifetime, queue_timeout: timeout, by, .. } = *ask;
        let mut effects = state.step(now, LimiterEvent::Acquire { lifetime, timeout, by });
        Some(match effects.pop()? {
            LimiterEffect::Admit(permit) => AcquireStep::Allowed(permit),
            LimiterEffect::Queue(ticket) => {
                AcquireStep::Queued(self.enqueue(&mut state, clock, ticket, timeout))
            }
            LimiterEffect::Deny(denial) => AcquireStep::Rejected(denial),
            _ => return None,
        })
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
        let (bucket, is_paced) = (Arc::clone(self), state.limiter.pace().is_some());
        QueuedRequest { bucket, clock, ticket, patience, permit, is_paced }
    }
}

impl BucketState {
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
    pub(crate) async fn wait_for_permit(mut self) -> Result<Permit, AcquireError> {
        let patience = Duration::from_nanos(self.patience.0);
        let granted = tokio::time::timeout(patience, &mut self.permit);
        let granted = if self.is_paced {
            // Boxed, to keep the future of other limits small.
            let turns = Box::pin(self.bucket.keep_turns(&self.clock));
            tokio::select! {
                biased;
                granted = granted => granted,
                never = turns => match never {},
            }
        } else {
            granted.await
        };
        // If a reload shortens the queue timeout, the limiter ends the wait by dropping the sender.
        match granted {
            Ok(Ok(permit)) => permit.map_err(|_| AcquireError::QueueFull),
            Ok(Err(_)) | Err(_) => Err(AcquireError::QueueTimeout),
        }
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        let mut state = self.bucket.0.lock();
        let now = self.clock.steady();
        if state.waiters.remove(&self.ticket).is_some() {
            state.step(now, LimiterEvent::Cancel(self.ticket));
        } else if let Ok(Ok(permit)) = self.permit.try_recv() {
            // The request was granted a permit, but was canceled before it received the permit.
            state.give_back(now, permit);
        }
    }
}
