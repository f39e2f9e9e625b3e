//! Two aligned windows, interpolated.

/// Placeholder shape until the strategy lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {}
