//! Turns decisions and incidents into events for other programs.
//!
//! Guarantees:
//! - Without the setting `events.url`, a check costs one comparison more.
//! - With it, a limit costs one comparison more unless it is nearly used up or denies.
//! - A check never waits for an event.
//!
//! Not covered:
//! - The format, the queue and the delivery of events (see [`crate::telemetry::cloud_events`]).

mod bans;
mod budgets;
mod calls;
mod limits;
mod watch;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::check_text::short_entries;
use crate::config::settings::{DescriptorValues, EventKinds, UnitFraction};
use crate::kernel::decision::Descriptor;
use crate::kernel::units::Nanos;
use crate::telemetry::cloud_events::{EventContent, EventKey, EventQueue, EventWindow};

pub(crate) use bans::BanAction;

/// The window of events that do not belong to a rate limit.
const INCIDENT_WINDOW: Nanos = Nanos::from_secs(60);

/// The events that an engine sends, and their queue.
#[derive(Clone, Debug)]
pub struct EventOptions {
    /// The queue of the events.
    pub queue: Arc<EventQueue>,
    /// The kinds of events that are sent.
    pub kinds: EventKinds,
    /// The part of a limit from which an allowed check sends an event.
    pub near_limit: UnitFraction,
    /// The form of descriptor values in events.
    pub descriptor_values: DescriptorValues,
    /// `true` if no limit is enforced (global shadow mode).
    pub shadow_mode: bool,
    /// The name of this replica.
    pub replica: String,
}

impl EventOptions {
    /// Queues an incident that is sent once a minute. `fill` adds its data, and returns its subject.
    /// Returns `false` if the queue had no room: the incident may be offered again.
    #[must_use]
    fn offer_incident(
        &self,
        (event_type, key): (&'static str, &[u8]),
        now: Nanos,
        fill: impl FnOnce(&mut Map<String, Value>) -> String,
    ) -> bool {
        let key = minute_key(event_type, key, now);
        self.queue.offer_incident(key, now, || self.minute_content(fill))
    }

    fn minute_content(&self, fill: impl FnOnce(&mut Map<String, Value>) -> String) -> EventContent {
        let mut data = Map::new();
        data.insert("replica".to_owned(), self.replica.as_str().into());
        let subject = fill(&mut data);
        EventContent { subject, data }
    }

    /// Returns the entries of a descriptor, with values as `telemetry.descriptor_values`
    /// selects.
    fn descriptor_json(&self, descriptor: &Descriptor<'_>) -> Value {
        self.entries_json(&descriptor.entries)
    }

    fn entries_json(&self, entries: &[(&str, &str)]) -> Value {
        let entries = short_entries(entries, self.descriptor_values).into_iter();
        entries.map(|(key, value)| json!({"key": key, "value": value})).collect()
    }
}

/// Returns the key of an event that is sent once a minute.
const fn minute_key<'k>(event_type: &'static str, key: &'k [u8], now: Nanos) -> EventKey<'k> {
    EventKey { event_type, key, window: EventWindow::aligned(now, INCIDENT_WINDOW) }
}
