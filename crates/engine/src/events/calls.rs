//! Sends events of rejections and of operator actions.

use super::{EventOptions, minute_key};
use crate::Engine;
use crate::Rejection;
use crate::actions::{ActionKind, AuditEntry};
use crate::check_text::short_text;
use crate::kernel::decision::Check;
use crate::kernel::units::Nanos;
use crate::telemetry::cloud_events::format_time;
use crate::telemetry::event::{CloudEventOutcome, Event as _};

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

    /// Returns `true` if checks that a concurrency limit rejects are sent as events.
    pub(crate) fn sends_rejections(&self) -> bool {
        self.events.as_ref().is_some_and(|events| events.kinds.denied)
    }

    /// Sends an event for a check of this class that a concurrency limit rejected.
    pub(crate) fn send_rejection(
        &self,
        check: &Check<'_>,
        rejection: &Rejection,
        class: Option<&str>,
    ) {
        let Some(events) = self.events.as_ref().filter(|events| events.kinds.denied) else {
            return;
        };
        let now = self.clock.now();
        let mut key = rejection.path.as_bytes().to_vec();
        for (name, value) in check.descriptors.iter().flat_map(|one| &one.entries) {
            key.extend([&[0], name.as_bytes(), &[0], value.as_bytes()].concat());
        }
        let key = minute_key("io.sluicegate.limit.denied", &key, now);
        // Clients cause these events, so they take no room of incidents.
        events.queue.offer(key, now, || {
            events.minute_content(|data| {
                let descriptors = check.descriptors.iter();
                let descriptors: Vec<_> =
                    descriptors.map(|one| events.descriptor_json(one)).collect();
                data.insert("domain".to_owned(), short_text(check.domain).into());
                data.insert("descriptors".to_owned(), descriptors.into());
                data.insert("reason".to_owned(), rejection.reason.as_str().into());
                if let Some(class) = class {
                    data.insert("class".to_owned(), class.into());
                }
                if let Some(load) = rejection.load {
                    data.insert("in_flight".to_owned(), load.in_flight.into());
                    data.insert("queued".to_owned(), load.waiting.into());
                }
                rejection.path.to_string()
            })
        });
    }

    /// Sends an event for a forced decision or boost that starts or ends.
    pub(crate) fn send_action(&self, entry: &AuditEntry) {
        let Some(events) = self.events.as_ref().filter(|events| events.kinds.forced) else {
            return;
        };
        let event_type = match &*entry.action {
            "force" => "io.sluicegate.decision.forced",
            "unforce" => "io.sluicegate.decision.unforced",
            "boost" => "io.sluicegate.limit.boosted",
            "set" => "io.sluicegate.table.set",
            "unset" => "io.sluicegate.table.unset",
            _ => "io.sluicegate.limit.unboosted",
        };
        let now = self.clock.now();
        let (limit, value) = (entry.limit.as_deref(), entry.value.as_deref());
        let kind = entry.kind.as_deref().and_then(ActionKind::parse);
        let scope = kind.map(ActionKind::scope);
        let texts = [limit, entry.descriptor.as_deref(), value].map(Option::unwrap_or_default);
        let key = [&[&*entry.domain], &texts[..]].concat().join("\0");
        let is_queued = events.offer_incident((event_type, key.as_bytes()), now, |data| {
            let until = entry.duration_ms.map(|ms| now.plus(Nanos(ms.saturating_mul(1_000_000))));
            let until = until.and_then(format_time);
            for (name, value) in [
                ("domain", Some(&*entry.domain)),
                ("scope", scope),
                ("value", value),
                ("until", until.as_deref()),
                ("by", Some(&*entry.by)),
                ("reason", Some(&*entry.reason)),
            ] {
                data.insert(name.to_owned(), value.into());
            }
            limit.unwrap_or_default().to_owned()
        });
        if !is_queued {
            CloudEventOutcome::Dropped.emit();
        }
    }
}
