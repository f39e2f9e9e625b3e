//! The start of a fleet on a new store: an operator states that no request is in flight under an
//! earlier state. Then shared and strict concurrency limits need no grace period.
//!
//! Guarantees:
//! - [`StartMode::IfNew`] changes nothing if the store has the state of a fleet.
//! - States of limits and permits stay unchanged.
//!
//! Not covered:
//! - A wrong statement: the fleet then exceeds its limits until these requests have ended.

use super::{AuditStore, StoreFailure, StoreReply};

/// The condition under which a fleet is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartMode {
    /// Never: the call only reads the state.
    Inspect,
    /// The store has no state of a fleet, except an audit log.
    IfNew,
    /// A grace period runs, or the store is new.
    Forced,
}

/// The knowledge of a store about requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetState {
    /// The store has no state of a fleet.
    New,
    /// The store knows all requests in flight: no grace period runs.
    Settled,
    /// Requests may be in flight that the store does not know.
    Unsettled,
}

impl FleetState {
    /// Returns the state of a store whose shares have the state `self`, and whose permits of strict
    /// limits have the state `permits`. A fleet without strict limits has no permits.
    #[must_use]
    pub const fn with_permits(self, permits: Self) -> Self {
        match (self, permits) {
            (Self::New, Self::New) => Self::New,
            (Self::Settled, Self::New | Self::Settled) => Self::Settled,
            _ => Self::Unsettled,
        }
    }

    /// Returns `true` if a start in this mode changes a store with this state.
    #[must_use]
    pub fn is_started_by(self, mode: StartMode) -> bool {
        match mode {
            StartMode::Inspect => false,
            StartMode::IfNew => self == Self::New,
            StartMode::Forced => self != Self::Settled,
        }
    }
}

/// A shared store whose fleet can be started.
pub trait StartFleet: AuditStore {
    /// Ends the grace period under the condition `mode`. Returns the state before the call.
    ///
    /// In a Redis Cluster, each node is a call of its own. An error may leave some of them started.
    fn start_fleet(&self, mode: StartMode) -> StoreReply<'_, Result<FleetState, StoreFailure>>;
}
