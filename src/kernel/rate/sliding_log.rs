//! Every arrival of the last period, in a ring.

/// Placeholder shape until the strategy lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {}
