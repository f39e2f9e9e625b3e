//! Ceilings for which every request asks the store: asking, and waiting in line.
//!
//! Guarantees: one call for each permit that is asked for, none where this replica alone has as many in flight
//! as may be. Those who wait are served in the order they came, and only the first in line asks: when
//! one of this replica has left, else again and again. A dropped future holds neither a place in line nor a
//! permit, here or in the store. Nobody waits for the store longer than its caller does.
//! Leaves out: an order among replicas: whoever asks first when a permit is free has it.

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

/// How long the first in line waits before it asks again, at least and by how much more: nobody tells it of
/// what other replicas gave back.
const AGAIN: Duration = Duration::from_millis(40);
const JITTER_MILLIS: u64 = 20;

/// What a ceiling is that is asked of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strictly {
    /// Who may wait.
    pub waiting: Option<Waiting>,
    /// How long a request may go on.
    pub max_duration: Nanos,
    /// How many this replica may have in flight while the store does not answer.
    pub alone: u32,
}

/// One ceiling at one instant, for those who look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The ceiling.
    pub limit: u32,
    /// Requests in flight at this replica.
    pub here: u32,
    /// Permits that were held by all when the store was last asked or told.
    pub held: Option<Share>,
    /// Who wait at this replica.
    pub waiting: usize,
    /// For how long the store admitted nobody when it was last asked.
    pub closed_for: Nanos,
    /// The store did not answer when it was last asked or told.
    pub outage: bool,
}

/// Those who wait for a permit at one replica.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Whoever has it is first; it is handed on in the order of those who want it.
    front: Mutex<()>,
    waiting: AtomicUsize,
    moved: Notify,
}

/// A place in line; dropped, it is given up.
struct InLine<'l>(&'l Line);

impl Line {
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// There may be a permit now.
    pub(super) fn moves(&self) {
        self.moved.notify_one();
    }

    fn join(&self, most: u32) -> Option<InLine<'_>> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let one_more = |waiting| (waiting < most).then(|| waiting + 1);
        let joined = self.waiting.fetch_update(Relaxed, Relaxed, one_more);
        // Not made where there is none: dropped, it would give up another's.
        joined.is_ok().then(|| InLine(self))
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

/// One who asks, and whom.
#[derive(Clone, Copy)]
struct Asking<'a> {
    ask: &'a Ask<'a>,
    strictly: &'a Strictly,
    fleet: &'a Fleet,
    backend: &'a dyn Backend,
}

impl Admission {
    /// A permit of a bucket that the store counts, at once or after waiting for it. Safe to cancel. Without a
    /// fleet the bucket is this replica's own.
    ///
    /// # Errors
    /// Why there is none; nothing is held then.
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
            // A bucket that was dropped meanwhile has a successor.
            if let Some(line) =
                bucket.comes(&self.clock, &ask, strictly.max_duration, fleet.teller())
            {
                break (bucket, line);
            }
        };
        let begun = self.clock.steady();
        if line.waiting() == 0 {
            // One that is given up is told over. What the ceiling says of a store that does not answer is not for a caller that
            // does not wait for it.
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
        // Whoever is first without having waited has just been told that there is none.
        let mut pauses = at_once.is_some();
        let _front = match at_once {
            Some(front) => front,
            None => line.front.lock().await,
        };
        loop {
            if pauses {
                let again =
                    AGAIN + Duration::from_millis(asking.fleet.teller().dice(JITTER_MILLIS));
                // Told or not, it is time.
                drop(timeout(again, line.moved.notified()).await);
            }
            match self.ask_store(bucket, asking).await {
                Err(Denied::Full) => pauses = true,
                asked => return asked,
            }
        }
    }

    /// Asks once.
    async fn ask_store(&self, bucket: &Arc<Bucket>, asking: Asking<'_>) -> Result<Held, Denied> {
        let Asking { ask, strictly, fleet, backend } = asking;
        let keep = fleet.teller().kept(ask.keep);
        let begun = bucket.begins(&self.clock, ask.keep, keep);
        let (permit, id, limit) = begun.map_err(|_| Denied::Full)?;
        // Dropped from here on, it is told over.
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
