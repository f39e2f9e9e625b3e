//! The bounded queue of events between the decision path and their delivery.
//!
//! Guarantees:
//! - At most [`MAX_QUEUED`] events are queued, being delivered, or waiting for a retry.
//! - Incidents have [`MAX_INCIDENTS`] places and a table of their own, besides those.
//! - Offering an event never waits.
//! - A dropped event may be offered again in its window.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::mpsc;

use super::recent::{Novelty, RecentKeys};
use super::{CloudEvent, EventContent, EventKey};
use crate::event::{CloudEventOutcome, Event as _};
use crate::kernel::units::Nanos;

/// The largest number of undelivered events that checks cause. An event keeps its place until its
/// delivery ends.
const MAX_QUEUED: u16 = 1_000;

/// The largest number of undelivered incidents.
const MAX_INCIDENTS: u16 = 64;

/// Accepts events from any thread.
#[derive(Debug)]
pub struct EventQueue {
    checks: EventLane,
    incidents: EventLane,
}

/// The receiving sides of an [`EventQueue`].
#[derive(Debug)]
pub(super) struct QueuedEvents {
    pub(super) checks: QueuedLane,
    pub(super) incidents: QueuedLane,
}

/// The events of one kind, with their own bound and table.
#[derive(Debug)]
struct EventLane {
    sender: mpsc::Sender<CloudEvent>,
    recent: RecentKeys,
    undelivered: Arc<AtomicU64>,
    most: u16,
}

/// The receiving side of an [`EventLane`].
#[derive(Debug)]
pub(super) struct QueuedLane {
    pub(super) receiver: mpsc::Receiver<CloudEvent>,
    /// Must be decreased when the delivery of an event ends.
    pub(super) undelivered: Arc<AtomicU64>,
}

impl EventQueue {
    pub(super) fn new() -> (Self, QueuedEvents) {
        let (checks, queued_checks) = EventLane::new(MAX_QUEUED);
        let (incidents, queued_incidents) = EventLane::new(MAX_INCIDENTS);
        let queued = QueuedEvents { checks: queued_checks, incidents: queued_incidents };
        (Self { checks, incidents }, queued)
    }

    /// Queues the event of `key`, unless it was queued in this window before. `content` is called
    /// only for a new event. If the queue or the table of keys is full, the event is dropped and
    /// counted.
    pub fn offer(&self, key: EventKey<'_>, now: Nanos, content: impl FnOnce() -> EventContent) {
        if !self.checks.offer(key, now, content) {
            CloudEventOutcome::Dropped.emit();
        }
    }

    /// Queues an event that no check causes, as [`EventQueue::offer`] does. Returns `false` if there
    /// was no room: the caller offers it again, or counts it as dropped.
    #[must_use]
    pub fn offer_incident(
        &self,
        key: EventKey<'_>,
        now: Nanos,
        content: impl FnOnce() -> EventContent,
    ) -> bool {
        self.incidents.offer(key, now, content)
    }

    /// Returns the number of events that are queued, being delivered, or waiting for a retry.
    #[must_use]
    pub fn undelivered(&self) -> u64 {
        [&self.checks, &self.incidents].map(|lane| lane.undelivered.load(Relaxed)).iter().sum()
    }
}

impl EventLane {
    fn new(most: u16) -> (Self, QueuedLane) {
        let (sender, receiver) = mpsc::channel(most.into());
        let undelivered = Arc::<AtomicU64>::default();
        let queued = QueuedLane { receiver, undelivered: Arc::clone(&undelivered) };
        (Self { sender, recent: RecentKeys::new(), undelivered, most }, queued)
    }

    /// Returns `false` if the queue or the table of keys had no room.
    fn offer(&self, key: EventKey<'_>, now: Nanos, content: impl FnOnce() -> EventContent) -> bool {
        match self.recent.insert(key, now) {
            Novelty::Known => true,
            Novelty::Full => false,
            Novelty::New => {
                let is_sent = self.send(|| CloudEvent::new(key, now, content()));
                if !is_sent {
                    self.recent.remove(key);
                }
                is_sent
            }
        }
    }

    #[cold]
    fn send(&self, event: impl FnOnce() -> CloudEvent) -> bool {
        let Ok(permit) = self.sender.try_reserve() else { return false };
        let add_one = |count| (count < u64::from(self.most)).then_some(count + 1);
        if self.undelivered.fetch_update(Relaxed, Relaxed, add_one).is_err() {
            return false;
        }
        permit.send(event());
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::cloud_events::EventWindow;

    const NOW: Nanos = Nanos::from_secs(30);

    fn key(key: &[u8]) -> EventKey<'_> {
        let window = EventWindow::aligned(NOW, Nanos::from_secs(60));
        EventKey { event_type: "t", key, window }
    }

    fn content() -> EventContent {
        EventContent { subject: String::new(), data: Map::new() }
    }

    #[test]
    fn client_events_take_no_place_of_incidents() {
        let (queue, _queued) = EventQueue::new();
        // More keys than the table of recent keys has.
        for client in 0..200_000_u32 {
            queue.offer(key(&client.to_le_bytes()), NOW, content);
        }
        assert_eq!(queue.undelivered(), u64::from(MAX_QUEUED));
        for incident in 0..MAX_INCIDENTS {
            assert!(queue.offer_incident(key(&incident.to_le_bytes()), NOW, content));
        }
        assert_eq!(queue.undelivered(), u64::from(MAX_QUEUED + MAX_INCIDENTS));
    }

    #[test]
    fn an_incident_without_room_is_queued_later_in_its_window() {
        let (queue, mut queued) = EventQueue::new();
        for incident in 0..MAX_INCIDENTS {
            assert!(queue.offer_incident(key(&incident.to_le_bytes()), NOW, content));
        }
        for _ in 0..2 {
            assert!(!queue.offer_incident(key(b"store"), NOW, content), "no room");
        }
        queued.incidents.receiver.try_recv().unwrap();
        assert!(!queue.offer_incident(key(b"store"), NOW, content), "still being delivered");
        queued.incidents.undelivered.fetch_sub(1, Relaxed);
        assert!(queue.offer_incident(key(b"store"), NOW, content));
        let undelivered = queue.undelivered();
        assert!(queue.offer_incident(key(b"store"), NOW, content), "known");
        assert_eq!(queue.undelivered(), undelivered);
    }
}
