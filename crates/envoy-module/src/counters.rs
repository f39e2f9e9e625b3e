//! The filter's counters in Envoy's statistics.
//!
//! | counter | counts |
//! |---|---|
//! | `allowed{rule}`, `denied{rule}` | decisions of a rule; `none` if no rule matched |
//! | `fallback_allowed`, `fallback_denied` | requests without an answer of the service |
//! | `borrowed_hits` | hits borrowed from the service |
//! | `waits` | requests that waited for the service |
//! | `memory_refused` | requests, and calls for their rules, without memory |
//! | `panics` | panics in the filter |

use std::sync::Arc;

use crate::limiter::{Answer, RuleVerdict};
use crate::stream::{CounterId, CounterSink};

/// Defines a counter with label names, or returns `None` if Envoy refuses.
pub(crate) type DefineCounter<'d> = dyn FnMut(&str, &[&str]) -> Option<CounterId> + 'd;

/// An event that a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event<'e> {
    /// A decision of the rule with this path.
    Rule { path: &'e Arc<str>, is_allowed: bool },
    /// An event without a rule.
    Plain(PlainEvent),
}

/// An event without a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainEvent {
    /// A request that no rule matched.
    Unmatched,
    FallbackAllowed,
    FallbackDenied,
    BorrowedHit,
    Wait,
    MemoryRefused,
    Panic,
}

/// The numbers of the filter's counters.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    allowed: CounterId,
    denied: CounterId,
    fallback_allowed: CounterId,
    fallback_denied: CounterId,
    borrowed_hits: CounterId,
    waits: CounterId,
    memory_refused: CounterId,
    panics: CounterId,
}

impl PlainEvent {
    pub(crate) const ALL: [Self; 7] = [
        Self::Unmatched,
        Self::FallbackAllowed,
        Self::FallbackDenied,
        Self::BorrowedHit,
        Self::Wait,
        Self::MemoryRefused,
        Self::Panic,
    ];
}

impl Counters {
    pub(crate) fn define(define: &mut DefineCounter<'_>) -> Option<Self> {
        Some(Self {
            allowed: define("allowed", &["rule"])?,
            denied: define("denied", &["rule"])?,
            fallback_allowed: define("fallback_allowed", &[])?,
            fallback_denied: define("fallback_denied", &[])?,
            borrowed_hits: define("borrowed_hits", &[])?,
            waits: define("waits", &[])?,
            memory_refused: define("memory_refused", &[])?,
            panics: define("panics", &[])?,
        })
    }

    /// Adds a number of equal events to their counter.
    pub(crate) fn add(&self, sink: &impl CounterSink, event: Event<'_>, count: u64) {
        match event {
            Event::Rule { path, is_allowed } => {
                let counter = if is_allowed { self.allowed } else { self.denied };
                sink.increment(counter, &[path], count);
            }
            Event::Plain(PlainEvent::Unmatched) => sink.increment(self.allowed, &["none"], count),
            Event::Plain(event) => sink.increment(self.unlabelled(event), &[], count),
        }
    }

    const fn unlabelled(&self, event: PlainEvent) -> CounterId {
        match event {
            PlainEvent::Unmatched => self.allowed,
            PlainEvent::FallbackAllowed => self.fallback_allowed,
            PlainEvent::FallbackDenied => self.fallback_denied,
            PlainEvent::BorrowedHit => self.borrowed_hits,
            PlainEvent::Wait => self.waits,
            PlainEvent::MemoryRefused => self.memory_refused,
            PlainEvent::Panic => self.panics,
        }
    }
}

/// Returns the events of an answer.
pub(crate) fn events(answer: &Answer) -> impl Iterator<Item = Event<'_>> + Clone {
    let request = match answer.verdict {
        RuleVerdict::FallbackAllow => Some(PlainEvent::FallbackAllowed),
        RuleVerdict::FallbackDeny => Some(PlainEvent::FallbackDenied),
        RuleVerdict::Allow if answer.rules.is_empty() => Some(PlainEvent::Unmatched),
        _ => None,
    };
    let rules = answer.rules.iter();
    let rules = rules.map(|(path, is_allowed)| Event::Rule { path, is_allowed: *is_allowed });
    request.map(Event::Plain).into_iter().chain(rules)
}
