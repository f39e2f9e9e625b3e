//! Counts the rejections and the expired shares of each concurrency limit, and the rejections of each
//! class.
//!
//! Guarantees:
//! - The first [`MAX_LIMIT_SERIES`] limits with an event have separate series. The others are
//!   summed as `other`. So are the classes of a limit beyond the first [`MAX_CLASS_SERIES`].
//!
//! Cost: an event takes a process-wide lock and a look-up. Admitted requests cause no event.

use std::collections::BTreeMap;
use std::fmt;

use parking_lot::Mutex;

use super::concurrency::{MAX_LIMIT_SERIES, OTHER};
use super::text_format::{EscapedLabel, MetricHead};
use crate::label::LimitEvent;

type EventCounts = [u64; LimitEvent::ALL.len()];

/// The largest number of classes of one limit with separate series. Reloads may rename its classes.
const MAX_CLASS_SERIES: usize = 16;

/// The events of each concurrency limit, by its path.
#[derive(Debug)]
pub(crate) struct LimitEvents(Mutex<BTreeMap<Box<str>, LimitCounts>>);

/// The events of one concurrency limit.
#[derive(Debug, Default)]
struct LimitCounts {
    events: EventCounts,
    /// The rejections of each class.
    classes: BTreeMap<Box<str>, u64>,
}

impl LimitEvents {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Counts events. `class` is the class of rejected requests, if the limit has classes.
    pub(crate) fn count(&self, limit: &str, event: LimitEvent, class: Option<&str>, count: u64) {
        let mut limits = self.0.lock();
        let Some(counts) = entry_or_other(&mut limits, limit, MAX_LIMIT_SERIES) else { return };
        counts.events[event as usize] = counts.events[event as usize].saturating_add(count);
        let classes = &mut counts.classes;
        if let Some(rejected) =
            class.and_then(|class| entry_or_other(classes, class, MAX_CLASS_SERIES))
        {
            *rejected = rejected.saturating_add(count);
        }
    }

    /// Returns the rejections of a class of a limit.
    pub(super) fn class_rejections(&self, limit: &str, class: &str) -> u64 {
        let limits = self.0.lock();
        limits.get(limit).and_then(|counts| counts.classes.get(class)).copied().unwrap_or(0)
    }

    /// Returns the limits with at least one `event`, and the number of these events.
    pub(super) fn counts(&self, event: LimitEvent) -> Vec<(Box<str>, u64)> {
        let limits = self.0.lock();
        let counts =
            limits.iter().map(|(limit, counts)| (limit.clone(), counts.events[event as usize]));
        counts.filter(|(_, count)| *count != 0).collect()
    }

    pub(super) fn write(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "sluicegate_concurrency_limit_events_total";
        let help = "Requests rejected by a concurrency limit by reason, and its expired shares";
        MetricHead(name, help).write(page, "counter")?;
        let limits = self.0.lock();
        for (limit, counts) in limits.iter() {
            for (event, count) in LimitEvent::ALL.iter().zip(counts.events) {
                let (limit, event) = (EscapedLabel(limit), event.as_str());
                writeln!(page, "{name}{{limit=\"{limit}\",event=\"{event}\"}} {count}")?;
            }
        }
        let name = "sluicegate_concurrency_class_rejections_total";
        let help = "Requests that a concurrency limit of this replica rejected, by class";
        MetricHead(name, help).write(page, "counter")?;
        for (limit, counts) in limits.iter() {
            for (class, count) in &counts.classes {
                let (limit, class) = (EscapedLabel(limit), EscapedLabel(class));
                writeln!(page, "{name}{{limit=\"{limit}\",class=\"{class}\"}} {count}")?;
            }
        }
        Ok(())
    }
}

/// Returns the value of `name`. Beyond `most` names, a new one shares the value of `other`.
fn entry_or_other<'m, V: Default>(
    map: &'m mut BTreeMap<Box<str>, V>,
    name: &str,
    most: usize,
) -> Option<&'m mut V> {
    let name = if map.contains_key(name) || map.len() < most { name } else { OTHER };
    if !map.contains_key(name) {
        map.insert(name.into(), V::default());
    }
    map.get_mut(name)
}
