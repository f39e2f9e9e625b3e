//! Acquires permits of limits in mode `strict` from the store, and queues requests at this replica.
//!
//! Guarantees:
//! - An attempt is one store call, or none if this replica's own requests already reach the limit.
//! - Requests of this replica are served in the order of arrival. With fair parts, their customers take
//!   turns.
//! - Only the first request in the queue retries: after a release at this replica, or after 40 to
//!   60 ms.
//! - A canceled acquire leaves no queue entry and no permit, locally or in the store.
//! - A request waits for the store no longer than its store timeout.
//!
//! Not covered:
//! - An order among replicas: the first acquire call after a release gets the permit.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::kernel::concurrency::limiter::QueueConfig;
use crate::kernel::units::Nanos;
use crate::limits::bucket::{
    AcquireReply, AcquireStep, Bucket, QueuedRequest, gate_request, gate_rules,
};
use crate::limits::queue_time;
use crate::limits::reporter::FleetReporter;
use crate::limits::strict_limit::StrictQueue;
use crate::limits::{
    AcquireError, BucketLoad, ConcurrencyLimits, PermitGuard, PermitRequest, StrictLimit,
};
use crate::store::permits::{StrictAcquire as Wanted, StrictPermitRequest};
use crate::store::{FleetStore, StoreReply};

/// The shortest pause between two attempts of the first request in the queue. It polls, because the
/// store does not report releases of other replicas.
const RETRY_PAUSE: Duration = Duration::from_millis(40);
const RETRY_JITTER_MS: u64 = 20;

#[derive(Clone, Copy)]
struct StoreAcquire<'a> {
    request: &'a PermitRequest<'a>,
    limit: &'a StrictLimit,
    fleet: &'a FleetReporter,
    store: &'a dyn FleetStore,
}

/// The place of a request in the queue. Dropping it leaves the queue.
enum QueuePlace {
    /// It alone asks the store.
    First(PermitGuard),
    /// It waits until it is the first one.
    Behind(QueuedRequest),
}

impl ConcurrencyLimits {
    /// Acquires a permit that the store counts, and waits in the queue if the request has a queue
    /// timeout. Without a fleet, the limit applies to this replica alone. Safe to cancel.
    ///
    /// # Errors
    /// The reason of the rejection. The request has no permit then.
    pub async fn acquire_strict(
        &self,
        request: PermitRequest<'_>,
        limit: StrictLimit,
        store: &dyn FleetStore,
    ) -> Result<PermitGuard, AcquireError> {
        let Some(fleet) = self.fleet_reporter() else { return self.acquire(request).await };
        let asking = StoreAcquire { request: &request, limit: &limit, fleet, store };
        let (bucket, (line, gate)) = loop {
            let bucket = self.find_or_create_bucket(&request)?;
            // `None`: the bucket was removed from the map in the meantime. The next look-up creates
            // a new one.
            if let Some(line) =
                bucket.register_request(self.clock(), &request, limit.max_duration, fleet.ledger())
            {
                break (bucket, line);
            }
        };
        let begun = self.clock().steady();
        let BucketLoad { in_flight, waiting, .. } = gate.load();
        if in_flight == 0 && waiting == 0 {
            // A timeout drops the permit, which reports its release. `on_store_failure` does not
            // apply then: the caller's timeout has passed, not the store's.
            let store_timeout = Duration::from_nanos(request.store_timeout.0);
            let asked = timeout(store_timeout, self.try_store(&bucket, asking)).await;
            let asked = asked.unwrap_or(Err(AcquireError::QueueTimeout));
            if asked.as_ref().err() != Some(&AcquireError::Full) {
                return asked;
            }
        }
        let time_left = request.queue_timeout.since(self.clock().steady().since(begun));
        let queue = limit.queue.filter(|_| Nanos(0) < time_left).ok_or(AcquireError::Full)?;
        let queue_timeout = queue.timeout.min(time_left);
        let place = self.join_queue(&gate, PermitRequest { queue_timeout, ..request }, queue);
        let place = place.ok_or(AcquireError::QueueFull)?;
        let queue_timeout = Duration::from_nanos(queue_timeout.0);
        let queued = (self.queue_span(), queue_time::start_queue_timer(self.clock()));
        let waited =
            timeout(queue_timeout, self.wait_in_queue((&line, &gate), place, &bucket, asking))
                .await;
        drop(queued);
        waited.unwrap_or(Err(AcquireError::QueueTimeout))
    }

    /// Adds a request to the queue with these bounds. Returns `None` if it is full.
    fn join_queue(
        &self,
        gate: &Arc<Bucket>,
        request: PermitRequest<'_>,
        queue: QueueConfig,
    ) -> Option<QueuePlace> {
        let rules = gate_rules(request.rules, Some(queue));
        match gate.try_acquire(self.clock(), &gate_request(&request, &rules), None, true)? {
            AcquireStep::Allowed(permit) => {
                Some(QueuePlace::First(self.guard(Arc::clone(gate), permit, None)))
            }
            AcquireStep::Queued(waiting) => Some(QueuePlace::Behind(waiting)),
            AcquireStep::Rejected(_) | AcquireStep::ShareUnknown(_) => None,
        }
    }

    async fn wait_in_queue(
        &self,
        (queue, gate): (&StrictQueue, &Arc<Bucket>),
        place: QueuePlace,
        bucket: &Arc<Bucket>,
        asking: StoreAcquire<'_>,
    ) -> Result<PermitGuard, AcquireError> {
        // A request that finds the queue empty has just failed with `Full`, so it pauses first.
        let (mut must_pause, _front) = match place {
            QueuePlace::First(front) => (true, front),
            QueuePlace::Behind(waiting) => {
                let permit = waiting.wait_for_permit().await?;
                (false, self.guard(Arc::clone(gate), permit, None))
            }
        };
        loop {
            if must_pause {
                let pause = RETRY_PAUSE
                    + Duration::from_millis(asking.fleet.ledger().random_below(RETRY_JITTER_MS));
                // The next attempt follows a release at this replica or the end of the pause.
                drop(timeout(pause, queue.wake_up.notified()).await);
            }
            match self.try_store(bucket, asking).await {
                Err(AcquireError::Full) => must_pause = true,
                asked => return asked,
            }
        }
    }

    async fn try_store(
        &self,
        bucket: &Arc<Bucket>,
        asking: StoreAcquire<'_>,
    ) -> Result<PermitGuard, AcquireError> {
        let StoreAcquire { request: ask, limit: strictly, fleet, store } = asking;
        let keep = fleet.ledger().store_lifetime(ask.permit_lifetime);
        let add = || fleet.add_strict_bucket(ask.bucket, bucket);
        let begun = bucket.take_local_permit(self.clock(), ask.permit_lifetime, keep, add);
        let (permit, id, limit) = begun.map_err(|_| AcquireError::Full)?;
        // From here on, dropping the guard reports the release of the permit.
        let guard = self.guard(Arc::clone(bucket), permit, ask.permit_lifetime);
        let times = fleet.ledger().times(strictly.max_duration);
        let wanted = Wanted { id, limit, lifetime: keep, timing: times };
        let asked = StrictPermitRequest { bucket: ask.bucket.into(), permit: wanted };
        let sent = self.clock().steady();
        let answer = match store.acquire_strict_permit(sent, &asked) {
            StoreReply::Ready(answer) => answer.map_or(AcquireReply::No, AcquireReply::Replied),
            StoreReply::Pending(answer) => {
                answer.await.map_or(AcquireReply::NoReply, AcquireReply::Replied)
            }
        };
        let is_held = bucket.apply_acquire_reply(self.clock(), permit, sent, answer, strictly);
        is_held.then_some(guard).ok_or(AcquireError::Full)
    }
}
