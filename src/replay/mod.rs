//! Decides recorded checks again, with other limits and without waiting.
//!
//! Guarantees:
//! - Decisions are those of the real engine with the memory store, on the recorded times.
//! - Memory is bounded: one block of checks, the counters, and [`comparison::MAX_KEYS`] keys.
//!
//! Not covered:
//! - Concurrency limits, leases and fallbacks: a replay has one replica and a store that replies.
//! - Counters that had hits before the recording started: a replay starts with empty counters.
//! - Forced decisions, which a recording does not contain.

pub mod comparison;
mod engine;
pub mod limits_yaml;
pub mod report;
pub mod suggestion;
