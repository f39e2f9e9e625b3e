//! Tests of the kernel: rate limits, leases, concurrency limits and the coordinator.

mod concurrency;
mod coordinator;
mod key;
pub mod lease;
mod rate;
