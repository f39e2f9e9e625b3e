//! Counts the rejections and the expired shares of each concurrency limit, and the rejections of each
//! class.
//!
//! Guarantees:
//! - The first [`MAX_LIMIT_SERIES`] limits with an event have separate series. The others are
//!   summed as `other`. So are classes beyond [`MAX_CLASS_SERIES`].
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
pub(crate) struct LimitEvents {
    events: Mutex<BTreeMap<Box<str>, EventCounts>>,
    /// The rejections by limit and class.
    classes: Mutex<BTreeMap<LimitClass, u64>>,
}

/// A limit, by its path, and one of its classes.
type LimitClass = (Box<str>, Box<str>);

/// The largest number of limits and classes with separate series.
const MAX_CLASS_SERIES: usize = 400;

impl LimitEvents {
    pub(super) const fn new() -> Self {
        Self { events: Mutex::new(BTreeMap::new()), classes: Mutex::new(BTreeMap::new()) }
    }

    pub(crate) fn count(&self, limit: &str, event: LimitEvent, count: u64) {
        let mut limits = self.events.lock();
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

    pub(crate) fn count_class(&self, limit: &str, class: &str, count: u64) {
        let mut classes = self.classes.lock();
        let mut key = (limit.into(), class.into());
        if !classes.contains_key(&key) && MAX_CLASS_SERIES <= classes.len() {
            key = (OTHER.into(), OTHER.into());
        }
        let counted = classes.entry(key).or_default();
        *counted = counted.saturating_add(count);
    }

    /// Returns the rejections of a class of a limit.
    pub(super) fn class_rejections(&self, limit: &str, class: &str) -> u64 {
        self.classes.lock().get(&(limit.into(), class.into())).copied().unwrap_or(0)
    }

    /// Returns the limits with at least one `event`, and the number of these events.
    pub(super) fn counts(&self, event: LimitEvent) -> Vec<(Box<str>, u64)> {
        let limits = self.events.lock();
        let counts = limits.iter().map(|(limit, counts)| (limit.clone(), counts[event as usize]));
        counts.filter(|(_, count)| *count != 0).collect()
    }

    pub(super) fn write(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "sluicegate_concurrency_limit_events_total";
        let help = "Requests rejected by a concurrency limit by reason, and its expired shares";
        MetricHead(name, help).write(page, "counter")?;
        for (limit, counts) in self.events.lock().iter() {
            for (event, count) in LimitEvent::ALL.iter().zip(counts) {
                let (limit, event) = (EscapedLabel(limit), event.as_str());
                writeln!(page, "{name}{{limit=\"{limit}\",event=\"{event}\"}} {count}")?;
            }
        }
        let name = "sluicegate_concurrency_class_rejections_total";
        let help = "Requests that a concurrency limit of this replica rejected, by class";
        MetricHead(name, help).write(page, "counter")?;
        for ((limit, class), count) in self.classes.lock().iter() {
            let (limit, class) = (EscapedLabel(limit), EscapedLabel(class));
            writeln!(page, "{name}{{limit=\"{limit}\",class=\"{class}\"}} {count}")?;
        }
        Ok(())
    }
}
