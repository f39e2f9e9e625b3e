//! Watches the store and the shares of concurrency limits, and sends an event when one fails.
//!
//! Guarantees:
//! - A state of the store that lasts is reported, at most once a minute.
//! - A state is noticed within [`WATCH_INTERVAL`].
//! - An event for which the queue has no room is offered again after [`WATCH_INTERVAL`].

use std::collections::HashMap;
use std::time::Duration;

use super::{EventOptions, INCIDENT_WINDOW};
use crate::Engine;
use crate::kernel::units::Nanos;
use crate::store::StoreFailure;
use crate::telemetry::metrics::METRICS;

const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// The last reported state of the store, and the instants of the last reports.
#[derive(Debug, Default)]
struct StoreWatch {
    is_down: bool,
    last_down: Option<Nanos>,
    last_up: Option<Nanos>,
}

impl StoreWatch {
    /// Returns `true` if the state must be reported now.
    fn is_due(&self, is_down: bool, now: Nanos) -> bool {
        let last = if is_down { self.last_down } else { self.last_up };
        let is_early = last.is_some_and(|last| now.since(last) < INCIDENT_WINDOW);
        is_down != self.is_down && !is_early
    }

    /// Records that the state was reported.
    const fn record(&mut self, is_down: bool, now: Nanos) {
        self.is_down = is_down;
        *(if is_down { &mut self.last_down } else { &mut self.last_up }) = Some(now);
    }
}

impl Engine {
    /// Sends events about the store and about expired shares. Never returns.
    pub async fn watch_incidents(&self) {
        let Some(events) = &self.events else { return std::future::pending().await };
        let mut ticks = tokio::time::interval(WATCH_INTERVAL);
        let (mut store, mut fences) = (StoreWatch::default(), HashMap::new());
        loop {
            ticks.tick().await;
            let now = self.clock.now();
            if events.kinds.store_down {
                let failure = self.store_failure();
                let is_down = failure.is_some();
                if store.is_due(is_down, now) && events.offer_store(failure, now) {
                    store.record(is_down, now);
                }
            }
            if events.kinds.fenced && METRICS.fences() != fences.values().sum::<u64>() {
                events.offer_fences(&mut fences, now);
            }
        }
    }
}

impl EventOptions {
    /// Returns `false` if the queue had no room.
    fn offer_store(&self, failure: Option<StoreFailure>, now: Nanos) -> bool {
        let event_type = match failure {
            Some(_) => "io.sluicegate.store.unavailable",
            None => "io.sluicegate.store.available",
        };
        self.offer_incident((event_type, self.replica.as_bytes()), now, |data| {
            data.insert("reason".to_owned(), failure.map(StoreFailure::as_str).into());
            "store".to_owned()
        })
    }

    /// Sends an event for each limit with more expired shares than in `known`. A limit whose event
    /// had no room stays as it is, so that the next tick offers the event again.
    fn offer_fences(&self, known: &mut HashMap<Box<str>, u64>, now: Nanos) {
        for (limit, fences) in METRICS.fenced_limits() {
            let before = known.get(&limit).copied().unwrap_or_default();
            if before < fences {
                let key = [&*limit, "\0", &self.replica].concat();
                let event = ("io.sluicegate.share.fenced", key.as_bytes());
                let is_queued = self.offer_incident(event, now, |data| {
                    data.insert("shares".to_owned(), (fences - before).into());
                    limit.to_string()
                });
                if is_queued {
                    known.insert(limit, fences);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flapping_store_is_reported_once_a_minute_for_each_state() {
        let mut watch = StoreWatch::default();
        let observed = [
            (0, false, false),
            (1, true, true),
            (2, true, false),
            (3, false, true),
            (4, true, false),
            (60, true, false),
            (61, true, true),
            (62, false, false),
            (63, false, true),
        ];
        for (second, is_down, is_reported) in observed {
            let due = watch.is_due(is_down, Nanos::from_secs(second));
            assert_eq!(due, is_reported, "{second} s");
            if due {
                watch.record(is_down, Nanos::from_secs(second));
            }
        }
    }

    #[test]
    fn a_state_stays_due_until_its_event_is_queued() {
        let mut watch = StoreWatch::default();
        let second = Nanos::from_secs;
        assert!(watch.is_due(true, second(1)));
        assert!(watch.is_due(true, second(2)), "the queue was full");
        watch.record(true, second(2));
        assert!(!watch.is_due(true, second(3)));
    }
}
