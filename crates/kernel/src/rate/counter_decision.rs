//! The result of a counter for one descriptor.
//!
//! Guarantees:
//! - Every result but [`CounterDecision::OutsideWindows`] has the headroom of the counter.
//!
//! Not covered:
//! - The reason for a verdict (see [`crate::decision::Reason`]).

use crate::units::{Hits, Nanos};

/// The result of a counter for one descriptor's hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CounterDecision {
    /// The hits are allowed.
    Allow(Headroom),
    /// The hits are denied now, and allowed after `retry_after` without other traffic.
    Deny {
        /// The time until these hits are allowed.
        retry_after: Nanos,
        /// The headroom, which the denied hits do not change.
        headroom: Headroom,
    },
    /// More hits than the limit can ever allow; waiting does not help.
    ExceedsLimit(Headroom),
    /// `now` is outside the planned calendar windows; plan again and retry.
    OutsideWindows,
}

/// The headroom of a counter after a charge or a peek.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Headroom {
    /// The hits that would be allowed at this instant.
    pub remaining: Hits,
    /// The time until the counter is empty; for a fixed window, until it ends.
    pub reset_after: Nanos,
}
