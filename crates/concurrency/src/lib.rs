//! Concurrency limits of one process: acquires and releases permits, queues requests, and splits
//! limits with the other processes of a fleet.
//!
//! Sluicegate uses this crate with a store of its own. A proxy uses it with Sluicegate as the store.
//!
//! Guarantees:
//! - The bounds of [`kernel::coordinator`] and of strict limits hold for any number of processes.
//!
//! Not covered:
//! - The stores, apart from their interface.
//! - Configuration, metrics and protocols.

pub mod host;
pub mod limits;
pub mod store;

pub use sluicegate_kernel as kernel;
