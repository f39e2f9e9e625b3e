//! Leased rate limits: borrows hits from a store of counters, and spends them without a call.
//!
//! Sluicegate uses this crate with a store of its own. A proxy uses it with Sluicegate as the store.
//!
//! Guarantees:
//! - The bound of [`kernel::lease`] holds for any number of processes.
//!
//! Not covered:
//! - The stores, apart from their interface.
//! - Configuration, metrics and protocols.

pub mod beside_leases;
pub mod charge_subset;
pub mod clock;
pub mod half_hasher;
pub mod leases;
pub mod store;

pub use sluicegate_kernel as kernel;
