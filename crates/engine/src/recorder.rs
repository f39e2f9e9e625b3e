//! Records the checks of this replica while an operator asks for it.
//!
//! Guarantees:
//! - At most one recording runs; without one, a check costs one relaxed load.
//! - A sampled descriptor is recorded with all its hits, so that its counters can be replayed.
//! - With the memory store, the order of the checks is the order of the decisions.
//! - At most [`stream::MAX_QUEUED_BLOCKS`] blocks wait for the client; further checks are dropped and counted.
//! - A recording ends with its stream, after its duration, and when the replica drains.
//!
//! Not covered:
//! - Samples of all-or-nothing domains, `replaces` and quota: other descriptors of a check are missing.
//! - Throughput: with the memory store, a recording decides one check at a time.
//! - Checks in flight at the start; checks whose caller disconnects before the store's reply.

mod error;
pub(super) mod state;
pub mod stream;

pub use error::RecordError;
pub use stream::{RecordedKeys, RecordingOptions, RecordingStream};
