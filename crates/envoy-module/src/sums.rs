//! The events since the last addition to Envoy's counters.
//!
//! Guarantees:
//! - The sums that are taken are the events that were accepted, in any interleaving.
//! - The first event after the sums were taken is reported as such, and no other.
//! - The number of rules is bounded: [`MAX_RULES`] and the rules of one answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::counters::{Event, PlainEvent};

/// From this number of rules on, events are refused until the sums are taken.
pub(crate) const MAX_RULES: usize = 1024;

/// Sums of events, which all threads add to.
#[derive(Debug, Default)]
pub(crate) struct EventSums(Mutex<PendingSums>);

/// The result of an addition to the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddOutcome {
    /// Accepted; the first since the sums were taken.
    First,
    /// Accepted.
    Later,
    /// No event was accepted, because the sums have too many rules.
    Refused,
}

#[derive(Debug, Default)]
struct PendingSums {
    sums: Sums,
    has_first: bool,
}

/// Sums of events that were taken.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    plain: [u64; PlainEvent::ALL.len()],
    rules: HashMap<Arc<str>, RuleSums>,
}

#[derive(Debug, Default)]
struct RuleSums {
    allowed: u64,
    denied: u64,
}

impl EventSums {
    /// Adds all events, or none.
    pub(crate) fn add<'e>(&self, events: impl Iterator<Item = Event<'e>>) -> AddOutcome {
        let mut state = self.lock();
        if state.sums.rules.len() >= MAX_RULES {
            return AddOutcome::Refused;
        }
        events.for_each(|event| state.sums.add(event));
        if std::mem::replace(&mut state.has_first, true) {
            AddOutcome::Later
        } else {
            AddOutcome::First
        }
    }

    /// Returns the sums, and begins again with none.
    pub(crate) fn take(&self) -> Sums {
        std::mem::take(&mut *self.lock()).sums
    }

    fn lock(&self) -> MutexGuard<'_, PendingSums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sums {
    /// Returns the events with their numbers, which are not 0.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Event<'_>, u64)> {
        let plain = PlainEvent::ALL.into_iter().zip(self.plain);
        let plain = plain.map(|(event, count)| (Event::Plain(event), count));
        let rules = self.rules.iter().flat_map(|(path, sums)| {
            [(true, sums.allowed), (false, sums.denied)]
                .map(|(is_allowed, count)| (Event::Rule { path, is_allowed }, count))
        });
        plain.chain(rules).filter(|(_, count)| *count != 0)
    }

    fn add(&mut self, event: Event<'_>) {
        match event {
            Event::Plain(event) => self.plain[event as usize] += 1,
            Event::Rule { path, is_allowed } => self.add_rule(path, is_allowed),
        }
    }

    fn add_rule(&mut self, path: &Arc<str>, is_allowed: bool) {
        // A clone for each event would move the path's count of references between the cores.
        if let Some(sums) = self.rules.get_mut(&**path) {
            return sums.add(is_allowed);
        }
        self.rules.entry(Arc::clone(path)).or_default().add(is_allowed);
    }
}

impl RuleSums {
    const fn add(&mut self, is_allowed: bool) {
        let sum = if is_allowed { &mut self.allowed } else { &mut self.denied };
        *sum += 1;
    }
}

#[cfg(test)]
mod tests;
