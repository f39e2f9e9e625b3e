//! Counts the rejections and the expired shares of each concurrency limit.
//!
//! Guarantees:
//! - The first [`MAX_LIMIT_SERIES`] limits with an event have separate series. The others are
//!   summed as `other`.
//!
//! Cost: an event takes a process-wide lock and a look-up. Admitted requests cause no event.

use std::collections::BTreeMap;
use std::fmt;

use parking_lot::Mutex;

use super::concurrency::{MAX_LIMIT_SERIES, OTHER};
use super::text_format::{EscapedLabel, MetricHead};
use crate::label::LimitEvent;

type EventCounts = [u64; LimitEvent::ALL.len()];

/// The number of events of each concurrency limit, by its path.
#[derive(Debug)]
pub(crate) struct LimitEvents(Mutex<BTreeMap<Box<str>, EventCounts>>);

impl LimitEvents {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub(crate) fn count(&self, limit: &str, event: LimitEvent, count: u64) {
        let mut limits = self.0.lock();
        let limit = if limits.contains_key(limit) || limits.len() < MAX_LIMIT_SERIES {
            limit
        } else {
            OTHER
        };
        if let Some(counts) = limits.get_mut(limit) {
            counts[event as usize] = counts[event as usize].saturating_add(count);
        } else {
            let mut counts = EventCounts::default();
            counts[event as usize] = count;
            limits.insert(limit.into(), counts);
        }
    }

    /// Returns the limits with at least one `event`, and the number of these events.
    pub(super) fn counts(&self, event: LimitEvent) -> Vec<(Box<str>, u64)> {
        let limits = self.0.lock();
        let counts = limits.iter().map(|(limit, counts)| (limit.clone(), counts[event as usize]));
        counts.filter(|(_, count)| *count != 0).collect()
    }

    pub(super) fn write(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "sluicegate_concurrency_limit_events_total";
        let help = "Requests rejected by a concurrency limit by reason, and its expired shares";
        MetricHead(name, help).write(page, "counter")?;
        for (limit, counts) in self.0.lock().iter() {
            for (event, count) in LimitEvent::ALL.iter().zip(counts) {
                let (limit, event) = (EscapedLabel(limit), event.as_str());
                writeln!(page, "{name}{{limit=\"{limit}\",event=\"{event}\"}} {count}")?;
            }
        }
        Ok(())
    }
}
