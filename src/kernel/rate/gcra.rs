//! GCRA, the generic cell rate algorithm, exact in integers.

/// Placeholder shape until the strategy lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gcra {}
