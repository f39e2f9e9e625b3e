//! Acquires permits of strict limits from the store, and waits in this replica's queue.
//!
//! Guarantees:
//! - An attempt is one store call; none if this replica alone reached the limit.
//! - Requests of this replica are served in the order of arrival.
//! - Only the first request in the queue retries: after a local release, or periodically.
//! - A canceled acquire leaves no queue entry and no permit, locally or in the store.
//! - A request waits for the store no longer than its timeout.
//!
//! Not covered:
//! - An order among replicas: the first call after a release gets the permit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

use super::bucket::{Bucket, Spoken};
use super::fleet::Fleet;
use super::{Admission, Ask, Denied, Held, queued};
use crate::backend::permits::{Acquire, Ask as Wanted};
use crate::backend::{Backend, Reply};
use crate::kernel::concurrency::limiter::Waiting;
use crate::kernel::units::{Nanos, Share};
use crate::telemetry::trace;

/// The shortest pause between two attempts of the first request, and the largest
/// random addition. The store does not report releases of other replicas.
const AGAIN: Duration = Duration::from_millis(40);
const JITTER_MILLIS: u64 = 20;

/// The parameters of a strict limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strictly {
    /// The queue. `None`: requests do not wait.
    pub waiting: Option<Waiting>,
    /// The longest duration of a request.
    pub max_duration: Nanos,
    /// The largest number of requests in flight at this replica during a store outage.
    pub alone: u32,
}

/// A snapshot of one strict limit at this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The limit.
    pub limit: u32,
    /// The requests in flight at this replica.
    pub here: u32,
    /// The permits of the whole fleet, from the last reply.
    pub held: Option<Share>,
    /// The number of waiting requests at this replica.
    pub waiting: usize,
    /// The time for which the store grants no permits, from the last acquire.
    pub closed_for: Nanos,
    /// `true` if the last call got no reply.
    pub outage: bool,
}

#[derive(Debug, Default)]
pub(super) struct Line {
    /// Locked by the first request. The lock is fair, so the order of arrival is kept.
    front: Mutex<()>,
    waiting: AtomicUsize,
    moved: Notify,
}

/// A queue entry. Dropping it leaves the queue.
struct InLine<'l>(&'l Line);

impl Line {
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Wakes the first request, because a permit may be free.
    pub(super) fn moves(&self) {
        self.moved.notify_one();
    }

    fn join(&self, most: u32) -> Option<InLine<'_>> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let one_more = |waiting| (waiting < most).then(|| waiting + 1);
        let joined = self.waiting.fetch_update(Relaxed, Relaxed, one_more);
        // Not constructed on failure: its drop would remove another request's entry.
        joined.is_ok().then(|| InLine(self))
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

#[derive(Clone, Copy)]
struct Asking<'a> {
    ask: &'a Ask<'a>,
    strictly: &'a Strictly,
    fleet: &'a Fleet,
    backend: &'a dyn Backend,
}

impl Admission {
    /// Acquires a permit that the store counts, and waits in the queue if the request
    /// allows it. Without a fleet the bucket belongs to this replica alone. Safe to cancel.
    ///
    /// # Errors
    /// The reason of the rejection. No permit is taken then.
    pub async fn acquire_strictly(
        &self,
        ask: Ask<'_>,
        strictly: Strictly,
        backend: &dyn Backend,
    ) -> Result<Held, Denied> {
        let Some(fleet) = self.fleet() else { return self.acquire(ask).await };
        let asking = Asking { ask: &ask, strictly: &strictly, fleet, backend };
        let (bucket, line) = loop {
            let bucket = self.bucket(&ask)?;
            // `None`: the bucket was removed in the meantime,
            // and the next look-up finds its successor.
            if let Some(line) =
                bucket.comes(&self.clock, &ask, strictly.max_duration, fleet.teller())
            {
                break (bucket, line);
            }
        };
        let begun = self.clock.steady();
        if line.waiting() == 0 {
            // A timeout drops the permit, which reports its release. `on_backend_failure`
            // does not apply: this caller did not wait for the store.
            let answer = Duration::from_nanos(ask.answer.0);
            let asked = timeout(answer, self.ask_store(&bucket, asking)).await;
            let asked = asked.unwrap_or(Err(Denied::Late));
            if asked.as_ref().err() != Some(&Denied::Full) {
                return asked;
            }
        }
        let left = ask.patience.since(self.clock.steady().since(begun));
        let queue = strictly.waiting.filter(|_| Nanos(0) < left).ok_or(Denied::Full)?;
        let _place = line.join(queue.size).ok_or(Denied::QueueFull)?;
        let patience = Duration::from_nanos(queue.timeout.min(left).0);
        let queued = (trace::part(trace::Part::Queue), queued::begins(&self.clock));
        let waited = timeout(patience, self.wait_in(&line, &bucket, asking)).await;
        drop(queued);
        waited.unwrap_or(Err(Denied::Late))
    }

    async fn wait_in(
        &self,
        line: &Line,
        bucket: &Arc<Bucket>,
        asking: Asking<'_>,
    ) -> Result<Held, Denied> {
        let at_once = line.front.try_lock().ok();
        // A request that is first at once has just got `Full`.
        let mut pauses = at_once.is_some();
        let _front = match at_once {
            Some(front) => front,
            None => line.front.lock().await,
        };
        loop {
            if pauses {
                let again =
                    AGAIN + Duration::from_millis(asking.fleet.teller().dice(JITTER_MILLIS));
                // Retries after a wake-up or a timeout.
                drop(timeout(again, line.moved.notified()).await);
            }
            match self.ask_store(bucket, asking).await {
                Err(Denied::Full) => pauses = true,
                asked => return asked,
            }
        }
    }

    async fn ask_store(&self, bucket: &Arc<Bucket>, asking: Asking<'_>) -> Result<Held, Denied> {
        let Asking { ask, strictly, fleet, backend } = asking;
        let keep = fleet.teller().kept(ask.keep);
        let begun = bucket.begins(&self.clock, ask.keep, keep);
        let (permit, id, limit) = begun.map_err(|_| Denied::Full)?;
        // From here on, a drop reports the release.
        let held = self.held(Arc::clone(bucket), permit, ask.keep);
        let times = fleet.teller().times(strictly.max_duration);
        let wanted = Wanted { id, limit, keep, times };
        let asked = Acquire { bucket: ask.bucket.into(), ask: wanted };
        let sent = self.clock.steady();
        let answer = match backend.acquire(sent, &asked) {
            Reply::Now(answer) => answer.map_or(Spoken::No, Spoken::Answered),
            Reply::Later(answer) => answer.await.map_or(Spoken::Unanswered, Spoken::Answered),
        };
        let is_held = bucket.answered(&self.clock, permit, sent, answer, strictly);
        is_held.then_some(held).ok_or(Denied::Full)
    }
}
