//! What to answer: pure decisions over state, time and hits.
//!
//! Guarantees: no I/O, no clock, no async, no logging, no randomness; integer arithmetic whose
//! every rounding and saturation is spelled out; no panic.
//! Leaves out: where state lives, who asks, and how an answer travels.

#![deny(clippy::arithmetic_side_effects, clippy::as_conversions, clippy::float_arithmetic)]

pub mod concurrency;
pub mod coordinator;
pub mod decision;
pub mod key;
pub mod lease;
pub mod rate;
pub mod units;
