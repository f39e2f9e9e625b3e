//! Records the checks of this replica, and the ends and renewals of their holds, while an operator asks for it.
//!
//! Guarantees:
//! - At most one recording runs; without one, a check costs one relaxed load.
//! - A sampled descriptor is recorded with all its hits, so that its counters can be replayed.
//! - A reserve, its settle and its renewals are sampled together: by the first entry of their first
//!   descriptor. A budget of this entry, or below it, has all of them.
//! - With the memory store, the order of the calls is the order of the decisions.
//! - At most [`stream::MAX_QUEUED_BLOCKS`] blocks wait for the client; further calls are dropped and counted.
//! - A recording ends with its stream, after its duration, and when the replica drains.
//!
//! Not covered:
//! - Samples of all-or-nothing domains, `replaces` and quota: other descriptors of a check are missing.
//! - Samples of budgets that several first entries share, or that checks without an id charge.
//! - Budgets in global shadow mode: their denials are recorded as allowed.
//! - Top-ups.
//! - Throughput: with the memory store, a recording decides one call at a time.
//! - Checks in flight at the start; checks whose caller disconnects before the store's reply.

mod calls;
mod error;
pub(super) mod state;
pub mod stream;

pub use error::RecordError;
pub use stream::{RecordedKeys, RecordingOptions, RecordingStream};
