//! The bounded queue of events between the decision path and their delivery.
//!
//! Guarantees:
//! - At most [`MAX_QUEUED`] events are queued, being delivered, or waiting for a retry.
//! - Offering an event never waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::mpsc;

use super::recent::{Novelty, RecentKeys};
use super::{CloudEvent, EventContent, EventKey};
use crate::kernel::units::Nanos;
use crate::telemetry::event::{CloudEventOutcome, Event as _};

/// The largest number of undelivered events. An event keeps its place until its delivery ends.
const MAX_QUEUED: u16 = 1_000;

/// Accepts events from any thread.
#[derive(Debug)]
pub struct EventQueue {
    sender: mpsc::Sender<CloudEvent>,
    recent: RecentKeys,
    undelivered: Arc<AtomicU64>,
}

/// The receiving side of an [`EventQueue`].
#[derive(Debug)]
pub(super) struct QueuedEvents {
    pub(super) receiver: mpsc::Receiver<CloudEvent>,
    pub(super) undelivered: Arc<AtomicU64>,
}

impl EventQueue {
    pub(super) fn new() -> (Self, QueuedEvents) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED.into());
        let undelivered = Arc::default();
        let queued = QueuedEvents { receiver, undelivered: Arc::clone(&undelivered) };
        (Self { sender, recent: RecentKeys::new(), undelivered }, queued)
    }

    /// Queues the event of `key`, unless it was queued in this window before. `content` is called
    /// only for a new event. If the queue or the table of keys is full, the event is dropped and
    /// counted.
    pub fn offer(&self, key: EventKey<'_>, now: Nanos, content: impl FnOnce() -> EventContent) {
        match self.recent.insert(key, now) {
            Novelty::Known => {}
            Novelty::Full => CloudEventOutcome::Dropped.emit(),
            Novelty::New => self.send(|| CloudEvent::new(key, now, content())),
        }
    }

    /// Returns the number of events that are queued, being delivered, or waiting for a retry.
    #[must_use]
    pub fn undelivered(&self) -> u64 {
        self.undelivered.load(Relaxed)
    }

    #[cold]
    fn send(&self, event: impl FnOnce() -> CloudEvent) {
        let Ok(permit) = self.sender.try_reserve() else {
            return CloudEventOutcome::Dropped.emit();
        };
        let add_one = |count| (count < u64::from(MAX_QUEUED)).then_some(count + 1);
        if self.undelivered.fetch_update(Relaxed, Relaxed, add_one).is_err() {
            return CloudEventOutcome::Dropped.emit();
        }
        permit.send(event());
    }
}
