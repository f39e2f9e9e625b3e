//! Decides requests inside a proxy, from hits leased from Sluicegate and shares of its limits.
//!
//! [`Limiter`] is the whole interface: it takes the descriptors of a request and returns an answer,
//! or a future answer. One [`Limiter`] serves all threads of the proxy.
//!
//! Guarantees:
//! - A request whose hits are leased needs no call, no wait and no allocation.
//! - The process is one replica in the lease tables, so `max_overshoot` includes its hits.
//! - The process is one replica of each concurrency limit.
//! - Each step of a decision waits at most for the deadline. Then the failure rule decides.
//! - Memory, queues and calls in flight are bounded. The memory is a setting.
//!
//! Not covered:
//! - The proxy's interface (see `crates/envoy-module`).

pub mod answer;
mod call;
mod concurrency;
mod connection;
#[cfg(test)]
mod fixtures;
mod found_rule;
mod limiter;
mod limits_version;
mod memory;
mod pending;
pub mod permits;
mod request;
mod rule;
mod rule_table;
mod service_store;
mod session;
pub mod settings;
mod usage;

pub use connection::LogLine;
pub use limiter::{Check, Limiter, StartError, Started};
pub use memory::DEFAULT_MEMORY_BYTES;
pub use pending::PendingAnswer;
pub use permits::{Admission, Permits};
pub use request::{DescriptorEntries, MAX_KEY_BYTES, MAX_REQUEST_BYTES, MAX_VALUE_BYTES};
pub use sluicegate_kernel as kernel;
pub use sluicegate_lease::leases::LeaseEvent;
use sluicegate_lease_protocol as wire;
