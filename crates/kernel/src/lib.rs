//! Pure algorithms of rate limits, leases and concurrency limits. State and time are arguments.
//!
//! Guarantees:
//! - No I/O, clock, async, logging, randomness or panic.
//! - Integer arithmetic only; every rounding and saturation is documented.
//!
//! Not covered: storage of the state, and transport of decisions.

#![forbid(unsafe_code)]
#![deny(clippy::arithmetic_side_effects, clippy::as_conversions, clippy::float_arithmetic)]

pub mod budget;
pub mod concurrency;
pub mod coordinator;
pub mod decision;
pub mod key;
pub mod lease;
mod named_enum;
pub mod proxy_rule;
pub mod rate;
pub mod top_keys;
pub mod units;
