//! Turns decisions and incidents into events for other programs.
//!
//! Guarantees:
//! - Without the setting `events.url`, a check costs one comparison more.
//! - With it, a limit costs one comparison more unless it is nearly used up or denies.
//! - A check never waits for an event.
//!
//! Not covered:
//! - The format, the queue and the delivery of events (see [`crate::telemetry::cloud_events`]).

mod limits;
mod watch;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::config::settings::{DescriptorValues, EventKinds, Percentage};
use crate::engine::Engine;
use crate::engine::check_text::{short_entries, short_text};
use crate::engine::concurrency::path::ConcurrencyRejection;
use crate::engine::forced_decisions::verdict_name;
use crate::kernel::decision::{Check, Descriptor, Verdict};
use crate::kernel::units::Nanos;
use crate::telemetry::cloud_events::{
    EventContent, EventKey, EventQueue, EventWindow, format_time,
};

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
    pub near_limit: Percentage,
    /// The form of descriptor values in events.
    pub descriptor_values: DescriptorValues,
    /// `true` if no limit is enforced (global shadow mode).
    pub shadow_mode: bool,
    /// The name of this replica.
    pub replica: String,
}

impl Engine {
    /// Sends events. Without them, an engine sends none.
    #[must_use]
    pub fn with_events(self, events: EventOptions) -> Self {
        Self { events: Some(Box::new(events)), ..self }
    }

    /// Returns the number of events that are queued or being delivered.
    #[must_use]
    pub fn undelivered_events(&self) -> u64 {
        self.events.as_ref().map_or(0, |events| events.queue.undelivered())
    }

    /// Sends an event for a check that a concurrency limit rejected.
    pub(in crate::engine) fn send_rejection(
        &self,
        check: &Check<'_>,
        rejection: &ConcurrencyRejection,
    ) {
        let Some(events) = self.events.as_ref().filter(|events| events.kinds.denied) else {
            return;
        };
        let now = self.clock.now();
        let mut key = rejection.path.as_bytes().to_vec();
        for (name, value) in check.descriptors.iter().flat_map(|one| &one.entries) {
            key.extend([&[0], name.as_bytes(), &[0], value.as_bytes()].concat());
        }
        let event_type = "io.sluicegate.limit.denied";
        events.offer_incident((event_type, &key), now, |data| {
            let descriptors = check.descriptors.iter();
            let descriptors: Vec<_> = descriptors.map(|one| events.descriptor_json(one)).collect();
            data.insert("domain".to_owned(), short_text(check.domain).into());
            data.insert("descriptors".to_owned(), descriptors.into());
            data.insert("reason".to_owned(), rejection.reason.as_str().into());
            rejection.path.to_string()
        });
    }

    /// Sends an event for a forced decision that starts (`Some`, with its end) or ends (`None`).
    pub(in crate::engine) fn send_forced(
        &self,
        (domain, path): (&str, &str),
        forced: Option<(Verdict, Nanos)>,
    ) {
        let Some(events) = self.events.as_ref().filter(|events| events.kinds.forced) else {
            return;
        };
        let verdict = forced.map(|(verdict, _)| verdict_name(verdict));
        let event_type = match forced {
            Some(_) => "io.sluicegate.decision.forced",
            None => "io.sluicegate.decision.unforced",
        };
        let key = [domain, "\0", path, "\0", verdict.unwrap_or_default()].concat();
        events.offer_incident((event_type, key.as_bytes()), self.clock.now(), |data| {
            data.insert("domain".to_owned(), domain.into());
            data.insert("verdict".to_owned(), verdict.into());
            let until = forced.and_then(|(_, until)| format_time(until));
            data.insert("until".to_owned(), until.into());
            path.to_owned()
        });
    }
}

impl EventOptions {
    /// Queues an event that is sent once a minute. `fill` adds its data, and returns its subject.
    fn offer_incident(
        &self,
        (event_type, key): (&'static str, &[u8]),
        now: Nanos,
        fill: impl FnOnce(&mut Map<String, Value>) -> String,
    ) {
        let key = EventKey { event_type, key, window: EventWindow::aligned(now, INCIDENT_WINDOW) };
        self.queue.offer(key, now, || {
            let mut data = Map::new();
            data.insert("replica".to_owned(), self.replica.as_str().into());
            let subject = fill(&mut data);
            EventContent { subject, data }
        });
    }

    /// Returns the entries of a descriptor, with values as `telemetry.log.descriptor_values`
    /// selects.
    fn descriptor_json(&self, descriptor: &Descriptor<'_>) -> Value {
        let entries = short_entries(&descriptor.entries, self.descriptor_values).into_iter();
        entries.map(|(key, value)| json!({"key": key, "value": value})).collect()
    }
}
