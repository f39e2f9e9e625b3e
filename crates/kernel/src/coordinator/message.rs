//! The messages between a replica and the coordinator.
//!
//! Guarantees:
//! - Messages contain only numbers that are valid on every machine: counts, incarnations, grants.
//! - Messages contain no instants.
//!
//! Not covered:
//! - Serialization.

use super::aggregate::LimitFactor;
use crate::units::{Generation, Incarnation, ReplicaId, Share};

/// A replica's periodic report, measured at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Heartbeat {
    /// The replica.
    pub replica: ReplicaId,
    /// The replica's incarnation.
    pub incarnation: Incarnation,
    /// The heartbeat's number, which increases within an incarnation.
    pub number: u64,
    /// The share in use, with its grant; `None` before the first grant and after a fence.
    pub grant_in_use: Option<GrantInUse>,
    /// The requests in flight.
    pub in_flight: Share,
    /// The permits that the replica would use, see [`super::split::demand`].
    pub demand: Share,
    /// The vote on the limit, if the replica has enough samples.
    pub vote: Option<LimitFactor>,
    /// Set if the replica admits nothing from now on and applies no grant.
    pub is_leaving: bool,
}

impl Heartbeat {
    /// The sort key of share states.
    #[must_use]
    pub const fn sort_key(&self) -> (ReplicaId, Incarnation) {
        (self.replica, self.incarnation)
    }
}

/// A share in use, with its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantInUse {
    /// The coordinator incarnation that granted it.
    pub coordinator_incarnation: Incarnation,
    /// The number of the grant in that incarnation.
    pub generation: Generation,
    /// The share in permits. Only a coordinator without its own record reads it.
    pub share: Share,
    /// The whole limit as the replica knows it. Only a coordinator without its own record reads it.
    pub limit: Share,
}

/// The coordinator's reply to one heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    /// The replica.
    pub replica: ReplicaId,
    /// The replica's incarnation.
    pub incarnation: Incarnation,
    /// The number of the heartbeat.
    pub heartbeat_number: u64,
    /// The coordinator's incarnation.
    pub coordinator_incarnation: Incarnation,
    /// The number of the grant in that incarnation; an unchanged share keeps it.
    pub generation: Generation,
    /// The share in permits. Its lifetime counts from sending the heartbeat.
    pub share: Share,
    /// The share after the other replicas gave up theirs.
    pub fair_share: Share,
    /// The whole limit.
    pub limit: Share,
    /// The number of replicas that share the limit.
    pub replicas: u64,
    /// Set if the coordinator lost its state and grants no more than the proven share.
    pub is_recovering: bool,
}
