//! Makes recorded calls again, with other limits and without waiting.
//!
//! Guarantees:
//! - Decisions are those of the real engine with the memory store, on the recorded times.
//! - Memory: one block of calls, the counters and budgets, [`comparison::MAX_KEYS`] keys, and the ids of
//!   denied requests.
//!
//! Not covered:
//! - Concurrency limits, leases and fallbacks: a replay has one replica and a store that replies.
//! - Counters and budgets that were used before the recording started: a replay starts with empty ones.
//! - Forced decisions and top-ups, which a recording does not contain.

pub mod comparison;
mod engine;
pub mod limits_yaml;
pub mod report;
pub mod suggestion;
mod warnings;
