//! One open stream to Sluicegate, and the calls that wait for its replies.
//!
//! Guarantees:
//! - At most [`MAX_CALLS`] calls wait for replies. A dropped call waits no longer.
//! - The end of the session fails all its calls.
//! - A session that misses a deadline gets one call per [`PROBE_INTERVAL`] until it replies.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::call::CallFailure;
use crate::kernel::units::Nanos;
use crate::wire::api::{LeaseMessage, ProxyMessage, lease_message, proxy_message};

/// The largest number of calls that wait for replies.
const MAX_CALLS: usize = 16_384;

/// The largest number of messages that wait to be sent.
pub(crate) const QUEUE_CAPACITY: usize = 4_096;

const PROBE_INTERVAL: Nanos = Nanos(250_000_000);

type Reply = oneshot::Sender<lease_message::Message>;

/// One open stream.
#[derive(Debug)]
pub(crate) struct Session {
    outgoing: mpsc::Sender<ProxyMessage>,
    /// The calls that wait, by id; `None` after the end of the session.
    waiting: Mutex<Option<HashMap<u64, Reply>>>,
    next_id: AtomicU64,
    last_received: AtomicU64,
    is_stalled: AtomicBool,
    next_probe: AtomicU64,
}

/// A call that waits for its reply until it is dropped.
#[derive(Debug)]
struct WaitingCall<'s> {
    session: &'s Session,
    id: u64,
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.session.waiting.lock().as_mut() {
            waiting.remove(&self.id);
        }
    }
}

impl Session {
    pub(crate) fn new(outgoing: mpsc::Sender<ProxyMessage>) -> Self {
        Self {
            outgoing,
            waiting: Mutex::new(Some(HashMap::new())),
            next_id: AtomicU64::new(1),
            last_received: AtomicU64::new(0),
            is_stalled: AtomicBool::new(false),
            next_probe: AtomicU64::new(0),
        }
    }

    /// Returns `true` if a call may be sent at `now`, an instant of the steady clock.
    pub(crate) fn accepts_calls(&self, now: Nanos) -> bool {
        if !self.is_stalled.load(Relaxed) {
            return true;
        }
        let next = self.next_probe.load(Relaxed);
        let after = now.plus(PROBE_INTERVAL).0;
        next <= now.0 && self.next_probe.compare_exchange(next, after, Relaxed, Relaxed).is_ok()
    }

    /// Sends a request at `now` and waits for the reply, at most for `wait`.
    pub(crate) async fn call(
        &self,
        message: proxy_message::Message,
        now: Nanos,
        wait: Duration,
    ) -> Result<lease_message::Message, CallFailure> {
        let (waiting, reply) = self.expect_reply()?;
        let message = ProxyMessage { id: waiting.id, message: Some(message) };
        self.outgoing.try_send(message).map_err(|_| CallFailure::Overloaded)?;
        match timeout(wait, reply).await {
            Ok(Ok(message)) => Ok(message),
            Ok(Err(_)) => Err(CallFailure::Lost),
            Err(_) => {
                self.note_timeout(now);
                Err(CallFailure::TimedOut)
            }
        }
    }

    /// Sends a message without a reply. Returns `false` if the queue is full or the stream ended.
    pub(crate) fn send(&self, message: proxy_message::Message) -> bool {
        self.outgoing.try_send(ProxyMessage { id: 0, message: Some(message) }).is_ok()
    }

    /// Gives a reply that arrived at `now` to its call. A reply after the deadline is dropped.
    pub(crate) fn receive(&self, reply: LeaseMessage, now: Nanos) {
        self.last_received.store(now.0, Relaxed);
        self.is_stalled.store(false, Relaxed);
        let waiting = self.waiting.lock().as_mut().and_then(|waiting| waiting.remove(&reply.id));
        if let (Some(waiting), Some(message)) = (waiting, reply.message) {
            // The call may have been dropped.
            let _sent = waiting.send(message);
        }
    }

    /// Fails all calls, and refuses new ones.
    pub(crate) fn close(&self) {
        self.waiting.lock().take();
    }

    fn expect_reply(
        &self,
    ) -> Result<(WaitingCall<'_>, oneshot::Receiver<lease_message::Message>), CallFailure> {
        let mut waiting = self.waiting.lock();
        let waiting = waiting.as_mut().ok_or(CallFailure::NotConnected)?;
        if MAX_CALLS <= waiting.len() {
            return Err(CallFailure::Overloaded);
        }
        let (id, (sender, receiver)) = (self.next_id.fetch_add(1, Relaxed), oneshot::channel());
        waiting.insert(id, sender);
        Ok((WaitingCall { session: self, id }, receiver))
    }

    /// Notes that a call of `sent_at` had no reply in time. If no other reply arrived since, the
    /// session has stalled.
    fn note_timeout(&self, sent_at: Nanos) {
        if self.last_received.load(Relaxed) < sent_at.0 {
            self.is_stalled.store(true, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
