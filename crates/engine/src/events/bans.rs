//! Events of bans: a ban began, or an operator lifted it.
//!
//! Guarantees:
//! - One event for each begin and each lift, from the replica at which it happened.

use crate::Engine;
use crate::actions::Operator;
use crate::bans::list::BanName;
use crate::config::descriptor_text::{borrow_entries, parse_entries};
use crate::kernel::units::Nanos;
use crate::telemetry::cloud_events::{EventKey, EventWindow, format_time};

/// What happened to a ban.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BanAction<'a> {
    /// The ban began, and ends at this instant.
    Began(Nanos),
    /// An operator lifted the ban.
    Lifted(Operator<'a>),
}

impl Engine {
    /// Sends an event about a ban of the limit with this path.
    pub(crate) fn send_ban(
        &self,
        action: BanAction<'_>,
        (name, limit): (&BanName, Option<String>),
        now: Nanos,
    ) {
        let Some(events) = self.events.as_ref().filter(|events| events.kinds.banned) else {
            return;
        };
        let event_type = match action {
            BanAction::Began(_) => "io.sluicegate.ban.began",
            BanAction::Lifted(_) => "io.sluicegate.ban.lifted",
        };
        let key = [&*name.domain, &*name.descriptor, &*name.limit].join("\0");
        let window = EventWindow { start: now, end: now.plus(Nanos::SECOND) };
        let key = EventKey { event_type, key: key.as_bytes(), window };
        let entries = parse_entries(&name.descriptor).unwrap_or_default();
        // Clients cause bans, so these events take no room of incidents.
        events.queue.offer(key, now, || {
            events.minute_content(|data| {
                let descriptor = events.entries_json(&borrow_entries(&entries));
                data.insert("domain".to_owned(), (&*name.domain).into());
                data.insert("descriptor".to_owned(), descriptor);
                match action {
                    BanAction::Began(until) => {
                        data.insert("until".to_owned(), format_time(until).into());
                    }
                    BanAction::Lifted(operator) => {
                        data.insert("by".to_owned(), operator.name.into());
                        data.insert("reason".to_owned(), operator.reason.into());
                    }
                }
                limit.unwrap_or_default()
            })
        });
    }
}
