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

use crate::limiter::{Answer, RuleVerdict};
use crate::stream::{CounterId, EnvoyStream};

/// Defines a counter with label names, or returns `None` if Envoy refuses.
pub(crate) type DefineCounter<'d> = dyn FnMut(&str, &[&str]) -> Option<CounterId> + 'd;

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

/// The number of events since they were counted last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UncountedEvents {
    pub(crate) panics: u64,
    pub(crate) borrowed_hits: u64,
    pub(crate) memory_refused: u64,
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

    pub(crate) fn count_answer(&self, stream: &impl EnvoyStream, answer: &Answer) {
        match answer.verdict {
            RuleVerdict::FallbackAllow => stream.increment(self.fallback_allowed, &[], 1),
            RuleVerdict::FallbackDeny => stream.increment(self.fallback_denied, &[], 1),
            RuleVerdict::Allow if answer.rules.is_empty() => {
                stream.increment(self.allowed, &["none"], 1);
            }
            _ => {}
        }
        for (rule, is_allowed) in &answer.rules {
            let counter = if *is_allowed { self.allowed } else { self.denied };
            stream.increment(counter, &[rule], 1);
        }
    }

    pub(crate) fn count_wait(&self, stream: &impl EnvoyStream) {
        stream.increment(self.waits, &[], 1);
    }

    /// Counts events that happened outside of a stream.
    pub(crate) fn count_events(&self, stream: &impl EnvoyStream, events: &UncountedEvents) {
        for (counter, count) in [
            (self.panics, events.panics),
            (self.borrowed_hits, events.borrowed_hits),
            (self.memory_refused, events.memory_refused),
        ] {
            if count != 0 {
                stream.increment(counter, &[], count);
            }
        }
    }
}
