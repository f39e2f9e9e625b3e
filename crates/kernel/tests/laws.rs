//! The laws of the kernel: rate limits, leases, concurrency limits and the coordinator.
//!
//! `model_check` explores every order of events in small models. `simulation` plays random faults.
//! Both use the kernel's own functions as steps.

// The binary has no public API, and a helper that panics fails its test.
#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::expect_used, clippy::let_underscore_must_use, clippy::unwrap_used)]

mod budget;
mod concurrency;
mod coordinator;
#[path = "../../../tests/support/dice.rs"]
mod dice;
mod key;
mod lease;
mod model_check;
mod rate;
mod simulation;
