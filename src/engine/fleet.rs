//! The fleet as one replica sees it: the live replicas, the reports to the store, and the releases
//! that replicas forward to each other.

pub mod forwarding;
pub mod membership;
pub mod permits;
pub mod reporter;
pub mod share_totals;
