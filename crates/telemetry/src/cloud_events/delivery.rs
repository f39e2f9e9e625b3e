//! Delivers queued events, with retries.
//!
//! Guarantees:
//! - At most [`MAX_REQUESTS`] requests run at a time, and [`MAX_INCIDENT_REQUESTS`] for incidents.
//! - An event that waits for a retry delays no other event.
//! - An event that fails for [`MAX_AGE`] is dropped and counted.
//! - A receiver's `Retry-After` is respected, up to [`MAX_AGE`].
//! - A repeated error is logged once, then counted once a minute.
//!
//! Not covered:
//! - Order: a retried event arrives after later ones.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::Shared;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use hyper::body::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::queue::{QueuedEvents, QueuedLane};
use super::webhook::{MAX_AGE, PostResult, Webhook};
use super::{CloudEvent, EventQueue, WebhookError, WebhookOptions};
use crate::event::{CloudEventOutcome, Event as _};
use crate::kernel::units::Nanos;
use crate::reason_log::QuietLog;

/// The largest number of requests that run at a time for events that checks cause.
const MAX_REQUESTS: usize = 4;

/// The largest number of requests that run at a time for incidents. They wait for no other event.
const MAX_INCIDENT_REQUESTS: usize = 2;

/// The wait before the first retry. It doubles up to [`MAX_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(250);

const MAX_WAIT: Duration = Duration::from_secs(30);

/// Delivers the events of one queue.
#[derive(Debug)]
pub struct EventDelivery {
    queued: QueuedEvents,
    webhook: Webhook,
    log: Mutex<QuietLog>,
}

/// The running delivery. [`EventDrain::finish`] ends it.
#[derive(Debug)]
pub struct EventDrain {
    task: JoinHandle<()>,
    close: oneshot::Sender<()>,
    queue: Arc<EventQueue>,
}

/// The parts that the deliveries of one lane share.
struct DeliveryContext<'d> {
    webhook: &'d Webhook,
    log: &'d Mutex<QuietLog>,
    /// One permit for each request that may run.
    requests: Semaphore,
    now: &'d ReadTime,
}

/// Reads the time since the Unix epoch.
type ReadTime = Arc<dyn Fn() -> Nanos + Send + Sync>;

impl EventDelivery {
    /// Creates a queue and its delivery.
    ///
    /// # Errors
    /// The CA bundle or the secret file is not usable.
    pub fn new(options: WebhookOptions) -> Result<(Arc<EventQueue>, Self), WebhookError> {
        let webhook = Webhook::new(options)?;
        let (queue, queued) = EventQueue::new();
        Ok((Arc::new(queue), Self { queued, webhook, log: Mutex::default() }))
    }

    /// Starts the delivery. Must run within a Tokio runtime.
    #[must_use]
    pub fn start(self, queue: Arc<EventQueue>, now: ReadTime) -> EventDrain {
        let (close, closed) = oneshot::channel();
        EventDrain { task: tokio::spawn(self.run(now, closed)), close, queue }
    }

    /// Delivers events until the queue is closed and empty.
    async fn run(self, now: ReadTime, closed: oneshot::Receiver<()>) {
        let Self { queued: QueuedEvents { checks, incidents }, webhook, log } = self;
        let closed = closed.shared();
        let deliver_lane = |lane, most| {
            let requests = Semaphore::new(most);
            let context = DeliveryContext { webhook: &webhook, log: &log, requests, now: &now };
            deliver_lane(lane, context, closed.clone())
        };
        let checks = deliver_lane(checks, MAX_REQUESTS);
        tokio::join!(checks, deliver_lane(incidents, MAX_INCIDENT_REQUESTS));
    }
}

/// Delivers the events of a lane until it is closed and empty.
async fn deliver_lane(
    QueuedLane { mut receiver, undelivered }: QueuedLane,
    context: DeliveryContext<'_>,
    mut closed: Shared<oneshot::Receiver<()>>,
) {
    // Bounded, because the queue bounds the undelivered events.
    let (mut deliveries, mut is_open) = (FuturesUnordered::new(), true);
    loop {
        tokio::select! {
            _ = &mut closed, if is_open => {
                is_open = false;
                receiver.close();
            }
            event = receiver.recv() => {
                let Some(event) = event else { break };
                deliveries.push(deliver(event, &context));
            }
            Some(()) = deliveries.next() => {
                undelivered.fetch_sub(1, Relaxed);
            }
        }
    }
    while let Some(()) = deliveries.next().await {
        undelivered.fetch_sub(1, Relaxed);
    }
}

impl EventDrain {
    /// Closes the queue, and delivers its events for at most `timeout`. The others are dropped.
    pub async fn finish(mut self, timeout: Duration) {
        // An error means that the task has ended.
        self.close.send(()).ok();
        if tokio::time::timeout(timeout, &mut self.task).await.is_ok() {
            return;
        }
        self.task.abort();
        let dropped = self.queue.undelivered();
        (0..dropped).for_each(|_| CloudEventOutcome::Dropped.emit());
        tracing::warn!(
            dropped,
            "events dropped at shutdown, the receiver did not accept them in time"
        );
    }
}

/// Posts the event until the receiver accepts or refuses it, or until [`MAX_AGE`].
async fn deliver(event: CloudEvent, context: &DeliveryContext<'_>) {
    let DeliveryContext { webhook, log, .. } = context;
    let url = &webhook.options.shown_url;
    let body = Bytes::from(event.to_json(&webhook.options.source).to_string());
    let id = event.id;
    let (mut deadline, mut wait) = (None, FIRST_WAIT);
    loop {
        let (started, result) = context.post(&id, &body).await;
        let (error, earliest) = match result {
            PostResult::Accepted => {
                if log.lock().record_success(Instant::now()) {
                    tracing::info!(url, "events are delivered again");
                }
                return CloudEventOutcome::Sent.emit();
            }
            PostResult::Refused(status) => {
                log_failure(log, url, &format!("status {status}, not retried"));
                return CloudEventOutcome::Refused.emit();
            }
            PostResult::Failed(error, earliest) => (error, earliest),
        };
        log_failure(log, url, &error);
        let deadline = *deadline.get_or_insert(started + MAX_AGE);
        let next_wait = wait.max(earliest.unwrap_or_default());
        let Some(next) = next_attempt(Instant::now(), next_wait, deadline) else {
            return CloudEventOutcome::Expired.emit();
        };
        tokio::time::sleep_until(next).await;
        CloudEventOutcome::Retried.emit();
        wait = (wait * 2).min(MAX_WAIT);
    }
}

impl DeliveryContext<'_> {
    /// Posts an event once, when a request may start. Returns the start of the request.
    async fn post(&self, id: &str, body: &Bytes) -> (Instant, PostResult) {
        // The semaphore is never closed. It is fair, so events get their first attempt between the
        // retries of others.
        let _request = self.requests.acquire().await;
        let started = Instant::now();
        // Boxed, because hundreds of events may wait, and only few have a request.
        (started, Box::pin(self.webhook.post(id, body, (self.now)())).await)
    }
}

/// Returns the instant of the next attempt; `None` if it is later than `deadline`. The receiver
/// chooses `wait`, so the sum may overflow.
fn next_attempt(now: Instant, wait: Duration, deadline: Instant) -> Option<Instant> {
    now.checked_add(wait).filter(|next| *next <= deadline)
}

fn log_failure(log: &Mutex<QuietLog>, url: &str, error: &str) {
    if let Some(line) = log.lock().count(error, Instant::now()) {
        let times = line.times;
        tracing::warn!(url, error, times, "failed to send an event (setting events.url)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_overflows_the_clock() {
        let now = Instant::now();
        let deadline = now + MAX_AGE;
        assert_eq!(next_attempt(now, MAX_AGE, deadline), Some(deadline));
        for wait in [MAX_AGE + Duration::from_nanos(1), Duration::MAX] {
            assert_eq!(next_attempt(now, wait, deadline), None, "{wait:?}");
        }
    }
}
