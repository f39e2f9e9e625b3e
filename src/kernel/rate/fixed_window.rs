//! One count per window: the reference's strategy, with calendar windows too.

/// Placeholder shape until the strategy lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {}
