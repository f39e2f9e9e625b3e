//! Events for other programs: CloudEvents 1.0, posted over HTTP.
//!
//! Guarantees:
//! - An event for one type, key and window is queued at most once by this replica.
//! - Its id depends on type, key and window alone, so a receiver can drop duplicates.
//! - Queueing never waits. A full queue or table drops the event and counts that.
//! - Events that checks cause take no room of incidents, such as a failed store.
//!
//! Not covered:
//! - Which decisions become events (see `engine::events`).

mod delivery;
mod queue;
mod recent;
mod webhook;

use std::fmt::Write as _;

use jiff::Timestamp;
use ring::digest::{Context, SHA256};
use serde_json::{Map, Value, json};

use crate::kernel::units::Nanos;

pub use delivery::{EventDelivery, EventDrain};
pub use queue::EventQueue;
pub use webhook::{WebhookError, WebhookOptions};

/// The subject of an event, and the window for which it is sent once.
#[derive(Clone, Copy, Debug)]
pub struct EventKey<'k> {
    /// The attribute `type`, such as `io.sluicegate.limit.denied`.
    pub event_type: &'static str,
    /// The bytes that name the counter, rule or store.
    pub key: &'k [u8],
    /// The window: the event is sent once in it.
    pub window: EventWindow,
}

/// An interval of time, since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventWindow {
    /// The first instant.
    pub start: Nanos,
    /// The first instant after the window.
    pub end: Nanos,
}

impl EventWindow {
    /// Returns the window of this length that contains `now`. Windows are aligned to the Unix
    /// epoch; a length of 0 counts as 1 ns.
    #[must_use]
    pub const fn aligned(now: Nanos, length: Nanos) -> Self {
        let length = if length.0 == 0 { 1 } else { length.0 };
        let start = Nanos(now.0 - now.0 % length);
        Self { start, end: start.plus(Nanos(length)) }
    }
}

/// The part of an event that is only built if the event is queued.
#[derive(Clone, Debug)]
pub struct EventContent {
    /// The attribute `subject`: the path of a rule, or the name of the store.
    pub subject: String,
    /// The attribute `data`.
    pub data: Map<String, Value>,
}

/// A queued event.
#[derive(Clone, Debug)]
struct CloudEvent {
    event_type: &'static str,
    id: String,
    at: Nanos,
    content: EventContent,
}

impl CloudEvent {
    fn new(key: EventKey<'_>, at: Nanos, content: EventContent) -> Self {
        Self { event_type: key.event_type, id: event_id(key), at, content }
    }

    /// Returns the event in the JSON format of CloudEvents 1.0 (structured mode).
    fn to_json(&self, source: &str) -> Value {
        json!({
            "specversion": "1.0",
            "id": self.id,
            "source": source,
            "type": self.event_type,
            "subject": self.content.subject,
            "time": format_time(self.at),
            "datacontenttype": "application/json",
            "data": self.content.data,
        })
    }
}

/// Returns an instant in the format of RFC 3339; `None` after the year 9999.
#[must_use]
pub fn format_time(at: Nanos) -> Option<String> {
    Timestamp::from_nanosecond(at.0.into()).ok().map(|at| at.to_string())
}

/// Returns 32 hexadecimal digits: the first half of a SHA-256 over type, key and start of the
/// window.
fn event_id(EventKey { event_type, key, window }: EventKey<'_>) -> String {
    let mut hash = Context::new(&SHA256);
    hash.update(event_type.as_bytes());
    hash.update(&[0]);
    hash.update(&window.start.0.to_be_bytes());
    hash.update(key);
    let mut id = String::with_capacity(32);
    for byte in hash.finish().as_ref().iter().take(16) {
        let _infallible = write!(id, "{byte:02x}");
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(event_type: &'static str, key: &'static [u8], at: u64) -> EventKey<'static> {
        let window = EventWindow::aligned(Nanos::from_secs(at), Nanos::from_secs(60));
        EventKey { event_type, key, window }
    }

    #[test]
    fn the_id_depends_on_type_key_and_window_alone() {
        let id = event_id(key("a", b"k", 61));
        assert_eq!(id, event_id(key("a", b"k", 119)));
        assert_eq!(id.len(), 32);
        for other in [key("b", b"k", 61), key("a", b"l", 61), key("a", b"k", 120)] {
            assert_ne!(id, event_id(other), "{other:?}");
        }
    }

    #[test]
    fn events_have_the_required_attributes_of_cloudevents() {
        let data = Map::from_iter([("remaining".to_owned(), json!(0))]);
        let content = EventContent { subject: "shop.api_key".to_owned(), data };
        let at = Nanos(1_700_000_000_250_000_000);
        let event = CloudEvent::new(key("io.sluicegate.limit.denied", b"k", 0), at, content);
        let wanted = json!({
            "specversion": "1.0",
            "id": event.id,
            "source": "sluicegate",
            "type": "io.sluicegate.limit.denied",
            "subject": "shop.api_key",
            "time": "2023-11-14T22:13:20.25Z",
            "datacontenttype": "application/json",
            "data": {"remaining": 0},
        });
        assert_eq!(event.to_json("sluicegate"), wanted);
    }
}
